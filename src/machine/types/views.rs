//! Views of the table, for people.

use super::*;

/// A holder, as shown to people and to the acquires that it blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderView {
    /// Its token.
    pub token: Token,
    /// Its session.
    pub session: SessionId,
    /// The label of that session.
    pub label: Label,
    /// The mode in which it holds the lock.
    pub mode: Mode,
    /// When it was granted.
    pub since: WallTime,
    /// Milliseconds until the grant is lost if its session is not renewed.
    pub remaining_ms: u64,
    /// Why an operator revoked it, if one did.
    pub revoked: Option<Reason>,
    /// The client behind it. Empty in replies that the table remembers.
    pub origin: HolderOrigin,
}

/// The client behind a holder: what people want to know of it when they look at the lock.
///
/// It is made from the session at each read, and is not stored: neither snapshots nor hashes contain it. So a new field needs no cluster
/// version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HolderOrigin {
    /// The address from which its session was opened, if known.
    pub address: Option<Address>,
}

impl From<SessionView> for HolderOrigin {
    fn from(session: SessionView) -> Self {
        Self { address: session.address }
    }
}

/// A waiter, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView {
    /// Its place in the order of arrival.
    pub ticket: Ticket,
    /// Its session.
    pub session: SessionId,
    /// The label of that session.
    pub label: Label,
    /// The mode that it asks for.
    pub mode: Mode,
    /// When it began to wait.
    pub since: WallTime,
    /// Milliseconds until it times out, if it has a time limit.
    pub remaining_ms: Option<u64>,
}

/// What holds a lock, or waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockKind {
    /// Grants of this table.
    #[default]
    Lock,
    /// Entries of the keyspace that claim its name. Their tickets are their tokens.
    Entry,
}

/// A lock, as shown to people. A lock that is not in the table is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// What holds it.
    pub kind: LockKind,
    /// The mode in which it is used: that of its holders, or else of the first waiter. A resized semaphore keeps its mode for as long as
    /// the operator's size counts, also while it only keeps data.
    pub mode: Option<Mode>,
    /// In the order of their tokens, at most [`Page::size`].
    pub holders: Vec<HolderView>,
    /// Number of all holders.
    pub holder_count: u64,
    /// In the order of the queue, at most [`Page::size`].
    pub waiters: Vec<WaiterView>,
    /// Number of all waiters.
    pub queue_length: u64,
    /// Its data.
    pub data: Option<Data>,
    /// Whether the data outlives the present grants.
    pub keep_data: bool,
    /// Milliseconds until its lock-delay ends; 0 if there is none.
    pub delay_remaining_ms: u64,
    /// Whether an operator gave this semaphore its size, which overrides the sizes that acquires name.
    pub resized: bool,
}

/// A session, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// Its id.
    pub session: SessionId,
    /// Its label.
    pub label: Label,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// Milliseconds until it expires without a renewal.
    pub remaining_ms: u64,
    /// When it was opened.
    pub opened: WallTime,
    /// Grants that it holds, and locks that its entries hold.
    pub grants: u32,
    /// Acquires and entries that wait.
    pub waits: u32,
    /// The address from which it was opened, if known.
    pub address: Option<Address>,
    /// The client that it belongs to, unless that is anonymous.
    pub owner: Option<Identity>,
    /// Its estimated size in the table in bytes: with its grants, waits and replies, their names and data.
    pub bytes: u64,
}

/// A grant, as shown to people beside its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantView {
    /// Its token.
    pub token: Token,
    /// When it was granted.
    pub since: WallTime,
    /// The locks that it holds, sorted.
    pub names: Vec<LockName>,
    /// Why an operator revoked it, if one did.
    pub revoked: Option<Reason>,
}

/// A wait, as shown to people beside its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitView {
    /// Its place in the order of arrival.
    pub ticket: Ticket,
    /// When it began.
    pub since: WallTime,
    /// The locks that it asks for.
    pub names: Vec<LockName>,
}

/// The sizes of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sessions alive, and those that are over but not cleared away yet.
    pub sessions: usize,
    /// Locks held, awaited, delayed or with data; those of entries among them.
    pub locks: usize,
    /// Acquires and entries that wait.
    pub waiters: usize,
    /// Grants held, and locks held by entries.
    pub grants: usize,
    /// Entries of the keyspace.
    pub entries: usize,
}

/// Which part of a lock's holders and waiters to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// At most this many of each.
    pub size: usize,
    /// Only holders above this token.
    pub holders_after: Token,
    /// Only waiters above this ticket.
    pub waiters_after: Ticket,
}
