//! The history of the keyspace: its latest events, in the order of their revisions.
//!
//! An event is a change of one entry: what is under the key since its revision, and what was there before. So the history leads forwards,
//! for a watch that resumes after a revision, and backwards: the state at an earlier revision is the present one without the events since.
//! An index by key finds the first event of a key since then: a read of the past visits the keys of its range, one by one, however many
//! events there are.
//!
//! * **The log decides how long the history is**: a number of events and of bytes ([`EVENTS_MAX`], [`EVENT_BYTES_MAX`]), and
//!   [`Command::Compact`]; never the memory or the clock of a node. It is part of every snapshot. So a watcher that comes back finds the
//!   same events at any node.
//! * **A revision is in it as a whole or not at all.** The last one stays, even if it alone exceeds the limit: a watcher that has seen
//!   all others misses none.
//! * **Work is bounded**: dropping events costs budget, and the rest is dropped in later batches. Until then they are in the table, but
//!   nobody sees them: the *compacted* revision, that of the last event forgotten, counts at once.
//!
//! The locks that entries claim are no part of it: a read shows them at the present revision only.
//!
//! Entries are shared with the table, but for those that claim a lock. An event is charged what it alone keeps in memory: itself, and the
//! entry before it, which the table does not have any more. These bytes are not part of [`Machine::bytes`]: history takes no room from
//! entries and locks.

use std::{cmp::Ordering, collections::BTreeMap, iter::from_fn, ops::Bound};

use imbl::Vector;

use crate::{bytes::of_event, capacity::Capacity, *};

/// Events that are dropped for one unit of work.
const EVENTS_PER_UNIT: usize = 8;

/// The latest events of the keyspace. A clone is cheap.
#[derive(Clone, Default)]
pub struct EntryHistory {
    /// Ordered by revision, and within one by key. Each key is once in a revision.
    events: Vector<Arc<EntryEvent>>,
    /// The same events, by key.
    by_key: OrdMap<(Key, Revision), Arc<EntryEvent>>,
    /// Events up to this revision are forgotten, though some may still be here.
    compacted: Revision,
    /// The sum of [`of_event`].
    bytes: usize,
}

impl fmt::Debug for EntryHistory {
    /// A summary: there may be many events.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryHistory({} events after {:?})", self.events.len(), self.compacted)
    }
}

impl EntryHistory {
    /// The revision of the last event that is forgotten; 0: none is. All later ones are known, and the state at this revision.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The events after a revision; with a key, those of that revision with higher keys as well. Fails below the compacted revision.
    pub fn after(
        &self,
        revision: Revision,
        key: Option<&Key>,
    ) -> Result<impl Iterator<Item = &Arc<EntryEvent>> + use<'_>, RevisionError> {
        // The revision of a key that was shown is not complete.
        let complete = Revision(revision.0.saturating_sub(key.is_some().into()));
        if complete < self.compacted {
            return Err(RevisionError::Compacted { compacted: self.compacted });
        }
        let begins = |event: &EntryEvent| match key {
            Some(key) => (event.revision, &event.key) > (revision, key),
            None => event.revision > revision,
        };
        Ok(self.events.focus().narrow(self.first(begins)..).into_iter())
    }

    /// The place of the first event for which this holds. It holds for all later ones.
    fn first(&self, begins: impl Fn(&EntryEvent) -> bool) -> usize {
        let place = |event: &Arc<EntryEvent>| if begins(event) { Ordering::Greater } else { Ordering::Less };
        self.events.binary_search_by(place).unwrap_or_else(|first| first)
    }

    /// All events that are here, those among them that nobody sees any more.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Arc<EntryEvent>> {
        self.events.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn compact(&mut self, revision: Revision) {
        let later = self.first(|event| event.revision > revision);
        let last = later.checked_sub(1).and_then(|last| self.events.get(last));
        self.compacted = self.compacted.max(last.map_or(Revision(0), |event| event.revision));
    }

    /// The compacted revision, and that of the last event, if any is known. They change with the history.
    pub fn place(&self) -> (Revision, Option<Revision>) {
        (self.compacted, self.events.back().map(|event| event.revision))
    }

    fn push(&mut self, event: EntryEvent) {
        self.bytes += of_event(&event);
        let event = Arc::new(event);
        self.by_key.insert((event.key.clone(), event.revision), Arc::clone(&event));
        self.events.push_back(event);
    }

    /// The first event of a key after a revision.
    fn first_of_key(&self, key: &Key, after: Revision) -> Option<&Arc<EntryEvent>> {
        let from = Bound::Excluded((key.clone(), after));
        let to = Bound::Included((key.clone(), Revision(u64::MAX)));
        self.by_key.range((from, to)).next().map(|(_, event)| event)
    }

    /// The next key of a range that has an event; backwards, the one before. `last`: the one that was found last.
    fn next_key(&self, range: &KeyRange, last: Option<&Key>, backwards: bool) -> Option<&Key> {
        const ABOVE: Revision = Revision(u64::MAX);
        if range.is_empty() {
            return None;
        }
        let bound = |key: &Option<Key>| key.clone().map(|key| (key, Revision(0)));
        let mut from = bound(&range.from).map_or(Bound::Unbounded, Bound::Included);
        let mut to = bound(&range.to).map_or(Bound::Unbounded, Bound::Excluded);
        match (last.cloned(), backwards) {
            (None, _) => {}
            (Some(last), false) => from = Bound::Excluded((last, ABOVE)),
            (Some(last), true) => to = Bound::Excluded((last, Revision(0))),
        }
        let mut keys = self.by_key.range((from, to)).map(|((key, _), _)| key);
        if backwards { keys.next_back() } else { keys.next() }
    }

    /// Whether it has events to drop.
    pub(crate) fn exceeds(&self, capacity: &Capacity) -> bool {
        let (Some(first), Some(last)) = (self.events.front(), self.events.back()) else { return false };
        let is_large = self.events.len() > capacity.events || self.bytes > capacity.event_bytes;
        first.revision <= self.compacted || is_large && first.revision < last.revision
    }

    /// Drops the events of the earliest revision. Returns their number.
    fn drop_first(&mut self) -> usize {
        let Some(revision) = self.events.front().map(|first| first.revision) else { return 0 };
        let mut dropped = 0;
        while let Some(event) = self.events.front().filter(|event| event.revision == revision).cloned() {
            self.bytes -= of_event(&event);
            self.events.pop_front();
            self.by_key.remove(&(event.key.clone(), revision));
            dropped += 1;
        }
        self.compacted = self.compacted.max(revision);
        dropped
    }

    pub(crate) fn restore_compacted(&mut self, compacted: Revision) -> Revision {
        std::mem::replace(&mut self.compacted, compacted)
    }

    /// Adds an event of a snapshot: what came after it is known only once all are there. See [`Self::link`].
    pub(crate) fn restore(&mut self, revision: Revision, key: Key, before: Option<Arc<Entry>>) {
        self.push(EntryEvent { revision, key, before, after: None });
    }

    /// Completes the events of a snapshot: after an event there is what the next one of its key has before it, or what the table has.
    pub(crate) fn link(&mut self, entries: &OrdMap<Key, Arc<Entry>>) {
        let mut later: BTreeMap<Key, Option<Arc<Entry>>> = BTreeMap::new();
        let mut linked = Vector::new();
        self.by_key.clear();
        while let Some(event) = self.events.pop_back() {
            let EntryEvent { revision, key, before, .. } = Arc::unwrap_or_clone(event);
            let after = match later.insert(key.clone(), before.clone()) {
                Some(after) => after,
                None => entries.get(&key).map(unclaimed),
            };
            let event = Arc::new(EntryEvent { revision, key, before, after });
            self.by_key.insert((event.key.clone(), revision), Arc::clone(&event));
            linked.push_front(event);
        }
        self.events = linked;
    }
}

impl Machine {
    /// The latest events of the keyspace.
    pub fn history(&self) -> &EntryHistory {
        &self.history
    }

    /// Fails on a revision whose state cannot be shown: below the compacted one, and above the present one.
    pub fn ensure_known(&self, revision: Revision) -> Result<(), RevisionError> {
        self.check_revision(revision)
    }

    /// What the keyspace had under a key at a revision. Fails below the compacted revision, and above the present one.
    pub fn entry_at(&self, key: &Key, revision: Revision) -> Result<Option<Arc<Entry>>, RevisionError> {
        self.check_revision(revision)?;
        if revision == self.revision() {
            return Ok(self.entry(key));
        }
        Ok(self.entry_before(key, self.entries.get(key), revision))
    }

    /// The entries that a range had at a revision. Fails below the compacted revision, and above the present one.
    pub fn entries_at<'a>(&'a self, range: &KeyRange, revision: Revision) -> Result<PastEntries<'a>, RevisionError> {
        self.check_revision(revision)?;
        Ok(PastEntries { machine: self, range: range.clone(), revision })
    }

    /// What was under a key at a revision that is not the present one. `now`: what is there now.
    fn entry_before(&self, key: &Key, now: Option<&Arc<Entry>>, revision: Revision) -> Option<Arc<Entry>> {
        match self.history.first_of_key(key, revision) {
            // The first event since tells what was there.
            Some(event) => event.before.clone(),
            None => now.map(unclaimed),
        }
    }

    fn check_revision(&self, revision: Revision) -> Result<(), RevisionError> {
        let (present, compacted) = (self.revision(), self.history.compacted);
        if revision > present {
            return Err(RevisionError::Future { present });
        }
        if revision < compacted {
            return Err(RevisionError::Compacted { compacted });
        }
        Ok(())
    }

    /// Forgets the events up to a revision. Below the compacted revision it changes nothing.
    ///
    /// The compacted revision becomes that of the last event forgotten: revisions rise also with each grant of a lock, and a watch that has
    /// seen that event misses nothing.
    pub(crate) fn compact(&mut self, revision: Revision) -> Result<Reply, Refusal> {
        if revision > self.revision() {
            return Err(Refusal::RevisionFuture { present: self.revision() });
        }
        self.history.compact(revision);
        self.trim_history();
        Ok(Reply::Compacted(self.history.compacted))
    }

    /// Adds a change of an entry, at the revision that was issued last.
    pub(super) fn record_event(&mut self, key: &Key, before: Option<&Arc<Entry>>, after: Option<&Arc<Entry>>) {
        let (before, after) = (before.map(unclaimed), after.map(unclaimed));
        // A transaction may put a key and delete it again.
        if before.is_some() || after.is_some() {
            self.history.push(EntryEvent { revision: self.revision(), key: key.clone(), before, after });
            self.trim_history();
        }
    }

    /// Drops what the history has beyond its limits, as far as the budget goes.
    pub(crate) fn trim_history(&mut self) {
        let mut dropped = 0;
        while self.history.exceeds(&self.capacity) && !self.is_spent() {
            dropped += self.history.drop_first();
            self.spend(dropped / EVENTS_PER_UNIT);
            dropped %= EVENTS_PER_UNIT;
        }
    }
}

/// The entries of a range at a revision: see [`Machine::entries_at`].
pub struct PastEntries<'a> {
    machine: &'a Machine,
    range: KeyRange,
    revision: Revision,
}

impl fmt::Debug for PastEntries<'_> {
    /// A summary: there may be many entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PastEntries({:?} at {:?})", self.range, self.revision)
    }
}

impl<'a> PastEntries<'a> {
    /// The entries, in the order of their keys, or backwards.
    pub fn iter(&self, backwards: bool) -> impl Iterator<Item = (&'a Key, Arc<Entry>)> + use<'a> {
        self.visits(backwards).flatten()
    }

    /// The same, and `None` for each key that is visited and had no entry: there may be many of them, so a caller that must not compute for
    /// long counts these too.
    pub fn visits(&self, backwards: bool) -> impl Iterator<Item = Option<(&'a Key, Arc<Entry>)>> + use<'a> {
        let (machine, range, revision) = (self.machine, self.range.clone(), self.revision);
        // A lease that is over now is over in the present only.
        let is_present = revision == machine.revision();
        let next_changed = move |last: Option<&Key>| {
            let is_past = !is_present;
            is_past.then(|| machine.history.next_key(&range, last, backwards)).flatten()
        };
        let mut stored = directed(machine.stored(&self.range), backwards).peekable();
        let mut changed = next_changed(None);

        from_fn(move || {
            let key = match (stored.peek().map(|(key, _)| *key), changed) {
                (Some(one), Some(other)) => {
                    if backwards {
                        one.max(other)
                    } else {
                        one.min(other)
                    }
                }
                (one, other) => one.or(other)?,
            };
            let now = stored.next_if(|(stored, _)| *stored == key).map(|(_, entry)| entry);
            if changed == Some(key) {
                changed = next_changed(Some(key));
            }
            let found = match now {
                Some(entry) if is_present => machine.in_force(entry),
                Some(entry) if entry.modified <= revision => Some(unclaimed(entry)),
                now => machine.entry_before(key, now, revision),
            };
            Some(found.map(|entry| (key, entry)))
        })
    }
}

/// The entry without the lock that it claims: a claim may be granted its lock without a write of its entry, so it is no part of the
/// history.
pub(crate) fn unclaimed(entry: &Arc<Entry>) -> Arc<Entry> {
    match entry.claim {
        None => Arc::clone(entry),
        Some(_) => Arc::new(Entry { claim: None, ..Entry::clone(entry) }),
    }
}

fn directed<T>(mut items: impl DoubleEndedIterator<Item = T>, backwards: bool) -> impl Iterator<Item = T> {
    from_fn(move || if backwards { items.next_back() } else { items.next() })
}
