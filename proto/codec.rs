//! The codec of all messages: prost's, which counts the locks of an acquire before it makes objects of them.
//!
//! A lock of an acquire takes some eighty bytes of memory, and may have two in the message. Two megabytes of those would become eighty, and
//! would then be refused, since an acquire has 64 locks at the most. An acquire within bounds, or a little beyond, is decoded, and its
//! error names the limit.

use std::any::TypeId;

use lockkeeper_codec::{CheckBytes, CheckedCodec, raw_fields, undecodable};
use prost::DecodeError;
use tonic::Status;

use crate::v1::{AcquireRequest, PipelineRequest};

/// Locks of an acquire that is decoded.
const LOCKS_MAX: usize = 1024;
/// The field of an `AcquireRequest` with its locks.
const LOCKS: u32 = 3;
/// The field of a `PipelineRequest` that is an acquire.
const ACQUIRE: u32 = 2;

/// The codec of the generated services and clients.
pub type CountingCodec<T, U> = CheckedCodec<T, U, CountLocks>;

/// Refuses messages with too many locks.
#[derive(Debug)]
pub struct CountLocks;

impl CheckBytes for CountLocks {
    fn check(message: TypeId, bytes: &[u8]) -> Result<(), Status> {
        let counted = if message == TypeId::of::<AcquireRequest>() {
            locks_of_acquire(bytes)
        } else if message == TypeId::of::<PipelineRequest>() {
            locks_of_pipelined(bytes)
        } else {
            return Ok(());
        };

        let locks = counted.map_err(|error| undecodable(&error))?;
        if locks > LOCKS_MAX {
            return Err(Status::internal(format!(
                "failed to decode Protobuf message: AcquireRequest.locks: {locks} locks, and an acquire has 64 at the most"
            )));
        }
        Ok(())
    }
}

fn locks_of_acquire(message: &[u8]) -> Result<usize, DecodeError> {
    let mut locks = 0;
    for field in raw_fields(message) {
        let (tag, _) = field?;
        locks += usize::from(tag == LOCKS);
    }
    Ok(locks)
}

/// Counts those of all acquires: a message with several is one of their merged fields.
fn locks_of_pipelined(message: &[u8]) -> Result<usize, DecodeError> {
    let mut locks = 0;
    for field in raw_fields(message) {
        let (tag, acquire) = field?;
        if tag == ACQUIRE {
            locks += locks_of_acquire(acquire)?;
        }
    }
    Ok(locks)
}
