//! The history of the keyspace: its latest events, in the order of their revisions.

use std::{cmp::Ordering, collections::BTreeMap, fmt, sync::Arc};

use imbl::Vector;

use lockkeeper_planted::Planted;

use super::{capacity::TableCapacity, entries::EntryTable, key_index::KeyIndex, weights::event_bytes};
use crate::types::*;

/// The latest events of the keyspace. A clone is cheap.
#[derive(Clone, Default)]
pub struct EntryHistory {
    /// Ordered by revision, and within one by key. Each key is once in a revision.
    events: Vector<Arc<EntryEvent>>,
    /// The same events, by key.
    index: KeyIndex,
    /// Events up to this revision are forgotten, though some may still be here.
    compacted: Revision,
    /// The sum of [`event_bytes`].
    bytes: usize,
}

impl fmt::Debug for EntryHistory {
    /// A summary: there may be many events.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryHistory({} events after {:?})", self.events.len(), self.compacted)
    }
}

impl EntryHistory {
    /// The revision of the last event that was dropped, or 0 if there is none. All later events are known, and so is the state at this
    /// revision.
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
            None if Planted::HistoryRepeatsEvent.is_on() => event.revision >= revision,
            None => event.revision > revision,
        };
        Ok(self.events.focus().narrow(self.first(begins)..).into_iter())
    }

    /// The place of the first event for which this holds. It holds for all later ones.
    fn first(&self, begins: impl Fn(&EntryEvent) -> bool) -> usize {
        let place = |event: &Arc<EntryEvent>| if begins(event) { Ordering::Greater } else { Ordering::Less };
        self.events.binary_search_by(place).unwrap_or_else(|first| first)
    }

    /// All stored events, including those that are no longer shown.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Arc<EntryEvent>> {
        self.events.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sum of the bytes, counted anew.
    pub(crate) fn count_bytes(&self) -> usize {
        self.events.iter().map(|event| event_bytes(event)).sum()
    }

    /// Forgets the events up to a revision.
    pub(crate) fn compact(&mut self, revision: Revision) {
        let later = self.first(|event| event.revision > revision);
        let last = later.checked_sub(1).and_then(|last| self.events.get(last));
        self.compacted = self.compacted.max(last.map_or(Revision(0), |event| event.revision));
    }

    /// The compacted revision, and that of the last event, if any is known. They change with the history.
    pub fn place(&self) -> (Revision, Option<Revision>) {
        (self.compacted, self.events.back().map(|event| event.revision))
    }

    /// Adds the latest event.
    pub(crate) fn push(&mut self, event: EntryEvent) {
        self.bytes += event_bytes(&event);
        self.index.push(event.key.clone(), event.revision);
        self.events.push_back(Arc::new(event));
    }

    /// The first event of a key after a revision that is not compacted.
    pub(crate) fn first_of_key(&self, key: &Key, after: Revision) -> Option<&Arc<EntryEvent>> {
        let revision = self.index.first_change(key, after)?;
        self.event(key, revision)
    }

    /// The first event after a revision of each key of a range, in the order of the keys or backwards. The revision is not compacted.
    pub(crate) fn first_of_each<'a>(
        &'a self,
        range: &KeyRange,
        after: Revision,
        is_backwards: bool,
    ) -> impl Iterator<Item = &'a Arc<EntryEvent>> + use<'a> {
        let changes = self.index.changes(range, after, is_backwards);
        changes.filter_map(|(key, revision)| self.event(key, revision))
    }

    fn event(&self, key: &Key, revision: Revision) -> Option<&Arc<EntryEvent>> {
        self.events.get(self.first(|event| (event.revision, &event.key) >= (revision, key)))
    }

    /// Whether it has events to drop.
    pub(crate) fn exceeds(&self, capacity: &TableCapacity) -> bool {
        let (Some(first), Some(last)) = (self.events.front(), self.events.back()) else { return false };
        let is_large = self.events.len() > capacity.events || self.bytes > capacity.event_bytes;
        first.revision <= self.compacted || is_large && first.revision < last.revision
    }

    /// Drops the events of the earliest revision. Returns their number.
    pub(crate) fn drop_first(&mut self) -> usize {
        let Some(revision) = self.events.front().map(|first| first.revision) else { return 0 };
        let mut dropped = 0;
        while let Some(event) = self.events.front().filter(|event| event.revision == revision).cloned() {
            self.bytes -= event_bytes(&event);
            self.events.pop_front();
            dropped += 1;

            let is_whole = self.events.front().is_none_or(|event| event.revision != revision);
            if Planted::HistorySplitsRevision.is_on() && !is_whole {
                return dropped;
            }
        }

        self.compacted = self.compacted.max(revision);
        self.index.forget(revision);
        dropped
    }

    pub(crate) fn restore_compacted(&mut self, compacted: Revision) -> Revision {
        std::mem::replace(&mut self.compacted, compacted)
    }

    /// Adds an event of a snapshot: what came after it is known only once all are there. See [`Self::link`].
    pub(crate) fn restore(&mut self, revision: Revision, key: Key, before: Option<Arc<Entry>>) {
        self.push(EntryEvent { revision, key, before, after: None });
    }

    /// Completes the events of a snapshot: the entry after an event is the entry before the next event of its key, or the one in the table.
    pub(crate) fn link(&mut self, entries: &EntryTable) {
        let mut later: BTreeMap<Key, Option<Arc<Entry>>> = BTreeMap::new();
        let mut linked = Vector::new();
        while let Some(event) = self.events.pop_back() {
            let EntryEvent { revision, key, before, .. } = Arc::unwrap_or_clone(event);
            let after = match later.insert(key.clone(), before.clone()) {
                Some(after) => after,
                None => entries.get(&key).map(as_written),
            };

            linked.push_front(Arc::new(EntryEvent { revision, key, before, after }));
        }
        self.events = linked;
    }
}

/// The entry as its last write left it, without the lock that it claims and without its children: a claim may be granted its lock, and a
/// child may be made or end, without a write of the entry. So they are no part of the history.
pub(crate) fn as_written(entry: &Arc<Entry>) -> Arc<Entry> {
    if entry.claim.is_none() && entry.children().is_none() {
        return Arc::clone(entry);
    }
    Arc::new(Entry { claim: None, ..entry.with_children(None) })
}
