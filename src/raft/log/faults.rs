//! Tests of the writer on a disk that fails, hangs or panics.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::{TypeConfigExt, alias::OneshotReceiverOf},
};
use tempfile::TempDir;

use super::{
    log_trees::LogTrees,
    mark::{LogMark, MarkFile},
    memory::{LogMemory, RecentEntries},
    record::EntryKey,
    store::LogStore,
    verify,
    writer::LogWriter,
};
use crate::types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload, TypeConfig, Vote};
use lockkeeper_metrics::Metrics;
use lockkeeper_storage::{
    database::{LockFile, Progress},
    disk::{Disk, Pair, Tree},
    health::Health,
};
use lockkeeper_transport::LogThrottle;

const PATIENCE: Duration = Duration::from_secs(20);

/// An operation on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Act {
    Insert(Tree, Vec<u8>),
    Remove(Tree, Vec<u8>),
    Flush,
}

/// The effect of a flush.
type Fault = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A disk in memory that records its operations.
struct Fake {
    pairs: BTreeMap<(Tree, Vec<u8>), Vec<u8>>,
    acts: Arc<Mutex<Vec<Act>>>,
    on_flush: Fault,
}

impl Fake {
    fn note(&self, act: Act) {
        self.acts.lock().expect("nothing panics while it holds it").push(act);
    }
}

impl Disk for Fake {
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.pairs.get(&(tree, key.to_vec())).cloned())
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        let pairs = self.pairs.range((tree, from.to_vec())..).take_while(move |((of, _), _)| *of == tree);
        pairs.map(|((_, key), value)| Ok((key.clone(), value.clone())))
    }

    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.note(Act::Insert(tree, key.to_vec()));
        self.pairs.insert((tree, key.to_vec()), value);
        Ok(())
    }

    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.note(Act::Remove(tree, key.to_vec()));
        Ok(self.pairs.remove(&(tree, key.to_vec())))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.note(Act::Flush);
        (self.on_flush)()
    }
}

/// A log on this disk.
struct Log {
    store: LogStore,
    acts: Arc<Mutex<Vec<Act>>>,
    failures: mpsc::Receiver<String>,
    directory: TempDir,
}

impl Log {
    /// Makes a log whose limit for the disk's time is not reached.
    fn on(on_flush: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::with_limit(PATIENCE, on_flush)
    }

    /// The log fails when the disk does not answer for `limit`.
    fn with_limit(limit: Duration, on_flush: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (failed, failures) = mpsc::channel();
        let on_failure = Arc::new(move |_: &std::path::Path, failure: &super::DiskFailure| {
            failed.send(failure.to_string()).expect("the test listens");
        });
        let acts = Arc::new(Mutex::new(Vec::new()));
        let disk = Fake { pairs: BTreeMap::new(), acts: acts.clone(), on_flush: Arc::new(on_flush) };
        let writer = LogWriter {
            trees: LogTrees::new(disk),
            mark: MarkFile::create(directory.path().join("high-water")).expect("written"),
            blobs: None,
            vote: None,
            purged: None,
            last: None,
            committed: Arc::default(),
            removals: 0,
            has_leftovers: false,
            health: Arc::new(Health::new(directory.path().to_owned(), on_failure)),
            metrics: Metrics::default(),
            slow: LogThrottle::default(),
        };
        let memory = LogMemory::new(None, None, None, RecentEntries::new(1 << 20));
        let lock = LockFile::take(directory.path()).expect("free");
        let store = LogStore::start(writer, memory, limit, lock, directory.path());
        Self { store: store.expect("started"), acts, failures, directory }
    }

    async fn append(&mut self, index: u64) -> OneshotReceiverOf<TypeConfig, io::Result<()>> {
        let (flushed, answer) = TypeConfig::oneshot();
        self.store.append(vec![entry(index, 10)], IOFlushed::signal(flushed)).await.expect("appended");
        answer
    }

    fn failure(&self) -> String {
        self.failures.recv_timeout(PATIENCE).expect("the log fails")
    }

    fn acts(&self) -> Vec<Act> {
        self.acts.lock().expect("nothing panics while it holds it").clone()
    }
}

fn id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(1), index }
}

fn entry(index: u64, bytes: usize) -> LogEntry {
    LogEntry { log_id: id(index), payload: EntryPayload::Normal(Payload(vec![7; bytes].into())) }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

#[tokio::test]
async fn a_failed_flush_is_reported_and_never_tried_again() {
    let mut log = Log::on(|| Err(io::Error::other("no")));
    let flushed = log.append(0).await;
    assert_eq!(log.failure(), "the disk reports: no");
    within(flushed).await.expect("answered").expect_err("it is not on the disk");
    within(log.store.save_vote(&Vote::new(1, 1))).await.expect_err("the log has failed");
    within(log.store.close()).await.expect_err("the log has failed");
    assert_eq!(log.acts().iter().filter(|act| **act == Act::Flush).count(), 1);
    assert!(log.failures.try_recv().is_err(), "it fails once");
}

#[tokio::test]
async fn a_vote_that_is_not_flushed_is_not_answered() {
    let mut log = Log::on(|| Err(io::Error::other("no")));
    within(log.store.save_vote(&Vote::new(1, 1))).await.expect_err("it is not on the disk");
    assert_eq!(log.failure(), "the disk reports: no");
}

#[tokio::test]
async fn a_vote_that_the_mark_does_not_have_is_not_answered() {
    let mut log = Log::on(|| Ok(()));
    std::fs::create_dir(log.directory.path().join("high-water.partial")).expect("it is in the way of a new mark");
    within(log.store.save_vote(&Vote::new(1, 1))).await.expect_err("one block has it");
    assert!(log.failure().contains("the disk reports"));
}

#[tokio::test]
async fn a_disk_that_hangs_is_given_up() {
    let (_end, hang) = mpsc::channel::<()>();
    let hang = Mutex::new(hang);
    let mut log = Log::with_limit(Duration::from_millis(400), move || {
        // Returns only when the test ends and drops the sender.
        let _ = hang.lock().expect("no other lock").recv();
        Ok(())
    });
    let mut flushed = Box::pin(log.append(0).await);
    within(log.store.save_vote(&Vote::new(1, 1))).await.expect_err("the log has failed");
    assert_eq!(log.failure(), "the disk did not answer for 400ms");
    assert!(futures::poll!(&mut flushed).is_pending(), "nothing claims success");
    within(log.store.close()).await.expect_err("the log has failed");
}

#[tokio::test]
async fn a_store_that_panics_is_given_up() {
    let mut log = Log::on(|| panic!("as sled does"));
    let flushed = log.append(0).await;
    assert_eq!(log.failure(), "the store panicked");
    assert!(!matches!(within(flushed).await, Ok(Ok(()))), "nothing claims success");
    within(log.store.save_vote(&Vote::new(1, 1))).await.expect_err("the log has failed");
}

#[tokio::test]
async fn one_flush_serves_all_that_has_gathered() {
    let (turns, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let mut log = Log::on(move || {
        // Once the sender is dropped, flushes no longer wait.
        let _ = gate.lock().expect("no other lock").recv_timeout(Duration::from_millis(300));
        Ok(())
    });
    let mut answers = vec![log.append(0).await];
    // The first flush runs, or is about to; the later appends queue behind it.
    for index in 1..100 {
        answers.push(log.append(index).await);
        log.store.save_committed(Some(id(index - 1))).await.expect("saved");
    }
    drop(turns);
    for answer in answers {
        within(answer).await.expect("answered").expect("flushed");
    }
    let acts = log.acts();
    let flushes = acts.iter().filter(|act| **act == Act::Flush).count();
    assert!(flushes <= 3, "{flushes} flushes");
    within(log.store.close()).await.expect("closed");
}

#[tokio::test]
async fn the_commit_index_alone_is_not_flushed_and_never_ahead_of_the_log() {
    let mut log = Log::on(|| Ok(()));
    within(log.append(0).await).await.expect("answered").expect("flushed");
    let flushes = |log: &Log| log.acts().iter().filter(|act| **act == Act::Flush).count();
    let before = flushes(&log);
    log.store.save_committed(Some(id(0))).await.expect("saved");
    log.store.save_committed(Some(id(5))).await.expect("saved");
    let committed = Act::Insert(Tree::Meta, b"committed".to_vec());
    within(log.store.close()).await.expect("closed");
    let acts = log.acts();
    assert_eq!(flushes(&log), before + 1, "only that of closing");
    assert!(acts.iter().filter(|act| **act == committed).count() <= 1, "{acts:?}");
}

/// Entries of an earlier term may have a smaller id than those that they replace. A commit index is written with them, not before: after a
/// crash in between, what they replace would be taken for committed.
#[tokio::test]
async fn a_commit_index_is_written_after_the_truncation_before_it() {
    let (turn, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let mut log = Log::on(move || {
        // Once the sender is dropped, flushes no longer wait.
        let _ = gate.lock().expect("no other lock").recv();
        Ok(())
    });
    let of_term = |term, indices: std::ops::Range<u64>| {
        let id = |index| LogId { leader_id: CommittedLeaderId::new(term), index };
        indices.map(|index| LogEntry { log_id: id(index), ..entry(index, 10) }).collect::<Vec<_>>()
    };
    let append = async |log: &mut Log, entries, flushed| {
        log.store.append(entries, IOFlushed::signal(flushed)).await.expect("appended");
    };

    let (flushed, first) = TypeConfig::oneshot();
    append(&mut log, of_term(1, 0..1), flushed).await;
    // A group of its own, behind the flush of the first one.
    let (flushed, _second) = TypeConfig::oneshot();
    append(&mut log, of_term(3, 1..200), flushed).await;
    log.store.truncate_after(Some(id(0))).await.expect("truncated");
    let replaced = of_term(2, 1..2);
    let committed = replaced[0].log_id;
    let (flushed, _third) = TypeConfig::oneshot();
    append(&mut log, replaced, flushed).await;
    log.store.save_committed(Some(committed)).await.expect("saved");
    drop(turn);
    within(first).await.expect("answered").expect("flushed");
    within(log.store.close()).await.expect("closed");

    let acts = log.acts();
    let written = acts.iter().position(|act| *act == Act::Insert(Tree::Meta, b"committed".to_vec()));
    let truncated = acts.iter().rposition(|act| matches!(act, Act::Remove(Tree::Log, _)));
    assert!(truncated.is_some() && written > truncated, "written as {written:?}, truncated up to {truncated:?}");
}

#[tokio::test]
async fn entries_are_removed_so_that_no_crash_leaves_a_gap() {
    let mut log = Log::on(|| Ok(()));
    let (flushed, answer) = TypeConfig::oneshot();
    let entries = (0..2500).map(|index| entry(index, if index == 2400 { 9000 } else { 1 })).collect::<Vec<_>>();
    log.store.append(entries, IOFlushed::signal(flushed)).await.expect("appended");
    within(answer).await.expect("answered").expect("flushed");
    let chunks = |acts: &[Act]| {
        let is_chunked = |key: &EntryKey| key.index == 2400;
        let keys = acts.iter().filter_map(|act| match act {
            Act::Insert(Tree::Log, key) | Act::Remove(Tree::Log, key) => EntryKey::decode(key),
            Act::Insert(..) | Act::Remove(..) | Act::Flush => None,
        });
        keys.filter(is_chunked).map(|key| key.chunk).collect::<Vec<_>>()
    };
    assert_eq!(chunks(&log.acts()), [2, 1, 0], "written last chunk first");

    let begun = log.acts().len();
    log.store.truncate_after(Some(id(2398))).await.expect("truncated");
    log.store.purge(id(2200)).await.expect("purged");
    within(log.store.close()).await.expect("closed");
    let acts = log.acts().split_off(begun);
    assert_eq!(chunks(&acts), [0, 1, 2], "removed first chunk first");
    let removed = |acts: &[Act]| {
        let index = |act: &Act| match act {
            Act::Remove(Tree::Log, key) => EntryKey::decode(key).map(|key| key.index),
            Act::Remove(..) | Act::Insert(..) | Act::Flush => None,
        };
        acts.iter().filter_map(index).collect::<Vec<_>>()
    };
    let purged = acts.iter().position(|act| *act == Act::Insert(Tree::Meta, b"purged".to_vec())).expect("written");
    assert!(removed(&acts[..purged]).is_sorted_by(|a, b| a >= b), "truncated downwards");
    assert!(removed(&acts[purged..]).is_sorted(), "purged upwards");
    assert!(acts[purged..].split(|act| *act == Act::Flush).all(|slice| removed(slice).len() <= 1000), "in slices");
}

/// The limit of an opening is for a step: a long log is read in many.
#[test]
fn each_record_that_is_checked_at_the_opening_is_a_step() {
    let disk = Fake { pairs: BTreeMap::new(), acts: Arc::default(), on_flush: Arc::new(|| Ok(())) };
    let mut trees = LogTrees::new(disk);
    let mut last = None;
    for index in 0..100 {
        trees.insert(&entry(index, if index == 50 { 9000 } else { 10 }), last.as_ref()).expect("inserted");
        last = Some(id(index));
    }

    let progress = Progress::default();
    let recent = RecentEntries::new(1 << 20);
    let recovered = verify::verify(&mut trees, &LogMark::default(), None, recent, &progress).expect("in order");
    assert_eq!(recovered.last(), last);
    assert_eq!(progress.steps(), 102, "one of them has three records");
}
