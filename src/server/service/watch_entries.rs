//! Watching the entries of a range.
//!
//! The watcher gets the events of the range in the order of their revisions, from the history in this node's own table. Past and present
//! events come the same way: the stream has a position, and sends what the history has after it. So no event is missing or repeated where a
//! replay goes over into new events, after a restart of the stream at another node, or after a snapshot that this node has installed.
//!
//! Nothing is queued for a watcher: a slow watcher continues from the history, and one that is slower than the history gets an error
//! ([`FailureReason::RevisionCompacted`](crate::api::FailureReason::RevisionCompacted)). A message is built when the watcher has room for
//! it. Only events of its range wake a watcher that waits, however much happens elsewhere: see [`lockkeeper_table::watch_index`].
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
use lockkeeper_table::watch_index::{Concerned, Next, Subscription, WatchIndex};

/// Bytes after which a message is closed. One event has less than a megabyte.
const MESSAGE_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that an event takes in a message beside its key and values.
const FIXED_BYTES: usize = 256;
/// Number of events of any range that are looked at before other tasks run.
const LOOK: usize = 1024;
/// After this time without an event, the watcher gets the revision up to which no event was for it.
const PROGRESS: Duration = Duration::from_secs(1);
/// A stream ends at a node that knows no leader after this many checks, one after each [`PROGRESS`].
const LEADERLESS_MAX: u32 = 10;

/// Starts a watch. Fails if the node has too many.
pub(super) fn start(
    replica: Replica,
    request: WatchEntries,
    owner: &str,
) -> Result<impl Stream<Item = Result<EntriesWatched, Error>> + Send + use<>, Error> {
    let WatchEntries { range, from, with_previous } = request;
    let history = replica.table().history_of_entries();

    let before = from.map(|from| Revision(from.0.saturating_sub(1)));
    let complete = before.unwrap_or_else(|| replica.table().notified_revision());

    let subscription = replica.table().watches_of_entries().subscribe(range.clone().into(), owner);
    let subscription = subscription.map_err(Error::too_many_watches)?;
    let place = RangeProgress { range, with_previous, complete, within: None };
    let position = WatchPosition { place, subscription, owes: true };
    Ok(messages(EntryWatcher { replica, history, position, leaderless: 0 }))
}

/// Wakes the watches for events that the applier leaves to this task, until the table is gone. A node has one of these tasks.
pub(super) async fn dispatch(replica: &Replica) {
    let mut histories = replica.table().history_of_entries();
    let mut dispatcher = Dispatcher { index: replica.table().watches_of_entries().clone(), within: None };
    loop {
        let history = histories.borrow_and_update().clone();
        while let Some(look) = dispatcher.look(&history, LOOK) {
            look.found.wake().await;
            dispatcher.index.complete(look.complete.0);
        }

        // While nothing happens, a copy that is kept would keep events in memory which are forgotten by then.
        drop(history);
        if histories.changed().await.is_err() {
            return;
        }
    }
}

struct Dispatcher {
    index: WatchIndex,
    /// While a revision is dispatched in part: the revision, and the key up to which its events were looked at.
    within: Option<(Revision, Key)>,
}

impl Dispatcher {
    /// Looks at the next events, up to this number, and finds the watches that they concern. Returns `None` if there are no further events.
    fn look(&mut self, history: &EntryHistory, most: usize) -> Option<Look> {
        let mut turn = self.index.turn();
        let mut found = Concerned::default();
        let dispatched = Revision(turn.dispatched());
        let (revision, key) = self.within.as_ref().map_or((dispatched, None), |(revision, key)| (*revision, Some(key)));
        let Ok(events) = history.after(revision, key) else {
            // The history dropped them before they were looked at, so wake everybody.
            turn.find_all(&mut found);
            self.within = None;
            return Some(Look { found, complete: history.compacted() });
        };

        let mut events = events.peekable();
        let mut last = None;
        for event in events.by_ref().take(most) {
            turn.find(event.key.as_bytes(), event.revision.0, &mut found);
            last = Some(event);
            if found.is_large() {
                break;
            }
        }

        let last = last?;
        let is_whole = events.peek().is_none_or(|next| next.revision != last.revision);
        self.within = (!is_whole).then(|| (last.revision, last.key.clone()));
        Some(Look { found, complete: Revision(last.revision.0 - u64::from(!is_whole)) })
    }
}

/// What the dispatcher has looked at. Once the watches that it found are woken, all events up to `complete` are dispatched.
struct Look {
    found: Concerned,
    complete: Revision,
}

impl Watching for EntryWatcher {
    type Message = EntriesWatched;

    fn message(&mut self) -> impl Future<Output = Result<EntriesWatched, Error>> + Send {
        Self::message(self)
    }
}

/// One watch of the entries of a range.
struct EntryWatcher {
    replica: Replica,
    history: watch::Receiver<EntryHistory>,
    position: WatchPosition,
    /// Number of consecutive checks without a leader.
    leaderless: u32,
}

/// How far a stream is, and what wakes it.
struct WatchPosition {
    place: RangeProgress,
    subscription: Subscription,
    /// Whether the watcher waits to hear that a revision is complete: at first, and after a part of a revision.
    owes: bool,
}

/// What a stream does next.
#[derive(PartialEq, Eq, Debug)]
enum StreamStep {
    /// Sends this message.
    Tell(EntriesWatched),
    /// Found nothing yet, and may find something.
    GoOn,
    /// Waits to be woken.
    Wait,
}

/// What a stream shows, and how far it has come.
struct RangeProgress {
    range: KeyRange,
    with_previous: bool,
    /// All events up to this revision were looked at.
    complete: Revision,
    /// In a later revision, the events up to this key were looked at too.
    within: Option<(Revision, Key)>,
}

impl EntryWatcher {
    /// The next message. An error ends the stream.
    async fn message(&mut self) -> Result<EntriesWatched, Error> {
        loop {
            match self.position.step(|| self.history.borrow().clone()).map_err(Error::revision)? {
                StreamStep::Tell(message) => return Ok(message),
                StreamStep::GoOn => yield_now().await,
                StreamStep::Wait => {
                    if timeout(PROGRESS, self.position.subscription.woken()).await.is_err() {
                        self.check_leader()?;
                        // In this order: an event that comes in between has a higher revision.
                        let revision = self.replica.table().notified_revision();
                        let place = self.history.borrow().place();
                        if let Some(message) = self.position.progress(revision, place) {
                            return Ok(message);
                        }
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

impl WatchPosition {
    /// Returns the next step. `history` returns the present history.
    fn step(&mut self, history: impl FnOnce() -> EntryHistory) -> Result<StreamStep, RevisionError> {
        // The rest of a revision that was told in part comes first.
        if self.place.within.is_none() && self.is_done() && !self.owes {
            return Ok(StreamStep::Wait);
        }

        let (events, more) = self.place.next(&history())?;

        if !events.is_empty() || self.owes && self.place.within.is_none() {
            let complete = self.place.complete;
            self.owes = events.last().is_some_and(|last| last.revision > complete);
            return Ok(StreamStep::Tell(EntriesWatched { events, complete }));
        }
        Ok(if more { StreamStep::GoOn } else { StreamStep::Wait })
    }

    /// Skips what does not concern the watcher. Returns whether nothing is left that concerns it, for now.
    fn is_done(&mut self) -> bool {
        let next = self.subscription.next(self.place.complete.0);
        let (Next::Nothing { up_to: complete } | Next::Look { after: complete }) = next;
        self.place.complete = Revision(complete);
        matches!(next, Next::Nothing { .. })
    }

    /// Returns, after a wait without an event, up to which revision no event concerns the watcher. `revision` is one of the keyspace, and
    /// `place` that of a history that has all events up to it. Returns `None` if there is something to look at.
    fn progress(&mut self, revision: Revision, place: (Revision, Option<Revision>)) -> Option<EntriesWatched> {
        if !self.is_done() {
            return None;
        }

        // The history may have events, or may have dropped some, that were not dispatched yet.
        let (compacted, last) = place;
        if last.unwrap_or_default().max(compacted) <= self.place.complete {
            // Changes of other things than entries have revisions, too.
            self.place.complete = self.place.complete.max(revision);
        }
        Some(EntriesWatched { events: Vec::new(), complete: self.place.complete })
    }
}

impl RangeProgress {
    /// Takes the next events of the range, and says whether there may be more of them now.
    fn next(&mut self, history: &EntryHistory) -> Result<(Vec<EntryEvent>, bool), RevisionError> {
        let (revision, key) = match &self.within {
            Some((revision, key)) => (*revision, Some(key)),
            None => (self.complete, None),
        };

        let mut after = history.after(revision, key)?.peekable();

        let mut events = Vec::new();
        let mut bytes = 0;
        let mut looked_at = 0;
        let mut last = None;
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
                // No event lies between the revision before this one and this one.
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
    use futures::FutureExt as _;
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

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

    fn place(complete: u64) -> RangeProgress {
        RangeProgress { range: KeyRange::default(), with_previous: false, complete: Revision(complete), within: None }
    }

    #[test]
    fn a_revision_that_exceeds_a_message_is_sent_in_parts() {
        const KEYS: usize = 20;
        let mut machine = Machine::default();
        put(&mut machine, 0..KEYS, 1);
        put(&mut machine, 0..KEYS, MESSAGE_BYTES / 4);
        put(&mut machine, 0..KEYS, 1);
        let mut place = place(0);
        let mut parts = 0;
        let mut sent = Vec::new();
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
        let mut place = RangeProgress { range, with_previous: true, ..place(0) };
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
        let mut slow = place(0);
        let mut within = place(1);
        let mut done = place(3);
        let (events, more) = within.next(machine.history()).expect("nothing is compacted");
        assert!(events.len() == 1 && more && within.complete == Revision(1));
        machine.apply(Time::default(), Command::Compact { revision: Revision(2) }, &mut Vec::new());
        let compacted = Err(RevisionError::Compacted { compacted: Revision(2) });
        assert_eq!(slow.next(machine.history()), compacted);
        assert_eq!(within.next(machine.history()), compacted, "the rest of its revision is forgotten");
        assert_eq!(done.next(machine.history()), Ok((Vec::new(), false)));
    }

    /// Each watcher tells the events of its range, all of them once and in order, however its looks, those of the index and new events come
    /// one after the other. One that no event concerns follows without a look.
    #[test]
    fn watchers_tell_their_events_whenever_they_are_woken() {
        let mut taken = 0;
        for seed in 0..500 {
            let random = &mut StdRng::seed_from_u64(seed);
            let mut machine = Machine::default();
            let index = WatchIndex::default();
            let mut dispatcher = Dispatcher { index: index.clone(), within: None };
            let mut watchers = Vec::new();
            let mut expected = Vec::<(Revision, Key)>::new();
            // Concerned, and not woken yet.
            let mut found: Option<Look> = None;
            for _ in 0..300 {
                match random.random_range(0..10) {
                    0 if watchers.len() < 8 => {
                        let from = random.random_range(0..20);
                        let to = random.random_range(from..=20);
                        let range = KeyRange { from: Some(key(from)), to: Some(key(to)) };
                        let complete = Revision(random.random_range(0..=machine.revision().0));
                        let subscription = index.subscribe(range.clone().into(), "ann").expect("room");
                        let place = RangeProgress { range, with_previous: false, complete, within: None };
                        watchers.push((WatchPosition { place, subscription, owes: true }, complete, Vec::new()));
                    }
                    0..4 => {
                        let first = random.random_range(0..20);
                        let keys = first..first + random.random_range(1..4);
                        let bytes = if random.random_bool(0.2) { MESSAGE_BYTES } else { 1 };
                        put(&mut machine, keys.clone(), bytes);
                        let events: Vec<_> = keys.map(|number| (machine.revision(), key(number))).collect();
                        let seen = || events.iter().map(|(at, key)| (key.as_bytes(), at.0));
                        let revision = machine.revision();
                        if random.random_bool(0.7) {
                            taken += u32::from(index.take(seen, revision.0));
                        } else {
                            index.leave(revision.0);
                        }
                        expected.extend(events);
                    }
                    4..6 => match found.take() {
                        Some(look) => finish(&index, look),
                        None => found = dispatcher.look(machine.history(), random.random_range(1..5)),
                    },
                    _ if watchers.is_empty() => {}
                    _ => {
                        let at = random.random_range(0..watchers.len());
                        step(&mut watchers[at], &machine);
                    }
                }
            }
            found.into_iter().for_each(|look| finish(&index, look));
            look_at_all(&mut dispatcher, machine.history());
            for watcher in &mut watchers {
                while step(watcher, &machine) != StreamStep::Wait {}
                let (position, begins, told) = &*watcher;
                let is_its =
                    |(revision, key): &&(Revision, Key)| revision > begins && position.place.range.contains(key);
                assert!(expected.iter().filter(is_its).eq(told), "seed {seed}: {told:?}");
                assert_eq!(position.place.complete, machine.revision().max(*begins), "seed {seed}");
            }
        }
        assert!(taken > 1_000, "{taken}");
    }

    fn finish(index: &WatchIndex, Look { found, complete }: Look) {
        // It does not wait for anything.
        futures::executor::block_on(found.wake());
        index.complete(complete.0);
    }

    fn look_at_all(dispatcher: &mut Dispatcher, history: &EntryHistory) {
        while let Some(look) = dispatcher.look(history, LOOK) {
            finish(&dispatcher.index, look);
        }
    }

    fn step(watcher: &mut (WatchPosition, Revision, Vec<(Revision, Key)>), machine: &Machine) -> StreamStep {
        let (position, _, told) = watcher;
        let step = position.step(|| machine.history().clone()).expect("nothing is compacted");
        if let StreamStep::Tell(message) = &step {
            told.extend(message.events.iter().map(|event| (event.revision, event.key.clone())));
            assert!(told.iter().all(|(revision, _)| *revision <= message.complete) || position.owes);
        }
        step
    }

    #[test]
    fn a_watcher_that_no_event_concerns_is_not_woken_and_misses_no_compaction() {
        let mut machine = Machine::default();
        let index = WatchIndex::default();
        let mut dispatcher = Dispatcher { index: index.clone(), within: None };
        let range = KeyRange { from: Some(key(7)), to: Some(key(8)) };
        let subscription = index.subscribe(range.clone().into(), "ann").expect("room");
        let complete = machine.revision();
        let place = RangeProgress { range, with_previous: false, complete, within: None };
        let mut watcher = (WatchPosition { place, subscription, owes: false }, complete, Vec::new());
        assert_eq!(step(&mut watcher, &machine), StreamStep::Wait);
        (0..3).for_each(|_| put(&mut machine, 0..3, 1));
        look_at_all(&mut dispatcher, machine.history());
        assert_eq!(watcher.0.subscription.woken().now_or_never(), None, "the events are others'");
        machine.apply(Time::default(), Command::Compact { revision: machine.revision() }, &mut Vec::new());
        put(&mut machine, 7..8, 1);
        look_at_all(&mut dispatcher, machine.history());
        assert_eq!(watcher.0.subscription.woken().now_or_never(), Some(()));
        assert!(matches!(step(&mut watcher, &machine), StreamStep::Tell(told) if told.events.len() == 1));
        let known = watcher.0.place.complete;
        // The index itself comes too late: then nobody knows what was missed.
        put(&mut machine, 0..3, 1);
        machine.apply(Time::default(), Command::Compact { revision: machine.revision() }, &mut Vec::new());
        put(&mut machine, 0..3, 1);
        // Until then it is told of no progress beyond.
        let place = machine.history().place();
        let told = watcher.0.progress(machine.revision(), place).expect("nothing that was looked at");
        assert_eq!((told.events.len(), told.complete), (0, known));
        look_at_all(&mut dispatcher, machine.history());
        let missed = watcher.0.step(|| machine.history().clone());
        assert!(matches!(missed, Err(RevisionError::Compacted { .. })), "{missed:?}");
    }
}
