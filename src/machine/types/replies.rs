//! The replies of the table.

use std::sync::Arc;

use super::*;
use crate::Version;

/// A successful acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Its token.
    pub token: Token,
    /// The holder's session.
    pub session: SessionId,
    /// The locks, sorted by name.
    pub names: Arc<[LockName]>,
}

/// Why an acquire cannot be granted now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The first of the wanted locks that cannot be had.
    pub name: LockName,
    /// One of its holders; `None` if it is only delayed or awaited.
    pub holder: Option<HolderView>,
    /// Number of acquires that wait for it.
    pub queue_length: u64,
    /// Milliseconds until its lock-delay ends; 0 if there is none.
    pub delay_remaining_ms: u64,
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed in time.
    Expired,
    /// The table has no record of it: never opened, or ended more than [`crate::ENDED_SESSIONS_MAX`] sessions ago.
    Unknown,
}

/// A grant that an operator revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The grant.
    pub token: Token,
    /// The operator's reason.
    pub reason: Reason,
    /// Milliseconds until its locks open if the holder does not release it; 0: they are open.
    pub remaining_ms: u64,
}

/// The reply to the renewal of one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The session was extended.
    Renewed {
        /// The session was renewed for this TTL, from now on.
        ttl: Ttl,
        /// Its grants that are revoked and not released yet, in the order of their tokens: at most
        /// [`crate::REVOCATIONS_PER_REPLY_MAX`].
        revoked: Vec<Revocation>,
        /// Whether there are more of them.
        more: bool,
    },
    /// The session is over.
    Ended(SessionEnd),
}

/// A session was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The number of this attachment: one above that of the last one of the session.
    pub number: u64,
    /// The session lives this long, from now.
    pub ttl: Ttl,
}

/// What a release ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// A grant.
    Grant,
    /// A wait.
    Wait,
    /// Nothing; if the acquire still arrives, it is refused as [`Refusal::Abandoned`].
    Nothing,
}

/// The state of a grant after a forced release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forced {
    /// The grant.
    pub token: Token,
    /// The holder's session.
    pub session: SessionId,
    /// The label of that session.
    pub label: Label,
    /// Milliseconds that the holder still has the grant if it does not release it; 0: it is taken.
    pub remaining_ms: u64,
    /// Milliseconds that the named lock stays closed after that, by lock-delays; 0: it opens then.
    pub lock_delay_ms: u64,
}

/// A limit that a command would have exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// [`crate::SESSIONS_MAX`]
    Sessions,
    /// [`crate::WAITERS_MAX`]
    Waiters,
    /// [`crate::LOCKS_MAX`]
    Locks,
    /// [`crate::WAITS_PER_SESSION_MAX`]
    WaitsPerSession,
    /// [`crate::REPLIES_PER_SESSION_MAX`]; for releases and updates [`crate::RELEASE_REPLIES_PER_SESSION_MAX`] more.
    RepliesPerSession,
    /// [`crate::TAKEN_PER_SESSION_MAX`]
    TakenPerSession,
    /// [`crate::GRANTS_PER_SESSION_MAX`]
    GrantsPerSession,
    /// [`crate::Limits::table_bytes`]
    TableBytes,
    /// [`crate::Limits::session_bytes`]
    SessionBytes,
    /// [`crate::ENTRIES_MAX`]
    Entries,
    /// [`crate::TEMPORARY_ENTRIES_MAX`], or the bytes that they may have together.
    TemporaryEntries,
    /// [`crate::TXN_WRITES_MAX`]
    TxnWrites,
    /// [`crate::TXN_READS_MAX`]
    TxnReads,
    /// [`crate::TXN_BYTES_MAX`], of what the reply shows.
    TxnBytes,
}

/// Why a command was refused. The table is unchanged, except for the time that passed and for what [`Refusal::Revoked`] says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The session is over.
    SessionEnded(SessionEnd),
    /// Another session is alive under this id.
    SessionExists,
    /// No grant of this session with this token holds the lock now.
    NotHeld,
    /// An operator took this grant from the session. As the reply to its release: the grant is forgotten now, and renewals no longer
    /// report it.
    Revoked {
        /// The grant.
        token: Token,
        /// The operator's reason.
        reason: Reason,
    },
    /// The lock is in use in another mode. A semaphore that an operator resized accepts acquires that name another size.
    ModeMismatch {
        /// The lock's name.
        name: LockName,
        /// The size of the semaphore that it is; an exclusive or shared lock has none.
        in_use: Option<Permits>,
    },
    /// The lock does not exist, though the acquire required it.
    LockUnknown {
        /// The lock's name.
        name: LockName,
    },
    /// The client released this acquire before it arrived.
    Abandoned,
    /// The request id is closed: below the lowest open one, and not kept.
    RequestStale {
        /// The lowest id from which on all are open.
        lowest: u64,
    },
    /// The request id was used for a request of another kind.
    RequestReused,
    /// To [`Command::Resize`]: the lock is neither held nor awaited, or it is not used as a semaphore.
    NotSemaphore {
        /// The lock's name.
        name: LockName,
    },
    /// To [`Command::Compact`]: the revision is above the present one.
    RevisionFuture {
        /// The present one.
        present: Revision,
    },
    /// To a transaction that claims a lock: the cluster was restored from a copy, and grants nothing before the deadlines of the old
    /// cluster's holders have passed. An acquire gets the answer that the lock is busy, or waits.
    Closed {
        /// The remaining milliseconds.
        remaining_ms: u64,
    },
    /// To a transaction by an attachment ([`Txn::by_attached`]): the session was attached again since.
    SessionMoved {
        /// The number of its last attachment.
        number: u64,
    },
    /// To a transaction that does not fall back ([`Txn::falling_back`]), or whose fallback fails too: an operation cannot be done as the
    /// table is.
    TxnFailed {
        /// The operation in its branch, counted from 0.
        index: u32,
        /// Why.
        reason: TxnFailureReason,
    },
    /// A limit was reached.
    Limit(Limit),
}

/// How a wait ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    /// The wait ended with a grant.
    Granted(Grant),
    /// Its time limit passed.
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

/// The reply to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To [`Command::Open`].
    Opened(Ttl),
    /// To [`Command::Renew`].
    Renewed(Vec<Renewal>),
    /// To [`Command::Attach`].
    Attached(Attachment),
    /// To [`Command::SetOwner`].
    OwnerSet,
    /// To [`Command::Close`].
    Closed,
    /// To an acquire that waits: its end follows as [`Event::WaitEnded`].
    Queued(Ticket),
    /// The reply to an acquire that has ended: it was granted at once, or it is a retry of one that waited.
    Acquired(WaitEnd),
    /// To an acquire that does not wait.
    Busy(Busy),
    /// To a release.
    Released(Released),
    /// To an update.
    Updated,
    /// To [`Command::CancelWait`]: whether there was a wait, and its request was not repeated since.
    WaitCancelled(bool),
    /// To [`Command::ForceRelease`].
    Forced {
        /// The revoked grants, in the order of their tokens.
        grants: Vec<Forced>,
        /// If there are more for another command: they are above the last one's token and up to this one.
        more_up_to: Option<Token>,
    },
    /// To [`Command::RemoveWaiter`]: the waiter; `None` if there was no such wait.
    WaiterRemoved(Option<WaiterView>),
    /// To [`Command::LiftDelay`]: milliseconds that the lock would have stayed closed; `None` if there was no lock-delay.
    DelayLifted(Option<u64>),
    /// To [`Command::DropData`].
    DataDropped {
        /// Number of locks whose data was dropped.
        dropped: u64,
        /// If there are more locks under the prefix for another command: they are above this one.
        more_after: Option<LockName>,
    },
    /// To [`Command::Resize`].
    Resized {
        /// The size before.
        before: Permits,
        /// Number of holders now, including waiters that the new size granted at once. If it exceeds the new size, no permit is granted
        /// until enough of them are released.
        holders: u64,
        /// Number of waiters now.
        waiters: u64,
    },
    /// To [`Command::Txn`].
    Committed(Committed),
    /// To [`Command::Compact`]: the revision of the last event that is forgotten.
    Compacted(Revision),
    /// To [`Command::Tick`].
    Ticked,
    /// To [`Command::RaiseVersion`]: the version now.
    VersionRaised(Version),
    /// To [`Command::Note`] and [`Command::BeginAudit`].
    Noted,
    /// To [`Command::Probe`].
    Probed,
    /// To any of them.
    Refused(Refusal),
}

/// A reply that a session remembers for a repetition of the request: one to [`Command::Session`].
#[derive(Clone, Copy, Debug)]
pub enum SessionReply<'a> {
    /// [`Reply::Queued`].
    Queued(Ticket),
    /// [`Reply::Acquired`].
    Acquired(&'a WaitEnd),
    /// [`Reply::Busy`].
    Busy(&'a Busy),
    /// [`Reply::Released`].
    Released(Released),
    /// [`Reply::Updated`].
    Updated,
    /// [`Reply::Refused`].
    Refused(&'a Refusal),
}

impl Reply {
    /// The reply as one that a session remembers; `None` if it is to another command.
    pub fn to_session(&self) -> Option<SessionReply<'_>> {
        Some(match self {
            Self::Queued(ticket) => SessionReply::Queued(*ticket),
            Self::Acquired(end) => SessionReply::Acquired(end),
            Self::Busy(busy) => SessionReply::Busy(busy),
            Self::Released(released) => SessionReply::Released(*released),
            Self::Updated => SessionReply::Updated,
            Self::Refused(refusal) => SessionReply::Refused(refusal),
            Self::Opened(_)
            | Self::Renewed(_)
            | Self::Attached(_)
            | Self::OwnerSet
            | Self::Closed
            | Self::WaitCancelled(_)
            | Self::Forced { .. }
            | Self::WaiterRemoved(_)
            | Self::DelayLifted(_)
            | Self::DataDropped { .. }
            | Self::Resized { .. }
            | Self::Committed(_)
            | Self::Compacted(_)
            | Self::VersionRaised(_)
            | Self::Noted
            | Self::Probed
            | Self::Ticked => return None,
        })
    }
}
