//! The files of an audit directory: `audit-<number of the first line, 20 digits>.jsonl`.
//!
//! Each file begins with a [`AuditHeader`] on a line of its own. The header belongs to the file and not to the chain.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::chain::{Hash, Head, split};
use lockkeeper_planted::Planted;

/// How the names of the files begin.
pub const AUDIT_PREFIX: &str = "audit-";
const SUFFIX: &str = ".jsonl";
const FORMAT: u32 = 1;
/// The maximum number of lines of a chain. A line's number therefore always has a next one.
const LINES_MAX: u64 = u64::MAX / 2;
/// The maximum length of a line in bytes. Names, labels and reasons have at most some KiB.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// The first line of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditHeader {
    /// The format of the file.
    pub lockkeeper_audit: u32,
    /// The id of the cluster.
    pub cluster: String,
    /// The number of the line of the chain after which the file goes on.
    pub after: u64,
    /// The hash of that line.
    pub hash: Hash,
    /// The last token that was issued before the file.
    pub token: u64,
    /// The last ticket that was issued before the file.
    pub ticket: u64,
    /// The first line before this file that is missing on this node. All lines from it up to `after` are missing, because
    /// the node got a snapshot instead of the log's entries.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gap_from: Option<u64>,
}

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is not an audit file.
    #[error("{} is not an audit file: {why}; name files that a node wrote into its audit directory", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The fault in it.
        why: String,
    },
    /// Another process writes audit files into the directory.
    #[error("another process writes audit files into {}: give each node a directory of its own under [audit]", .0.display())]
    InUse(PathBuf),
    /// The file belongs to another cluster.
    #[error(
        "the audit file {} belongs to the cluster {found:?}, not {own:?}: name another directory under [audit], or move its files away",
        .path.display()
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The cluster that it belongs to.
        found: String,
        /// The cluster of this node.
        own: String,
    },
    /// The operating system returned an error.
    #[error("cannot use the audit file {}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl FileError {
    /// Whether the content is wrong, and not the access to it.
    fn is_damage(&self) -> bool {
        match self {
            Self::Foreign { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            Self::InUse(_) | Self::OtherCluster { .. } => false,
        }
    }

    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// The audit files in a directory, sorted by name.
pub fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(AUDIT_PREFIX) && name.ends_with(SUFFIX) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file line by line.
#[derive(Debug)]
pub struct Reader {
    /// The path of the file.
    pub path: PathBuf,
    /// The header of the file.
    pub header: AuditHeader,
    /// The number of the last line that was read. The header is line 1.
    pub at: u64,
    /// The number of bytes up to the end of that line.
    pub bytes: u64,
    input: BufReader<File>,
    text: Vec<u8>,
}

impl Reader {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(FileError::io(path))?;

        let foreign = |why: String| FileError::Foreign { path: path.to_owned(), why };

        let mut reader = Self {
            path: path.to_owned(),
            header: AuditHeader::new("", Head::default(), 0, 0, None),
            at: 0,
            bytes: 0,
            input: BufReader::with_capacity(256 * 1024, file),
            text: Vec::new(),
        };

        let header = reader.next().map_err(FileError::io(path))?.ok_or_else(|| foreign("it is empty".into()))?;
        let header: AuditHeader =
            serde_json::from_str(header).map_err(|error| foreign(format!("its first line: {error}")))?;

        if header.lockkeeper_audit != FORMAT {
            return Err(foreign(format!("its format is {}, not {FORMAT}", header.lockkeeper_audit)));
        }
        if header.after > LINES_MAX {
            let after = header.after;
            return Err(foreign(format!(
                "it goes on after line {after}, and no chain has more than {LINES_MAX} lines"
            )));
        }

        Ok(Self { header, ..reader })
    }

    /// The next line without its end, or `None` at the end of the file. A last line without an end of line was not written
    /// completely, and does not count.
    #[expect(clippy::should_implement_trait, reason = "it lends its buffer")]
    pub fn next(&mut self) -> io::Result<Option<&str>> {
        self.text.clear();
        // Bounded, since a file that no node wrote may have no end of line.
        (&mut self.input).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.text)?;

        if self.text.pop() != Some(b'\n') {
            if self.text.len() as u64 + 1 >= LINE_BYTES_MAX {
                let what =
                    format!("line {} has more than {LINE_BYTES_MAX} bytes: no node writes a longer one", self.at + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            return Ok(None);
        }

        self.at += 1;
        self.bytes += self.text.len() as u64 + 1;

        let text = str::from_utf8(&self.text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some(text))
    }

    /// The number and the hash of the last complete line, found without reading the lines before it. For a file without lines,
    /// those of the header.
    pub(super) fn tail(path: &Path) -> Result<Head, FileError> {
        let header = Self::open(path)?.header;

        let mut file = File::open(path).map_err(FileError::io(path))?;
        let length = file.metadata().map_err(FileError::io(path))?.len();
        // The last line may be incomplete: two of the longest have a complete one.
        let from = length.saturating_sub(2 * LINE_BYTES_MAX);

        let mut text = Vec::new();
        file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut text)).map_err(FileError::io(path))?;

        let end = text.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
        let begin = text[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);

        let head = str::from_utf8(&text[begin..end]).ok().and_then(|line| {
            let (content, hash) = split(line)?;
            Some(Head { lines: super::AuditLine::parse(&content).ok()?.line, hash })
        });

        Ok(head.unwrap_or(Head { lines: header.after, hash: header.hash }))
    }
}

impl AuditHeader {
    pub(super) fn new(cluster: &str, head: Head, token: u64, ticket: u64, gap_from: Option<u64>) -> Self {
        let Head { lines: after, hash } = head;
        Self { lockkeeper_audit: FORMAT, cluster: cluster.to_owned(), after, hash, token, ticket, gap_from }
    }
}

/// When a file is full, and how many files are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// The size in bytes at which a file gets no further lines.
    pub file_bytes: u64,
    /// The number of files that are kept, including the one that is written. 0 keeps all.
    pub files_kept: usize,
}

/// A place in the chain, and the state of the table with which a file from this place on begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Position {
    pub(super) head: Head,
    pub(super) token: u64,
    pub(super) ticket: u64,
}

/// Writes the files of a directory.
#[derive(Debug)]
pub(super) struct AuditWriter {
    directory: PathBuf,
    /// The directory, locked to keep other writers out.
    lock: File,
    cluster: String,
    rotation: Rotation,
    /// The path of the file that is written, the file, and its size in bytes. Without one, the next line begins a new file.
    open: Option<(PathBuf, File, u64)>,
    /// The last line in the files.
    pub(super) last: Option<Head>,
    /// Something may have been written that is not synced.
    pub(super) is_dirty: bool,
}

impl AuditWriter {
    /// Opens or creates a directory, and locks it. Cuts an incomplete line at the end of the last file.
    pub(super) fn open(directory: &Path, cluster: &str, rotation: Rotation) -> Result<Self, FileError> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(FileError::io(directory))?;

        let lock = File::open(directory).map_err(FileError::io(directory))?;
        lock.try_lock().map_err(|not_locked| match not_locked {
            TryLockError::WouldBlock => FileError::InUse(directory.to_owned()),
            TryLockError::Error(source) => FileError::Io { path: directory.to_owned(), source },
        })?;

        let mut writer = Self {
            directory: directory.to_owned(),
            lock,
            cluster: cluster.to_owned(),
            rotation,
            open: None,
            last: None,
            is_dirty: false,
        };

        let mut files = files_in(directory).map_err(FileError::io(directory))?;
        let mut is_unreadable = false;
        while let Some(path) = files.pop() {
            match writer.resume(&path)? {
                Resumed::Found => break,
                Resumed::Removed => {}
                Resumed::Unreadable => is_unreadable = true,
            }
        }

        // The lines after an unreadable file are not those after the file before it, so that file does not go on.
        if is_unreadable {
            writer.open = None;
        }

        Ok(writer)
    }

    /// Continues a file, if its header can be read.
    fn resume(&mut self, path: &Path) -> Result<Resumed, FileError> {
        let file = OpenOptions::new().read(true).append(true).open(path).map_err(FileError::io(path))?;
        let length = file.metadata().map_err(FileError::io(path))?.len();

        let mut reader = match Reader::open(path) {
            Err(FileError::Foreign { .. }) if length == 0 || !has_line(path).map_err(FileError::io(path))? => {
                tracing::warn!(file = %path.display(), "removed an audit file that was not begun completely");
                fs::remove_file(path).map_err(FileError::io(path))?;
                return Ok(Resumed::Removed);
            }
            Err(error) if error.is_damage() && is_ours(path).map_err(FileError::io(path))? => {
                tracing::error!(%error, "the header of the audit file was changed; the file is left as it is, and a new one is begun");
                return Ok(Resumed::Unreadable);
            }
            opened => opened?,
        };

        if reader.header.cluster != self.cluster {
            let found = reader.header.cluster;
            let own = self.cluster.clone();
            return Err(FileError::OtherCluster { path: path.to_owned(), found, own });
        }

        let mut head = Head { lines: reader.header.after, hash: reader.header.hash };
        let mut end = reader.bytes;

        loop {
            let changed = match reader.next() {
                Ok(None) => break,
                Ok(Some(text)) => head.follow(text).err().map(|bad| bad.to_string()),
                // A line that is not text, or too long: the disk returned other bytes than were written.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(error.to_string()),
                Err(error) => return Err(FileError::io(path)(error)),
            };

            if let Some(what) = changed {
                // The file is not cut here. Somebody changed it, and what it contains is evidence.
                let file = path.display();
                let after = head.lines;
                tracing::error!(%file, after, "the audit file was changed after this line: {what}; a new file is begun");
                self.last = Some(head);
                return Ok(Resumed::Found);
            }
            end = reader.bytes;
        }

        if end < length {
            let cut = length - end;
            let path = path.display();
            tracing::warn!(file = %path, bytes = cut, "cut an incomplete line at the end of the audit file; it is written again");
            file.set_len(end).and_then(|()| file.sync_all()).map_err(FileError::io(&self.directory))?;
        }

        self.last = Some(head);
        self.open = Some((path.to_owned(), file, end));
        // The process before may have ended without a sync of its last lines. They count as written, so the next sync includes them.
        self.is_dirty = !Planted::AuditLinesNeverSynced.is_on();

        Ok(Resumed::Found)
    }

    /// Writes lines that follow `from`. `to` is the head after the last of them.
    pub(super) fn write(&mut self, from: Position, lines: &[u8], to: Head) -> Result<(), FileError> {
        if self.last.is_none_or(|last| last != from.head) {
            // This is the first line, or there is a gap, or the file was changed.
            let gap_from = self.last.filter(|last| last.lines != from.head.lines).map(|last| last.lines + 1);
            let gap_from = gap_from.or_else(|| (self.last.is_none() && from.head.lines > 0).then_some(1));
            self.begin(from, gap_from)?;
        } else if self.open.as_ref().is_none_or(|(_, _, bytes)| *bytes >= self.rotation.file_bytes) {
            self.begin(from, None)?;
        }

        let Some((path, file, bytes)) = &mut self.open else { return Ok(()) };
        file.write_all(lines).map_err(FileError::io(path))?;
        *bytes += lines.len() as u64;

        self.last = Some(to);
        self.is_dirty = true;

        Ok(())
    }

    fn begin(&mut self, from: Position, gap_from: Option<u64>) -> Result<(), FileError> {
        self.sync()?;

        if let Some(gap_from) = gap_from {
            let to = from.head.lines;
            let directory = self.directory.display();
            tracing::warn!(%directory, from = gap_from, to, "these audit lines are missing on this node: it got a snapshot instead");
        }

        let path = self.path(from.head.lines + 1);
        let mut file =
            OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path).map_err(FileError::io(&path))?;

        let header = AuditHeader::new(&self.cluster, from.head, from.token, from.ticket, gap_from);
        let mut text = serde_json::to_vec(&header).expect("a header is written to memory");
        text.push(b'\n');

        file.write_all(&text).map_err(FileError::io(&path))?;

        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(FileError::io(&self.directory))?;

        self.open = Some((path, file, text.len() as u64));
        self.is_dirty = true;

        self.drop_oldest()
    }

    /// The path of a file that begins with this line. If a changed file has the name already, a number is added. Sorted by name, the file
    /// comes after the changed one.
    fn path(&self, line: u64) -> PathBuf {
        let name = |again: u32| match again {
            0 => format!("{AUDIT_PREFIX}{line:020}{SUFFIX}"),
            _ => format!("{AUDIT_PREFIX}{line:020}_{again:04}{SUFFIX}"),
        };
        (0..).map(|again| self.directory.join(name(again))).find(|path| !path.exists()).expect("a name is free")
    }

    fn drop_oldest(&self) -> Result<(), FileError> {
        if self.rotation.files_kept == 0 {
            return Ok(());
        }
        let files = files_in(&self.directory).map_err(FileError::io(&self.directory))?;
        let surplus = files.len().saturating_sub(self.rotation.files_kept);
        files[..surplus].iter().try_for_each(|path| fs::remove_file(path).map_err(FileError::io(path)))
    }

    /// Makes everything that was written durable.
    pub(super) fn sync(&mut self) -> Result<(), FileError> {
        if let (true, Some((path, file, _))) = (self.is_dirty, &self.open) {
            file.sync_data().map_err(FileError::io(path))?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        // Closing is not enough. A process that another thread has just forked has the file, too, until it calls `exec`.
        let _ = self.lock.unlock();
    }
}

/// What came of a file that was in the directory already.
enum Resumed {
    /// The chain goes on after its last sound line.
    Found,
    /// It had not even a header, and was removed.
    Removed,
    /// Its header cannot be read. It stays as evidence, and nothing is known of its lines.
    Unreadable,
}

/// Whether this is a file that a node wrote, however damaged: it begins like each audit file, or has the name of one. A file of another
/// program is not, nor is one of another format.
fn is_ours(path: &Path) -> io::Result<bool> {
    let own = format!("{{\"lockkeeper_audit\":{FORMAT},");
    let mut begin = Vec::new();
    File::open(path)?.take(own.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == own.as_bytes() || has_own_name(path) && !begin.starts_with(b"{\"lockkeeper_audit\":"))
}

/// Whether a file is named as `AuditWriter::path` names files.
fn has_own_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbered = name.strip_prefix(AUDIT_PREFIX).and_then(|name| name.strip_suffix(SUFFIX)).unwrap_or_default();
    let (line, again) = numbered.split_once('_').unwrap_or((numbered, "0"));

    line.len() == 20 && [line, again].iter().all(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn has_line(path: &Path) -> io::Result<bool> {
    let mut text = Vec::new();
    File::open(path)?.take(LINE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text.contains(&b'\n'))
}
