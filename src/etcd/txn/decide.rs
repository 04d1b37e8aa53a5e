//! Which operations of a transaction run, by what was read.

use std::{collections::BTreeMap, sync::Arc};

use lockkeeper_machine::{Entry, Key, Operand, Relation, Revision};
use lockkeeper_planted::Planted;

use super::{analyze::RangeName, compare::CompareCondition};
use crate::{
    error::Error,
    key,
    proto::etcdserverpb::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
    },
};

/// What decides a transaction, as of one revision.
pub(super) struct Snapshot {
    pub(super) revision: Revision,
    pub(super) entries: BTreeMap<Key, Option<Arc<Entry>>>,
    pub(super) ranges: BTreeMap<RangeName, Vec<(Key, Arc<Entry>)>>,
}

impl Snapshot {
    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)?.as_deref()
    }

    /// The condition that nothing of it has changed: each entry is as it was, and no range has an entry that was written since.
    pub(super) fn guards(&self) -> Result<Vec<lockkeeper_machine::Compare>, Error> {
        let modified = |entry: Option<&Entry>| entry.map_or(Revision(0), |entry| entry.modified);
        let mut revisions: BTreeMap<&Key, Revision> =
            self.entries.iter().map(|(key, entry)| (key, modified(entry.as_deref()))).collect();
        // An entry of a range is named too: otherwise its deletion would not be seen.
        revisions.extend(self.ranges.values().flatten().map(|(key, entry)| (key, entry.modified)));

        let unchanged = revisions.into_iter().map(|(key, revision)| lockkeeper_machine::Compare {
            key: key.clone(),
            up_to: None,
            relation: Relation::Equal,
            operand: Operand::Modified(revision),
        });
        let mut guards: Vec<_> = unchanged.collect();

        // A key that is new in a range has a revision after that of the snapshot.
        for (key, end) in self.ranges.keys().filter(|_| !Planted::DecidedOnOldRanges.is_on()) {
            guards.push(lockkeeper_machine::Compare {
                key: key::from_wire(key)?,
                up_to: key::range(key, end)?.to,
                relation: Relation::Less,
                operand: Operand::Modified(Revision(self.revision.0 + 1)),
            });
        }
        Ok(guards)
    }

    fn holds(&self, compare: &Compare) -> Result<bool, Error> {
        let condition = CompareCondition::try_from(compare)?;
        if compare.range_end.is_empty() {
            return Ok(condition.holds(self.entry(&key::from_wire(&compare.key)?)));
        }

        let name = (compare.key.clone(), compare.range_end.clone());
        let entries = self.ranges.get(&name).map(Vec::as_slice).unwrap_or_default();
        // As in etcd: a range without an entry is compared as a key without one.
        if entries.is_empty() {
            return Ok(condition.holds(None));
        }
        Ok(entries.iter().all(|(_, entry)| condition.holds(Some(entry))))
    }
}

/// An operation that will run, with the decisions about it.
pub(super) enum Decided<'a> {
    Range(&'a RangeRequest),
    Put {
        request: &'a PutRequest,
        /// The entry whose value or lease the put keeps, if it keeps one.
        kept: Option<Arc<Entry>>,
    },
    Delete(&'a DeleteRangeRequest),
    Txn {
        succeeded: bool,
        operations: Vec<Self>,
    },
}

/// The operations of a branch that need no decision.
pub(super) fn undecided(operations: &[RequestOp]) -> Vec<Decided<'_>> {
    let requests = operations.iter().filter_map(|operation| operation.request.as_ref());
    requests
        .filter_map(|request| match request {
            Request::RequestRange(request) => Some(Decided::Range(request)),
            Request::RequestPut(request) => Some(Decided::Put { request, kept: None }),
            Request::RequestDeleteRange(request) => Some(Decided::Delete(request)),
            Request::RequestTxn(_) => None,
        })
        .collect()
}

/// Returns whether the compares hold, and the operations that run then.
pub(super) fn decide<'a>(request: &'a TxnRequest, snapshot: &Snapshot) -> Result<(bool, Vec<Decided<'a>>), Error> {
    // Each compare is looked at, also after one that does not hold: a malformed one is an error wherever it stands.
    let mut succeeded = true;
    for compare in &request.compare {
        succeeded = snapshot.holds(compare)? && (succeeded || Planted::LastCompareDecides.is_on());
    }

    let branch = if succeeded { &request.success } else { &request.failure };
    let mut operations = Vec::with_capacity(branch.len());
    for operation in branch {
        operations.push(match &operation.request {
            Some(Request::RequestTxn(txn)) => {
                let (succeeded, operations) = decide(txn, snapshot)?;
                Decided::Txn { succeeded, operations }
            }
            // What a put keeps is written as it was read; if it has changed since, the guards refuse the commit.
            Some(Request::RequestPut(put)) if put.ignore_value || put.ignore_lease => {
                let entry = snapshot.entries.get(&key::from_wire(&put.key)?).cloned().flatten();
                Decided::Put { request: put, kept: Some(entry.ok_or(Error::KeyNotFound)?) }
            }
            Some(Request::RequestPut(request)) => Decided::Put { request, kept: None },
            Some(Request::RequestRange(request)) => Decided::Range(request),
            Some(Request::RequestDeleteRange(request)) => Decided::Delete(request),
            None => return Err(Error::KeyNotFound),
        });
    }
    Ok((succeeded, operations))
}
