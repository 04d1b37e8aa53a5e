//! The keyspace: its entries, and transactions on them.

use std::{collections::BTreeSet, fmt, sync::Arc};

use super::*;

/// A key: 1 to [`KEY_BYTES_MAX`] bytes of any kind, ordered byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// The value of an entry: at most [`VALUE_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(Arc<[u8]>);

/// When an entry was written: a number from the counter of tokens, so it rises over all grants and all writes of the cluster, for ever. 0:
/// never.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

/// What becomes of an entry when its lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtLeaseEnd {
    /// It is deleted.
    Delete,
    /// It stays, without a lease, and [`Entry::is_expired`].
    Keep,
}

/// The lease of an entry: it ends when its session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The session.
    pub session: SessionId,
    /// What becomes of the entry then.
    pub at_end: AtLeaseEnd,
}

/// How an entry with a lease takes part in a lock: it holds it, or waits for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The lock.
    pub lock: LockName,
    /// Its token: the revision of the write that brought this lease and this lock together on the entry. Later writes that name both again
    /// keep it.
    pub token: Token,
    /// When it was granted the lock; until then, when it was made.
    pub since: WallTime,
    /// Whether it holds the lock.
    pub is_held: bool,
}

/// What the keyspace has under a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When the key came into being: the revision of its first write since it was last absent.
    pub created: Revision,
    /// When it changed last: the revision of its last write, or of the end of its lease.
    pub modified: Revision,
    /// Number of writes since it was created, from 1 on.
    pub version: u64,
    /// Its lease, until that ends.
    pub lease: Option<Lease>,
    /// The lock that it holds or waits for, while its lease lasts.
    pub claim: Option<Arc<Claim>>,
    /// Its lease ended, and nothing was written since.
    pub is_expired: bool,
    /// An operator ended its lease, and nothing was written since. Then it is expired, too.
    pub is_revoked: bool,
    /// Its value.
    pub value: Value,
}

/// A change of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent {
    /// When it happened. All changes of one transaction have the same revision.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// The entry before; `None`: there was none.
    pub before: Option<Arc<Entry>>,
    /// The entry since; `None`: it was deleted.
    pub after: Option<Arc<Entry>>,
}

/// Why a revision cannot be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RevisionError {
    /// It is below the compacted revision. The state at the compacted revision is known, and the events after it.
    #[error("the history of the keyspace begins after revision {}", .compacted.0)]
    Compacted {
        /// The compacted revision: that of the last event forgotten.
        compacted: Revision,
    },
    /// It is above the present one.
    #[error("the keyspace is at revision {}", .present.0)]
    Future {
        /// The present one.
        present: Revision,
    },
}

/// The keys from one on, up to another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRange {
    /// The first key, included; `None`: from the first of all.
    pub from: Option<Key>,
    /// The end, excluded; `None`: to the last of all. Not above `from`: the range is empty.
    pub to: Option<Key>,
}

/// How a property of an entry must relate to an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Equal to it.
    Equal,
    /// Not equal to it.
    NotEqual,
    /// Less than it.
    Less,
    /// Greater than it.
    Greater,
}

/// A property of an entry, and what it is compared with. An absent key has the revisions and the version 0, no lease, and no value: a
/// compare of its value never holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// [`Entry::created`].
    Created(Revision),
    /// [`Entry::modified`].
    Modified(Revision),
    /// [`Entry::version`].
    Version(u64),
    /// [`Entry::value`], ordered byte by byte.
    Value(Value),
    /// The session of [`Entry::lease`]; `None`: no lease, less than any session.
    Lease(Option<SessionId>),
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key.
    pub key: Key,
    /// How its entry must relate to the operand.
    pub relation: Relation,
    /// The operand.
    pub operand: Operand,
}

/// A write of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// Its new value.
    pub value: Value,
    /// Its new lease; `None`: it has none from now on.
    pub lease: Option<Lease>,
    /// The lock that it holds or waits for while the lease lasts. Without a lease there is none.
    pub claims: Option<LockName>,
}

/// An operation of a transaction. It sees what the operations before it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnOperation {
    /// Shows an entry.
    Get(Key),
    /// Writes an entry.
    Put(Put),
    /// Deletes an entry.
    Delete(Key),
    /// Deletes all entries of a range.
    DeleteRange(KeyRange),
    /// Renews a session.
    Renew(SessionId),
}

/// A transaction: operations that take effect at one moment, depending on what the keyspace has then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    compares: Vec<Compare>,
    then: Vec<TxnOperation>,
    otherwise: Vec<TxnOperation>,
}

/// Why a transaction cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTxn {
    /// More than [`TXN_OPERATIONS_MAX`] of one kind.
    #[error("a transaction has {count} {what}: the limit is {TXN_OPERATIONS_MAX}")]
    TooManyOperations {
        /// Of which kind.
        what: &'static str,
        /// Their number.
        count: usize,
    },
    /// More than [`TXN_BYTES_MAX`].
    #[error("the keys and values of a transaction have {bytes} bytes: the limit is {TXN_BYTES_MAX}")]
    TooLarge {
        /// Bytes of its keys and values.
        bytes: usize,
    },
    /// A branch puts a key more than once: one revision has one value.
    #[error("a transaction puts the key {key:?} twice: put each key once")]
    PutTwice {
        /// The key.
        key: Key,
    },
    /// A put claims a lock and has no lease: the claim would never end.
    #[error("a transaction puts the key {key:?} to claim the lock {lock:?}, without a lease: give it one")]
    ClaimWithoutLease {
        /// The key.
        key: Key,
        /// The lock.
        lock: LockName,
    },
    /// A branch claims a lock more than once: claims of one revision have no order.
    #[error("a transaction claims the lock {lock:?} twice: claim each lock once")]
    ClaimedTwice {
        /// The lock.
        lock: LockName,
    },
}

/// The result of one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnResult {
    /// To [`TxnOperation::Get`]: the entry as this operation sees it; `None`: there is none.
    Got(Option<Arc<Entry>>),
    /// To [`TxnOperation::Put`].
    Put,
    /// To [`TxnOperation::Delete`] and [`TxnOperation::DeleteRange`]: the number of entries.
    Deleted(u64),
    /// To [`TxnOperation::Renew`]: extended by this TTL, from now.
    Renewed(Ttl),
}

/// A transaction took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Whether all compares held, so that `then` ran; `otherwise` ran otherwise.
    pub succeeded: bool,
    /// The revision of all that it wrote and deleted; without any, the present one of the keyspace.
    pub revision: Revision,
    /// A result for each operation of the branch that ran.
    pub results: Vec<TxnResult>,
}

impl Key {
    /// Fails on an empty key, and on one over [`KEY_BYTES_MAX`].
    pub fn new(key: &[u8]) -> Result<Self, Invalid> {
        match key.len() {
            0 => Err(Invalid::new(format!("the key is empty: give it 1 to {KEY_BYTES_MAX} bytes"))),
            1..=KEY_BYTES_MAX => Ok(Self(key.into())),
            bytes => Err(Invalid::new(format!("the key has {bytes} bytes: the limit is {KEY_BYTES_MAX}"))),
        }
    }

    /// The first of all keys.
    pub fn first() -> Self {
        Self([0].into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    /// As text, since most keys are mostly text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Value {
    /// Fails over [`VALUE_BYTES_MAX`].
    pub fn new(value: &[u8]) -> Result<Self, Invalid> {
        match value.len() {
            0..=VALUE_BYTES_MAX => Ok(Self(value.into())),
            bytes => Err(Invalid::new(format!("the value has {bytes} bytes: the limit is {VALUE_BYTES_MAX}"))),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    /// Its length only: values may be long, and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl KeyRange {
    /// Whether the key is in it.
    pub fn contains(&self, key: &Key) -> bool {
        self.from.as_ref().is_none_or(|from| key >= from) && self.to.as_ref().is_none_or(|to| key < to)
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        matches!((&self.from, &self.to), (Some(from), Some(to)) if from >= to)
    }

    fn bytes(&self) -> usize {
        [&self.from, &self.to].into_iter().flatten().map(|key| key.as_bytes().len()).sum()
    }
}

impl Txn {
    /// Fails over [`TXN_OPERATIONS_MAX`] compares, or operations of one branch; over [`TXN_BYTES_MAX`] bytes of keys and values; and if a
    /// branch puts a key twice, claims a lock twice, or claims one without a lease.
    pub fn new(
        compares: Vec<Compare>,
        then: Vec<TxnOperation>,
        otherwise: Vec<TxnOperation>,
    ) -> Result<Self, InvalidTxn> {
        let counts = [("compares", compares.len()), ("operations", then.len().max(otherwise.len()))];
        if let Some((what, count)) = counts.into_iter().find(|(_, count)| *count > TXN_OPERATIONS_MAX) {
            return Err(InvalidTxn::TooManyOperations { what, count });
        }
        let txn = Self { compares, then, otherwise };
        let bytes = txn.bytes();
        if bytes > TXN_BYTES_MAX {
            return Err(InvalidTxn::TooLarge { bytes });
        }
        for branch in [&txn.then, &txn.otherwise] {
            let mut keys = BTreeSet::new();
            if let Some(put) = puts(branch).find(|put| !keys.insert(&put.key)) {
                return Err(InvalidTxn::PutTwice { key: put.key.clone() });
            }
            let mut locks = BTreeSet::new();
            for (put, lock) in puts(branch).filter_map(|put| Some((put, put.claims.as_ref()?))) {
                if put.lease.is_none() {
                    return Err(InvalidTxn::ClaimWithoutLease { key: put.key.clone(), lock: lock.clone() });
                }
                if !locks.insert(lock) {
                    return Err(InvalidTxn::ClaimedTwice { lock: lock.clone() });
                }
            }
        }
        Ok(txn)
    }

    /// What must hold for [`Txn::then`] to run.
    pub fn compares(&self) -> &[Compare] {
        &self.compares
    }

    /// What runs if all compares hold.
    pub fn then(&self) -> &[TxnOperation] {
        &self.then
    }

    /// What runs if one of them does not.
    pub fn otherwise(&self) -> &[TxnOperation] {
        &self.otherwise
    }

    /// The operations of both branches.
    pub fn operations(&self) -> impl Iterator<Item = &TxnOperation> {
        self.then.iter().chain(&self.otherwise)
    }

    /// The sessions that it uses: as leases of what it puts, and to renew them.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.operations().filter_map(|operation| match operation {
            TxnOperation::Put(put) => put.lease.map(|lease| lease.session),
            TxnOperation::Renew(session) => Some(*session),
            TxnOperation::Get(_) | TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => None,
        })
    }

    /// Whether it puts something, in either branch.
    pub fn puts(&self) -> bool {
        puts(&self.then).chain(puts(&self.otherwise)).next().is_some()
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        let compare = |compare: &Compare| {
            let value = if let Operand::Value(value) = &compare.operand { value.as_bytes().len() } else { 0 };
            compare.key.as_bytes().len() + value
        };
        let operation = |operation: &TxnOperation| match operation {
            TxnOperation::Get(key) | TxnOperation::Delete(key) => key.as_bytes().len(),
            TxnOperation::Put(Put { key, value, claims, .. }) => {
                key.as_bytes().len() + value.as_bytes().len() + claims.as_ref().map_or(0, |lock| lock.as_str().len())
            }
            TxnOperation::DeleteRange(range) => range.bytes(),
            TxnOperation::Renew(_) => 0,
        };
        self.compares.iter().map(compare).sum::<usize>() + self.operations().map(operation).sum::<usize>()
    }
}

fn puts(branch: &[TxnOperation]) -> impl Iterator<Item = &Put> {
    branch.iter().filter_map(|operation| if let TxnOperation::Put(put) = operation { Some(put) } else { None })
}
