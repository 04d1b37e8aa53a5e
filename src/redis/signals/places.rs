//! The clients of this node that wait for items, and their places in the queues of all nodes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lockkeeper_planted::Planted;
use tokio::sync::Notify;

use super::{SharedSignals, leases::LeasesWritten, names, port, shares::PlaceShare};
use crate::{RedisStore, RedisStoreError, data::DatumKind};

/// Maximum number of clients that wait for a key.
pub(super) const WAITERS_MAX: usize = 1000;

/// The waiting clients of a node, by the keys for which they wait. The keys are named as in the store.
#[derive(Default)]
pub(super) struct LocalPlaces {
    queues: Mutex<BTreeMap<Vec<u8>, KeyQueues>>,
    last_id: AtomicU64,
}

/// The waiting clients of one key, by the type of the values that they take: who takes from lists is not behind who takes from sorted sets,
/// which nothing that is pushed would ever serve.
type KeyQueues = BTreeMap<DatumKind, LocalQueue>;

/// Those of one type, in the order of their places. A client that does not know its place yet is at the end.
type LocalQueue = BTreeMap<(u64, u64), Arc<Notify>>;

impl LocalPlaces {
    /// Wakes the first client of this node that waits for a value of this type in a key, or the first one for each type if it is not known
    /// which of them is meant. If it is not the first of all, nobody behind it is.
    pub(super) fn wake(&self, key: &[u8], kind: Option<DatumKind>) {
        let queues = self.queues();
        let Some(by_kind) = queues.get(key) else { return };
        let meant = by_kind.iter().filter(|(taken, _)| kind.is_none_or(|kind| kind == **taken));
        meant.filter_map(|(_, queue)| queue.values().next()).for_each(|first| first.notify_one());
    }

    pub(super) fn wake_all(&self) {
        let queues = self.queues();
        let clients = queues.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        clients.for_each(|client| client.notify_one());
    }

    /// The queues. No code panics while it holds the lock.
    fn queues(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, KeyQueues>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it is a client's turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterStanding {
    /// The keys for which it is the first, by their numbers.
    pub(crate) first_for: Vec<usize>,
}

/// A client that waits. On drop it leaves all queues.
pub(crate) struct LocalPlace {
    shared: Arc<SharedSignals>,
    keys: Vec<Vec<u8>>,
    /// The type of the values that it takes.
    kind: DatumKind,
    id: u64,
    node: String,
    woken: Arc<Notify>,
    /// The places that it has seen, by the numbers of the keys.
    seen: Mutex<Vec<u64>>,
    /// What it has of the places of this node.
    _share: PlaceShare,
}

impl LocalPlace {
    /// A client that waits for these keys. It has its places when the leases are written.
    pub(super) fn enter(
        shared: &Arc<SharedSignals>,
        node: &str,
        keys: &[Vec<u8>],
        kind: DatumKind,
        share: PlaceShare,
    ) -> (Self, LeasesWritten) {
        let id = shared.places.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let woken = Arc::new(Notify::new());
        let place = Self {
            shared: Arc::clone(shared),
            keys: keys.to_vec(),
            kind,
            id,
            node: node.to_owned(),
            woken: Arc::clone(&woken),
            seen: Mutex::new(vec![u64::MAX; keys.len()]),
            _share: share,
        };

        for key in keys {
            let mut queues = shared.places.queues();
            let queue = queues.entry(key.clone()).or_default().entry(kind).or_default();
            queue.insert((u64::MAX, id), Arc::clone(&woken));
        }
        let entries = keys.iter().map(|key| (place.entry(key), Some(PlacedWaiter::value(kind))));
        let written = shared.leases.change(entries.collect());
        (place, written)
    }

    /// Waits until it may be the client's turn. A turn that came since the last call is not missed.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    fn entry(&self, key: &[u8]) -> Vec<u8> {
        // Their names have the order of their arrival: it decides between clients whose places one transaction has made.
        names::waiter(key, &format!("{}-{:016x}", self.node, self.id))
    }

    /// Looks for which keys the client is the first of all nodes.
    pub(super) async fn standing<S: RedisStore>(&self, store: &S) -> Result<WaiterStanding, RedisStoreError> {
        let mut first_for = Vec::new();
        for (number, key) in self.keys.iter().enumerate() {
            // A thousand clients that read a thousand places a second would leave no time for anything else.
            if self.is_behind_another(number) {
                continue;
            }
            let own = self.entry(key);
            let waiters = waiters(store, key).await?;
            // Without an entry the lease has ended, and it is written anew with the next renewal: at the end of the queue.
            let Some(created) = waiters.iter().find(|waiter| waiter.entry == own).map(|waiter| waiter.created) else {
                self.note_place(number, u64::MAX);
                continue;
            };
            self.note_place(number, created);

            // Waiters that one transaction has created are ordered by their keys.
            let mut rivals = waiters.iter().filter(|waiter| waiter.takes(self.kind));
            let is_first = rivals.all(|rival| (created, &own) <= (rival.created, &rival.entry));
            if is_first {
                first_for.push(number);
            }
        }
        Ok(WaiterStanding { first_for })
    }

    /// Whether another client of this node is known to stand before this one. Only the first of a node can be the first of all.
    fn is_behind_another(&self, number: usize) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner)[number];
        let queues = self.shared.places.queues();
        let queue = queues.get(&self.keys[number]).and_then(|by_kind| by_kind.get(&self.kind));
        let first = queue.and_then(|queue| queue.keys().next());
        seen < u64::MAX && first.is_some_and(|first| *first < (seen, self.id))
    }

    /// Gives the client its place among those of this node.
    fn note_place(&self, number: usize, created: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut seen[number], created);
        let mut queues = self.shared.places.queues();

        if before != created
            && let Some(queue) = queues.get_mut(&self.keys[number]).and_then(|by_kind| by_kind.get_mut(&self.kind))
            && let Some(client) = queue.remove(&(before, self.id))
        {
            queue.insert((created, self.id), client);
            // If this client has fallen behind, the client that is now the first has not looked yet.
            if before < created
                && let Some(first) = queue.values().next()
            {
                first.notify_one();
            }
        }
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, place) in self.keys.iter().zip(seen) {
            let mut queues = self.shared.places.queues();
            let Some(by_kind) = queues.get_mut(key) else { continue };
            if let Some(queue) = by_kind.get_mut(&self.kind) {
                queue.remove(&(place, self.id));
            }
            by_kind.retain(|_, queue| !queue.is_empty());
            if by_kind.is_empty() {
                queues.remove(key);
            }
        }

        // The others hear by the feed that it has left.
        let entries = self.keys.iter().map(|key| (self.entry(key), None));
        self.shared.leases.change(entries.collect());
    }
}

/// A client of any node that waits for a key, as its entry tells.
pub(super) struct PlacedWaiter {
    entry: Vec<u8>,
    /// The revision at which it came.
    created: u64,
    value: Vec<u8>,
}

impl PlacedWaiter {
    /// The value of the entry of a client that takes values of this type.
    fn value(kind: DatumKind) -> Vec<u8> {
        kind.name().as_bytes().to_vec()
    }

    /// Whether it may take a value of this type. Nodes of earlier versions do not say what their clients take: it may be any.
    pub(super) fn takes(&self, kind: DatumKind) -> bool {
        self.value.is_empty() || self.value == kind.name().as_bytes() || Planted::WaiterOfAnyKind.is_on()
    }
}

/// The clients of all nodes that wait for a key.
pub(super) async fn waiters<S: RedisStore>(store: &S, key: &[u8]) -> Result<Vec<PlacedWaiter>, RedisStoreError> {
    let (mut from, to) = names::waiters(key);
    let mut waiters = Vec::new();
    loop {
        let page = store.list(&port(), from.clone(), to.clone(), WAITERS_MAX).await?;
        if let Some((last, _)) = page.entries.last() {
            from = [&last[..], &[0]].concat();
        }

        let placed = page.entries.into_iter();
        waiters.extend(placed.map(|(entry, stored)| PlacedWaiter {
            entry,
            created: stored.created,
            value: stored.value,
        }));
        if !page.more || waiters.len() > 2 * WAITERS_MAX {
            return Ok(waiters);
        }
    }
}
