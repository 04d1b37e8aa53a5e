//! The feed of applied changes becomes events of connections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use lockkeeper_planted::Planted;
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
};

use super::{
    EventOutbox, WatchClass, WatchLimits, WatchTable, WatcherId,
    above::{PathAbove, PathHasher},
};
use crate::{
    AppliedStep, NumberedSession, ZookeeperCaller, ZookeeperChange, ZookeeperChangeKind,
    tree::{ClientIdentities, ZnodePath, ZnodeValue},
    wire::permissions,
};

/// Types of events, as clients know them.
const CREATED: i32 = 1;
const DELETED: i32 = 2;
const DATA_CHANGED: i32 = 3;
const CHILDREN_CHANGED: i32 = 4;

/// The watches that hear of a node itself.
const OF_NODE: &[WatchClass] = &[WatchClass::Data, WatchClass::Persistent, WatchClass::Recursive];
/// The watches that hear of the end of a node.
const OF_END: &[WatchClass] = &[WatchClass::Data, WatchClass::Children, WatchClass::Persistent, WatchClass::Recursive];
/// The watches that hear of a node's children.
const OF_CHILDREN: &[WatchClass] = &[WatchClass::Children, WatchClass::Persistent];

/// The feed has ended, and the connection must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HubEnded;

#[derive(Debug)]
struct RegisteredConnection {
    attached: NumberedSession,
    outbox: Arc<EventOutbox>,
    client: Arc<WatchingClient>,
}

/// Who watches.
#[derive(Clone, Debug)]
pub(crate) struct WatchingClient {
    /// Who the client is for access lists.
    pub(crate) identities: Arc<ClientIdentities>,
    /// Who the client is for the policy of the store.
    pub(crate) caller: ZookeeperCaller,
}

/// Whether the policy lets a caller read the entry of a key: see [`may_read`](crate::ZookeeperStore::may_read).
type ReadPolicy<'a> = &'a dyn Fn(&ZookeeperCaller, &[u8]) -> bool;

#[derive(Debug)]
struct HubState {
    /// Whether there is a feed.
    is_live: bool,
    watches: WatchTable,
    connections: HashMap<WatcherId, RegisteredConnection>,
    /// The connection of each session.
    sessions: HashMap<u64, WatcherId>,
    /// Who waits until a revision is told.
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    last_waiting: u64,
}

/// What all connections of a node share about watches.
#[derive(Debug)]
pub(crate) struct WatchHub {
    state: Mutex<HubState>,
    /// Everything up to this revision is in the outboxes.
    told: AtomicU64,
    /// Changes up to this revision have fired watches, or are about to.
    fired: AtomicU64,
    hasher: PathHasher,
    last_connection: AtomicU64,
    became_live: Notify,
    /// A connection has ended and left watches.
    has_leaving: Notify,
    /// Some of the watches that were left are gone.
    cleared: Notify,
}

#[cfg(test)]
impl WatchingClient {
    /// Somebody who has proven nothing.
    pub(crate) fn stranger(address: std::net::SocketAddr) -> Self {
        let deadline = tokio::time::Instant::now();
        let caller = ZookeeperCaller { identity: None, address, deadline, is_port: false };
        Self { identities: Arc::new(ClientIdentities::new(address.ip(), None)), caller }
    }
}

impl WatchHub {
    /// A hub without a feed.
    pub(crate) fn new(limits: WatchLimits) -> Self {
        let hasher = PathHasher::default();
        let state = HubState {
            is_live: false,
            watches: WatchTable::new(limits, hasher.clone()),
            connections: HashMap::new(),
            sessions: HashMap::new(),
            waiting: BTreeMap::new(),
            last_waiting: 0,
        };

        Self {
            state: Mutex::new(state),
            told: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            hasher,
            last_connection: AtomicU64::new(0),
            became_live: Notify::new(),
            has_leaving: Notify::new(),
            cleared: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a feed after this revision.
    pub(crate) fn begin(&self, after: u64) {
        let mut state = self.state();
        state.is_live = true;
        self.told.store(after, Relaxed);
        self.fired.store(after, Relaxed);
        drop(state);
        self.became_live.notify_waiters();
    }

    /// The feed has ended: changes between it and the next one are unknown, so all connections end.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_live = false;
        state.waiting.clear();
        for connection in state.connections.values() {
            connection.outbox.kill.cancel();
        }
    }

    /// Waits until there is a feed.
    pub(crate) async fn live(&self) {
        loop {
            let became_live = self.became_live.notified();
            if self.state().is_live {
                return;
            }
            became_live.await;
        }
    }

    /// Everything up to this revision is in the outboxes.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// The revision that an answer about watches shows: those that are gone may have fired by changes up to it, whose events come before
    /// the answer.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    /// Waits until everything up to a revision is in the outboxes.
    pub(crate) async fn told_until(&self, revision: u64) -> Result<(), HubEnded> {
        let told = {
            let mut state = self.state();
            if !state.is_live {
                return Err(HubEnded);
            }
            if self.told() >= revision {
                return Ok(());
            }

            // The ticket keeps those apart that wait for the same revision.
            let (tell, told) = oneshot::channel();
            state.last_waiting += 1;
            let ticket = state.last_waiting;
            state.waiting.insert((revision, ticket), tell);
            told
        };
        told.await.map_err(|_| HubEnded)
    }

    /// Adds a connection with its session. The connection of the session at this node that has the lower number ends: mostly the other
    /// one, but the answers to two attaches may come in any order.
    pub(crate) fn register(
        &self,
        attached: NumberedSession,
        outbox: &Arc<EventOutbox>,
        client: WatchingClient,
    ) -> Result<WatcherId, HubEnded> {
        let id = WatcherId(self.last_connection.fetch_add(1, Relaxed) + 1);
        let mut state = self.state();
        if !state.is_live {
            return Err(HubEnded);
        }

        state.lose_session(attached);
        let last = state.sessions.get(&attached.session).and_then(|last| state.connections.get(last));
        if last.is_some_and(|last| last.attached.number > attached.number) {
            outbox.kill.cancel();
        } else {
            state.sessions.insert(attached.session, id);
        }
        state.watches.register(id, outbox.address.ip());
        let client = Arc::new(client);
        state.connections.insert(id, RegisteredConnection { attached, outbox: Arc::clone(outbox), client });
        Ok(id)
    }

    /// The client of a connection has proven a further identity. Changes that are told from now on are told for all of them.
    pub(crate) fn set_client(&self, id: WatcherId, client: WatchingClient) {
        if let Some(connection) = self.state().connections.get_mut(&id) {
            connection.client = Arc::new(client);
        }
    }

    /// Removes a connection. Watches that are too many to remove at once go by [`Self::clear_leaving`]; they tell nobody anything.
    pub(crate) fn forget(&self, id: WatcherId) {
        let mut state = self.state();
        state.watches.forget(id);
        if state.watches.is_clearing() {
            self.has_leaving.notify_one();
        }
        if let Some(connection) = state.connections.remove(&id)
            && state.sessions.get(&connection.attached.session) == Some(&id)
        {
            state.sessions.remove(&connection.attached.session);
        }
    }

    /// Removes the watches that ended connections have left, one part after the other, so that others have their turns between. Does not
    /// return.
    pub(crate) async fn clear_leaving(&self) {
        loop {
            self.has_leaving.notified().await;
            while self.clear_some() {
                yield_now().await;
            }
        }
    }

    fn clear_some(&self) -> bool {
        let has_more = self.state().watches.forget_more();
        self.cleared.notify_waiters();
        has_more
    }

    /// Waits until watches that an ended connection has left are removed, if there are any.
    pub(crate) async fn cleared(&self) {
        let mut cleared = pin!(self.cleared.notified());
        cleared.as_mut().enable();
        if self.state().watches.is_clearing() {
            cleared.await;
        }
    }

    /// Reads or changes watches while the delivery of changes is stopped. A state of the store that is read inside contains every change
    /// that was delivered before.
    pub(crate) fn with_watches<T>(&self, change: impl FnOnce(&mut WatchTable) -> T) -> T {
        change(&mut self.state().watches)
    }

    /// Sends an event to one connection, outside of the feed: for a change that it has missed. It is taken with the reply of the request
    /// that found this, which shows the same revision or a later one.
    pub(crate) fn tell_missed(outbox: &EventOutbox, revision: u64, kind: MissedChange, path: &ZnodePath) {
        let kind = match kind {
            MissedChange::Created => CREATED,
            MissedChange::Deleted => DELETED,
            MissedChange::Data => DATA_CHANGED,
            MissedChange::Children => CHILDREN_CHANGED,
        };
        // A list has as many paths as its client has put into it: what is too much is too much for this connection.
        if outbox.push(revision, kind, &path.shared()).is_err() {
            outbox.cut_off();
        }
    }

    /// Ends the connections of sessions for which `vouches` says no.
    pub(crate) fn end_unvouched(&self, vouches: impl Fn(NumberedSession) -> bool) {
        for connection in self.state().connections.values() {
            if !vouches(connection.attached) {
                connection.outbox.kill.cancel();
            }
        }
    }

    /// The sessions that have a connection here.
    pub(crate) fn sessions(&self) -> Vec<NumberedSession> {
        let state = self.state();
        let mut sessions: Vec<_> = state.connections.values().map(|connection| connection.attached).collect();
        sessions.sort_unstable();
        sessions
    }

    /// The connections of this node, with their sessions.
    pub(crate) fn connections(&self) -> Vec<(NumberedSession, Arc<EventOutbox>)> {
        let state = self.state();
        state.connections.values().map(|known| (known.attached, Arc::clone(&known.outbox))).collect()
    }

    /// Makes events of a step of the feed, for those whom the policy lets read the nodes. Called for one step after the other.
    ///
    /// The lock is held for each change on its own, while its watches fire. The policy is asked without it, for each client and event.
    pub(crate) fn tell(&self, step: &AppliedStep, policy: ReadPolicy<'_>) {
        let has_recursive = {
            let state = self.state();
            self.fired.fetch_max(step.revision, Relaxed);
            // A watch that is set from now on is for changes after this step.
            state.watches.has_recursive()
        };

        let mut reached = BTreeSet::new();
        for change in &step.changes {
            // Other entries below the prefix are no nodes.
            let Some(path) = ZnodePath::from_key(&change.key) else { continue };
            let above = if has_recursive { self.hasher.above(&path) } else { Vec::new() };
            let fired = self.state().fire_change(change, &path, &above);
            for event in fired {
                reached.extend(self.tell_event(event, policy));
            }
        }

        self.finish_step(step, &reached);
    }

    /// Everything of a step is in the outboxes: wakes who waits for it.
    fn finish_step(&self, step: &AppliedStep, reached: &BTreeSet<WatcherId>) {
        let mut state = self.state();
        for attached in &step.attached {
            state.lose_session(*attached);
        }

        // A connection takes events up to this revision alone. One that was woken before would find none, and sleep until its client
        // asks for something; one that ends before would leave its last events behind.
        self.told.fetch_max(step.revision, Relaxed);
        for connection in reached.iter().filter_map(|id| state.connections.get(id)) {
            connection.outbox.wake();
        }
        for session in &step.over {
            if let Some(connection) = state.sessions.get(session).and_then(|id| state.connections.get(id)) {
                connection.outbox.end();
            }
        }

        let later = state.waiting.split_off(&(step.revision + 1, 0));
        let due = std::mem::replace(&mut state.waiting, later);
        drop(state);
        for tell in due.into_values() {
            // A connection that has ended meanwhile waits no longer.
            let _ = tell.send(());
        }
    }

    /// Sends an event to the connections whose watches have fired: one for each, however many of its watches did. As with ZooKeeper since
    /// 3.8.4 and 3.9.2 (CVE-2024-23944), a client that may not read the node is told nothing, and its watch of one shot is gone all the
    /// same. Returns the connections that have it.
    fn tell_event(&self, event: FiredEvent, policy: ReadPolicy<'_>) -> Vec<WatcherId> {
        let FiredEvent { kind, path, revision, value, watchers } = event;
        let acl = value.map(|value| ZnodeValue::decode(&value).acl).unwrap_or_default();
        let key = path.key();
        let text = path.shared();

        let mut reached = Vec::new();
        for FiredWatcher { id, outbox, client } in watchers {
            let may_read = client.identities.is_allowed(&acl, permissions::READ) && policy(&client.caller, &key);
            if may_read || Planted::WatchTellsAll.is_on() {
                self.push_event(&outbox, revision, kind, &text);
                reached.push(id);
            }
        }
        reached
    }

    /// Puts an event into an outbox. If the events of all clients take the room that there is, the connection from its address ends whose
    /// events take the most: its client does not read, and this one may.
    fn push_event(&self, outbox: &Arc<EventOutbox>, revision: u64, kind: i32, path: &Arc<str>) {
        while outbox.push(revision, kind, path).is_err() {
            let largest = self.largest_outbox(outbox);
            largest.cut_off();
            tracing::debug!(client = %largest.address, "a connection is closed: of the unread events its own are the most");
        }
    }

    /// The outbox of the same address whose events take the most room: this one if none takes more.
    fn largest_outbox(&self, outbox: &Arc<EventOutbox>) -> Arc<EventOutbox> {
        let origin = outbox.origin();
        let others: Vec<_> = {
            let state = self.state();
            let all = state.connections.values().map(|connection| &connection.outbox);
            all.filter(|other| other.origin() == origin).cloned().collect()
        };

        let mut largest = Arc::clone(outbox);
        let mut most = outbox.bytes();
        for other in others {
            let bytes = other.bytes();
            if bytes > most {
                most = bytes;
                largest = other;
            }
        }
        largest
    }
}

/// A change that a client has missed while it had no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedChange {
    Created,
    Deleted,
    Data,
    Children,
}

impl HubState {
    /// Ends the connection of a session that another connection has now.
    fn lose_session(&mut self, attached: NumberedSession) {
        let Some(id) = self.sessions.get(&attached.session) else { return };
        if let Some(connection) = self.connections.get(id)
            && connection.attached.number < attached.number
        {
            connection.outbox.kill.cancel();
        }
    }

    /// Fires the watches of a change. Returns its events in their order, those without a watcher left out.
    fn fire_change(&mut self, change: &ZookeeperChange, path: &ZnodePath, above: &[PathAbove<'_>]) -> Vec<FiredEvent> {
        let ZookeeperChange { revision, before, after, .. } = change;
        let mut events = Vec::new();
        let mut fire = |classes: &[WatchClass], kind: i32, path: &ZnodePath, value: Option<&Arc<[u8]>>| {
            let fired = self.watches.fire(classes, path, above, *revision);
            let watchers = self.fired_watchers(&fired);
            if !watchers.is_empty() {
                events.push(FiredEvent {
                    kind,
                    path: path.clone(),
                    revision: *revision,
                    value: value.cloned(),
                    watchers,
                });
            }
        };

        // The end of a node is for those who could read it by its last access list.
        match change.kind {
            ZookeeperChangeKind::Created { is_again } => {
                if is_again {
                    fire(OF_END, DELETED, path, before.as_ref());
                }
                fire(OF_NODE, CREATED, path, after.as_ref());
            }
            ZookeeperChangeKind::Deleted => fire(OF_END, DELETED, path, before.as_ref()),
            ZookeeperChangeKind::Changed => {
                // A new access list causes no event.
                if after.as_deref().is_none_or(ZnodeValue::is_data_written) {
                    fire(OF_NODE, DATA_CHANGED, path, after.as_ref());
                }
                return events;
            }
        }

        // A node's own watches hear before those of its parent, as with ZooKeeper. Recursive watches do not hear of children.
        if let Some(parent) = path.parent() {
            fire(OF_CHILDREN, CHILDREN_CHANGED, &parent, change.parent.as_ref());
        }
        events
    }

    fn fired_watchers(&self, fired: &BTreeSet<WatcherId>) -> Vec<FiredWatcher> {
        let known = fired.iter().filter_map(|id| Some((*id, self.connections.get(id)?)));
        let watcher = |(id, connection): (WatcherId, &RegisteredConnection)| FiredWatcher {
            id,
            outbox: Arc::clone(&connection.outbox),
            client: Arc::clone(&connection.client),
        };
        known.map(watcher).collect()
    }
}

/// An event whose watches have fired.
struct FiredEvent {
    kind: i32,
    path: ZnodePath,
    revision: u64,
    /// The value of the node, with its access list. Without one there is no list.
    value: Option<Arc<[u8]>>,
    watchers: Vec<FiredWatcher>,
}

/// A connection whose watch has fired, as its client was known then.
struct FiredWatcher {
    id: WatcherId,
    outbox: Arc<EventOutbox>,
    client: Arc<WatchingClient>,
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicBool,
        task::{Context, Poll, Wake, Waker},
    };

    use lockkeeper_accept::{ArrivingBytes, FREE_BYTES};

    use super::*;
    use crate::watches::table::REMOVED_AT_ONCE;

    fn hub_with_connection() -> (WatchHub, Arc<EventOutbox>, WatcherId) {
        let hub = WatchHub::new(WatchLimits { per_connection: usize::MAX, bytes: usize::MAX });
        hub.begin(6);
        let address = "127.0.0.1:1".parse().expect("an address");
        let outbox = Arc::new(EventOutbox::new(address, usize::MAX, &ArrivingBytes::new(usize::MAX)));
        let attached = NumberedSession { session: 1, number: 0 };
        let id = hub.register(attached, &outbox, WatchingClient::stranger(address)).expect("a feed");
        (hub, outbox, id)
    }

    fn watch(hub: &WatchHub, id: WatcherId, path: &ZnodePath) {
        hub.with_watches(|watches| watches.add(id, WatchClass::Data, path, 6)).expect("there is room");
    }

    fn step(revision: u64, path: &ZnodePath) -> AppliedStep {
        let kind = ZookeeperChangeKind::Changed;
        let change = ZookeeperChange { revision, key: path.key(), kind, before: None, after: None, parent: None };
        AppliedStep { revision, changes: vec![change], ..AppliedStep::default() }
    }

    /// What is told at the moment at which a connection is woken.
    struct SleepingConnection {
        hub: WatchHub,
        told: Mutex<Vec<u64>>,
    }

    impl Wake for SleepingConnection {
        fn wake(self: Arc<Self>) {
            self.told.lock().expect("no panic").push(self.hub.told());
        }
    }

    #[test]
    fn a_connection_is_woken_when_it_may_take_the_events_that_wake_it() {
        let (hub, outbox, id) = hub_with_connection();
        let path = ZnodePath::parse("/a").expect("a path");
        watch(&hub, id, &path);

        let sleeping = Arc::new(SleepingConnection { hub, told: Mutex::default() });
        let waker = Waker::from(Arc::clone(&sleeping));
        let mut arrived = pin!(outbox.arrived.notified());
        assert_eq!(arrived.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        sleeping.hub.tell(&step(7, &path), &|_, _| true);
        assert_eq!(*sleeping.told.lock().expect("no panic"), [7]);
        assert_eq!(outbox.take_until(7, &mut Vec::new()), 1);
    }

    /// Nothing is told while they are removed.
    #[test]
    fn the_watches_of_an_ended_connection_go_in_parts_and_tell_nobody_anything() {
        let (hub, outbox, id) = hub_with_connection();
        let paths: Vec<_> = (0..3 * REMOVED_AT_ONCE + 1)
            .map(|number| ZnodePath::parse(&format!("/w{number}")).expect("a path"))
            .collect();
        for path in &paths {
            watch(&hub, id, path);
        }

        let left = || hub.with_watches(|watches| watches.counts().0);
        hub.forget(id);
        assert_eq!(left(), 2 * REMOVED_AT_ONCE + 1);
        let mut clearing = pin!(hub.clear_leaving());
        let mut more = pin!(hub.cleared());
        let mut context = Context::from_waker(Waker::noop());
        assert!(more.as_mut().poll(&mut context).is_pending());
        for expected in [REMOVED_AT_ONCE + 1, 1] {
            assert!(clearing.as_mut().poll(&mut context).is_pending());
            assert_eq!(left(), expected);
        }

        assert!(more.as_mut().poll(&mut context).is_ready());
        for (revision, path) in (7..).zip(&paths) {
            hub.tell(&step(revision, path), &|_, _| true);
        }
        assert_eq!(outbox.take_until(u64::MAX, &mut Vec::new()), 0);
        assert!(clearing.as_mut().poll(&mut context).is_pending());
        assert_eq!(left(), 0);
        let mut none = pin!(hub.cleared());
        assert!(none.as_mut().poll(&mut context).is_ready(), "there is nothing to wait for");
    }

    fn connection(
        hub: &WatchHub,
        session: u64,
        address: &str,
        budget: &ArrivingBytes,
    ) -> (Arc<EventOutbox>, WatcherId) {
        let address = format!("{address}:{session}").parse().expect("an address");
        let outbox = Arc::new(EventOutbox::new(address, usize::MAX, budget));
        let attached = NumberedSession { session, number: 0 };
        let id = hub.register(attached, &outbox, WatchingClient::stranger(address)).expect("a feed");
        (outbox, id)
    }

    /// Who reads is told, also if others from the same address do not read.
    #[test]
    fn of_the_unread_events_of_a_node_those_of_the_connection_with_the_most_go() {
        let hub = WatchHub::new(WatchLimits { per_connection: usize::MAX, bytes: usize::MAX });
        hub.begin(6);
        let budget = ArrivingBytes::new(16 * FREE_BYTES);
        let [(idle, idle_id), (slow, slow_id), (reading, reading_id), (far, far_id)] =
            [(1, "10.0.0.1"), (2, "10.0.0.1"), (3, "10.0.0.1"), (4, "10.0.0.2")]
                .map(|(session, address)| connection(&hub, session, address, &budget));
        let path = ZnodePath::parse(&format!("/{}", "x".repeat(1_000))).expect("a path");
        let set = |id: WatcherId, revision: u64| {
            hub.with_watches(|watches| watches.add(id, WatchClass::Data, &path, revision)).expect("there is room");
        };

        // Those that do not read have a persistent watch each, and the others one for each event.
        for id in [idle_id, slow_id] {
            hub.with_watches(|watches| watches.add(id, WatchClass::Persistent, &path, 6)).expect("there is room");
        }
        let mut revision = 6;
        while !idle.kill.is_cancelled() && !slow.kill.is_cancelled() {
            set(reading_id, revision);
            set(far_id, revision);
            revision += 1;
            hub.tell(&step(revision, &path), &|_, _| true);
            assert_eq!(slow.take_until(7, &mut Vec::new()), u64::from(revision == 7), "it reads one event");
            for reader in [&reading, &far] {
                assert_eq!(reader.take_until(revision, &mut Vec::new()), 1);
            }
            assert!(revision < 100, "the events of this node have a bound");
        }
        let are_over = [&idle, &slow, &reading, &far].map(|outbox| outbox.kill.is_cancelled());
        assert_eq!(are_over, [true, false, false, false]);
        assert!(slow.bytes() > FREE_BYTES && idle.bytes() == 0, "what its events took is free");
    }

    /// A read that comes meanwhile would wait for as long as the policy takes for all watchers.
    #[test]
    fn the_policy_is_asked_while_nobody_waits_for_the_hub() {
        let (hub, outbox, id) = hub_with_connection();
        let path = ZnodePath::parse("/a").expect("a path");
        watch(&hub, id, &path);
        let is_asked = AtomicBool::new(false);
        hub.tell(&step(7, &path), &|_, _| {
            is_asked.store(true, Relaxed);
            assert_eq!((hub.told(), hub.fired()), (6, 7), "an answer about watches waits for the event");
            hub.state.try_lock().is_ok()
        });
        assert!(is_asked.load(Relaxed));
        assert_eq!(outbox.take_until(7, &mut Vec::new()), 1, "the lock was free");
    }
}
