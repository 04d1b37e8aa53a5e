//! One snapshot file: its format, writing, checking and reading.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use prost::Message;

use crate::messages as pb;
use crate::types::{LogId, SnapshotMeta, StoredMembership};
use crate::wire::{read_trail, write_trail};
use lockkeeper_environment::Blocking;
use lockkeeper_planted::Planted;
use lockkeeper_storage::files;
use lockkeeper_table::{Malformed, Trail};

/// The last byte is the version. Every later format keeps these 8 bytes in front and the checksum of all before it at the end, so that an
/// older program can tell a later format from damage.
const MAGIC: &[u8; 8] = b"LKSNAP\0\x01";
/// Stands in place of a record's length if no record follows.
const END: u32 = u32::MAX;
const CHECKSUM_BYTES: u64 = 4;
/// Size of the read and write buffers.
const BUFFER_BYTES: usize = 256 * 1024;

/// A snapshot on the disk, complete and checked. Clones share the file.
///
/// It stays readable after a newer one replaced it: the file then has no name, but exists as long as this value.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    inner: Arc<OpenedSnapshot>,
}

#[derive(Debug)]
struct OpenedSnapshot {
    meta: SnapshotMeta,
    ids_used: BTreeSet<u64>,
    trail: Trail,
    /// Present until it is dropped.
    file: Option<File>,
    length: u64,
    name: Mutex<Name>,
    blocking: Blocking,
}

#[derive(Debug)]
struct Name {
    path: PathBuf,
    /// Whether this is its final name. Until then the file is deleted when this value is dropped.
    is_published: bool,
}

/// A file that nobody needs any more. The system frees its blocks when it has no name and is closed, whichever comes last: that takes long
/// for a large one, and whoever drops it may be Raft's task.
#[derive(Debug)]
struct DroppedFile {
    file: Option<File>,
    unfinished: Option<PathBuf>,
}

impl Drop for DroppedFile {
    fn drop(&mut self) {
        if let Some(path) = &self.unfinished {
            // If this fails, the next start deletes the file.
            let _ = fs::remove_file(path);
        }
        drop(self.file.take());

        #[cfg(test)]
        tests::DROPPED_HERE.set(tests::DROPPED_HERE.get() + 1);
    }
}

/// Closes a file of a snapshot in the background, and deletes it there if it has the name of an unfinished one.
pub(super) fn drop_file(blocking: Blocking, file: Option<File>, unfinished: Option<PathBuf>) {
    blocking.discard("drop-snapshot", DroppedFile { file, unfinished });
}

/// The records of a snapshot, in the order in which they were written.
#[derive(Debug)]
pub struct Records {
    input: BufReader<ReadAt>,
    is_over: bool,
}

impl SnapshotFile {
    /// The last entry and the membership that the snapshot covers.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.inner.meta
    }

    /// The ids of all members that the cluster had up to its last entry.
    pub fn ids_used(&self) -> &BTreeSet<u64> {
        &self.inner.ids_used
    }

    /// How far the audit trail goes there.
    pub fn trail(&self) -> Trail {
        self.inner.trail
    }

    /// The size of the whole file, bytes.
    pub fn length(&self) -> u64 {
        self.inner.length
    }

    /// The file's bytes from an offset on: at most `bytes_max`, none at its end. For sending them to a peer.
    pub fn read_at(&self, offset: u64, bytes_max: usize) -> io::Result<Bytes> {
        let bytes = bytes_max.min(usize::try_from(self.inner.length.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut buffer = vec![0; bytes];
        self.inner.file().read_exact_at(&mut buffer, offset)?;
        Ok(buffer.into())
    }

    /// The records.
    pub fn records(&self) -> io::Result<Records> {
        let file = self.inner.file().try_clone()?;
        let mut input = BufReader::with_capacity(BUFFER_BYTES, ReadAt { file, offset: 0, end: self.inner.length });
        read_header(&mut input)?;
        Ok(Records { input, is_over: false })
    }

    /// Opens a snapshot in a data directory that no node uses, and checks all of it. Changes nothing.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::check(path, true, Blocking::OnThreads)
    }

    /// How this node waits for files.
    pub(crate) fn blocking(&self) -> Blocking {
        self.inner.blocking
    }

    pub(super) fn index(&self) -> u64 {
        self.inner.meta.last_log_id.map_or(0, |id| id.index)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.inner.name().path.clone()
    }

    /// Renames the file to its final name, durably.
    pub(super) fn publish_as(&self, path: &Path) -> io::Result<()> {
        let mut name = self.inner.name();
        files::publish(&name.path, path)?;
        *name = Name { path: path.to_owned(), is_published: true };
        Ok(())
    }

    /// Opens a file and checks all of it. Unless it is published already, the file is deleted when its last clone is dropped.
    pub(super) fn check(path: &Path, is_published: bool, blocking: Blocking) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let (meta, ids_used, trail) = check(&file, length)?;
        let file = Some(file);
        let name = Mutex::new(Name { path: path.to_owned(), is_published });
        Ok(Self { inner: Arc::new(OpenedSnapshot { meta, ids_used, trail, file, length, name, blocking }) })
    }
}

impl OpenedSnapshot {
    fn name(&self) -> MutexGuard<'_, Name> {
        // Replaced in one step, so it is consistent even if another thread panicked.
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("it is taken only when the snapshot is dropped")
    }
}

/// openraft drops a snapshot that it does not need on its own task, and the last reader of one that was replaced is a task of Raft's too.
impl Drop for OpenedSnapshot {
    fn drop(&mut self) {
        let unfinished = {
            let name = self.name();
            (!name.is_published).then(|| name.path.clone())
        };
        drop_file(self.blocking, self.file.take(), unfinished);
    }
}

impl Iterator for Records {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let mut record = Vec::new();
        let record = read_record(&mut self.input, &mut record).map(|is_one| is_one.then_some(record)).transpose();
        // After an error the position in the file is unknown.
        self.is_over = !matches!(record, Some(Ok(_)));
        record
    }
}

/// Writes a whole file and syncs it. Its name is not durable yet.
pub(super) fn write(
    path: &Path,
    meta: &SnapshotMeta,
    ids_used: &BTreeSet<u64>,
    trail: Trail,
    records: impl Iterator<Item = Vec<u8>>,
) -> io::Result<()> {
    let output = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
    let mut output = Summed { inner: output, hasher: crc32fast::Hasher::new() };
    let header = pb::SnapshotFileHeader {
        last_log_id: meta.last_log_id.as_ref().map(pb::LogId::from),
        membership: Some((&meta.last_membership).into()),
        ids_used: ids_used.iter().copied().collect(),
        audit: write_trail(trail),
    };

    output.write_all(MAGIC)?;
    write_piece(&mut output, &header.encode_to_vec())?;
    let mut count: u64 = 0;
    for record in records {
        write_piece(&mut output, &record)?;
        count += 1;
    }

    write_end(&mut output, count)?;
    let checksum = output.hasher.finalize();
    let mut output = output.inner;
    output.write_all(&checksum.to_be_bytes())?;
    let output = output.into_inner().map_err(io::IntoInnerError::into_error)?;
    sync(&output)
}

/// Makes the content of a file durable.
pub(super) fn sync(file: &File) -> io::Result<()> {
    if Planted::SnapshotNotSynced.is_on() { Ok(()) } else { file.sync_all().map_err(files::unsynced) }
}

/// Writes what stands after the last record.
pub(crate) fn write_end(output: &mut impl Write, count: u64) -> io::Result<()> {
    output.write_all(&END.to_be_bytes())?;
    output.write_all(&count.to_be_bytes())
}

/// Writes the header or a record, with its length.
pub(crate) fn write_piece(output: &mut impl Write, piece: &[u8]) -> io::Result<()> {
    let length = u32::try_from(piece.len()).ok().filter(|length| *length != END);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a record of 4 GiB or more"))?;
    output.write_all(&length.to_be_bytes())?;
    output.write_all(piece)
}

/// The header of a file: its metadata, the ids of all members that the cluster had, and the end of the audit trail.
type SnapshotHeader = (SnapshotMeta, BTreeSet<u64>, Trail);

/// Checks a whole file in one pass; returns its header.
fn check(file: &File, length: u64) -> io::Result<SnapshotHeader> {
    let Some(end) = length.checked_sub(CHECKSUM_BYTES) else { return Err(broken("it is cut short")) };
    let input = BufReader::with_capacity(BUFFER_BYTES, ReadAt { file: file.try_clone()?, offset: 0, end });
    let mut input = Summed { inner: input, hasher: crc32fast::Hasher::new() };
    let header = check_records(&mut input);
    // The checksum is decisive: errors of the records of a damaged file mean nothing.
    io::copy(&mut input, &mut io::sink())?;
    let mut checksum = [0; CHECKSUM_BYTES as usize];
    file.read_exact_at(&mut checksum, end)?;
    if input.hasher.finalize().to_be_bytes() == checksum { header } else { Err(broken("its checksum does not match")) }
}

fn check_records(input: &mut impl Read) -> io::Result<SnapshotHeader> {
    let header = read_header(input)?;
    let mut count = 0;
    let mut record = Vec::new();
    while read_record(input, &mut record)? {
        count += 1;
    }

    let mut expected = [0; 8];
    input.read_exact(&mut expected)?;
    if u64::from_be_bytes(expected) == count && input.read(&mut [0])? == 0 {
        Ok(header)
    } else {
        Err(broken("its number of records differs from the one that it states"))
    }
}

fn read_header(input: &mut impl Read) -> io::Result<SnapshotHeader> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;

    let name = &magic[..MAGIC.len() - 1];
    let version = magic[MAGIC.len() - 1];
    if *name == MAGIC[..MAGIC.len() - 1] && version != MAGIC[MAGIC.len() - 1] {
        let text = format!(
            "it has format {version}, and this program reads format {}: {}",
            MAGIC[MAGIC.len() - 1],
            files::OTHER_FORMAT
        );
        return Err(files::unknown_format(text));
    }
    if magic != *MAGIC {
        return Err(broken("it is not a snapshot"));
    }

    let mut header = Vec::new();
    if !read_record(input, &mut header)? {
        return Err(broken("it has no header"));
    }
    let header = pb::SnapshotFileHeader::decode(&*header).map_err(|why| broken(&why.to_string()))?;

    let membership = header.membership.ok_or_else(|| broken("it has no membership"))?;
    let last_membership: StoredMembership = membership.try_into().map_err(|why: Malformed| broken(&why.to_string()))?;
    let members = last_membership.membership().nodes().map(|(id, _)| *id);
    let ids_used = header.ids_used.into_iter().chain(members).collect();
    let meta = SnapshotMeta { last_log_id: header.last_log_id.map(LogId::from), last_membership };
    Ok((meta, ids_used, read_trail(header.audit)))
}

/// Reads the next record into `record`. Returns whether there was one.
pub(crate) fn read_record(input: &mut impl Read, record: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    record.clear();

    if length == END {
        return Ok(false);
    }

    // Read in steps, so that a wrong length cannot allocate more than the file holds.
    if input.take(length.into()).read_to_end(record)? == length as usize {
        Ok(true)
    } else {
        Err(broken("a record of it is cut short"))
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reads from a position of its own: clones of a file share theirs.
#[derive(Debug)]
struct ReadAt {
    file: File,
    offset: u64,
    end: u64,
}

impl Read for ReadAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let bytes = buffer.len().min(rest);
        let bytes = self.file.read_at(&mut buffer[..bytes], self.offset)?;
        self.offset += bytes as u64;
        Ok(bytes)
    }
}

/// Computes the checksum of everything written or read through it.
struct Summed<T> {
    inner: T,
    hasher: crc32fast::Hasher,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, thread, time::Duration};

    use super::*;
    use crate::snapshot::SnapshotStore;

    thread_local! {
        /// The files that this thread closed and deleted.
        pub(super) static DROPPED_HERE: Cell<u32> = const { Cell::new(0) };
    }

    const PAUSE: Duration = Duration::from_millis(10);
    /// Only a failing test waits so often.
    const PAUSES_MAX: u32 = 2_000;

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).expect("readable").count()
    }

    fn until_none_is_left(directory: &Path) {
        let mut pauses = 0;
        while names(directory) > 0 {
            assert!(pauses < PAUSES_MAX, "a file is left");
            pauses += 1;
            thread::park_timeout(PAUSE);
        }
        assert_eq!(DROPPED_HERE.get(), 0, "files dropped by this thread");
    }

    /// openraft drops a snapshot that it does not need on the task that sends heartbeats.
    #[test]
    fn files_of_snapshots_are_deleted_in_the_background() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = SnapshotStore::open(directory.path()).expect("a new one");
        let meta = SnapshotMeta::default();

        let path = directory.path().join("received.partial");
        write(&path, &meta, &BTreeSet::new(), Trail::default(), [vec![1; 1000]].into_iter()).expect("written");
        let unneeded = SnapshotFile::check(&path, false, Blocking::OnThreads).expect("whole");
        assert_eq!(names(directory.path()), 1);
        drop(unneeded);
        until_none_is_left(directory.path());

        let mut broken_off = store.receive(meta, 1000).expect("begun");
        broken_off.write(&[1; 500]).expect("written");
        assert_eq!(names(directory.path()), 1);
        drop(broken_off);
        until_none_is_left(directory.path());
    }
}
