//! How many bytes of unread answers may wait: for a connection, for a client address, for the node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::CHUNK;
use lockkeeper_planted::NodeLimit;

/// Number of bytes that a connection may have waiting even if the other budgets are used up.
const LITTLE: usize = 2 * CHUNK;

/// How many bytes may wait for clients, and for how long. Only a simulation has other limits than [`Self::CLIENTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreadAnswerLimits {
    /// Bytes on one connection.
    pub connection: usize,
    /// Bytes for all connections from one address.
    pub address: usize,
    /// Bytes for all clients.
    pub node: usize,
    /// How long a stream may go without being read.
    pub patience: Duration,
    /// How long a connection may go without being read, if something waits for it.
    pub connection_patience: Duration,
}

impl UnreadAnswerLimits {
    /// The limits for clients. A connection may have sixteen of the largest list pages waiting.
    pub const CLIENTS: Self = Self {
        connection: 4 << 20,
        address: 16 << 20,
        node: 32 << 20,
        patience: Duration::from_secs(10),
        connection_patience: Duration::from_secs(60),
    };
}

impl Default for UnreadAnswerLimits {
    fn default() -> Self {
        Self::CLIENTS
    }
}

/// The budgets of an account, in their order.
const BUDGETS: [NodeLimit; 3] = [NodeLimit::UnreadOfConnection, NodeLimit::UnreadOfAddress, NodeLimit::UnreadOfNode];

/// A number of bytes that wait, and their limit.
#[derive(Debug)]
pub(super) struct ByteBudget {
    what: &'static str,
    limit: usize,
    used: AtomicUsize,
}

impl ByteBudget {
    pub(super) fn new(what: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { what, used: AtomicUsize::new(0), limit })
    }

    /// Returns whether the bytes fit into this many times the limit.
    fn take(&self, bytes: usize, times: usize) -> bool {
        // Added before it is compared: of two that only looked, both could take what is left for one.
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = used.saturating_add(bytes) <= self.limit.saturating_mul(times);
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Says that it is used up.
    pub(super) fn full(&self) -> String {
        let Self { what, limit, .. } = self;
        let waiting = self.used();
        format!("{waiting} bytes of answers {what} wait to be read, and the limit is {limit}, so nothing was done")
    }

    /// Says why this number of bytes does not fit.
    pub(super) fn exceeded(&self, bytes: usize) -> String {
        let Self { what, limit, .. } = self;
        let waiting = self.used();
        format!("{waiting} bytes of answers {what} wait to be read, and {bytes} more exceed the limit of {limit}")
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The budgets that count for one connection: the connection's, its address's and the node's.
#[derive(Debug)]
pub(super) struct Account {
    budgets: [Arc<ByteBudget>; 3],
    /// How many chunks have left: the client reads, or has given up their calls.
    read: AtomicUsize,
}

impl Account {
    pub(super) fn new(connection: Arc<ByteBudget>, address: Arc<ByteBudget>, node: Arc<ByteBudget>) -> Self {
        Self { budgets: [connection, address, node], read: AtomicUsize::new(0) }
    }

    /// Fails with the budget that is exhausted. A connection with at most [`LITTLE`] waiting always gets that much, so a client that reads
    /// is served although others at its address do not read. `times` is how many times each limit may be used.
    pub(super) fn take(&self, bytes: usize, times: usize) -> Result<(), &ByteBudget> {
        let [connection, ..] = &self.budgets;
        if connection.used().saturating_add(bytes) <= LITTLE {
            self.take_anyway(bytes);
            return Ok(());
        }
        for (at, budget) in self.budgets.iter().enumerate() {
            if !budget.take(bytes, times) {
                BUDGETS[at].note();
                self.budgets[..at].iter().for_each(|taken| taken.give_back(bytes));
                return Err(budget);
            }
        }
        Ok(())
    }

    /// The budget that is used up, if one is. A connection with at most [`LITTLE`] waiting has room in any case.
    pub(super) fn exhausted(&self) -> Option<&ByteBudget> {
        let [connection, ..] = &self.budgets;
        if connection.used() <= LITTLE {
            return None;
        }
        self.budgets.iter().map(Arc::as_ref).find(|budget| budget.used() >= budget.limit)
    }

    /// Takes the bytes even if a budget is exhausted.
    pub(super) fn take_anyway(&self, bytes: usize) {
        self.budgets.iter().for_each(|budget| _ = budget.used.fetch_add(bytes, Ordering::Relaxed));
    }

    pub(super) fn give_back(&self, bytes: usize) {
        // Most answers are one chunk, which goes on to count for what its buffer counted for.
        if bytes == 0 {
            return;
        }
        self.budgets.iter().for_each(|budget| budget.give_back(bytes));
    }

    /// A chunk has left the transport.
    pub(super) fn leave(&self, bytes: usize) {
        self.give_back(bytes);
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes whenever the client reads.
    pub(super) fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether nothing waits on the connection.
    pub(super) fn is_empty(&self) -> bool {
        let [connection, ..] = &self.budgets;
        connection.used() == 0
    }
}
