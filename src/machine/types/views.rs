//! What people are shown.

use super::*;

/// A holder, as shown to people and to those it keeps waiting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderView {
    /// Its grant.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How it holds the lock.
    pub mode: Mode,
    /// Since when.
    pub since: WallTime,
    /// Until it is lost if its session is not renewed, milliseconds.
    pub remaining_ms: u64,
    /// `Some`: an operator revoked it.
    pub revoked: Option<Reason>,
}

/// A waiter, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView {
    /// Its place.
    pub ticket: Ticket,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How it would hold the lock.
    pub mode: Mode,
    /// Since when.
    pub since: WallTime,
    /// Until it gives up, milliseconds; `None`: it does not.
    pub remaining_ms: Option<u64>,
}

/// A lock, as shown to people. A lock that nothing is known of is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// As what it is in use: the mode of a holder, or else of the first waiter. A semaphore that was resized is one for as long as that
    /// counts, also while it only keeps data.
    pub mode: Option<Mode>,
    /// In the order of their tokens; as many as were asked for.
    pub holders: Vec<HolderView>,
    /// How many there are.
    pub holder_count: u64,
    /// In the order of the queue; as many as were asked for.
    pub waiters: Vec<WaiterView>,
    /// How many there are.
    pub queue_length: u64,
    /// What it carries.
    pub data: Option<Data>,
    /// Whether that outlives the present grants.
    pub keep_data: bool,
    /// How long its lock-delay still lasts, milliseconds; 0 if there is none.
    pub delay_remaining_ms: u64,
    /// An operator gave this semaphore its size; what acquires name does not count.
    pub resized: bool,
}

/// A session, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// Its name.
    pub session: SessionId,
    /// Who it is.
    pub label: Label,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// How long it still lives, milliseconds.
    pub remaining_ms: u64,
    /// Since when it lives.
    pub opened: WallTime,
    /// Grants that it holds.
    pub grants: u32,
    /// Acquires that wait.
    pub waits: u32,
    /// From where it was opened, if that is known.
    pub address: Option<Address>,
    /// What it takes in the table, about: with its grants, waits and replies, their names and data.
    pub bytes: u64,
}

/// How much the table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sessions alive, and those that are over and not cleared away yet.
    pub sessions: usize,
    /// Locks held, awaited, delayed or with data.
    pub locks: usize,
    /// Acquires that wait.
    pub waiters: usize,
    /// Grants held.
    pub grants: usize,
}

/// Which part of a lock's holders and waiters to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// At most so many of each.
    pub size: usize,
    /// Only holders above this token.
    pub holders_after: Token,
    /// Only waiters above this ticket.
    pub waiters_after: Ticket,
}
