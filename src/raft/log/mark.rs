//! The high-water mark: how far the log reached, recorded outside of sled.
//!
//! A log that lost its end, or everything, looks like a log that never had more. Its node would then vote a second time in a term, and
//! count towards a majority for entries that it no longer has. So a small file beside the database records the durable vote and the last
//! durable entry. It is written from time to time, always *after* its content is durable in the log. At each start the log must reach it.
//!
//! Entries that were never committed may be truncated. The mark is then lowered, durably, *before* the truncation. So it is always at or
//! below the end of the log.
//!
//! It is not written at every flush, since it costs as much as one. It reliably protects votes, which are rare, a log that was closed in
//! order, and all but the last [`ENTRIES_PER_MARK`] entries of any other.

use std::{fs, io, path::PathBuf};

use prost::Message;

use super::memory::next_index;
use crate::messages as pb;
use crate::types::{LogId, Vote};
use lockkeeper_storage::files;

/// The mark is rewritten once the log has grown by this many entries.
pub(super) const ENTRIES_PER_MARK: u64 = 1000;

const VERSION: u8 = 1;
const CONTEXT: &[u8] = b"high-water mark";

/// A position that the log reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LogMark {
    pub(super) vote: Option<Vote>,
    /// The last entry, or the last one purged.
    pub(super) last: Option<LogId>,
}

/// The mark's file.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    written: LogMark,
}

impl MarkFile {
    /// Reads the mark; `None` if the file does not exist.
    pub(super) fn read(path: PathBuf) -> io::Result<Option<Self>> {
        let sealed = match fs::read(&path) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };

        let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let message = files::unseal(VERSION, CONTEXT, &sealed).map_err(|why| match why {
            files::SealError::Version { .. } => files::unsealable("it", &why),
            files::SealError::Short | files::SealError::Checksum => bad(why.to_string()),
        })?;

        let mark = pb::LogMark::decode(message).map_err(|why| bad(why.to_string()))?;
        let written = LogMark { vote: mark.vote.map(Vote::from), last: mark.last.map(LogId::from) };
        Ok(Some(Self { path, written }))
    }

    /// Creates the file for a new log.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let mut file = Self { path, written: LogMark::default() };
        file.write(LogMark::default())?;
        Ok(file)
    }

    /// The content of the file.
    pub(super) fn mark(&self) -> &LogMark {
        &self.written
    }

    /// Records a new durable position; does nothing if it is unchanged.
    pub(super) fn update(&mut self, mark: LogMark) -> io::Result<()> {
        if mark == self.written { Ok(()) } else { self.write(mark) }
    }

    /// Lowers the mark before entries after this one are removed.
    pub(super) fn lower(&mut self, after: Option<&LogId>) -> io::Result<()> {
        if next_index(self.written.last.as_ref()) > next_index(after) {
            self.write(LogMark { last: after.copied(), vote: self.written.vote })
        } else {
            Ok(())
        }
    }

    /// Whether a log that ends here has grown enough for a new mark.
    pub(super) fn is_due(&self, last: Option<&LogId>) -> bool {
        next_index(last) >= next_index(self.written.last.as_ref()) + ENTRIES_PER_MARK
    }

    fn write(&mut self, mark: LogMark) -> io::Result<()> {
        let message =
            pb::LogMark { vote: mark.vote.as_ref().map(pb::Vote::from), last: mark.last.as_ref().map(pb::LogId::from) };
        files::replace(&self.path, &files::seal(VERSION, CONTEXT, &message.encode_to_vec()))?;
        self.written = mark;
        Ok(())
    }
}
