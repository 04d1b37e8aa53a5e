//! The files after a crash, and after damage.

use super::*;

const SALT: u64 = 7;
const BYTES: u64 = 14 << 10;
/// Bytes of a record of one insertion, apart from the value.
const BESIDES: usize = 7 + 3;

fn insert(value: &[u8]) -> TreeOperation<'_> {
    TreeOperation { tree: Tree::Log, key: b"key", value: Some(value) }
}

fn start(directory: &Path, next: u64) -> Journal {
    let spoilt = Journal::read(directory, SALT, next - 1).expect("readable").spoilt;
    Journal::start(directory, SALT, next, BYTES, &spoilt).expect("started")
}

/// A journal with `records` records of `sectors` sectors each.
fn journal(directory: &Path, records: u8, sectors: usize) -> Journal {
    Journal::create(directory, SALT, BYTES).expect("made");
    let mut journal = start(directory, 1);
    (1..=records).for_each(|value| commit(&mut journal, value, sectors));
    journal
}

fn commit(journal: &mut Journal, value: u8, sectors: usize) {
    journal.add(insert(&vec![value; sectors * CONTENT_BYTES - BESIDES]));
    journal.commit().expect("written");
}

/// The first byte of the value that each record above `behind` inserts.
fn read(directory: &Path, behind: u64) -> Result<Vec<u8>, String> {
    let found = Journal::read(directory, SALT, behind).map_err(|error| error.to_string())?;
    let value = |says: &Vec<u8>| {
        let operation = operations(says).next().expect("it has one").expect("it can be read");
        operation.value.expect("it inserts")[0]
    };
    Ok(found.records.iter().map(value).collect())
}

fn file(directory: &Path, number: usize) -> Vec<u8> {
    std::fs::read(path(directory, number)).expect("readable")
}

fn write(directory: &Path, number: usize, bytes: &[u8]) {
    std::fs::write(path(directory, number), bytes).expect("written");
}

fn assert_damaged(directory: &Path, behind: u64, what: &str) {
    let error = read(directory, behind).expect_err(what);
    assert!(error.contains("of its journal"), "{what}: {error}");
}

#[test]
fn committed_records_are_read_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 3, 2);
    assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3]));
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
        TreeOperation { tree: Tree::Meta, key: b"", value: Some(b"") },
        TreeOperation { tree: Tree::Log, key: b"gone", value: None },
        TreeOperation { tree: Tree::Meta, key: b"gone", value: None },
    ];
    all.iter().for_each(|operation| journal.add(*operation));
    journal.commit().expect("written");
    journal.commit().expect("nothing to write");
    let records = Journal::read(directory.path(), SALT, 0).expect("readable").records;
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
    let mut journal = journal(directory.path(), 3, 2);
    journal.switch();
    commit(&mut journal, 4, 1);
    assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3, 4]));
    journal.switch();
    commit(&mut journal, 5, 2);
    assert_eq!(read(directory.path(), 3), Ok(vec![4, 5]), "the old ones behind it are no records any more");
    assert_damaged(directory.path(), 2, "record 3 was written over");
    let mut journal = start(directory.path(), 6);
    commit(&mut journal, 6, 1);
    assert_eq!(read(directory.path(), 5), Ok(vec![6]));
}

/// Whichever of its sectors were written: not all were, so it was never acknowledged.
#[test]
fn a_last_record_that_was_not_written_to_its_end_was_never_there() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 2, 2);
    let before = file(directory.path(), 0);
    commit(&mut journal, 3, 4);
    let after = file(directory.path(), 0);
    for written in 0..0b1111_usize {
        let mut torn = before.clone();
        for part in (0..4).filter(|part| written >> part & 1 == 1) {
            let sector = 4 * SECTOR_BYTES + part * SECTOR_BYTES..4 * SECTOR_BYTES + (part + 1) * SECTOR_BYTES;
            torn[sector.clone()].copy_from_slice(&after[sector]);
        }
        write(directory.path(), 0, &torn);
        assert_eq!(read(directory.path(), 0), Ok(vec![1, 2]), "written: {written:04b}");
        // Its number is not used again: its remains complete no other record.
        let mut journal = start(directory.path(), 4);
        commit(&mut journal, 4, 1);
        assert_eq!(read(directory.path(), 3), Ok(vec![4]), "written: {written:04b}");
    }
}

/// One bit, one sector of zeros or noise, or one block: any damage to an acknowledged record is noticed.
#[test]
fn a_last_record_that_was_damaged_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 3, 3);
    commit(&mut journal, 4, 3);
    let whole = file(directory.path(), 0);
    let from = 9 * SECTOR_BYTES;
    let to = 12 * SECTOR_BYTES;
    for at in from..to {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        write(directory.path(), 0, &flipped);
        assert_damaged(directory.path(), 0, &format!("byte {at}"));
    }
    for length in [SECTOR_BYTES, BLOCK_BYTES as usize] {
        for fill in [0, 0xff, 0x5a] {
            for at in (from / length * length..to).step_by(length) {
                let mut lost = whole.clone();
                lost[at..at + length].fill(fill);
                write(directory.path(), 0, &lost);
                assert_damaged(directory.path(), 0, &format!("{length} bytes of {fill:x} at {at}"));
            }
        }
    }
    // A sector at another's place, and a truncated file.
    let mut misplaced = whole.clone();
    misplaced.copy_within(from..from + SECTOR_BYTES, from + SECTOR_BYTES);
    write(directory.path(), 0, &misplaced);
    assert_damaged(directory.path(), 0, "a sector twice");
    for cut in [0, from, from + 1, from + SECTOR_BYTES, to - 1, to] {
        write(directory.path(), 0, &whole[..cut]);
        assert_damaged(directory.path(), 0, &format!("cut to {cut}"));
    }
    // The place of the next record: it might have been there.
    let mut lost = whole.clone();
    lost[to..to + SECTOR_BYTES].fill(0);
    write(directory.path(), 0, &lost);
    assert_damaged(directory.path(), 0, "the sector behind it");
    write(directory.path(), 0, &whole);
    let other = file(directory.path(), 1);
    write(directory.path(), 1, &other[1..]);
    assert_damaged(directory.path(), 0, "the other file's first sector");
}

#[test]
fn an_incomplete_record_before_a_complete_one_is_damaged() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 3, 2);
    let whole = file(directory.path(), 0);
    let damaged_at = |at: usize| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        write(directory.path(), 0, &flipped);
        assert_damaged(directory.path(), 0, &format!("byte {at}"));
        write(directory.path(), 0, &whole);
    };
    // The complete record follows it in the same file.
    [0, 1, 5, 15, 16, 600, 1024, 1024 + 300].into_iter().for_each(damaged_at);
    journal.switch();
    commit(&mut journal, 4, 1);
    // The complete record is in the other file.
    [0, 600, 1024, 2048, 2048 + 100].into_iter().for_each(damaged_at);
    std::fs::remove_file(path(directory.path(), 0)).expect("removed");
    assert_eq!(read(directory.path(), 0), Err("its file `journal-0` is missing".to_owned()));
}

/// A write of the last record that the disk acknowledged and never did: the old sectors are valid, as if nothing had been written.
#[test]
fn an_end_that_was_noted_shows_that_a_record_is_gone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 2, 1);
    let before = file(directory.path(), 0);
    commit(&mut journal, 3, 1);
    journal.note_end().expect("written");
    let noted = file(directory.path(), 0);
    assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3]));
    let block = BLOCK_BYTES as usize;
    let lost = [&before[..block], &noted[block..]].concat();
    write(directory.path(), 0, &lost);
    assert_damaged(directory.path(), 0, "record 3 was acknowledged");
    write(directory.path(), 0, &noted);

    // The end sector neither hinders later records nor changes their meaning.
    for value in 4..=20 {
        commit(&mut journal, value, 1);
        if value % 3 == 0 {
            journal.note_end().expect("written");
        }
        assert_eq!(read(directory.path(), 0), Ok((1..=value).collect()));
    }
    let full = file(directory.path(), 0);
    journal.note_end().expect("written");
    journal.note_end().expect("nothing to write");
    assert_ne!(full, file(directory.path(), 0));
    let length = full.len();
    while journal.used() + 2 * BLOCK_BYTES < length as u64 {
        commit(&mut journal, 21, 1);
    }
    commit(&mut journal, 21, 8);
    journal.note_end().expect("no room, and no error");
    assert_eq!(file(directory.path(), 0).len(), length);
}

/// Damage where nothing is needed any more is overwritten: otherwise a record that begins there later would be in doubt.
#[test]
fn invalid_sectors_are_filled_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let journal = journal(directory.path(), 3, 2);
    drop(journal);
    for number in 0..FILES {
        let mut bytes = file(directory.path(), number);
        bytes[8 * SECTOR_BYTES..].fill(0);
        let cut = bytes.len() - 700;
        write(directory.path(), number, &bytes[..cut]);
    }
    assert_eq!(read(directory.path(), 0), Ok(vec![1, 2, 3]));
    let mut journal = start(directory.path(), 4);
    for value in 4..=40 {
        commit(&mut journal, value, 1);
        assert_eq!(read(directory.path(), 3), Ok((4..=value).collect()));
    }
}

#[test]
fn a_record_may_be_larger_than_its_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut journal = journal(directory.path(), 2, 40);
    assert_eq!(read(directory.path(), 0), Ok(vec![1, 2]));
    commit(&mut journal, 3, 1);
    let whole = file(directory.path(), 0);
    assert!(whole.len() > 82 * SECTOR_BYTES, "there is a sector behind it");
    let mut flipped = whole.clone();
    flipped[80 * SECTOR_BYTES] ^= 1;
    write(directory.path(), 0, &flipped);
    assert_damaged(directory.path(), 0, "the last record");
    write(directory.path(), 0, &whole);
    let _journal = start(directory.path(), 4);
    assert_eq!(file(directory.path(), 0).len() as u64, room(BYTES));
}
