//! What a transaction needs before it can run.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_machine::{Key, KeyRange, TXN_OPERATIONS_MAX};

use crate::{
    error::Error,
    key,
    proto::etcdserverpb::{Compare, RequestOp, TxnRequest, request_op::Request},
};

/// A range, as a compare names it: its key and its end.
pub(super) type RangeName = (Vec<u8>, Vec<u8>);

/// The operations of both branches.
pub(super) fn operations(request: &TxnRequest) -> impl Iterator<Item = &Request> {
    let both: [&[RequestOp]; 2] = [&request.success, &request.failure];
    both.into_iter().flatten().filter_map(|operation| operation.request.as_ref())
}

/// Whether the store cannot run the transaction as it is. It does not read the past, which may be forgotten by the time of the commit. A
/// transaction that writes nothing is decided too: it then costs no entry of the log.
pub(super) fn needs_decision(request: &TxnRequest) -> bool {
    let is_beyond_store = |operation: &Request| match operation {
        Request::RequestTxn(_) => true,
        Request::RequestPut(put) => put.ignore_value || put.ignore_lease,
        Request::RequestRange(range) => range.revision > 0,
        Request::RequestDeleteRange(_) => false,
    };
    operations(request).any(is_beyond_store)
        || operations(request).all(|operation| matches!(operation, Request::RequestRange(_)))
}

/// The keys and ranges that a transaction is decided by: those that it compares, and those whose value or lease it keeps.
#[derive(Default)]
pub(super) struct Deciding {
    pub(super) keys: BTreeSet<Key>,
    pub(super) ranges: BTreeMap<RangeName, KeyRange>,
    /// How often they are named.
    named: usize,
}

impl Deciding {
    pub(super) fn collect(request: &TxnRequest) -> Result<Self, Error> {
        let mut deciding = Self::default();
        deciding.add(request)?;
        Ok(deciding)
    }

    fn add(&mut self, request: &TxnRequest) -> Result<(), Error> {
        self.count(request.compare.len())?;
        for Compare { key, range_end, .. } in &request.compare {
            if range_end.is_empty() {
                self.keys.insert(key::from_wire(key)?);
            } else {
                self.ranges.insert((key.clone(), range_end.clone()), key::range(key, range_end)?);
            }
        }

        for operation in operations(request) {
            match operation {
                Request::RequestTxn(txn) => self.add(txn)?,
                Request::RequestPut(put) if put.ignore_value || put.ignore_lease => {
                    self.count(1)?;
                    self.keys.insert(key::from_wire(&put.key)?);
                }
                Request::RequestPut(_) | Request::RequestRange(_) | Request::RequestDeleteRange(_) => {}
            }
        }
        Ok(())
    }
    /// Refuses more than the store compares, before the first read: a request has room for a hundred thousand of them, in transactions
    /// within transactions, each with a range of its own.
    fn count(&mut self, named: usize) -> Result<(), Error> {
        self.named += named;
        if self.named > TXN_OPERATIONS_MAX { Err(Error::TooManyOperations) } else { Ok(()) }
    }
}
