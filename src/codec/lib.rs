//! The codec of gRPC messages: prost's, after a check of each message's bytes.
//!
//! A list of a message may take two bytes an element, and a hundred times as much memory once it is decoded. So what a service refuses for
//! its number of elements is counted in the bytes ([`raw_fields`]), before prost makes objects of them. Which lists are counted, and how
//! many are too many, says whoever implements [`CheckBytes`].

use std::{any::TypeId, fmt, marker::PhantomData};

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

/// A check of the bytes of messages, before they are decoded.
pub trait CheckBytes: Send + 'static {
    /// Checks the bytes of one message. The generated code has one codec for all messages of a package, so this one is called for all of
    /// them, and told which `message` it is.
    ///
    /// # Errors
    /// The status of the refused call: nothing of the message is decoded.
    fn check(message: TypeId, bytes: &[u8]) -> Result<(), Status>;
}

/// The codec of messages that `C` checks when they arrive.
pub struct CheckedCodec<T, U, C>(PhantomData<(T, U, C)>);

impl<T, U, C> Default for CheckedCodec<T, U, C> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U, C> fmt::Debug for CheckedCodec<T, U, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckedCodec")
    }
}

impl<T, U, C> Codec for CheckedCodec<T, U, C>
where
    T: Message + 'static,
    U: Message + Default + 'static,
    C: CheckBytes,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CheckedDecoder<U, C>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> CheckedDecoder<U, C> {
        CheckedDecoder { decoder: ProstDecoder::default(), check: PhantomData }
    }
}

/// Decodes messages that pass a check.
#[derive(Debug)]
pub struct CheckedDecoder<U, C> {
    decoder: ProstDecoder<U>,
    check: PhantomData<C>,
}

impl<U, C> Decoder for CheckedDecoder<U, C>
where
    U: Message + Default + 'static,
    C: CheckBytes,
{
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // All of the message is in one piece. Were it not, its first piece would be refused.
        C::check(TypeId::of::<U>(), buffer.chunk())?;
        self.decoder.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.decoder.buffer_settings()
    }
}

/// The status of bytes that are no message, as prost's decoder says it.
pub fn undecodable(error: &DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// The fields of a message: their tags, and their bytes if they are texts, bytes or messages. An error is the last: what follows a mistake
/// is not read.
pub fn raw_fields(message: &[u8]) -> impl Iterator<Item = Result<(u32, &[u8]), DecodeError>> {
    RawFields(message)
}

struct RawFields<'a>(&'a [u8]);

impl<'a> Iterator for RawFields<'a> {
    type Item = Result<(u32, &'a [u8]), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }

        let field = self.take();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> RawFields<'a> {
    fn take(&mut self) -> Result<(u32, &'a [u8]), DecodeError> {
        let (tag, wire_type) = decode_key(&mut self.0)?;
        let mut value = self.0;
        skip_field(wire_type, tag, &mut self.0, DecodeContext::default())?;
        if wire_type != WireType::LengthDelimited {
            return Ok((tag, &[]));
        }

        // It was skipped, so it is there.
        let length = decode_varint(&mut value)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Ok((tag, value.get(..length).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_its_bytes_if_its_length_is_written() {
        // A number, a text, eight bytes, a group with a number within, four bytes, an empty text.
        let message = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 3, b'a', b'b', b'c'],
            &[0x19, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x23, 0x08, 1, 0x24],
            &[0x2d, 1, 2, 3, 4],
            &[0x32, 0],
        ]
        .concat();
        let fields = raw_fields(&message).collect::<Result<Vec<_>, _>>().expect("a message");
        assert_eq!(fields, [(1, &b""[..]), (2, b"abc"), (3, b""), (4, b""), (5, b""), (6, b"")]);
    }

    #[test]
    fn what_follows_a_mistake_is_not_read() {
        // A field of the number 0, a length beyond the end, a group that does not end, a key that does not end.
        for mistake in [&[0, 0][..], &[0x12, 9, 0], &[0x4b, 0x08, 1], &[0x80]] {
            let message = [&[0x08, 1][..], mistake].concat();
            let fields: Vec<_> = raw_fields(&message).collect();
            assert_eq!(fields.len(), 2, "{mistake:?}");
            assert_eq!(fields[0], Ok((1, &[][..])));
            assert!(fields[1].is_err(), "{mistake:?}");
        }
    }
}
