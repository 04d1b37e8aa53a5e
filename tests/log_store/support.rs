//! Helpers that all these tests share.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::{
    raft::{
        log::{LogOpenError, LogOptions, LogStore},
        types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Membership, Payload, TypeConfig},
    },
    table::MemberNode,
};
use openraft::{
    RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
    type_config::{TypeConfigExt, alias::OneshotReceiverOf},
};
use tempfile::TempDir;

/// Receives the result of a flush.
pub(crate) type Flushed = OneshotReceiverOf<TypeConfig, std::io::Result<()>>;

/// Deadline of a test for an event that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Size of a journal file: small enough that each log of these tests uses both files.
const JOURNAL_BYTES: u64 = 16 << 10;

/// Options whose failure handler records failures instead of ending the process.
pub(crate) fn options() -> (LogOptions, Arc<Mutex<Vec<String>>>) {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = failures.clone();
    let on_failure = Arc::new(move |_: &Path, failure: &lockkeeper::raft::log::DiskFailure| {
        seen.lock().expect("no test panics while it holds it").push(failure.to_string());
    });
    (LogOptions { on_failure, open_limit: PATIENCE, journal_bytes: JOURNAL_BYTES, ..LogOptions::default() }, failures)
}

/// A temporary directory; in memory if possible, for tests that open thousands of logs.
pub(crate) fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

pub(crate) fn open(directory: &Path) -> Result<LogStore, LogOpenError> {
    LogStore::open(directory, options().0)
}

pub(crate) fn must_open(directory: &Path) -> LogStore {
    open(directory).expect("a log that is in order opens")
}

pub(crate) async fn close(store: LogStore) {
    within(store.close()).await.expect("closed in order");
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

pub(crate) fn id(term: u64, index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(term), index }
}

/// An entry with a payload that its index and its length determine.
pub(crate) fn entry(term: u64, index: u64, bytes: usize) -> LogEntry {
    let payload: Vec<u8> = (0..bytes as u64).map(|at| ((at ^ index).wrapping_mul(31) >> 3) as u8).collect();
    LogEntry { log_id: id(term, index), payload: EntryPayload::Normal(Payload(payload.into())) }
}

pub(crate) fn membership_entry(term: u64, index: u64) -> LogEntry {
    let node = MemberNode {
        peer_address: "peer:1".to_owned(),
        client_address: "client:1".to_owned(),
        ..MemberNode::default()
    };
    let nodes: BTreeMap<u64, MemberNode> = [(1, node.clone()), (2, node)].into();
    let membership = Membership::new(vec![[1].into()], nodes).expect("its voter is a node");
    LogEntry { log_id: id(term, index), payload: EntryPayload::Membership(membership) }
}

/// Starts an append; the receiver gets the result of its flush.
pub(crate) async fn start_append(store: &mut LogStore, entries: Vec<LogEntry>) -> Flushed {
    let (flushed, answer) = TypeConfig::oneshot();
    within(store.append(entries, IOFlushed::<TypeConfig>::signal(flushed))).await.expect("appended");
    answer
}

/// Appends, and waits until it is durable.
pub(crate) async fn append(store: &mut LogStore, entries: Vec<LogEntry>) {
    let flushed = start_append(store, entries).await;
    within(flushed).await.expect("answered").expect("flushed");
}

pub(crate) async fn entries(store: &mut LogStore) -> Vec<LogEntry> {
    let mut reader = store.get_log_reader().await;
    within(reader.try_get_log_entries(..)).await.expect("readable")
}

/// The contents of a log as one text, to compare.
pub(crate) async fn contents(store: &mut LogStore) -> String {
    let state = store.get_log_state().await.expect("known");
    let vote = store.get_log_reader().await.read_vote().await.expect("known");
    let committed = store.read_committed().await.expect("known");
    let entries = entries(store).await;
    let entries: Vec<_> = entries.iter().map(|entry| (entry.log_id, crc32fast::hash(&bytes(entry)))).collect();
    format!("{vote:?} {committed:?} {state:?} {entries:?}")
}

fn bytes(entry: &LogEntry) -> Vec<u8> {
    prost::Message::encode_to_vec(&lockkeeper::raft::messages::Entry::from(entry))
}
