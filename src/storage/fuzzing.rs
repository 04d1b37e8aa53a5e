//! Parsers that are private to this crate, for `tests/fuzz`. Not an interface: it changes with the parsers.

use std::io;

use crate::journal::{Journal, first_format, operations};

/// The records of a journal above `behind`, from the content of both files.
pub fn journal(files: [Vec<u8>; 2], salt: u64, behind: u64) -> io::Result<Vec<Vec<u8>>> {
    Journal::read_bytes(files.into(), salt, behind).map(|content| content.records)
}

/// The records of a journal in the first format.
pub fn first_journal(files: &[Vec<u8>; 2], salt: u64, behind: u64) -> io::Result<Vec<Vec<u8>>> {
    first_format::read_bytes(files, salt, behind)
}

/// A key, and its value or `None` if the key is removed.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// The operations of a record.
pub fn record(says: &[u8]) -> io::Result<Vec<Change<'_>>> {
    operations(says).map(|operation| operation.map(|operation| (operation.key, operation.value))).collect()
}
