//! The keyspace below: linearizable reads, and transactions that compare revisions.
//!
//! Nothing of DynamoDB reaches it. An operation reads entries, decides, and commits writes under the condition that the entries which it
//! read are still at the same revision; otherwise it begins again. So the store needs no expression, and no rule of another product.

use std::{fmt, net::SocketAddr};

use thiserror::Error;
use tokio::time::Instant;

/// Who asks, and until when the answer is of use.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The access key of the request's signature. Proven only where secrets are configured.
    pub identity: Option<String>,
    /// The client's end of the connection.
    pub address: SocketAddr,
    /// No answer after it is read by anybody.
    pub deadline: Instant,
    /// The endpoint asks for itself, about its own records: no right of a client concerns it.
    pub is_endpoint: bool,
}

impl Caller {
    /// The endpoint itself.
    pub(crate) fn endpoint(deadline: Instant) -> Self {
        Self { identity: None, address: SocketAddr::from(([0; 4], 0)), deadline, is_endpoint: true }
    }
}

/// What a key holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the write that created it.
    pub created: u64,
    /// The revision of its last write. Rises with each write, over all keys. Never zero.
    pub modified: u64,
    /// Its writes since it was created.
    pub version: u64,
    /// It has a lease, which is not over.
    pub leased: bool,
    /// Its lease has ended, and nothing was written since.
    pub expired: bool,
    /// An operator ended it. Then it is expired, too.
    pub revoked: bool,
    /// The bytes that were written.
    pub value: Vec<u8>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { created, modified, version, leased, expired, revoked, value } = self;
        write!(f, "Entry {{ {created}..{modified}, version {version}, leased {leased}, expired {expired}, ")?;
        write!(f, "revoked {revoked}, {} bytes }}", value.len())
    }
}

/// Some of the entries of a range.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// In the order asked for.
    pub entries: Vec<(Vec<u8>, Entry)>,
    /// Further entries may follow.
    pub more: bool,
}

/// Writes that happen together, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// Keys, and the `modified` that each must have; 0: there is no such entry. A key is here once at most.
    pub expected: Vec<(Vec<u8>, u64)>,
    /// A key is here once at most.
    pub writes: Vec<Write>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Creates or replaces an entry.
    Put {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Its lease from now on.
        lease: Lease,
    },
    /// Removes an entry, and its lease. No error if there is none.
    Delete {
        /// Its key.
        key: Vec<u8>,
    },
}

/// The lease of an entry after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// None: the entry lives until it is deleted.
    None,
    /// As it was: the same deadline, or already over.
    Keep,
    /// The one that it has, as long again from when the write is applied. The commit fails, as if the entry had changed, if it has none any
    /// more.
    Renew,
    /// A new one. It belongs to this entry alone, and starts when the write is applied.
    Grant {
        /// The lock that the entry is, for people; `None`: it is none. Its token is the revision of this write, until another lease is
        /// granted.
        lock: Option<String>,
        /// Who is shown as its holder.
        owner: String,
        /// Its length.
        ttl_ms: u64,
        /// What becomes of the entry.
        at_end: AtEnd,
    },
}

/// What becomes of an entry whose lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// It stays, and reads as [`expired`](Entry::expired).
    Expire,
    /// It is deleted.
    Delete,
}

/// The result of a [`Txn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// All entries were as expected, and all writes were made.
    pub succeeded: bool,
    /// The revision of the writes; of the store, if there were none.
    pub revision: u64,
}

/// No result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing happened: too much is under way. Try again later.
    #[error("{0}")]
    Overloaded(String),
    /// Nothing happened: the caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// Nothing happened: a key, a value, or the transaction is larger than the store allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nothing happened: the store is full, or the part of it that the caller may have.
    #[error("{0}")]
    Full(String),
    /// Nothing happened: no node can answer now.
    #[error("{0}")]
    Unavailable(String),
    /// No answer in time. A commit may still take effect.
    #[error("{0}")]
    Unknown(String),
}

/// A keyspace in which an entry's revision rises with each write.
///
/// Each call is linearizable, and ends before the caller's deadline.
pub trait Store: Send + Sync + 'static {
    /// The entries of some keys, all of the same revision, in the order of the keys.
    fn get(
        &self,
        caller: &Caller,
        keys: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<Vec<Option<Entry>>, StoreError>> + Send;

    /// The first entries, or the last, of `from..to`, all of the same revision: `limit` at most. The store may answer with fewer, to bound
    /// the bytes of a page, but never with none where [`Page::more`].
    fn range(
        &self,
        caller: &Caller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Compares, and writes.
    fn commit(&self, caller: &Caller, txn: Txn) -> impl Future<Output = Result<Committed, StoreError>> + Send;
}
