//! What the table does, and how waits and holds end: the values of labels.

/// Something that the table did. Every member applies the same, so every member counts the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// A lock was granted.
    Granted,
    /// A holder released a lock.
    Released,
    /// A holder lost a lock with its session.
    Expired,
    /// An operator took a lock from its holder.
    Forced,
    /// An acquire began to wait.
    Queued,
    /// A wait ended, with or without a grant.
    WaitEnded,
    /// A session was closed.
    SessionClosed,
    /// A session expired.
    SessionExpired,
}

impl Did {
    pub(crate) const ALL: [Self; 8] = [
        Self::Granted,
        Self::Released,
        Self::Expired,
        Self::Forced,
        Self::Queued,
        Self::WaitEnded,
        Self::SessionClosed,
        Self::SessionExpired,
    ];

    pub(crate) fn name_and_help(self) -> (&'static str, &'static str) {
        match self {
            Self::Granted => ("lockkeeper_grants", "Locks granted, as this node applied them"),
            Self::Released => ("lockkeeper_releases", "Locks released by their holders"),
            Self::Expired => ("lockkeeper_expired_grants", "Locks lost with the sessions of their holders"),
            Self::Forced => ("lockkeeper_forced_releases", "Locks that an operator took from their holders"),
            Self::Queued => ("lockkeeper_waits", "Acquires that began to wait"),
            Self::WaitEnded => ("lockkeeper_waits_ended", "Waits that ended, by a grant or without"),
            Self::SessionClosed => ("lockkeeper_sessions_closed", "Sessions that were closed"),
            Self::SessionExpired => ("lockkeeper_sessions_expired", "Sessions that expired"),
        }
    }
}

/// How a wait ended, at the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// The locks were granted.
    Granted,
    /// The wait reached its time limit.
    TimedOut,
    /// The wait was given up or removed by an operator, or its session ended.
    Ended,
    /// The call of the wait broke off, because the client went or the leader changed. It may go on as another wait.
    BrokenOff,
}

impl WaitOutcome {
    pub(crate) const ALL: [Self; 4] = [Self::Granted, Self::TimedOut, Self::Ended, Self::BrokenOff];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::TimedOut => "timed_out",
            Self::Ended => "ended",
            Self::BrokenOff => "broken_off",
        }
    }
}

/// How a lock was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldEnd {
    /// Its holder released it.
    Released,
    /// The session of its holder expired.
    Expired,
    /// An operator took it.
    Forced,
}

impl HoldEnd {
    pub(crate) const ALL: [Self; 3] = [Self::Released, Self::Expired, Self::Forced];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
        }
    }
}
