//! The reasons why a history cannot be read.

use std::io;

/// The reason why a history cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It could not be read to its end.
    #[error("the history cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The error, for people.
        what: String,
    },
}

impl ReadError {
    pub(super) fn line(line: usize, what: impl Into<String>) -> Self {
        Self::Line { line, what: what.into() }
    }
}
