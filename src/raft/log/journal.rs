//! The files that take what is new: one write and one sync for each group.
//!
//! sled gives a group of writes some milliseconds of work: it wakes the threads that write its segments, and its file grows, so that each
//! sync also writes the file's size. These files do not grow. There are two, filled beforehand; one takes records until it is
//! full, then the other, while what the first holds is [moved into sled](super::journaled).
//!
//! A record is a group. It begins at a sector, and each of its sectors says whose it is:
//!
//! ```text
//! checksum: 4   number: 8   part: 4 (from 0)   length: 4 (of the whole record)   content: 492
//! ```
//!
//! The contents of its sectors, joined and cut to the length, are operations:
//!
//! ```text
//! kind: 1 (insert: 0, remove: 1; plus 2 in the table `meta`)   key's length: 2   value's length: 4   key   value
//! ```
//!
//! Integers are big-endian, and records are numbered from 1 on. A file that is used again still has older records behind its newest; their
//! numbers are lower. Where no record has been yet, each sector is a *blank* one, with number 0. The checksum covers all of the
//! sector, its place, and the journal's *salt*, a random number: nothing that somebody stored in a lock can pass for a sector of it, nor
//! a sector for one that belongs elsewhere.
//!
//! ## Torn or damaged
//!
//! A record is written when the one before it is synced. So after a crash at most the last one is not whole, and then it was
//! acknowledged to nobody. But an acknowledged one that the disk has damaged since is not whole either. To take the second for
//! the first is to forget, in silence, what others rely on; to take the first for the second is to give up a member after a
//! power failure. Protocol-aware recovery (Alagappan et al., FAST '18, section 3.3.3) has the problem, and lets a node take part in no election
//! until it knows from the others which of the two it was. That needs a leader, who after a power failure of all nodes is elected by nodes
//! that are all in the same doubt. Here no doubt is left: a disk writes a sector as a whole or not at all, each
//! sector of these files was written by us, and says when. Let `last` be the last record that is whole. What may follow on it begins at one of two
//! sectors: behind it, or at the other file's beginning.
//! * That sector, or another one of the record that it begins, is whole and *older*: the record was never written to its end, so it was
//!   never acknowledged. It is torn.
//! * Otherwise each sector of it was written, and one of them is not whole: the disk has damaged it. The log is refused.
//! * A sector elsewhere that is newer than `last`: its record was begun when the next one was synced, so the next one is damaged.
//!
//! For this to hold, the place of a record is filled, and that is synced, before the record is written, and so is one sector behind it: a file
//! that must grow is filled first. And no number is given twice: an opening skips the number of the record that may be torn, or
//! remains of that one could complete another.
//!
//! ## What remains
//!
//! * A disk that acknowledges a write and never does it shows the older sector, whole: the record looks torn. A disk that loses one
//!   write so loses one group. Three things narrow it: the next record, of which any sector tells on it; the high-water mark; and
//!   an *end* sector (`part` is [`END`]), which the writer adds when it has nothing to do. It says that all up to its number is
//!   acknowledged, in a block of its own. It is not synced, so that no group waits for it: the kernel writes it within half a minute.
//! * Where a sector is not written as a whole (some disks do so when the power fails, memory as a disk does), a torn record looks
//!   damaged, and the log is refused though nothing is lost.
//!
//! One could also give each record blocks of its own (4 KiB), so that a bad block concerns one record. It is not worth eight times the
//! bytes for small groups: what a bad block concerns is refused either way.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{disk::Table, tables::damaged};
use crate::raft::files;

pub(super) mod first_format;

/// What a disk writes as a whole or not at all.
const SECTOR_BYTES: usize = 512;
const HEAD_BYTES: usize = 4 + 8 + 4 + 4;
const CONTENT_BYTES: usize = SECTOR_BYTES - HEAD_BYTES;
/// What a disk, or a file system, loses at once: an end sector is in another block than the record that it vouches for.
const BLOCK_BYTES: u64 = 4096;
/// Files.
const FILES: usize = 2;
/// Sectors that are filled with one write.
const SECTORS_PER_FILL: u64 = 128;
/// The part of a sector that says that all up to its number is acknowledged.
const END: u32 = u32::MAX;

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

/// What was in a journal.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Kept {
    /// Operations, record by record.
    pub(super) records: Vec<Vec<u8>>,
    /// Sectors that are not whole, and that nothing was in which still matters.
    pub(super) spoilt: Vec<Place>,
}

/// The end of a journal, where records are added.
#[derive(Debug)]
pub(super) struct Journal {
    files: [Space; FILES],
    active: usize,
    /// Where the next record begins in the active file.
    end: u64,
    /// The number of the next record.
    next: u64,
    salt: u64,
    /// What the next record says.
    record: Vec<u8>,
    /// Room to cut it into sectors.
    sectors: Vec<u8>,
    /// The last record for which there is an end sector.
    noted: u64,
}

impl Journal {
    /// Makes the files, or makes them anew. What was in them is gone.
    pub(super) fn create(directory: &Path, salt: u64, bytes: u64) -> io::Result<()> {
        for number in 0..FILES {
            let file = File::create(path(directory, number))?;
            Space { file, number, length: 0 }.fill_up_to(room(bytes), salt)?;
        }
        files::sync_directory(directory)
    }

    /// What all records behind this one say.
    pub(super) fn read(directory: &Path, salt: u64, behind: u64) -> io::Result<Kept> {
        let contents = Contents::read(directory, salt)?;
        let (mut records, mut last) = (Vec::new(), behind);
        let mut places = [Place { file: 0, sector: 0 }, Place { file: 1, sector: 0 }];
        while let Some((says, after)) = places.iter().find_map(|place| contents.record(*place, last + 1)) {
            records.push(says);
            last += 1;
            places = [after, Place { file: 1 - after.file, sector: 0 }];
        }
        if let Some(later) = contents.written_after(places, last) {
            return Err(damaged(format!(
                "record {} of its journal cannot be read, and sector {} of `{}` was written after it",
                last + 1,
                later.sector,
                name(later.file)
            )));
        }
        places.into_iter().try_for_each(|place| contents.must_be_torn(place, last))?;
        Ok(Kept { records, spoilt: contents.spoilt() })
    }

    /// Starts anew in the files that are there, with the record of this number. All before it is needed no more.
    pub(super) fn start(directory: &Path, salt: u64, next: u64, bytes: u64, spoilt: &[Place]) -> io::Result<Self> {
        let open = |number| {
            let file = File::options().write(true).open(path(directory, number))?;
            let length = file.metadata()?.len();
            // It may have grown; or somebody has another opinion now on how large it should be.
            let keep = length.min(room(bytes));
            let mut space = Space { file, number, length: keep / SECTOR_BYTES as u64 * SECTOR_BYTES as u64 };
            if length > keep {
                space.file.set_len(keep)?;
            }
            // Or else the next record that is to begin there would be taken for a damaged one.
            let is_here = |place: &&Place| place.file == number && place.sector < space.length / SECTOR_BYTES as u64;
            let spoilt: Vec<_> = spoilt.iter().filter(is_here).collect();
            for place in &spoilt {
                space.fill(place.sector..place.sector + 1, salt)?;
            }
            if length > keep || !spoilt.is_empty() {
                space.file.sync_all()?;
            }
            space.fill_up_to(room(bytes), salt)?;
            Ok::<_, io::Error>(space)
        };
        let files = [open(0)?, open(1)?];
        Ok(Self { files, active: 0, end: 0, next, salt, record: Vec::new(), sectors: Vec::new(), noted: next - 1 })
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
        if self.record.is_empty() {
            return Ok(());
        }
        self.cut_into_sectors();
        let after = self.end + self.sectors.len() as u64;
        let space = &mut self.files[self.active];
        // Room for the record, and for the sector by which one knows that no other follows.
        if after + SECTOR_BYTES as u64 > space.length {
            space.fill_up_to(room(after), self.salt)?;
        }
        space.file.write_all_at(&self.sectors, self.end)?;
        space.file.sync_data()?;
        self.end = after;
        self.next += 1;
        self.record.clear();
        Ok(())
    }

    fn cut_into_sectors(&mut self) {
        let length = u32::try_from(self.record.len()).expect("what waits for the writer is limited to less");
        self.sectors.clear();
        let first = self.end / SECTOR_BYTES as u64;
        for (part, content) in (0..).zip(self.record.chunks(CONTENT_BYTES)) {
            let place = Place { file: self.active, sector: first + u64::from(part) };
            let stamp = Stamp { number: self.next, part, length };
            self.sectors.extend_from_slice(&stamp.sector(content, place, self.salt));
        }
    }

    /// Notes that all up to here is acknowledged, for whoever reads the journal after a crash. It may come to nothing: it is not synced.
    pub(super) fn note_end(&mut self) -> io::Result<()> {
        let space = &self.files[self.active];
        let at = self.end.next_multiple_of(BLOCK_BYTES);
        if self.noted == self.last() || at + SECTOR_BYTES as u64 > space.length {
            return Ok(());
        }
        let place = Place { file: self.active, sector: at / SECTOR_BYTES as u64 };
        let stamp = Stamp { number: self.last(), part: END, length: 0 };
        space.file.write_all_at(&stamp.sector(&[], place, self.salt), at)?;
        self.noted = self.last();
        Ok(())
    }

    /// How much of the active file is used, bytes.
    pub(super) fn used(&self) -> u64 {
        self.end
    }

    /// The number of the last record; that before the first if there was none yet.
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

/// A file of the journal, and how far it is filled with sectors.
#[derive(Debug)]
struct Space {
    file: File,
    number: usize,
    length: u64,
}

impl Space {
    /// Writes blank sectors behind its end, up to this length, durably: to write into what was only reserved would change the file's
    /// metadata, and a sector that was never written would look like a damaged one.
    fn fill_up_to(&mut self, length: u64, salt: u64) -> io::Result<()> {
        if length <= self.length {
            return Ok(());
        }
        let sectors = length.div_ceil(SECTOR_BYTES as u64);
        self.fill(self.length / SECTOR_BYTES as u64..sectors, salt)?;
        self.length = sectors * SECTOR_BYTES as u64;
        self.file.sync_all()
    }

    fn fill(&self, sectors: std::ops::Range<u64>, salt: u64) -> io::Result<()> {
        const BLANK: Stamp = Stamp { number: 0, part: 0, length: 0 };
        let mut bytes = Vec::with_capacity(SECTORS_PER_FILL as usize * SECTOR_BYTES);
        let mut from = sectors.start;
        while from < sectors.end {
            let to = sectors.end.min(from + SECTORS_PER_FILL);
            bytes.clear();
            let blank = |sector| BLANK.sector(&[], Place { file: self.number, sector }, salt);
            (from..to).for_each(|sector| bytes.extend_from_slice(&blank(sector)));
            self.file.write_all_at(&bytes, from * SECTOR_BYTES as u64)?;
            from = to;
        }
        Ok(())
    }
}

/// A sector of the journal's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    file: usize,
    sector: u64,
}

/// What a sector says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    /// Of the record.
    number: u64,
    /// Which of the record's sectors it is.
    part: u32,
    /// Of the record, bytes.
    length: u32,
}

impl Stamp {
    fn sector(self, content: &[u8], place: Place, salt: u64) -> [u8; SECTOR_BYTES] {
        let mut sector = [0; SECTOR_BYTES];
        sector[4..12].copy_from_slice(&self.number.to_be_bytes());
        sector[12..16].copy_from_slice(&self.part.to_be_bytes());
        sector[16..HEAD_BYTES].copy_from_slice(&self.length.to_be_bytes());
        sector[HEAD_BYTES..HEAD_BYTES + content.len()].copy_from_slice(content);
        let checksum = checksum(&sector, place, salt);
        sector[..4].copy_from_slice(&checksum.to_be_bytes());
        sector
    }

    /// That of a sector, if it is whole and belongs here.
    fn read(sector: &[u8], place: Place, salt: u64) -> Option<Self> {
        let sector: &[u8; SECTOR_BYTES] = sector.try_into().ok()?;
        let [c0, c1, c2, c3, n0, n1, n2, n3, n4, n5, n6, n7, p0, p1, p2, p3, l0, l1, l2, l3, ..] = *sector;
        let is_whole = checksum(sector, place, salt) == u32::from_be_bytes([c0, c1, c2, c3]);
        is_whole.then_some(Self {
            number: u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            part: u32::from_be_bytes([p0, p1, p2, p3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// How many sectors the record has.
    fn sectors(self) -> u32 {
        self.length.div_ceil(CONTENT_BYTES as u32)
    }
}

fn checksum(sector: &[u8; SECTOR_BYTES], place: Place, salt: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_be_bytes());
    hasher.update(&(place.file as u64).to_be_bytes());
    hasher.update(&place.sector.to_be_bytes());
    hasher.update(&sector[4..]);
    hasher.finalize()
}

/// What is in the files.
struct Contents {
    bytes: Vec<Vec<u8>>,
    /// What their sectors say; `None`: one that is not whole.
    stamps: Vec<Vec<Option<Stamp>>>,
}

impl Contents {
    fn read(directory: &Path, salt: u64) -> io::Result<Self> {
        let bytes = read_files(directory)?;
        let stamps = |(file, bytes): (usize, &Vec<u8>)| {
            let stamp = |(sector, bytes)| Stamp::read(bytes, Place { file, sector }, salt);
            (0..).zip(bytes.chunks(SECTOR_BYTES)).map(stamp).collect()
        };
        let stamps = bytes.iter().enumerate().map(stamps).collect();
        Ok(Self { bytes, stamps })
    }

    /// The stamp of a sector, if it is whole.
    fn stamp(&self, place: Place) -> Option<Stamp> {
        self.stamps[place.file].get(usize::try_from(place.sector).ok()?).copied().flatten()
    }

    /// The sectors of the record that begins here.
    fn places(begin: Place, stamp: Stamp) -> impl Iterator<Item = (u32, Place)> {
        (0..stamp.sectors()).map(move |part| (part, Place { sector: begin.sector + u64::from(part), ..begin }))
    }

    /// What the record of this number says, if it begins here and is whole, and where the next one would begin.
    fn record(&self, begin: Place, number: u64) -> Option<(Vec<u8>, Place)> {
        let first = self.stamp(begin).filter(|stamp| stamp.number == number && stamp.part == 0)?;
        let mut says = Vec::new();
        for (part, place) in Self::places(begin, first) {
            self.stamp(place).filter(|stamp| *stamp == Stamp { part, ..first })?;
            let at = place.sector as usize * SECTOR_BYTES;
            says.extend_from_slice(&self.bytes[place.file][at + HEAD_BYTES..at + SECTOR_BYTES]);
        }
        says.truncate(first.length as usize);
        Some((says, Place { sector: begin.sector + u64::from(first.sectors()), ..begin }))
    }

    /// A sector that was written after the record that would follow on the `last` one, at one of these places.
    fn written_after(&self, places: [Place; 2], last: u64) -> Option<Place> {
        let is_of_next = |place: Place, stamp: Stamp| {
            let begin = place.sector.checked_sub(stamp.part.into()).map(|sector| Place { sector, ..place });
            stamp.number == last + 1 && stamp.part != END && begin.is_some_and(|begin| places.contains(&begin))
        };
        let is_later = |(place, stamp): &(Place, Option<Stamp>)| {
            stamp.is_some_and(|stamp| stamp.number > last && !is_of_next(*place, stamp))
        };
        self.sectors().find(is_later).map(|(place, _)| place)
    }

    fn sectors(&self) -> impl Iterator<Item = (Place, Option<Stamp>)> {
        self.stamps
            .iter()
            .enumerate()
            .flat_map(|(file, stamps)| (0..).zip(stamps).map(move |(sector, stamp)| (Place { file, sector }, *stamp)))
    }

    /// Checks that a record which would begin here, after the `last` one, is not there because it was never written to its end.
    fn must_be_torn(&self, begin: Place, last: u64) -> io::Result<()> {
        let is_older = |stamp: Stamp| stamp.number <= last;
        let bad = |place: Place| {
            let (record, at, name) = (last + 1, place.sector, name(place.file));
            damaged(format!(
                "record {record} of its journal may have been in sector {at} of `{name}`, which is not as it was written"
            ))
        };
        let Some(first) = self.stamp(begin) else { return Err(bad(begin)) };
        let mut places = Self::places(begin, first).map(|(_, place)| place);
        if is_older(first) || places.any(|place| self.stamp(place).is_some_and(is_older)) {
            return Ok(());
        }
        let spoilt = Self::places(begin, first).map(|(_, place)| place).find(|place| self.stamp(*place).is_none());
        Err(bad(spoilt.unwrap_or(begin)))
    }

    fn spoilt(&self) -> Vec<Place> {
        self.sectors().filter(|(_, stamp)| stamp.is_none()).map(|(place, _)| place).collect()
    }
}

fn read_files(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let read = |number| {
        let path = path(directory, number);
        files::forget_cached(&path).and_then(|()| std::fs::read(path)).map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if is_missing { damaged(format!("its file `{}` is missing", name(number))) } else { error }
        })
    };
    (0..FILES).map(read).collect()
}

fn name(number: usize) -> String {
    format!("journal-{number}")
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(name(number))
}

/// How large a file is that takes so many bytes: the last record may begin just before that.
fn room(bytes: u64) -> u64 {
    (bytes + bytes / 8 + 1).next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
