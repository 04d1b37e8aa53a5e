//! Reading a file of rules or tokens: the position of a problem.

use std::ops::Range;

use serde::de::DeserializeOwned;

/// The maximum size of a file in bytes. A node reads the file again and again, so a larger one is refused.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// A file cannot be used. Nothing in it takes effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PolicyFileError {
    /// The line, from 1 on.
    pub line: usize,
    /// The problem and the remedy.
    pub problem: String,
}

impl PolicyFileError {
    /// A problem at this position of the text.
    pub(crate) fn at(text: &str, span: &Range<usize>, problem: impl Into<String>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        Self { line: 1 + before.matches('\n').count(), problem: problem.into() }
    }
}

/// Reads TOML. Fails at an unknown key, a missing one, and a value of another type.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, PolicyFileError> {
    if text.len() > FILE_BYTES_MAX {
        let problem = format!("the file has {} bytes: the limit is {FILE_BYTES_MAX}", text.len());
        return Err(PolicyFileError { line: 1, problem });
    }
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        // Only the first line of the message is kept. The rest may show the text, and the text of a token file belongs in no
        // log.
        let problem = error.message().lines().next().unwrap_or("cannot be read").to_owned();
        PolicyFileError::at(text, &span, problem)
    })
}
