//! Limits the bytes of log that a leader keeps for a slow follower.
//!
//! openraft purges no entry that a replication stream may still have to send. A dead or stalled follower loses its stream soon: its
//! acknowledgements are late, and the stream fails. But a follower that is only slow, and acknowledges a few entries in time, keeps its
//! stream, and with it all of the log behind it, without limit.
//!
//! So the leader checks every `PAUSE` how much log a follower keeps it from purging. Beyond a number of bytes it ends that follower's
//! stream. openraft then purges, finds that the entries which the follower needs are gone, and sends it a snapshot.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::{async_runtime::WatchReceiver, metrics::RaftMetrics, type_config::alias::WatchReceiverOf};
use tokio::{sync::Notify, time::sleep};

use crate::types::TypeConfig;

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

    /// Bytes of the entries after `after`, up to and including `upto`.
    fn between(&self, after: u64, upto: u64) -> u64 {
        let marks = lock(&self.0);
        let total_at = |index| {
            let later = marks.marks.partition_point(|(at, _)| *at <= index);
            let mark = marks.marks.get(later.saturating_sub(1));
            mark.map_or(0, |(_, total)| *total)
        };
        total_at(upto).saturating_sub(total_at(after))
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
/// purged up to `keep_entries` before the latest snapshot. Returns when openraft stops.
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

/// The followers that keep more than `bytes_max` of the log, each with its bytes.
fn too_slow(metrics: &RaftMetrics<TypeConfig>, log: &LogBytes, keep_entries: u64, bytes_max: u64) -> Vec<(u64, u64)> {
    let index = |id: Option<crate::types::LogId>| id.map_or(0, |id| id.index);
    let (Some(replication), Some(snapshot)) = (&metrics.replication, metrics.snapshot) else { return Vec::new() };
    let purged = index(metrics.purged);
    let purgeable = snapshot.index.saturating_sub(keep_entries);
    let held = |(peer, matched): (&u64, &Option<crate::types::LogId>)| {
        let after = index(*matched);
        let bytes = if after < purgeable { log.between(after.max(purged), purgeable) } else { 0 };
        (*peer != metrics.id && bytes > bytes_max).then_some((*peer, bytes))
    };
    replication.iter().filter_map(held).collect()
}

/// No code panics while it holds this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CommittedLeaderId, LogId};

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
}
