//! The events that commands and deadlines cause.

use super::*;

/// An effect of a command or of a deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A wait is over: its caller can be answered.
    WaitEnded {
        /// The wait's ticket.
        ticket: Ticket,
        /// How it ended.
        end: WaitEnd,
    },
    /// A session is over.
    SessionEnded {
        /// The session's id.
        session: SessionId,
        /// How it ended.
        end: SessionEnd,
    },
    /// A grant was revoked: its holder must be told.
    Revoked {
        /// The holder's session.
        session: SessionId,
        /// The grant, the reason and the time that is left.
        revocation: Revocation,
    },
    /// A lock changed: clients that watch it must be told.
    Changed(Change),
}

/// A change of one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The lock.
    pub name: LockName,
    /// What holds it.
    pub of: LockKind,
    /// What happened.
    pub kind: ChangeKind,
}

/// The kinds of change of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A grant began.
    Granted {
        /// The grant.
        token: Token,
        /// The holder's session.
        session: SessionId,
        /// The label of that session.
        label: Label,
        /// The mode in which it holds the lock.
        mode: Mode,
        /// The wait that it ended, unless it was granted at once.
        ticket: Option<Ticket>,
    },
    /// A holder released the lock, or closed its session.
    Released {
        /// The grant.
        token: Token,
        /// The session that held it.
        session: SessionId,
        /// When it was granted.
        since: WallTime,
    },
    /// A holder lost the lock.
    Lost {
        /// The grant.
        token: Token,
        /// The session that held it.
        session: SessionId,
        /// When it was granted.
        since: WallTime,
        /// Why an operator forced it. Without a reason, its session expired.
        reason: Option<Reason>,
        /// The operator, if one forced it and is known.
        by: Option<Identity>,
    },
    /// An operator revoked a grant; it is held until its holder releases it or its deadline passes.
    Revoked {
        /// The grant.
        token: Token,
        /// The holder's session.
        session: SessionId,
        /// The operator's reason.
        reason: Reason,
        /// The operator, if known.
        by: Option<Identity>,
    },
    /// An acquire began to wait.
    Queued {
        /// Its place in the order of arrival.
        ticket: Ticket,
        /// The session that waits.
        session: SessionId,
        /// The label of that session.
        label: Label,
        /// The mode that it asks for.
        mode: Mode,
    },
    /// A wait ended without a grant.
    Left {
        /// Its place in the order of arrival.
        ticket: Ticket,
        /// The session that waited.
        session: SessionId,
    },
    /// The data changed to this value.
    Data(Option<Data>),
    /// A lock-delay began.
    Delayed,
    /// A lock-delay ended.
    Opened,
    /// An operator gave the semaphore this size.
    Resized(Permits),
}
