//! Helpers: parameters, temporary directories, entries, opening a store and reading its state.

use std::{
    env,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockkeeper::raft::{
    log::{DiskFailure, LogOpenError, LogOptions, LogStore},
    types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload},
};
use openraft::{RaftLogReader, storage::RaftLogStorage};
use tempfile::TempDir;

use super::history::{Id, State};

/// Small, so that the journal is moved to sled often.
pub(crate) const JOURNAL_BYTES: u64 = 32 << 10;

/// Deadline of a test for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Default number of simulated power failures.
const POINTS: u64 = 400;

/// Number of simulated power failures.
pub(crate) fn points() -> u64 {
    number("LOCKKEEPER_CRASH_POINTS").unwrap_or(POINTS)
}

/// Other attempts, in proportion to [`points`]: this number for 3,000.
pub(crate) fn scaled(count: u64) -> u64 {
    (count * points() / 3000).max(1)
}

/// Seed of the random numbers.
pub(crate) fn seed() -> u64 {
    number("LOCKKEEPER_CRASH_SEED").unwrap_or(1)
}

/// The number in this variable, if it is set.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {value:?}")))
}

/// A temporary directory; in memory if possible, since no test depends on the disk.
pub(crate) fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

pub(crate) fn log_id((term, index): Id) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(term), index }
}

pub(crate) fn id(log_id: LogId) -> Id {
    (log_id.leader_id.term, log_id.index)
}

/// The entry of this term and index: mostly a few bytes, sometimes many chunks.
pub(crate) fn entry(term: u64, index: u64) -> LogEntry {
    let mixed = (term.wrapping_mul(31) ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bytes = match mixed >> 60 {
        0 => 20_000,
        1..4 => 5_000,
        4..8 => 600,
        _ => 50,
    };
    let payload: Vec<u8> =
        (0..bytes).map(|at| (mixed.rotate_left(at as u32 % 61) >> 7) as u8 ^ (at >> 3) as u8).collect();
    LogEntry { log_id: log_id((term, index)), payload: EntryPayload::Normal(Payload(payload.into())) }
}

/// Opens the log as a node does with a snapshot up to `snapshot`. A failure of the log does not end this process.
pub(crate) fn open(directory: &Path, snapshot: Option<Id>) -> Result<LogStore, LogOpenError> {
    let on_failure = Arc::new(|_: &Path, failure: &DiskFailure| eprintln!("the log failed: {failure}"));
    let snapshot = snapshot.map(log_id);
    let journal_bytes = JOURNAL_BYTES;
    let options = LogOptions { snapshot, on_failure, journal_bytes, open_limit: PATIENCE, ..LogOptions::default() };
    let begun = Instant::now();
    loop {
        match LogStore::open(directory, options.clone()) {
            // The log is closed, but still locked: another test is starting a child, which has a copy of every open file until its
            // `exec`.
            Err(LogOpenError::Locked { .. }) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(1)),
            opened => return opened,
        }
    }
}

/// The state of a log, as its readers see it. An error: the state is inconsistent.
pub(crate) async fn state(store: &mut LogStore) -> Result<State, String> {
    let mut reader = store.get_log_reader().await;
    let vote = reader.read_vote().await.map_err(|error| error.to_string())?;
    let vote = vote.map_or((0, false), |vote| (vote.leader_id.term, vote.committed));
    let known = store.get_log_state().await.map_err(|error| error.to_string())?;
    let entries = reader.try_get_log_entries(..).await.map_err(|error| error.to_string())?;
    let mut state = State { vote, purged: known.last_purged_log_id.map(id), terms: Default::default() };
    for found in entries {
        let (term, index) = id(found.log_id);
        if index != state.next() {
            return Err(format!("entry {index} comes where {} should", state.next()));
        }
        if found != entry(term, index) {
            return Err(format!("entry {index} of term {term} is not what was appended"));
        }
        state.terms.push_back(term);
    }
    if known.last_log_id.map(id) != state.last() {
        return Err(format!("it ends at {:?}, but says {:?}", state.last(), known.last_log_id));
    }
    let committed = store.read_committed().await.map_err(|error| error.to_string())?;
    if committed.map(id) > state.last() {
        Err(format!("it is committed up to {committed:?}, but ends at {:?}", state.last()))
    } else {
        Ok(state)
    }
}
