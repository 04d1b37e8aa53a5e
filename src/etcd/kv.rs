//! Keys: reads, and writes, each of which is a transaction.

use lockkeeper_machine::{Key, KeyRange, Revision, TXN_BYTES_MAX, TXN_WRITES_MAX};
use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore, check,
    error::Error,
    key,
    large::LargeAnswer,
    proto::etcdserverpb::{
        CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
        RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, kv_server::Kv, request_op,
        response_op::Response as Answer,
    },
    range::{AnswerRoom, FoundEntry, size},
};

#[tonic::async_trait]
impl<S: EtcdStore> Kv for Etcd<S> {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::range(&request)?;

        let (answer, revision) = match self.read_copy(&caller, &request).await? {
            Some(read) => read,
            None => self.read(&caller, &request).await?,
        };
        Ok(Response::new(RangeResponse { header: self.header(revision), ..answer }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::put(&request)?;
        let (revision, answer) = self.one(&caller, request_op::Request::RequestPut(request)).await?;
        let Some(Answer::ResponsePut(answer)) = answer else { return Err(unexpected()) };
        Ok(Response::new(PutResponse { header: self.header(revision), ..answer }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::delete(&request)?;

        let (revision, answer) = match self.one(&caller, request_op::Request::RequestDeleteRange(request.clone())).await
        {
            Ok((revision, Some(Answer::ResponseDeleteRange(answer)))) => (revision, answer),
            Ok(_) => return Err(unexpected()),
            Err(Error::TooLarge) if !request.range_end.is_empty() => self.delete_in_parts(&caller, &request).await?,
            Err(error) => return Err(error.into()),
        };

        Ok(Response::new(DeleteRangeResponse { header: self.header(revision), ..answer }))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::txn(&request)?;
        let (revision, answer) = self.transact(&caller, &request).await?;
        Ok(Response::new(TxnResponse { header: self.header(revision), ..answer }))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        let caller = self.caller(&request)?;
        let revision = u64::try_from(request.into_inner().revision).map_err(|_| Error::Compacted)?;

        // etcd refuses to compact a revision that is compacted already. That includes the compacted revision itself: its state can still be
        // read, and the state of the revision before it cannot.
        for known in [revision, revision.saturating_sub(1)] {
            self.store.get(&caller, Vec::new(), Some(Revision(known))).await?;
        }

        self.store.compact(&caller, Revision(revision)).await?;
        Ok(Response::new(CompactionResponse { header: self.header_now() }))
    }
}

impl<S: EtcdStore> Etcd<S> {
    /// One write, as a transaction without a condition.
    async fn one(&self, caller: &S::Caller, request: request_op::Request) -> Result<(Revision, Option<Answer>), Error> {
        let success = vec![RequestOp { request: Some(request) }];
        let (revision, mut answer) = self.transact(caller, &TxnRequest { success, ..TxnRequest::default() }).await?;
        Ok((revision, answer.responses.pop().and_then(|answer| answer.response)))
    }

    /// Deletes a range of more keys than one transaction may, or of more than it can show: part by part.
    async fn delete_in_parts(
        &self,
        caller: &S::Caller,
        request: &DeleteRangeRequest,
    ) -> Result<(Revision, DeleteRangeResponse), Error> {
        let KeyRange { mut from, to } = key::range(&request.key, &request.range_end)?;

        // The answer shows the deleted entries. If they do not fit into it, nothing must be deleted.
        let mut answered = LargeAnswer::new(self, caller);
        if request.prev_kv {
            answered.take_turn().await?;
            let mut room = AnswerRoom::for_shown();
            let all = KeyRange { from: from.clone(), to: to.clone() };
            let scanned = self.scan(&mut answered, all, None, |entries| room.take_entries(&entries)).await;
            // Forgotten between two pages. Nothing was deleted, so the client may ask again.
            scanned.map_err(|error| if error == Error::Compacted { Error::TooManyRequests } else { error })?;
        }

        let mut whole = DeleteRangeResponse::default();
        loop {
            // Half of the limit, because others may add keys in the meantime.
            let told = failure_of_part(whole.deleted > 0);
            let page =
                self.store.list(caller, KeyRange { from: from.clone(), to: to.clone() }, TXN_WRITES_MAX / 2, None);
            let page = page.await.map_err(|error| told(error.into()))?;

            let all = page.entries.len();
            let fitting = if request.prev_kv { fitting(&page.entries) } else { all };
            let is_last = !page.more && fitting == all;
            let last = page.entries[..fitting].last().filter(|_| !is_last);
            let next = last.map(|(last, _)| [last.as_bytes(), &[0]].concat());
            let next = next.map(|next| Key::new(&next)).transpose().map_err(|_| Error::TooLarge)?;

            // Each part deletes a range and not the listed keys, so that a key which was put since then is deleted too.
            let part = DeleteRangeRequest {
                key: from.as_ref().map(key::shown).unwrap_or_default().to_vec(),
                range_end: next.as_ref().map_or(request.range_end.clone(), |next| key::shown(next).to_vec()),
                prev_kv: request.prev_kv,
            };
            let deleted = self.one(caller, request_op::Request::RequestDeleteRange(part)).await;
            let (revision, answer) = deleted.map_err(told)?;
            let Some(Answer::ResponseDeleteRange(answer)) = answer else {
                return Err(Error::Other("no answer to a part".to_owned()));
            };

            whole.deleted += answer.deleted;
            whole.prev_kvs.extend(answer.prev_kvs);
            if next.is_none() {
                return Ok((revision, whole));
            }
            from = next;
        }
    }
}

/// What the client is told of a part that failed. If an earlier one has deleted some keys, the error must not say that nothing happened.
fn failure_of_part(has_deleted: bool) -> impl Fn(Error) -> Error {
    move |error| if has_deleted && !error.may_have_taken_effect() { Error::TimedOut } else { error }
}

/// How many of these entries one transaction can delete and show, of which there is at least one. They take half of its room: others may
/// add some meanwhile.
fn fitting(entries: &[FoundEntry]) -> usize {
    let mut bytes = 0;
    let beyond = entries.iter().position(|entry| {
        bytes += size(entry);
        bytes > TXN_BYTES_MAX / 2
    });
    beyond.map_or(entries.len(), |beyond| beyond.max(1))
}

/// The store answered another operation than the one that it was asked for: a mistake of ours.
fn unexpected() -> Status {
    Error::Other("the answer is not that of the operation".to_owned()).into()
}
