//! The codec of all messages: prost's, which counts the operations of a transaction before it makes objects of them.
//!
//! An operation takes more than a hundred bytes of memory, and may have two in the message. A message of a megabyte and a half would become
//! a hundred megabytes, and [`check`](crate::check) would then refuse it. So the limits are looked at here, in the bytes: etcd's, on each
//! level, and one for all levels together.

use std::any::TypeId;

use lockkeeper_codec::{CheckBytes, CheckedCodec, raw_fields, undecodable};
use prost::DecodeError;
use tonic::Status;

use crate::{check::OPERATIONS_MAX, error::Error, proto::etcdserverpb::TxnRequest};

/// Compares and operations of a transaction and of all transactions within it. etcd bounds each level, and their number by the bytes of the
/// message alone.
const PARTS_MAX: usize = 100_000;

/// The fields of a `TxnRequest` that are lists: the compares, and the operations of both branches.
const LISTS: std::ops::RangeInclusive<u32> = 1..=3;
/// The first of them: compares have no transactions within.
const COMPARES: u32 = 1;
/// The field of a `RequestOp` that is a transaction.
const INNER: u32 = 4;

/// The codec of the generated services and clients.
pub(crate) type BoundedCodec<T, U> = CheckedCodec<T, U, CountOperations>;

/// Refuses transactions with too many compares or operations. Messages of other types hold no lists, or are small.
#[derive(Debug)]
pub(crate) struct CountOperations;

impl CheckBytes for CountOperations {
    fn check(message: TypeId, bytes: &[u8]) -> Result<(), Status> {
        if message == TypeId::of::<TxnRequest>() {
            check_parts(bytes)?;
        }
        Ok(())
    }
}

/// Why a transaction is not decoded.
#[derive(PartialEq, Debug)]
enum UndecodedTxn {
    TooLarge,
    /// Its bytes are no message. What follows the mistake was not counted.
    Garbage(DecodeError),
}

impl From<DecodeError> for UndecodedTxn {
    fn from(error: DecodeError) -> Self {
        Self::Garbage(error)
    }
}

impl From<UndecodedTxn> for Status {
    fn from(undecoded: UndecodedTxn) -> Self {
        match undecoded {
            UndecodedTxn::TooLarge => Error::TooManyOperations.into(),
            UndecodedTxn::Garbage(error) => undecodable(&error),
        }
    }
}

/// Counts the compares and operations of a transaction.
fn check_parts(message: &[u8]) -> Result<(), UndecodedTxn> {
    let mut left = PARTS_MAX;
    check_level(message, OPERATIONS_MAX, &mut left)
}

/// Counts those of one level, and of the levels below, which have what this one leaves of the limit. Each level takes at least one of it,
/// so that the recursion ends.
fn check_level(message: &[u8], most: usize, left: &mut usize) -> Result<(), UndecodedTxn> {
    let mut counts = [0_usize; 3];
    for field in raw_fields(message) {
        let (tag, _) = field?;
        let list = LISTS.contains(&tag).then(|| tag - LISTS.start()).and_then(|list| usize::try_from(list).ok());
        if let Some(count) = list.and_then(|list| counts.get_mut(list)) {
            *count += 1;
            *left = left.checked_sub(1).ok_or(UndecodedTxn::TooLarge)?;
        }
    }

    let count = counts.into_iter().max().unwrap_or_default();
    let below = most.checked_sub(count).ok_or(UndecodedTxn::TooLarge)?;

    for field in raw_fields(message) {
        let (tag, operation) = field?;
        if !LISTS.contains(&tag) || tag == COMPARES {
            continue;
        }
        for field in raw_fields(operation) {
            let (tag, inner) = field?;
            if tag == INNER {
                check_level(inner, below, left)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::etcdserverpb::{Compare, RequestOp, request_op::Request};

    fn empty(count: usize) -> Vec<RequestOp> {
        vec![RequestOp::default(); count]
    }

    fn within(txn: TxnRequest) -> RequestOp {
        RequestOp { request: Some(Request::RequestTxn(txn)) }
    }

    fn checked(txn: &TxnRequest) -> Result<(), UndecodedTxn> {
        check_parts(&txn.encode_to_vec())
    }

    #[test]
    fn each_list_has_etcds_limit_and_those_within_have_what_is_left() {
        let most = OPERATIONS_MAX;
        let compare = vec![Compare::default(); most];
        let full = TxnRequest { compare, success: empty(most), failure: empty(most) };
        assert_eq!(checked(&full), Ok(()));
        for txn in [
            TxnRequest { compare: vec![Compare::default(); most + 1], ..TxnRequest::default() },
            TxnRequest { success: empty(most + 1), ..TxnRequest::default() },
            TxnRequest { failure: empty(most + 1), ..TxnRequest::default() },
        ] {
            assert_eq!(checked(&txn), Err(UndecodedTxn::TooLarge));
        }

        let inner = |count| TxnRequest { failure: empty(count), ..TxnRequest::default() };
        let nested = |count| TxnRequest { success: vec![within(inner(count))], ..TxnRequest::default() };
        assert_eq!(checked(&nested(most - 1)), Ok(()));
        assert_eq!(checked(&nested(most)), Err(UndecodedTxn::TooLarge));
    }

    #[test]
    fn all_levels_together_have_a_limit() {
        // On no level are there more than etcd allows.
        let inner = TxnRequest { success: empty(40), failure: empty(40), ..TxnRequest::default() };
        let middle = TxnRequest { success: vec![within(inner); 40], ..TxnRequest::default() };
        let outer = |count| TxnRequest { success: vec![within(middle.clone()); count], ..TxnRequest::default() };
        let parts = 1 + 40 + 40 * 80;
        assert_eq!(checked(&outer(PARTS_MAX / parts)), Ok(()));
        assert_eq!(checked(&outer(PARTS_MAX / parts + 1)), Err(UndecodedTxn::TooLarge));
    }

    #[test]
    fn what_is_no_message_is_refused_where_the_count_ends() {
        let txn = TxnRequest { success: empty(1), ..TxnRequest::default() }.encode_to_vec();
        // A field of the number 0, a length beyond the end, a group that does not end.
        for garbage in [&[0][..], &[0x12, 9, 0], &[0x4b]] {
            let message = [&txn[..], garbage].concat();
            assert!(matches!(check_parts(&message), Err(UndecodedTxn::Garbage(_))), "{garbage:?}");
            assert!(TxnRequest::decode(&message[..]).is_err(), "{garbage:?}");
        }
        // An operation whose transaction would go on behind the operation.
        let beyond = [&[0x12, 2, 0x22, 4][..], &[0x12, 0, 0x12, 0]].concat();
        assert!(matches!(check_parts(&beyond), Err(UndecodedTxn::Garbage(_))));
    }
}
