//! The table of sessions, locks and waiters: a pure function of the log.
//!
//! [`Machine::apply`] takes a command and the time at which it happens, changes the table, and returns a reply. Further effects of the
//! command (a waiter was granted, a session expired) are reported as events. There is no clock, no I/O, no async and no randomness here:
//! time and session ids arrive inside commands, and every map is ordered. So every replica that applies the same log computes the same
//! table, the same replies and the same events, and a test needs neither sockets nor sleep.
//!
//! The files, in reading order:
//!
//! * `table`: what the table stores, in parts that guard their indexes, counters and sums; all other files are rules;
//! * `sessions`: opened, renewed, closed; what ends with a session;
//! * `replies`: each request takes effect once, however often it is sent;
//! * `queue`: acquires: granted, refused or queued, and the next waiter;
//! * `grants`: tokens: granted, released, lost; data set by their holders;
//! * `delays`: a lock whose holder was lost stays closed for a while;
//! * `force`: an operator revokes a grant;
//! * `operator_calls`: an operator removes a waiter, lifts a lock-delay, drops kept data, resizes a semaphore;
//! * `keyspace`: entries with revisions and leases, transactions on them, their history, and the locks that entries claim;
//! * `bytes`: how much memory the table takes, and the limits of it;
//! * `time`: deadlines that pass;
//! * `backlog`: work that is due and not done yet, since one batch does a bounded amount;
//! * `views`: what queries show to people;
//! * `records`: the table as a sequence of records, for snapshots;
//! * `restored`: the table of a cluster that is restored from a copy;
//! * `digest`: the table as one hash, to compare replicas;
//! * `check`: the invariants;
//! * `versions`: the cluster version, and since which one each command exists.
//!
//! The tables are persistent maps: a clone is cheap and shares all nodes that neither copy changes, so a snapshot is written from a clone
//! while `apply` goes on. All tables are flat, keyed by what is looked up, with ordered sets as indexes; no command scans a whole table.
//!
//! Invariants, asserted by [`Machine::check`]:
//! * **M1** A lock held exclusively has one holder, a semaphore of n at most n unless an operator resized it, and all holders of a lock
//!   hold it in the same mode. A semaphore that was made smaller may have more holders than its size; `grant` adds none (the model of
//!   `tests/machine_model` checks each grant).
//! * **M2** Tokens and tickets never repeat, and none exceeds the last one issued.
//! * **M3** A lock is in the table only while it is held, awaited, delayed or carries data.
//! * **M4** No waiter waits for a lock that it could have: each is behind another waiter, a holder or a lock-delay. Exceptions: one of
//!   its locks is in the backlog, or its session is over and not cleared away yet.
//! * **M5** All holders and waiters of a name agree on whether it is a semaphore, and of what size; a size that an operator set counts for
//!   all of them.
//! * **M6** Indexes and counters agree with the tables.
//! * **M7** Every deadline is in the future, unless the last batch's budget ended before all deadlines that had passed were handled.
//! * **M8** A session remembers replies only to open request ids, and a reply "queued" only for a wait that goes on.
//! * **M9** A grant that was taken from its session is not held, and no remembered reply grants it.
//! * **M10** An entry of the keyspace was created and modified at revisions that were issued, in this order; its lease is a session of the
//!   table, and an expired one has none. One with a deadline of its own has no lease.
//! * **M11** The history of the keyspace is in the order of its revisions; each event follows the one before it of the same key, the last
//!   one leads to the table, and each entry that was modified after the compacted revision has one.
//! * **M12** A lock that entries claim is not in the table of locks, and at most one of its claims is held. If none is held, the leases of
//!   all claims are over, or the lock is in the backlog. A claim was made by a write of its entry.
//! * **M13** A session that a transaction opened has entries until it is over.
//! * **M14** The parent of a child exists, with neither a lease nor a deadline of its own, and counts as many live children as there are
//!   entries that name it as their parent, of at least as many that were ever made.
//!
//! Each acquire names the size of its semaphore, so that no one has to create it, and all acquires have to name the same size. If an
//! operator resizes a semaphore in use, the operator's size counts instead, and an acquire that names another size is not refused, since
//! clients cannot all be replaced at one moment. The operator's size ends when the semaphore is neither held nor awaited and carries no
//! data; a lock-delay alone does not keep it.
//!
//! Left out: re-entrant locks (a session that acquires a lock twice excludes itself like any other), upgrades from shared to exclusive
//! (two sessions that upgrade deadlock), priorities (the queue is in order of arrival).

mod backlog;
mod bytes;
mod check;
mod delays;
mod digest;
mod force;
mod grants;
mod keyspace;
mod operator_calls;
mod queue;
mod records;
mod replies;
mod restored;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod time;
mod types;
mod versions;
mod views;

use std::{collections::BTreeSet, fmt, sync::Arc};

use lockkeeper_planted::Planted;

pub use check::BrokenInvariant;
pub use digest::HASH_FORM;
pub use keyspace::{CommandWork, PastEntries};
pub use records::Record;
pub use restored::{FIRST_TOKEN_MAX, FirstTokenError, Restore, first_at};
pub use table::{EntryHistory, RememberedRequest, TableCapacity, Usage, Work};
pub use types::*;
pub use versions::{Version, Versions};

use self::{
    delays::lock_changed,
    grants::GrantEnding,
    table::{
        Backlog, BatchBudget, ClaimTable, EntryTable, GrantTable, IssuedNumbers, LockTable, SessionTable, TableClock,
        WaitTable,
    },
};

/// The replicated table. See the [module](self); what each part promises is said in the folder `table`.
#[derive(Clone, Default)]
pub struct Machine {
    version: Version,
    clock: TableClock,
    issued: IssuedNumbers,

    sessions: SessionTable,
    locks: LockTable,
    grants: GrantTable,
    waits: WaitTable,

    /// The keyspace.
    entries: EntryTable,
    claims: ClaimTable,
    history: EntryHistory,

    backlog: Backlog,
    /// Not part of a record.
    batch: BatchBudget,
    capacity: TableCapacity,
    /// Commands to apply before the next check. Not part of a record.
    #[cfg(debug_assertions)]
    unchecked: usize,
}

impl fmt::Debug for Machine {
    /// A summary: the tables may hold millions of entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, locks, waits, .. } = self;
        write!(f, "Machine({:?}, {:?}, ", self.now(), self.last_token())?;
        write!(f, "{} sessions, {} locks, {} waiters)", sessions.len(), locks.len(), waits.len())
    }
}

impl Machine {
    /// Applies a batch of one command, with the default limits: see [`Machine::apply_batch`].
    pub fn apply(&mut self, time: Time, command: Command, events: &mut Vec<Event>) -> Reply {
        self.begin(time, Limits::default(), events);
        self.run(command, events)
    }

    /// Goes on with the work that earlier batches left, advances time to the batch's stamp, then runs the commands. Appends to `events`
    /// what happened, in order. Returns one reply for each command.
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

    /// The first part of [`Machine::apply_batch`]: the work that is due. The commands follow one by one, by [`Machine::step`], so that the
    /// events of each command are known.
    pub fn begin_batch(&mut self, time: Time, limits: Limits, events: &mut Vec<Event>) {
        self.begin(time, limits, events);
    }

    /// Runs the next command of a batch.
    pub fn step(&mut self, command: Command, events: &mut Vec<Event>) -> Reply {
        self.run(command, events)
    }

    fn run(&mut self, command: Command, events: &mut Vec<Event>) -> Reply {
        self.begin_command();
        self.batch.note_work(command.units());

        let result = match command {
            Command::Open { session, ttl, label, address, owner } => {
                self.open(NewSession { session, ttl, label, address, owner })
            }
            Command::Renew { sessions } => Ok(Reply::Renewed(self.renew_all(&sessions))),
            Command::Attach { session } => self.attach(session),
            Command::SetOwner { session, owner } => self.set_owner(session, owner),
            Command::Close { session, by: _, reason: _ } => self.close(session, events),
            Command::Session { session, request, operation } => self.request(session, request, &operation, events),
            Command::CancelWait { ticket, repeats } => Ok(self.cancel_wait(ticket, repeats, events)),
            Command::ForceRelease(force) => Ok(self.force_release(&force, events)),
            Command::RemoveWaiter { name, ticket, by: _ } => Ok(self.remove_waiter(&name, ticket, events)),
            Command::LiftDelay { name, by: _ } => Ok(self.lift_delay(&name, events)),
            Command::DropData { prefix, after, by: _ } => Ok(self.drop_data(prefix.as_str(), after.as_ref(), events)),
            Command::Resize { name, permits, by: _ } => self.resize(&name, permits, events),
            Command::Txn(txn) => self.commit_within_limits(&txn, events),
            Command::Compact { revision } => self.compact(revision),
            Command::RaiseVersion { to } => Ok(self.raise_version(to)),
            Command::Tick => Ok(Reply::Ticked),
            Command::Note(_) | Command::BeginAudit => Ok(Reply::Noted),
            Command::Probe => Ok(Reply::Probed),
        };

        #[cfg(debug_assertions)]
        self.check_now_and_then();
        result.unwrap_or_else(Reply::Refused)
    }

    /// Cluster time, as of the last command.
    pub fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// The highest ticket that was ever issued; 0 if none was.
    pub fn last_ticket(&self) -> Ticket {
        self.issued.last_ticket()
    }

    /// The highest token that was ever issued; 0 if none was.
    pub fn last_token(&self) -> Token {
        self.issued.last_token()
    }
}
