//! Watching the entries of a range.
//!
//! The watcher gets the events of the range in the order of their revisions, from the history in this node's own table. Past and present
//! events come the same way: the stream has a position, and sends what the history has after it. So there is no gap and no repetition where
//! a replay goes over into new events, after a restart of the stream at another node, or after a snapshot that this node has installed.
//!
//! Nothing is queued for a watcher: one that lags goes on in the history, and one that lags behind the history is told so
//! ([`Reason::RevisionCompacted`](crate::api::Reason::RevisionCompacted)). A message is built when the watcher has room for it.
//!
//! Any node serves a watch, as far as it has applied the log. The stream ends when this node has known no leader for [`LEADERLESS_MAX`]
//! checks: its copy stands still, and the watcher goes on at another node, after the last complete revision. A change of leader alone
//! interrupts nothing.

use std::time::Duration;

use futures::Stream;
use tokio::{sync::watch, task::yield_now, time::timeout};

use super::watch::{Watching, messages};
use crate::api::{
    Error,
    requests::{EntriesWatched, WatchEntries},
};
use lockkeeper_machine::{EntryEvent, EntryHistory, Key, KeyRange, Revision, RevisionError};
use lockkeeper_raft::Replica;

/// Bytes after which a message is closed. One event has less than a megabyte.
const MESSAGE_BYTES: usize = 64 * 1024;
/// What an event takes in a message beside its key and values, at the most.
const FIXED_BYTES: usize = 256;
/// Events of any range that are looked at before other tasks have their turn.
const LOOK: usize = 1024;
/// After this time without an event, the watcher is told up to which revision there was none.
const PROGRESS: Duration = Duration::from_secs(1);
/// Checks, one after each [`PROGRESS`], after which a stream ends at a node that knows no leader.
const LEADERLESS_MAX: u32 = 10;

/// Starts a watch.
pub(super) fn start(
    replica: Replica,
    request: WatchEntries,
) -> impl Stream<Item = Result<EntriesWatched, Error>> + Send + 'static {
    let WatchEntries { range, from, with_previous } = request;
    let history = replica.table().history_of_entries();
    let before = from.map(|from| Revision(from.0.saturating_sub(1)));
    let complete = before.unwrap_or_else(|| replica.table().notified_revision());
    let place = Place { range, with_previous, complete, within: None };
    let watcher = Watcher { replica, history, place, owes: true, leaderless: 0 };
    messages(watcher)
}

impl Watching for Watcher {
    type Message = EntriesWatched;

    fn message(&mut self) -> impl Future<Output = Result<EntriesWatched, Error>> + Send {
        Self::message(self)
    }
}

/// One stream.
struct Watcher {
    replica: Replica,
    history: watch::Receiver<EntryHistory>,
    place: Place,
    /// Whether the watcher waits to hear that a revision is complete: at first, and after a part of one.
    owes: bool,
    /// Checks without a leader.
    leaderless: u32,
}

/// What a stream shows, and how far it is.
struct Place {
    range: KeyRange,
    with_previous: bool,
    /// All events up to this revision were looked at.
    complete: Revision,
    /// And those of this later revision, up to this key.
    within: Option<(Revision, Key)>,
}

impl Watcher {
    /// The next message. An error ends the stream.
    async fn message(&mut self) -> Result<EntriesWatched, Error> {
        loop {
            let history = self.history.borrow_and_update().clone();
            let (events, more) = self.place.next(&history).map_err(Error::revision)?;
            drop(history);
            if !events.is_empty() || self.owes && self.place.within.is_none() {
                let complete = self.place.complete;
                self.owes = events.last().is_some_and(|last| last.revision > complete);
                return Ok(EntriesWatched { events, complete });
            }
            if more {
                yield_now().await;
                continue;
            }
            match timeout(PROGRESS, self.history.changed()).await {
                Ok(Ok(())) => {}
                // The table is gone.
                Ok(Err(_)) => return Err(Error::shutting_down()),
                Err(_) => {
                    self.check_leader()?;
                    // The revision first: an event that comes in between has a higher one, and shows as a change.
                    let revision = self.replica.table().notified_revision();
                    if !self.history.has_changed().unwrap_or(true) {
                        let complete = self.place.complete.max(revision);
                        self.place.complete = complete;
                        return Ok(EntriesWatched { events: Vec::new(), complete });
                    }
                }
            }
        }
    }

    fn check_leader(&mut self) -> Result<(), Error> {
        let own = self.replica.node_id();
        let is_heard = |(id, _)| id == own || !self.replica.is_silent(id);
        self.leaderless = if self.replica.leader().is_some_and(is_heard) { 0 } else { self.leaderless + 1 };
        if self.leaderless > LEADERLESS_MAX { Err(Error::no_leader()) } else { Ok(()) }
    }
}

impl Place {
    /// The next events of the range, and whether there may be more of them now.
    fn next(&mut self, history: &EntryHistory) -> Result<(Vec<EntryEvent>, bool), RevisionError> {
        let (revision, key) = match &self.within {
            Some((revision, key)) => (*revision, Some(key)),
            None => (self.complete, None),
        };
        let mut after = history.after(revision, key)?.peekable();
        let (mut events, mut bytes, mut looked_at, mut last) = (Vec::new(), 0, 0, None);
        while bytes < MESSAGE_BYTES
            && looked_at < LOOK
            && let Some(event) = after.next()
        {
            if self.range.contains(&event.key) {
                let before = event.before.clone().filter(|_| self.with_previous);
                let event = EntryEvent { before, ..EntryEvent::clone(event) };
                bytes += size(&event);
                events.push(event);
            }
            looked_at += 1;
            last = Some(event);
        }
        let next = after.peek().map(|next| next.revision);
        if let Some(last) = last {
            self.within = (next == Some(last.revision)).then(|| (last.revision, last.key.clone()));
            self.complete = match self.within {
                // No event is between the one before this revision and this one.
                Some(_) => Revision(last.revision.0 - 1).max(self.complete),
                None => last.revision,
            };
        }
        Ok((events, next.is_some()))
    }
}

fn size(event: &EntryEvent) -> usize {
    let values = [&event.before, &event.after].into_iter().flatten();
    FIXED_BYTES + event.key.as_bytes().len() + values.map(|entry| entry.value.as_bytes().len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{Command, Machine, Put, PutLease, Time, Txn, TxnOperation, Value};

    fn key(number: usize) -> Key {
        Key::new(format!("{number:06}").as_bytes()).expect("a key")
    }

    /// Puts a value of so many bytes under each of these keys, in one transaction.
    fn put(machine: &mut Machine, keys: impl Iterator<Item = usize>, bytes: usize) {
        let value = Value::new(&vec![7; bytes]).expect("in bounds");
        let put = |number| {
            TxnOperation::Put(Put { key: key(number), value: value.clone(), lease: PutLease::None, claims: None })
        };
        let txn = Txn::new(vec![], keys.map(put).collect(), vec![]).expect("in bounds");
        machine.apply(Time::default(), Command::Txn(txn), &mut Vec::new());
    }

    fn place(complete: u64) -> Place {
        Place { range: KeyRange::default(), with_previous: false, complete: Revision(complete), within: None }
    }

    #[test]
    fn a_revision_that_exceeds_a_message_is_sent_in_parts() {
        const KEYS: usize = 20;
        let mut machine = Machine::default();
        put(&mut machine, 0..KEYS, 1);
        put(&mut machine, 0..KEYS, MESSAGE_BYTES / 4);
        put(&mut machine, 0..KEYS, 1);
        let (mut place, mut parts, mut sent) = (place(0), 0, Vec::new());
        loop {
            let (events, more) = place.next(machine.history()).expect("nothing is compacted");
            assert!(events.iter().map(size).sum::<usize>() < 2 * MESSAGE_BYTES);
            parts += u32::from(place.within.is_some());
            let last = events.last().expect("some").revision;
            assert_eq!(place.complete, if place.within.is_some() { Revision(last.0 - 1) } else { last });
            sent.extend(events);
            if !more {
                break;
            }
        }
        assert!(parts >= 4, "{parts} parts");
        let shown: Vec<_> = sent.iter().map(|event| (event.revision.0, event.key.clone())).collect();
        let all = (1..=3).flat_map(|revision| (0..KEYS).map(move |number| (revision, key(number))));
        assert!(all.eq(shown), "{sent:?}");
        assert!(sent.iter().all(|event| event.before.is_none()), "it was not asked for");
        assert_eq!(place.next(machine.history()), Ok((Vec::new(), false)));
    }

    #[test]
    fn events_out_of_the_range_are_looked_at_in_parts_and_count_as_complete() {
        let mut machine = Machine::default();
        let some = LOOK / 100 + 1;
        (0..some).for_each(|_| put(&mut machine, 0..100, 1));
        put(&mut machine, 200..202, 1);
        let range = KeyRange { from: Some(key(201)), to: None };
        let mut place = Place { range, with_previous: true, ..place(0) };
        assert_eq!(place.next(machine.history()), Ok((Vec::new(), true)), "enough for one turn");
        assert!(place.complete.0 >= (LOOK / 100) as u64 - 1);
        let (events, more) = place.next(machine.history()).expect("nothing is compacted");
        let found: Vec<_> = events.iter().map(|event| event.key.clone()).collect();
        assert_eq!((found, more, place.complete), (vec![key(201)], false, machine.revision()));
    }

    #[test]
    fn a_watcher_that_lags_behind_the_history_is_told_so() {
        let mut machine = Machine::default();
        (0..3).for_each(|_| put(&mut machine, 0..3, MESSAGE_BYTES));
        let (mut slow, mut within, mut done) = (place(0), place(1), place(3));
        let (events, more) = within.next(machine.history()).expect("nothing is compacted");
        assert!(events.len() == 1 && more && within.complete == Revision(1));
        machine.apply(Time::default(), Command::Compact { revision: Revision(2) }, &mut Vec::new());
        let compacted = Err(RevisionError::Compacted { compacted: Revision(2) });
        assert_eq!(slow.next(machine.history()), compacted);
        assert_eq!(within.next(machine.history()), compacted, "the rest of its revision is forgotten");
        assert_eq!(done.next(machine.history()), Ok((Vec::new(), false)));
    }
}
