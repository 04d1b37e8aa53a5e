//! This node's machine, and the listeners for what it does.
//!
//! The state machine writes it (`apply`, `restore`); everything else reads. Events go to three kinds of listener: the end of a wait to
//! the call that waits for it, the loss of a session or grant to its keep-alive stream, and every change of a lock to watchers.
//! Watchers of the keyspace read its history, which is part of the machine, and are told when it has changed.
//!
//! Listeners hold no state that the machine lacks: they can be lost with the process.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{broadcast, oneshot, watch};

use crate::{
    Applied, AppliedMembership, EntryId, Inspect, TableSummary,
    calls::WaitingCalls,
    change_history::{CHANGES_KEPT, ChangeHistory, EntryChanges},
    checkpoint::Checkpoint,
    listeners::{Listener, Notice, SessionLoss},
    replies::{Deliveries, Delivery},
    trail::{Audit, AuditAct, EntryLines},
    unapplied,
    version::AppliedVersion,
    watch_index::WatchIndex,
};
use lockkeeper_machine::{
    ChangeKind, Command, EntryHistory, Event, Limits, Machine, Reply, Revision, SessionEnd, SessionId, Stamp, Time,
    WallTime,
};
use lockkeeper_metrics::{Did, HoldEnd, Metrics};
use lockkeeper_planted::{Planted, panics_at};

/// A clock that was further ahead of a later leader's was wrong.
const WALL_AHEAD_MS_MAX: u64 = 3_600_000;

/// The machine of this node.
#[derive(Debug)]
pub struct Table {
    applied: RwLock<Applied>,
    /// Apart from `applied`, whose lock a long apply holds.
    summary: Mutex<TableSummary>,
    calls: WaitingCalls,
    listeners: Mutex<HashMap<SessionId, Vec<Listener>>>,
    changes: broadcast::Sender<Arc<EntryChanges>>,
    history: ChangeHistory,
    term: watch::Sender<u64>,
    deadline: watch::Sender<Option<Stamp>>,
    /// The machine's time, and the index of the last applied entry, for readers that must not wait for an apply.
    now: AtomicU64,
    index: AtomicU64,
    /// See [`latest_wall`](Self::latest_wall).
    latest_wall_ms: AtomicU64,
    notified: AtomicU64,
    progress: watch::Sender<TableProgress>,
    /// The history of the keyspace, and its revision, as of the last entry that was notified.
    history_of_entries: watch::Sender<EntryHistory>,
    revision: AtomicU64,
    /// Positions are revisions.
    watches_of_entries: WatchIndex,
    /// Positions are indices of log entries.
    watches_of_locks: WatchIndex,
    /// See [`has_removed`](Self::has_removed). Apart from `applied`, whose lock a long apply holds.
    removed: RwLock<BTreeSet<u64>>,
    inspector: Option<Arc<dyn Inspect>>,
    versions: Arc<AppliedVersion>,
    audit: Audit,
    metrics: Metrics,
    checkpoint: Checkpoint,
    unapplied: OnceLock<String>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Table {
    /// An empty table, which `inspector` inspects after each change.
    pub fn new(inspector: Option<Arc<dyn Inspect>>) -> Self {
        Self {
            applied: RwLock::default(),
            summary: Mutex::default(),
            calls: WaitingCalls::default(),
            listeners: Mutex::default(),
            changes: broadcast::channel(CHANGES_KEPT).0,
            history: ChangeHistory::default(),
            term: watch::channel(0).0,
            deadline: watch::channel(None).0,
            now: AtomicU64::new(0),
            index: AtomicU64::new(0),
            latest_wall_ms: AtomicU64::new(0),
            notified: AtomicU64::new(0),
            progress: watch::channel(TableProgress::default()).0,
            history_of_entries: watch::channel(EntryHistory::default()).0,
            revision: AtomicU64::new(0),
            watches_of_entries: WatchIndex::default(),
            watches_of_locks: WatchIndex::default(),
            removed: RwLock::default(),
            inspector,
            versions: Arc::default(),
            audit: Audit::default(),
            metrics: Metrics::default(),
            checkpoint: Checkpoint::default(),
            unapplied: OnceLock::new(),
        }
    }

    /// The entry that could not be applied, and why: nothing after it is applied, and the node ends. See the module `unapplied`.
    pub fn unapplied(&self) -> Option<&str> {
        self.unapplied.get().map(String::as_str)
    }

    /// The first one counts.
    pub(super) fn note_unapplied(&self, why: &io::Error) {
        let _ = self.unapplied.set(why.to_string());
    }

    /// Makes the table write its audit lines there.
    pub fn with_audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// Counts what it does there.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Lets up to this number of calls wait for the end of one wait.
    pub fn with_calls_per_wait(self, most: usize) -> Self {
        Self { calls: WaitingCalls::new(most), ..self }
    }

    /// The metrics that it writes.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The receiver of the audit lines.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Makes the table that of a program with these versions.
    pub fn with_versions(self, versions: Arc<AppliedVersion>) -> Self {
        Self { versions, ..self }
    }

    /// The versions that this node's program supports, and that of the cluster.
    pub fn versions(&self) -> &Arc<AppliedVersion> {
        &self.versions
    }

    /// Reads the machine. `look` runs under a lock that `apply` needs: it must be short and must not block. It waits while an entry is
    /// applied, which may take milliseconds: urgent work such as heartbeats must not run behind it on the same thread.
    pub fn read<T>(&self, look: impl FnOnce(&Applied) -> T) -> T {
        look(&self.applied.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The term of the last applied entry. Once this is a new leader's own term, it has applied all entries of its predecessors.
    pub fn applied_term(&self) -> watch::Receiver<u64> {
        self.term.subscribe()
    }

    /// The next deadline.
    pub fn next_deadline(&self) -> watch::Receiver<Option<Stamp>> {
        self.deadline.subscribe()
    }

    /// The machine's time and the next deadline, as of the last applied entry. Never waits.
    pub fn time_and_deadline(&self) -> (Stamp, Option<Stamp>) {
        (Stamp(self.now.load(Ordering::Acquire)), *self.deadline.borrow())
    }

    /// The sizes of the table as of the last applied entry. Never waits: an operator who asks why a node does not go on gets an answer
    /// while the node applies an entry for long.
    pub fn summary(&self) -> TableSummary {
        *lock(&self.summary)
    }

    /// Whether earlier batches left work in the backlog: see [`Machine::has_work`].
    pub fn has_work(&self) -> bool {
        self.read(|applied| applied.machine.has_work())
    }

    /// The index of the last applied entry; 0: none. Never waits.
    pub fn index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    /// The latest time on a leader's wall clock among the entries that this process has applied. A leader whose clock is an hour behind it
    /// begins anew, since the earlier clock was wrong. Never waits. The times of entries that came in a snapshot are not known.
    pub fn latest_wall(&self) -> WallTime {
        WallTime(self.latest_wall_ms.load(Ordering::Acquire))
    }

    /// The watches of locks.
    pub fn watches_of_locks(&self) -> &WatchIndex {
        &self.watches_of_locks
    }

    /// The watches of the keyspace.
    pub fn watches_of_entries(&self) -> &WatchIndex {
        &self.watches_of_entries
    }

    /// The changes that are left to the dispatcher of [`watches_of_locks`](Self::watches_of_locks), an item for each log entry.
    pub fn changes(&self) -> broadcast::Receiver<Arc<EntryChanges>> {
        self.changes.subscribe()
    }

    /// The changes of the next entries after this one, up to [`Table::notified`], of at most `most` entries. Returns `None` if they are no
    /// longer kept.
    pub fn changes_after(&self, index: u64, most: usize) -> Option<Vec<Arc<EntryChanges>>> {
        self.history.after(index, most)
    }

    /// The changes of the entries after this one as far as they are kept, and the entry after which all are.
    pub fn latest_changes(&self, index: u64) -> (u64, Vec<Arc<EntryChanges>>) {
        self.history.latest(index)
    }

    /// The last *notified* entry: all its changes were sent to [`Table::changes`]. Lags behind the table itself by a moment.
    pub fn notified(&self) -> u64 {
        self.notified.load(Ordering::Acquire)
    }

    /// Follows the entries as they are notified. For callers that show successive states of the whole table.
    pub fn progress(&self) -> watch::Receiver<TableProgress> {
        self.progress.subscribe()
    }

    /// All changes of the entries up to this one were sent to those who listen.
    fn note_notified(&self, index: u64, is_restored: bool) {
        self.notified.store(index, Ordering::Release);
        self.progress.send_modify(|known| {
            known.index = index;
            known.restored += u64::from(is_restored);
        });
    }

    /// The history of the keyspace. It has changed when something was left to the dispatcher of
    /// [`watches_of_entries`](Self::watches_of_entries).
    pub fn history_of_entries(&self) -> watch::Receiver<EntryHistory> {
        self.history_of_entries.subscribe()
    }

    /// A revision of the keyspace whose events, and all before, are in [`Table::history_of_entries`] by now.
    pub fn notified_revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Sends `listener` the losses of a session from now on. A listener that does not keep up is dropped, and told so.
    pub fn listen(&self, session: SessionId, listener: Listener) {
        let mut listeners = lock(&self.listeners);
        let of_session = listeners.entry(session).or_default();
        of_session.retain(|other| !other.is_gone());
        of_session.push(listener);
    }

    /// Forgets listeners of these sessions that are gone.
    pub fn forget_listeners(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let mut listeners = lock(&self.listeners);
        for session in sessions {
            if let Some(of_session) = listeners.get_mut(&session) {
                of_session.retain(|listener| !listener.is_gone());
                if of_session.is_empty() {
                    listeners.remove(&session);
                }
            }
        }
    }

    /// Notes the leader's wall clock. Only the thread that applies comes here.
    fn note_wall(&self, wall: WallTime) {
        let latest_ms = self.latest_wall_ms.load(Ordering::Acquire);
        let was_wrong = latest_ms.saturating_sub(wall.0) > WALL_AHEAD_MS_MAX;

        let next_ms = if was_wrong { wall.0 } else { latest_ms.max(wall.0) };
        self.latest_wall_ms.store(next_ms, Ordering::Release);
    }

    /// The waiting calls on this node.
    pub fn calls(&self) -> &WaitingCalls {
        &self.calls
    }

    /// Applies one entry. With `answer`, this node proposed it, and its proposer waits for the deliveries.
    pub fn apply(&self, entry: EntryId, batch: Batch, answer: bool) -> Deliveries {
        let mut events = Vec::new();
        let wall = batch.time.wall;
        let (replies, lines, written) = {
            let mut applied = self.write();
            ensure_next(&applied, entry);
            self.note_wall(wall);
            // The place, not a copy: an apply in which nobody writes entries must cost the watchers nothing.
            let before = applied.machine.history().place();
            let (replies, lines) = self.run(&mut applied, entry.index, batch, &mut events);
            applied.last_entry = Some(entry);
            self.publish(&applied, applied.machine.work_done());
            (replies, lines, EntriesWritten::since(before, &applied.machine))
        };

        // Write without the lock, because this may wait for the disk. Entries are applied one after the other, so the lines stay in order.
        self.audit.write(lines);

        // Only the thread that applies comes here, one entry after the other: a wait is registered before a later entry ends it. A wait
        // that ends within its own batch is registered and ended here, in this order.
        if Planted::EndToldBeforeCall.is_on() {
            self.notify_all(entry.index, wall, std::mem::take(&mut events));
        }
        let deliveries = if answer {
            replies.into_iter().map(|(reply, is_repeatable)| self.deliver(reply, is_repeatable)).collect()
        } else {
            Vec::new()
        };

        self.notify_all(entry.index, wall, events);
        self.notify_of_entries(written);
        Deliveries { replies: deliveries, applied: None }
    }

    /// Runs the commands of an entry, and makes the audit lines of each. Beside each reply: whether the client can repeat the command, to
    /// the same effect.
    fn run(
        &self,
        applied: &mut Applied,
        index: u64,
        batch: Batch,
        events: &mut Vec<Event>,
    ) -> (Vec<(Reply, bool)>, EntryLines) {
        let Batch { time, limits, commands } = batch;
        let Applied { machine, trail, .. } = applied;
        let mut lines = self.audit.entry(*trail, index, time.stamp.max(machine.now()), Some(time.wall), machine);

        // The due work comes first, in the lines as in the table.
        lines.start(machine);
        machine.begin_batch(time, limits, events);
        lines.due(events);

        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            unapplied::begin_command(command.kind());
            assert!(!panics_at(index), "a test asked for a panic at entry {index}");
            let act = AuditAct::from_command(machine, &command, &lines);
            let before = events.len();
            let is_repeatable = matches!(command, Command::Session { request: Some(_), .. });
            let reply = machine.step(command, events);
            lines.command(act, &reply, machine, &events[before..]);
            replies.push((reply, is_repeatable));
        }

        *trail = lines.trail();
        (replies, lines)
    }

    /// Applies an entry that has no commands.
    pub(crate) fn pass(&self, entry: EntryId, membership: Option<AppliedMembership>) {
        let mut written = None;
        let mut applied = self.write();
        ensure_next(&applied, entry);
        applied.last_entry = Some(entry);

        if let Some(membership) = membership {
            applied.ids_used.extend(membership.nodes.keys());
            let Applied { machine, trail, membership: before, .. } = &mut *applied;
            let mut lines = self.audit.entry(*trail, entry.index, machine.now(), None, machine);
            lines.membership(machine, before, &membership);
            *trail = lines.trail();
            written = Some(lines);
            applied.membership = membership;
            self.note_removed(&applied);
        }

        self.publish(&applied, 0);
        self.note_notified(applied.index(), false);
        drop(applied);
        if let Some(lines) = written {
            self.audit.write(lines);
        }
    }

    /// Replaces the state by a snapshot, and returns the old state: dropping it takes time in proportion to its size, which must not be
    /// spent under the lock.
    #[must_use = "drop it where no caller waits"]
    pub fn restore(&self, restored: Applied) -> Applied {
        let mut applied = self.write();
        let before = std::mem::replace(&mut *applied, restored);
        self.note_removed(&applied);
        self.publish(&applied, 0);
        self.history.forget(applied.index());
        self.note_notified(applied.index(), true);
        self.notify_of_entries(EntriesWritten::all(&applied.machine));
        before
    }

    /// Whether a node is a former member, as far as this node has applied its log. Does not wait for an apply, because calls of peers use
    /// it.
    pub fn has_removed(&self, node_id: u64) -> bool {
        self.removed.read().unwrap_or_else(PoisonError::into_inner).contains(&node_id)
    }

    fn note_removed(&self, applied: &Applied) {
        *self.removed.write().unwrap_or_else(PoisonError::into_inner) = applied.ids_removed();
    }

    /// The machine as it is right after this entry, once that is applied. Returns `None` if later entries are applied already. The receiver
    /// fails if a snapshot leads past the entry, or a later call takes the place of this one. Waits while an entry is applied, as
    /// [`Table::read`].
    pub fn machine_at(&self, index: u64) -> Option<oneshot::Receiver<Machine>> {
        // No entry is applied during this read.
        self.read(|applied| {
            if applied.index() > index {
                return None;
            }
            let machine = self.checkpoint.wait_for(index);
            self.checkpoint.applied(applied.index(), &applied.machine);
            Some(machine)
        })
    }

    /// How long a thread of its own would have applied the last entry, by the inspector of a simulation: see [`Inspect::lasted`].
    pub fn lasted(&self, in_place: bool) -> Duration {
        self.inspector.as_ref().map_or(Duration::ZERO, |inspector| inspector.lasted(in_place))
    }

    /// The state for a snapshot: a cheap clone.
    pub fn freeze(&self) -> Applied {
        self.read(Applied::clone)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Applied> {
        self.applied.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the table after an entry or a snapshot. `units` is the work of the entry.
    fn publish(&self, applied: &Applied, units: usize) {
        let term = applied.last_entry.map_or(0, |entry| entry.term);
        self.term.send_if_modified(|known| std::mem::replace(known, term) != term);

        if let Some(inspector) = &self.inspector {
            inspector.look(applied, units);
        }

        self.checkpoint.applied(applied.index(), &applied.machine);
        self.versions.note_applied(applied.machine.version());

        // The time before the index: a reader that sees the index of an entry sees at least the time of that entry.
        self.now.store(applied.machine.now().0, Ordering::Release);
        self.index.store(applied.index(), Ordering::Release);
        *lock(&self.summary) = TableSummary::new(applied);

        // Send it only if it changed: each send wakes the ticker, which would read the clock once more for each entry.
        let deadline = applied.machine.next_deadline();
        self.deadline.send_if_modified(|known| std::mem::replace(known, deadline) != deadline);
    }

    fn deliver(&self, reply: Reply, is_repeatable: bool) -> Delivery {
        let wait = if let Reply::Queued(ticket) = reply { self.calls.begin(ticket, is_repeatable) } else { None };
        Delivery { reply, wait, times: None }
    }

    fn notify_all(&self, index: u64, wall: WallTime, events: Vec<Event>) {
        let mut changes = Vec::new();
        for event in events {
            self.count(&event, wall);
            match event {
                Event::WaitEnded { ticket, end } => self.calls.end(ticket, &end),
                Event::SessionEnded { session, end } => self.notify(Notice { session, what: SessionLoss::Ended(end) }),
                Event::Revoked { session, revocation } => {
                    self.notify(Notice { session, what: SessionLoss::Revoked(revocation) });
                }
                Event::Changed(change) => changes.push(change),
            }
        }

        if !changes.is_empty() {
            let changes = Arc::new(EntryChanges { index, changes });
            // Kept first: a watcher that is woken finds them.
            self.history.push(Arc::clone(&changes));
            let events = || changes.changes.iter().map(|change| (change.name.as_str().as_bytes(), index));
            if !self.watches_of_locks.take(events, index) {
                // An error means that there is no dispatcher.
                let _ = self.changes.send(changes);
            }
        }
        self.note_notified(index, false);
    }

    /// The time of the entry is `wall`.
    fn count(&self, event: &Event, wall: WallTime) {
        let what = match event {
            Event::WaitEnded { .. } => Did::WaitEnded,
            Event::SessionEnded { end: SessionEnd::Closed, .. } => Did::SessionClosed,
            Event::SessionEnded { end: SessionEnd::Expired | SessionEnd::Unknown, .. } => Did::SessionExpired,
            Event::Revoked { .. } => return,
            Event::Changed(change) => match &change.kind {
                ChangeKind::Granted { .. } => Did::Granted,
                ChangeKind::Released { since, .. } => self.count_hold(HoldEnd::Released, *since, wall),
                ChangeKind::Lost { reason: None, since, .. } => self.count_hold(HoldEnd::Expired, *since, wall),
                ChangeKind::Lost { reason: Some(_), since, .. } => self.count_hold(HoldEnd::Forced, *since, wall),
                ChangeKind::Queued { .. } => Did::Queued,
                // The end of the wait says it.
                ChangeKind::Left { .. }
                | ChangeKind::Revoked { .. }
                | ChangeKind::Data(_)
                | ChangeKind::Delayed
                | ChangeKind::Opened
                | ChangeKind::Resized(_) => return,
            },
        };

        self.metrics.did(what);
    }

    /// Both times are of the log, so every node counts the same. They are of the wall clocks of one leader or of two: only for people.
    fn count_hold(&self, end: HoldEnd, since: WallTime, until: WallTime) -> Did {
        self.metrics.held(end, Duration::from_millis(until.0.saturating_sub(since.0)));
        match end {
            HoldEnd::Released => Did::Released,
            HoldEnd::Expired => Did::Expired,
            HoldEnd::Forced => Did::Forced,
        }
    }

    fn notify_of_entries(&self, written: EntriesWritten) {
        if let Some(history) = written.history {
            self.tell_watches(history, written.before);
        }
        // Store the revision after the events, so that a reader of this revision finds them.
        self.revision.store(written.revision.0, Ordering::Release);
    }

    /// The last event of the history before it changed was `before`, or `None` if this is another history.
    fn tell_watches(&self, history: EntryHistory, before: Option<Revision>) {
        let last = history.place().1.map_or(0, |last| last.0);
        let before = before.filter(|before| *before >= history.compacted());

        // Kept first: a watcher that is woken finds them.
        self.history_of_entries.send_if_modified(|known| {
            *known = history.clone();
            false
        });
        let is_told = before.is_some_and(|before| {
            let events = || history.after(before, None).into_iter().flatten();
            self.watches_of_entries.take(|| events().map(|event| (event.key.as_bytes(), event.revision.0)), last)
        });
        if !is_told {
            self.watches_of_entries.leave(last);
            self.history_of_entries.send_modify(|_| {});
        }
    }

    fn notify(&self, notice: Notice) {
        let mut listeners = lock(&self.listeners);
        let ended = matches!(notice.what, SessionLoss::Ended(_));
        if let Some(of_session) = listeners.get_mut(&notice.session) {
            // A listener that does not keep up is dropped: its stream ends, and its client reads the state again.
            of_session.retain(|listener| listener.send(notice.clone()));
            if ended || of_session.is_empty() {
                listeners.remove(&notice.session);
            }
        }
    }
}

/// How far a table has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableProgress {
    /// The index of the last entry that was notified.
    pub index: u64,
    /// The number of snapshots that replaced entries up to there. Sessions that ended by a snapshot are not reported.
    pub restored: u64,
}

/// The news for watchers of entries after a log entry.
struct EntriesWritten {
    /// `None` if it did not change.
    history: Option<EntryHistory>,
    /// The last event before, or `None` if the history is another one.
    before: Option<Revision>,
    revision: Revision,
}

impl EntriesWritten {
    fn all(machine: &Machine) -> Self {
        Self { history: Some(machine.history().clone()), before: None, revision: machine.revision() }
    }

    /// The [place](EntryHistory::place) before the log entry was `before`.
    fn since(before: (Revision, Option<Revision>), machine: &Machine) -> Self {
        let is_other = machine.history().place() != before;
        let history = is_other.then(|| machine.history().clone());
        Self { history, before: Some(before.1.unwrap_or_default()), revision: machine.revision() }
    }
}

/// Commands that were proposed together.
#[derive(Debug)]
pub struct Batch {
    /// When the leader proposed them.
    pub time: Time,
    /// The limits of their work.
    pub limits: Limits,
    /// The commands, in their order.
    pub commands: Vec<Command>,
}

/// Each entry is applied once, after those before it: otherwise this table would differ from those of the other nodes.
fn ensure_next(applied: &Applied, entry: EntryId) {
    // The first entry of a log has the index 0.
    let is_next = applied.last_entry.is_none_or(|last| entry.index > last.index);
    assert!(is_next, "entries are applied in order, each once: {entry} comes after entry {}", applied.index());
}

/// Code panics under one of these locks only on broken state, which ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
