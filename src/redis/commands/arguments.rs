//! Arguments of commands: numbers, options, and the errors for those that are wrong.

use crate::{
    RedisReply,
    number::{parse_double, parse_integer},
    view::Stop,
};

/// The arguments of a command. The first one is its name.
pub(crate) type Arguments<'a> = [&'a [u8]];

/// What a command answers.
pub(crate) type CommandResult = Result<RedisReply, Stop>;

/// The error for arguments that no form of the command has.
pub(super) fn syntax_error() -> Stop {
    Stop::refused("ERR syntax error")
}

/// The error for an argument, or a string, that is not an integer of 64 bits.
pub(super) fn not_an_integer() -> Stop {
    Stop::refused("ERR value is not an integer or out of range")
}

/// The error for an argument that is not a number.
pub(super) fn not_a_float() -> Stop {
    Stop::refused("ERR value is not a valid float")
}

/// Reads an integer.
pub(super) fn integer(argument: &[u8]) -> Result<i64, Stop> {
    parse_integer(argument).ok_or_else(not_an_integer)
}

/// Reads a number such as a score.
pub(super) fn double(argument: &[u8]) -> Result<f64, Stop> {
    parse_double(argument).ok_or_else(not_a_float)
}

/// A number of things that a command asks for.
pub(super) fn positive(argument: &[u8]) -> Result<usize, Stop> {
    let number = parse_integer(argument).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| Stop::refused("ERR value is out of range, must be positive"))
}

/// Whether the argument is this word, in any case.
pub(super) fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// The error for a wrong number of arguments.
pub(crate) fn wrong_number(command: &str) -> Stop {
    Stop::Refused(format!("ERR wrong number of arguments for '{command}' command"))
}

/// The part of a sequence that two indexes name, both included. Negative ones count from its end.
pub(super) fn slice(start: i64, end: i64, length: usize) -> std::ops::Range<usize> {
    let length_i64 = i64::try_from(length).unwrap_or(i64::MAX);
    let from_end = |index: i64| if index < 0 { index.saturating_add(length_i64) } else { index };
    let start = from_end(start).max(0);
    let end = from_end(end).min(length_i64 - 1);
    if start > end || start >= length_i64 {
        return 0..0;
    }
    let bound = |index: i64| usize::try_from(index).unwrap_or(0);
    bound(start)..bound(end) + 1
}
