//! What etcd refuses of a request before it looks at any key.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    error::Error,
    proto::etcdserverpb::{
        DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        range_request::{SortOrder, SortTarget},
        request_op::Request,
    },
};

/// Compares, or operations of a branch, of one transaction; those of the transactions in it count for what is left.
pub(crate) const OPERATIONS_MAX: usize = 128;

/// Checks a read. An order that this version does not know is refused and not ignored: the client would take a wrong key for the first.
pub(crate) fn range(request: &RangeRequest) -> Result<(), Error> {
    ensure_key(&request.key)?;
    let sort = (SortOrder::try_from(request.sort_order), SortTarget::try_from(request.sort_target));
    if matches!(sort, (Ok(_), Ok(_))) { Ok(()) } else { Err(Error::InvalidSortOption) }
}

/// Checks a put. One that keeps the value or the lease of its key must not bring another.
pub(crate) fn put(request: &PutRequest) -> Result<(), Error> {
    ensure_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn delete(request: &DeleteRangeRequest) -> Result<(), Error> {
    ensure_key(&request.key)
}

pub(crate) fn txn(request: &TxnRequest) -> Result<(), Error> {
    // First, since it bounds the work of what follows.
    operations(request, OPERATIONS_MAX)?;
    writes_of(&request.success)?;
    writes_of(&request.failure)?;
    Ok(())
}

fn ensure_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks each compare and operation, also those of inner transactions, which have what the outer one leaves of the limit.
fn operations(request: &TxnRequest, most: usize) -> Result<(), Error> {
    let TxnRequest { compare, success, failure } = request;
    let count = compare.len().max(success.len()).max(failure.len());
    if count > most {
        return Err(Error::TooManyOperations);
    }
    compare.iter().try_for_each(|compare| ensure_key(&compare.key))?;
    success.iter().chain(failure).try_for_each(|operation| match &operation.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete(request),
        Some(Request::RequestTxn(request)) => operations(request, most - count),
        None => Err(Error::KeyNotFound),
    })
}

/// The keys that a branch may put, and the ranges that it may delete. A request has room for a hundred thousand of each, in transactions
/// within transactions: none of them is compared with all others.
#[derive(Default)]
struct BranchWrites<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Ranges<'a>,
}

impl<'a> BranchWrites<'a> {
    /// Notes a put. A key of `beside` may be put again: it belongs to the other branch, and only one of them runs.
    fn put(&mut self, key: &'a [u8], beside: &BTreeSet<&[u8]>) -> Result<(), Error> {
        let is_put = !self.puts.insert(key);
        if self.deletes.contains(key) || is_put && !beside.contains(key) {
            return Err(Error::DuplicateKey);
        }
        Ok(())
    }
}

/// Refuses a branch that puts a key twice, or puts and deletes it: all its writes have one revision.
fn writes_of(branch: &[RequestOp]) -> Result<BranchWrites<'_>, Error> {
    let mut writes = BranchWrites::default();

    // All deletions come first: a put of a deleted key is refused, whichever of the two stands first in the branch.
    for operation in branch {
        if let Some(Request::RequestDeleteRange(request)) = &operation.request {
            writes.deletes.insert(&request.key, RangeEnd::from_wire(&request.key, &request.range_end));
        }
    }

    // Which branch of an inner transaction runs is not known yet, so both count.
    let none = BTreeSet::new();
    for operation in branch {
        if let Some(Request::RequestTxn(request)) = &operation.request {
            let then = writes_of(&request.success)?;
            let otherwise = writes_of(&request.failure)?;
            then.puts.iter().try_for_each(|key| writes.put(key, &none))?;
            otherwise.puts.iter().try_for_each(|key| writes.put(key, &then.puts))?;
            let deletes = then.deletes.0.into_iter().chain(otherwise.deletes.0);
            deletes.for_each(|(from, end)| writes.deletes.insert(from, end));
        }
    }
    for operation in branch {
        if let Some(Request::RequestPut(request)) = &operation.request {
            writes.put(&request.key, &none)?;
        }
    }
    Ok(writes)
}

/// The end of one of etcd's ranges. A later end is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RangeEnd<'a> {
    /// The bytes, and whether the range has them as a key.
    At(&'a [u8], bool),
    Never,
}

impl<'a> RangeEnd<'a> {
    pub(crate) fn from_wire(from: &'a [u8], end: &'a [u8]) -> Self {
        match end {
            [] => Self::At(from, true),
            [0] => Self::Never,
            end => Self::At(end, false),
        }
    }
}

/// Ranges that do not overlap, by their first keys.
#[derive(Default)]
pub(crate) struct Ranges<'a>(BTreeMap<&'a [u8], RangeEnd<'a>>);

impl<'a> Ranges<'a> {
    pub(crate) fn insert(&mut self, mut from: &'a [u8], mut end: RangeEnd<'a>) {
        // A range that ends before it begins has no keys.
        if end <= RangeEnd::At(from, false) {
            return;
        }

        // The ranges that it overlaps become a part of it.
        if let Some((first, last)) = self.0.range(..from).next_back()
            && *last > RangeEnd::At(from, false)
        {
            (from, end) = (first, end.max(*last));
        }
        while let Some((first, last)) = self.0.range(from..).next()
            && RangeEnd::At(first, true) <= end
        {
            let first = *first;
            let last = *last;
            self.0.remove(first);
            end = end.max(last);
        }
        self.0.insert(from, end);
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        // Ranges do not overlap: only the last one that begins in time can have the key.
        self.0.range(..=key).next_back().is_some_and(|(_, end)| *end >= RangeEnd::At(key, true))
    }

    /// The number of ranges that are left of those that were inserted.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_joined_have_the_keys_that_each_of_them_had() {
        let keys: [&[u8]; 6] = [b"a", b"a\0", b"b", b"bb", b"c", b"d"];
        let ends: [&[u8]; 6] = [b"", b"\0", b"a\0", b"b", b"c", b"d"];
        let all: Vec<_> = keys.iter().flat_map(|from| ends.iter().map(move |end| (*from, *end))).collect();
        let has = |(from, end): &(&[u8], &[u8]), key: &[u8]| match *end {
            [] => key == *from,
            [0] => key >= *from,
            end => key >= *from && key < end,
        };
        for one in &all {
            for two in &all {
                for three in &all {
                    let mut joined = Ranges::default();
                    let three = [one, two, three];
                    three.iter().for_each(|(from, end)| joined.insert(from, RangeEnd::from_wire(from, end)));
                    for key in keys {
                        let expected = three.iter().any(|range| has(range, key));
                        assert_eq!(joined.contains(key), expected, "{three:?} {key:?}");
                    }
                }
            }
        }
    }
}
