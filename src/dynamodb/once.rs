//! Makes a write that an SDK sends again happen once.
//!
//! An SDK sends a request again, with the same `amz-sdk-invocation-id`, when no answer came, although the first may have taken effect.
//! Without a memory of the first, the second would find its own lock in the way and report a failure. The write itself writes two kinds of
//! memory:
//!
//! * A put or an update leaves its [`RequestMark`] in the item. A retry that finds it is answered from the item.
//! * Some answers cannot be computed from the item: that of a deletion, one with the values of before, and that of an update whose values
//!   depend on those of before (`ADD n 1`). These are kept, in an entry of their own that the store deletes after [`ANSWER_TTL_MS`]. So is
//!   the answer to a transaction with a `ClientRequestToken`.
//!
//! A store keeps a limited number of answers. Beyond that number a deletion is still made, and a retry of it counts as a new request; other
//! writes that keep an answer are throttled.
//!
//! Before an answer about a lock is repeated, its lease is renewed: a client may count it from the answer.
//!
//! **An answer is repeated only while its effect is there** ([`Repeats`]). Otherwise a client would rely on the answer that it has a lock,
//! although another client holds the lock by now, or nobody. Once the effect no longer exists, a retry counts as a new request. The
//! exceptions are writes that acquire nothing and would do harm if they were executed again: a deletion without a condition, and an update
//! of an ordinary item by its old values. A transaction that acquired a lock which is lost by now is cancelled, because its other parts
//! must not happen twice.
//!
//! So these may happen again, as on DynamoDB, if another write came in between: a put, and an update by values that the request gives,
//! without a condition; and the deletions of a `BatchWriteItem`, whose answers are not kept.
//!
//! A mark also covers the caller, the operation and the whole body, so a proxy that sends one id for everything does no harm.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{DynamoCaller, DynamoLease, DynamoWrite, database::StoredItem, item::RequestMark, key};
use lockkeeper_planted::Planted;

/// Time for which an answer is kept. It is longer than any SDK tries.
const ANSWER_TTL_MS: u64 = 120_000;
/// Time for which the answer to a transaction is kept. DynamoDB promises ten minutes.
const TRANSACTION_TTL_MS: u64 = 600_000;

/// The name of a request that may be sent again. If the client gave none, nothing is remembered.
pub(crate) fn mark(
    caller: &DynamoCaller,
    operation: &str,
    invocation: Option<&str>,
    body: &[u8],
) -> Option<RequestMark> {
    Some(hash_parts(&[caller.identity.as_deref()?.as_bytes(), operation.as_bytes(), invocation?.as_bytes(), body]))
}

/// The name of a transaction. A transaction with the same token and another body has the same name, which is an error.
pub(crate) fn transaction_mark(caller: &DynamoCaller, token: &str) -> RequestMark {
    hash_parts(&[caller.identity.as_deref().unwrap_or_default().as_bytes(), b"transaction", token.as_bytes()])
}

/// Hashes texts, each with its length before it.
fn hash_parts(parts: &[&[u8]]) -> RequestMark {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    short(hash)
}

fn short(hash: Sha256) -> RequestMark {
    let mut mark = RequestMark::default();
    mark.copy_from_slice(&hash.finalize()[..16]);
    mark
}

/// The mark of one part of a request.
pub(crate) fn part_mark(mark: &RequestMark, part: usize) -> RequestMark {
    hash_parts(&[mark, &(part as u64).to_be_bytes()])
}

/// How long a kept answer may be repeated. This is the first byte of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// The answer is repeated as long as it is kept.
    Always,
    /// The answer is repeated while the item is as the request left it, and the lease that it acquired is not over.
    WhileWritten,
    /// The answer is repeated while the item is absent.
    WhileAbsent,
}

impl Repeats {
    /// Whether the answer to the request with this mark may be repeated.
    pub(crate) fn allows(self, mark: RequestMark, located: &StoredItem) -> bool {
        match self {
            Self::Always => true,
            Self::WhileWritten | Self::WhileAbsent if Planted::AnswerWithoutEffect.is_on() => true,
            Self::WhileWritten => located.is_as_left_by(mark),
            Self::WhileAbsent => located.stored.is_none(),
        }
    }
}

/// The write that keeps an answer.
pub(crate) fn keep(caller: &DynamoCaller, mark: &RequestMark, repeats: Repeats, answer: &[u8]) -> DynamoWrite {
    let kind = match repeats {
        Repeats::Always => 1,
        Repeats::WhileWritten => 2,
        Repeats::WhileAbsent => 3,
    };
    put(caller, mark, [&[kind], answer].concat(), ANSWER_TTL_MS)
}

/// Reads a kept answer. Returns `None` for an answer that an earlier program kept in another form: the request then counts as a new one.
pub(crate) fn kept(value: &[u8]) -> Option<(Repeats, &[u8])> {
    let (kind, answer) = value.split_first()?;
    let repeats = match kind {
        1 => Repeats::Always,
        2 => Repeats::WhileWritten,
        3 => Repeats::WhileAbsent,
        _ => return None,
    };
    Some((repeats, answer))
}

/// The answer that was kept for a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeptTransaction {
    /// The parts that acquired or renewed a lock, by their index.
    pub(crate) locks: Vec<usize>,
    pub(crate) answer: Vec<u8>,
}

/// What the parts of a transaction hash to, for the comparison with an earlier one of the same token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransactionHash {
    /// The hash of the parts as they were read: programs write the fields of a map, and the elements of a set, in another order each time.
    /// What the answer is to show is not in it.
    parts: RequestMark,
    /// The hash of the whole body, which the first versions kept.
    body: RequestMark,
}

impl TransactionHash {
    /// Hashes a transaction. The parts are those that were read from the body, and are written straight into the hash: a generic tree of
    /// the body could need a hundred times its bytes.
    pub(crate) fn new(parts: &impl Serialize, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        serde_json::to_writer(&mut hash, parts).expect("texts and numbers are JSON");
        let body = hash_parts(&[body]);
        let parts = if Planted::RepeatComparedByBytes.is_on() { body } else { short(hash) };
        Self { parts, body }
    }
}

/// Makes the write that keeps the answer to a transaction, with its hash. A byte suffices to count the parts of a transaction.
pub(crate) fn keep_transaction(
    caller: &DynamoCaller,
    mark: &RequestMark,
    hash: &TransactionHash,
    kept: &KeptTransaction,
) -> DynamoWrite {
    let places: Vec<u8> = kept.locks.iter().filter_map(|place| u8::try_from(*place).ok()).collect();
    let count = u8::try_from(places.len()).unwrap_or(u8::MAX);
    let value = [&hash.parts[..], &[count], &places, &kept.answer].concat();
    put(caller, mark, value, TRANSACTION_TTL_MS)
}

/// Reads the answer that was kept for a transaction. Fails if it is that of another transaction.
pub(crate) fn kept_transaction(value: &[u8], hash: &TransactionHash) -> Result<KeptTransaction, ()> {
    let rest = value.strip_prefix(&hash.parts).or_else(|| value.strip_prefix(&hash.body)).ok_or(())?;
    let (count, rest) = rest.split_first().ok_or(())?;
    let (places, answer) = rest.split_at_checked(usize::from(*count)).ok_or(())?;
    Ok(KeptTransaction { locks: places.iter().copied().map(usize::from).collect(), answer: answer.to_vec() })
}

fn put(caller: &DynamoCaller, mark: &RequestMark, value: Vec<u8>, ttl_ms: u64) -> DynamoWrite {
    let owner = caller.identity.clone().unwrap_or_default();
    DynamoWrite::Put { key: key::answer_key(mark), value, lease: DynamoLease::Memory { owner, ttl_ms } }
}
