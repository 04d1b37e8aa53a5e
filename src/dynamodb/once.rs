//! A write that an SDK sends again happens once.
//!
//! An SDK sends a request again, with the same `amz-sdk-invocation-id`, when no answer came; the first may have taken effect. Without a
//! memory of it, the second would find its own lock in the way and report a failure. Two kinds of memory, both written by the write itself:
//!
//! * A put or an update leaves its [`Mark`] in the item. A retry that finds it is answered from the item. When another write came after
//!   it, or its lease is over, the retry is judged like a new request: it acquires no lock that somebody else holds by now, and none
//!   without a new lease.
//! * A deletion leaves no item, and an answer with the values of before cannot be computed again: these leave the answer itself, in an
//!   entry of its own that the store deletes after [`ANSWER_TTL_MS`]. So does a transaction with a `ClientRequestToken`.
//!
//! A mark covers the caller, the operation and the whole body too: a proxy that sends one id for everything does no harm.

use sha2::{Digest as _, Sha256};

use crate::{Caller, Lease, Write, item::Mark, key, store::AtEnd};

/// How long an answer is kept: longer than any SDK tries.
const ANSWER_TTL_MS: u64 = 120_000;
/// DynamoDB promises ten minutes for transactions.
const TRANSACTION_TTL_MS: u64 = 600_000;

/// The name of a request that may be sent again. `None`: the client gave none, so nothing is remembered.
pub(crate) fn mark(caller: &Caller, operation: &str, invocation: Option<&str>, body: &[u8]) -> Option<Mark> {
    Some(of_parts(&[caller.identity.as_deref()?.as_bytes(), operation.as_bytes(), invocation?.as_bytes(), body]))
}

/// The name of a transaction, which is the same with another body: that is an error.
pub(crate) fn transaction_mark(caller: &Caller, token: &str) -> Mark {
    of_parts(&[caller.identity.as_deref().unwrap_or_default().as_bytes(), b"transaction", token.as_bytes()])
}

/// A hash of texts, each with its length before it.
fn of_parts(parts: &[&[u8]]) -> Mark {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut mark = Mark::default();
    mark.copy_from_slice(&hash.finalize()[..16]);
    mark
}

/// The write that keeps an answer.
pub(crate) fn keep(caller: &Caller, mark: &Mark, answer: &[u8]) -> Write {
    put(caller, mark, answer.to_vec(), ANSWER_TTL_MS)
}

/// The write that keeps the answer to a transaction, with a hash of its body.
pub(crate) fn keep_transaction(caller: &Caller, mark: &Mark, body: &[u8], answer: &[u8]) -> Write {
    put(caller, mark, [&of_parts(&[body]), answer].concat(), TRANSACTION_TTL_MS)
}

/// The answer that was kept for a transaction; an error if it was another one.
pub(crate) fn kept_transaction(value: &[u8], body: &[u8]) -> Result<Vec<u8>, ()> {
    value.strip_prefix(&of_parts(&[body])).map(<[u8]>::to_vec).ok_or(())
}

fn put(caller: &Caller, mark: &Mark, value: Vec<u8>, ttl_ms: u64) -> Write {
    let owner = caller.identity.clone().unwrap_or_default();
    let lease = Lease::Grant { lock: None, owner, ttl_ms, at_end: AtEnd::Delete };
    Write::Put { key: key::of_answer(mark), value, lease }
}
