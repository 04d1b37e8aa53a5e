//! The journal: the write-ahead log in front of sled, with one write and one fsync for each group commit.
//!
//! sled needs some milliseconds for a group of writes: it wakes the threads that write its segments, and its file grows, so each sync
//! also writes the file's size. The journal's files do not grow. There are two, filled beforehand; one takes records until it is full,
//! then the other, while the records of the first are [moved into sled](super::journaled).
//!
//! A record is a group of operations. It begins at a sector, and each of its sectors has a header that names the record:
//!
//! ```text
//! checksum: 4   number: 8   part: 4 (from 0)   length: 4 (of the whole record)   content: 492
//! ```
//!
//! The contents of its sectors, joined and cut to the length, are operations:
//!
//! ```text
//! kind: 1 (insert: 0, remove: 1; plus 2 in the tree `meta`)   key's length: 2   value's length: 4   key   value
//! ```
//!
//! Integers are big-endian, and records are numbered from 1. A file that is reused still has older records, with lower numbers, after its
//! newest. Sectors without a record yet are *blank*, with number 0. The checksum covers the whole sector, its place, and the journal's
//! *salt*, a random number: data that a client stores in a lock cannot pass for a sector, nor a sector for one at another place.
//!
//! ## Torn or damaged
//!
//! A record is written after the previous one is synced. So after a crash at most the last record is incomplete, and it was never
//! acknowledged: it is *torn*. But an acknowledged record that the disk has *damaged* since is incomplete too. Taking damage for a torn
//! record silently forgets entries that others rely on; taking a torn record for damage gives up a member after a power failure.
//! Protocol-aware recovery (Alagappan et al., FAST '18, section 3.3.3) has the same problem, and keeps a node out of elections until the
//! others tell it which case it was. That needs a leader, which after a power failure of all nodes must be elected by nodes that are all
//! in the same doubt. Here the two cases can be told apart: a disk writes a sector as a whole or not at all, each sector of these files
//! was written by us, and its header tells when. Let `last` be the last complete record. The next record begins at one of two sectors:
//! after `last`, or at the start of the other file.
//! * That sector, or another one of the record that it begins, is valid and *older*: the record was not written completely, so it was
//!   never acknowledged. It is torn.
//! * Otherwise each of its sectors was written, and one is invalid: the disk damaged it. The log is refused.
//! * A sector elsewhere is newer than `last`: its record was begun after the next one was synced, so the next one is damaged.
//!
//! This requires that the space of a record, and one sector after it, is filled and synced before the record is written: a file that must
//! grow is filled first. It also requires that no number is used twice: an opening skips the number of the record that may be torn, since
//! its remains could complete another record.
//!
//! ## What remains
//!
//! * A disk that acknowledges a write and never does it leaves the older sector, valid: the record looks torn. A disk that loses one
//!   write thus loses one group. Three things narrow this: any sector of the next record reveals it; the high-water mark; and an *end*
//!   sector (`part` is [`END`]), which the writer adds when it is idle. An end sector says, in a block of its own, that all records up to
//!   its number are acknowledged. It is not synced, so that no group waits for it: the kernel writes it within half a minute.
//! * Where a sector is not written atomically (some disks when the power fails, memory used as a disk), a torn record looks damaged, and
//!   the log is refused though nothing is lost.
//!
//! An alternative is to give each record blocks of its own (4 KiB), so that a bad block concerns one record. It is not worth eight times
//! the bytes for small groups: a bad block is refused either way.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{disk::Tree, files::damaged};
use crate::files;
use lockkeeper_planted::Planted;

pub(super) mod first_format;

/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;
const HEAD_BYTES: usize = 4 + 8 + 4 + 4;
const CONTENT_BYTES: usize = SECTOR_BYTES - HEAD_BYTES;
/// The unit that a disk or a file system may lose. An end sector is in another block than the record that it confirms.
const BLOCK_BYTES: u64 = 4096;
/// The number of the journal's files.
const FILES: usize = 2;
/// The number of sectors that are filled with one write.
const SECTORS_PER_FILL: u64 = 128;
/// The `part` of an end sector. It says that all records up to its number are acknowledged.
const END: u32 = u32::MAX;

const REMOVE: u8 = 1;
const META: u8 = 2;

/// A change of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TreeOperation<'a> {
    pub(super) tree: Tree,
    pub(super) key: &'a [u8],
    /// The new value, or `None` if the key is removed.
    pub(super) value: Option<&'a [u8]>,
}

/// The content of a journal.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct JournalContent {
    /// The operations of each record, encoded.
    pub(super) records: Vec<Vec<u8>>,
    /// The invalid sectors. They held nothing that is still needed.
    pub(super) spoilt: Vec<SectorPlace>,
}

/// The end of a journal, where records are appended.
#[derive(Debug)]
pub(super) struct Journal {
    files: [FilledFile; FILES],
    active: usize,
    /// The offset of the next record in the active file.
    end: u64,
    /// The number of the next record.
    next: u64,
    salt: u64,
    /// The encoded operations of the next record.
    record: Vec<u8>,
    /// A buffer for the sectors of a record.
    sectors: Vec<u8>,
    /// The number of the last record that has an end sector.
    noted: u64,
}

impl Journal {
    /// Creates or recreates the files. Their previous content is lost.
    pub(super) fn create(directory: &Path, salt: u64, bytes: u64) -> io::Result<()> {
        for number in 0..FILES {
            let file = File::create(path(directory, number))?;
            FilledFile { file, number, length: 0 }.fill_up_to(room(bytes), salt)?;
        }
        files::sync_directory(directory)
    }

    /// Reads all records with numbers above `behind`.
    pub(super) fn read(directory: &Path, salt: u64, behind: u64) -> io::Result<JournalContent> {
        Self::read_bytes(read_files(directory)?, salt, behind)
    }

    /// Reads all records above `behind` from the content of both files.
    pub(super) fn read_bytes(bytes: Vec<Vec<u8>>, salt: u64, behind: u64) -> io::Result<JournalContent> {
        let contents = JournalContents::from_bytes(bytes, salt);

        let mut records = Vec::new();
        let mut last = behind;
        let mut places = [SectorPlace { file: 0, sector: 0 }, SectorPlace { file: 1, sector: 0 }];

        while let Some((says, after)) = places.iter().find_map(|place| contents.record(*place, last + 1)) {
            records.push(says);
            last += 1;
            places = [after, SectorPlace { file: 1 - after.file, sector: 0 }];
        }

        if let Some(later) = contents.written_after(places, last) {
            return Err(damaged(format!(
                "record {} of its journal cannot be read, and sector {} of `{}` was written after it",
                last + 1,
                later.sector,
                name(later.file)
            )));
        }

        if !Planted::DamageTakenForTear.is_on() {
            places.into_iter().try_for_each(|place| contents.must_be_torn(place, last))?;
        }
        Ok(JournalContent { records, spoilt: contents.spoilt() })
    }

    /// Continues in the existing files, with a record of this number. All earlier records are no longer needed.
    pub(super) fn start(
        directory: &Path,
        salt: u64,
        next: u64,
        bytes: u64,
        spoilt: &[SectorPlace],
    ) -> io::Result<Self> {
        let open = |number| {
            let file = File::options().write(true).open(path(directory, number))?;
            let length = file.metadata()?.len();
            // The file may have grown, or its configured size may have changed.
            let keep = length.min(room(bytes));

            let mut space = FilledFile { file, number, length: keep / SECTOR_BYTES as u64 * SECTOR_BYTES as u64 };
            if length > keep {
                space.file.set_len(keep)?;
            }

            // Blank the invalid sectors. Otherwise the next record that begins there would look damaged.
            let is_here =
                |place: &&SectorPlace| place.file == number && place.sector < space.length / SECTOR_BYTES as u64;
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
    pub(super) fn add(&mut self, operation: TreeOperation<'_>) {
        let TreeOperation { tree, key, value } = operation;
        let kind = if value.is_none() { REMOVE } else { 0 } | if tree == Tree::Meta { META } else { 0 };
        let value = value.unwrap_or_default();
        self.record.push(kind);
        self.record.extend_from_slice(&u16::try_from(key.len()).expect("keys are short").to_be_bytes());
        self.record.extend_from_slice(&u32::try_from(value.len()).expect("values are chunks").to_be_bytes());
        self.record.extend_from_slice(key);
        self.record.extend_from_slice(value);
    }

    /// Writes the next record, unless it is empty, and returns once it is durable.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        if self.record.is_empty() {
            return Ok(());
        }

        self.cut_into_sectors();
        let after = self.end + self.sectors.len() as u64;
        let space = &mut self.files[self.active];
        // There must be room for the record and for one sector after it, which shows that no other record follows.
        let end = if Planted::JournalWithoutEnd.is_on() { 0 } else { SECTOR_BYTES as u64 };
        if after + end > space.length {
            space.fill_up_to(room(after), self.salt)?;
        }

        space.file.write_all_at(&self.sectors, self.end)?;
        if !Planted::JournalNotSynced.is_on() {
            space.file.sync_data()?;
        }

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
            let place = SectorPlace { file: self.active, sector: first + u64::from(part) };
            let header = SectorHeader { number: self.next, part, length };
            self.sectors.extend_from_slice(&header.sector(content, place, self.salt));
        }
    }

    /// Writes an end sector, which says that all records up to here are acknowledged. It is not synced, so it may be lost.
    pub(super) fn note_end(&mut self) -> io::Result<()> {
        let space = &self.files[self.active];
        let at = self.end.next_multiple_of(BLOCK_BYTES);
        if self.noted == self.last() || at + SECTOR_BYTES as u64 > space.length {
            return Ok(());
        }
        let place = SectorPlace { file: self.active, sector: at / SECTOR_BYTES as u64 };
        let header = SectorHeader { number: self.last(), part: END, length: 0 };
        space.file.write_all_at(&header.sector(&[], place, self.salt), at)?;
        self.noted = self.last();
        Ok(())
    }

    /// The number of bytes used in the active file.
    pub(super) fn used(&self) -> u64 {
        self.end
    }

    /// The number of the last record. Without one yet, it is one less than that of the first.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Continues in the other file, whose records must no longer be needed.
    pub(super) fn switch(&mut self) {
        self.active = (self.active + 1) % FILES;
        self.end = 0;
    }
}

/// The changes of one record, in order.
pub(super) fn operations(says: &[u8]) -> impl Iterator<Item = io::Result<TreeOperation<'_>>> {
    let mut rest = says;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let operation = take(&mut rest).ok_or_else(|| damaged("a record of its journal cannot be decoded"));

        if operation.is_err() {
            rest = &[];
        }

        Some(operation)
    })
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<TreeOperation<'a>> {
    let (&[kind, k0, k1, v0, v1, v2, v3], after) = rest.split_first_chunk()?;
    let (key, after) = after.split_at_checked(u16::from_be_bytes([k0, k1]).into())?;
    let (value, after) = after.split_at_checked(u32::from_be_bytes([v0, v1, v2, v3]) as usize)?;
    *rest = after;
    let tree = if kind & META == 0 { Tree::Log } else { Tree::Meta };
    (kind <= REMOVE | META).then_some(TreeOperation { tree, key, value: (kind & REMOVE == 0).then_some(value) })
}

/// A file of the journal, and the length that is filled with sectors.
#[derive(Debug)]
struct FilledFile {
    file: File,
    number: usize,
    length: u64,
}

impl FilledFile {
    /// Appends blank sectors up to this length, durably. Writing into merely reserved space would change the file's metadata, and a
    /// sector that was never written would look damaged.
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
        const BLANK: SectorHeader = SectorHeader { number: 0, part: 0, length: 0 };
        let mut bytes = Vec::with_capacity(SECTORS_PER_FILL as usize * SECTOR_BYTES);
        let mut from = sectors.start;

        while from < sectors.end {
            let to = sectors.end.min(from + SECTORS_PER_FILL);
            bytes.clear();
            let blank = |sector| BLANK.sector(&[], SectorPlace { file: self.number, sector }, salt);
            (from..to).for_each(|sector| bytes.extend_from_slice(&blank(sector)));

            self.file.write_all_at(&bytes, from * SECTOR_BYTES as u64)?;
            from = to;
        }
        Ok(())
    }
}

/// The place of a sector in the journal's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SectorPlace {
    file: usize,
    sector: u64,
}

/// A sector's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SectorHeader {
    /// The record's number.
    number: u64,
    /// The sector's position in the record.
    part: u32,
    /// The record's length in bytes.
    length: u32,
}

impl SectorHeader {
    fn sector(self, content: &[u8], place: SectorPlace, salt: u64) -> [u8; SECTOR_BYTES] {
        let mut sector = [0; SECTOR_BYTES];
        sector[4..12].copy_from_slice(&self.number.to_be_bytes());
        sector[12..16].copy_from_slice(&self.part.to_be_bytes());
        sector[16..HEAD_BYTES].copy_from_slice(&self.length.to_be_bytes());
        sector[HEAD_BYTES..HEAD_BYTES + content.len()].copy_from_slice(content);
        let checksum = checksum(&sector, place, salt);
        sector[..4].copy_from_slice(&checksum.to_be_bytes());
        sector
    }

    /// Reads a sector's header. Returns `None` if the sector is invalid or belongs to another place.
    fn read(sector: &[u8], place: SectorPlace, salt: u64) -> Option<Self> {
        let sector: &[u8; SECTOR_BYTES] = sector.try_into().ok()?;
        let [c0, c1, c2, c3, n0, n1, n2, n3, n4, n5, n6, n7, p0, p1, p2, p3, l0, l1, l2, l3, ..] = *sector;
        let is_whole = checksum(sector, place, salt) == u32::from_be_bytes([c0, c1, c2, c3]);
        is_whole.then_some(Self {
            number: u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            part: u32::from_be_bytes([p0, p1, p2, p3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// The number of sectors of the record.
    fn sectors(self) -> u32 {
        self.length.div_ceil(CONTENT_BYTES as u32)
    }
}

fn checksum(sector: &[u8; SECTOR_BYTES], place: SectorPlace, salt: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_be_bytes());
    hasher.update(&(place.file as u64).to_be_bytes());
    hasher.update(&place.sector.to_be_bytes());
    hasher.update(&sector[4..]);
    hasher.finalize()
}

/// The content of both files.
struct JournalContents {
    bytes: Vec<Vec<u8>>,
    /// The headers of the files' sectors. An invalid sector has none.
    headers: Vec<Vec<Option<SectorHeader>>>,
}

impl JournalContents {
    fn from_bytes(bytes: Vec<Vec<u8>>, salt: u64) -> Self {
        let headers = |(file, bytes): (usize, &Vec<u8>)| {
            let header = |(sector, bytes)| SectorHeader::read(bytes, SectorPlace { file, sector }, salt);
            (0..).zip(bytes.chunks(SECTOR_BYTES)).map(header).collect()
        };
        let headers = bytes.iter().enumerate().map(headers).collect();
        Self { bytes, headers }
    }

    /// The header of a sector, if it is valid.
    fn header(&self, place: SectorPlace) -> Option<SectorHeader> {
        self.headers[place.file].get(usize::try_from(place.sector).ok()?).copied().flatten()
    }

    /// The sectors of the record that begins here.
    fn places(begin: SectorPlace, header: SectorHeader) -> impl Iterator<Item = (u32, SectorPlace)> {
        (0..header.sectors()).map(move |part| (part, SectorPlace { sector: begin.sector + u64::from(part), ..begin }))
    }

    /// The operations of the record with this number, if it begins here and is complete, and the place after it.
    fn record(&self, begin: SectorPlace, number: u64) -> Option<(Vec<u8>, SectorPlace)> {
        let first = self.header(begin).filter(|header| header.number == number && header.part == 0)?;
        let mut says = Vec::new();
        for (part, place) in Self::places(begin, first) {
            self.header(place).filter(|header| *header == SectorHeader { part, ..first })?;
            let at = place.sector as usize * SECTOR_BYTES;
            says.extend_from_slice(&self.bytes[place.file][at + HEAD_BYTES..at + SECTOR_BYTES]);
        }
        says.truncate(first.length as usize);
        Some((says, SectorPlace { sector: begin.sector + u64::from(first.sectors()), ..begin }))
    }

    /// A sector that was written after the record that would follow `last` at one of these places.
    fn written_after(&self, places: [SectorPlace; 2], last: u64) -> Option<SectorPlace> {
        let is_of_next = |place: SectorPlace, header: SectorHeader| {
            let begin = place.sector.checked_sub(header.part.into()).map(|sector| SectorPlace { sector, ..place });
            header.number == last + 1 && header.part != END && begin.is_some_and(|begin| places.contains(&begin))
        };
        let is_later = |(place, header): &(SectorPlace, Option<SectorHeader>)| {
            header.is_some_and(|header| header.number > last && !is_of_next(*place, header))
        };
        self.sectors().find(is_later).map(|(place, _)| place)
    }

    fn sectors(&self) -> impl Iterator<Item = (SectorPlace, Option<SectorHeader>)> {
        self.headers.iter().enumerate().flat_map(|(file, headers)| {
            (0..).zip(headers).map(move |(sector, header)| (SectorPlace { file, sector }, *header))
        })
    }

    /// Checks that a record which would begin here, after `last`, is missing because it was never written completely.
    fn must_be_torn(&self, begin: SectorPlace, last: u64) -> io::Result<()> {
        let is_older = |header: SectorHeader| header.number <= last;

        let bad = |place: SectorPlace| {
            let record = last + 1;
            let at = place.sector;
            let name = name(place.file);
            damaged(format!(
                "record {record} of its journal may have been in sector {at} of `{name}`, which is damaged"
            ))
        };

        let Some(first) = self.header(begin) else { return Err(bad(begin)) };

        let mut places = Self::places(begin, first).map(|(_, place)| place);
        if is_older(first) || places.any(|place| self.header(place).is_some_and(is_older)) {
            return Ok(());
        }

        let spoilt = Self::places(begin, first).map(|(_, place)| place).find(|place| self.header(*place).is_none());
        Err(bad(spoilt.unwrap_or(begin)))
    }

    fn spoilt(&self) -> Vec<SectorPlace> {
        self.sectors().filter(|(_, header)| header.is_none()).map(|(place, _)| place).collect()
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

/// The size of a file for this many bytes of records. The last record may begin just before that limit.
fn room(bytes: u64) -> u64 {
    (bytes + bytes / 8 + 1).next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
