//! The free space of the members' disks, and the refusal of commands that add when it runs out.
//!
//! Each node reads the free space of its data directory, on a thread for blocking work: once a [`POLL`], and more often the nearer it comes
//! to its reserve, since a fast disk takes some hundred MiB in a second. A node is *short of space* below its reserve: the configured
//! bytes, and room for two snapshots of the present size (one being written, one arriving). The disk of its audit trail counts as well, if
//! there is one, against the configured bytes alone: the disk that is nearer to its reserve is reported. It stays short until it is clearly
//! above (`Judge`), so that a snapshot that is written and replaced does not make it flap. A follower reports its reading to the leader
//! with an answer to an append, once for each reading and stream: no message and no connection of its own, and nothing is queued.
//!
//! **Whose disk counts.** The leader refuses when the voters that have reported within [`REPORT_AGE_MAX`] and are not short are no longer a
//! quorum, and at least one voter is short. So one full disk of three costs the cluster nothing but that node's redundancy, be it a
//! follower's or the leader's: a commit needs a quorum, and the quorum has space. With one node down and another one short, commits need
//! the disk that is short: the cluster refuses, before that node ends too. A silent member is not refused for by itself: if no voter is
//! known to be short, nothing is refused.
//!
//! A leader that is short of space while the others suffice [hands over](crate::elections::handover) to a voter that is not: a full disk
//! then ends a follower, which costs no election.
//!
//! **What is refused**: commands that add ([`asks_for_more`](lockkeeper_machine::Machine::asks_for_more)), before they reach the log;
//! except those that the table knows already, such as a waiting acquire whose call broke and is repeated. Releases, renewals, closes,
//! expiries and operators' commands go on, also where a client renews or releases by a write of the keyspace. They write to the log too:
//! that is what the reserve is for, and log purge and snapshots keep it bounded.
//!
//! **Deliberately absent**: the end of a node whose disk is really full. Its log reports the failed write and ends the process; see
//! `lockkeeper_storage::health`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, timeout};

use crate::messages as pb;
use lockkeeper_environment::Blocking;
use lockkeeper_planted::Planted;
pub use lockkeeper_storage::space::{FreeSpace, Space};

/// Time between two readings while there is much space.
pub const POLL: Duration = Duration::from_secs(1);
/// The least time between two readings.
const POLL_MIN: Duration = Duration::from_millis(50);
/// The bytes that a node is taken to write in a second at the most, for the time until its disk is read again.
const WRITTEN_PER_SECOND: u64 = 256 << 20;
/// A reading that takes longer is reported in the log. The next one waits for it: at most one thread hangs at a disk that hangs.
const READING_MAX: Duration = Duration::from_secs(10);
/// An older report of a peer says nothing about its disk now.
pub const REPORT_AGE_MAX: Duration = Duration::from_secs(5);
/// After this time as the leader, a voter that has not reported counts as without space. Before, its report is under way.
pub(super) const PEERS_KNOWN_AFTER: Duration = Duration::from_secs(2);
/// A node is no longer short of space this part of the reserve above it: 1 / `CLEARLY`. Plus the size of a snapshot.
const CLEARLY: u64 = 8;
/// Snapshots for which the reserve has room: one that the node writes, and one that arrives.
const SNAPSHOTS: u64 = 2;

/// A node's disk, as it was last read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskReport {
    /// The space.
    pub space: Space,
    /// The number of free bytes below which the node is short of space. 0 means that it is never short.
    pub reserve: u64,
    /// Whether it is short of space.
    pub is_low: bool,
}

impl DiskReport {
    /// Whether this disk is short of space and the other is not, or else whether it is nearer to its reserve.
    fn is_nearer_than(&self, other: &Self) -> bool {
        let margin = |report: &Self| i128::from(report.space.free) - i128::from(report.reserve);
        (!self.is_low, margin(self)) < (!other.is_low, margin(other))
    }
}

/// Why the cluster refuses commands that add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskShortage {
    /// The voter with the least free space among those that are short of it.
    pub node_id: u64,
    /// Its free bytes.
    pub free: u64,
    /// Its reserve, bytes.
    pub reserve: u64,
    /// How many voters are short of space.
    pub low: usize,
    /// How many voters there are.
    pub voters: usize,
}

/// Bytes for people.
pub fn shown(bytes: u64) -> String {
    const MIB: f64 = (1_u64 << 20) as f64;
    let mib = bytes as f64 / MIB;
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { space: Space { free, total }, reserve, .. } = *self;
        write!(f, "{} of {} are free, the reserve is {}", shown(free), shown(total), shown(reserve))
    }
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node_id, free, reserve, low, voters } = *self;
        write!(
            f,
            "the disk of node {node_id} has {} free, below its reserve of {} ({low} of {voters} voters are below theirs): the cluster takes \
             no new sessions, acquires and updates; free space there, or lower disk.reserve_bytes and restart that node; releases, renewals \
             and closes go on",
            shown(free),
            shown(reserve)
        )
    }
}

impl From<pb::DiskSpace> for DiskReport {
    fn from(message: pb::DiskSpace) -> Self {
        let pb::DiskSpace { free, total, reserve, low } = message;
        Self { space: Space { free, total }, reserve, is_low: low }
    }
}

impl From<DiskReport> for pb::DiskSpace {
    fn from(report: DiskReport) -> Self {
        let DiskReport { space: Space { free, total }, reserve, is_low } = report;
        Self { free, total, reserve, low: is_low }
    }
}

/// The disks of this node and of the peers that report to it. Clones share the state.
#[derive(Clone, Default, Debug)]
pub struct Disks(Arc<SharedDisks>);

#[derive(Default, Debug)]
struct SharedDisks {
    own: Mutex<OwnDisk>,
    /// The number of readings; 0: none yet.
    readings: AtomicU64,
    peers: Mutex<BTreeMap<u64, (DiskReport, Instant)>>,
    shortage: Mutex<Option<DiskShortage>>,
}

#[derive(Default, Debug)]
struct OwnDisk {
    report: Option<DiskReport>,
    /// Why the last reading failed.
    failure: Option<String>,
}

impl Disks {
    /// This node's disk; `None` until it was read.
    pub fn own(&self) -> Option<DiskReport> {
        lock(&self.0.own).report
    }

    /// Why this node's disk cannot be looked at now, for people.
    pub fn failure(&self) -> Option<String> {
        lock(&self.0.own).failure.clone()
    }

    /// The disk of a peer, or `None` if it has not reported within [`REPORT_AGE_MAX`]. Followers report to the leader only.
    pub fn peer_report(&self, node_id: u64) -> Option<DiskReport> {
        let (report, at) = *lock(&self.0.peers).get(&node_id)?;
        (at.elapsed() <= REPORT_AGE_MAX).then_some(report)
    }

    /// Why commands that add are refused now, or `None` while they are not.
    pub fn shortage(&self) -> Option<DiskShortage> {
        *lock(&self.0.shortage)
    }

    /// Takes a peer's report.
    pub fn reported(&self, peer: u64, report: DiskReport) {
        lock(&self.0.peers).insert(peer, (report, Instant::now()));
    }

    /// This node's report, whenever it is newer than the previous one from this iterator. It is `None` while there is nothing new; ask
    /// again later.
    pub(super) fn news(&self) -> impl Iterator<Item = pb::DiskSpace> + Send + use<> {
        let disks = self.clone();
        let mut told = 0;
        std::iter::from_fn(move || {
            // This runs with each answer to an append, so it takes no lock while there is nothing new.
            let readings = disks.0.readings.load(Ordering::Acquire);
            if readings == told {
                return None;
            }
            told = readings;
            disks.own().map(Into::into)
        })
    }

    fn note(&self, report: DiskReport) {
        *lock(&self.0.own) = OwnDisk { report: Some(report), failure: None };
        self.0.readings.fetch_add(1, Ordering::Release);
    }

    /// The time until this node reads its free space again, and the leader decides by its own free space and that of its peers.
    pub(super) fn until_next_reading(&self) -> Duration {
        let peers = lock(&self.0.peers).clone();
        let of_peers = peers.into_values().filter(|(_, at)| at.elapsed() <= REPORT_AGE_MAX).map(|(report, _)| report);
        let above_reserve =
            self.own().into_iter().chain(of_peers).filter(|report| report.reserve > 0 && !report.is_low);
        let margin = above_reserve.map(|report| report.space.free.saturating_sub(report.reserve)).min();

        let full_in = |bytes: u64| Duration::from_millis(bytes.saturating_mul(1_000) / WRITTEN_PER_SECOND);
        margin.map_or(POLL, full_in).clamp(POLL_MIN, POLL)
    }

    pub(super) fn judge(&self, voters: &[BTreeSet<u64>], own_id: u64, led_for: Duration) -> Option<DiskShortage> {
        let is_known = led_for >= PEERS_KNOWN_AFTER;
        let peers = lock(&self.0.peers).clone();
        let latest = |id: u64| if id == own_id { self.own() } else { peers.get(&id).map(|(report, _)| *report) };
        let is_fresh = |id: u64| {
            id == own_id || peers.get(&id).map_or(!is_known, |(_, at)| at.elapsed() <= REPORT_AGE_MAX || !is_known)
        };
        shortage(voters, latest, is_fresh)
    }

    /// Records why this node's disk cannot be read.
    pub(super) fn failed(&self, why: String) {
        lock(&self.0.own).failure = Some(why);
    }

    /// Decides whether the cluster refuses commands that add; returns what was decided before.
    pub(super) fn decide(&self, shortage: Option<DiskShortage>) -> Option<DiskShortage> {
        std::mem::replace(&mut *lock(&self.0.shortage), shortage)
    }
}

/// Why commands that add must be refused, given the sets of voters (two during a change of members), the latest report of each, and whether
/// it may be counted on.
fn shortage(
    voters: &[BTreeSet<u64>],
    latest: impl Fn(u64) -> Option<DiskReport>,
    is_fresh: impl Fn(u64) -> bool,
) -> Option<DiskShortage> {
    let all: BTreeSet<u64> = voters.iter().flatten().copied().collect();
    let is_low = |id: u64| latest(id).is_some_and(|report| report.is_low);
    let low: Vec<(u64, DiskReport)> =
        all.iter().filter_map(|id| Some((*id, latest(*id).filter(|report| report.is_low)?))).collect();

    let (node_id, worst) = *low.iter().min_by_key(|(_, report)| report.space.free)?;

    let has_space = |id: &&u64| is_fresh(**id) && !is_low(**id);
    let is_majority = |set: &BTreeSet<u64>| set.iter().filter(has_space).count() > set.len() / 2;

    let DiskReport { space: Space { free, .. }, reserve, .. } = worst;
    (!voters.iter().all(is_majority) || Planted::OneFullDiskRefuses.is_on()).then_some(DiskShortage {
        node_id,
        free,
        reserve,
        low: low.len(),
        voters: all.len(),
    })
}

/// When a node is short of space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge {
    /// The configured reserve, bytes. 0: never short.
    pub(super) reserve_bytes: u64,
    /// The size of the newest snapshot, bytes.
    pub(super) snapshot_bytes: u64,
}

impl Judge {
    fn report(self, space: Space, was_low: bool) -> DiskReport {
        let Self { reserve_bytes, snapshot_bytes } = self;
        if reserve_bytes == 0 {
            return DiskReport { space, reserve: 0, is_low: false };
        }
        let reserve = reserve_bytes.saturating_add(SNAPSHOTS.saturating_mul(snapshot_bytes));
        let clearly = reserve.saturating_add(reserve_bytes / CLEARLY).saturating_add(snapshot_bytes);
        DiskReport { space, reserve, is_low: space.free < if was_low { clearly } else { reserve } }
    }
}

/// What one reading of this node's disks has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskReading {
    data: Space,
    /// The disk of the audit trail, if there is one.
    audit: Option<Space>,
}

impl DiskReading {
    fn now(disk: &dyn FreeSpace) -> io::Result<Self> {
        // Where that of the audit trail cannot be read, its lines cannot be written, which ends the node with the reason.
        let audit = disk.read_audit().unwrap_or_default();
        Ok(Self { data: disk.read()?, audit })
    }
}

/// Reads this node's free space. A reading that hangs is logged and shown.
pub(super) async fn read(blocking: Blocking, disk: &Arc<dyn FreeSpace>, disks: &Disks) -> io::Result<DiskReading> {
    let disk = Arc::clone(disk);
    let mut reading = pin!(blocking.run(move || DiskReading::now(&*disk)));
    loop {
        match timeout(READING_MAX, &mut reading).await {
            Ok(reading) => return reading,
            Err(_) => {
                let said = format!("its free space was not read within {READING_MAX:?}");
                tracing::warn!("the disk of the data directory hangs: {said}");
                disks.failed(said);
            }
        }
    }
}

/// Takes a reading of this node's disks. Returns whether the node has become short of space for its data, where a snapshot helps.
pub(super) fn take(disks: &Disks, judge: Judge, reading: DiskReading) -> bool {
    let was_low = disks.own().is_some_and(|report| report.is_low);
    let data = judge.report(reading.data, was_low);
    // No snapshot is ever written beside the audit trail.
    let audit = reading.audit.map(|space| Judge { snapshot_bytes: 0, ..judge }.report(space, was_low));

    let (report, directory) = match audit {
        Some(audit) if audit.is_nearer_than(&data) => (audit, "audit"),
        Some(_) | None => (data, "data"),
    };
    match (was_low, report.is_low) {
        (false, true) => {
            tracing::warn!("the disk of the {directory} directory is nearly full: {report}; free space on it");
        }
        (true, false) => tracing::info!("the disk of the {directory} directory has space again: {report}"),
        (false, false) | (true, true) => {}
    }

    disks.note(report);
    !was_low && data.is_low
}

/// No code panics while it holds this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn report(free: u64, is_low: bool) -> DiskReport {
        DiskReport { space: Space { free, total: 100 * MIB }, reserve: 10 * MIB, is_low }
    }

    #[test]
    fn a_node_is_short_below_its_reserve_and_until_it_is_clearly_above() {
        let judge = Judge { reserve_bytes: 80 * MIB, snapshot_bytes: 3 * MIB };
        let is_low = |free, was_low| judge.report(Space { free, total: u64::MAX }, was_low).is_low;
        let reserve = 86 * MIB;
        assert_eq!(judge.report(Space { free: 0, total: 0 }, false).reserve, reserve);
        assert!(!is_low(reserve, false) && is_low(reserve - 1, false));
        let clearly = reserve + 10 * MIB + 3 * MIB;
        assert!(is_low(clearly - 1, true) && !is_low(clearly, true));
    }

    #[test]
    fn the_disk_of_the_audit_trail_has_no_room_for_snapshots_and_the_nearer_one_is_reported() {
        let judge = Judge { reserve_bytes: 80 * MIB, snapshot_bytes: 100 * MIB };
        let space = |mib| Space { free: mib * MIB, total: 1 << 40 };
        for (data, audit, reported, is_low, wants_snapshot) in [
            (1_000, None, 1_000, false, false),
            (1_000, Some(81), 81, false, false),
            (1_000, Some(79), 79, true, false),
            (279, Some(400), 279, true, true),
            (279, Some(70), 70, true, true),
            (281, Some(400), 281, false, false),
        ] {
            let disks = Disks::default();
            let reading = DiskReading { data: space(data), audit: audit.map(space) };
            assert_eq!(take(&disks, judge, reading), wants_snapshot, "{reading:?}");
            let own = disks.own().expect("it was noted");
            assert_eq!((own.space, own.is_low), (space(reported), is_low), "{reading:?}");
        }
    }

    #[test]
    fn a_reserve_of_zero_turns_the_watch_off() {
        let judge = Judge { reserve_bytes: 0, snapshot_bytes: 3 * MIB };
        assert!(!judge.report(Space { free: 0, total: 1 }, true).is_low);
    }

    /// The reports of nodes 1, 2, …: `o`: above its reserve, `l`: short of space, `?`: never reported, `s`: was above and is silent, `z`:
    /// was short and is silent. Returns how many are short, if the cluster refuses.
    fn refuses(sets: &[&[u64]], reports: &str) -> Option<usize> {
        let sets: Vec<BTreeSet<u64>> = sets.iter().map(|set| set.iter().copied().collect()).collect();
        let letter = |id: u64| reports.as_bytes()[id as usize - 1];
        let latest = |id| match letter(id) {
            b'o' | b's' => Some(report(50 * MIB, false)),
            b'l' | b'z' => Some(report(id * MIB, true)),
            _ => None,
        };
        let is_fresh = |id| matches!(letter(id), b'o' | b'l');
        shortage(&sets, latest, is_fresh).map(|shortage| shortage.low)
    }

    #[test]
    fn the_cluster_refuses_when_the_voters_with_space_are_no_quorum() {
        const THREE: &[&[u64]] = &[&[1, 2, 3]];
        assert_eq!(refuses(&[&[1]], "o"), None);
        assert_eq!(refuses(&[&[1]], "l"), Some(1));
        for one_is_short in ["loo", "olo", "ool", "zoo"] {
            assert_eq!(refuses(THREE, one_is_short), None, "{one_is_short}");
        }
        for two_are_short in ["llo", "lol", "oll", "ozl"] {
            assert_eq!(refuses(THREE, two_are_short), Some(2), "{two_are_short}");
        }
        assert_eq!(refuses(THREE, "lll"), Some(3));
        for one_is_short_and_one_silent in ["ol?", "ols", "sol", "l?o"] {
            assert_eq!(refuses(THREE, one_is_short_and_one_silent), Some(1), "{one_is_short_and_one_silent}");
        }
        for none_is_short in ["ooo", "o??", "oss"] {
            assert_eq!(refuses(THREE, none_is_short), None, "{none_is_short}");
        }
        assert_eq!(refuses(&[&[1, 2, 3, 4, 5]], "ollos"), Some(2));
        assert_eq!(refuses(&[&[1, 2, 3, 4, 5]], "olloo"), None);
    }

    #[test]
    fn during_a_change_of_members_both_sets_need_a_quorum_with_space() {
        assert_eq!(refuses(&[&[1, 2, 3], &[1, 4, 5]], "oooll"), Some(2));
        assert_eq!(refuses(&[&[1, 2, 3], &[1, 4, 5]], "oloo?"), None);
    }

    #[test]
    fn a_refusal_names_the_node_with_the_least_space_and_its_values() {
        let voters = [BTreeSet::from([1, 2, 3])];
        let latest = |id| Some(report(7 * MIB - id * MIB, id != 1));
        let found = shortage(&voters, latest, |_| true).unwrap();
        assert_eq!(found, DiskShortage { node_id: 3, free: 4 * MIB, reserve: 10 * MIB, low: 2, voters: 3 });
        let text = found.to_string();
        for said in ["node 3", "4.0 MiB", "10.0 MiB", "2 of 3 voters", "disk.reserve_bytes"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reports_grow_old_and_a_new_leader_waits_for_the_first_ones() {
        let disks = Disks::default();
        let voters = [BTreeSet::from([1, 2, 3])];
        let refuses = |led_for| disks.judge(&voters, 1, led_for).is_some();
        disks.note(report(50 * MIB, false));
        disks.reported(2, report(MIB, true));
        assert!(!refuses(PEERS_KNOWN_AFTER - Duration::from_millis(1)), "the report of node 3 may be under way");
        assert!(refuses(PEERS_KNOWN_AFTER), "node 3 does not report");
        disks.reported(3, report(50 * MIB, false));
        assert!(!refuses(PEERS_KNOWN_AFTER));
        assert!(disks.peer_report(3).is_some());
        tokio::time::advance(REPORT_AGE_MAX + Duration::from_millis(1)).await;
        assert!(refuses(PEERS_KNOWN_AFTER), "nodes 2 and 3 are silent, and node 2 was short of space");
        assert!(disks.peer_report(3).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_nearer_a_known_disk_is_to_its_reserve_the_sooner_it_is_read_again() {
        let disks = Disks::default();
        assert_eq!(disks.until_next_reading(), POLL, "nothing is known");

        let free =
            |mib| DiskReport { space: Space { free: mib * MIB, total: 1 << 40 }, reserve: 10 * MIB, is_low: false };
        disks.note(free(1_000));
        assert_eq!(disks.until_next_reading(), POLL);
        disks.note(free(10 + 64));
        assert_eq!(disks.until_next_reading(), POLL / 4);
        disks.note(free(10));
        assert_eq!(disks.until_next_reading(), POLL_MIN);
        disks.note(report(MIB, true));
        assert_eq!(disks.until_next_reading(), POLL, "it is decided");

        disks.note(free(1_000));
        disks.reported(2, free(11));
        assert_eq!(disks.until_next_reading(), POLL_MIN, "the leader decides by its peers' too");
        tokio::time::advance(REPORT_AGE_MAX + Duration::from_millis(1)).await;
        assert_eq!(disks.until_next_reading(), POLL, "the peer is silent");
        disks.note(DiskReport { reserve: 0, ..free(0) });
        assert_eq!(disks.until_next_reading(), POLL, "it is not watched");
    }

    #[test]
    fn a_stream_gets_each_reading_once() {
        let disks = Disks::default();
        let mut news = disks.news();
        assert_eq!(news.next(), None);
        disks.note(report(MIB, true));
        assert_eq!(news.next().map(DiskReport::from), Some(report(MIB, true)));
        assert_eq!(news.next(), None);
        disks.note(report(2 * MIB, true));
        disks.note(report(3 * MIB, true));
        assert_eq!(news.next().map(DiskReport::from), Some(report(3 * MIB, true)));
        assert_eq!(news.next(), None);
        assert_eq!(disks.news().next().map(DiskReport::from), Some(report(3 * MIB, true)), "another stream");
    }
}
