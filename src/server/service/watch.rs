//! Watching the locks under a prefix.
//!
//! The watcher gets the state of the locks as of one log entry, then every change after it. A watcher that comes back names the last entry
//! that it knows, and gets the changes after it, as long as the node still has them. A watcher that lags by more entries than the node
//! keeps gets the state again: it never slows down applying. Only changes under its prefix wake a watcher that waits, however much happens
//! elsewhere: see [`lockkeeper_table::watch_index`].
//!
//! The stream ends when this node no longer leads in the term in which the stream began, or is cut off from most members: its client goes
//! on at the new leader. In a later term, this node may have installed another one's snapshot meanwhile, and not know all changes.
//!
//! A message is built when the client has room for it. For a client that does not read, nothing is buffered here but the clone of the table
//! from which the state is read; [`crate::unread`] limits how long that clone lives. Messages are limited in encoded bytes, so they
//! are built in that form.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{Stream, stream::unfold};
use prost::Message as _;
use tokio::{sync::broadcast::error::RecvError, time::timeout};

use super::{
    pages::{PageLimit, page_of_locks},
    patience::PATIENCE,
};
use crate::{api::Error, wire::views};
use lockkeeper_machine::{Change, LockName};
use lockkeeper_metrics::Metrics;
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{
    WatchResponse,
    watch_response::{self, Progress, State, TooOld, What},
};
use lockkeeper_raft::{Replica, proposals::leadership::Led};
use lockkeeper_table::{
    Applied,
    change_history::EntryChanges,
    watch_index::{Concerned, Next, Shape, Subscription, Turn},
};

/// The limits of one part of the state.
const PART: PageLimit = PageLimit { locks: 256, bytes: MESSAGE_BYTES };
/// Bytes after which a message is closed. The changes of one log entry may exceed every limit of a message: they are split.
const MESSAGE_BYTES: usize = 64 * 1024;
/// After this time without a change, the watcher gets a progress message.
const PROGRESS: Duration = Duration::from_secs(1);
/// Entries whose changes are looked at before the next ones are fetched.
const LOOK: usize = 64;

/// Starts a watch, after this entry if it is not 0. Fails if this node does not lead, or has too many watches.
pub(super) async fn start(
    replica: Replica,
    metrics: Metrics,
    prefix: String,
    after: u64,
    owner: &str,
) -> Result<impl Stream<Item = Result<WatchResponse, Error>> + Send + use<>, Error> {
    // Take both before the state, so that no change is missed.
    let mut led = replica.led();
    let term = term(&mut led).ok_or_else(Error::no_leader)?;
    let subscription = replica.table().watches_of_locks().subscribe(Shape::Prefix(prefix.as_bytes().into()), owner);
    let subscription = subscription.map_err(Error::too_many_watches)?;

    let state = replica.read(PATIENCE, Applied::clone).await.map_err(Error::no_reply)?;

    // An index above the last one comes from another cluster.
    let is_known = after > 0 && after <= state.index() && replica.table().changes_after(after, 0).is_some();
    let state = || Part::State { table: Box::new(state), after: None };
    let next = if is_known {
        Part::NextEntry
    } else if after > 0 {
        Part::TooOld { after, state: Box::new(state()) }
    } else {
        state()
    };

    let missed = VecDeque::new();
    Ok(messages(LockWatcher { replica, metrics, prefix, led, term, subscription, missed, shown: after, next }))
}

/// Returns the term in which this node leads, if it leads.
fn term(led: &mut Led) -> Option<u64> {
    led.borrow_and_update().as_ref().map(|leadership| leadership.term)
}

/// Wakes the watches for changes that the applier leaves to this task, until the table is gone. A node has one of these tasks.
pub(super) async fn dispatch(replica: &Replica) {
    let mut changes = replica.table().changes();
    let index = replica.table().watches_of_locks();

    loop {
        match changes.recv().await {
            Ok(entry) => {
                let mut changes = entry.changes.iter().peekable();
                while changes.peek().is_some() {
                    find(index.turn(), &mut changes, entry.index).wake().await;
                }
                index.complete(entry.index);
            }
            Err(RecvError::Lagged(_)) => {
                // Changes were missed, so each watch looks for itself what there is.
                let mut found = Concerned::default();
                index.turn().find_all(&mut found);
                found.wake().await;
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Finds the watches of the next changes of an entry.
fn find<'a>(mut turn: Turn<'_>, changes: &mut impl Iterator<Item = &'a Change>, index: u64) -> Concerned {
    let mut found = Concerned::default();
    while !found.is_large()
        && let Some(change) = changes.next()
    {
        turn.find(change.name.as_str().as_bytes(), index, &mut found);
    }
    found
}

/// The source of the messages of a watch.
pub(super) trait Watching: Send + 'static {
    /// A message of the stream.
    type Message: Send;

    /// The next message. An error ends the stream.
    fn message(&mut self) -> impl Future<Output = Result<Self::Message, Error>> + Send;
}

/// The messages of a watch, up to an error.
pub(super) fn messages<W: Watching>(
    watcher: W,
) -> impl Stream<Item = Result<W::Message, Error>> + Send + 'static + use<W> {
    unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        let message = watcher.message().await;
        let rest = message.is_ok().then_some(watcher);
        Some((message, rest))
    })
}

impl Watching for LockWatcher {
    type Message = WatchResponse;

    fn message(&mut self) -> impl Future<Output = Result<WatchResponse, Error>> + Send {
        Self::message(self)
    }
}

/// One watch of the locks under a prefix.
struct LockWatcher {
    replica: Replica,
    metrics: Metrics,
    prefix: String,
    led: Led,
    /// The term in which the stream began.
    term: u64,
    subscription: Subscription,
    /// The next changes, of any lock.
    missed: VecDeque<Arc<EntryChanges>>,
    /// The last entry that the watcher knows: its changes were sent, or the state sent includes it, or no entry up to it had any.
    shown: u64,
    next: Part,
}

/// What the next message is built from.
enum Part {
    /// The changes after this entry are no longer in memory, and the state follows.
    TooOld { after: u64, state: Box<Part> },
    /// The locks after this name, in a clone of the table.
    State { table: Box<Applied>, after: Option<LockName> },
    /// The changes of an entry, from this position on.
    Changes { entry: Arc<EntryChanges>, from: usize },
    /// Everything known was sent, so the next entry that changes a lock comes next.
    NextEntry,
}

impl LockWatcher {
    /// The next message. An error ends the stream.
    async fn message(&mut self) -> Result<WatchResponse, Error> {
        loop {
            let what = match std::mem::replace(&mut self.next, Part::NextEntry) {
                Part::TooOld { after, state } => {
                    self.next = *state;
                    Some(What::TooOld(TooOld { after_index: after }))
                }
                Part::State { table, after } => Some(self.part_of_state(table, after)),
                Part::Changes { entry, from } => self.part_of_changes(entry, from),
                Part::NextEntry => self.next_entry().await?,
            };

            if what.is_some() {
                return Ok(WatchResponse { what });
            }
        }
    }

    fn part_of_state(&mut self, table: Box<Applied>, after: Option<LockName>) -> What {
        let (locks, next) = page_of_locks(&table.machine, &self.prefix, after.as_ref(), PART);
        let index = table.index();
        let first = after.is_none();

        // Names in the table are valid, except the empty one, which marks the last page.
        let last = match LockName::new(&next) {
            Ok(name) => {
                self.next = Part::State { table, after: Some(name) };
                false
            }
            Err(_) => true,
        };

        if last {
            self.shown = index;
            if Planted::WatchAfterState.is_on() {
                self.shown = self.replica.table().notified();
            }
        }
        What::State(State { locks, index, first, last })
    }

    /// Returns `None` if none of the remaining changes is under the prefix.
    fn part_of_changes(&mut self, entry: Arc<EntryChanges>, from: usize) -> Option<What> {
        let is_watched = |at: &usize| entry.changes[*at].name.as_str().starts_with(&self.prefix);
        let mut watched = (from..entry.changes.len()).filter(is_watched);

        let mut changes = Vec::new();
        let mut bytes = 0;
        let more = loop {
            let Some(at) = watched.next() else { break None };
            if bytes >= MESSAGE_BYTES {
                break Some(at);
            }
            let change = views::show_change(&entry.changes[at]);
            bytes += change.encoded_len();
            changes.push(change);
        };

        self.shown = entry.index;
        let index = entry.index;
        let is_empty = changes.is_empty();
        let message = watch_response::Changes { index, changes, more: more.is_some() };
        if let Some(from) = more {
            self.next = Part::Changes { entry, from };
        }

        (!is_empty).then_some(What::Changes(message))
    }

    /// Waits for the next entry that changes a lock, and puts it into `next`. Returns a progress message instead, if no entry comes in
    /// time.
    async fn next_entry(&mut self) -> Result<Option<What>, Error> {
        loop {
            if let Some(entry) = self.missed.pop_front() {
                self.next = Part::Changes { entry, from: 0 };
                return Ok(None);
            }

            if term(&mut self.led) != Some(self.term) {
                return Err(Error::no_leader());
            }

            if !self.is_done() {
                let Some(missed) = self.replica.table().changes_after(self.shown, LOOK) else {
                    self.show_state_again();
                    return Ok(None);
                };
                self.missed = missed.into();
                // The change that woke the watcher is one that it has seen.
                if !self.missed.is_empty() {
                    continue;
                }
            }

            let woken = tokio::select! {
                woken = timeout(PROGRESS, self.subscription.woken()) => woken,
                changed = self.led.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Err(Error::no_leader()),
                },
            };

            // The table of a node that is cut off stands still, and another node may lead.
            if woken.is_err() && self.replica.cut_off() {
                return Err(Error::no_leader());
            }

            // Read the index first: a change that comes in between has a higher one.
            let index = self.replica.table().notified();
            if woken.is_err() && self.is_done() {
                match self.replica.table().changes_after(self.shown, 1) {
                    Some(next) if next.is_empty() => self.shown = self.shown.max(index),
                    // The dispatcher has not looked at this entry yet.
                    Some(_) => {}
                    None => {
                        self.show_state_again();
                        return Ok(None);
                    }
                }
                return Ok(Some(What::Progress(Progress { index: self.shown })));
            }
        }
    }

    /// Sends the state again to a watcher that lags by more than the node keeps.
    fn show_state_again(&mut self) {
        self.metrics.watch_lagged();
        let table = Box::new(self.replica.table().read(Applied::clone));
        self.next = Part::State { table, after: None };
    }

    /// Skips what does not concern the watcher. Returns whether nothing is left that concerns it, for now.
    fn is_done(&mut self) -> bool {
        let next = self.subscription.next(self.shown);
        let (Next::Nothing { up_to: shown } | Next::Look { after: shown }) = next;
        self.shown = shown;
        matches!(next, Next::Nothing { .. })
    }
}
