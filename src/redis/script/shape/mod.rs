//! Scripts that are one compare and one write: they need no interpreter, and no read before.
//!
//! Nearly every lock client releases and extends a lock by a script, and each library has its own text. So a script is not recognized by
//! its text. Scripts of a small subset of Lua are parsed, and evaluated in three cases: the key has the value of an argument, it has
//! another value, or there is no key. If a script deletes the key or sets its deadline in the first case, and does nothing in the others,
//! it has a [`ScriptShape`]. Any other script has none, and runs in the interpreter.

mod evaluate;
mod parse;

use crate::RedisReply;

/// What a script does: if a key has a value, this, and otherwise nothing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScriptShape {
    /// The key and the value that must be equal.
    pub(crate) comparison: ValueComparison,
    /// What happens then.
    pub(crate) then_do: ThenDo,
    /// The reply in the first case.
    pub(crate) done: RedisReply,
    /// The reply if the key has another value.
    pub(crate) differs: RedisReply,
    /// The reply if there is no key.
    pub(crate) absent: RedisReply,
}

/// A comparison of a key with an argument, by their places from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueComparison {
    /// The place of the key in KEYS.
    pub(crate) key: usize,
    /// The place of the value in ARGV.
    pub(crate) value: usize,
}

/// What happens to the key that has the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThenDo {
    /// It is deleted.
    Delete,
    /// Its deadline is set. An argument gives the time, in units of `unit_ms`.
    Expire { unit_ms: i64, argument: usize },
}

impl ScriptShape {
    /// The shape of a script, if it has one.
    pub(crate) fn recognize(source: &[u8]) -> Option<Self> {
        let program = parse::program(source)?;
        evaluate::shape(&program)
    }
}

#[cfg(test)]
mod tests;
