//! Which entry of the log.

use std::fmt;

/// The id of a log entry: the term of the leader that wrote it, and its index. Ordered as the log is.
///
/// The table asks no more of a log than that entries come in the order of their ids, each once. It is written as `TERM.INDEX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct EntryId {
    /// The term.
    pub term: u64,
    /// The index.
    pub index: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}
