//! Which watches an event concerns: of the keyspace, and of locks.
//!
//! A node may have ten thousands of watches, nearly all of one key or one prefix: in etcd's recipes each contender watches the key before
//! its own. An event is to cost what the watches cost that it concerns, however many others there are: the watches whose range has its key
//! are found, and woken. The thread that applies does so at once if that is little work ([`WatchIndex::take`]): to wake another task for
//! each log entry, on each node, costs more than the look. Otherwise it leaves the events to a task, the dispatcher ([`WatchIndex::turn`]):
//! a hundred thousand watches of one key delay no log entry.
//!
//! Nothing is handed over but a position, which is a revision or the index of a log entry: from where on a woken watch looks at the history
//! ([`Next::Look`]), or up to where there is nothing for it ([`Next::Nothing`]). So one that sleeps keeps up without a look at others'
//! events, and the history may forget them.
//!
//! Finding the watches takes a hash for those of one key, one for each length that a watched prefix has, and a comparison for each watch of
//! another range. Clients have few lengths and few other ranges; hostile ones are bounded:
//!
//! * `LENGTHS_MAX` lengths are hashed; a prefix of a further length counts as another range, and of those there are at most
//!   `RANGES_MAX`;
//! * **the lock of the index is held for a bounded look** ([`Concerned::is_large`]); the watches that it found are woken after that;
//! * **no client takes all**: each may have half of what all others leave free (as buffers of switches are shared: Choudhury and Hahne,
//!   "Dynamic queue length thresholds", 1998). So there is room for one more client, always.

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{sync::Notify, task::yield_now};

use lockkeeper_machine::{Key, KeyRange};
use lockkeeper_planted::Planted;

/// Watches of a node, of each kind. Each takes a few kilobytes with its stream.
const WATCHES_MAX: usize = 131_072;
/// Watches of a node, of each kind, that are of no one key and of no prefix that is found by a hash.
const RANGES_MAX: usize = 8_192;
/// Lengths of watched prefixes that are hashed for an event.
const LENGTHS_MAX: usize = 64;
/// Watches that one log entry wakes at once, at the most; a comparison counts as a [`COMPARISONS`]th of one.
const WAKES_MAX: usize = 64;
/// Watches that the dispatcher finds before it wakes them, and those that it wakes without a pause. Comparisons count as above.
const LOOK_MAX: usize = 1_024;
/// Comparisons that cost about as much as to wake a watch.
const COMPARISONS: usize = 16;
/// Bytes that are hashed in the time of a comparison.
const HASHED: usize = 64;
/// No event.
const NONE: u64 = u64::MAX;

/// A limit of watches is reached: for this client, or for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this client has {has} {what} at this node, and may have half of what others leave free of {most}")]
pub struct TooManyWatches {
    what: &'static str,
    has: usize,
    most: usize,
}

/// The watches of one kind. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WatchIndex(Arc<SharedIndex>);

#[derive(Debug, Default)]
struct SharedIndex {
    state: Mutex<IndexState>,
    /// The last position that was left to the dispatcher. Only the thread that applies changes it.
    left: AtomicU64,
}

#[derive(Debug, Default)]
struct IndexState {
    ranges: WatchedRanges,
    owners: HashMap<Arc<str>, Owned>,
    /// All events up to this position were looked at, and the watches that they concern woken.
    dispatched: u64,
    /// The last position of which an event was looked at. All events of later ones are to come.
    looked_at: u64,
}

/// The watches of one client.
#[derive(Clone, Copy, Debug, Default)]
struct Owned {
    watches: usize,
    ranges: usize,
}

/// A watch in the index, until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    index: WatchIndex,
    id: u64,
    owner: Arc<str>,
    shape: Shape,
    bell: Arc<Bell>,
    /// Events of the range ring if they are after this position. The watch itself looks for earlier ones.
    since: u64,
}

/// The place from which a watch continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// There is no event for it up to this position. The next one wakes it.
    Nothing {
        /// The position.
        up_to: u64,
    },
    /// It looks at the history after this position: before, there is none for it.
    Look {
        /// The position.
        after: u64,
    },
}

/// What wakes a watch.
#[derive(Debug)]
struct Bell {
    /// The position of the first event that is to be looked at. It is taken under the index's lock.
    first: AtomicU64,
    wake: Notify,
}

impl Bell {
    fn ring(&self, position: u64) {
        // A watch that was woken before and has not looked yet will see this event, too.
        if self.first.fetch_min(position, Ordering::Relaxed) == NONE {
            self.wake.notify_one();
        }
    }

    /// Whether its watch will see this event without being woken again.
    fn has_rung(&self, position: u64) -> bool {
        self.first.load(Ordering::Relaxed) <= position
    }
}

impl WatchIndex {
    /// Adds a watch of this client. Fails if it has its share of all.
    pub fn subscribe(&self, shape: Shape, owner: &str) -> Result<Subscription, TooManyWatches> {
        let bell = Arc::new(Bell { first: AtomicU64::new(NONE), wake: Notify::new() });
        let mut state = self.state();
        let shape = state.ranges.placed(shape);
        let owner = state.admit(owner, matches!(shape, Shape::Other(_)))?;
        let id = state.ranges.add(&shape, Arc::clone(&bell));
        let since = state.looked_at;
        drop(state);
        Ok(Subscription { index: self.clone(), id, owner, shape, bell, since })
    }

    /// For the thread that applies: wakes the watches that the events of a log entry concern, if that is little work, and there is nothing
    /// that comes before it. Otherwise returns `false`, and leaves them to the dispatcher. `events` gives their keys and positions, up to
    /// this one.
    pub fn take<'a, I>(&self, events: impl Fn() -> I, up_to: u64) -> bool
    where
        I: Iterator<Item = (&'a [u8], u64)>,
    {
        // Tried, not waited for: the dispatcher may hold the index for a look at a thousand watches, and no log entry is to wait for that.
        let is_taken = self.try_turn().is_some_and(|mut turn| {
            let left = self.0.left.load(Ordering::Relaxed);
            // Events that were left to the dispatcher come first. A watch that is told of a later position would take it that there was
            // nothing before.
            let is_next = turn.dispatched() >= left || Planted::WatchesOutOfOrder.is_on();
            if is_next && turn.0.ranges.count == 0 {
                // Nobody asked: not even a look at the events.
                turn.0.complete(up_to);
                return true;
            }
            let is_taken = is_next && turn.0.ranges.is_little(events().map(|(key, _)| key));
            if is_taken {
                events().for_each(|(key, position)| turn.wake(key, position));
                turn.0.complete(up_to);
            }
            is_taken
        });

        if !is_taken {
            self.leave(up_to);
        }
        is_taken
    }

    /// Leaves the events up to this position to the dispatcher. Called by the thread that applies.
    pub fn leave(&self, up_to: u64) {
        self.0.left.fetch_max(up_to, Ordering::Relaxed);
    }

    /// The turn of the dispatcher, which looks at the events that were left to it in the order of their positions. No watch moves until the
    /// turn is dropped.
    pub fn turn(&self) -> Turn<'_> {
        Turn(self.state())
    }

    /// Notes that all events up to this position were looked at and their watches woken, or that the events were missed. Called by the
    /// dispatcher.
    pub fn complete(&self, position: u64) {
        self.state().complete(position);
    }

    fn try_turn(&self) -> Option<Turn<'_>> {
        match self.0.state.try_lock() {
            Ok(state) => Some(Turn(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Turn(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Code panics under this lock only on broken state, which ends the process.
    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IndexState {
    fn complete(&mut self, position: u64) {
        self.dispatched = position.max(self.dispatched);
        self.looked_at = position.max(self.looked_at);
    }

    /// Counts a watch for its owner.
    fn admit(&mut self, owner: &str, is_range: bool) -> Result<Arc<str>, TooManyWatches> {
        let (owner, has) = match self.owners.get_key_value(owner) {
            Some((owner, has)) => (Arc::clone(owner), *has),
            None => (owner.into(), Owned::default()),
        };

        let all = self.ranges.count;
        let ranges = self.ranges.others.len();
        let ensure_share = |what, has, all: usize, most: usize| {
            // Half of the places that the others leave free, rounded up, so that the last place goes to an owner without any.
            let is_within = has < (most.saturating_sub(all - has)).div_ceil(2);
            if is_within { Ok(()) } else { Err(TooManyWatches { what, has, most }) }
        };

        ensure_share("watches of this kind", has.watches, all, WATCHES_MAX)?;
        if is_range {
            ensure_share("watches of ranges that are no prefix", has.ranges, ranges, RANGES_MAX)?;
        }

        let now = Owned { watches: has.watches + 1, ranges: has.ranges + usize::from(is_range) };
        self.owners.insert(Arc::clone(&owner), now);
        Ok(owner)
    }

    fn discharge(&mut self, owner: &str, is_range: bool) {
        if let Some(has) = self.owners.get_mut(owner) {
            has.watches -= 1;
            has.ranges -= usize::from(is_range);
            if has.watches == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

/// A look at some events.
#[derive(Debug)]
pub struct Turn<'a>(MutexGuard<'a, IndexState>);

impl Turn<'_> {
    /// All events up to this position were looked at, and the watches woken that they concern.
    pub fn dispatched(&self) -> u64 {
        self.0.dispatched
    }

    /// Finds the watches that an event of this key concerns. They are to be woken before anything is [complete](WatchIndex::complete).
    pub fn find(&mut self, key: &[u8], position: u64, found: &mut Concerned) {
        self.0.looked_at = position.max(self.0.looked_at);
        found.looks += self.0.ranges.comparisons(key);
        self.0.ranges.concerned(key, |bell| {
            found.looks += 1;
            if !bell.has_rung(position) {
                found.bells.push((Arc::clone(bell), position));
            }
        });
    }

    /// Finds all watches: events after the last position were missed, and each is to find out for itself what there was.
    pub fn find_all(&mut self, found: &mut Concerned) {
        let missed = self.0.dispatched + 1;
        self.0.looked_at = missed.max(self.0.looked_at);
        self.0.ranges.all(|bell| found.bells.push((Arc::clone(bell), missed)));
    }

    fn wake(&mut self, key: &[u8], position: u64) {
        self.0.looked_at = position.max(self.0.looked_at);
        self.0.ranges.concerned(key, |bell| bell.ring(position));
    }
}

/// The watches that a turn found.
#[derive(Debug, Default)]
pub struct Concerned {
    bells: Vec<(Arc<Bell>, u64)>,
    /// Comparisons that it took.
    looks: usize,
}

impl Concerned {
    /// Whether they are to be woken before more is looked at.
    pub fn is_large(&self) -> bool {
        self.bells.len() + self.looks / COMPARISONS >= LOOK_MAX
    }

    /// Wakes them. Others come in between.
    pub async fn wake(self) {
        for bells in self.bells.chunks(LOOK_MAX) {
            bells.iter().for_each(|(bell, position)| bell.ring(*position));
            yield_now().await;
        }
    }
}

impl Subscription {
    /// The place from which a watch continues that has seen all its events up to this position.
    pub fn next(&mut self, complete: u64) -> Next {
        // Read it under the lock, so that each event up to the dispatched one has woken its watches.
        let state = self.index.state();
        let silenced = if Planted::WatchWokenOnce.is_on() { 0 } else { NONE };
        let first = self.bell.first.swap(silenced, Ordering::Relaxed);
        let next = match first {
            _ if complete < self.since => Next::Look { after: complete },
            NONE => Next::Nothing { up_to: complete.max(state.dispatched) },
            first => Next::Look { after: complete.max(first - 1) },
        };
        // It looks for all of these itself, if it has not yet; the next one rings again.
        self.since = state.looked_at;
        next
    }

    /// Returns once there is an event since the last [`next`](Self::next), or before. Cancel safe.
    pub async fn woken(&self) {
        self.bell.wake.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.index.state();
        state.ranges.remove(&self.shape, self.id);
        state.discharge(&self.owner, matches!(self.shape, Shape::Other(_)));
    }
}

/// What a watch watches, by how it is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One key.
    Key(Box<[u8]>),
    /// All keys with this prefix.
    Prefix(Box<[u8]>),
    /// Another range.
    Other(KeyRange),
}

impl From<KeyRange> for Shape {
    fn from(range: KeyRange) -> Self {
        let from = range.from.as_ref();
        let to = range.to.as_ref();
        match (from.map(|from| from.as_bytes()), to.map(|to| to.as_bytes())) {
            (None, None) => Self::Prefix([].into()),
            // The first key after `from` is `from` and a zero byte: there is nothing between the two.
            (Some(from), Some(to)) if to.strip_prefix(from) == Some(&[0]) => Self::Key(from.into()),
            (Some(from), Some(to)) if after_prefix(from).as_deref() == Some(to) => Self::Prefix(from.into()),
            _ => Self::Other(range),
        }
    }
}

/// The first key after all that begin so, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    // A byte of 255 cannot be raised, so the one before it is, and what follows goes. If all are 255, the range has no end.
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

type Bells = BTreeMap<u64, Arc<Bell>>;
type BellsByKey = HashMap<Box<[u8]>, Bells>;

#[derive(Debug, Default)]
struct WatchedRanges {
    keys: BellsByKey,
    prefixes: BellsByKey,
    /// How many of `prefixes` have this length. At most [`LENGTHS_MAX`].
    lengths: BTreeMap<usize, usize>,
    /// Comparisons that the hashes of all lengths count as.
    lengths_cost: usize,
    others: BTreeMap<u64, (KeyRange, Arc<Bell>)>,
    /// The number of all watched ranges.
    count: usize,
    next_id: u64,
}

impl WatchedRanges {
    /// How a watch is found: a prefix is another range if there are too many lengths.
    fn placed(&self, shape: Shape) -> Shape {
        match shape {
            Shape::Prefix(prefix) if self.lengths.len() >= LENGTHS_MAX && !self.lengths.contains_key(&prefix.len()) => {
                let to = after_prefix(&prefix).and_then(|after| Key::new(&after).ok());
                Key::new(&prefix).map_or(Shape::Prefix(prefix), |from| Shape::Other(KeyRange { from: Some(from), to }))
            }
            Shape::Key(_) | Shape::Prefix(_) | Shape::Other(_) => shape,
        }
    }

    /// Returns its id.
    fn add(&mut self, shape: &Shape, bell: Arc<Bell>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.count += 1;

        match shape {
            Shape::Key(key) => {
                self.keys.entry(key.clone()).or_default().insert(id, bell);
            }
            Shape::Prefix(prefix) => {
                let bells = self.prefixes.entry(prefix.clone());
                if matches!(bells, hash_map::Entry::Vacant(_)) {
                    let of_length = self.lengths.entry(prefix.len()).or_default();
                    self.lengths_cost += if *of_length == 0 { hash_cost(prefix.len()) } else { 0 };
                    *of_length += 1;
                }
                bells.or_default().insert(id, bell);
            }
            Shape::Other(range) => {
                self.others.insert(id, (range.clone(), bell));
            }
        }

        id
    }

    fn remove(&mut self, shape: &Shape, id: u64) {
        self.count -= 1;

        match shape {
            Shape::Key(key) => {
                remove_from(&mut self.keys, key, id);
            }
            Shape::Prefix(prefix) => {
                if remove_from(&mut self.prefixes, prefix, id)
                    && let Some(count) = self.lengths.get_mut(&prefix.len())
                {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&prefix.len());
                        self.lengths_cost -= hash_cost(prefix.len());
                    }
                }
            }
            Shape::Other(_) => {
                self.others.remove(&id);
            }
        }
    }

    /// Whether few watches are to be woken for events of these keys.
    fn is_little<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        let mut wakes = 0;
        let mut comparisons = 0;
        self.count == 0
            || keys.all(|key| {
                wakes += self.found(key).map(BTreeMap::len).sum::<usize>();
                comparisons += self.comparisons(key);
                wakes + comparisons / COMPARISONS <= WAKES_MAX
            })
    }

    /// Comparisons that it takes to find the watches of a key.
    fn comparisons(&self, key: &[u8]) -> usize {
        hash_cost(key.len()) + self.lengths_cost + self.others.len()
    }

    /// The watches of this key, and of what it begins with.
    fn found<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a Bells> {
        let prefixes = self.lengths.keys().map_while(|length| key.get(..*length));
        self.keys.get(key).into_iter().chain(prefixes.filter_map(|prefix| self.prefixes.get(prefix)))
    }

    /// Shows the watches whose range has this key.
    fn concerned(&self, key: &[u8], show: impl FnMut(&Arc<Bell>)) {
        let is_concerned = |range| has(range, key) && !Planted::RangeWatchNotWoken.is_on();
        let others = self.others.values().filter(|(range, _)| is_concerned(range)).map(|(_, bell)| bell);
        self.found(key).flat_map(BTreeMap::values).chain(others).for_each(show);
    }

    /// Shows all, in the order in which they came.
    fn all(&self, show: impl FnMut(&Arc<Bell>)) {
        let found = self.keys.values().chain(self.prefixes.values()).flatten();
        let others = self.others.iter().map(|(id, (_, bell))| (id, bell));
        let all: BTreeMap<_, _> = found.chain(others).collect();
        all.into_values().for_each(show);
    }
}

/// Comparisons that a hash of so many bytes counts as.
fn hash_cost(bytes: usize) -> usize {
    1 + bytes / HASHED
}

fn has(range: &KeyRange, key: &[u8]) -> bool {
    let KeyRange { from, to } = range;
    from.as_ref().is_none_or(|from| key >= from.as_bytes()) && to.as_ref().is_none_or(|to| key < to.as_bytes())
}

/// Returns whether it was the last one there.
fn remove_from(found: &mut BellsByKey, key: &[u8], id: u64) -> bool {
    let Some(bells) = found.get_mut(key) else { return false };
    bells.remove(&id);
    let was_last = bells.is_empty();
    if was_last {
        found.remove(key);
    }
    was_last
}

#[cfg(test)]
mod tests;
