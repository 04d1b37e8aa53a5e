//! What happened here in the last ten minutes, for somebody who opens the page after an incident.
//!
//! A task of the node ([`RecentHistory::record`]) looks once a second at what the node has anyway: the counters of the metrics, the sizes
//! of the table, who leads, whether the node can serve, and the changes that the table keeps for its watchers. Nothing is added to the way
//! of a request, and without the HTTP port the task does not run.
//!
//! | kept | bound |
//! |---|---|
//! | samples, one in [`SAMPLE_INTERVAL`] | [`SPAN`], [`SAMPLES_MAX`] |
//! | events: another leader, another term, cannot serve, can serve again | [`SPAN`], [`EVENTS_MAX`] |
//! | losses of locks | [`SPAN`], [`LOSSES_MAX`], [`LOSS_BYTES_MAX`] |
//! | other changes of locks | [`SPAN`], [`OTHERS_MAX`], [`OTHER_BYTES_MAX`] |
//!
//! All of it takes less than 4 MiB. A busy cluster changes more than is kept: the samples have the number of changes that are left out.
//! Losses have a place of their own, so the hand-overs of a busy lock do not push them out; and of these, no more are taken in a second
//! than ten minutes have room for.
//!
//! Ages are measured by the monotonic clock, so a wall clock that jumps neither ends nor extends the history, and its order stays.
//!
//! Deliberately absent: the history of the time before the process started, and that of other nodes.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    mem::size_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::async_runtime::WatchReceiver;
use tokio::time::{Instant, sleep_until};

use super::shown::{ChangeShown, EventShown, HistoryShown, PastChangeShown, PastChangesShown, SampleShown};
use crate::cluster::Cluster;
use lockkeeper_machine::{Change, ChangeKind, LockName};
use lockkeeper_metrics::{CommandStage, Did, Metrics, StageCounts};
use lockkeeper_table::change_history::EntryChanges;

/// Older samples and events are dropped.
const SPAN: Duration = Duration::from_secs(600);
/// Time between two samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of samples.
const SAMPLES_MAX: usize = 120;
/// Maximum number of events.
const EVENTS_MAX: usize = 200;
/// Maximum number of losses that are kept: expired, forced and revoked grants. And of the bytes that they take.
const LOSSES_MAX: usize = 500;
const LOSS_BYTES_MAX: usize = 1 << 20;
/// Maximum number of other changes that are kept, and of the bytes that they take.
const OTHERS_MAX: usize = 4_000;
const OTHER_BYTES_MAX: usize = 2 << 20;
/// Maximum number of losses that are taken from one look, the latest.
const LOSSES_PER_LOOK: usize = 200;
/// The time that one other change uses up of what has passed, and the most that is saved up: so all are taken of a burst in a quiet time,
/// and of a busy time as many as ten minutes have room for.
const OTHER_COST: Duration = Duration::from_millis(160);
const OTHER_CREDIT_MAX: Duration = Duration::from_secs(50);
/// Time between two looks. The table keeps the changes of its last entries only, so a look at a busy one comes sooner.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const BUSY_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// A table is busy that has this number of entries with changes, or of changes, between two looks.
const BUSY_ENTRIES: usize = 128;
const BUSY_CHANGES: usize = 1_000;
/// Least time between two looks, however often the leader changes.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

const _: () = assert!(SAMPLES_MAX as u64 * SAMPLE_INTERVAL.as_secs() == SPAN.as_secs());
// A busy time fits in whole.
const _: () = assert!(OTHERS_MAX as u128 * OTHER_COST.as_millis() >= SPAN.as_millis());

/// What happened on this node in the last [`SPAN`].
#[derive(Debug, Default)]
pub(crate) struct RecentHistory(Mutex<KeptHistory>);

#[derive(Debug, Default)]
struct KeptHistory {
    samples: VecDeque<PastSample>,
    events: VecDeque<PastEvent>,
    losses: PastChanges,
    others: PastChanges,
    /// The numbers of the last sample and the last event.
    last_sample: u64,
    last_event: u64,
    /// The last entry whose changes were looked at; `None` until this node has caught up for the first time.
    index: Option<u64>,
    /// The end of the log as this process found it: up to there it replays, as far as no leader takes the end out of the log.
    found_log_end: Option<u64>,
    /// The number of the last change that was taken.
    last_change: u64,
    /// The changes that were taken since the last sample.
    taken: u64,
    /// What [`OTHER_COST`] is paid from, and when it was added to last.
    credit: Duration,
    credited: Option<Instant>,
    /// What the last sample was counted from.
    base: Option<CountBase>,
    /// The leader with its term, and what kept this node from serving, at the last look.
    leads: Option<(u64, u64)>,
    trouble: Option<&'static str>,
}

/// The counts at the beginning of a sample.
#[derive(Debug, Clone, Copy)]
struct CountBase {
    at: Instant,
    granted: u64,
    changed: u64,
    stages: StageCounts,
}

impl CountBase {
    fn now(at: Instant, metrics: &Metrics) -> Self {
        let granted = metrics.times(Did::Granted);
        let others = [Did::Released, Did::Expired, Did::Forced, Did::Queued].map(|did| metrics.times(did));
        Self { at, granted, changed: granted + others.iter().sum::<u64>(), stages: metrics.stage_counts() }
    }
}

/// The measurements between two samples, and the state at the second one.
#[derive(Debug)]
struct PastSample {
    number: u64,
    at: Instant,
    grants_per_second: f64,
    waiters: u64,
    /// Whether this node leads: then `commit` is the time to commit, otherwise the time to apply.
    is_leader: bool,
    is_serving: bool,
    commit: Option<Duration>,
    sync: Option<Duration>,
    /// Number of changes that are not among those that are kept.
    left_out: u64,
}

#[derive(Debug)]
struct PastEvent {
    number: u64,
    at: Instant,
    kind: PastEventKind,
}

/// Something that happened to the cluster, as this node saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PastEventKind {
    /// Another node leads, or the same one in another term.
    Leads {
        node: u64,
        term: u64,
    },
    /// This node cannot serve, for this reason.
    CannotServe(&'static str),
    ServesAgain,
}

/// Changes of one sort, the oldest first.
#[derive(Debug, Default)]
struct PastChanges {
    kept: VecDeque<PastChange>,
    bytes: usize,
}

#[derive(Debug)]
struct PastChange {
    at: Instant,
    /// Counts up, so that the changes of one look stay in their order.
    number: u64,
    shown: ChangeShown,
    bytes: usize,
}

impl PastChanges {
    fn push(&mut self, at: Instant, number: u64, change: &Change, most: usize, bytes_max: usize) {
        let shown = ChangeShown::from(change.clone());
        let bytes = size_of::<PastChange>() + shown.text_bytes();
        self.bytes += bytes;
        self.kept.push_back(PastChange { at, number, shown, bytes });

        while self.kept.len() > most || self.bytes > bytes_max {
            self.drop_oldest();
        }
    }

    fn forget_before(&mut self, now: Instant) {
        while self.kept.front().is_some_and(|oldest| now - oldest.at > SPAN) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.kept.pop_front() {
            self.bytes -= oldest.bytes;
        }
    }
}

/// The state of the node at one look, without its changes.
struct NodeState {
    leads: Option<(u64, u64)>,
    is_leader: bool,
    trouble: Option<&'static str>,
    waiters: u64,
}

impl NodeState {
    async fn now(cluster: &Cluster) -> Self {
        let (leader, term, own) = {
            let metrics = cluster.replica.raft().server_metrics();
            let metrics = metrics.borrow_watched();
            (metrics.current_leader, metrics.vote.leader_id.term, metrics.id)
        };
        let trouble = cluster.trouble().await;
        let waiters = cluster.replica.table().summary().counts.waiters as u64;
        Self { leads: leader.map(|leader| (leader, term)), is_leader: leader == Some(own), trouble, waiters }
    }
}

impl RecentHistory {
    /// Records until it is dropped, or Raft ends.
    pub(crate) async fn record(&self, cluster: &Cluster, metrics: &Metrics) {
        let mut leaders = cluster.replica.raft().server_metrics();
        let mut sample_due = Instant::now();
        loop {
            let state = NodeState::now(cluster).await;
            let now = Instant::now();
            self.note_state(now, &state);
            let is_busy = self.take_changes(now, cluster);
            if now >= sample_due {
                self.sample(now, &state, metrics);
                sample_due = now + SAMPLE_INTERVAL;
            }

            let next_look = now + if is_busy { BUSY_LOOK_INTERVAL } else { LOOK_INTERVAL };
            tokio::select! {
                () = sleep_until(next_look) => {}
                changed = leaders.changed() => if changed.is_err() { return },
            }
            sleep_until(now + LOOK_PAUSE).await;
        }
    }

    /// Takes what the table has changed since the last look. Returns whether the next look must come soon.
    fn take_changes(&self, now: Instant, cluster: &Cluster) -> bool {
        let table = cluster.replica.table();
        let last = self.kept().index;

        // A node that starts replays its log, and gets what it missed: that did not happen now.
        let Some(last) = last else {
            let notified = table.notified();

            let log_end = cluster.replica.raft().metrics().borrow_watched().last_log_index.unwrap_or_default();
            let mut kept = self.kept();
            let found = *kept.found_log_end.get_or_insert(log_end);
            kept.index = has_caught_up(cluster, notified, log_end.min(found)).then_some(notified);
            return false;
        };

        let (_, entries) = table.latest_changes(last);
        self.kept().take_changes(now, &entries);
        entries.len() >= BUSY_ENTRIES || entries.iter().map(|entry| entry.changes.len()).sum::<usize>() >= BUSY_CHANGES
    }

    fn note_state(&self, now: Instant, state: &NodeState) {
        let mut kept = self.kept();
        if state.leads.is_some() && kept.leads != state.leads {
            kept.leads = state.leads;
            let (node, term) = state.leads.unwrap_or_default();
            kept.add_event(now, PastEventKind::Leads { node, term });
        }

        if kept.trouble != state.trouble {
            kept.trouble = state.trouble;
            kept.add_event(now, state.trouble.map_or(PastEventKind::ServesAgain, PastEventKind::CannotServe));
        }
        kept.forget_before(now);
    }

    fn sample(&self, now: Instant, state: &NodeState, metrics: &Metrics) {
        let counted = CountBase::now(now, metrics);
        let mut kept = self.kept();
        let taken = std::mem::take(&mut kept.taken);
        let Some(base) = kept.base.replace(counted) else { return };

        let seconds = (counted.at - base.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a graph does not show it")]
        let grants_per_second = (counted.granted - base.granted) as f64 / seconds.max(f64::MIN_POSITIVE);
        let quantile = |stage| counted.stages.quantile_since(&base.stages, stage, 0.99);

        kept.last_sample += 1;
        let sample = PastSample {
            number: kept.last_sample,
            at: now,
            grants_per_second,
            waiters: state.waiters,
            is_leader: state.is_leader,
            is_serving: state.trouble.is_none(),
            commit: quantile(if state.is_leader { CommandStage::Commit } else { CommandStage::Apply }),
            sync: quantile(CommandStage::Sync),
            left_out: (counted.changed - base.changed).saturating_sub(taken),
        };
        kept.samples.push_back(sample);
        while kept.samples.len() > SAMPLES_MAX {
            kept.samples.pop_front();
        }
    }

    /// The samples and events after these numbers, as of now.
    pub(super) fn after(&self, sample: u64, event: u64) -> HistoryShown {
        let now = Instant::now();
        let kept = self.kept();
        let age_ms = |at: Instant| millis(now.saturating_duration_since(at));

        let samples = kept.samples.iter().filter(|kept| kept.number > sample).map(|kept| SampleShown {
            number: kept.number,
            age_ms: age_ms(kept.at),
            grants: kept.grants_per_second,
            waiters: kept.waiters,
            leads: kept.is_leader,
            serving: kept.is_serving,
            commit: kept.commit.map(|time| time.as_secs_f64()),
            sync: kept.sync.map(|time| time.as_secs_f64()),
        });
        let events = kept.events.iter().filter(|kept| kept.number > event).map(|kept| {
            let (kind, leader, term, why) = match kept.kind {
                PastEventKind::Leads { node, term } => ("leader", Some(node), Some(term), None),
                PastEventKind::CannotServe(why) => ("trouble", None, None, Some(why)),
                PastEventKind::ServesAgain => ("serves", None, None, None),
            };
            EventShown { number: kept.number, age_ms: age_ms(kept.at), kind, leader, term, why }
        });
        HistoryShown { samples: samples.collect(), events: events.collect(), ..HistoryShown::default() }
    }

    /// The kept changes of locks whose names begin with this, or of the one with this name, the newest first: at most this number.
    pub(super) fn changes(
        &self,
        cluster: &Cluster,
        prefix: &str,
        only: Option<&LockName>,
        most: usize,
    ) -> PastChangesShown {
        let now = Instant::now();
        // The page goes on with a feed after this entry, so none may be missing between.
        self.take_changes(now, cluster);

        let kept = self.kept();
        let is_wanted = |change: &&PastChange| match only {
            Some(only) => change.shown.name() == only.as_str(),
            None => change.shown.name().starts_with(prefix),
        };
        let mut found: Vec<_> = kept.losses.kept.iter().chain(&kept.others.kept).filter(is_wanted).collect();
        found.sort_by_key(|change| Reverse(change.number));
        found.truncate(most);

        let shown = found.into_iter().map(|past| PastChangeShown {
            age_ms: millis(now.saturating_duration_since(past.at)),
            change: past.shown.clone(),
        });
        PastChangesShown {
            now: 0,
            index: kept.index.unwrap_or_default(),
            changes: shown.collect(),
            left_out: kept.samples.iter().map(|sample| sample.left_out).sum(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, KeptHistory> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptHistory {
    fn add_event(&mut self, at: Instant, kind: PastEventKind) {
        self.last_event += 1;
        self.events.push_back(PastEvent { number: self.last_event, at, kind });
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    fn take_changes(&mut self, at: Instant, entries: &[Arc<EntryChanges>]) {
        // Another look may have taken some of them meanwhile.
        let seen = self.index.unwrap_or_default();
        let is_new = |entry: &&Arc<EntryChanges>| entry.index > seen;
        let changes: Vec<&Change> = entries.iter().filter(is_new).flat_map(|entry| &entry.changes).collect();
        if let Some(last) = entries.last() {
            self.index = Some(seen.max(last.index));
        }

        // The latest of each sort, found from the end and then added in their order.
        let mut losses_left = LOSSES_PER_LOOK;
        let mut others_left = self.others_affordable(at);
        let mut chosen = Vec::new();
        for change in changes.into_iter().rev() {
            let left = if is_loss(&change.kind) { &mut losses_left } else { &mut others_left };
            if *left > 0 {
                *left -= 1;
                chosen.push(change);
            }
        }

        for change in chosen.into_iter().rev() {
            self.last_change += 1;
            self.taken += u64::from(is_counted(&change.kind));
            if is_loss(&change.kind) {
                self.losses.push(at, self.last_change, change, LOSSES_MAX, LOSS_BYTES_MAX);
            } else {
                self.credit = self.credit.saturating_sub(OTHER_COST);
                self.others.push(at, self.last_change, change, OTHERS_MAX, OTHER_BYTES_MAX);
            }
        }
    }

    /// The number of changes that are no losses which may be taken now.
    fn others_affordable(&mut self, now: Instant) -> usize {
        let passed = self.credited.map_or(OTHER_CREDIT_MAX, |last| now.saturating_duration_since(last));
        self.credited = Some(now);
        self.credit = (self.credit + passed).min(OTHER_CREDIT_MAX);
        usize::try_from(self.credit.as_millis() / OTHER_COST.as_millis()).unwrap_or(usize::MAX)
    }

    fn forget_before(&mut self, now: Instant) {
        while self.events.front().is_some_and(|oldest| now - oldest.at > SPAN) {
            self.events.pop_front();
        }
        while self.samples.front().is_some_and(|oldest| now - oldest.at > SPAN) {
            self.samples.pop_front();
        }
        self.losses.forget_before(now);
        self.others.forget_before(now);
    }
}

/// Whether this node serves, and has applied all entries that it knows to be committed, and the log up to `replayed`.
///
/// A node that was killed does not know of its last entries that they are committed: they are applied once there is a leader.
fn has_caught_up(cluster: &Cluster, notified: u64, replayed: u64) -> bool {
    let committed = cluster.replica.raft().metrics().borrow_watched().local_committed;
    let has_applied_committed = committed.is_some_and(|committed| committed.index <= notified);
    cluster.replica.leader().is_some() && has_applied_committed && replayed <= notified
}

fn is_loss(kind: &ChangeKind) -> bool {
    matches!(kind, ChangeKind::Lost { .. } | ChangeKind::Revoked { .. })
}

/// Whether the metrics count changes of this kind.
fn is_counted(kind: &ChangeKind) -> bool {
    match kind {
        ChangeKind::Granted { .. }
        | ChangeKind::Released { .. }
        | ChangeKind::Lost { .. }
        | ChangeKind::Queued { .. } => true,
        ChangeKind::Revoked { .. }
        | ChangeKind::Left { .. }
        | ChangeKind::Data(_)
        | ChangeKind::Delayed
        | ChangeKind::Opened
        | ChangeKind::Resized(_) => false,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{Label, Mode, Reason, SessionId, Token, WallTime};

    fn name(number: u64) -> LockName {
        LockName::new(&format!("{number:0>512}")).expect("a name")
    }

    fn granted(number: u64) -> Change {
        let label = Label::new(&"x".repeat(128)).expect("a label");
        let kind = ChangeKind::Granted {
            token: Token(number),
            session: SessionId(number.into()),
            label,
            mode: Mode::Exclusive,
            ticket: None,
        };
        Change { name: name(number), of: lockkeeper_machine::LockKind::Lock, kind }
    }

    fn forced(number: u64) -> Change {
        let reason = Reason::new(&"\u{10FFFF}".repeat(64)).expect("a reason");
        let kind = ChangeKind::Lost {
            token: Token(number),
            session: SessionId(number.into()),
            since: WallTime(0),
            reason: Some(reason),
            by: None,
        };
        Change { kind, ..granted(number) }
    }

    fn entry(index: u64, changes: Vec<Change>) -> Arc<EntryChanges> {
        Arc::new(EntryChanges { index, changes })
    }

    fn state(leads: Option<(u64, u64)>, trouble: Option<&'static str>) -> NodeState {
        NodeState { leads, is_leader: true, trouble, waiters: 3 }
    }

    fn kinds(history: &RecentHistory) -> Vec<PastEventKind> {
        history.kept().events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn it_stays_small_however_much_happens_and_losses_outlast_hand_overs() {
        let history = RecentHistory::default();
        let metrics = Metrics::default();
        let start = Instant::now();
        for second in 0..700 {
            let now = start + Duration::from_secs(second);
            let flaps = state(Some((second % 3 + 1, second)), second.is_multiple_of(2).then_some("no leader is known"));
            history.note_state(now, &flaps);
            history.sample(now, &flaps, &metrics);
            let mut changes: Vec<_> = (0..60).map(|at| granted(second * 60 + at)).collect();
            changes.extend((0..3).map(|at| forced(second * 10 + at)));
            history.kept().take_changes(now, &[entry(second + 1, changes)]);

            let kept = history.kept();
            assert!(kept.samples.len() <= SAMPLES_MAX && kept.events.len() <= EVENTS_MAX);
            assert!(kept.losses.kept.len() <= LOSSES_MAX && kept.others.kept.len() <= OTHERS_MAX);
            assert!(kept.losses.bytes <= LOSS_BYTES_MAX && kept.others.bytes <= OTHER_BYTES_MAX);
        }
        let kept = history.kept();
        for changes in [&kept.losses, &kept.others] {
            let counted: usize = changes.kept.iter().map(|change| change.bytes).sum();
            assert_eq!(counted, changes.bytes, "what is dropped is no longer counted");
        }
        // Each bound was reached.
        assert_eq!(
            (kept.samples.len(), kept.events.len(), kept.losses.kept.len()),
            (SAMPLES_MAX, EVENTS_MAX, LOSSES_MAX)
        );
        let one = kept.others.kept.front().expect("some").bytes;
        assert!(kept.others.bytes + one > OTHER_BYTES_MAX, "the longest names reach the bound of bytes");
        assert_eq!(kept.losses.kept.back().expect("some").shown.name(), name(6_992).as_str());
        let last = kept.others.kept.back().expect("some").at;
        assert_eq!((last, kept.losses.kept.back().expect("some").at), (start + Duration::from_secs(699), last));
        // Of changes that come at the same time, some of each second are kept, and not only those of the last seconds.
        let of_last = kept.others.kept.iter().filter(|change| change.at == last).count();
        assert!((6..=7).contains(&of_last), "{of_last}");
    }

    #[test]
    fn what_is_older_than_the_span_is_forgotten() {
        let history = RecentHistory::default();
        let start = Instant::now();
        history.note_state(start, &state(Some((1, 1)), None));
        history.kept().take_changes(start, &[entry(1, vec![granted(1), forced(2)])]);
        history.note_state(start + SPAN, &state(Some((1, 1)), None));
        assert_eq!((kinds(&history).len(), history.kept().losses.kept.len()), (1, 1));
        history.note_state(start + SPAN + Duration::from_secs(1), &state(Some((1, 1)), None));
        let kept = history.kept();
        assert!(kept.events.is_empty() && kept.losses.kept.is_empty() && kept.others.kept.is_empty());
        assert_eq!((kept.losses.bytes, kept.others.bytes), (0, 0));
    }

    #[test]
    fn elections_and_times_without_service_are_events_and_a_lasting_state_is_none() {
        let history = RecentHistory::default();
        let now = Instant::now();
        let lost = "no leader is known";
        for (leads, trouble) in [
            (None, Some(lost)),
            (Some((1, 1)), None),
            (Some((1, 1)), None),
            (None, Some(lost)),
            (None, Some(lost)),
            (Some((1, 2)), None),
            (Some((2, 3)), None),
        ] {
            history.note_state(now, &state(leads, trouble));
        }
        let leads = |node, term| PastEventKind::Leads { node, term };
        let expected = [
            PastEventKind::CannotServe(lost),
            leads(1, 1),
            PastEventKind::ServesAgain,
            PastEventKind::CannotServe(lost),
            leads(1, 2),
            PastEventKind::ServesAgain,
            leads(2, 3),
        ];
        assert_eq!(kinds(&history), expected);
        let numbers: Vec<_> = history.after(0, 5).events.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [6, 7], "a page asks for those after the last one that it has");
    }

    #[test]
    fn a_sample_has_rates_and_what_is_left_out() {
        let history = RecentHistory::default();
        let metrics = Metrics::default();
        let start = Instant::now();
        let now = state(Some((1, 1)), None);
        history.sample(start, &now, &metrics);
        assert!(history.after(0, 0).samples.is_empty(), "the first look is what the next one counts from");

        (0..500).for_each(|_| metrics.did(Did::Granted));
        metrics.took(CommandStage::Commit, Duration::from_millis(2));
        history.kept().take_changes(start, &[entry(1, (0..500).map(granted).collect())]);
        history.sample(start + Duration::from_secs(5), &now, &metrics);
        let shown = history.after(0, 0);
        let [sample] = &shown.samples[..] else { panic!("one sample: {}", shown.samples.len()) };
        assert!((sample.grants - 100.0).abs() < 0.01, "{}", sample.grants);
        assert_eq!((sample.waiters, sample.leads, sample.serving, sample.sync), (3, true, true, None));
        assert!(sample.commit.is_some_and(|seconds| (0.001..=0.0025).contains(&seconds)), "{:?}", sample.commit);
        let burst = OTHER_CREDIT_MAX.as_millis() / OTHER_COST.as_millis();
        assert_eq!(u128::from(history.kept().samples[0].left_out), 500 - burst);
        assert!(history.after(1, 0).samples.is_empty());
    }

    #[test]
    fn an_entry_is_taken_once_and_in_its_order() {
        let history = RecentHistory::default();
        let now = Instant::now();
        let first = entry(4, vec![granted(1), forced(2), granted(3)]);
        history.kept().take_changes(now, std::slice::from_ref(&first));
        history.kept().take_changes(now, &[first, entry(5, vec![granted(4)])]);
        let kept = history.kept();
        let mut all: Vec<_> = kept.losses.kept.iter().chain(&kept.others.kept).collect();
        all.sort_by_key(|change| change.number);
        let names: Vec<_> = all.iter().map(|change| change.shown.name().trim_start_matches('0')).collect();
        assert_eq!((names, kept.index), (vec!["1", "2", "3", "4"], Some(5)));
    }
}
