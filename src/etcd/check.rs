//! What etcd refuses of a request before it looks at any key.

use crate::{
    error::Error,
    proto::etcdserverpb::{
        DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        range_request::{SortOrder, SortTarget},
        request_op::Request,
    },
};

/// Compares, or operations of a branch, of one transaction; those of the transactions in it count for what is left.
const OPERATIONS_MAX: usize = 128;

pub(crate) fn range(request: &RangeRequest) -> Result<(), Error> {
    ensure_key(&request.key)?;
    let sort = (SortOrder::try_from(request.sort_order), SortTarget::try_from(request.sort_target));
    if matches!(sort, (Ok(_), Ok(_))) { Ok(()) } else { Err(Error::InvalidSortOption) }
}

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
    operations(request, OPERATIONS_MAX)?;
    writes_of(&request.success)?;
    writes_of(&request.failure)?;
    Ok(())
}

fn ensure_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

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

/// The keys that a branch may put, and the ranges that it may delete.
#[derive(Default)]
struct Writes<'a> {
    puts: Vec<&'a [u8]>,
    deletes: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Writes<'a> {
    /// `beside`: keys of which one may be put again, since not both are.
    fn put(&mut self, key: &'a [u8], beside: &[&[u8]]) -> Result<(), Error> {
        let is_deleted = self.deletes.iter().any(|(from, end)| within(key, from, end));
        let is_put = self.puts.contains(&key);
        if is_deleted || is_put && !beside.contains(&key) {
            return Err(Error::DuplicateKey);
        }
        if !is_put {
            self.puts.push(key);
        }
        Ok(())
    }
}

/// Refuses a branch that puts a key twice, or puts and deletes it: all its writes have one revision.
fn writes_of(branch: &[RequestOp]) -> Result<Writes<'_>, Error> {
    let mut writes = Writes::default();
    for operation in branch {
        if let Some(Request::RequestDeleteRange(request)) = &operation.request {
            writes.deletes.push((&request.key, &request.range_end));
        }
    }
    for operation in branch {
        if let Some(Request::RequestTxn(request)) = &operation.request {
            let (then, otherwise) = (writes_of(&request.success)?, writes_of(&request.failure)?);
            then.puts.iter().try_for_each(|key| writes.put(key, &[]))?;
            otherwise.puts.iter().try_for_each(|key| writes.put(key, &then.puts))?;
            writes.deletes.extend(then.deletes.into_iter().chain(otherwise.deletes));
        }
    }
    for operation in branch {
        if let Some(Request::RequestPut(request)) = &operation.request {
            writes.put(&request.key, &[])?;
        }
    }
    Ok(writes)
}

/// Whether a key is in one of etcd's ranges.
fn within(key: &[u8], from: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}
