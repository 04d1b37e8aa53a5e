//! Requests with many replies: keep-alives, and watches of locks.

use lockkeeper_machine::{Change, LockView, Revocation, SessionEnd, SessionId, Ttl};

/// A renewal of a session on a keep-alive stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) session: SessionId,
    /// The renewal's number, which the caller chooses and the reply repeats.
    pub(crate) sequence: u64,
}

/// An event of a session on a keep-alive stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAliveEvent {
    pub(crate) session: SessionId,
    pub(crate) kind: KeepAliveEventKind,
}

/// An event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeepAliveEventKind {
    /// The session was renewed.
    Renewed {
        /// The renewal's sequence number.
        sequence: u64,
        /// The TTL, counted from the time at which the renewal was sent.
        ttl: Ttl,
        /// The addresses at which clients reach the members, if the stream has not named them yet.
        members: Vec<String>,
    },
    /// The session ended.
    Ended(SessionEnd),
    /// An operator revoked one of the session's grants.
    Revoked(Revocation),
}

/// Watches the locks under a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WatchLocks {
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// The log index after which to go on without the state. 0 means to start with the state.
    pub(crate) after_index: u64,
}

/// An event on a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WatchEvent {
    /// Part of the current state.
    State {
        /// The locks in the order of their names.
        locks: Vec<LockView>,
        /// The log index of all parts of this state.
        index: u64,
        /// Whether this is the first part: the watcher discards its earlier state.
        first: bool,
        /// Whether this is the last part.
        last: bool,
    },
    /// The changes of one log entry.
    Changes {
        /// The entry's log index.
        index: u64,
        /// The changes in the order in which they happened.
        changes: Vec<Change>,
        /// Whether the next event has more changes of the same entry.
        more: bool,
    },
    /// Nothing changed up to this log index.
    Progress {
        /// The index.
        index: u64,
    },
    /// The changes after the watcher's index are no longer retained. The state follows.
    TooOld {
        /// The watcher's index.
        after_index: u64,
    },
}
