//! A unit: commands that run at one moment and commit together, and its way to the node that runs it.
//!
//! A unit is one command, some commands of a pipeline, a script, or what EXEC runs. The node of the connection makes it, the leader's node
//! runs it ([`Engine`]), and the outcome comes back as bytes.

mod engine;
mod messages;
mod needs;
mod running;
mod turns;
mod wire;

use std::sync::Arc;

use crate::{RedisReply, RedisStoreError};

pub(crate) use engine::{Engine, EngineParts};
pub(crate) use running::REPLY_BYTES_MAX;
use wire::{WireReader, WireWriter};

/// The version of the bytes of units and outcomes.
const FORM: u8 = 1;
/// Parts of a reply within parts: a script may return 128 tables within tables, and the innermost has elements.
const DEPTH_MAX: usize = 129;

/// Commands that run at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandUnit {
    /// The database that is selected at its begin.
    pub(crate) database: u8,
    /// The text that is shown as the holder of locks that the unit makes.
    pub(crate) holder: String,
    /// Entries that must be as they were, by their keys in the store, with their revisions. 0 means that there was none.
    pub(crate) watched: Vec<(Vec<u8>, u64)>,
    /// Whether it is one transaction for its client. The commands of a pipeline only happen to run together.
    pub(crate) is_transaction: bool,
    /// What runs, in this order.
    pub(crate) calls: Vec<UnitCall>,
}

/// One command of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnitCall {
    /// A command of the keyspace, with its arguments.
    Command(Vec<Vec<u8>>),
    /// A script.
    Script(ScriptInvocation),
}

/// A script with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptInvocation {
    /// The text of the script. The node that remembers it shares it with all its invocations.
    pub(crate) source: Arc<[u8]>,
    pub(crate) sha1: String,
    /// The keys that it declares.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Its other arguments.
    pub(crate) arguments: Vec<Vec<u8>>,
    /// Whether it may write nothing.
    pub(crate) is_read_only: bool,
}

/// What became of a unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum UnitOutcome {
    /// It ran, and its writes are committed.
    Done {
        /// A reply for each call.
        replies: Vec<RedisReply>,
        /// The database that is selected now.
        database: u8,
    },
    /// A watched key has changed. Nothing happened.
    Abandoned,
    /// Nothing happened, for this reason: the text of an error.
    Refused(String),
    /// The store has no result.
    Failed(RedisStoreError),
}

impl From<RedisStoreError> for UnitOutcome {
    fn from(failure: RedisStoreError) -> Self {
        Self::Failed(failure)
    }
}

impl CommandUnit {
    /// The bytes for another node.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter::default();
        out.byte(FORM);
        out.byte(self.database);
        out.byte(self.is_transaction.into());
        out.bytes(self.holder.as_bytes());
        out.number(self.watched.len() as u64);
        for (key, revision) in &self.watched {
            out.bytes(key);
            out.number(*revision);
        }
        out.number(self.calls.len() as u64);

        for call in &self.calls {
            match call {
                UnitCall::Command(arguments) => {
                    out.byte(0);
                    out.list(arguments);
                }
                UnitCall::Script(script) => {
                    out.byte(if script.is_read_only { 2 } else { 1 });
                    out.bytes(&script.source);
                    out.bytes(script.sha1.as_bytes());
                    out.list(&script.keys);
                    out.list(&script.arguments);
                }
            }
        }
        out.0
    }

    /// Reads a unit. `None` for the bytes of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = WireReader(bytes);
        if bytes.byte()? != FORM {
            return None;
        }

        let database = bytes.byte()?;
        let is_transaction = bytes.byte()? == 1;
        let holder = bytes.text()?;
        let watched = (0..bytes.count()?).map(|_| Some((bytes.bytes()?, bytes.number()?))).collect::<Option<_>>()?;
        let calls = (0..bytes.count()?).map(|_| UnitCall::decode(&mut bytes)).collect::<Option<_>>()?;

        let unit = Self { database, holder, watched, is_transaction, calls };
        (bytes.is_at_end() && database < crate::key::DATABASES).then_some(unit)
    }
}

impl UnitCall {
    /// Reads one call.
    fn decode(bytes: &mut WireReader<'_>) -> Option<Self> {
        let kind = bytes.byte()?;
        if kind == 0 {
            return Some(Self::Command(bytes.list()?))
                .filter(|call| !matches!(call, Self::Command(none) if none.is_empty()));
        }

        Some(Self::Script(ScriptInvocation {
            is_read_only: match kind {
                1 => false,
                2 => true,
                _ => return None,
            },
            source: bytes.bytes()?.into(),
            sha1: bytes.text()?,
            keys: bytes.list()?,
            arguments: bytes.list()?,
        }))
    }
}

impl UnitOutcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter::default();
        out.byte(FORM);

        match self {
            Self::Done { replies, database } => {
                out.byte(0);
                out.byte(*database);
                out.number(replies.len() as u64);
                replies.iter().for_each(|reply| out.reply(reply));
            }
            Self::Abandoned => out.byte(1),
            Self::Refused(text) => {
                out.byte(2);
                out.bytes(text.as_bytes());
            }
            Self::Failed(failure) => {
                let (kind, text) = match failure {
                    RedisStoreError::Overloaded(text) => (3, text),
                    RedisStoreError::Denied(text) => (4, text),
                    RedisStoreError::TooLarge(text) => (5, text),
                    RedisStoreError::Full(text) => (6, text),
                    RedisStoreError::Unavailable(text) => (7, text),
                    RedisStoreError::Unknown(text) => (8, text),
                };
                out.byte(kind);
                out.bytes(text.as_bytes());
            }
        }
        out.0
    }

    /// Reads an outcome. `None` for the bytes of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = WireReader(bytes);
        if bytes.byte()? != FORM {
            return None;
        }

        let outcome = match bytes.byte()? {
            0 => {
                let database = bytes.byte()?;
                let replies = (0..bytes.count()?).map(|_| bytes.reply(DEPTH_MAX)).collect::<Option<_>>()?;
                Self::Done { replies, database }
            }
            1 => Self::Abandoned,
            2 => Self::Refused(bytes.text()?),
            3 => Self::Failed(RedisStoreError::Overloaded(bytes.text()?)),
            4 => Self::Failed(RedisStoreError::Denied(bytes.text()?)),
            5 => Self::Failed(RedisStoreError::TooLarge(bytes.text()?)),
            6 => Self::Failed(RedisStoreError::Full(bytes.text()?)),
            7 => Self::Failed(RedisStoreError::Unavailable(bytes.text()?)),
            8 => Self::Failed(RedisStoreError::Unknown(bytes.text()?)),
            _ => return None,
        };
        bytes.is_at_end().then_some(outcome)
    }
}

#[cfg(test)]
mod tests;
