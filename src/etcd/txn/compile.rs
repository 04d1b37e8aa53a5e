//! A branch of a transaction, as operations of the store.

use std::collections::BTreeSet;

use lockkeeper_machine::{
    AtLeaseEnd, Entry, Key, Lease, LockName, Put, PutClaim, PutLease, Select, TXN_OPERATIONS_BEFORE_CHILDREN_MAX,
    TXN_OPERATIONS_MAX, TxnOperation, Value,
};
use lockkeeper_planted::Planted;

use super::{analyze::operations, decide::Decided};
use crate::{
    check::{RangeEnd, Ranges},
    error::Error,
    key,
    proto::etcdserverpb::{PutRequest, RangeRequest, TxnRequest, request_op::Request},
    range,
};

/// Which locks the puts of a transaction claim: see `README.md`.
#[derive(Default)]
pub(super) struct Claims<'a> {
    /// The single keys that the transaction compares.
    compared: BTreeSet<&'a [u8]>,
    /// The ranges that it compares. A request can have 100,000 of them, so a put is not compared with each one.
    ranges: Ranges<'a>,
}

impl<'a> Claims<'a> {
    pub(super) fn collect(request: &'a TxnRequest) -> Self {
        let mut claims = Self::default();
        claims.add_compared(request);
        claims
    }

    fn add_compared(&mut self, request: &'a TxnRequest) {
        for compare in &request.compare {
            if compare.range_end.is_empty() {
                self.compared.insert(&compare.key);
            } else {
                // A range that the store does not take is refused when the compare is compiled, and with it the transaction.
                self.ranges.insert(&compare.key, RangeEnd::from_wire(&compare.key, &compare.range_end));
            }
        }

        for operation in operations(request) {
            if let Request::RequestTxn(txn) = operation {
                self.add_compared(txn);
            }
        }
    }

    /// The lock of a put with this lease.
    fn lock(&self, key: &Key, lease: i64) -> Option<LockName> {
        // A key of a queue is known by its name. Any other key is a lock only by what the client does with it, or as Patroni names it.
        let is_compared = || self.compared.contains(key::shown(key)) || self.ranges.contains(key::shown(key));
        let is_single = key::is_leader(key) || is_compared();
        let single = || is_single.then(|| key::single(key)).flatten();
        key::queue(key, lease).or_else(single)
    }
}

/// A step of a branch, and the places of the store's operations for it.
pub(super) enum BranchStep {
    /// A read of the past.
    Past {
        /// The place in [`Branch::past`].
        place: usize,
    },
    Range {
        place: usize,
    },
    Put {
        before: FormerEntry,
    },
    Delete {
        place: usize,
        before: FormerEntry,
    },
    Txn {
        succeeded: bool,
        steps: Vec<Self>,
    },
}

/// Where the answer to a write finds the entries that it has replaced.
pub(super) enum FormerEntry {
    /// The client does not ask for them.
    Unwanted,
    /// The operation at this place shows them.
    Operation(usize),
    /// The entry of this key is read before the commit: see [`Branch::former`].
    ReadBefore(Key),
}

/// A branch, compiled.
#[derive(Default)]
pub(super) struct Branch<'a> {
    pub(super) operations: Vec<TxnOperation>,
    /// Its reads of the past, which the store does not make in a transaction.
    pub(super) past: Vec<&'a RangeRequest>,
    pub(super) steps: Vec<BranchStep>,
    /// The keys whose entries are shown and do not fit into the transaction.
    pub(super) former: BTreeSet<Key>,
    claimed: BTreeSet<LockName>,
    /// Operations of the client that were added, with those of inner transactions.
    added: usize,
    /// Whether the former entries of single keys do not fit into the transaction, so that they are read before it.
    is_crowded: bool,
}

impl<'a> Branch<'a> {
    pub(super) fn compile(claims: &Claims<'_>, decided: &[Decided<'a>]) -> Result<Self, Error> {
        let mut branch = Self::default();
        branch.steps = branch.add(claims, decided)?;

        // The reads of former entries may be what exceeds the limit. Without them, they are read before the commit. After it, a read that
        // fails, or an answer that is too large, would hide from the client that its writes took effect.
        if branch.operations.len() > TXN_OPERATIONS_BEFORE_CHILDREN_MAX {
            branch = Self { is_crowded: true, ..Self::default() };
            branch.steps = branch.add(claims, decided)?;
        }
        Ok(branch)
    }

    /// Whether one of the operations writes.
    pub(super) fn writes(&self) -> bool {
        !self.operations.iter().all(|operation| matches!(operation, TxnOperation::Get(_) | TxnOperation::Select(_)))
    }

    fn add(&mut self, claims: &Claims<'_>, decided: &[Decided<'a>]) -> Result<Vec<BranchStep>, Error> {
        let mut steps = Vec::with_capacity(decided.len());
        for operation in decided {
            // A request has room for hundreds of thousands, in transactions within transactions.
            self.added += 1;
            if self.added > TXN_OPERATIONS_MAX {
                return Err(Error::TooManyOperations);
            }
            steps.push(self.add_step(claims, operation)?);
        }
        Ok(steps)
    }

    fn add_step(&mut self, claims: &Claims<'_>, decided: &Decided<'a>) -> Result<BranchStep, Error> {
        Ok(match decided {
            Decided::Range(request) if request.revision > 0 => {
                self.past.push(request);
                BranchStep::Past { place: self.past.len() - 1 }
            }
            Decided::Range(request) => {
                let select = range::select(request)?;
                BranchStep::Range { place: self.push(TxnOperation::Select(select)) }
            }
            Decided::Put { request, kept } => {
                // The former entry is read before the put, in the order of the operations.
                let before = self.show(request.prev_kv, &request.key)?;
                let put = self.put(claims, request, kept.as_deref())?;
                self.push(TxnOperation::Put(put));
                BranchStep::Put { before }
            }
            Decided::Delete(request) if request.range_end.is_empty() => {
                let before = self.show(request.prev_kv, &request.key)?;
                let place = self.push(TxnOperation::Delete(key::from_wire(&request.key)?));
                BranchStep::Delete { place, before }
            }
            Decided::Delete(request) => {
                let range = key::range(&request.key, &request.range_end)?;
                let all = Select { range: range.clone(), ..Select::default() };
                let before = if request.prev_kv {
                    FormerEntry::Operation(self.push(TxnOperation::Select(all)))
                } else {
                    FormerEntry::Unwanted
                };
                BranchStep::Delete { place: self.push(TxnOperation::DeleteRange(range)), before }
            }
            Decided::Txn { succeeded, operations } => {
                BranchStep::Txn { succeeded: *succeeded, steps: self.add(claims, operations)? }
            }
        })
    }

    /// Adds an operation. Returns its place.
    fn push(&mut self, operation: TxnOperation) -> usize {
        self.operations.push(operation);
        self.operations.len() - 1
    }

    /// Adds a read of a key, if it is wanted: to the transaction, or to what is read before it.
    fn show(&mut self, is_wanted: bool, key: &[u8]) -> Result<FormerEntry, Error> {
        let key = key::from_wire(key)?;
        if !is_wanted {
            return Ok(FormerEntry::Unwanted);
        }
        if !self.is_crowded {
            return Ok(FormerEntry::Operation(self.push(TxnOperation::Get(key))));
        }
        self.former.insert(key.clone());
        Ok(FormerEntry::ReadBefore(key))
    }

    fn put(&mut self, claims: &Claims<'_>, request: &PutRequest, kept: Option<&Entry>) -> Result<Put, Error> {
        let key = key::from_wire(&request.key)?;
        let value = match kept.filter(|_| request.ignore_value) {
            Some(kept) => kept.value.clone(),
            None => Value::new(&request.value).map_err(|_| Error::TooLarge)?,
        };

        if request.ignore_lease {
            let lease = if Planted::KeptLeaseDropped.is_on() { PutLease::None } else { PutLease::Kept };
            return Ok(Put { key, value, lease, claims: None });
        }
        if request.lease == 0 {
            return Ok(Put { key, value, lease: PutLease::None, claims: None });
        }

        // Claims of the same revision have no order, so the first one is used for all.
        let lease = Lease { session: key::session(request.lease), at_end: AtLeaseEnd::Delete };
        let claims = claims.lock(&key, request.lease).filter(|lock| self.claimed.insert(lock.clone()));
        Ok(Put { key, value, lease: PutLease::Given(lease), claims: claims.map(PutClaim::from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::etcdserverpb::Compare;

    /// As many as a request has room for.
    const MANY: usize = 50_000;

    #[test]
    fn compared_ranges_are_joined() {
        let range = |n: usize| Compare {
            key: format!("k{n:05}").into_bytes(),
            range_end: format!("k{:05}", n + 2).into_bytes(),
            ..Compare::default()
        };
        let request = TxnRequest { compare: (0..MANY).map(range).collect(), ..TxnRequest::default() };
        let claims = Claims::collect(&request);
        assert_eq!(claims.ranges.len(), 1);

        let is_lock = |key: &str| claims.lock(&key::from_wire(key.as_bytes()).expect("a key"), 7).is_some();
        assert!(is_lock("k00000") && is_lock("k31234") && is_lock("k50000/x"));
        assert!(!is_lock("k") && !is_lock("k50001"));
    }

    #[test]
    fn no_more_operations_are_compiled_than_may_run() {
        let request = PutRequest { key: b"k".to_vec(), lease: 7, ..PutRequest::default() };
        let puts = |count| (0..count).map(|_| Decided::Put { request: &request, kept: None }).collect();
        let nested = vec![Decided::Txn { succeeded: true, operations: puts(MANY) }];

        let mut branch = Branch::default();
        let claims = Claims::default();
        assert_eq!(branch.add(&claims, &nested).err(), Some(Error::TooManyOperations));
        assert!(branch.operations.len() <= TXN_OPERATIONS_MAX, "{}", branch.operations.len());
        assert_eq!(Branch::compile(&claims, &nested).err(), Some(Error::TooManyOperations));
    }
}
