//! This node's copy of the table, as ZooKeeper's clients at this node see it: one state after the other, and the steps between.
//!
//! A client's read must show what the client was told of, and an event must come before the read that shows its change. So reads do not
//! look at the table, which may be ahead of what was told: they look at the state that was published last ([`NodeCopy::state`]), and the
//! step to a state follows its publication. A state is a clone of the machine, which costs some reference counts, and what is applied
//! while there is one copies each part of the table that it changes. So a node to which no client is connected, and for which nobody waits,
//! publishes a state at each look alone.
//!
//! **A state follows the log.** An entry whose session is over stays visible until the log has ended it, because there is no event for its
//! end before ([`lockkeeper_machine::Machine::stored_entry`]).
//!
//! **Sessions.** Those of the connections of this node are looked at every [`LOOK`], and at once when entries of theirs are deleted:
//! whether they are over, with all their entries gone, and whether another connection has attached them.
//!
//! **A snapshot** that this node installs leaves the ends of sessions between untold, and so the feed ends with it; its clients come back.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};

use lockkeeper_machine::{Entry, EntryEvent, Key, KeyRange, Machine, Revision, RevisionError, SessionId, Stamp};
use lockkeeper_table::Table;
use lockkeeper_zookeeper::{
    AppliedFeed, AppliedStep, AppliedZnodes, ChildCounts, NumberedSession, ZookeeperChange, ZookeeperChangeKind,
    ZookeeperEntry,
};

use super::{
    leases::SessionLeases,
    names::{self, NODES},
};

/// Time between two looks at all sessions of this node's connections.
const LOOK: Duration = Duration::from_millis(100);
/// Steps that wait for their reader. One that is further behind begins anew.
const STEPS_KEPT: usize = 4096;

/// A state of the table.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyState {
    machine: Machine,
    /// The last entry of the log that is applied in it.
    index: u64,
    /// How often a snapshot took the place of entries.
    restored: u64,
    /// See [`Machine::first_uncleared`]; once somebody has asked.
    first_uncleared: OnceLock<Option<Stamp>>,
}

/// The states, one after the other.
#[derive(Clone, Debug)]
pub(super) struct NodeCopy {
    table: Arc<Table>,
    leases: SessionLeases,
    state: Arc<watch::Sender<Arc<CopyState>>>,
    /// The end of the feed, while there is one. Its lock is held while a state is published and its step sent.
    feed: Arc<Mutex<Option<mpsc::Sender<AppliedStep>>>>,
    /// Notified when a task begins to wait for a state while no client is connected.
    is_awaited: Arc<Notify>,
}

impl NodeCopy {
    /// The copy of a table. It stands still until [`Self::follow`] runs.
    pub(super) fn new(table: Arc<Table>, leases: SessionLeases) -> Self {
        let state = CopyState::new(&table);
        Self {
            table,
            leases,
            state: Arc::new(watch::Sender::new(Arc::new(state))),
            feed: Arc::default(),
            is_awaited: Arc::default(),
        }
    }

    /// The state that was published last.
    pub(super) fn state(&self) -> Arc<CopyState> {
        Arc::clone(&self.state.borrow())
    }

    /// Waits until a state is published for which this holds. Returns `None` if there was none by the deadline.
    pub(super) async fn wait_for(
        &self,
        deadline: Instant,
        is_there: impl Fn(&CopyState) -> bool,
    ) -> Option<Arc<CopyState>> {
        let mut states = self.state.subscribe();
        if self.leases.is_empty() {
            // Without this, the next state would be published only at the next look.
            self.is_awaited.notify_one();
        }
        let found = timeout_at(deadline, states.wait_for(|state| is_there(state))).await;
        found.ok()?.ok().map(|state| Arc::clone(&state))
    }

    /// Begins a feed in place of the one before.
    pub(super) fn feed(&self) -> AppliedFeed {
        let (sender, steps) = mpsc::channel(STEPS_KEPT);
        // No state is published while this is locked: the feed begins with the step after the state that it names.
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        *feed = Some(sender);
        AppliedFeed { after: self.state().revision(), steps }
    }

    /// Publishes states as the table goes on. Does not return.
    pub(super) async fn follow(self) {
        let mut progress = self.table.progress();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);

        loop {
            let is_due = tokio::select! {
                changed = progress.changed() => {
                    if changed.is_err() {
                        // The node ends.
                        return std::future::pending().await;
                    }
                    if !self.is_followed() {
                        continue;
                    }
                    false
                }
                () = self.is_awaited.notified() => false,
                _ = look.tick() => true,
            };
            progress.borrow_and_update();
            self.publish(is_due);
        }
    }

    /// Whether a client is connected, or somebody waits for a state.
    fn is_followed(&self) -> bool {
        self.state.receiver_count() > 0 || !self.leases.is_empty()
    }

    /// Publishes the present state, and sends the step to it. With `looks_at_all`, all sessions are looked at.
    fn publish(&self, looks_at_all: bool) {
        let before = self.state();
        let next = Arc::new(CopyState::new(&self.table));
        // Locked before the state is replaced: see `feed`.
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.send_replace(Arc::clone(&next));

        let is_gap = before.restored != next.restored;
        let Some(steps) = feed.as_ref().filter(|_| !is_gap) else {
            *feed = None;
            return;
        };
        let sent = next.step_after(&before, &self.leases, looks_at_all).map(|step| match step {
            Some(step) => steps.try_send(step).is_ok(),
            None => true,
        });
        // The history does not reach back, or the reader does not keep up: it begins anew.
        if sent != Ok(true) {
            *feed = None;
        }
    }
}

impl CopyState {
    fn new(table: &Table) -> Self {
        let restored = table.progress().borrow().restored;
        table.read(|applied| Self {
            machine: applied.machine.clone(),
            index: applied.index(),
            restored,
            first_uncleared: OnceLock::new(),
        })
    }

    /// The last entry of the log that is applied in it.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Whether a session lives.
    pub(super) fn has_session(&self, session: SessionId) -> bool {
        self.machine.attached(session).is_some()
    }

    /// The cluster time of this state.
    pub(super) fn now(&self) -> Stamp {
        self.machine.now()
    }

    /// Whether every session of this protocol that was over by this time is cleared away, so that none of its entries is visible.
    pub(super) fn has_cleared(&self, by: Stamp) -> bool {
        let first = self.first_uncleared.get_or_init(|| {
            let is_asked = |session| names::session_number(session).is_some();
            self.machine.first_uncleared(is_asked)
        });
        first.is_none_or(|first| first > by)
    }

    /// The number of the session's last attachment, if it lives.
    pub(super) fn attached(&self, session: SessionId) -> Option<u64> {
        self.machine.attached(session)
    }

    /// Whether a session has an owner.
    pub(super) fn has_owner(&self, session: SessionId) -> bool {
        self.machine.owner(session).flatten().is_some()
    }

    /// Whether a session is over and all its entries are deleted.
    pub(super) fn is_cleared(&self, session: SessionId) -> bool {
        !self.machine.has_session(session)
    }

    /// The changes since the previous state. `None` if no client needs them. Fails if the history does not reach back that far.
    fn step_after(
        &self,
        before: &Self,
        leases: &SessionLeases,
        looks_at_all: bool,
    ) -> Result<Option<AppliedStep>, RevisionError> {
        let mut changes = Vec::new();
        let mut touched = BTreeSet::new();
        for event in self.machine.history().after(before.machine.revision(), None)? {
            if !names::is_node(&event.key) {
                continue;
            }
            let ended = event.before.as_ref().filter(|_| event.after.is_none()).and_then(|entry| entry.lease);
            touched.extend(ended.map(|lease| lease.session));
            changes.push(self.change(event));
        }

        let looked_at = if looks_at_all { leases.all() } else { leases.known_of(&touched) };
        let mut over = Vec::new();
        let mut attached = Vec::new();
        for NumberedSession { session, number } in looked_at {
            let id = names::session_id(session);
            match self.machine.attached(id) {
                Some(last) if last > number => attached.push(NumberedSession { session, number: last }),
                Some(_) => {}
                None if self.is_cleared(id) => over.push(session),
                None => {}
            }
        }
        leases.note_over(&over);
        leases.forget_before(&attached);

        let revision = self.machine.revision().0;
        let is_worth_telling = revision > before.machine.revision().0 || !over.is_empty() || !attached.is_empty();
        Ok(is_worth_telling.then_some(AppliedStep { revision, changes, over, attached }))
    }

    fn change(&self, event: &EntryEvent) -> ZookeeperChange {
        let value = |entry: &Option<Arc<Entry>>| entry.as_ref().map(|entry| entry.value.shared());
        let is_new = |after: &Arc<Entry>| after.created == event.revision;
        let kind = match (&event.before, &event.after) {
            (_, None) => ZookeeperChangeKind::Deleted,
            (before, Some(after)) if is_new(after) => ZookeeperChangeKind::Created { is_again: before.is_some() },
            (_, Some(_)) => ZookeeperChangeKind::Changed,
        };

        // A new value concerns nobody who watches the children of the parent.
        let parent = if kind == ZookeeperChangeKind::Changed { None } else { self.parent_value(event) };
        ZookeeperChange {
            revision: event.revision.0,
            key: event.key.as_bytes().to_vec(),
            kind,
            before: value(&event.before),
            after: value(&event.after),
            parent,
        }
    }

    /// The value that the parent of an entry had right after the event, or right before if both were deleted by one transaction. The
    /// state may be further on, and the parent's access list another one.
    fn parent_value(&self, event: &EntryEvent) -> Option<Arc<[u8]>> {
        let key = Key::from_log(&names::parent_key(event.key.as_bytes())?).ok()?;
        let before = Revision(event.revision.0.saturating_sub(1));
        let at = |revision: Revision| self.machine.entry_at(&key, revision).ok().flatten();
        at(event.revision).or_else(|| at(before)).map(|parent| parent.value.shared())
    }

    fn entries(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = (&Key, &Arc<Entry>)> {
        let key = |bytes| Key::from_log(bytes).ok();
        let range = KeyRange { from: key(from), to: key(to) };
        // Keys of others are not shown, whatever the range is.
        self.machine.stored_entries(&range).filter(|(key, _)| names::is_node(key))
    }
}

impl AppliedZnodes for CopyState {
    fn revision(&self) -> u64 {
        self.machine.revision().0
    }

    fn get(&self, key: &[u8]) -> Option<ZookeeperEntry> {
        let key = Key::from_log(key).ok().filter(names::is_node)?;
        self.machine.stored_entry(&key).map(|entry| stored(entry))
    }

    fn range(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8], &ZookeeperEntry) -> bool) {
        for (key, entry) in self.entries(from, to) {
            if !show(key.as_bytes(), &stored(entry)) {
                return;
            }
        }
    }

    fn keys(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8]) -> bool) {
        for (key, _) in self.entries(from, to) {
            if !show(key.as_bytes()) {
                return;
            }
        }
    }

    fn owned_by(&self, session: u64) -> Vec<Vec<u8>> {
        let nodes = KeyRange { from: Key::from_log(NODES).ok(), to: None };
        let keys = self.machine.stored_leased_by(names::session_id(session), &nodes);
        keys.filter(|key| names::is_node(key)).map(|key| key.as_bytes().to_vec()).collect()
    }
}

/// An entry, in the words of the protocol's crate.
pub(super) fn stored(entry: &Entry) -> ZookeeperEntry {
    let children = entry.children().unwrap_or_default();
    ZookeeperEntry {
        created: entry.created.0,
        modified: entry.modified.0,
        owner: entry.lease.and_then(|lease| names::session_number(lease.session)),
        children: ChildCounts { made: children.made, live: children.live, changed: children.changed.0 },
        value: entry.value.shared(),
    }
}

/// A revision that the machine has reached.
pub(super) fn has_reached(state: &CopyState, revision: Revision) -> bool {
    state.revision() >= revision.0
}

#[cfg(test)]
mod tests {
    use lockkeeper_machine::{Command, Put, PutChild, PutLease, Reply, Time, Txn, TxnOperation, Value, WallTime};

    use super::*;

    fn key(key: &str) -> Key {
        Key::new(key.as_bytes()).expect("a key")
    }

    fn put(name: &str, value: &str) -> Put {
        let value = Value::new(value.as_bytes()).expect("a value");
        Put { key: key(name), value, lease: PutLease::None, claims: None }
    }

    fn child(parent: &str, name: &str, value: &str) -> TxnOperation {
        TxnOperation::PutChild(PutChild { parent: key(parent), put: put(name, value), is_numbered: false })
    }

    fn commit(machine: &mut Machine, operations: Vec<TxnOperation>) {
        let txn = Txn::new(Vec::new(), operations, Vec::new()).expect("a transaction");
        let time = Time { stamp: Stamp(0), wall: WallTime(0) };
        let reply = machine.apply(time, Command::Txn(txn), &mut Vec::new());
        assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
    }

    /// Access lists are in the values, and a step may be told when the state is further on.
    #[test]
    fn a_change_has_the_values_of_its_node_and_of_the_parent_as_they_were_then() {
        let before = CopyState::default();
        let mut machine = Machine::default();
        commit(&mut machine, vec![TxnOperation::Put(put("zookeeper", "root"))]);
        commit(&mut machine, vec![child("zookeeper", "zookeeper\0a", "a1")]);
        commit(&mut machine, vec![child("zookeeper\0a", "zookeeper/a\0b", "b")]);
        commit(&mut machine, vec![TxnOperation::Put(put("zookeeper\0a", "a2"))]);
        let deletes = ["zookeeper/a\0b", "zookeeper\0a"].map(|name| TxnOperation::Delete(key(name)));
        commit(&mut machine, deletes.to_vec());

        let state = CopyState { machine, ..CopyState::default() };
        let (leases, _due) = SessionLeases::new();
        let step = state.step_after(&before, &leases, false).expect("it reaches back").expect("a step");
        let text = |value: &Option<Arc<[u8]>>| value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
        let shown: Vec<_> = step
            .changes
            .iter()
            .map(|change| [text(&change.before), text(&change.after), text(&change.parent)])
            .collect();
        let expected = [
            [None, Some("root"), None],
            [None, Some("a1"), Some("root")],
            [None, Some("b"), Some("a1")],
            [Some("a1"), Some("a2"), None],
            [Some("a2"), None, Some("root")],
            [Some("b"), None, Some("a2")],
        ];
        assert_eq!(shown, expected.map(|values| values.map(|value| value.map(str::to_owned))));
    }
}
