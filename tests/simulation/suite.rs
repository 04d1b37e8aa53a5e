//! openraft's test suite for stores, on the simulated log; and the log's state after a crash.

use std::sync::Arc;

use lockkeeper::raft::types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, TypeConfig, Vote};
use openraft::{
    RaftLogReader as _, StorageError,
    storage::{IOFlushed, RaftLogStorage as _},
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt as _,
};

use crate::{
    log::{Disk, Log},
    machine::Machine,
};

struct Builder;

impl StoreBuilder<TypeConfig, Log, Machine, ()> for Builder {
    async fn build(&self) -> Result<((), Log, Machine), StorageError<TypeConfig>> {
        Ok(((), Log::open(&Arc::new(Disk::new(1, (0, 1)))), Machine::default()))
    }
}

#[tokio::test]
async fn openrafts_suite_passes_on_the_simulated_log() {
    Suite::test_all(Builder).await.expect("the suite passes");
}

fn entry(index: u64) -> LogEntry {
    LogEntry { log_id: LogId { leader_id: CommittedLeaderId::new(1), index }, payload: EntryPayload::Blank }
}

/// Indexes of the entries on a disk after a crash.
async fn indexes_after_crash(disk: &Arc<Disk>) -> Vec<u64> {
    disk.crash();
    let mut reader = Log::open(disk).get_log_reader().await;
    let entries = reader.try_get_log_entries(..).await.expect("readable");
    entries.iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_what_was_synced_and_a_prefix_of_the_rest() {
    let mut left = Vec::new();
    for seed in 0..50 {
        let disk = Arc::new(Disk::new(seed, (10, 10)));
        let mut log = Log::open(&disk);
        log.save_vote(&Vote::new_committed(1, 1)).await.expect("synced");
        let (flushed, synced) = TypeConfig::oneshot();
        log.append((0..3).map(entry), IOFlushed::signal(flushed)).await.expect("appended");
        synced.await.expect("answered").expect("synced");
        log.append((3..6).map(entry), IOFlushed::noop()).await.expect("appended");
        drop(log);
        let indexes = indexes_after_crash(&disk).await;
        assert!(indexes.len() >= 3 && indexes.iter().copied().eq(0..indexes.len() as u64), "{indexes:?}");
        assert_eq!(disk.dropped(), 6 - indexes.len() as u64);
        let vote = Log::open(&disk).get_log_reader().await.read_vote().await.expect("readable");
        assert_eq!(vote, Some(Vote::new_committed(1, 1)));
        left.push(indexes.len());
    }
    left.sort_unstable();
    left.dedup();
    assert_eq!(left, [3, 4, 5, 6], "each length occurs");
}
