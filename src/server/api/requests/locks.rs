//! Locks: acquired, released, their data, and what a client asks about them.

use lockkeeper_machine::{
    Acquire, Busy, Command, Grant, HolderView, LockName, LockView, Operation, Page, Request, SessionId, Target, Token,
    Update,
};

/// Acquires locks, all or none. The reply comes when the acquire is granted or gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AcquireLocks {
    pub(crate) session: SessionId,
    /// The request's id. Without one, a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) acquire: Acquire,
}

/// The outcome of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    /// The session holds the locks.
    Granted(Grant),
    /// The acquire would have to wait, and does not ask to wait.
    Busy(Busy),
    /// The acquire reached its wait limit.
    TimedOut(Busy),
}

/// Releases a grant, by its token or by the request id of its acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReleaseLocks {
    pub(crate) session: SessionId,
    /// The request's id. Without one, a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) target: Target,
}

/// Sets or removes the data on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UpdateData {
    pub(crate) session: SessionId,
    /// The request's id. Without one, a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) update: Update,
}

/// The data were set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataUpdated;

/// Asks whether a token holds a lock now. Linearizable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CheckToken {
    pub(crate) name: LockName,
    pub(crate) token: Token,
}

/// Whether the token holds the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TokenChecked {
    /// The holder, if the token holds the lock.
    pub(crate) holder: Option<HolderView>,
    /// The highest token ever granted.
    pub(crate) last_token: Token,
    /// The log index that the reply shows.
    pub(crate) index: u64,
}

/// Shows one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GetLock {
    pub(crate) name: LockName,
    /// The page of holders and waiters. A size of 0 means the maximum of a page.
    pub(crate) page: Page,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// The lock. A lock that does not exist is shown as free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockFound {
    pub(crate) lock: LockView,
    /// The log index that the reply shows.
    pub(crate) index: u64,
}

/// Lists locks in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListLocks {
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// Lists only locks above this one, which is [`ListedLocks::more_after`] of the previous page.
    pub(crate) after: Option<LockName>,
    /// Maximum number of locks; 0 means the maximum of a page.
    pub(crate) page_size: usize,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedLocks {
    pub(crate) locks: Vec<LockView>,
    /// The lock after which the next page begins, if there may be one.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

impl From<AcquireLocks> for Command {
    fn from(AcquireLocks { session, request, acquire }: AcquireLocks) -> Self {
        Self::Session { session, request, operation: Operation::Acquire(acquire) }
    }
}

impl From<ReleaseLocks> for Command {
    fn from(ReleaseLocks { session, request, target }: ReleaseLocks) -> Self {
        Self::Session { session, request, operation: Operation::Release(target) }
    }
}

impl From<UpdateData> for Command {
    fn from(UpdateData { session, request, update }: UpdateData) -> Self {
        Self::Session { session, request, operation: Operation::Update(update) }
    }
}
