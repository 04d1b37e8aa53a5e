//! What operators ask for: grants that are forced to end, waits, delays, data, sizes, and the busiest locks.

use lockkeeper_machine::{Forced, HolderView, LockName, LockView, Permits, Ticket, Token, WaiterView};

/// Asks for the busiest locks and the longest waits, in this node's own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowBusiest {
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// Maximum number of locks or waits in each list; 0 means a default.
    pub(crate) size: usize,
    /// Grants are counted after the entry with this index.
    pub(crate) after_index: u64,
}

/// The busiest locks and the longest waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BusiestLocks {
    /// The locks with the longest queues come first, then those with the most grants.
    pub(crate) locks: Vec<BusyLockView>,
    /// The oldest wait comes first.
    pub(crate) waits: Vec<LongWaitView>,
    /// Whether there are more waits than were examined.
    pub(crate) more_waits: bool,
    /// Grants are counted after the entry with this index.
    pub(crate) counted_after: u64,
    /// The log index that the reply shows.
    pub(crate) index: u64,
    pub(crate) node_id: u64,
    pub(crate) totals: TableTotals,
}

/// A lock that is awaited, or was granted lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BusyLockView {
    /// The lock with its first holder and its first waiter, without data.
    pub(crate) lock: LockView,
    /// Number of counted grants.
    pub(crate) grants: u64,
}

/// An acquire that has waited long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LongWaitView {
    pub(crate) name: LockName,
    pub(crate) waiter: WaiterView,
    /// The first holder of the lock.
    pub(crate) holder: Option<HolderView>,
    pub(crate) queue_length: u64,
}

/// The events of a node's table since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TableTotals {
    pub(crate) granted: u64,
    pub(crate) released: u64,
    pub(crate) expired: u64,
    pub(crate) forced: u64,
    pub(crate) queued: u64,
    pub(crate) waits_ended: u64,
    pub(crate) sessions_closed: u64,
    pub(crate) sessions_expired: u64,
}

/// Grants that an operator revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GrantsForced {
    /// The grants in the order of their tokens.
    pub(crate) forced: Vec<Forced>,
    /// If there are more grants, the highest token of them: send another request.
    pub(crate) more_up_to: Option<Token>,
}

/// An operator ends a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveWaiter {
    pub(crate) name: LockName,
    pub(crate) ticket: Ticket,
}

/// The waiter that was removed, if the ticket waited for this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WaiterRemoved(pub(crate) Option<WaiterView>);

/// An operator ends a lock-delay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiftDelay {
    pub(crate) name: LockName,
}

/// The remaining lock-delay in milliseconds, if the lock had one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DelayLifted(pub(crate) Option<u64>);

/// An operator drops the data on locks without a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DropData {
    /// Drops only data of locks whose names begin with this. Empty means all locks.
    pub(crate) prefix: String,
    /// Drops only data of locks above this one, which is [`DataDropped::more_after`] of the previous reply.
    pub(crate) after: Option<LockName>,
}

/// The data were dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataDropped {
    /// Number of locks whose data were dropped.
    pub(crate) dropped: u64,
    /// If there are more locks, the one after which to go on with another request.
    pub(crate) more_after: Option<LockName>,
}

/// An operator changes the size of a semaphore in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResizeSemaphore {
    pub(crate) name: LockName,
    pub(crate) permits: Permits,
}

/// The semaphore was resized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SemaphoreResized {
    /// The previous size.
    pub(crate) before: Permits,
    /// Number of grants that hold it. If it exceeds the size, new acquires wait.
    pub(crate) holders: u64,
    /// Number of acquires that still wait for it.
    pub(crate) waiters: u64,
}

/// Sends a backup of the table, which the node that is asked makes itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SaveBackup;
