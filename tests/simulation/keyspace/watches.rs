//! What a watch of the keyspace must have sent: every event of its range, once, in order, and nothing else.

use lockkeeper::{
    machine::{EntryEvent, KeyRange, Revision},
    table::{
        Malformed,
        codec::keyspace::{read_entry, read_key},
        messages as pb,
    },
};

use super::truth::Truth;

/// A watch, as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) node: String,
    pub(crate) range: KeyRange,
    /// The first revision that it asked for; without one, it began where the node was.
    pub(crate) from: Option<Revision>,
    pub(crate) with_previous: bool,
    /// All events before this revision were sent, or not asked for.
    complete: Option<Revision>,
    /// Where the stream says that it began.
    began: Option<Revision>,
    events: Vec<EntryEvent>,
}

impl Watch {
    pub(crate) fn new(node: String, range: KeyRange, from: Option<Revision>, with_previous: bool) -> Self {
        Self { node, range, from, with_previous, complete: None, began: None, events: Vec::new() }
    }

    /// Adds a message of the stream. Fails if it does not go on where the last one ended.
    pub(crate) fn receive(&mut self, message: &pb::EntriesWatched) -> Result<(), String> {
        let complete = Revision(message.complete);
        if self.complete.is_some_and(|before| before > complete) {
            return Err(format!("it was complete up to {:?}, and then up to {complete:?}", self.complete));
        }
        if self.complete.is_none() && self.from.is_none() && message.events.is_empty() {
            self.began = Some(complete);
        }
        for event in &message.events {
            let event = read_event(event).map_err(|error| format!("an event cannot be read: {error:?}"))?;
            if let Some(last) = self.events.last()
                && (last.revision, &last.key) >= (event.revision, &event.key)
            {
                return Err(format!("{:?} at {:?} comes after {:?}", event.key, event.revision, last.revision));
            }
            if self.complete.is_some_and(|complete| event.revision <= complete) {
                return Err(format!("an event at {:?} comes after all up to {:?}", event.revision, self.complete));
            }
            self.events.push(event);
        }
        self.complete = Some(complete);
        Ok(())
    }

    /// The number of events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Where a watch that goes on after this one has to begin.
    pub(crate) fn next(&self) -> Option<Revision> {
        Some(Revision(self.complete?.0 + 1))
    }

    /// How it differs from what was there; `None`: not at all.
    pub(crate) fn judge(&self, truth: &Truth) -> Option<String> {
        let complete = self.complete?;
        let first_seen = self.events.first().map(|event| event.revision);
        // Without a beginning, the events have no gap from the first one on.
        let begins = self.from.or_else(|| self.began.map(|began| Revision(began.0 + 1))).or(first_seen)?;
        let last = self.events.last().map_or(complete, |last| last.revision.max(complete));
        if !truth.is_whole(Revision(begins.0.saturating_sub(1)), last) {
            return None;
        }

        let mut received = self.events.iter();
        for right in truth.between(&self.range, begins, last) {
            match received.next() {
                Some(event) if self.is_shown(event, right) => {}
                // Of the last revision it may have got a part.
                None if right.revision > complete => return None,
                other => {
                    return Some(format!(
                        "the watch of {:?} at {} from {begins:?} sent {other:?} instead of {right:?}; it was complete up to {complete:?}",
                        self.range, self.node
                    ));
                }
            }
        }
        let more = received.next()?;
        Some(format!("the watch of {:?} at {} sent {more:?}, which never happened", self.range, self.node))
    }

    fn is_shown(&self, event: &EntryEvent, right: &EntryEvent) -> bool {
        let before = if self.with_previous { &right.before } else { &None };
        event.revision == right.revision
            && event.key == right.key
            && event.after == right.after
            && event.before == *before
    }
}

fn read_event(event: &pb::EntryEvent) -> Result<EntryEvent, Malformed> {
    let pb::EntryEvent { revision, key, before, after } = event;
    Ok(EntryEvent {
        revision: Revision(*revision),
        key: read_key(key)?,
        before: before.as_ref().map(read_entry).transpose()?,
        after: after.as_ref().map(read_entry).transpose()?,
    })
}
