//! Watching the locks under a prefix.
//!
//! First their present state, as of one log entry, then every change after it; or, for a watcher that comes back, the changes after the
//! entry that it names, as long as they are known. A watcher that lags too far behind is sent the state again, rather than slow anybody down. The stream ends when this node no longer leads, or is cut off from most members: its client
//! goes on at the new leader.
//!
//! A message is made when the client has room for it, and not before: nothing is buffered here for one that does not read, but for the
//! clone of the table that its state is read from. [`super::unread`] limits how long that one is kept.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{Stream, stream::unfold};
use prost::Message as _;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::timeout,
};
use tonic::Status;

use super::{
    PATIENCE, convert,
    errors::{no_leader, no_reply},
    pages::{PageLimit, page_of_locks},
};
use crate::{
    machine::LockName,
    planted::Planted,
    proto::v1::{
        WatchResponse,
        watch_response::{self, Progress, State, TooOld, What},
    },
    raft::{
        Replica,
        leadership::Led,
        table::{Applied, Changes},
    },
};

/// One part of the state.
const PART: PageLimit = PageLimit { locks: 256, bytes: MESSAGE_BYTES };
/// Bytes after which a message is closed. What one log entry changes has no limit that a client's buffers would hold: it is split.
const MESSAGE_BYTES: usize = 64 * 1024;
/// After so long without anything else, the watcher is told that there was nothing.
const PROGRESS: Duration = Duration::from_secs(1);

/// Starts to serve a watcher, after this entry if it is not 0. Fails if this node does not lead.
pub(super) async fn start(
    replica: Replica,
    prefix: String,
    after: u64,
) -> Result<impl Stream<Item = Result<WatchResponse, Status>> + Send + 'static, Status> {
    // Subscribed before the state is taken: what comes in both is left out by its index.
    let changes = replica.table().changes();
    let state = replica.read(PATIENCE, Applied::clone).await.map_err(no_reply)?;
    let led = replica.led();
    // One from beyond is of another cluster.
    let is_known = after > 0 && after <= state.index();
    let missed = is_known.then(|| replica.table().changes_after(after)).flatten();
    let state = || Part::State { table: Box::new(state), after: None };
    let (next, missed) = match missed {
        Some(missed) => (Part::News, missed),
        None if after > 0 => (Part::TooOld { after, state: Box::new(state()) }, Vec::new()),
        None => (state(), Vec::new()),
    };
    let watcher = Watcher { replica, prefix, led, missed: missed.into(), changes, shown: after, next };
    Ok(unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        let message = watcher.message().await;
        let rest = message.is_ok().then_some(watcher);
        Some((message, rest))
    }))
}

/// One stream.
struct Watcher {
    replica: Replica,
    prefix: String,
    led: Led,
    /// What a watcher that came back does not know yet.
    missed: VecDeque<Arc<Changes>>,
    changes: broadcast::Receiver<Arc<Changes>>,
    /// The last entry whose changes were sent, or are in the state that was.
    shown: u64,
    next: Part,
}

/// What the next message is made of.
enum Part {
    /// What changed after this entry is not known any more; the state follows.
    TooOld { after: u64, state: Box<Part> },
    /// The locks after this one, in a clone of the table.
    State { table: Box<Applied>, after: Option<LockName> },
    /// The changes of an entry from this one on.
    Changes { entry: Arc<Changes>, from: usize },
    /// All that was known was sent.
    News,
}

impl Watcher {
    /// The next message, waited for as long as it takes. An error ends the stream.
    async fn message(&mut self) -> Result<WatchResponse, Status> {
        loop {
            let what = match std::mem::replace(&mut self.next, Part::News) {
                Part::TooOld { after, state } => {
                    self.next = *state;
                    Some(What::TooOld(TooOld { after_index: after }))
                }
                Part::State { table, after } => Some(self.part_of_state(table, after)),
                Part::Changes { entry, from } => self.part_of_changes(entry, from),
                Part::News => self.news().await?,
            };
            if what.is_some() {
                return Ok(WatchResponse { what });
            }
        }
    }

    fn part_of_state(&mut self, table: Box<Applied>, after: Option<LockName>) -> What {
        let (locks, next) = page_of_locks(&table.machine, &self.prefix, after.as_ref(), PART);
        let (index, first) = (table.index(), after.is_none());
        // The names in a table are valid names; an empty one says that this was the last page.
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
                self.changes = self.replica.table().changes();
            }
        }
        What::State(State { locks, index, first, last })
    }

    /// `None`: no more of them concern this watcher.
    fn part_of_changes(&mut self, entry: Arc<Changes>, from: usize) -> Option<What> {
        let is_watched = |at: &usize| entry.changes[*at].name.as_str().starts_with(&self.prefix);
        let mut watched = (from..entry.changes.len()).filter(is_watched);
        let (mut changes, mut bytes) = (Vec::new(), 0);
        let more = loop {
            let Some(at) = watched.next() else { break None };
            if bytes >= MESSAGE_BYTES {
                break Some(at);
            }
            let change = convert::show_change(&entry.changes[at]);
            bytes += change.encoded_len();
            changes.push(change);
        };
        self.shown = entry.index;
        let (index, is_empty) = (entry.index, changes.is_empty());
        let message = watch_response::Changes { index, changes, more: more.is_some() };
        if let Some(from) = more {
            self.next = Part::Changes { entry, from };
        }
        (!is_empty).then_some(What::Changes(message))
    }

    /// Waits for the next entry that changes a lock. `None`: there is one, and it is in `next`.
    async fn news(&mut self) -> Result<Option<What>, Status> {
        if let Some(entry) = self.missed.pop_front() {
            self.next = Part::Changes { entry, from: 0 };
            return Ok(None);
        }
        loop {
            if self.led.borrow_and_update().is_none() {
                return Err(no_leader());
            }
            let received = tokio::select! {
                received = timeout(PROGRESS, self.changes.recv()) => received,
                changed = self.led.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Err(no_leader()),
                },
            };
            match received {
                Ok(Ok(entry)) if entry.index <= self.shown => {}
                Ok(Ok(entry)) => {
                    self.next = Part::Changes { entry, from: 0 };
                    return Ok(None);
                }
                Ok(Err(RecvError::Lagged(_))) => {
                    let table = Box::new(self.replica.table().read(Applied::clone));
                    self.next = Part::State { table, after: None };
                    return Ok(None);
                }
                Ok(Err(RecvError::Closed)) => return Err(no_leader()),
                // Its table stands still, and another node may lead by now.
                Err(_) if self.replica.cut_off() => return Err(no_leader()),
                Err(_) => {
                    // The index first: a change that comes between the two is then still in the channel, with a higher one.
                    let index = self.replica.table().told();
                    if self.changes.is_empty() {
                        return Ok(Some(What::Progress(Progress { index })));
                    }
                }
            }
        }
    }
}
