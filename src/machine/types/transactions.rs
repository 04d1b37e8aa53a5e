//! Transactions on the keyspace, and what they show.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::once,
    sync::Arc,
};

use lockkeeper_planted::Planted;

use super::*;

/// A transaction: operations that take effect at one moment, depending on what the keyspace has then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    compares: Vec<Compare>,
    then: Vec<TxnOperation>,
    otherwise: Vec<TxnOperation>,
    attached: Option<Attached>,
    closes: bool,
    falls_back: bool,
}

/// An operation of a transaction. It sees what the operations before it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnOperation {
    /// Shows an entry.
    Get(Key),
    /// Shows entries of a range.
    Select(Select),
    /// Writes an entry.
    Put(Put),
    /// Changes when an entry ends, and nothing else.
    Expire(Expire),
    /// Deletes an entry.
    Delete(Key),
    /// Deletes all entries of a range.
    DeleteRange(KeyRange),
    /// Opens a session. A repeat renews it while it lives. Puts that have it as their lease come later.
    Open(NewSession),
    /// Makes an entry as a child of a key.
    PutChild(PutChild),
}

/// A session for the entries of a transaction. It is closed when the last entry that has it as its lease is deleted, or gets another one;
/// until then it is like any session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSession {
    /// Drawn at random outside the machine.
    pub session: SessionId,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// The client's label, for people.
    pub label: Label,
    /// The client's address.
    pub address: Option<Address>,
    /// The client that it belongs to, unless that is anonymous.
    pub owner: Option<Identity>,
}

/// Why a transaction did not do what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnFailure {
    /// A compare does not hold: the first one, counted from 0.
    Compare(u32),
    /// An operation of [`Txn::then`] cannot be done as the table is.
    Operation {
        /// The first one, counted from 0.
        index: u32,
        /// Why.
        reason: TxnFailureReason,
    },
}

/// Why an operation of a transaction cannot be done as the table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TxnFailureReason {
    /// There is no entry under the key of the parent.
    #[error("the parent of its key does not exist")]
    NoParent,
    /// The parent has a lease or its own deadline. It may end at any time, and would leave its children without a parent.
    #[error("the parent of its key has a lease or a deadline, so it can have no children")]
    ParentEnds,
    /// There is an entry under the key of the child.
    #[error("the key exists already")]
    ChildExists,
    /// The entry that it deletes has children.
    #[error("the entry has children: delete them first")]
    ChildrenLeft,
    /// It gives a lease or a deadline to an entry that has or had children.
    #[error("the entry has or had children, so it can have neither a lease nor a deadline")]
    ParentCannotEnd,
    /// It puts a key that an earlier operation put under a number.
    #[error("the transaction puts the key twice: one revision has one value")]
    PutTwice,
}

/// Why a transaction cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTxn {
    /// More than [`TXN_OPERATIONS_MAX`] of one kind.
    #[error("a transaction has {count} {what}: the limit is {TXN_OPERATIONS_MAX}")]
    TooManyOperations {
        /// The kind of the operations, in the plural.
        what: &'static str,
        /// Their number.
        count: usize,
    },
    /// More than [`TXN_BYTES_MAX`].
    #[error(
        "the keys and values of a transaction, with the names of its sessions' owners, have {bytes} bytes: the limit is {TXN_BYTES_MAX}; \
         make two transactions of it"
    )]
    TooLarge {
        /// Its [`Txn::bytes`].
        bytes: usize,
    },
    /// A value in it is beyond a limit of its own.
    #[error(transparent)]
    Value(#[from] Invalid),
    /// A branch puts a key more than once, or changes its end beside: one revision has one value.
    #[error("a transaction puts the key {key:?} twice: put each key once")]
    PutTwice {
        /// The key.
        key: Key,
    },
    /// A put claims a lock and gives neither a lease nor a deadline: the claim would never end, or it has it already.
    #[error(
        "a transaction puts the key {key:?} to claim the lock {lock:?}, and gives it no lease: give it one, or a deadline"
    )]
    ClaimWithoutLease {
        /// The key.
        key: Key,
        /// The lock.
        lock: LockName,
    },
    /// A branch opens a session more than once.
    #[error("a transaction opens the session {session} twice: open each session once")]
    OpenedTwice {
        /// The session.
        session: SessionId,
    },
    /// A branch opens a session that is the lease of none of its entries.
    #[error("a transaction opens the session {session} and puts nothing with it: give it as the lease of an entry")]
    NothingLeased {
        /// The session.
        session: SessionId,
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
    /// The reply to [`TxnOperation::Get`]: the entry as this operation sees it, if there is one.
    Got(Option<Arc<Entry>>),
    /// To [`TxnOperation::Select`].
    Selected(Selected),
    /// To [`TxnOperation::Put`].
    Put,
    /// To [`TxnOperation::Expire`]: whether there was an entry.
    Expires(bool),
    /// To [`TxnOperation::Delete`] and [`TxnOperation::DeleteRange`]: the number of entries.
    Deleted(u64),
    /// The reply to [`TxnOperation::Open`]: the session lives this long, from now on.
    Opened(Ttl),
    /// To [`TxnOperation::PutChild`]: the key of the child, with its number.
    PutChild(Key),
}

/// A transaction took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Whether all compares held, so that `then` ran; `otherwise` ran otherwise.
    pub succeeded: bool,
    /// Why `otherwise` ran. Leaders of releases without this field do not say it.
    pub failed: Option<TxnFailure>,
    /// The revision of all that it wrote and deleted; without any, the present one of the keyspace.
    pub revision: Revision,
    /// Cluster time as it took effect: deadlines are counted from here.
    pub now: Stamp,
    /// A result for each operation of the branch that ran.
    pub results: Vec<TxnResult>,
}

impl TxnOperation {
    /// Its put, if it is one. The key of a numbered child does not have its number yet.
    pub fn put(&self) -> Option<&Put> {
        match self {
            Self::Put(put) | Self::PutChild(PutChild { put, .. }) => Some(put),
            Self::Get(_) | Self::Select(_) | Self::Expire(_) => None,
            Self::Delete(_) | Self::DeleteRange(_) | Self::Open(_) => None,
        }
    }

    /// The key of the entry that it changes and does not delete.
    fn written(&self) -> Option<&Key> {
        match self {
            Self::Put(Put { key, .. }) | Self::Expire(Expire { key, .. }) => Some(key),
            // The machine gives it its number.
            Self::PutChild(PutChild { is_numbered: true, .. }) => None,
            Self::PutChild(PutChild { put, .. }) => Some(&put.key),
            Self::Get(_) | Self::Select(_) | Self::Delete(_) | Self::DeleteRange(_) | Self::Open(_) => None,
        }
    }

    fn check_limits(&self) -> Result<(), Invalid> {
        match self {
            Self::Get(key) | Self::Delete(key) => key.check_limits(),
            Self::Select(Select { range, .. }) | Self::DeleteRange(range) => range.check_limits(),
            Self::Put(put) => put.check_limits(),
            Self::PutChild(child) => child.check_limits(),
            Self::Expire(Expire { key, deadline }) => {
                key.check_limits()?;
                deadline.map_or(Ok(()), EntryDeadline::check_limits)
            }
            Self::Open(NewSession { ttl, label, owner, .. }) => {
                ttl.check_limits()?;
                label.check_limits()?;
                owner.as_ref().map_or(Ok(()), Identity::check_limits)
            }
        }
    }
}

impl Txn {
    /// Fails over [`TXN_OPERATIONS_MAX`] compares, or operations of one branch; over [`TXN_BYTES_MAX`] bytes; and on what
    /// [`from_log`](Self::from_log) refuses.
    pub fn new(
        compares: Vec<Compare>,
        then: Vec<TxnOperation>,
        otherwise: Vec<TxnOperation>,
    ) -> Result<Self, InvalidTxn> {
        let txn = Self { compares, then, otherwise, ..Self::default() };
        txn.ensure_bounded()?;
        let Self { compares, then, otherwise, .. } = txn;
        Self::from_log(compares, then, otherwise)
    }

    /// A transaction of any size, for what the log has: another version may have other limits. Fails on a form that the table cannot
    /// carry out: if a branch puts a key twice, claims a lock twice, claims one without a lease, opens a session twice, or opens one that
    /// it puts nothing with. For its attachment see [`Self::by_attached`].
    pub fn from_log(
        compares: Vec<Compare>,
        then: Vec<TxnOperation>,
        otherwise: Vec<TxnOperation>,
    ) -> Result<Self, InvalidTxn> {
        let txn = Self { compares, then, otherwise, ..Self::default() };
        for branch in [&txn.then, &txn.otherwise] {
            if let Some(key) = repeated(branch.iter().filter_map(TxnOperation::written)) {
                return Err(InvalidTxn::PutTwice { key: key.clone() });
            }

            let claiming = || puts(branch).filter_map(|put| Some((put, &put.claims.as_ref()?.lock)));
            if let Some((put, lock)) = claiming().find(|(put, _)| !put.lease.can_claim()) {
                return Err(InvalidTxn::ClaimWithoutLease { key: put.key.clone(), lock: lock.clone() });
            }
            if let Some(lock) = repeated(claiming().map(|(_, lock)| lock)) {
                return Err(InvalidTxn::ClaimedTwice { lock: lock.clone() });
            }

            if let Some(session) = repeated(opens(branch).map(|new| new.session)) {
                return Err(InvalidTxn::OpenedTwice { session });
            }
            if opens(branch).next().is_none() {
                continue;
            }
            let leases: BTreeSet<_> = puts(branch).filter_map(|put| Some(put.lease.given()?.session)).collect();
            if let Some(new) = opens(branch).find(|new| !leases.contains(&new.session)) {
                return Err(InvalidTxn::NothingLeased { session: new.session });
            }
        }
        Ok(txn)
    }

    /// The same, if the session is alive and was attached by nobody else since: otherwise it is refused, with
    /// [`Refusal::SessionEnded`] or [`Refusal::SessionMoved`].
    pub fn by_attached(self, attached: Attached) -> Self {
        Self { attached: Some(attached), ..self }
    }

    /// The same as [`Self::by_attached`]; if it succeeds, it also closes the session, after its operations. So no other connection can
    /// attach the session between the check of its owner and its end.
    pub fn closing(self, attached: Attached) -> Self {
        Self { closes: true, ..self.by_attached(attached) }
    }

    /// The same; if an operation of `then` cannot be done as the table is, nothing of it is done, and `otherwise` runs as after a compare
    /// that does not hold. A transaction without this is refused then ([`Refusal::TxnFailed`]): its writer knows of no other reason than
    /// compares.
    pub fn falling_back(self) -> Self {
        Self { falls_back: true, ..self }
    }

    /// The attachment that it depends on.
    pub fn attached(&self) -> Option<Attached> {
        self.attached
    }

    /// Whether it closes the session of its attachment.
    pub fn closes(&self) -> bool {
        self.closes
    }

    /// Whether `otherwise` runs if an operation of `then` cannot be done.
    pub fn falls_back(&self) -> bool {
        self.falls_back
    }

    /// Whether only members that know children and attachments can carry it out.
    pub fn has_children(&self) -> bool {
        let is_child = |operation: &TxnOperation| matches!(operation, TxnOperation::PutChild(_));
        self.attached.is_some() || self.falls_back || self.operations().any(is_child)
    }

    /// Whether it has more compares or operations than versions before [`crate::Version::CHILDREN`] allow.
    pub fn is_long(&self) -> bool {
        let longest = self.compares.len().max(self.then.len()).max(self.otherwise.len());
        longest > TXN_OPERATIONS_BEFORE_CHILDREN_MAX
    }

    /// Fails on what is beyond a limit, in it or in its parts.
    pub fn check_limits(&self) -> Result<(), InvalidTxn> {
        self.ensure_bounded()?;
        self.compares.iter().try_for_each(Compare::check_limits)?;
        self.operations().try_for_each(TxnOperation::check_limits)?;
        Ok(())
    }

    fn ensure_bounded(&self) -> Result<(), InvalidTxn> {
        let most = TXN_OPERATIONS_MAX + usize::from(Planted::TxnOverByOne.is_on());
        let operations = self.then.len().max(self.otherwise.len());
        for (what, count) in [("compares", self.compares.len()), ("operations", operations)] {
            if count > most {
                return Err(InvalidTxn::TooManyOperations { what, count });
            }
        }

        let bytes = self.bytes();
        if bytes > TXN_BYTES_MAX {
            return Err(InvalidTxn::TooLarge { bytes });
        }
        Ok(())
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

    /// The sessions that it gives as leases. Not those that it opens.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        [&self.then, &self.otherwise].into_iter().flat_map(|branch| {
            let opened: BTreeSet<_> = opens(branch).map(|new| new.session).collect();
            let given = puts(branch).filter_map(|put| Some(put.lease.given()?.session));
            given.filter(move |session| !opened.contains(session))
        })
    }

    /// The sessions of one branch that are opened for a *temporary* entry: one that is alone with its session, is deleted when the session
    /// ends, and claims no lock. Adapters kept in them what they must remember for a time, before [`PutLease::Temporary`].
    pub fn temporaries(branch: &[TxnOperation]) -> BTreeSet<SessionId> {
        if opens(branch).next().is_none() {
            return BTreeSet::new();
        }
        let mut opened: BTreeMap<SessionId, usize> = opens(branch).map(|new| (new.session, 0)).collect();
        for operation in branch {
            let Some(put) = operation.put() else { continue };
            let Some(lease) = put.lease.given() else { continue };
            // A child is not a temporary entry of an adapter: other clients see it below its parent.
            let is_child = matches!(operation, TxnOperation::PutChild(_));
            let is_temporary = lease.at_end == AtLeaseEnd::Delete && put.claims.is_none() && !is_child;
            if let Some(entries) = opened.get_mut(&lease.session) {
                *entries += if is_temporary { 1 } else { 2 };
            }
        }
        opened.into_iter().filter(|(_, entries)| *entries == 1).map(|(session, _)| session).collect()
    }

    /// Whether it visits the entries of ranges, in either branch.
    pub fn reads_ranges(&self) -> bool {
        let is_range =
            |operation: &TxnOperation| matches!(operation, TxnOperation::Select(_) | TxnOperation::DeleteRange(_));
        self.compares.iter().any(|compare| compare.up_to.is_some()) || self.operations().any(is_range)
    }

    /// The sessions that each of its branches opens.
    pub fn opens(&self) -> [impl Iterator<Item = &NewSession>; 2] {
        [&self.then, &self.otherwise].map(|branch| opens(branch))
    }

    /// The same, with sessions of this client. Fails if the owner's name makes it too large.
    pub fn opened_by(mut self, address: Option<Address>, owner: Option<&Identity>) -> Result<Self, InvalidTxn> {
        for operation in self.then.iter_mut().chain(&mut self.otherwise) {
            if let TxnOperation::Open(new) = operation {
                new.address = address;
                new.owner = owner.cloned();
            }
        }
        if !Planted::OwnerOutgrowsTxn.is_on() {
            self.ensure_bounded()?;
        }
        Ok(self)
    }

    /// Whether it has to do with deadlines of entries, in either branch.
    pub fn has_deadlines(&self) -> bool {
        self.operations().any(|operation| match operation {
            TxnOperation::Put(put) | TxnOperation::PutChild(PutChild { put, .. }) => put.lease.deadline().is_some(),
            TxnOperation::Expire(_) => true,
            TxnOperation::Get(_) | TxnOperation::Select(_) | TxnOperation::Open(_) => false,
            TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => false,
        })
    }

    /// Whether it puts what an adapter remembers for a time without a session, in either branch.
    pub fn has_temporary_deadlines(&self) -> bool {
        self.operations().filter_map(TxnOperation::put).any(|put| put.lease.is_temporary())
    }

    /// Whether it may put a temporary entry, with a session or without, in either branch.
    pub(crate) fn may_have_temporaries(&self) -> bool {
        [&self.then, &self.otherwise].into_iter().any(|branch| opens(branch).next().is_some())
            || self.has_temporary_deadlines()
    }

    /// Whether it puts something, in either branch.
    pub fn puts(&self) -> bool {
        puts(&self.then).chain(puts(&self.otherwise)).next().is_some()
    }

    /// Bytes of its keys and values, of the names of locks that it claims, and of the labels and owners of those claims and of the sessions
    /// that it opens. What else it has takes a bounded number of bytes for each operation.
    pub fn bytes(&self) -> usize {
        let compare = |compare: &Compare| {
            let value = if let Operand::Value(value) = &compare.operand { value.as_bytes().len() } else { 0 };
            compare.key.as_bytes().len() + compare.up_to.as_ref().map_or(0, |key| key.as_bytes().len()) + value
        };

        let operation = |operation: &TxnOperation| match operation {
            TxnOperation::Get(key) | TxnOperation::Delete(key) | TxnOperation::Expire(Expire { key, .. }) => {
                key.as_bytes().len()
            }
            TxnOperation::Put(put) => put.bytes(),
            TxnOperation::PutChild(PutChild { parent, put, .. }) => parent.as_bytes().len() + put.bytes(),
            TxnOperation::DeleteRange(range) | TxnOperation::Select(Select { range, .. }) => range.bytes(),
            TxnOperation::Open(NewSession { label, owner, .. }) => {
                label.as_str().len() + owner.as_ref().map_or(0, |owner| owner.as_str().len())
            }
        };

        self.compares.iter().map(compare).sum::<usize>() + self.operations().map(operation).sum::<usize>()
    }
}

/// The first item that came before. Most branches have one operation, and need no set.
fn repeated<T: Ord + Copy>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    let second = items.next()?;
    let mut seen = BTreeSet::from([first]);
    once(second).chain(items).find(|item| !seen.insert(*item))
}

fn puts(branch: &[TxnOperation]) -> impl Iterator<Item = &Put> {
    branch.iter().filter_map(TxnOperation::put)
}

fn opens(branch: &[TxnOperation]) -> impl Iterator<Item = &NewSession> {
    branch.iter().filter_map(|operation| if let TxnOperation::Open(new) = operation { Some(new) } else { None })
}
