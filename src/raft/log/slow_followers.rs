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
//! So the leader checks as often how much log a follower keeps it from purging. Up to a number of bytes the follower may catch up from the
//! log, and the purge is not asked for, whether that follower is slow or dead. Beyond it the purge is asked for all the same, and
//! [`limit`] ends the follower's stream. Both are needed, since openraft continues from the log unless it was asked to purge what the
//! follower needs. It then purges, finds that these entries are gone, and sends a snapshot.

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
use lockkeeper_planted::Planted;

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

    /// Bytes of the entries after `after`, up to and including `upto`. Those before the oldest mark, which this process may never have
    /// seen, count as 0: a follower that lacks them is taken for closer than it is, and keeps more of the log rather than less.
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
/// purged up to `keep_entries`, or [`KEPT_BYTES_MAX`], before the latest snapshot. Returns when openraft
/// stops.
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

/// Has openraft purge what a snapshot replaced beyond [`KEPT_BYTES_MAX`]: by itself it keeps `keep_entries`, however large they are. A
/// follower that lacks some of it delays this by no more than `bytes_max`, as for [`limit`]. Returns when openraft stops.
pub async fn purge_beyond<M: RaftStateMachine<TypeConfig>>(
    raft: openraft::Raft<TypeConfig, M>,
    log: LogBytes,
    keep_entries: u64,
    bytes_max: u64,
) {
    let metrics = raft.metrics();
    loop {
        sleep(PAUSE).await;
        let surplus = {
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return;
            }
            surplus(&metrics, &log, keep_entries, bytes_max)
        };

        if let Some(upto) = surplus
            && raft.trigger().purge_log(upto).await.is_err()
        {
            return;
        }
    }
}

/// The last entry to purge because those after it are bytes enough. `None` while openraft purges by itself what is to be purged, and while
/// a follower may still catch up from the log: because it lacks no more than `bytes_max` of what would be purged.
fn surplus(metrics: &RaftMetrics<TypeConfig>, log: &LogBytes, keep_entries: u64, bytes_max: u64) -> Option<u64> {
    let snapshot = index(metrics.snapshot);
    let purged = index(metrics.purged);
    let upto = purgeable(snapshot, log, keep_entries);
    let is_beyond = upto > snapshot.saturating_sub(keep_entries).max(purged);

    // What is purged already counts no more. So a follower that needs a snapshot has `bytes_max` of log to take it over in, before the
    // next purge makes it need another one.
    //
    // For a follower that lacks more than that, openraft puts the purge off until its stream fails, or is ended above. Meanwhile
    // openraft's own purge after a snapshot may be an earlier one, and takes the place of this one: the next look asks again. Only its
    // debug assertions object to that, in `update_purge_upto`, and `Cargo.toml` switches those off.
    let mut followers = metrics.replication.iter().flatten();
    let is_free = followers.all(|(peer, matched)| {
        let after = index(*matched).max(purged);
        let is_too_far = log.between(after, upto) > bytes_max && !Planted::AbsentMemberKeepsLog.is_on();
        *peer == metrics.id || after >= upto || is_too_far
    });
    (is_beyond && is_free).then_some(upto)
}

/// The last entry that need not stay behind a snapshot, by number and by bytes.
fn purgeable(snapshot: u64, log: &LogBytes, keep_entries: u64) -> u64 {
    snapshot.saturating_sub(keep_entries).max(log.before(snapshot, KEPT_BYTES_MAX))
}

/// The followers that keep more than `bytes_max` of the log, each with its bytes. One that lacks purged entries is not among them: openraft
/// sends it a snapshot, or still asks where its log ends, and neither keeps entries from being purged for long. So a dead member is named
/// until the purge, and not for as long as it is away.
fn too_slow(metrics: &RaftMetrics<TypeConfig>, log: &LogBytes, keep_entries: u64, bytes_max: u64) -> Vec<(u64, u64)> {
    let (Some(replication), Some(snapshot)) = (&metrics.replication, metrics.snapshot) else { return Vec::new() };
    let purged = index(metrics.purged);
    let purgeable = purgeable(snapshot.index, log, keep_entries);
    let held = |(peer, matched): (&u64, &Option<LogId>)| {
        let after = index(*matched);
        let needs_purgeable = (purged..purgeable).contains(&after);
        let bytes = if needs_purgeable { log.between(after, purgeable) } else { 0 };
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
    /// A large entry: each has a mark of its own.
    const LARGE: u64 = 1 << 20;
    /// The number of large entries that stay behind a snapshot.
    const LARGE_KEPT: u64 = KEPT_BYTES_MAX / LARGE;

    fn log_of(entries: u64, bytes: u64) -> LogBytes {
        let log = LogBytes::default();
        (1..=entries).for_each(|index| log.note(index, (bytes - ENTRY_BYTES) as usize));
        log
    }

    #[test]
    fn bytes_are_counted_to_a_mark() {
        let log = log_of(1_000, ENTRY);
        for (after, upto) in [(0, 1_000), (100, 900), (500, 500), (990, 2_000)] {
            let exact = (upto.min(1_000) - after) * ENTRY;
            let counted = log.between(after, upto);
            assert!(counted.abs_diff(exact) <= MARK_BYTES + ENTRY, "{counted} for {exact} after {after}");
        }
        assert_eq!(LogBytes::default().between(0, 10), 0);

        // After a restart the first entry that is counted is not the first of the log.
        let log = LogBytes::default();
        (501..=600).for_each(|index| log.note(index, (LARGE - ENTRY_BYTES) as usize));
        assert_eq!(log.between(3, 500), 0, "nothing is known of these entries");
        assert_eq!(log.between(3, 600), log.between(501, 600), "what is known of them");
    }

    #[test]
    fn a_follower_is_too_slow_by_the_log_that_it_alone_keeps() {
        let log = log_of(1_000, ENTRY);
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
        let log = log_of(1_000, LARGE);
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(2);
        let surplus =
            |metrics: &RaftMetrics<TypeConfig>, keep_entries| surplus(metrics, &log, keep_entries, 400 * LARGE);
        assert_eq!(surplus(&metrics, 500), None, "without a snapshot nothing can be purged");

        metrics.snapshot = Some(id(900));
        assert_eq!(surplus(&metrics, 500), Some(900 - LARGE_KEPT), "the 500 have 500 MiB");
        assert_eq!(surplus(&metrics, LARGE_KEPT - 1), None, "openraft purges more by itself");
        metrics.purged = Some(id(900 - LARGE_KEPT));
        assert_eq!(surplus(&metrics, 500), None, "it is done");

        metrics.purged = Some(id(400));
        metrics.replication = Some([(2, Some(id(1_000))), (3, Some(id(900 - LARGE_KEPT)))].into());
        assert_eq!(surplus(&metrics, 500), Some(900 - LARGE_KEPT), "the follower has it");
        metrics.replication = Some([(2, Some(id(1_000))), (3, Some(id(500)))].into());
        assert_eq!(surplus(&metrics, 500), None, "the follower needs it, and may catch up");
        assert!(too_slow(&metrics, &log, 500, 400 * LARGE).is_empty(), "and so it may keep it");

        metrics.snapshot = Some(id(20));
        metrics.purged = None;
        metrics.replication = None;
        assert_eq!(surplus(&metrics, 500), None, "all of it may stay");
    }

    #[test]
    fn a_follower_keeps_the_log_from_being_purged_within_its_backlog_only() {
        const BACKLOG: u64 = 80;
        let log = log_of(1_000, LARGE);
        let surplus = |metrics: &RaftMetrics<TypeConfig>| surplus(metrics, &log, 500, BACKLOG * LARGE);
        let slow = |metrics: &RaftMetrics<TypeConfig>| too_slow(metrics, &log, 500, BACKLOG * LARGE);
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(1);
        let with = |third: Option<u64>| {
            let matched = [(1, Some(id(1_000))), (2, Some(id(990))), (3, third.map(id))];
            Some(BTreeMap::from(matched))
        };
        metrics.snapshot = Some(id(900));
        metrics.purged = Some(id(400));
        let upto = 900 - LARGE_KEPT;

        metrics.replication = with(Some(upto - BACKLOG));
        assert_eq!((surplus(&metrics), slow(&metrics)), (None, Vec::new()), "it is slightly behind, and may catch up");
        metrics.replication = with(Some(upto - BACKLOG - 1));
        let bytes = (BACKLOG + 1) * LARGE;
        assert_eq!((surplus(&metrics), slow(&metrics)), (Some(upto), vec![(3, bytes)]), "it is too far behind");
        metrics.replication = with(Some(300));
        assert_eq!((surplus(&metrics), slow(&metrics)), (Some(upto), Vec::new()), "it needs a snapshot already");
        metrics.replication = with(None);
        assert_eq!((surplus(&metrics), slow(&metrics)), (Some(upto), Vec::new()), "it never answered this leader");

        // Once the log is purged, a dead follower is not mentioned again, and has its backlog again for the snapshot.
        metrics.replication = with(Some(500));
        metrics.purged = Some(id(upto));
        assert_eq!((surplus(&metrics), slow(&metrics)), (None, Vec::new()), "it is done");
        metrics.snapshot = Some(id(900 + BACKLOG));
        assert_eq!((surplus(&metrics), slow(&metrics)), (None, Vec::new()), "a snapshot may be on its way there");
        metrics.snapshot = Some(id(900 + BACKLOG + 1));
        assert_eq!((surplus(&metrics), slow(&metrics)), (Some(upto + BACKLOG + 1), Vec::new()), "as much was written");

        metrics.replication = None;
        metrics.snapshot = Some(id(901));
        assert_eq!((surplus(&metrics), slow(&metrics)), (Some(upto + 1), Vec::new()), "it does not lead");
    }
}
