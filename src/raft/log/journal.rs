//! The files that take what is new: one write and one sync for each group.
//!
//! sled gives a group of writes some milliseconds of work: it wakes the threads that write its segments, and its file grows, so that each
//! sync also writes the file's size. These files do not grow. There are two, made of zeros beforehand; one takes records until it is
//! full, then the other, while what the first holds is [moved into sled](super::journaled).
//!
//! A record is a group, and begins at a sector:
//!
//! ```text
//! checksum: 4   length: 4   number: 8   operations: length
//! kind: 1 (insert: 0, remove: 1; plus 2 in the table `meta`)   key's length: 2   value's length: 4   key   value
//! ```
//!
//! Numbers are big-endian, and records are numbered from 1 on. A file that is used again still has older records behind its newest; their
//! numbers are lower. The checksum covers all of the record, and the journal's *salt*, a random number: nothing that somebody stored in a
//! lock can pass for a record.
//!
//! A record is written when the one before it is synced. So after a crash at most the last one is not whole, and it was acknowledged to
//! nobody. A record that is not whole, with a whole one anywhere behind it, is damage.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{disk::Table, tables::damaged};
use crate::raft::files;

/// Where records may begin. A disk writes a sector as a whole or not at all.
const SECTOR_BYTES: usize = 512;
const HEAD_BYTES: usize = 4 + 4 + 8;
/// Files.
const FILES: usize = 2;

const REMOVE: u8 = 1;
const META: u8 = 2;

/// A change of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operation<'a> {
    pub(super) table: Table,
    pub(super) key: &'a [u8],
    /// `None`: the key is removed.
    pub(super) value: Option<&'a [u8]>,
}

/// The end of a journal, where records are added.
#[derive(Debug)]
pub(super) struct Journal {
    files: [File; FILES],
    active: usize,
    /// Where the next record begins in the active file.
    end: u64,
    /// The number of the next record.
    next: u64,
    salt: u64,
    /// The next record, with room for its head.
    record: Vec<u8>,
}

impl Journal {
    /// Makes the files, or makes them anew. What was in them is gone.
    pub(super) fn create(directory: &Path, bytes: u64) -> io::Result<()> {
        for number in 0..FILES {
            let file = File::create(path(directory, number))?;
            fill(&file, bytes)?;
        }
        files::sync_directory(directory)
    }

    /// What all records behind this one say, record by record.
    pub(super) fn read(directory: &Path, salt: u64, behind: u64) -> io::Result<Vec<Vec<u8>>> {
        let mut contents = Vec::new();
        for number in 0..FILES {
            contents.push(std::fs::read(path(directory, number)).map_err(|error| {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                if is_missing { damaged(format!("its file `{}` is missing", name(number))) } else { error }
            })?);
        }
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
        for bytes in &contents {
            let starts = (0..bytes.len()).step_by(SECTOR_BYTES);
            let whole = starts.filter_map(|at| parse(bytes, at, salt)).find(|record| record.number > last);
            if let Some(whole) = whole {
                return Err(missing(last + 1, whole.number));
            }
        }
        Ok(found.into_iter().map(|record| record.says.to_vec()).collect())
    }

    /// Starts anew in the files that are there, with the record of this number. All before it is needed no more.
    pub(super) fn start(directory: &Path, salt: u64, next: u64, bytes: u64) -> io::Result<Self> {
        let open = |number| {
            let file = File::options().write(true).open(path(directory, number))?;
            // One group may have been too large for it; or somebody has another opinion now on how large it should be.
            match file.metadata()?.len() {
                length if length > bytes => file.set_len(bytes)?,
                length if length < bytes => fill(&file, bytes)?,
                _ => {}
            }
            Ok::<_, io::Error>(file)
        };
        let files = [open(0)?, open(1)?];
        Ok(Self { files, active: 0, end: 0, next, salt, record: vec![0; HEAD_BYTES] })
    }

    /// Adds a change to the next record.
    pub(super) fn add(&mut self, operation: Operation<'_>) {
        let Operation { table, key, value } = operation;
        let kind = if value.is_none() { REMOVE } else { 0 } | if table == Table::Meta { META } else { 0 };
        let value = value.unwrap_or_default();
        self.record.push(kind);
        self.record.extend_from_slice(&u16::try_from(key.len()).expect("keys are short").to_be_bytes());
        self.record.extend_from_slice(&u32::try_from(value.len()).expect("values are chunks").to_be_bytes());
        self.record.extend_from_slice(key);
        self.record.extend_from_slice(value);
    }

    /// Writes the next record, if there is anything in it, and returns once it is durable.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        if self.record.len() == HEAD_BYTES {
            return Ok(());
        }
        let length =
            u32::try_from(self.record.len() - HEAD_BYTES).expect("what waits for the writer is limited to less");
        self.record[4..8].copy_from_slice(&length.to_be_bytes());
        self.record[8..HEAD_BYTES].copy_from_slice(&self.next.to_be_bytes());
        let checksum = checksum(self.salt, &self.record[4..]);
        self.record[..4].copy_from_slice(&checksum.to_be_bytes());
        self.record.resize(self.record.len().next_multiple_of(SECTOR_BYTES), 0);

        let file = &self.files[self.active];
        file.write_all_at(&self.record, self.end)?;
        file.sync_data()?;
        self.end += self.record.len() as u64;
        self.next += 1;
        self.record.truncate(HEAD_BYTES);
        Ok(())
    }

    /// How much of the active file is used, bytes.
    pub(super) fn used(&self) -> u64 {
        self.end
    }

    /// The number of the last record; 0 if there was none yet.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Goes on in the other file. What that holds must not be needed any more.
    pub(super) fn switch(&mut self) {
        self.active = (self.active + 1) % FILES;
        self.end = 0;
    }
}

/// The changes of one record, in their order.
pub(super) fn operations(says: &[u8]) -> impl Iterator<Item = io::Result<Operation<'_>>> {
    let mut rest = says;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let operation = take(&mut rest).ok_or_else(|| damaged("a record of its journal is none"));
        if operation.is_err() {
            rest = &[];
        }
        Some(operation)
    })
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<Operation<'a>> {
    let (&[kind, k0, k1, v0, v1, v2, v3], after) = rest.split_first_chunk()?;
    let (key, after) = after.split_at_checked(u16::from_be_bytes([k0, k1]).into())?;
    let (value, after) = after.split_at_checked(u32::from_be_bytes([v0, v1, v2, v3]) as usize)?;
    *rest = after;
    let table = if kind & META == 0 { Table::Log } else { Table::Meta };
    (kind <= REMOVE | META).then_some(Operation { table, key, value: (kind & REMOVE == 0).then_some(value) })
}

/// A record in a file.
#[derive(Clone, Copy)]
struct Record<'a> {
    number: u64,
    says: &'a [u8],
    /// Where the next one begins.
    next: usize,
}

/// The records that follow on each other from a file's beginning.
fn records(bytes: &[u8], salt: u64) -> impl Iterator<Item = Record<'_>> {
    let first = parse(bytes, 0, salt);
    std::iter::successors(first, move |before| {
        parse(bytes, before.next, salt).filter(|record| record.number == before.number + 1)
    })
}

/// The record that begins here, if it is whole.
fn parse(bytes: &[u8], at: usize, salt: u64) -> Option<Record<'_>> {
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<HEAD_BYTES>()?;
    let [c0, c1, c2, c3, l0, l1, l2, l3, number @ ..] = *head;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    let says = rest.get(..length)?;
    let is_whole = checksum(salt, &bytes[at + 4..at + HEAD_BYTES + length]) == u32::from_be_bytes([c0, c1, c2, c3]);
    let next = (at + HEAD_BYTES + length).next_multiple_of(SECTOR_BYTES);
    is_whole.then_some(Record { number: u64::from_be_bytes(number), says, next })
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

fn name(number: usize) -> String {
    format!("journal-{number}")
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(name(number))
}

/// Writes zeros behind a file's end, up to this length: to write into what was only reserved would change the file's metadata.
fn fill(mut file: &File, bytes: u64) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
    let length = file.metadata()?.len();
    io::copy(&mut io::Read::take(io::repeat(0), bytes.saturating_sub(length)), &mut file)?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 7;
    const BYTES: u64 = 16 << 10;

    fn insert(value: &[u8]) -> Operation<'_> {
        Operation { table: Table::Log, key: b"key", value: Some(value) }
    }

    /// A journal with so many records, of about so many bytes each.
    fn journal(directory: &Path, records: u8, bytes: usize) -> Journal {
        Journal::create(directory, BYTES).expect("made");
        let mut journal = Journal::start(directory, SALT, 1, BYTES).expect("started");
        (1..=records).for_each(|value| commit(&mut journal, &vec![value; bytes]));
        journal
    }

    fn commit(journal: &mut Journal, value: &[u8]) {
        journal.add(insert(value));
        journal.commit().expect("written");
    }

    /// The first byte of what each record behind `behind` inserts.
    fn read(directory: &Path, behind: u64) -> Result<Vec<u8>, String> {
        let records = Journal::read(directory, SALT, behind).map_err(|error| error.to_string())?;
        let value = |says: &Vec<u8>| {
            let operation = operations(says).next().expect("it has one").expect("it can be read");
            operation.value.expect("it inserts")[0]
        };
        Ok(records.iter().map(value).collect())
    }

    fn change(directory: &Path, number: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(path(directory, number)).expect("readable");
        change(&mut bytes);
        std::fs::write(path(directory, number), bytes).expect("written");
    }

    #[test]
    fn what_was_committed_is_read_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut journal = journal(directory.path(), 3, 700);
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3]));
        assert_eq!(read(directory.path(), 2), Ok(vec![3]));
        assert_eq!(read(directory.path(), 3), Ok(vec![]));
        journal.add(insert(&[4]));
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3]), "that one is not committed");
        assert_eq!((journal.used(), journal.last()), (3 * 1024, 3));
    }

    #[test]
    fn operations_come_back_as_they_were() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut journal = journal(directory.path(), 0, 0);
        let all = [
            insert(&[1; 5000]),
            Operation { table: Table::Meta, key: b"", value: Some(b"") },
            Operation { table: Table::Log, key: b"gone", value: None },
            Operation { table: Table::Meta, key: b"gone", value: None },
        ];
        all.iter().for_each(|operation| journal.add(*operation));
        journal.commit().expect("written");
        journal.commit().expect("nothing to write");
        let records = Journal::read(directory.path(), SALT, 0).expect("readable");
        assert_eq!(records.len(), 1);
        assert_eq!(operations(&records[0]).collect::<io::Result<Vec<_>>>().expect("readable"), all);
        for cut in 1..7 {
            let last = operations(&records[0][..records[0].len() - cut]).last().expect("there are some");
            assert!(last.is_err(), "cut by {cut}");
        }
    }

    #[test]
    fn files_are_used_again_and_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut journal = journal(directory.path(), 3, 700);
        journal.switch();
        commit(&mut journal, &[4]);
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3, 4]));
        journal.switch();
        commit(&mut journal, &[5; 700]);
        assert_eq!(read(directory.path(), 3), Ok(vec![4, 5]), "the old ones behind it are no records any more");
        assert!(read(directory.path(), 2).is_err_and(|error| error.contains("record 3")), "that one was written over");
        let mut journal = Journal::start(directory.path(), SALT, 6, BYTES).expect("started");
        commit(&mut journal, &[6]);
        assert_eq!(read(directory.path(), 5), Ok(vec![6]));
        assert_eq!(Journal::read(directory.path(), SALT + 1, 5).expect("readable"), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_last_record_that_is_not_whole_was_never_there() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let _journal = journal(directory.path(), 3, 700);
        let whole = std::fs::read(path(directory.path(), 0)).expect("readable");
        let last = 2 * 1024..2 * 1024 + HEAD_BYTES + 7 + 3 + 700;
        for torn in last.clone() {
            change(directory.path(), 0, |bytes| bytes[torn] ^= 1);
            assert_eq!(read(directory.path(), 0), Ok(vec![1, 2]), "byte {torn}");
            change(directory.path(), 0, |bytes| bytes.clone_from(&whole));
        }
        change(directory.path(), 0, |bytes| bytes.truncate(last.end - 1));
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2]));
    }

    #[test]
    fn a_record_that_is_not_whole_before_one_that_is_was_damaged() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut journal = journal(directory.path(), 3, 700);
        let whole = std::fs::read(path(directory.path(), 0)).expect("readable");
        let damaged_at = |at: usize| {
            change(directory.path(), 0, |bytes| bytes[at] ^= 0x10);
            let error = read(directory.path(), 0).expect_err("one of them is gone");
            assert!(error.contains("cannot be read"), "{error}");
            change(directory.path(), 0, |bytes| bytes.clone_from(&whole));
        };
        // The whole one is behind it in the same file.
        [0, 1, 5, 15, 16, 600, 1024, 1024 + 300].into_iter().for_each(damaged_at);
        journal.switch();
        commit(&mut journal, &[4]);
        // It is in the other file.
        [0, 600, 1024, 2048, 2048 + 100].into_iter().for_each(damaged_at);
        std::fs::remove_file(path(directory.path(), 0)).expect("removed");
        assert_eq!(read(directory.path(), 0), Err("its file `journal-0` is missing".to_owned()));
    }

    #[test]
    fn a_record_may_be_larger_than_its_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let _journal = journal(directory.path(), 2, BYTES as usize);
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2]));
        let _journal = Journal::start(directory.path(), SALT, 3, BYTES).expect("started");
        assert_eq!(std::fs::metadata(path(directory.path(), 0)).expect("there").len(), BYTES);
    }
}
