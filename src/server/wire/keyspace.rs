//! The requests of the keyspace, between members: `lockkeeper.internal.v1.Keyspace`. Clients have no such messages: their requests come by
//! adapters of other protocols.

use std::{fmt::Display, sync::Arc};

use tonic::{Code, Response, Status, transport::Channel};

use super::{Encode, Form, Forward, MESSAGE_BYTES_MAX, ReplyMessage, replies::not_set, status::error_of};
use crate::api::{Error, requests::*};
use lockkeeper_machine::{
    Attachment, Committed, Entry, EntryEvent, Key, Revision, Selected, Stamp, Ttl, Txn, TxnResult, Version,
};
use lockkeeper_raft::messages::keyspace_client::KeyspaceClient;
use lockkeeper_table::{
    Malformed,
    codec::{
        keyspace::*,
        transactions::{read_txn, write_txn},
    },
    messages::{self as pb, commit_outcome, txn_result},
};

/// Implements [`super::Forward::call`]: calls the leader, if it has the service.
macro_rules! forwarded_to_keyspace {
    ($method:ident) => {
        async fn call(
            channel: Channel,
            request: tonic::Request<Self::Message>,
        ) -> Result<Response<ReplyMessage<Self>>, Status> {
            let mut client = KeyspaceClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
            client.$method(request).await.map_err(|status| match status.code() {
                // A leader of an earlier version has no such service.
                Code::Unimplemented => Error::leader_lacks(Version::KEYSPACE).into(),
                _ => status,
            })
        }
    };
}

/// Refuses values beyond the limits of this version, whichever node sends them.
fn bounded(field: &'static str, checked: Result<(), impl Display>) -> Result<(), Error> {
    checked.map_err(|why| Error::invalid(field, why))
}

fn malformed(field: &'static str) -> impl FnOnce(Malformed) -> Error {
    move |why| Error::invalid(field, why)
}

impl Encode for Txn {
    type Message = pb::Txn;

    fn encode(self) -> Self::Message {
        write_txn(&self)
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let txn = read_txn(&message).map_err(malformed("txn"))?;
        bounded("txn", txn.check_limits())?;
        Ok(txn)
    }
}

impl Forward for Txn {
    forwarded_to_keyspace!(commit);
}

impl Encode for Committed {
    type Message = pb::Committed;

    fn encode(self) -> Self::Message {
        let result = |result| match result {
            TxnResult::Got(entry) => txn_result::Kind::Got(show_found(entry.as_deref())),
            TxnResult::Put => txn_result::Kind::Put(true),
            TxnResult::Expires(is_there) => txn_result::Kind::Expires(is_there),
            TxnResult::Deleted(count) => txn_result::Kind::Deleted(count),
            TxnResult::Selected(selected) => txn_result::Kind::Selected(show_selected(&selected)),
            TxnResult::Opened(ttl) => txn_result::Kind::OpenedTtlMs(ttl.as_millis()),
            TxnResult::PutChild(key) => txn_result::Kind::PutChild(write_key(&key)),
        };

        let results = self.results.into_iter().map(|it| pb::TxnResult { kind: Some(result(it)) }).collect();
        pb::Committed {
            succeeded: self.succeeded,
            revision: self.revision.0,
            results,
            now_ms: self.now.0,
            failed: self.failed.map(write_failure),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let result = |result: pb::TxnResult| {
            Ok(match result.kind.ok_or_else(|| not_set("results"))? {
                txn_result::Kind::Got(entry) => TxnResult::Got(found(&entry)?),
                txn_result::Kind::Put(_) => TxnResult::Put,
                txn_result::Kind::PutChild(key) => TxnResult::PutChild(read_key(&key).map_err(malformed("results"))?),
                txn_result::Kind::Expires(is_there) => TxnResult::Expires(is_there),
                txn_result::Kind::Deleted(count) => TxnResult::Deleted(count),
                txn_result::Kind::Selected(selected) => TxnResult::Selected(read_selected(&selected)?),
                txn_result::Kind::OpenedTtlMs(ms) => {
                    TxnResult::Opened(Ttl::from_millis(ms).map_err(Error::invalid_value("results.opened_ttl_ms"))?)
                }
            })
        };

        Ok(Self {
            succeeded: message.succeeded,
            failed: message.failed.map(read_failure).transpose().map_err(malformed("failed"))?,
            revision: Revision(message.revision),
            now: Stamp(message.now_ms),
            results: message.results.into_iter().map(result).collect::<Result<_, Error>>()?,
        })
    }
}

impl Encode for CommitEach {
    type Message = pb::Txns;

    fn encode(self) -> Self::Message {
        pb::Txns { txns: self.txns.into_iter().map(Encode::encode).collect() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { txns: message.txns.into_iter().map(Txn::decode).collect::<Result<_, _>>()? })
    }
}

impl Forward for CommitEach {
    forwarded_to_keyspace!(commit_each);
}

impl Encode for EachCommitted {
    type Message = pb::EachCommitted;

    fn encode(self) -> Self::Message {
        let kind = |outcome| match outcome {
            Ok(committed) => commit_outcome::Kind::Committed(Committed::encode(committed)),
            Err(error) => {
                let status = Status::from(error);
                commit_outcome::Kind::Failure(pb::CommitFailure {
                    code: status.code().into(),
                    message: status.message().to_owned(),
                    details: status.details().to_vec().into(),
                })
            }
        };

        let outcomes = self.outcomes.into_iter().map(|outcome| pb::CommitOutcome { kind: Some(kind(outcome)) });
        pb::EachCommitted { outcomes: outcomes.collect() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let outcome = |outcome: pb::CommitOutcome| {
            Ok(match outcome.kind.ok_or_else(|| not_set("outcomes"))? {
                commit_outcome::Kind::Committed(committed) => Ok(Committed::decode(committed)?),
                commit_outcome::Kind::Failure(pb::CommitFailure { code, message, details }) => {
                    let status = Status::with_details(code.into(), message, details);
                    Err(error_of(&status).ok_or_else(|| not_set("outcomes.failure.details"))?)
                }
            })
        };
        Ok(Self { outcomes: message.outcomes.into_iter().map(outcome).collect::<Result<_, Error>>()? })
    }
}

fn show_selected(Selected { entries, count, more }: &Selected) -> pb::Selected {
    pb::Selected { entries: entries.iter().map(show_entry).collect(), count: *count, more: *more }
}

fn read_selected(message: &pb::Selected) -> Result<Selected, Error> {
    let entries = message.entries.iter().map(shown_entry).collect::<Result<_, _>>()?;
    Ok(Selected { entries, count: message.count, more: message.more })
}

fn show_entry((key, entry): &(Key, Arc<Entry>)) -> pb::KeyEntry {
    pb::KeyEntry { key: write_key(key), entry: Some(write_entry(entry)) }
}

fn shown_entry(pb::KeyEntry { key, entry }: &pb::KeyEntry) -> Result<(Key, Arc<Entry>), Error> {
    let entry = entry.as_ref().ok_or_else(|| not_set("entry"))?;
    let read = || Ok((read_key(key)?, read_entry(entry)?));
    read().map_err(malformed("entries"))
}

fn show_found(entry: Option<&Entry>) -> pb::FoundEntry {
    pb::FoundEntry { entry: entry.map(write_entry) }
}

fn found(message: &pb::FoundEntry) -> Result<Option<Arc<Entry>>, Error> {
    message.entry.as_ref().map(read_entry).transpose().map_err(malformed("entry"))
}

impl Encode for GetEntries {
    type Message = pb::GetEntries;

    fn encode(self) -> Self::Message {
        pb::GetEntries {
            keys: self.keys.iter().map(write_key).collect(),
            at_revision: self.at.map(|revision| revision.0),
            on_time: self.on_time,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let keys = message.keys.iter().map(|key| read_key(key)).collect::<Result<Vec<_>, _>>();
        let keys = keys.map_err(malformed("keys"))?;
        bounded("keys", keys.iter().try_for_each(Key::check_limits))?;
        Ok(Self { keys, at: message.at_revision.map(Revision), on_time: message.on_time })
    }
}

impl Forward for GetEntries {
    forwarded_to_keyspace!(get);
}

impl Encode for EntriesFound {
    type Message = pb::EntriesFound;

    fn encode(self) -> Self::Message {
        let entries = self.entries.iter().map(|entry| show_found(entry.as_deref())).collect();
        pb::EntriesFound { entries, revision: self.revision.0, now_ms: self.now.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let entries = message.entries.iter().map(found).collect::<Result<_, _>>()?;
        Ok(Self { entries, revision: Revision(message.revision), now: Stamp(message.now_ms) })
    }
}

impl Encode for ListEntries {
    type Message = pb::ListEntries;

    fn encode(self) -> Self::Message {
        let page_size = self.page_size.try_into().unwrap_or(u32::MAX);
        let Self { range, backwards, at, leased_by, on_time, .. } = self;
        pb::ListEntries {
            range: Some(write_range(&range)),
            backwards,
            page_size,
            at_revision: at.map(|revision| revision.0),
            leased_by: leased_by.map(write_session).unwrap_or_default(),
            on_time,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let range = read_range(&message.range.unwrap_or_default()).map_err(malformed("range"))?;
        bounded("range", range.check_limits())?;
        let pb::ListEntries { backwards, page_size, at_revision, leased_by, on_time, .. } = message;
        let leased_by = (!leased_by.is_empty()).then(|| read_session(&leased_by)).transpose();
        let leased_by = leased_by.map_err(malformed("leased_by"))?;
        let page_size = page_size as usize;
        Ok(Self { range, backwards, page_size, at: at_revision.map(Revision), leased_by, on_time })
    }
}

impl Forward for ListEntries {
    forwarded_to_keyspace!(list);
}

impl Encode for EntryPage {
    type Message = pb::EntryPage;

    fn encode(self) -> Self::Message {
        pb::EntryPage {
            entries: self.entries.iter().map(show_entry).collect(),
            more: self.more,
            revision: self.revision.0,
            now_ms: self.now.0,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let entries = message.entries.iter().map(shown_entry).collect::<Result<_, _>>()?;
        let now = Stamp(message.now_ms);
        Ok(Self { entries, more: message.more, revision: Revision(message.revision), now })
    }
}

impl Encode for SelectEntries {
    type Message = pb::SelectEntries;

    fn encode(self) -> Self::Message {
        pb::SelectEntries {
            select: Some(write_select(&self.select)),
            at_revision: self.at.map(|revision| revision.0),
            on_time: self.on_time,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let select = read_select(&message.select.unwrap_or_default()).map_err(malformed("select"))?;
        bounded("select", select.range.check_limits())?;
        Ok(Self { select, at: message.at_revision.map(Revision), stale: false, on_time: message.on_time })
    }
}

impl Forward for SelectEntries {
    fn is_stale(request: &Form<Self>) -> bool {
        matches!(request, Form::Typed(Self { stale: true, .. }))
    }

    forwarded_to_keyspace!(select);
}

impl Encode for EntriesSelected {
    type Message = pb::EntriesSelected;

    fn encode(self) -> Self::Message {
        pb::EntriesSelected { selected: Some(show_selected(&self.selected)), revision: self.revision.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let selected = read_selected(&message.selected.ok_or_else(|| not_set("selected"))?)?;
        Ok(Self { selected, revision: Revision(message.revision) })
    }
}

impl Encode for AttachSession {
    type Message = pb::AttachSession;

    fn encode(self) -> Self::Message {
        pb::AttachSession { session: write_session(self.session) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: read_session(&message.session).map_err(malformed("session"))? })
    }
}

impl Forward for AttachSession {
    forwarded_to_keyspace!(attach);
}

impl Encode for SetSessionOwner {
    type Message = pb::SetSessionOwner;

    fn encode(self) -> Self::Message {
        pb::SetSessionOwner { session: write_session(self.session) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { session: read_session(&message.session).map_err(malformed("session"))? })
    }
}

impl Forward for SetSessionOwner {
    forwarded_to_keyspace!(set_owner);
}

impl Encode for SessionOwnerSet {
    type Message = pb::SessionOwnerSet;

    fn encode(self) -> Self::Message {
        pb::SessionOwnerSet {}
    }

    fn decode(pb::SessionOwnerSet {}: Self::Message) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl Encode for Attachment {
    type Message = pb::SessionAttached;

    fn encode(self) -> Self::Message {
        pb::SessionAttached { number: self.number, ttl_ms: self.ttl.as_millis() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let ttl = Ttl::from_millis(message.ttl_ms).map_err(Error::invalid_value("ttl_ms"))?;
        Ok(Self { number: message.number, ttl })
    }
}

impl Encode for RunUnit {
    type Message = pb::Unit;

    fn encode(self) -> Self::Message {
        pb::Unit { unit: self.unit }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { unit: message.unit })
    }
}

impl Forward for RunUnit {
    forwarded_to_keyspace!(run);
}

impl Encode for UnitDone {
    type Message = pb::UnitDone;

    fn encode(self) -> Self::Message {
        pb::UnitDone { answer: self.answer }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { answer: message.answer })
    }
}

impl Encode for CompactEntries {
    type Message = pb::Compaction;

    fn encode(self) -> Self::Message {
        pb::Compaction { revision: self.revision.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { revision: Revision(message.revision) })
    }
}

impl Forward for CompactEntries {
    forwarded_to_keyspace!(compact);
}

impl Encode for EntriesCompacted {
    type Message = pb::Compacted;

    fn encode(self) -> Self::Message {
        pb::Compacted { revision: self.revision.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { revision: Revision(message.revision) })
    }
}

impl Encode for WatchEntries {
    type Message = pb::WatchEntries;

    fn encode(self) -> Self::Message {
        let Self { range, from, with_previous } = self;
        pb::WatchEntries {
            range: Some(write_range(&range)),
            from_revision: from.map(|revision| revision.0),
            with_previous,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let range = read_range(&message.range.unwrap_or_default()).map_err(malformed("range"))?;
        bounded("range", range.check_limits())?;
        Ok(Self { range, from: message.from_revision.map(Revision), with_previous: message.with_previous })
    }
}

impl Encode for EntriesWatched {
    type Message = pb::EntriesWatched;

    fn encode(self) -> Self::Message {
        let event = |event: EntryEvent| pb::EntryEvent {
            revision: event.revision.0,
            key: write_key(&event.key),
            before: event.before.as_deref().map(write_entry),
            after: event.after.as_deref().map(write_entry),
        };
        pb::EntriesWatched { events: self.events.into_iter().map(event).collect(), complete: self.complete.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let event = |pb::EntryEvent { revision, key, before, after }: pb::EntryEvent| {
            Ok(EntryEvent {
                revision: Revision(revision),
                key: read_key(&key)?,
                before: before.as_ref().map(read_entry).transpose()?,
                after: after.as_ref().map(read_entry).transpose()?,
            })
        };
        let events = message.events.into_iter().map(event).collect::<Result<_, _>>().map_err(malformed("events"))?;
        Ok(Self { events, complete: Revision(message.complete) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tonic::{
        Request,
        transport::{Server, server::TcpIncoming},
    };

    use super::*;
    use crate::{api::FailureReason, wire::status::error_of};
    use lockkeeper_raft::messages::keyspace_server::{Keyspace, KeyspaceServer};

    #[test]
    fn a_request_beyond_a_limit_is_refused_though_the_log_may_have_it() {
        let long = Key::from_log(&[7; lockkeeper_machine::KEY_BYTES_MAX + 1]).expect("a key");
        let txn = |keys: Vec<Key>| {
            let gets = keys.into_iter().map(lockkeeper_machine::TxnOperation::Get).collect();
            write_txn(&Txn::from_log(vec![], gets, vec![]).expect("a transaction"))
        };
        let short = Key::from_log(&[7]).expect("a key");
        assert!(Txn::decode(txn(vec![short.clone()])).is_ok());
        let range = lockkeeper_machine::KeyRange { from: Some(long.clone()), to: None };
        let get = pb::GetEntries { keys: vec![write_key(&short), write_key(&long)], ..Default::default() };
        let list = pb::ListEntries { range: Some(write_range(&range)), ..Default::default() };
        let refused =
            [Txn::decode(txn(vec![long])).err(), GetEntries::decode(get).err(), ListEntries::decode(list).err()];
        for error in refused {
            let error = error.expect("it has too long a key");
            assert!(
                error.reason == FailureReason::InvalidArgument && error.message.contains("the limit is"),
                "{error:?}"
            );
        }
    }

    /// A leader whose answers say which call it got.
    struct Leader;

    #[tonic::async_trait]
    impl Keyspace for Leader {
        async fn commit(&self, _: Request<pb::Txn>) -> Result<Response<pb::Committed>, Status> {
            Ok(Response::new(pb::Committed { revision: 1, ..Default::default() }))
        }

        async fn commit_each(&self, _: Request<pb::Txns>) -> Result<Response<pb::EachCommitted>, Status> {
            Ok(Response::new(pb::EachCommitted { outcomes: vec![Default::default(); 8] }))
        }

        async fn get(&self, _: Request<pb::GetEntries>) -> Result<Response<pb::EntriesFound>, Status> {
            Ok(Response::new(pb::EntriesFound { revision: 2, ..Default::default() }))
        }

        async fn list(&self, _: Request<pb::ListEntries>) -> Result<Response<pb::EntryPage>, Status> {
            Ok(Response::new(pb::EntryPage { revision: 3, ..Default::default() }))
        }

        async fn attach(&self, _: Request<pb::AttachSession>) -> Result<Response<pb::SessionAttached>, Status> {
            Ok(Response::new(pb::SessionAttached { number: 7, ..Default::default() }))
        }

        async fn set_owner(&self, _: Request<pb::SetSessionOwner>) -> Result<Response<pb::SessionOwnerSet>, Status> {
            Ok(Response::new(pb::SessionOwnerSet {}))
        }

        async fn select(&self, _: Request<pb::SelectEntries>) -> Result<Response<pb::EntriesSelected>, Status> {
            Ok(Response::new(pb::EntriesSelected { revision: 5, ..Default::default() }))
        }

        async fn compact(&self, _: Request<pb::Compaction>) -> Result<Response<pb::Compacted>, Status> {
            Ok(Response::new(pb::Compacted { revision: 4 }))
        }

        async fn run(&self, _: Request<pb::Unit>) -> Result<Response<pb::UnitDone>, Status> {
            Ok(Response::new(pb::UnitDone { answer: vec![6].into() }))
        }

        type WatchStream = futures::stream::Empty<Result<pb::EntriesWatched, Status>>;

        async fn watch(&self, _: Request<pb::WatchEntries>) -> Result<Response<Self::WatchStream>, Status> {
            unreachable!("each node serves its own")
        }
    }

    /// A channel to a node that serves the keyspace, or is from before it.
    async fn node(has_keyspace: bool) -> Channel {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let keyspace = has_keyspace.then(|| KeyspaceServer::new(Leader));
        let serve = Server::builder().add_optional_service(keyspace).serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(serve);
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        endpoint.timeout(Duration::from_secs(60)).connect().await.expect("it listens")
    }

    async fn revisions(channel: Channel) -> [Result<u64, Status>; 9] {
        let commit = Txn::call(channel.clone(), Request::new(Txn::default().encode())).await;
        let get = GetEntries::call(channel.clone(), Request::new(Default::default())).await;
        let list = ListEntries::call(channel.clone(), Request::new(Default::default())).await;
        let select = SelectEntries::call(channel.clone(), Request::new(Default::default())).await;
        let compact = CompactEntries::call(channel.clone(), Request::new(Default::default())).await;
        let attach = AttachSession::call(channel.clone(), Request::new(Default::default())).await;
        let each = CommitEach::call(channel.clone(), Request::new(Default::default())).await;
        let owner = SetSessionOwner::call(channel.clone(), Request::new(Default::default())).await;
        let run = RunUnit::call(channel, Request::new(Default::default())).await;
        [
            commit.map(|reply| reply.get_ref().revision),
            get.map(|reply| reply.get_ref().revision),
            list.map(|reply| reply.get_ref().revision),
            compact.map(|reply| reply.get_ref().revision),
            select.map(|reply| reply.get_ref().revision),
            run.map(|reply| u64::from(reply.get_ref().answer[0])),
            attach.map(|reply| reply.get_ref().number),
            each.map(|reply| reply.get_ref().outcomes.len() as u64),
            owner.map(|_| 9),
        ]
    }

    #[tokio::test]
    async fn each_request_is_forwarded_by_its_call() {
        let answers = revisions(node(true).await).await;
        assert_eq!(answers.map(|answer| answer.expect("answered")), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[tokio::test]
    async fn a_leader_from_before_the_keyspace_is_no_unknown_outcome() {
        for answer in revisions(node(false).await).await {
            let error = error_of(&answer.expect_err("it has no such service")).expect("typed");
            assert_eq!(error.reason, FailureReason::ClusterVersion);
        }
    }
}
