//! The journal's first format, for reading.
//!
//! A record began at a sector:
//!
//! ```text
//! checksum: 4   length: 4   number: 8   operations: length
//! ```
//!
//! with one checksum for all of it, and zeros where nothing had been written. A damaged last record could therefore not be told
//! from a torn one. Opening a log whose journal has this format moves its records into sled, and creates a journal of the present format.

use std::{io, path::Path};

use super::{SECTOR_BYTES, damaged, read_files};

const HEAD_BYTES: usize = 4 + 4 + 8;

/// Reads the operations of all records with numbers above `behind`.
pub(crate) fn read(directory: &Path, salt: u64, behind: u64) -> io::Result<Vec<Vec<u8>>> {
    read_bytes(&read_files(directory)?, salt, behind)
}

/// Reads the operations of all records above `behind` from the content of both files.
pub(crate) fn read_bytes(contents: &[Vec<u8>], salt: u64, behind: u64) -> io::Result<Vec<Vec<u8>>> {
    let mut found: Vec<_> = contents.iter().flat_map(|bytes| records(bytes, salt)).collect();
    found.retain(|record| record.number > behind);
    found.sort_by_key(|record| record.number);

    let mut last = behind;
    for record in &found {
        if record.number != last + 1 {
            return Err(missing(last + 1, record.number));
        }
        last = record.number;
    }

    for bytes in contents {
        let starts = (0..bytes.len()).step_by(SECTOR_BYTES);
        let whole = starts.filter_map(|at| parse(bytes, at, salt)).find(|record| record.number > last);
        if let Some(whole) = whole {
            return Err(missing(last + 1, whole.number));
        }
    }

    Ok(found.into_iter().map(|record| record.says.to_vec()).collect())
}

/// A record in a file.
#[derive(Clone, Copy)]
struct FileRecord<'a> {
    number: u64,
    says: &'a [u8],
    /// The offset of the next record.
    next: usize,
}

/// The consecutive records from the start of a file.
fn records(bytes: &[u8], salt: u64) -> impl Iterator<Item = FileRecord<'_>> {
    let first = parse(bytes, 0, salt);
    std::iter::successors(first, move |before| {
        parse(bytes, before.next, salt).filter(|record| before.number.checked_add(1) == Some(record.number))
    })
}

/// The record that begins here, if it is complete.
fn parse(bytes: &[u8], at: usize, salt: u64) -> Option<FileRecord<'_>> {
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<HEAD_BYTES>()?;
    let [c0, c1, c2, c3, l0, l1, l2, l3, number @ ..] = *head;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    let says = rest.get(..length)?;
    let is_whole = checksum(salt, &bytes[at + 4..at + HEAD_BYTES + length]) == u32::from_be_bytes([c0, c1, c2, c3]);
    let next = (at + HEAD_BYTES + length).next_multiple_of(SECTOR_BYTES);
    is_whole.then_some(FileRecord { number: u64::from_be_bytes(number), says, next })
}

fn checksum(salt: u64, covered: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_be_bytes());
    hasher.update(covered);
    hasher.finalize()
}

fn missing(number: u64, found: u64) -> io::Error {
    damaged(format!("record {number} of its journal cannot be read, and record {found} can"))
}
