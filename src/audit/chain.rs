//! The chain: each line's hash covers the line and the hash before it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::line::AuditLine;
use lockkeeper_planted::Planted;

/// The text between a line's own fields and its hash.
const HASH_FIELD: &str = ",\"hash\":\"";
/// The text after the hash.
const END: &str = "\"}";
/// The number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 64;

/// A hash of the chain. Its text has 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Hash(pub [u8; 32]);

/// The end of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// The number of lines.
    pub lines: u64,
    /// The hash of the last line. Without lines, it is the hash of the cluster's name.
    pub hash: Hash,
}

/// A line that does not continue its chain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadLine {
    /// The text is not an audit line.
    #[error("it is not an audit line: {0}")]
    Malformed(String),
    /// The line's number does not follow.
    #[error("its number is {found}, after {before}: lines are missing, or were moved")]
    Number {
        /// The number that it has.
        found: u64,
        /// The number of the line before.
        before: u64,
    },
    /// The line's hash is not the one of its content and of the line before.
    #[error("its hash does not fit its content and the line before: one of them was changed")]
    Hash,
}

impl Head {
    /// The head of a chain without lines.
    pub fn genesis(cluster_id: &str) -> Self {
        let hash = Sha256::new().chain_update("lockkeeper audit\n").chain_update(cluster_id);
        Self { lines: 0, hash: Hash(hash.finalize().into()) }
    }

    /// Gives a line the next number, and appends its text to `text`, with its hash and the end of the line.
    pub fn push(&mut self, mut line: AuditLine<'_>, text: &mut Vec<u8>) {
        line.line = self.lines + 1;
        let from = text.len();
        line.write(text);
        self.hash = self.hash.next(&text[from..]);
        self.lines += 1;

        // The hash is the last field of the object, so the object's closing brace goes.
        text.pop();
        text.extend_from_slice(HASH_FIELD.as_bytes());
        self.hash.write(text);
        text.extend_from_slice(END.as_bytes());
        text.push(b'\n');
    }

    /// Adds a line, given without its end of line, to the chain and returns it.
    pub fn follow(&mut self, text: &str) -> Result<AuditLine<'static>, BadLine> {
        let (content, hash) =
            split(text).ok_or_else(|| BadLine::Malformed("its last field is not a hash".to_owned()))?;
        let line = AuditLine::parse(&content).map_err(|error| BadLine::Malformed(error.to_string()))?;
        if line.line != self.lines.saturating_add(1) {
            return Err(BadLine::Number { found: line.line, before: self.lines });
        }
        if self.hash.next(content.as_bytes()) != hash {
            return Err(BadLine::Hash);
        }
        *self = Self { lines: line.line, hash };
        Ok(line)
    }
}

/// A line's own fields as an object, and its hash.
pub(super) fn split(text: &str) -> Option<(String, Hash)> {
    let text = text.strip_suffix(END)?;
    let (rest, hash) = text.split_at_checked(text.len().checked_sub(HASH_DIGITS)?)?;
    Some((format!("{}}}", rest.strip_suffix(HASH_FIELD)?), hash.parse().ok()?))
}

impl Hash {
    fn next(self, content: &[u8]) -> Self {
        let before = if Planted::AuditLinesUnchained.is_on() { [0; 32] } else { self.0 };
        Self(Sha256::new().chain_update(before).chain_update(content).finalize().into())
    }

    fn write(self, text: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in self.0 {
            text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a hash.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a hash: give 64 hexadecimal digits, as `lockkeeper status -o json` shows them")]
pub struct NoHash(String);

impl FromStr for Hash {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut hash = [0; 32];
        let is_read = text.len() == HASH_DIGITS
            && text.as_bytes().chunks_exact(2).zip(&mut hash).all(|(pair, byte)| {
                let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return false };
                *byte = high << 4 | low;
                true
            });
        if is_read { Ok(Self(hash)) } else { Err(NoHash(text.to_owned())) }
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::AuditEvent;

    fn chain(count: u64) -> (Head, Vec<String>) {
        let mut head = Head::genesis("test");
        let mut text = Vec::new();
        for index in 1..=count {
            head.push(AuditLine { index, ..AuditLine::new(AuditEvent::Note) }, &mut text);
        }
        (head, String::from_utf8(text).unwrap().lines().map(str::to_owned).collect())
    }

    #[test]
    fn what_is_pushed_is_followed_to_the_same_head() {
        let (head, lines) = chain(3);
        let mut again = Head::genesis("test");
        for (line, index) in lines.iter().zip(1..) {
            assert_eq!(again.follow(line).unwrap().index, index);
        }
        assert_eq!(again, head);
        assert_eq!(Head::genesis("other").follow(&lines[0]), Err(BadLine::Hash));
    }

    /// The format of files that exist: these bytes must not change.
    #[test]
    fn the_text_and_the_hash_of_a_line_stay_as_they_are() {
        let (_, lines) = chain(1);
        let expected = concat!(r#"{"line":1,"index":1,"stamp_ms":0,"what":"note","hash":""#, "HASH", r#""}"#);
        let (content, hash) = split(&lines[0]).unwrap();
        assert_eq!(lines[0], expected.replace("HASH", &hash.to_string()));
        assert_eq!(content, r#"{"line":1,"index":1,"stamp_ms":0,"what":"note"}"#);
    }

    #[test]
    fn a_changed_removed_or_moved_line_breaks_the_chain_there() {
        let (_, lines) = chain(3);
        let broken = |lines: &[&str]| {
            let mut head = Head::genesis("test");
            lines.iter().zip(1..).find_map(|(line, at)| head.follow(line).err().map(|bad| (at, bad)))
        };
        let edited = lines[1].replace("\"stamp_ms\":0", "\"stamp_ms\":9");
        assert_eq!(broken(&[&lines[0], &edited, &lines[2]]), Some((2, BadLine::Hash)));
        assert_eq!(broken(&[&lines[0], &lines[2]]), Some((2, BadLine::Number { found: 3, before: 1 })));
        assert_eq!(broken(&[&lines[1], &lines[0]]), Some((1, BadLine::Number { found: 2, before: 0 })));
        assert!(matches!(broken(&[&lines[0], "{}"]), Some((2, BadLine::Malformed(_)))));
        assert_eq!(broken(&[&lines[0], &lines[1], &lines[2]]), None);
    }
}
