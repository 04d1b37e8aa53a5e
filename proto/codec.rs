//! The codec of all messages: prost's, which counts the locks of an acquire before it makes objects of them.
//!
//! A lock of an acquire takes some eighty bytes of memory, and may have two in the message. Two megabytes of those would become eighty, and
//! would then be refused, since an acquire has 64 locks at the most. An acquire within bounds, or a little beyond, is decoded, and its
//! error names the limit.

use std::{any::TypeId, marker::PhantomData};

use prost::{
    DecodeError, Message,
    bytes::Buf as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::v1::{AcquireRequest, PipelineRequest};

/// Locks of an acquire that is decoded.
const LOCKS_MAX: usize = 1024;
/// The field of an `AcquireRequest` with its locks.
const LOCKS: u32 = 3;
/// The field of a `PipelineRequest` that is an acquire.
const ACQUIRE: u32 = 2;

/// The codec of the generated services and clients.
#[derive(Debug)]
pub struct CountingCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CountingCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for CountingCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CountingDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> CountingDecoder<U> {
        CountingDecoder(ProstDecoder::default())
    }
}

/// Decodes messages without too many locks.
#[derive(Debug)]
pub struct CountingDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + 'static> Decoder for CountingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The generated code has one codec for all messages. All of a message is in one piece.
        let counted = if TypeId::of::<U>() == TypeId::of::<AcquireRequest>() {
            locks_of_acquire(buffer.chunk())
        } else if TypeId::of::<U>() == TypeId::of::<PipelineRequest>() {
            locks_of_pipelined(buffer.chunk())
        } else {
            Ok(0)
        };

        // As the decoder itself would say it. What follows a mistake was not counted, so that nothing of the message is decoded.
        let locks = counted.map_err(|error| Status::internal(error.to_string()))?;
        if locks > LOCKS_MAX {
            return Err(Status::internal(format!(
                "failed to decode Protobuf message: AcquireRequest.locks: {locks} locks, and an acquire has 64 at the most"
            )));
        }
        self.0.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

fn locks_of_acquire(message: &[u8]) -> Result<usize, DecodeError> {
    let mut locks = 0;
    each_field(message, |tag, _| {
        locks += usize::from(tag == LOCKS);
        Ok(())
    })?;
    Ok(locks)
}

/// Counts those of all acquires: a message with several is one of their merged fields.
fn locks_of_pipelined(message: &[u8]) -> Result<usize, DecodeError> {
    let mut locks = 0;
    each_field(message, |tag, value| {
        if tag == ACQUIRE {
            locks += locks_of_acquire(value)?;
        }
        Ok(())
    })?;
    Ok(locks)
}

/// Calls this function for each field: with its tag, and its bytes if it is a text, bytes or a message.
fn each_field(
    mut message: &[u8],
    mut seen: impl FnMut(u32, &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message)?;
        let mut value = message;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;

        let mut bytes = &[][..];
        if wire_type == WireType::LengthDelimited {
            // It was skipped, so it is there.
            let length = decode_varint(&mut value)?;
            bytes = value.get(..usize::try_from(length).unwrap_or(usize::MAX)).unwrap_or_default();
        }
        seen(tag, bytes)?;
    }
    Ok(())
}
