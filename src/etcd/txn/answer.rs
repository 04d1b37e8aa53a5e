//! The answers to the operations of a branch that ran.

use futures::future::BoxFuture;
use lockkeeper_machine::{Committed, Revision, Selected, TxnOperation, TxnResult};

use super::compile::{Branch, BranchStep};
use crate::{
    Etcd, EtcdStore,
    error::Error,
    header::{inner_header, key_value},
    key,
    proto::{
        etcdserverpb::{
            DeleteRangeRequest, DeleteRangeResponse, PutResponse, RangeResponse, ResponseOp, TxnResponse,
            response_op::Response,
        },
        mvccpb::KeyValue,
    },
    range,
};

/// A branch that ran, and its results.
struct BranchOutcome<'a> {
    branch: &'a Branch<'a>,
    committed: &'a Committed,
    /// What the branch has read of the past.
    past: Vec<RangeResponse>,
}

impl<S: EtcdStore> Etcd<S> {
    /// Returns the revision of a branch that ran, and the answer.
    pub(super) async fn answer(
        &self,
        caller: &S::Caller,
        branch: &Branch<'_>,
        committed: &Committed,
        past: Vec<RangeResponse>,
    ) -> Result<(Revision, TxnResponse), Error> {
        let outcome = BranchOutcome { branch, committed, past };
        let responses = self.responses(caller, &outcome, &branch.steps).await?;
        Ok((committed.revision, TxnResponse { header: None, succeeded: committed.succeeded, responses }))
    }

    fn responses<'a>(
        &'a self,
        caller: &'a S::Caller,
        outcome: &'a BranchOutcome<'a>,
        steps: &'a [BranchStep<'a>],
    ) -> BoxFuture<'a, Result<Vec<ResponseOp>, Error>> {
        // Boxed, since a transaction may be in another one.
        Box::pin(async move {
            let mut responses = Vec::with_capacity(steps.len());
            for step in steps {
                let response = self.response(caller, outcome, step).await?;
                responses.push(ResponseOp { response: Some(response) });
            }
            Ok(responses)
        })
    }

    async fn response(
        &self,
        caller: &S::Caller,
        outcome: &BranchOutcome<'_>,
        step: &BranchStep<'_>,
    ) -> Result<Response, Error> {
        let header = inner_header(outcome.committed.revision);

        Ok(match step {
            BranchStep::Past { place } => {
                let answer = outcome.past.get(*place).cloned().unwrap_or_default();
                Response::ResponseRange(RangeResponse { header, ..answer })
            }
            BranchStep::Range { place } => {
                let answer = range::answer(outcome.selected(*place));
                Response::ResponseRange(RangeResponse { header, ..answer })
            }
            BranchStep::Put { request, before } => {
                let prev_kv = self.former(caller, outcome, request.prev_kv, &request.key, *before).await?;
                Response::ResponsePut(PutResponse { header, prev_kv })
            }
            BranchStep::Delete { request, place, before } => {
                let deleted = i64::try_from(outcome.deleted(*place)).unwrap_or(i64::MAX);
                let prev_kvs = self.former_entries(caller, outcome, request, deleted > 0, *before).await?;
                Response::ResponseDeleteRange(DeleteRangeResponse { header, deleted, prev_kvs })
            }
            BranchStep::Txn { succeeded, steps } => {
                let responses = self.responses(caller, outcome, steps).await?;
                Response::ResponseTxn(TxnResponse { header, succeeded: *succeeded, responses })
            }
        })
    }

    /// The entries that a deletion deleted, if the client asks for them.
    async fn former_entries(
        &self,
        caller: &S::Caller,
        outcome: &BranchOutcome<'_>,
        request: &DeleteRangeRequest,
        has_deleted: bool,
        place: Option<usize>,
    ) -> Result<Vec<KeyValue>, Error> {
        if !request.range_end.is_empty() {
            return Ok(place.map(|place| outcome.shown(place)).unwrap_or_default());
        }

        // A deletion of nothing has nothing to show, so the history is not asked.
        let is_wanted = request.prev_kv && has_deleted;
        let former = self.former(caller, outcome, is_wanted, &request.key, place).await?;
        Ok(former.into_iter().collect())
    }

    /// The entry of a key before its write: the one that the operation at this place shows, or else that of the history.
    async fn former(
        &self,
        caller: &S::Caller,
        outcome: &BranchOutcome<'_>,
        is_wanted: bool,
        key: &[u8],
        place: Option<usize>,
    ) -> Result<Option<KeyValue>, Error> {
        if !is_wanted {
            return Ok(None);
        }
        if let Some(place) = place {
            return Ok(outcome.shown(place).pop());
        }

        let key = key::from_wire(key)?;
        // All writes of a transaction have one revision: the state before is that of the revision below.
        let before = Revision(outcome.committed.revision.0 - 1);
        let found = self.store.get(caller, vec![key.clone()], Some(before)).await?;
        Ok(found.entries.into_iter().flatten().next().map(|entry| key_value(&key, &entry)))
    }
}

impl BranchOutcome<'_> {
    /// What the operation at this place selected.
    fn selected(&self, place: usize) -> Selected {
        match self.committed.results.get(place) {
            Some(TxnResult::Selected(selected)) => selected.clone(),
            Some(TxnResult::Got(_) | TxnResult::Put | TxnResult::Expires(_)) => Selected::default(),
            Some(TxnResult::Deleted(_) | TxnResult::Opened(_) | TxnResult::PutChild(_)) => Selected::default(),
            None => Selected::default(),
        }
    }

    /// The entries that the operation at this place shows.
    fn shown(&self, place: usize) -> Vec<KeyValue> {
        match (self.branch.operations.get(place), self.committed.results.get(place)) {
            (Some(TxnOperation::Get(key)), Some(TxnResult::Got(Some(entry)))) => vec![key_value(key, entry)],
            (_, Some(TxnResult::Selected(selected))) => {
                selected.entries.iter().map(|(key, entry)| key_value(key, entry)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of keys that the operation at this place deleted.
    fn deleted(&self, place: usize) -> u64 {
        if let Some(TxnResult::Deleted(count)) = self.committed.results.get(place) { *count } else { 0 }
    }
}
