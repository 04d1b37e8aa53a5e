//! The keyspace below: linearizable reads, entries with deadlines, and transactions that compare.
//!
//! It knows nothing of Redis. A command reads entries, decides, and commits writes under the condition that the entries which it read are
//! still at the same revision. Otherwise it starts again. The commands of plain locks need no read before: their condition is in the
//! transaction.

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Weak},
};

use thiserror::Error;
use tokio::{sync::mpsc, time::Instant};

/// The client for which the store is asked, and the time until which the answer is of use.
#[derive(Clone, Debug)]
pub struct RedisCaller {
    /// The identity that [`RedisStore::authenticate`] or the client's certificate has proven.
    pub identity: Option<String>,
    /// The client's end of the connection.
    pub address: SocketAddr,
    /// Nobody reads an answer after this time.
    pub deadline: Instant,
    /// Whether the port asks for itself, about the scripts that it keeps. No right of a client concerns it.
    pub is_port: bool,
}

/// A connection of a client, for a store that counts them. Clones are the same connection, and it is open until the last one is dropped.
#[derive(Clone, Debug, Default)]
pub struct ClientConnection(Arc<()>);

impl ClientConnection {
    /// Tells this connection from others, and whether it is open, and does not keep it open.
    pub fn observe(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}

/// An identity that a client has proven by a password or a certificate.
pub struct RedisIdentity {
    /// Its name.
    pub name: String,
    /// Returns when that proof counts no more: the connection is closed then. It may never return.
    pub withdrawn: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for RedisIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisIdentity").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The entry of a key. Its deadline, if it has one, has not passed.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisEntry {
    /// The revision of the write that created it.
    pub created: u64,
    /// The revision of its last write, or of the last change of its deadline. It rises with each write, over all keys, and is never zero.
    pub modified: u64,
    /// The cluster time, in milliseconds, at which it is deleted by itself.
    pub deadline_ms: Option<u64>,
    /// The token of the lock that it claims ([`LockClaim`]): the revision of the write that made the claim.
    pub token: Option<u64>,
    /// The holder of that lock, as the write named it. A store may cut a long text.
    pub holder: Option<String>,
    /// The bytes that were written.
    pub value: Vec<u8>,
}

impl fmt::Debug for RedisEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { created, modified, deadline_ms, token, holder: _, value } = self;
        write!(f, "RedisEntry {{ {created}..{modified}, deadline {deadline_ms:?}, token {token:?}, ")?;
        write!(f, "{} bytes }}", value.len())
    }
}

/// The entries of some keys, all of the same revision.
#[derive(Clone, Debug, Default)]
pub struct RedisFound {
    /// The entries in the order of the keys.
    pub entries: Vec<Option<RedisEntry>>,
    /// The revision of the keyspace that they show.
    pub revision: u64,
    /// The cluster time of this state, in milliseconds: what remains of a deadline is counted from here. No entry with a deadline at or
    /// before it is among the entries, and none of those that are missing for that reason is ever seen again, whoever leads.
    pub now_ms: u64,
}

/// Some of the entries of a range, all of the same revision.
#[derive(Clone, Debug, Default)]
pub struct RedisPage {
    /// The entries in the order of their keys.
    pub entries: Vec<(Vec<u8>, RedisEntry)>,
    /// Whether further entries may follow.
    pub more: bool,
    /// As in [`RedisFound`].
    pub revision: u64,
    /// As in [`RedisFound`].
    pub now_ms: u64,
}

/// Writes that take effect together, or not at all.
#[derive(Clone, Debug, Default)]
pub struct RedisTxn {
    /// All must hold for the writes to take effect.
    pub conditions: Vec<RedisCondition>,
    /// The writes. A key occurs at most once.
    pub writes: Vec<RedisWrite>,
    /// The keys whose entries are answered if a condition does not hold.
    pub otherwise_get: Vec<Vec<u8>>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisCondition {
    /// The entry has this [`modified`](RedisEntry::modified). With 0, there is no entry.
    Modified {
        /// The key.
        key: Vec<u8>,
        /// The revision.
        revision: u64,
    },
    /// The entry exists.
    Present {
        /// The key.
        key: Vec<u8>,
    },
    /// The entry exists and has this value.
    Value {
        /// The key.
        key: Vec<u8>,
        /// All bytes of the value.
        value: Vec<u8>,
    },
    /// No entry of `from..to` was created or written after the revision. Entries that were deleted since are not noticed: who has seen them
    /// adds a condition for each.
    RangeUnwritten {
        /// The first key.
        from: Vec<u8>,
        /// The end of the range, which is not part of it.
        to: Vec<u8>,
        /// The revision.
        revision: u64,
    },
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisWrite {
    /// Creates or replaces an entry.
    Put {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Its deadline from now on.
        expiry: Expiry,
        /// The lock that it stands for.
        claim: LockClaim,
    },
    /// Changes the deadline of an entry and nothing else: its value and its claim stay. Without an entry nothing happens.
    Expire {
        /// The key.
        key: Vec<u8>,
        /// The deadline from now on.
        expiry: Expiry,
    },
    /// Removes an entry. It is not an error if the entry is missing.
    Delete {
        /// Its key.
        key: Vec<u8>,
    },
    /// Removes all entries of `from..to`. The store may refuse a range of many entries as [`RedisStoreError::TooLarge`].
    DeleteRange {
        /// The first key.
        from: Vec<u8>,
        /// The end of the range, which is not part of it.
        to: Vec<u8>,
    },
}

/// The deadline of an entry after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The entry lives until it is deleted.
    None,
    /// The deadline stays. A new entry gets no deadline.
    Kept,
    /// The entry lives for this number of milliseconds from the cluster time at which the write is applied. 1 is the least. The store may
    /// let it live longer by the grain of its log's time, and never shorter.
    AfterMs(u64),
    /// The entry lives until this cluster time, in milliseconds. If that has passed, the write removes the entry.
    AtMs(u64),
}

/// The lock that an entry stands for, as operators see it. It decides nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockClaim {
    /// The entry does not stand for a lock.
    None,
    /// As before the write. A new entry does not stand for a lock.
    Kept,
    /// The entry is this lock, held since this write. The token of the claim is the revision of the write.
    New {
        /// The name of the lock.
        name: String,
        /// The text that is shown as its holder: of any length, and without control characters.
        holder: String,
    },
}

/// The result of a [`RedisTxn`].
#[derive(Clone, Debug, Default)]
pub struct RedisCommitted {
    /// Whether all conditions held, and all writes were made.
    pub succeeded: bool,
    /// The revision of the writes or, without any, of the store.
    pub revision: u64,
    /// The cluster time at which it was applied, in milliseconds.
    pub now_ms: u64,
    /// Number of entries that its deletes removed.
    pub deleted: u64,
    /// If a condition did not hold, the entries of [`RedisTxn::otherwise_get`], as of this moment: one for each key, also where many
    /// transactions are committed together.
    pub found: Vec<Option<RedisEntry>>,
}

/// A write of the keyspace, as a node has applied it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisChange {
    /// The key.
    pub key: Vec<u8>,
    /// The value that it has now. `None` means that the entry is gone: deleted, or past its deadline.
    pub value: Option<Vec<u8>>,
}

/// A node, as clients of this protocol reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// A name or an address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port of this protocol.
    pub port: u16,
    /// Whether it leads, as far as the node that is asked knows.
    pub leads: bool,
}

/// The reason why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RedisStoreError {
    /// Nothing happened, because too many requests are in flight. Try again later.
    #[error("{0}")]
    Overloaded(String),
    /// Nothing happened, because the caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// Nothing happened, because a key, a value, a range or the transaction is larger than the store allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nothing happened, because the store is full, or the part of it that the caller may have.
    #[error("{0}")]
    Full(String),
    /// Nothing happened, because there is no leader, or it could not be asked.
    #[error("{0}")]
    Unavailable(String),
    /// There was no answer in time. A commit may still take effect.
    #[error("{0}")]
    Unknown(String),
}

/// A keyspace in which an entry's revision rises with each write, and entries end at their deadlines.
///
/// Each call that takes a [`RedisCaller`] is linearizable, and ends before its deadline. Dropping its future abandons it: a commit may
/// still take effect. An entry whose deadline has passed is seen by no call.
pub trait RedisStore: Clone + Send + Sync + 'static {
    /// Proves the identity of a user by a password. `None` means that they do not fit. A user that is not named is `default`. Fails if the
    /// identity may have no further connection; one that it has already is not counted again.
    fn authenticate(
        &self,
        user: &str,
        password: &[u8],
        connection: &ClientConnection,
    ) -> Result<Option<RedisIdentity>, RedisStoreError>;

    /// Counts a connection whose certificate proves an identity. Fails if the identity may have no further one.
    fn admit(&self, identity: &str, connection: &ClientConnection) -> Result<(), RedisStoreError>;

    /// Whether the caller may pop from these keys, at once. It is asked again and again while the caller waits for an item.
    fn ensure_may_pop(&self, caller: &RedisCaller, keys: &[Vec<u8>]) -> Result<(), RedisStoreError>;

    /// Whether any user has a password. Otherwise AUTH is refused.
    fn has_users(&self) -> bool;

    /// Whether clients without an identity are refused.
    fn needs_identity(&self) -> bool;

    /// Whether a leader is known that can be asked, at once.
    fn has_leader(&self) -> bool;

    /// The nodes of the cluster that clients can reach, as far as this node knows, at once.
    fn nodes(&self) -> Vec<NodeAddress>;

    /// The latest time, in milliseconds since 1970, that a leader's clock has shown when it committed something that this node has applied,
    /// at once. A node that leads has applied all that was committed before a read which it has answered.
    fn committed_wall_ms(&self) -> u64;

    /// Reads the entries of some keys. A key may occur more than once. Without keys it is a read all the same.
    fn get(
        &self,
        caller: &RedisCaller,
        keys: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<RedisFound, RedisStoreError>> + Send;

    /// Reads the first entries of `from..to`, at most `limit` of them. The store may answer with fewer, to bound the bytes of a page, but
    /// not with none if [`RedisPage::more`] is set.
    fn list(
        &self,
        caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    ) -> impl Future<Output = Result<RedisPage, RedisStoreError>> + Send;

    /// Returns the number of entries of `from..to`.
    fn count(
        &self,
        caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
    ) -> impl Future<Output = Result<u64, RedisStoreError>> + Send;

    /// Compares, and then writes.
    fn commit(
        &self,
        caller: &RedisCaller,
        txn: RedisTxn,
    ) -> impl Future<Output = Result<RedisCommitted, RedisStoreError>> + Send;

    /// Commits transactions, each by itself, and returns what became of them in their order: at least of the first one; those without an
    /// outcome were not begun. They take effect in this order, too, but for those that failed for a reason by which nothing happened. A
    /// store has them under way at the same time where it can.
    fn commit_each(
        &self,
        caller: &RedisCaller,
        txns: Vec<RedisTxn>,
    ) -> impl Future<Output = Vec<Result<RedisCommitted, RedisStoreError>>> + Send;

    /// The writes of `from..to` as this node applies them, from now on: all of them, in the order of the log, also those of entries that
    /// have ended again meanwhile. Writes that were acknowledged before the call are not among them. The channel is closed when the store
    /// cannot promise this any longer, for instance since the receiver was too slow; a change of leader does not close it.
    fn watch(
        &self,
        caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
    ) -> impl Future<Output = Result<mpsc::Receiver<Vec<RedisChange>>, RedisStoreError>> + Send;

    /// Has the leader's node run a unit of work (`Redis::run_unit`) for the caller, and returns the bytes that it returned. `None` means
    /// that this node leads, and nothing was done: the caller runs the unit itself. A unit reads and commits by the calls above, so it is
    /// right on any node; the leader's is the one where its reads cost no hop, and where units on the same keys take turns. Its bytes are
    /// made only if they are sent.
    fn run_at_leader(
        &self,
        caller: &RedisCaller,
        unit: impl FnOnce() -> Vec<u8> + Send,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, RedisStoreError>> + Send;
}
