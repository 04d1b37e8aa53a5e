//! What the keyspace really was: its events in the order of the log, as the first node that applied each entry had them.
//!
//! All nodes have equal tables, which the run checks elsewhere. So what a client is told of any node, in any reply and on
//! any watch, must be a part of this one history.

use std::{collections::BTreeMap, sync::Arc};

use lockkeeper::{
    machine::{Entry, EntryEvent, Key, KeyRange, Machine, Revision},
    table::Applied,
};

/// The history of a run.
#[derive(Default, Debug)]
pub(crate) struct Truth {
    /// The last entry of the log whose events are here.
    index: u64,
    /// All events up to this revision are here, but for the gaps.
    complete: Revision,
    /// In the order of revisions, and within one of keys.
    events: Vec<Arc<EntryEvent>>,
    /// The places of the events of each key.
    by_key: BTreeMap<Key, Vec<usize>>,
    /// What was under each key from a revision on.
    states: BTreeMap<Key, Vec<Since>>,
    /// After the first revision and up to the second, events are missing: one entry of the log made more than the table keeps. The states
    /// at the second one are here.
    gaps: Vec<(Revision, Revision)>,
}

/// From a revision on, what was under a key.
type Since = (Revision, Option<Arc<Entry>>);

impl Truth {
    /// Adds the events of an entry of the log, if it is the next one. Fails if they do not follow from what was there before.
    pub(crate) fn note(&mut self, applied: &Applied) -> Result<(), String> {
        if applied.index() <= self.index {
            return Ok(());
        }
        self.index = applied.index();

        let machine = &applied.machine;
        let known = machine.history().compacted().max(self.complete);
        if known > self.complete {
            self.gaps.push((self.complete, known));
            self.look_again(machine, known)?;
        }
        let new = machine.history().after(known, None).map_err(|error| error.to_string())?;
        for event in new {
            self.add(event)?;
        }
        self.complete = machine.revision();
        Ok(())
    }

    /// Notes what is under every key after a gap.
    fn look_again(&mut self, machine: &Machine, revision: Revision) -> Result<(), String> {
        let all = KeyRange::default();
        let past = machine.entries_at(&all, revision).map_err(|error| error.to_string())?;
        // Events show no claims.
        let as_written = |entry: Arc<Entry>| Arc::new(Entry { claim: None, ..Entry::clone(&entry) });
        let mut present: BTreeMap<_, _> =
            past.iter(false).map(|(key, entry)| (key.clone(), as_written(entry))).collect();
        for (key, states) in &mut self.states {
            states.push((revision, present.remove(key)));
        }
        self.states.extend(present.into_iter().map(|(key, entry)| (key, vec![(revision, Some(entry))])));
        Ok(())
    }

    fn add(&mut self, event: &Arc<EntryEvent>) -> Result<(), String> {
        let EntryEvent { revision, key, before, after } = &**event;
        if let Some(last) = self.events.last()
            && (last.revision, &last.key) >= (*revision, key)
        {
            return Err(format!("the event of {key:?} at {revision:?} comes after one of {:?}", last.revision));
        }

        let was = self.last(key).and_then(|last| last.after.as_ref());
        let is_known = !self.gaps.iter().any(|(_, to)| self.last(key).is_none_or(|last| last.revision <= *to));
        if is_known && was != before.as_ref() {
            return Err(format!("the event of {key:?} at {revision:?} begins with {before:?}, but there was {was:?}"));
        }

        self.states.entry(key.clone()).or_default().push((*revision, after.clone()));
        self.by_key.entry(key.clone()).or_default().push(self.events.len());
        self.events.push(Arc::clone(event));
        Ok(())
    }

    fn last(&self, key: &Key) -> Option<&Arc<EntryEvent>> {
        self.by_key.get(key)?.last().map(|place| &self.events[*place])
    }

    /// Whether it has an event of this key.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Whether events of it are missing.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// The number of its events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it has all events after the first revision and up to the second.
    pub(crate) fn is_whole(&self, after: Revision, to: Revision) -> bool {
        to <= self.complete && self.gaps.iter().all(|(from, until)| *until <= after || *from >= to)
    }

    /// The events of a range from one revision to another, both included.
    pub(crate) fn between<'a>(
        &'a self,
        range: &'a KeyRange,
        from: Revision,
        to: Revision,
    ) -> impl Iterator<Item = &'a Arc<EntryEvent>> {
        let first = self.events.partition_point(|event| event.revision < from);
        let events = self.events[first..].iter().take_while(move |event| event.revision <= to);
        events.filter(|event| range.contains(&event.key))
    }

    /// The event of a key at exactly this revision.
    pub(crate) fn event(&self, key: &Key, revision: Revision) -> Option<&Arc<EntryEvent>> {
        let place = self.last_place(key, revision)?;
        Some(&self.events[place]).filter(|event| event.revision == revision)
    }

    fn last_place(&self, key: &Key, revision: Revision) -> Option<usize> {
        let places = self.by_key.get(key)?;
        let after = places.partition_point(|place| self.events[*place].revision <= revision);
        places.get(after.checked_sub(1)?).copied()
    }

    /// What was under a key at a revision.
    pub(crate) fn entry(&self, key: &Key, revision: Revision) -> Option<&Arc<Entry>> {
        let states = self.states.get(key)?;
        let after = states.partition_point(|(from, _)| *from <= revision);
        states.get(after.checked_sub(1)?)?.1.as_ref()
    }

    /// The entries of a range at a revision.
    pub(crate) fn entries<'a>(
        &'a self,
        range: &'a KeyRange,
        revision: Revision,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Entry>)> {
        let keys = self.states.keys().filter(|key| range.contains(key));
        keys.filter_map(move |key| Some((key, self.entry(key, revision)?)))
    }
}
