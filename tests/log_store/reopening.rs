//! Operations survive a restart.

use std::{fs, path::Path};

use lockkeeper::raft::{
    log::{LogOpenError, LogOptions, LogStore},
    types::{EntryPayload, LogEntry, Vote},
};
use openraft::{RaftLogReader, storage::RaftLogStorage};

use super::support::*;

/// Changes a log, closes it, opens it again, and requires the same contents.
macro_rules! reopened {
    ($directory:expr, $store:ident, $($act:tt)*) => {{
        let mut $store = must_open($directory);
        $($act)*;
        let before = contents(&mut $store).await;
        close($store).await;
        let mut again = must_open($directory);
        assert_eq!(contents(&mut again).await, before, "{}", stringify!($($act)*));
        close(again).await;
        before
    }};
}

#[tokio::test]
async fn each_operation_survives_a_restart() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = directory.path();
    let empty = reopened!(at, store, {});
    let mut seen = vec![empty];
    seen.push(reopened!(at, store, store.save_vote(&Vote::new(1, 7)).await.expect("saved")));
    seen.push(reopened!(at, store, {
        let blank = LogEntry { log_id: id(1, 0), payload: EntryPayload::Blank };
        append(&mut store, vec![blank, membership_entry(1, 1), entry(1, 2, 0), entry(1, 3, 100)]).await;
    }));
    seen.push(reopened!(at, store, append(&mut store, vec![entry(1, 4, 50_000), entry(2, 5, 5000)]).await));
    seen.push(reopened!(at, store, store.save_vote(&Vote::new_committed(2, 8)).await.expect("saved")));
    seen.push(reopened!(at, store, store.save_committed(Some(id(1, 3))).await.expect("saved")));
    seen.push(reopened!(at, store, store.truncate_after(Some(id(1, 3))).await.expect("truncated")));
    seen.push(reopened!(at, store, append(&mut store, vec![entry(3, 4, 10), entry(3, 5, 9000)]).await));
    seen.dedup();
    assert_eq!(seen.len(), 8, "each operation changed something");
}

#[tokio::test]
async fn a_purge_survives_a_restart_and_needs_its_snapshot() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let with_snapshot = || LogOptions { snapshot: Some(id(1, 2500)), ..options().0 };
    let mut store = must_open(directory.path());
    // More than two slices, some of them chunked.
    append(&mut store, (0..3000).map(|index| entry(1, index, if index % 500 == 0 { 10_000 } else { 10 })).collect())
        .await;
    within(store.purge(id(1, 2500))).await.expect("purged");
    let before = contents(&mut store).await;
    assert_eq!(entries(&mut store).await.len(), 499);
    close(store).await;

    let refused = open(directory.path()).expect_err("the snapshot is missing");
    assert!(refused.to_string().contains("purged up to 2500"), "{refused}");
    let mut store = LogStore::open(directory.path(), with_snapshot()).expect("in order");
    assert_eq!(contents(&mut store).await, before);

    // Beyond the end of the log, as after a snapshot from the leader.
    within(store.purge(id(2, 5000))).await.expect("purged");
    append(&mut store, vec![entry(2, 5001, 10)]).await;
    let before = contents(&mut store).await;
    close(store).await;
    let options = LogOptions { snapshot: Some(id(2, 5000)), ..with_snapshot() };
    let mut store = LogStore::open(directory.path(), options).expect("in order");
    assert_eq!(contents(&mut store).await, before);
    close(store).await;
}

#[tokio::test]
async fn a_large_entry_comes_back_from_memory_and_from_the_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let large = || vec![entry(1, 0, 2 << 20), entry(1, 1, 3 << 20), entry(1, 2, 1)];
    let mut store = must_open(directory.path());
    append(&mut store, large()).await;
    assert!(entries(&mut store).await == large());
    close(store).await;

    let mut store = LogStore::open(directory.path(), LogOptions { recent_bytes: 0, ..options().0 }).expect("in order");
    assert!(entries(&mut store).await == large());
    // One step of replication is limited in bytes, but never empty.
    let mut reader = store.get_log_reader().await;
    let some = within(reader.limited_get_log_entries(0, 3)).await.expect("readable");
    assert!(some == large()[..1]);
    close(store).await;
}

#[tokio::test]
async fn an_append_is_readable_by_many_readers_before_it_is_flushed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = LogOptions { recent_bytes: 20_000, ..options().0 };
    let mut store = LogStore::open(directory.path(), options).expect("a new log opens");
    let mut readers = tokio::task::JoinSet::new();
    const LAST: u64 = 3000;
    for _ in 0..3 {
        let mut reader = store.get_log_reader().await;
        readers.spawn(async move {
            let mut next = 0;
            while next <= LAST {
                let read = within(reader.try_get_log_entries(next / 2..)).await.expect("readable");
                let expected: Vec<LogEntry> = (next / 2..).take(read.len()).map(|index| entry(1, index, 50)).collect();
                assert!(read == expected, "from {}", next / 2);
                next = next.max(next / 2 + read.len() as u64);
                tokio::task::yield_now().await;
            }
        });
    }
    let mut flushes = Vec::new();
    for index in 0..=LAST {
        flushes.push(start_append(&mut store, vec![entry(1, index, 50)]).await);
        let mut reader = store.get_log_reader().await;
        let read = within(reader.try_get_log_entries(index..)).await.expect("readable");
        assert!(read == [entry(1, index, 50)]);
    }
    for flushed in flushes {
        within(flushed).await.expect("answered").expect("flushed");
    }
    while let Some(read) = within(readers.join_next()).await {
        read.expect("no reader saw anything wrong");
    }
    close(store).await;
}

#[tokio::test]
async fn operations_that_would_break_the_log_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = must_open(directory.path());
    append(&mut store, vec![entry(1, 0, 1), entry(1, 1, 1)]).await;
    store.save_committed(Some(id(1, 0))).await.expect("saved");
    let gap = store.append(vec![entry(1, 3, 1)], openraft::storage::IOFlushed::noop()).await;
    assert!(gap.expect_err("a gap").to_string().contains("entry 3 cannot follow entry 1"));
    let committed = store.truncate_after(None).await;
    assert!(committed.expect_err("it is committed").to_string().contains("committed up to 0"));
    let before = contents(&mut store).await;
    close(store.clone()).await;
    store.save_vote(&Vote::new(1, 1)).await.expect_err("it is closed");

    let mut again = must_open(directory.path());
    assert_eq!(contents(&mut again).await, before);
    close(again).await;
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = must_open(directory.path());
    let refused = open(directory.path()).expect_err("it is open already");
    assert!(matches!(refused, LogOpenError::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains(&directory.path().display().to_string()), "{refused}");
    close(store).await;
    close(must_open(directory.path())).await;
}

#[tokio::test]
async fn a_log_that_is_dropped_closes_itself() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = must_open(directory.path());
    append(&mut store, vec![entry(1, 0, 1)]).await;
    drop(store);
    let mut again = within(async {
        loop {
            match open(directory.path()) {
                Err(LogOpenError::Locked { .. }) => tokio::task::yield_now().await,
                opened => return opened.expect("in order"),
            }
        }
    })
    .await;
    assert_eq!(entries(&mut again).await.len(), 1);
    close(again).await;
}

/// A snapshot from the leader was made durable, and the process ended before the log followed. At the next opening, entries that
/// contradict the snapshot are truncated, and entries that it covers are purged.
#[tokio::test]
async fn an_interrupted_snapshot_install_is_completed() {
    let snapshot = id(5, 12);
    // Uncommitted entries of a former leader: at the snapshot's indexes and after them, or before its index in a later term.
    for of in [vec![4; 20], [vec![4; 12], vec![6; 8]].concat(), vec![6; 10]] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut store = must_open(directory.path());
        // Saving a vote moves the high-water mark past all entries.
        append(&mut store, (0..).zip(&of).map(|(index, term)| entry(*term, index, 600)).collect()).await;
        store.save_vote(&Vote::new_committed(7, 7)).await.expect("saved");
        close(store).await;
        for round in 0..3 {
            let mut store = LogStore::open(directory.path(), LogOptions { snapshot: Some(snapshot), ..options().0 })
                .unwrap_or_else(|error| panic!("{of:?}, round {round}: {error}"));
            let state = store.get_log_state().await.expect("known");
            assert_eq!(state.last_purged_log_id, Some(snapshot), "{of:?}, round {round}");
            let indexes: Vec<_> = entries(&mut store).await.iter().map(|entry| entry.log_id.index).collect();
            assert_eq!(indexes, (13..13 + round).collect::<Vec<_>>(), "{of:?}, round {round}");
            append(&mut store, vec![entry(7, 13 + round, 10)]).await;
            close(store).await;
        }
    }
}

/// A snapshot that agrees with the log does not change it. openraft handles a snapshot beyond the log's end.
#[tokio::test]
async fn a_snapshot_that_agrees_with_the_log_does_not_change_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = must_open(directory.path());
    append(&mut store, (0..20).map(|index| entry(1 + index / 10, index, 10)).collect()).await;
    let before = contents(&mut store).await;
    close(store).await;
    for snapshot in [id(1, 0), id(1, 9), id(2, 10), id(2, 19), id(2, 20), id(3, 50)] {
        let options = LogOptions { snapshot: Some(snapshot), ..options().0 };
        let mut store = LogStore::open(directory.path(), options).expect("in order");
        assert_eq!(contents(&mut store).await, before, "{snapshot}");
        close(store).await;
    }
}

/// Every later snapshot contains the committed entries: if it contradicts them, the snapshot or the log is damaged.
#[tokio::test]
async fn a_snapshot_that_contradicts_committed_entries_is_refused_as_damage() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = must_open(directory.path());
    append(&mut store, (0..20).map(|index| entry(1, index, 10)).collect()).await;
    store.save_committed(Some(id(1, 15))).await.expect("saved");
    close(store).await;
    let opened = LogStore::open(directory.path(), LogOptions { snapshot: Some(id(2, 12)), ..options().0 });
    let error = opened.expect_err("it is committed").to_string();
    assert!(error.contains("committed up to 15") && error.contains("replace this node"), "{error}");
}

/// The log of a killed node of the previous version, with journal records that are not in sled yet.
#[tokio::test]
async fn a_journal_of_the_first_format_is_migrated() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let of_old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/log_store/first_journal");
    fs::create_dir_all(directory.path().join("sled/blobs")).expect("made");
    for name in ["high-water", "journal-0", "journal-1", "sled/conf", "sled/db"] {
        fs::copy(of_old.join(name), directory.path().join(name)).expect("copied");
    }
    for round in 0..3 {
        let mut store = must_open(directory.path());
        let vote = store.get_log_reader().await.read_vote().await.expect("known");
        assert_eq!(vote, Some(Vote::new_committed(3, 7)), "round {round}");
        assert_eq!(store.read_committed().await.expect("known"), Some(id(3, 50)), "round {round}");
        let bytes = |index: u64| {
            if index == 118 {
                1
            } else if index.is_multiple_of(16) {
                3000
            } else {
                60
            }
        };
        let expected: Vec<_> = (0..=118 + round).map(|index| entry(3, index, bytes(index))).collect();
        assert_eq!(entries(&mut store).await, expected, "round {round}");
        let next = 119 + round;
        append(&mut store, vec![entry(3, next, bytes(next))]).await;
        close(store).await;
    }
}
