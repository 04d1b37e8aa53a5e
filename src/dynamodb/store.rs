//! The keyspace below, which has linearizable reads, and transactions that compare revisions.
//!
//! It knows nothing of DynamoDB. An operation reads entries, decides, and commits writes under the condition that the entries which it read
//! are still at the same revision. Otherwise it starts again. So the store needs no expression, and no rule of another product.

use std::{fmt, net::SocketAddr};

use http::Extensions;
use thiserror::Error;
use tokio::time::Instant;

use crate::decoded::DecodedShare;

/// The caller of a request, and the time until which the answer is of use.
#[derive(Clone, Debug)]
pub struct DynamoCaller {
    /// The access key of the request's signature. It is proven only if secrets are configured.
    pub identity: Option<String>,
    /// The client's end of the connection.
    pub address: SocketAddr,
    /// Nobody reads an answer after this time.
    pub deadline: Instant,
    /// Whether the port asks for itself, about its own records. No right of a client concerns it.
    pub is_port: bool,
    /// The memory of the values that it sent or asked for.
    pub(crate) decoded: DecodedShare,
}

impl DynamoCaller {
    /// Makes the caller for the port's own requests.
    pub(crate) fn port(deadline: Instant) -> Self {
        Self {
            identity: None,
            address: SocketAddr::from(([0; 4], 0)),
            deadline,
            is_port: true,
            decoded: DecodedShare::default(),
        }
    }
}

/// The entry of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct DynamoEntry {
    /// The revision of the write that created it.
    pub created: u64,
    /// The revision of its last write. It rises with each write, over all keys, and is never zero.
    pub modified: u64,
    /// Number of its writes since it was created.
    pub version: u64,
    /// Whether it has a lease that is not over.
    pub leased: bool,
    /// Whether its lease has ended, and nothing was written since.
    pub expired: bool,
    /// Whether an operator ended its lease. Then it is expired, too.
    pub revoked: bool,
    /// The bytes that were written.
    pub value: Vec<u8>,
}

impl fmt::Debug for DynamoEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { created, modified, version, leased, expired, revoked, value } = self;
        write!(f, "Entry {{ {created}..{modified}, version {version}, leased {leased}, expired {expired}, ")?;
        write!(f, "revoked {revoked}, {} bytes }}", value.len())
    }
}

/// Some of the entries of a range.
#[derive(Clone, Debug, Default)]
pub struct DynamoPage {
    /// The entries in the requested order.
    pub entries: Vec<(Vec<u8>, DynamoEntry)>,
    /// Whether further entries may follow.
    pub more: bool,
}

/// Writes that take effect together, or not at all.
#[derive(Clone, Debug, Default)]
pub struct DynamoTxn {
    /// Keys, each with the `modified` that its entry must have, or 0 if there must be no entry. A key occurs at most once.
    pub expected: Vec<(Vec<u8>, u64)>,
    /// The writes. A key occurs at most once.
    pub writes: Vec<DynamoWrite>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DynamoWrite {
    /// Creates or replaces an entry.
    Put {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Its lease from now on.
        lease: DynamoLease,
    },
    /// Removes an entry and its lease. It is not an error if the entry is missing.
    Delete {
        /// Its key.
        key: Vec<u8>,
    },
}

/// The lease of an entry after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DynamoLease {
    /// The entry has no lease, and lives until it is deleted.
    None,
    /// The lease stays as it was: with the same deadline, or already over.
    Kept,
    /// The lease that the entry has starts again when the write is applied. The commit fails, as if the entry had changed, if it no longer
    /// has a lease.
    Renewed,
    /// The entry gets a new lease. The lease belongs to this entry alone, and starts when the write is applied.
    Granted {
        /// The name of the lock that the entry is, for people, if it is a lock. The lock's token is the revision of this write, until
        /// another lease is granted.
        lock: Option<String>,
        /// The text that is shown as its holder.
        owner: String,
        /// Its length in milliseconds.
        ttl_ms: u64,
        /// What happens to the entry when the lease ends.
        at_end: AtEnd,
    },
    /// The endpoint keeps this entry for a limited time. It is neither a lock nor an item. The store deletes it after that time, and may
    /// have a limit for such entries of their own.
    Memory {
        /// The client whose request is remembered. May be shown to people.
        owner: String,
        /// The time in milliseconds.
        ttl_ms: u64,
    },
}

/// What happens to an entry whose lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// It stays, and reads as [`expired`](DynamoEntry::expired).
    Expire,
    /// It is deleted.
    Delete,
}

/// The result of a [`DynamoTxn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamoCommitted {
    /// Whether all entries were as expected, and all writes were made.
    pub succeeded: bool,
    /// The revision of the writes or, without any, of the store.
    pub revision: u64,
}

/// The reason why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DynamoStoreError {
    /// Nothing happened, because too many requests are in flight. Try again later.
    #[error("{0}")]
    Overloaded(String),
    /// Nothing happened, because the caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// Nothing happened, because a key, a value, or the transaction is larger than the store allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nothing happened, because the store is full, or the part of it that the caller may have.
    #[error("{0}")]
    Full(String),
    /// Nothing happened, because no node can answer now.
    #[error("{0}")]
    Unavailable(String),
    /// There was no answer in time. A commit may still take effect.
    #[error("{0}")]
    Unknown(String),
}

/// A keyspace in which an entry's revision rises with each write.
///
/// Each call is linearizable, and ends before the caller's deadline.
pub trait DynamoStore: Send + Sync + 'static {
    /// Looks whether the client of this access key may have this connection, before each request that shows the key. An error is the
    /// answer, and the connection is closed after it. The connection is as its listener describes it.
    fn admit(&self, _access_key: &str, _connection: &Extensions) -> Result<(), DynamoStoreError> {
        Ok(())
    }

    /// Reads the entries of some keys, all of the same revision, in the order of the keys.
    fn get(
        &self,
        caller: &DynamoCaller,
        keys: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<Vec<Option<DynamoEntry>>, DynamoStoreError>> + Send;

    /// Reads the first or the last entries of `from..to`, all of the same revision, and at most `limit` of them. The store may answer with
    /// fewer, to bound the bytes of a page, but not with none if [`DynamoPage::more`] is set.
    fn list(
        &self,
        caller: &DynamoCaller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> impl Future<Output = Result<DynamoPage, DynamoStoreError>> + Send;

    /// Compares, and then writes.
    fn commit(
        &self,
        caller: &DynamoCaller,
        txn: DynamoTxn,
    ) -> impl Future<Output = Result<DynamoCommitted, DynamoStoreError>> + Send;
}
