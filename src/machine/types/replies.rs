//! What the table answers.

use std::sync::Arc;

use super::*;

/// A successful acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Its name.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// The locks, in the order of their names.
    pub names: Arc<[LockName]>,
}

/// What stands in the way of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The first of the locks asked for that is not to be had.
    pub name: LockName,
    /// A holder of it; `None` if it is only delayed, or only awaited by others.
    pub holder: Option<HolderView>,
    /// How many wait for it.
    pub queue_length: u64,
    /// How long its lock-delay still lasts, milliseconds; 0 if there is none.
    pub delay_remaining_ms: u64,
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed in time.
    Expired,
    /// The table does not know it: never opened, or ended long ago.
    Unknown,
}

/// A grant that an operator took back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The grant.
    pub token: Token,
    /// The operator's reason.
    pub reason: Reason,
    /// How long its locks still stay closed if the holder does not let go, milliseconds; 0: they are open.
    pub remaining_ms: u64,
}

/// The answer to one renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The session lives on.
    Renewed {
        /// For so long.
        ttl: Ttl,
        /// Its grants that are revoked and not yet given back, in the order of their tokens: at most
        /// [`crate::machine::REVOCATIONS_TOLD_MAX`].
        revoked: Vec<Revocation>,
        /// There are more.
        more: bool,
    },
    /// It is over.
    Ended(SessionEnd),
}

/// What a release found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// A grant.
    Grant,
    /// A wait.
    Wait,
    /// Nothing; should the acquire still arrive, it is refused as [`Refusal::Abandoned`].
    Nothing,
}

/// A grant as a forced release left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forced {
    /// The grant.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How long its holder still has it if it does not let go, milliseconds; 0: it is taken.
    pub remaining_ms: u64,
    /// How long the lock that was named stays closed after that, by lock-delays, milliseconds; 0: it is open then.
    pub lock_delay_ms: u64,
}

/// A limit that a command would have exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// [`crate::machine::SESSIONS_MAX`]
    Sessions,
    /// [`crate::machine::WAITERS_MAX`]
    Waiters,
    /// [`crate::machine::LOCKS_MAX`]
    Locks,
    /// [`crate::machine::WAITS_PER_SESSION_MAX`]
    WaitsPerSession,
    /// [`crate::machine::REPLIES_PER_SESSION_MAX`], and [`crate::machine::LETTING_GO_PER_SESSION_MAX`] beyond.
    RepliesPerSession,
    /// [`crate::machine::TAKEN_PER_SESSION_MAX`]
    TakenPerSession,
    /// [`crate::machine::GRANTS_PER_SESSION_MAX`]
    GrantsPerSession,
    /// [`crate::machine::Limits::table_bytes`]
    TableBytes,
    /// [`crate::machine::Limits::session_bytes`]
    SessionBytes,
}

/// Why a command was refused. The table is as it was before, but for the time that passed, and for what [`Refusal::Revoked`] says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The session is over.
    SessionEnded(SessionEnd),
    /// Another session lives under this id.
    SessionExists,
    /// The token names no grant of this session that holds the lock now.
    NotHeld,
    /// An operator took this grant from the session. In answer to its release: with that it is forgotten, and is no longer told.
    Revoked {
        /// The grant.
        token: Token,
        /// The operator's reason.
        reason: Reason,
    },
    /// The lock is in use in another way. A semaphore that an operator resized takes those who name another size all the same.
    ModeMismatch {
        /// Which.
        name: LockName,
        /// As a semaphore of this size, or as a lock.
        in_use: Option<Permits>,
    },
    /// The lock was to exist, and does not.
    LockUnknown {
        /// Which.
        name: LockName,
    },
    /// The client released this acquire before it arrived.
    Abandoned,
    /// The client no longer cares about the request id: it is below the lowest, and not kept.
    RequestStale {
        /// The lowest id from which on it cares about all.
        lowest: u64,
    },
    /// The request id was used for a request of another kind.
    RequestReused,
    /// To [`Command::Resize`]: nobody holds or awaits the lock, or it is in use otherwise than as a semaphore.
    NotSemaphore {
        /// Which.
        name: LockName,
    },
    /// A limit was reached.
    Limit(Limit),
}

/// How a wait ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    /// With a grant.
    Granted(Grant),
    /// It waited as long as it was to.
    TimedOut(Busy),
    /// Its call broke off and was not repeated in time.
    Cancelled,
    /// Its own client released it.
    Abandoned,
    /// An operator removed it.
    Removed,
    /// Its session ended.
    SessionEnded(SessionEnd),
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To [`Command::Open`].
    Opened(Ttl),
    /// To [`Command::Renew`].
    Renewed(Vec<Renewal>),
    /// To [`Command::Close`].
    Closed,
    /// To an acquire that waits: its end comes as [`Event::WaitEnded`].
    Queued(Ticket),
    /// To an acquire that is over: granted at once, or a retry of one that waited.
    Acquired(WaitEnd),
    /// To an acquire that was not to wait.
    Busy(Busy),
    /// To a release.
    Released(Released),
    /// To an update.
    Updated,
    /// To [`Command::CancelWait`]: whether there was such a wait, and nobody came back to it.
    WaitCancelled(bool),
    /// To [`Command::ForceRelease`].
    Forced {
        /// What became of the grants, in the order of their tokens.
        grants: Vec<Forced>,
        /// There are more, above the last one's token and up to this one: they are for another command.
        more_up_to: Option<Token>,
    },
    /// To [`Command::RemoveWaiter`]: who it was; `None` if there was no such wait.
    WaiterRemoved(Option<WaiterView>),
    /// To [`Command::LiftDelay`]: how long the lock would have stayed closed, milliseconds; `None` if there was no lock-delay.
    DelayLifted(Option<u64>),
    /// To [`Command::DropData`].
    DataDropped {
        /// Of how many locks.
        dropped: u64,
        /// There are more locks under the prefix, above this one: they are for another command.
        more_after: Option<LockName>,
    },
    /// To [`Command::Resize`].
    Resized {
        /// The size before.
        before: Permits,
        /// How many hold it now, those included that the new size let in at once. If they exceed the new size, nobody is granted it until
        /// enough of them have left.
        holders: u64,
        /// How many wait for it now.
        waiters: u64,
    },
    /// To [`Command::Tick`].
    Ticked,
    /// To any of them.
    Refused(Refusal),
}
