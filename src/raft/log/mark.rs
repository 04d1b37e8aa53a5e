//! The high-water mark: how far the log had come, noted outside of sled.
//!
//! A log that lost its end, or all of itself, looks like a log that never had more. Its node would then vote a second time in a
//! term, and count towards a majority for entries that it no longer has. So a small file beside the database says what has been
//! durable: the vote, and the last entry. It is written now and then, always *after* what it says is durable. At each start
//! the log must reach it.
//!
//! Entries may go again: an entry that was never committed is truncated. The mark is then lowered, durably, *before* the
//! truncation. So at any moment it is at or below the truth.
//!
//! It is not written at every flush, since it costs as much as one. What it guards for certain are votes, of which there are few, a
//! log that was closed in order, and all but the last [`ENTRIES_PER_MARK`] entries of any other.

use std::{fs, io, path::PathBuf};

use prost::Message;

use super::memory::next_index;
use crate::{
    proto::internal as pb,
    raft::{
        files,
        types::{LogId, Vote},
    },
};

/// The mark is written anew once the log has grown by so many entries.
pub(super) const ENTRIES_PER_MARK: u64 = 1000;

const VERSION: u8 = 1;
const CONTEXT: &[u8] = b"high-water mark";

/// How far a log had come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark {
    pub(super) vote: Option<Vote>,
    /// The last entry, or the last one purged.
    pub(super) last: Option<LogId>,
}

/// The mark's file.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    written: Mark,
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
        let message = files::unseal(VERSION, CONTEXT, &sealed).map_err(|why| bad(why.to_string()))?;
        let mark = pb::LogMark::decode(message).map_err(|why| bad(why.to_string()))?;
        let written = Mark { vote: mark.vote.map(Vote::from), last: mark.last.map(LogId::from) };
        Ok(Some(Self { path, written }))
    }

    /// Makes the file of a new log.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let mut file = Self { path, written: Mark::default() };
        file.write(Mark::default())?;
        Ok(file)
    }

    /// What the file says.
    pub(super) fn mark(&self) -> &Mark {
        &self.written
    }

    /// Notes what has become durable, if that is news.
    pub(super) fn update(&mut self, mark: Mark) -> io::Result<()> {
        match mark == self.written {
            true => Ok(()),
            false => self.write(mark),
        }
    }

    /// Entries after this one are about to be removed.
    pub(super) fn lower(&mut self, after: Option<&LogId>) -> io::Result<()> {
        match next_index(self.written.last.as_ref()) > next_index(after) {
            true => self.write(Mark { last: after.copied(), vote: self.written.vote }),
            false => Ok(()),
        }
    }

    /// Whether a log that ends here has grown enough for a new mark.
    pub(super) fn is_due(&self, last: Option<&LogId>) -> bool {
        next_index(last) >= next_index(self.written.last.as_ref()) + ENTRIES_PER_MARK
    }

    fn write(&mut self, mark: Mark) -> io::Result<()> {
        let message =
            pb::LogMark { vote: mark.vote.as_ref().map(pb::Vote::from), last: mark.last.as_ref().map(pb::LogId::from) };
        files::replace(&self.path, &files::seal(VERSION, CONTEXT, &message.encode_to_vec()))?;
        self.written = mark;
        Ok(())
    }
}
