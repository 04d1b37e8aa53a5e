//! The table of sessions, locks and waiters: a pure function of the log.
//!
//! [`Machine::apply`] takes a command and the time at which it happens, changes the table, and returns a reply; what else the
//! command caused (a waiter was granted, a session expired) it reports as events. There is no clock, no I/O, no async and no
//! randomness here: time and session ids arrive inside commands, and every map is ordered. So every replica that applies the
//! same log computes the same table, the same replies and the same events, and a test needs neither sockets nor sleep.
//!
//! How it is told, file by file:
//!
//! * `sessions`: opened, renewed, closed; what the end of one takes with it;
//! * `replies`: each request happens once, however often it is sent;
//! * `locks`: one lock: who holds it, who queues for it, its data, its lock-delay;
//! * `queue`: acquires: granted, refused or queued, and who comes next;
//! * `grants`: tokens: given, released, lost; data set by their holders;
//! * `force`: an operator takes a grant back;
//! * `undo`: an operator removes a waiter, lifts a lock-delay, drops kept data, resizes a semaphore;
//! * `bytes`: how much memory the table takes;
//! * `tokens`: small sets, of which there are many;
//! * `time`: what falls due when time passes;
//! * `backlog`: work that is due and not done yet: one batch does a bounded amount;
//! * `views`: what people are shown;
//! * `records`: the table as a sequence of records, for snapshots;
//! * `digest`: the table as one number, to compare replicas;
//! * `check`: the invariants.
//!
//! The tables are persistent maps: a clone costs next to nothing and shares what neither copy changes, so that a snapshot is
//! written from a clone while `apply` goes on. All of them are flat, keyed by what is looked up, with ordered sets as indexes;
//! no command looks through a whole table.
//!
//! Invariants, asserted by [`Machine::check`]:
//! * **M1** A lock held exclusively has one holder, a semaphore of n at most n unless an operator resized it, and all hold it the same way.
//!   One that was made smaller may have more; `grant` adds none (the model of `tests/machine_model` checks each grant).
//! * **M2** Tokens and tickets never repeat, and none exceeds the last given out.
//! * **M3** A lock is in the table only while it is held, awaited, delayed or carries data.
//! * **M4** Nobody waits for what could be had: each waiter is behind another, or before a holder or a lock-delay; unless one of its locks is
//!   in the backlog, or its session is over and not cleared away yet.
//! * **M5** All who hold or await a name agree on whether it is a semaphore, and of what size; where an operator set the size, it counts for
//!   all of them.
//! * **M6** Indexes and counters agree with the tables.
//! * **M7** Every deadline is in the future, unless the last batch's budget ended before all that had come were met.
//! * **M8** A session remembers replies only to open request ids, and a reply "queued" only of a wait that goes on.
//! * **M9** A grant that was taken from its session is not held, and no reply that is remembered grants it.
//!
//! The size of a semaphore comes with each acquire, so that nobody has to create it, and all have to name the same. An operator who resizes
//! one that is in use sets a size that counts instead: clients cannot all be replaced at one moment, and none is refused for naming another
//! size. It ends when nobody holds or awaits the semaphore and it carries no data; a lock-delay alone does not keep it.
//!
//! Left out: re-entrant locks (a session that acquires twice excludes itself like anyone else), upgrades from shared to exclusive
//! (two that upgrade deadlock), priorities (the queue is the order of arrival).

mod backlog;
mod bytes;
mod check;
mod digest;
mod force;
mod grants;
mod limits;
mod locks;
mod queue;
mod records;
mod replies;
mod sessions;
#[cfg(test)]
mod tests;
mod time;
mod tokens;
mod types;
mod undo;
mod views;

use std::{fmt, sync::Arc};

use imbl::{OrdMap, OrdSet};

use crate::planted::Planted;

pub use backlog::Work;
pub use check::Broken;
pub use limits::*;
pub use records::Record;
pub use replies::Asked;
pub use types::*;

use self::{
    backlog::{Backlog, Ending, Piece},
    bytes::Weight,
    force::Revoked,
    grants::{GrantEnd, Held},
    limits::Capacity,
    locks::{Lock, changed},
    queue::Waiting,
    replies::{Remembered, Replies},
    sessions::{Ended, Session},
    time::Due,
    tokens::{Names, Tokens},
};

/// The replicated table. See the [module](self).
#[derive(Clone, Default)]
pub struct Machine {
    now: Stamp,
    /// Of the command that is being applied. It belongs to no record: the next command brings its own.
    wall: WallTime,
    last_token: Token,
    last_ticket: Ticket,

    sessions: OrdMap<SessionId, Session>,
    ended: Ended,

    locks: OrdMap<LockName, Lock>,
    grants: OrdMap<Token, Held>,
    revoked: OrdMap<(SessionId, Token), Revoked>,

    waits: OrdMap<Ticket, Waiting>,
    awaited_by: OrdSet<(SessionId, Ticket)>,

    /// All that happens by itself, in the order in which it does.
    due: OrdSet<(Stamp, Due)>,
    /// Whether deadlines have passed that were not met: the budget ended before them.
    is_behind: bool,
    backlog: Backlog,

    /// What the records take in all.
    bytes: usize,

    /// Of the batch that is being applied. They belong to no record: the next batch brings its own.
    limits: Limits,
    /// How much work the part of the batch that runs may still do. It belongs to no record.
    budget: usize,
    /// The deadline that is being met, or else now: when what happens counts as done. It belongs to no record.
    moment: Stamp,

    capacity: Capacity,
    /// Commands to apply before the next check. It belongs to no record.
    #[cfg(debug_assertions)]
    unchecked: usize,
}

impl fmt::Debug for Machine {
    /// In short: the tables may hold millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, last_token, sessions, locks, waits, .. } = self;
        write!(f, "Machine({now:?}, {last_token:?}, ")?;
        write!(f, "{} sessions, {} locks, {} waiters)", sessions.len(), locks.len(), waits.len())
    }
}

impl Machine {
    /// Applies a batch of one command, within the usual limits: see [`Machine::apply_batch`].
    pub fn apply(&mut self, time: Time, command: Command, events: &mut Vec<Event>) -> Reply {
        self.begin(time, Limits::default(), events);
        self.run(command, events)
    }

    /// Goes on with what earlier batches left to do, lets time pass up to the batch's stamp, then runs the commands. Appends to `events`
    /// what happened, in order. Answers each command.
    pub fn apply_batch(
        &mut self,
        time: Time,
        limits: Limits,
        commands: impl IntoIterator<Item = Command>,
        events: &mut Vec<Event>,
    ) -> Vec<Reply> {
        self.begin(time, limits, events);
        commands.into_iter().map(|command| self.run(command, events)).collect()
    }

    fn run(&mut self, command: Command, events: &mut Vec<Event>) -> Reply {
        self.begin_command();
        let result = match command {
            Command::Open { session, ttl, label, address } => self.open(session, ttl, label, address),
            Command::Renew { sessions } => Ok(Reply::Renewed(self.renew_all(&sessions))),
            Command::Close { session } => self.close(session, events),
            Command::Session { session, request, operation } => self.request(session, request, &operation, events),
            Command::CancelWait { ticket, repeats } => Ok(self.cancel_wait(ticket, repeats, events)),
            Command::ForceRelease(force) => Ok(self.force_release(&force, events)),
            Command::RemoveWaiter { name, ticket } => Ok(self.remove_waiter(&name, ticket, events)),
            Command::LiftDelay { name } => Ok(self.lift_delay(&name, events)),
            Command::DropData { prefix, after } => Ok(self.drop_data(prefix.as_str(), after.as_ref(), events)),
            Command::Resize { name, permits } => self.resize(&name, permits, events),
            Command::Tick => Ok(Reply::Ticked),
        };
        #[cfg(debug_assertions)]
        self.check_now_and_then();
        result.unwrap_or_else(Reply::Refused)
    }

    /// Cluster time, as of the last command.
    pub fn now(&self) -> Stamp {
        self.now
    }

    /// The highest token that was ever given out; 0 if none was.
    pub fn last_token(&self) -> Token {
        self.last_token
    }
}
