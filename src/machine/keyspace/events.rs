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

use std::{iter::from_fn, sync::Arc};

use crate::{table::as_written, *};

/// Events that are dropped for one unit of work.
const EVENTS_PER_UNIT: usize = 8;

impl Machine {
    /// The latest events of the keyspace.
    pub fn history(&self) -> &EntryHistory {
        &self.history
    }

    /// Fails on a revision whose state cannot be shown: below the compacted one, and above the present one.
    pub fn ensure_known(&self, revision: Revision) -> Result<(), RevisionError> {
        self.check_revision(revision)
    }

    /// The entry of a key at a revision. Fails below the compacted revision, and above the present one.
    pub fn entry_at(&self, key: &Key, revision: Revision) -> Result<Option<Arc<Entry>>, RevisionError> {
        self.check_revision(revision)?;
        if revision == self.revision() {
            return Ok(self.entry(key));
        }
        let event = self.history.first_of_key(key, revision);
        Ok(as_it_was(self.entries.get(key), event))
    }

    /// The entries that a range had at a revision. Fails below the compacted revision, and above the present one.
    pub fn entries_at<'a>(&'a self, range: &KeyRange, revision: Revision) -> Result<PastEntries<'a>, RevisionError> {
        self.check_revision(revision)?;
        Ok(PastEntries { machine: self, range: range.clone(), revision })
    }

    fn check_revision(&self, revision: Revision) -> Result<(), RevisionError> {
        let present = self.revision();
        let compacted = self.history.compacted();
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
        Ok(Reply::Compacted(self.history.compacted()))
    }

    /// Adds a change of an entry, at the revision that was issued last.
    pub(super) fn record_event(&mut self, key: &Key, before: Option<&Arc<Entry>>, after: Option<&Arc<Entry>>) {
        let before = before.map(as_written);
        let after = after.map(as_written);
        // A transaction may put a key and delete it again.
        let is_left_out = after.is_none() && Planted::DeletionWithoutEvent.is_on();
        if !is_left_out && (before.is_some() || after.is_some()) {
            self.history.push(EntryEvent { revision: self.revision(), key: key.clone(), before, after });
            self.trim_history();
        }
    }

    /// Drops what the history has beyond its limits, as far as the budget goes.
    pub(crate) fn trim_history(&mut self) {
        let mut dropped = 0;
        while self.history.exceeds(&self.capacity) && !self.batch.is_spent() {
            dropped += self.history.drop_first();
            self.batch.spend(dropped / EVENTS_PER_UNIT);
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
        let Self { machine, revision, .. } = *self;
        // A lease that is over now counts as over only at the present revision.
        let is_present = revision == machine.revision();
        let events = (!is_present).then(|| machine.history.first_of_each(&self.range, revision, backwards));
        let mut events = events.into_iter().flatten().peekable();
        let mut stored = directed(machine.entries.range(&self.range), backwards).peekable();

        from_fn(move || {
            let key = match (stored.peek().map(|(key, _)| *key), events.peek().map(|event| &event.key)) {
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
            let event = events.next_if(|event| event.key == *key);

            let found = match now {
                Some(entry) if is_present => machine.in_force(entry),
                now => as_it_was(now, event),
            };
            Some(found.map(|entry| (key, entry)))
        })
    }
}

/// The entry of a key at a past revision: the state before its first event since then, or the present entry if there is no event.
fn as_it_was(now: Option<&Arc<Entry>>, first_event: Option<&Arc<EntryEvent>>) -> Option<Arc<Entry>> {
    match first_event.filter(|_| !Planted::PastReadsPresent.is_on()) {
        Some(event) => event.before.clone(),
        None => now.map(as_written),
    }
}

fn directed<T>(mut items: impl DoubleEndedIterator<Item = T>, backwards: bool) -> impl Iterator<Item = T> {
    from_fn(move || if backwards { items.next_back() } else { items.next() })
}
