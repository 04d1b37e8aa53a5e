//! What a command, or the time that passed, did.

use super::*;

/// What a command, or the time that passed, did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A wait is over: its caller can be answered.
    WaitEnded {
        /// Which.
        ticket: Ticket,
        /// How.
        end: WaitEnd,
    },
    /// A session is over.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// How.
        end: SessionEnd,
    },
    /// A grant was revoked: its holder is to be told.
    Revoked {
        /// Whose.
        session: SessionId,
        /// What.
        revocation: Revocation,
    },
    /// A lock changed: whoever watches it is to be told.
    Changed(Change),
}

/// What happened to one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The lock.
    pub name: LockName,
    /// What happened.
    pub kind: ChangeKind,
}

/// What happened to a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A grant began.
    Granted {
        /// The grant.
        token: Token,
        /// Whose.
        session: SessionId,
        /// Who that is.
        label: Label,
        /// How it holds the lock.
        mode: Mode,
        /// The wait that it ended; `None`: it was granted at once.
        ticket: Option<Ticket>,
    },
    /// A holder gave it back, or closed its session.
    Released {
        /// The grant.
        token: Token,
        /// Whose it was.
        session: SessionId,
    },
    /// A holder lost it.
    Lost {
        /// The grant.
        token: Token,
        /// Whose it was.
        session: SessionId,
        /// `Some`: an operator forced it. `None`: its session expired.
        reason: Option<Reason>,
    },
    /// An operator revoked a grant; it is held until its holder lets go or its deadline comes.
    Revoked {
        /// The grant.
        token: Token,
        /// Whose.
        session: SessionId,
        /// Why.
        reason: Reason,
    },
    /// An acquire began to wait.
    Queued {
        /// Its place.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Who that is.
        label: Label,
        /// How it would hold the lock.
        mode: Mode,
    },
    /// A wait ended without a grant.
    Left {
        /// Its place.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// The data changed to this.
    Data(Option<Data>),
    /// A lock-delay began.
    Delayed,
    /// A lock-delay ended.
    Opened,
    /// An operator gave the semaphore this size.
    Resized(Permits),
}
