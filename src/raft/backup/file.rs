//! A backup file: its format, writing and reading.
//!
//! ```text
//! magic and version, 8 bytes
//! blocks with checksums, see `blocks`, whose bytes together are:
//!     length of the header, 4 bytes      header: a BackupHeader
//!     length of a record, 4 bytes        record of the table, as in a snapshot      (any number of times)
//!     0xffffffff                         number of records, 8 bytes
//! ```
//!
//! Numbers are big-endian. Every byte of the file is covered by a checksum, a comparison or a count. It is written from beginning to end
//! without knowing its size, so a node can send it while it makes it.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use prost::Message;

use super::blocks::{BadBlock, BlockReader, BlockWriter};
use crate::{
    apply::state_machine,
    identity::ClusterId,
    messages as pb,
    snapshot::{SnapshotFile, read_piece, write_end, write_piece},
    types::{self, LogId, StoredMembership},
    wire::{read_trail, write_trail},
};
use lockkeeper_machine::{Machine, Record, WallTime};
use lockkeeper_table::{Applied, AppliedVersion, codec::records};

/// The last byte is the version.
const MAGIC: &[u8; 8] = b"LKBACK\0\x01";
/// The magic of a node's own snapshots, without the version.
const SNAPSHOT_MAGIC: &[u8] = b"LKSNAP\0";

/// What a backup says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupHeader {
    /// The cluster that it is of.
    pub cluster_id: ClusterId,
    /// The node that wrote it.
    pub node_id: u64,
    /// The version of that node's program.
    pub version: String,
    /// When it was written, by that node's wall clock.
    pub created: WallTime,
    /// It was taken without a quorum: entries that were acknowledged before may be missing.
    pub is_stale: bool,
}

/// A backup that was read and checked.
#[derive(Debug)]
pub struct BackupFile {
    /// `None` if the file is a node's own snapshot, which does not say.
    pub header: Option<BackupHeader>,
    /// The table, its last entry, and the members then.
    pub applied: Applied,
    /// The size of the file, bytes.
    pub bytes: u64,
}

/// Why a file cannot be used as a backup. It was not changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is something else.
    #[error(
        "{} is not a backup: {what}; name a file that `lockkeeper snapshot save` wrote, or a snapshot from a data directory",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason why it is not a backup.
        what: &'static str,
    },
    /// The file differs from what was written.
    #[error(
        "the backup {} is damaged: from byte {at} on, {what}; nothing of it can be used: take another copy of it, or an earlier backup",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage lies at this byte or after it.
        at: u64,
        /// The damage.
        what: String,
    },
    /// The file is as it was written, but this program does not understand it.
    #[error(
        "the backup {} cannot be used by this version of the program ({what}): use the version that wrote it{}, or a later one",
        .path.display(), .version.as_ref().map(|version| format!(", {version}")).unwrap_or_default()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// What is not understood.
        what: String,
        /// The version of the program that wrote it, if it is known.
        version: Option<String>,
    },
    /// The operating system returned an error.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes a backup of this table. Each `write_all` of the output gets at most [`BLOCK_BYTES_MAX`](super::BLOCK_BYTES_MAX) bytes and a few
/// more. Fails as the output does.
pub fn write(mut output: impl Write, header: &BackupHeader, applied: &Applied) -> io::Result<()> {
    output.write_all(MAGIC)?;
    let mut output = BlockWriter::new(output);
    let header = pb::BackupHeader {
        cluster_id: header.cluster_id.as_str().into(),
        node_id: header.node_id,
        version: header.version.clone(),
        created_wall_ms: header.created.0,
        stale: header.is_stale,
        last_log_id: applied.last_entry.map(|entry| pb::LogId::from(&types::log_id(entry))),
        membership: Some((&types::to_stored(&applied.membership)).into()),
        audit: write_trail(applied.trail),
    };
    write_piece(&mut output, &header.encode_to_vec())?;

    let mut count = 0;
    for record in applied.machine.records() {
        write_piece(&mut output, &records::encode(&record))?;
        count += 1;
    }

    write_end(&mut output, count)?;
    output.finish()?;
    Ok(())
}

/// A backup without its table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupSummary {
    /// The header of the file.
    pub header: BackupHeader,
    /// The last entry that its table contains.
    pub log_id: Option<LogId>,
    /// The size of the file, bytes.
    pub bytes: u64,
}

/// A file, whose bytes are counted as they are read.
struct Counting<'a> {
    file: File,
    count: &'a AtomicU64,
}

impl Read for Counting<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.count.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

/// Checks that a file is a whole backup, without making its table. Blocks. Adds the bytes to `count` as it reads them.
pub fn check(path: &Path, count: &AtomicU64) -> Result<BackupSummary, BackupError> {
    let failed = |source| BackupError::Io { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    expect_magic(path, &mut file)?;

    let mut blocks = BlockReader::new(BufReader::new(Counting { file, count }), MAGIC.len() as u64);
    let header = read_header(&mut blocks);

    // Damage anywhere counts more than a header that is not understood.
    let checked = io::copy(&mut blocks, &mut io::sink()).and_then(|_| blocks.finish());
    let bytes = checked.map_err(|error| explain(path, 0, error))?;
    let (header, content) = header.map_err(|unread| unread.explain(path, 0))?;
    Ok(BackupSummary { header, log_id: content.last_log_id.map(LogId::from), bytes })
}

impl BackupFile {
    /// Reads a backup, or a node's own snapshot. Its table is in memory then. Blocks.
    pub fn read(path: &Path) -> Result<Self, BackupError> {
        Self::read_counting(path, &AtomicU64::default())
    }

    /// The same; adds the bytes of a backup to `count` as it reads them. Those of a snapshot are not counted.
    pub fn read_counting(path: &Path, count: &AtomicU64) -> Result<Self, BackupError> {
        let failed = |source| BackupError::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = [0; SNAPSHOT_MAGIC.len()];
        let is_snapshot = file.read_exact(&mut magic).is_ok() && magic == SNAPSHOT_MAGIC;
        if is_snapshot {
            return Self::read_snapshot(path);
        }

        let mut file = File::open(path).map_err(failed)?;
        expect_magic(path, &mut file)?;
        let mut blocks = BlockReader::new(BufReader::new(Counting { file, count }), MAGIC.len() as u64);

        let read = read_content(&mut blocks);
        let at = blocks.at();
        let rest = match &read {
            Err(UnreadBackup { why: Why::Io(_), .. }) => Ok(at),
            // The blocks up to here are as they were written; so must the rest be before anything else is blamed.
            Err(UnreadBackup { why: Why::Unknown(_), .. }) => {
                io::copy(&mut blocks, &mut io::sink()).and_then(|_| blocks.finish())
            }
            Ok(_) => blocks.finish(),
        };

        let bytes = rest.map_err(|error| explain(path, at, error))?;
        let (header, applied) = read.map_err(|unread| unread.explain(path, at))?;
        Ok(Self { header: Some(header), applied, bytes })
    }

    fn read_snapshot(path: &Path) -> Result<Self, BackupError> {
        let file = SnapshotFile::open(path).map_err(|error| explain(path, 0, error))?;
        let bytes = file.length();
        let unknown =
            |error: io::Error| BackupError::Newer { path: path.to_owned(), what: error.to_string(), version: None };
        let applied = state_machine::read(&file, &AppliedVersion::default()).map_err(unknown)?;
        Ok(Self { header: None, applied, bytes })
    }
}

/// Why the content of sound blocks was not read.
struct UnreadBackup {
    why: Why,
    version: Option<String>,
}

enum Why {
    Io(io::Error),
    /// The blocks are sound, and say something that this program does not know.
    Unknown(String),
}

impl From<io::Error> for UnreadBackup {
    fn from(error: io::Error) -> Self {
        Self { why: Why::Io(error), version: None }
    }
}

impl UnreadBackup {
    fn unknown(what: impl ToString) -> Self {
        Self { why: Why::Unknown(what.to_string()), version: None }
    }

    fn explain(self, path: &Path, at: u64) -> BackupError {
        match self.why {
            Why::Io(error) => explain(path, at, error),
            Why::Unknown(what) => BackupError::Newer { path: path.to_owned(), what, version: self.version },
        }
    }
}

/// The header, as it is and as a message.
fn read_header(input: &mut impl Read) -> Result<(BackupHeader, pb::BackupHeader), UnreadBackup> {
    let mut header = Vec::new();
    if !read_content_piece(input, &mut header)? {
        return Err(UnreadBackup::unknown("it has no header"));
    }
    let header = pb::BackupHeader::decode(&*header).map_err(UnreadBackup::unknown)?;

    let said = BackupHeader {
        cluster_id: header.cluster_id.parse().map_err(UnreadBackup::unknown)?,
        node_id: header.node_id,
        version: header.version.clone(),
        created: WallTime(header.created_wall_ms),
        is_stale: header.stale,
    };
    Ok((said, header))
}

fn read_content(input: &mut impl Read) -> Result<(BackupHeader, Applied), UnreadBackup> {
    let (said, header) = read_header(input)?;
    match read_table(input, header) {
        Ok(applied) => Ok((said, applied)),
        Err(unread) => Err(UnreadBackup { version: Some(said.version), ..unread }),
    }
}

fn read_table(input: &mut impl Read, header: pb::BackupHeader) -> Result<Applied, UnreadBackup> {
    let membership = header.membership.ok_or_else(|| UnreadBackup::unknown("it has no membership"))?;
    let membership: StoredMembership = membership.try_into().map_err(UnreadBackup::unknown)?;
    let last_entry = header.last_log_id.map(|last| types::entry_id(LogId::from(last)));
    let trail = read_trail(header.audit);

    let mut failed = None;
    let mut count = 0_u64;
    let mut bytes = Vec::new();
    let records = std::iter::from_fn(|| {
        let record = match read_content_piece(input, &mut bytes) {
            Ok(true) => decode(&bytes),
            Ok(false) => return None,
            Err(error) => Err(error),
        };
        count += 1;
        record.map_err(|why| failed = Some(why)).ok()
    });

    let machine = Machine::from_records(records);
    if let Some(failed) = failed {
        return Err(failed);
    }
    let machine = machine.map_err(UnreadBackup::unknown)?;

    let mut expected = [0; 8];
    input.read_exact(&mut expected).map_err(cut_short)?;
    if u64::from_be_bytes(expected) != count {
        return Err(UnreadBackup::unknown("its number of records differs from the one that it states"));
    }

    // A cluster that is made from the backup does not know earlier members.
    let ids_used = membership.membership().nodes().map(|(id, _)| *id).collect();
    Ok(Applied { machine, last_entry, membership: types::to_applied(&membership), ids_used, trail })
}

/// Fails on a record that this program does not know, or whose cluster version it does not support.
fn decode(bytes: &[u8]) -> Result<Record, UnreadBackup> {
    let record = records::decode(bytes).map_err(UnreadBackup::unknown)?;
    AppliedVersion::default().check_record(&record).map_err(UnreadBackup::unknown)?;
    Ok(record)
}

fn read_content_piece(input: &mut impl Read, piece: &mut Vec<u8>) -> Result<bool, UnreadBackup> {
    read_piece(input, piece).map_err(cut_short)
}

/// Sound blocks that end too early were written so.
fn cut_short(error: io::Error) -> UnreadBackup {
    let is_bad_block = error.get_ref().is_some_and(|why| why.is::<BadBlock>());
    if error.kind() == io::ErrorKind::UnexpectedEof {
        UnreadBackup::unknown("its records are incomplete")
    } else if error.kind() == io::ErrorKind::InvalidData && !is_bad_block {
        UnreadBackup::unknown(error)
    } else {
        error.into()
    }
}

fn expect_magic(path: &Path, file: &mut File) -> Result<(), BackupError> {
    let foreign = |what| BackupError::Foreign { path: path.to_owned(), what };
    let mut magic = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(|error| explain(path, 0, error))?;
    let (kind, version) = MAGIC.split_at(MAGIC.len() - 1);

    match magic.len() {
        0 => Err(foreign("it is empty")),
        8 if magic == MAGIC => Ok(()),
        8 if magic.starts_with(kind) => {
            let found = magic[kind.len()];
            let known = version[0];
            let what = format!("it has format {found}, this program knows {known}");
            Err(BackupError::Newer { path: path.to_owned(), what, version: None })
        }
        8 => Err(foreign("it does not begin like one")),
        _ if MAGIC.starts_with(&magic) => {
            let at = magic.len() as u64;
            Err(BackupError::Damaged { path: path.to_owned(), at, what: "it is cut short".into() })
        }
        _ => Err(foreign("it does not begin like one")),
    }
}

/// Tells damage, with its place, from an error of the system.
fn explain(path: &Path, at: u64, error: io::Error) -> BackupError {
    let path = path.to_owned();
    if let Some(bad) = error.get_ref().and_then(|why| why.downcast_ref::<BadBlock>()) {
        return BackupError::Damaged { path, at: bad.at, what: bad.what.into() };
    }
    if [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof].contains(&error.kind()) {
        BackupError::Damaged { path, at, what: error.to_string() }
    } else {
        BackupError::Io { path, source: error }
    }
}

#[cfg(test)]
mod tests;
