//! The journal: a pair of files of sectors, in the present format and in the first one.
//!
//! An input is a byte with the number of sectors of the first file, a byte with the number of the last record that is no longer needed,
//! and the sectors of both files.

use lockkeeper_storage::fuzzing;

use super::says;

const SECTOR_BYTES: usize = 512;
/// Checksum, number, part, length.
const HEAD_BYTES: usize = 4 + 8 + 4 + 4;
const CONTENT_BYTES: usize = SECTOR_BYTES - HEAD_BYTES;
const SALT: u64 = 7;

/// What an input holds: both files, and the last record that is not needed.
fn files(input: &[u8]) -> Option<([Vec<u8>; 2], u64)> {
    let (&[sectors, behind], rest) = input.split_first_chunk()?;
    let (first, second) = rest.split_at((usize::from(sectors) * SECTOR_BYTES).min(rest.len()));
    Some(([first.to_vec(), second.to_vec()], behind.into()))
}

fn check(read: std::io::Result<Vec<Vec<u8>>>, bytes: usize) {
    match read {
        Ok(records) => {
            assert!(records.iter().map(Vec::len).sum::<usize>() <= bytes, "records of more bytes than the files have");
            for says_what in records {
                match fuzzing::record(&says_what) {
                    Ok(operations) => {
                        let bytes = |(key, value): &(&[u8], Option<&[u8]>)| key.len() + value.map_or(0, <[u8]>::len);
                        assert!(operations.iter().map(bytes).sum::<usize>() <= says_what.len());
                    }
                    Err(error) => says(&error),
                }
            }
        }
        Err(error) => says(&error),
    }
}

pub(super) fn journal(input: &[u8]) {
    let Some((files, behind)) = files(input) else { return };
    check(fuzzing::journal(files, SALT, behind), input.len());
}

pub(super) fn first(input: &[u8]) {
    let Some((files, behind)) = files(input) else { return };
    check(fuzzing::first_journal(&files, SALT, behind), input.len());
}

/// An operation: an insert into the tree of entries, a removal from the other tree.
fn operations(value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).expect("short").to_be_bytes();
    [&[0, 0, 3], &length[..], b"key", value, &[3, 0, 4, 0, 0, 0, 0], b"gone"].concat()
}

/// The sectors of a record.
fn record(number: u64, says: &[u8]) -> Vec<u8> {
    let length = u32::try_from(says.len()).expect("short").to_be_bytes();
    let sector = |(part, content): (u32, &[u8])| {
        let mut sector = [&[0; 4][..], &number.to_be_bytes(), &part.to_be_bytes(), &length, content].concat();
        sector.resize(SECTOR_BYTES, 0);
        sector
    };
    (0..).zip(says.chunks(CONTENT_BYTES)).flat_map(sector).collect()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let blank = |sectors: usize| vec![0; sectors * SECTOR_BYTES];
    let (one, two, three) =
        (record(1, &operations(b"a")), record(2, &operations(&[7; 600])), record(3, &operations(b"")));
    // After record 3: its end, in a block of its own.
    let end = [&[0; 4][..], &3_u64.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; SECTOR_BYTES - 16]].concat();
    let mut seeds = vec![
        [&[2, 0], &blank(4)[..]].concat(),
        [&[4, 0], &one[..], &two, &blank(1), &blank(2)].concat(),
        [&[3, 1], &one[..], &two, &three, &blank(1)].concat(),
        [&[8, 2], &three[..], &blank(7), &end, &blank(1)].concat(),
    ];
    seeds.iter_mut().for_each(repair);
    seeds
}

/// Each sector has the checksum of the salt, its place, and its bytes.
pub(super) fn repair(input: &mut Vec<u8>) {
    let Some((&mut [sectors, _], files)) = input.split_first_chunk_mut() else { return };
    for (at, sector) in files.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let (file, sector_number) = match at.checked_sub(sectors.into()) {
            None => (0_u64, at),
            Some(in_second) => (1, in_second),
        };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&SALT.to_be_bytes());
        hasher.update(&file.to_be_bytes());
        hasher.update(&(sector_number as u64).to_be_bytes());
        hasher.update(&sector[4..]);
        sector[..4].copy_from_slice(&hasher.finalize().to_be_bytes());
    }
}

const FIRST_HEAD_BYTES: usize = 4 + 4 + 8;

/// A record in the first format.
fn first_record(number: u64, says: &[u8]) -> Vec<u8> {
    let length = u32::try_from(says.len()).expect("short").to_be_bytes();
    let mut record = [&[0; 4], &length[..], &number.to_be_bytes(), says].concat();
    record.resize(record.len().next_multiple_of(SECTOR_BYTES), 0);
    record
}

pub(super) fn first_seeds() -> Vec<Vec<u8>> {
    let one = first_record(1, &operations(b"a"));
    let two = first_record(2, &operations(&[7; 600]));
    let three = first_record(3, &operations(b""));
    let blank = [0; SECTOR_BYTES];
    let mut seeds = vec![
        [&[1, 0], &blank[..], &blank].concat(),
        [&[4, 0], &one[..], &two, &blank, &three, &blank].concat(),
        [&[1, 1], &three[..], &two, &blank].concat(),
        // No number follows the last one: it was an overflow.
        [&[2, 0], &first_record(u64::MAX, b"")[..], &first_record(0, b""), &blank].concat(),
    ];
    seeds.iter_mut().for_each(repair_first);
    seeds
}

/// A record may begin at each sector: checksum, length, and from here on covered: number, operations.
pub(super) fn repair_first(input: &mut Vec<u8>) {
    let mut at = 2;
    while let Some([_, _, _, _, l0, l1, l2, l3]) = input.get(at..).and_then(|rest| rest.first_chunk()) {
        let length = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let end = (at + FIRST_HEAD_BYTES).saturating_add(length);
        let Some(covered) = input.get(at + 4..end) else {
            at += SECTOR_BYTES;
            continue;
        };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&SALT.to_be_bytes());
        hasher.update(covered);
        input[at..at + 4].copy_from_slice(&hasher.finalize().to_be_bytes());
        at += (end - at).next_multiple_of(SECTOR_BYTES);
    }
}
