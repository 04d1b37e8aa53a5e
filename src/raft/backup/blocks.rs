//! Bytes in blocks, each with a checksum: damage is noticed before the bytes are used, and its place in the file is known.
//!
//! ```text
//! length of a block, 4 bytes      checksum, 4 bytes      bytes of the block      (any number of times)
//! 0, 4 bytes                      checksum, 4 bytes                              (the end)
//! ```
//!
//! Numbers are big-endian. The checksum (CRC-32) covers the number of the block, its length and its bytes: a block that is missing, doubled
//! or out of place does not match. After the end no byte follows.

use std::io::{self, Read, Write};

/// The most bytes in a block, without its length and checksum.
pub const BLOCK_BYTES_MAX: usize = 128 * 1024;
const HEAD_BYTES: usize = 8;

/// Writes blocks. Each is one call of the output's `write_all`.
pub(super) struct BlockWriter<W> {
    output: W,
    /// The next block: room for its length and checksum, then its bytes.
    block: Vec<u8>,
    number: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn new(output: W) -> Self {
        let mut block = Vec::with_capacity(HEAD_BYTES + BLOCK_BYTES_MAX);
        block.resize(HEAD_BYTES, 0);
        Self { output, block, number: 0 }
    }

    /// Writes the last bytes and the end.
    pub(super) fn finish(mut self) -> io::Result<W> {
        if self.block.len() > HEAD_BYTES {
            self.send()?;
        }
        self.send()?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn send(&mut self) -> io::Result<()> {
        let (head, bytes) = self.block.split_at_mut(HEAD_BYTES);
        let length = bytes.len() as u32;
        head[..4].copy_from_slice(&length.to_be_bytes());
        head[4..].copy_from_slice(&checksum(self.number, bytes).to_be_bytes());
        self.output.write_all(&self.block)?;
        self.block.truncate(HEAD_BYTES);
        self.number += 1;
        Ok(())
    }
}

impl<W: Write> Write for BlockWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = HEAD_BYTES + BLOCK_BYTES_MAX - self.block.len();
        let taken = bytes.len().min(room);
        self.block.extend_from_slice(&bytes[..taken]);
        if taken == room {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads blocks: their bytes, each block checked before any of its bytes is returned.
pub(super) struct BlockReader<R> {
    input: R,
    /// The offset of the next block in the file.
    at: u64,
    number: u64,
    block: Vec<u8>,
    /// How much of the block was read.
    read: usize,
    is_over: bool,
}

/// The damage of a block.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(super) struct BadBlock {
    /// The first byte of the damaged block, from the start of the file.
    pub(super) at: u64,
    pub(super) what: &'static str,
}

impl<R: Read> BlockReader<R> {
    /// Reads the blocks that begin at this offset of the file, where `input` stands.
    pub(super) fn new(input: R, at: u64) -> Self {
        Self { input, at, number: 0, block: Vec::new(), read: 0, is_over: false }
    }

    /// The bytes of the file before the next block.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Checks the rest of the file, which must be no more than the end.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        if self.read < self.block.len() || !self.is_over && self.next_block()? {
            return Err(self.bad("more follows than belongs to it"));
        }
        match self.input.read(&mut [0])? {
            0 => Ok(self.at),
            _ => Err(self.bad("more bytes follow after its end")),
        }
    }

    /// Reads the next block. Returns `false` at the end.
    fn next_block(&mut self) -> io::Result<bool> {
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;

        let (length, sum) = head.split_at(4);
        let length = u32::from_be_bytes(length.try_into().expect("4 bytes")) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(self.bad("a length in it is impossible"));
        }

        let mut block = std::mem::take(&mut self.block);
        // If this block is bad, none of it is left to read: a caller that goes on after the error must not panic.
        self.read = 0;
        block.resize(length, 0);
        self.fill(&mut block)?;

        if checksum(self.number, &block).to_be_bytes() != sum {
            return Err(self.bad("a checksum does not match"));
        }

        (self.block, self.read, self.is_over) = (block, 0, length == 0);
        self.at += (HEAD_BYTES + length) as u64;
        self.number += 1;
        Ok(!self.is_over)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(buffer).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof { self.bad("it is cut short") } else { error }
        })
    }

    fn bad(&self, what: &'static str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, BadBlock { at: self.at, what })
    }
}

impl<R: Read> Read for BlockReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.block.len() && (self.is_over || !self.next_block()?) {
            return Ok(0);
        }
        let rest = &self.block[self.read..];
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        self.read += bytes;
        Ok(bytes)
    }
}

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(&(bytes.len() as u64).to_be_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> Vec<u8> {
        let mut writer = BlockWriter::new(Vec::new());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn read(file: &[u8]) -> io::Result<Vec<u8>> {
        let (mut reader, mut bytes) = (BlockReader::new(file, 0), Vec::new());
        reader.read_to_end(&mut bytes)?;
        assert_eq!(reader.finish()?, file.len() as u64);
        Ok(bytes)
    }

    #[test]
    fn bytes_come_back_whether_or_not_they_fill_their_blocks() {
        for length in [0, 1, BLOCK_BYTES_MAX - 1, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1, 3 * BLOCK_BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(read(&written(&bytes)).unwrap(), bytes, "{length}");
        }
    }

    /// [`io::copy`] and callers that look for the first damage read on after an error.
    #[test]
    fn reading_on_after_damage_is_no_panic() {
        let mut file = written(&[7; 100]);
        // A second block whose checksum does not match: its length was the end's.
        file[HEAD_BYTES + 100 + 3] = 4;
        file.extend([1; 4]);
        let mut reader = BlockReader::new(&*file, 0);
        let mut bytes = [0; 100];
        reader.read_exact(&mut bytes).unwrap();
        assert!(reader.read(&mut bytes).is_err());
        assert!(reader.read(&mut bytes).is_err(), "cut short");
        assert!(reader.finish().is_err());
    }

    #[test]
    fn blocks_in_another_order_are_refused_and_their_place_is_named() {
        let file = written(&vec![7; 3 * BLOCK_BYTES_MAX]);
        let block = HEAD_BYTES + BLOCK_BYTES_MAX;
        for damaged in [
            [&file[..block], &file[2 * block..]].concat(),
            [&file[..2 * block], &file[block..]].concat(),
            [&file[..block], &file[2 * block..3 * block], &file[block..2 * block], &file[3 * block..]].concat(),
        ] {
            let error = read(&damaged).unwrap_err();
            let bad = error.get_ref().and_then(|why| why.downcast_ref::<BadBlock>()).expect("a block is damaged");
            // Equal bytes: only the numbers tell them apart.
            assert!(bad.at >= block as u64, "{bad:?}");
        }
    }
}
