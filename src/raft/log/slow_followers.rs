//! Limits the bytes of log that a node keeps behind its snapshot, and those that a leader keeps for a slow follower.
//!
//! Behind a snapshot openraft keeps a number of entries, so that a follower which lags by fewer needs no snapshot. An entry may have up to
//! 1.5 MiB, and a thousand of them as many GiB. So each node looks every `PAUSE` how many bytes these entries are, and beyond
//! [`KEPT_BYTES_MAX`] has openraft purge the oldest ([`purge_beyond`]).
//!
//! openraft purges no entry that a replication stream may still have to send. A dead or stalled follower loses its stream soon: its
//! acknowledgements are late, and the stream fails. But a follower that is only slow, and acknowledges a few entries in time, keeps its
//! stream, and with it all of the log behind it, without limit.
//!
//! So the leader checks as often how much log a follower keeps it from purging. Beyond a number of bytes it ends that follower's
//! stream. openraft then purges, finds that the entries which the follower needs are gone, and sends it a snapshot.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::{
    async_runtime::WatchReceiver, metrics::RaftMetrics, storage::RaftStateMachine, type_config::alias::WatchReceiverOf,
};
use tokio::{sync::Notify, time::sleep};

use crate::types::{LogId, TypeConfig};

/// Bytes of entries that stay behind a snapshot for followers that lag a little, at most; `raft.keep_entries` may keep fewer.
pub const KEPT_BYTES_MAX: u64 = 64 << 20;
/// Time between two checks.
const PAUSE: Duration = Duration::from_secs(1);
/// Resolution of the count: one mark for each [`MARK_BYTES`] of log.
const MARK_BYTES: u64 = 64 << 10;
/// Maximum number of marks. Entries before the oldest mark, 8 GiB back, count as 0 bytes.
const MARKS_MAX: usize = 1 << 17;
/// Estimated size of an entry's metadata.
const ENTRY_BYTES: u64 = 64;

/// Estimates the bytes of log between two entries. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct LogBytes(Arc<Mutex<Marks>>);

#[derive(Debug, Default)]
struct Marks {
    /// Pairs of an index and the bytes of all entries up to and including it, ascending.
    marks: VecDeque<(u64, u64)>,
    total: u64,
}

impl LogBytes {
    /// Counts the entry at `index`, which follows the previous one, with `bytes` bytes of payload.
    pub fn note(&self, index: u64, bytes: usize) {
        let mut marks = lock(&self.0);
        marks.total += bytes as u64 + ENTRY_BYTES;
        let total = marks.total;
        if marks.marks.back().is_none_or(|(_, at)| total - at >= MARK_BYTES) {
            marks.marks.push_back((index, total));
        }
        if marks.marks.len() > MARKS_MAX {
            marks.marks.pop_front();
        }
    }

    /// Bytes of the entries after `after`.
    pub(crate) fn since(&self, after: u64) -> u64 {
        self.between(after, u64::MAX)
    }

    /// An index such that the entries after it, up to and including `upto`, have no more than `bytes_max` bytes: the first that is known.
    fn before(&self, upto: u64, bytes_max: u64) -> u64 {
        let marks = lock(&self.0);
        let from = marks.total_at(upto).saturating_sub(bytes_max);
        let place = marks.marks.partition_point(|(_, total)| *total < from);
        let mark = if place == 0 { None } else { marks.marks.get(place) };
        mark.map_or(0, |(index, _)| *index)
    }

    /// Bytes of the entries after `after`, up to and including `upto`.
    fn between(&self, after: u64, upto: u64) -> u64 {
        let marks = lock(&self.0);
        marks.total_at(upto).saturating_sub(marks.total_at(after))
    }
}

impl Marks {
    /// The bytes of all entries up to and including this one, to a mark.
    fn total_at(&self, index: u64) -> u64 {
        let later = self.marks.partition_point(|(at, _)| *at <= index);
        let mark = self.marks.get(later.saturating_sub(1));
        mark.map_or(0, |(_, total)| *total)
    }
}

/// Ends replication streams. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct StreamCuts(Arc<Mutex<BTreeMap<u64, Arc<Notify>>>>);

impl StreamCuts {
    /// Notified when the current stream to this peer must end. A later stream is not affected.
    pub(crate) fn cut_for(&self, peer: u64) -> Arc<Notify> {
        Arc::clone(lock(&self.0).entry(peer).or_default())
    }

    fn cut(&self, peer: u64) {
        self.cut_for(peer).notify_waiters();
    }
}

/// While this node leads, ends the stream to each follower that keeps more than `bytes_max` of the log from being purged; the log may be
/// purged up to `keep_entries`, or [`KEPT_BYTES_MAX`], before the latest snapshot. Returns when openraft stops.
pub async fn limit(
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    log: LogBytes,
    cuts: StreamCuts,
    keep_entries: u64,
    bytes_max: u64,
) {
    loop {
        sleep(PAUSE).await;
        let slow = {
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return;
            }
            too_slow(&metrics, &log, keep_entries, bytes_max)
        };

        for (peer, bytes) in slow {
            tracing::warn!(
                peer,
                bytes,
                bytes_max,
                "a follower is slow: it keeps more of the log from being purged than raft.backlog_bytes_max, so it is sent a snapshot"
            );
            cuts.cut(peer);
        }
    }
}

/// Has openraft purge what a snapshot replaced beyond [`KEPT_BYTES_MAX`]: by itself it keeps `keep_entries`, however large they are.
/// Returns when openraft stops.
pub async fn purge_beyond<M: RaftStateMachine<TypeConfig>>(
    raft: openraft::Raft<TypeConfig, M>,
    log: LogBytes,
    keep_entries: u64,
) {
    let metrics = raft.metrics();
    loop {
        sleep(PAUSE).await;
        let surplus = {
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return;
            }
            surplus(&metrics, &log, keep_entries)
        };

        if let Some(upto) = surplus
            && raft.trigger().purge_log(upto).await.is_err()
        {
            return;
        }
    }
}

/// The last entry to purge because those after it are bytes enough. `None` while openraft purges by itself what is to be purged.
fn surplus(metrics: &RaftMetrics<TypeConfig>, log: &LogBytes, keep_entries: u64) -> Option<u64> {
    let snapshot = index(metrics.snapshot);
    let upto = purgeable(snapshot, log, keep_entries);
    let is_beyond = upto > snapshot.saturating_sub(keep_entries).max(index(metrics.purged));

    // A purge waits for a follower that has less; and while one waits, openraft's own must not be an earlier one (a debug assertion in its
    // `update_purge_upto`). Such a follower is looked at above: it holds this up for a limited number of bytes.
    let mut followers = metrics.replication.iter().flatten();
    let is_free = followers.all(|(peer, matched)| *peer == metrics.id || index(*matched) >= upto);
    (is_beyond && is_free).then_some(upto)
}

/// The last entry that need not stay behind a snapshot, by number and by bytes.
fn purgeable(snapshot: u64, log: &LogBytes, keep_entries: u64) -> u64 {
    snapshot.saturating_sub(keep_entries).max(log.before(snapshot, KEPT_BYTES_MAX))
}

/// The followers that keep more than `bytes_max` of the log, each with its bytes.
fn too_slow(metrics: &RaftMetrics<TypeConfig>, log: &LogBytes, keep_entries: u64, bytes_max: u64) -> Vec<(u64, u64)> {
    let (Some(replication), Some(snapshot)) = (&metrics.replication, metrics.snapshot) else { return Vec::new() };
    let purged = index(metrics.purged);
    let purgeable = purgeable(snapshot.index, log, keep_entries);
    let held = |(peer, matched): (&u64, &Option<LogId>)| {
        let after = index(*matched);
        let bytes = if after < purgeable { log.between(after.max(purged), purgeable) } else { 0 };
        (*peer != metrics.id && bytes > bytes_max).then_some((*peer, bytes))
    };
    replication.iter().filter_map(held).collect()
}

fn index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index)
}

/// No code panics while it holds this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::CommittedLeaderId;

    fn id(index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::new(1), index }
    }

    const ENTRY: u64 = 10_000;

    fn log(entries: u64) -> LogBytes {
        let log = LogBytes::default();
        (1..=entries).for_each(|index| log.note(index, (ENTRY - ENTRY_BYTES) as usize));
        log
    }

    #[test]
    fn bytes_are_counted_to_a_mark() {
        let log = log(1_000);
        for (after, upto) in [(0, 1_000), (100, 900), (500, 500), (990, 2_000)] {
            let exact = (upto.min(1_000) - after) * ENTRY;
            let counted = log.between(after, upto);
            assert!(counted.abs_diff(exact) <= MARK_BYTES + ENTRY, "{counted} for {exact} after {after}");
        }
        assert_eq!(LogBytes::default().between(0, 10), 0);
    }

    #[test]
    fn a_follower_is_too_slow_by_the_log_that_it_alone_keeps() {
        let log = log(1_000);
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(1);
        let slow = |metrics: &RaftMetrics<TypeConfig>| {
            let slow = too_slow(metrics, &log, 100, 400 * ENTRY);
            slow.into_iter().map(|(peer, _)| peer).collect::<Vec<_>>()
        };
        metrics.replication = Some([(1, Some(id(1_000))), (2, Some(id(300))), (3, None)].into());
        assert!(slow(&metrics).is_empty(), "without a snapshot nothing can be purged");
        metrics.snapshot = Some(id(600));
        assert_eq!(slow(&metrics), [3], "up to 500 could be purged");
        metrics.snapshot = Some(id(1_000));
        assert_eq!(slow(&metrics), [2, 3], "up to 900 could be purged");
        metrics.purged = Some(id(600));
        assert!(slow(&metrics).is_empty(), "most of it is purged");
        metrics.purged = None;
        metrics.replication = None;
        assert!(slow(&metrics).is_empty(), "it does not lead");
    }

    #[test]
    fn few_large_entries_stay_behind_a_snapshot() {
        const LARGE: u64 = 1 << 20;
        let kept = KEPT_BYTES_MAX / LARGE;
        let log = LogBytes::default();
        (1..=1_000).for_each(|index| log.note(index, (LARGE - ENTRY_BYTES) as usize));
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(2);
        let surplus = |metrics: &RaftMetrics<TypeConfig>, keep_entries| surplus(metrics, &log, keep_entries);
        assert_eq!(surplus(&metrics, 500), None, "without a snapshot nothing can be purged");

        metrics.snapshot = Some(id(900));
        assert_eq!(surplus(&metrics, 500), Some(900 - kept), "the 500 have 500 MiB");
        assert_eq!(surplus(&metrics, kept - 1), None, "openraft purges more by itself");
        metrics.purged = Some(id(900 - kept));
        assert_eq!(surplus(&metrics, 500), None, "it is done");

        metrics.purged = Some(id(400));
        metrics.replication = Some([(2, Some(id(1_000))), (3, Some(id(900 - kept)))].into());
        assert_eq!(surplus(&metrics, 500), Some(900 - kept), "the follower has it");
        metrics.replication = Some([(2, Some(id(1_000))), (3, Some(id(500)))].into());
        assert_eq!(surplus(&metrics, 500), None, "the follower needs it");
        assert_eq!(too_slow(&metrics, &log, 500, 300 * LARGE).len(), 1, "and keeps too much of it");

        metrics.snapshot = Some(id(20));
        metrics.purged = None;
        metrics.replication = None;
        assert_eq!(surplus(&metrics, 500), None, "all of it may stay");
    }
}
