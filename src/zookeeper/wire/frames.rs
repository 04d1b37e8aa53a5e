//! Frames: a length, and so many bytes.

use bytes::{Buf as _, BytesMut};
use thiserror::Error;

use super::Opcode;

/// Why a connection ends: its frame can never be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameError {
    /// A negative length.
    #[error("a frame of {0} bytes: the length is negative")]
    Negative(i32),
    /// A length above the limit.
    #[error("a frame of {length} bytes exceeds the maximum of {length_max}; send smaller requests")]
    TooLong {
        /// The length that it claims.
        length: usize,
        /// The limit.
        length_max: usize,
    },
}

/// Takes frames out of the bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameReader {
    /// Maximum length of the next frame, in bytes.
    pub(crate) length_max: usize,
}

impl FrameReader {
    /// What the next frame asks for, if it has arrived completely.
    pub(crate) fn next_opcode(&self, input: &[u8]) -> Option<Opcode> {
        let (length, rest) = input.split_first_chunk()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let frame = rest.get(..length).filter(|_| length <= self.length_max)?;
        Opcode::from_frame(frame)
    }

    /// Takes a whole frame from the front of the buffer, without its length. `None` means that it has not arrived completely; no memory is
    /// taken for what is missing.
    pub(crate) fn read(&self, input: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
        let Some(length) = input.first_chunk().map(|bytes| i32::from_be_bytes(*bytes)) else { return Ok(None) };
        let length = usize::try_from(length).map_err(|_| FrameError::Negative(length))?;
        if length > self.length_max {
            return Err(FrameError::TooLong { length, length_max: self.length_max });
        }
        if input.len() - 4 < length {
            return Ok(None);
        }

        input.advance(4);
        Ok(Some(input.split_to(length)))
    }
}
