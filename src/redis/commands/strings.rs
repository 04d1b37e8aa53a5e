//! Strings: SET and its older forms, counters, parts.

use super::arguments::{Arguments, CommandResult, double, integer, is_word, slice, syntax_error, wrong_number};
use crate::{
    RedisReply,
    key::token_key,
    number::{DecimalError, add_decimals, parse_integer},
    view::{Life, LockToken, Stop, UnitView},
};

/// Maximum number of bytes of a string, and so of what APPEND and SETRANGE may make. The store allows less.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The unit of a time, and where it is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeUnit {
    /// Milliseconds of one unit.
    pub(super) ms: i64,
    /// Whether it is counted from 1970, and not from now.
    pub(super) is_absolute: bool,
}

/// Seconds from now, as EX says them.
pub(super) const SECONDS: TimeUnit = TimeUnit { ms: 1000, is_absolute: false };
/// Milliseconds from now, as PX says them.
pub(super) const MILLISECONDS: TimeUnit = TimeUnit { ms: 1, is_absolute: false };
/// Seconds since 1970, as EXAT says them.
pub(super) const AT_SECOND: TimeUnit = TimeUnit { ms: 1000, is_absolute: true };
/// Milliseconds since 1970, as PXAT says them.
pub(super) const AT_MILLISECOND: TimeUnit = TimeUnit { ms: 1, is_absolute: true };

/// What the options of SET say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetOptions {
    /// NX: only if the key is not there.
    pub(crate) if_absent: bool,
    /// XX: only if the key is there.
    pub(crate) if_present: bool,
    /// GET: the reply is the old value.
    pub(crate) gets: bool,
    /// KEEPTTL: the deadline stays.
    pub(crate) keeps_life: bool,
    /// Milliseconds from now; what is not above zero has passed.
    pub(crate) life_ms: Option<i64>,
    /// Whether the deadline was given as a time since 1970.
    pub(crate) is_absolute: bool,
}

impl SetOptions {
    /// Reads the options after the value. The time is asked for if there is a deadline.
    pub(crate) fn read(options: &Arguments<'_>, now_ms: impl FnOnce() -> Result<u64, Stop>) -> Result<Self, Stop> {
        let mut read = Self::default();
        let mut time = None;
        let mut rest = options.iter();
        while let Some(option) = rest.next() {
            let unit = time_unit(option);
            if is_word(option, "NX") && !read.if_present {
                read.if_absent = true;
            } else if is_word(option, "XX") && !read.if_absent {
                read.if_present = true;
            } else if is_word(option, "GET") {
                read.gets = true;
            } else if is_word(option, "KEEPTTL") && time.is_none() {
                read.keeps_life = true;
            } else if let Some(unit) = unit
                && !read.keeps_life
                && time.is_none()
            {
                time = Some((unit, *rest.next().ok_or_else(syntax_error)?));
            } else {
                return Err(syntax_error());
            }
        }

        if let Some((unit, argument)) = time {
            read.life_ms = Some(life_ms(argument, unit, now_ms()?, "set")?);
            read.is_absolute = unit.is_absolute;
        }
        Ok(read)
    }
}

/// The unit that an option names.
fn time_unit(option: &[u8]) -> Option<TimeUnit> {
    let units = [("EX", SECONDS), ("PX", MILLISECONDS), ("EXAT", AT_SECOND), ("PXAT", AT_MILLISECOND)];
    units.into_iter().find(|(word, _)| is_word(option, word)).map(|(_, unit)| unit)
}

/// Reads a time of life that must be above zero. Returns milliseconds from now, which may be below zero if the time is an absolute one.
fn life_ms(argument: &[u8], unit: TimeUnit, now_ms: u64, command: &str) -> Result<i64, Stop> {
    let number = integer(argument)?;
    let invalid = || Stop::Refused(format!("ERR invalid expire time in '{command}' command"));
    if number <= 0 {
        return Err(invalid());
    }
    from_now(number, unit, now_ms).ok_or_else(invalid)
}

/// Milliseconds from now. `None` means that the time is beyond what Redis can count.
pub(super) fn from_now(number: i64, unit: TimeUnit, now_ms: u64) -> Option<i64> {
    let ms = number.checked_mul(unit.ms)?;
    let now_ms = i64::try_from(now_ms).ok()?;
    if unit.is_absolute {
        return Some(ms.saturating_sub(now_ms));
    }
    ms.checked_add(now_ms).map(|_| ms)
}

/// Puts a string that lives for this time. One that has passed removes the key.
fn put_for(view: &mut UnitView, key: &[u8], text: &[u8], life_ms: i64) -> Result<(), Stop> {
    match u64::try_from(life_ms) {
        Ok(ms) if ms > 0 => view.put_text(key, text.to_vec(), Some(Life::Ms(ms))),
        _ => view.delete(key).map(drop),
    }
}

/// Serves `GET key`: the string, or nil. A key under `lockkeeper:token:` is read as the token of a lock.
pub(super) fn get(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if let Some(key) = token_key(arguments[1]) {
        return token(view, key);
    }
    Ok(RedisReply::bulk_or_nil(view.text(arguments[1])?))
}

/// The token of a lock: a number that is greater for each later holder.
fn token(view: &mut UnitView, key: &[u8]) -> CommandResult {
    view.text_length(key)?;
    match view.token(key)? {
        None => Ok(RedisReply::Nil),
        Some(LockToken::Committed(token)) => Ok(RedisReply::text(token.to_string())),
        Some(LockToken::Own) if view.is_script => {
            Err(Stop::refused("ERR the token of a lock that this script makes is known when the script has ended"))
        }
        Some(LockToken::Own) => Ok(RedisReply::OwnRevision),
    }
}

/// Serves `SET key value` with its options. A plain one takes the deadline of the key away. The reply is OK, or nil if the condition does
/// not hold; with GET, the old value in both cases.
pub(super) fn set(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    let text = arguments[2];
    let options = SetOptions::read(&arguments[3..], || view.wall_ms())?;
    view.count_written(text.len())?;

    let before = if options.gets { view.text(key)? } else { None };
    let is_present = view.exists(key)?;
    if options.if_absent && !is_present {
        view.note_decided(key)?;
    }
    let reply = |is_done: bool| match before {
        _ if options.gets => RedisReply::bulk_or_nil(before),
        _ if is_done => RedisReply::ok(),
        _ => RedisReply::Nil,
    };
    if options.if_absent && is_present || options.if_present && !is_present {
        return Ok(reply(false));
    }

    match options.life_ms {
        Some(life_ms) => put_for(view, key, text, life_ms)?,
        None if options.keeps_life => view.put_text(key, text.to_vec(), None)?,
        None => view.put_text(key, text.to_vec(), Some(Life::Endless))?,
    }
    Ok(reply(true))
}

/// Serves `SETNX key value`: 1, or 0 if the key is there.
pub(super) fn set_if_absent(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    view.count_written(arguments[2].len())?;
    if view.exists(key)? {
        return Ok(RedisReply::Integer(0));
    }
    view.note_decided(key)?;
    view.put_text(key, arguments[2].to_vec(), Some(Life::Endless))?;
    Ok(RedisReply::Integer(1))
}

/// Serves `SETEX key seconds value`.
pub(super) fn set_for_seconds(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    set_for(view, arguments, SECONDS, "setex")
}

/// Serves `PSETEX key milliseconds value`.
pub(super) fn set_for_milliseconds(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    set_for(view, arguments, MILLISECONDS, "psetex")
}

/// Puts a string with a deadline, whatever the key had.
fn set_for(view: &mut UnitView, arguments: &Arguments<'_>, unit: TimeUnit, command: &str) -> CommandResult {
    let life_ms = life_ms(arguments[2], unit, view.wall_ms()?, command)?;
    view.count_written(arguments[3].len())?;
    put_for(view, arguments[1], arguments[3], life_ms)?;
    Ok(RedisReply::ok())
}

/// Serves `GETSET key value`: the old string. The key has no deadline then.
pub(super) fn get_and_set(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.count_written(arguments[2].len())?;
    let before = view.text(arguments[1])?;
    view.put_text(arguments[1], arguments[2].to_vec(), Some(Life::Endless))?;
    Ok(RedisReply::bulk_or_nil(before))
}

/// Serves `GETDEL key`: the string that it had.
pub(super) fn get_and_delete(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let before = view.text(arguments[1])?;
    if before.is_some() {
        view.delete(arguments[1])?;
    }
    Ok(RedisReply::bulk_or_nil(before))
}

/// Serves `GETEX key` with a time or PERSIST: the string, and another deadline.
pub(super) fn get_and_expire(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    let life = match &arguments[2..] {
        [] => None,
        [option] if is_word(option, "PERSIST") => Some(None),
        [option, number] => Some(Some((time_unit(option).ok_or_else(syntax_error)?, number))),
        _ => return Err(syntax_error()),
    };

    let before = view.text(key)?;
    if before.is_some() {
        match life {
            None => {}
            Some(None) => persist_if_mortal(view, key).map(drop)?,
            Some(Some((unit, number))) => {
                let life_ms = life_ms(number, unit, view.wall_ms()?, "getex")?;
                expire_or_delete(view, key, life_ms)?;
            }
        }
    }
    Ok(RedisReply::bulk_or_nil(before))
}

/// Gives a key that is there this life; one that has passed removes it.
pub(super) fn expire_or_delete(view: &mut UnitView, key: &[u8], life_ms: i64) -> Result<(), Stop> {
    match u64::try_from(life_ms) {
        Ok(ms) if ms > 0 => view.set_life(key, Life::Ms(ms)),
        _ => view.delete(key).map(drop),
    }
}

/// Takes the deadline of a key away. Returns whether it had one.
pub(super) fn persist_if_mortal(view: &mut UnitView, key: &[u8]) -> Result<bool, Stop> {
    let is_mortal = matches!(view.life(key)?, Some(Life::Ms(_)));
    if is_mortal {
        view.set_life(key, Life::Endless)?;
    }
    Ok(is_mortal)
}

/// Serves `MGET key …`: a string or nil for each.
pub(super) fn get_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let mut values = Vec::new();
    for key in &arguments[1..] {
        let value = match view.text(key) {
            // MGET answers nil for a value of another type, and no error.
            Err(Stop::Refused(_)) => None,
            other => other?,
        };
        values.push(RedisReply::bulk_or_nil(value));
    }
    Ok(RedisReply::Array(values))
}

/// Serves `MSET key value …`.
pub(super) fn set_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    put_pairs(view, arguments, "mset")?;
    Ok(RedisReply::ok())
}

/// Serves `MSETNX key value …`: 1, or 0 if one of the keys is there.
pub(super) fn set_many_if_absent(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if arguments.len().is_multiple_of(2) {
        return Err(wrong_number("msetnx"));
    }
    for pair in arguments[1..].chunks(2) {
        if view.exists(pair[0])? {
            return Ok(RedisReply::Integer(0));
        }
    }

    for pair in arguments[1..].chunks(2) {
        view.note_decided(pair[0])?;
    }
    put_pairs(view, arguments, "msetnx")?;
    Ok(RedisReply::Integer(1))
}

/// Puts all pairs. Of a key that occurs twice, the last value stays.
fn put_pairs(view: &mut UnitView, arguments: &Arguments<'_>, command: &str) -> Result<(), Stop> {
    if arguments.len().is_multiple_of(2) {
        return Err(wrong_number(command));
    }
    view.count_written(arguments[1..].iter().map(|argument| argument.len()).sum())?;
    // All keys are loaded before the first one is changed, as for any command.
    for pair in arguments[1..].chunks(2) {
        view.exists(pair[0])?;
    }
    for pair in arguments[1..].chunks(2) {
        view.put_text(pair[0], pair[1].to_vec(), Some(Life::Endless))?;
    }
    Ok(())
}

/// Serves `INCR key`: the new number. The deadline stays, as with all counters.
pub(super) fn increment(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    add_to(view, arguments[1], 1)
}

/// Serves `DECR key`.
pub(super) fn decrement(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    add_to(view, arguments[1], -1)
}

/// Serves `INCRBY key number`.
pub(super) fn increment_by(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let by = integer(arguments[2])?;
    add_to(view, arguments[1], by)
}

/// Serves `DECRBY key number`.
pub(super) fn decrement_by(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let by = integer(arguments[2])?;
    let by = by.checked_neg().ok_or_else(|| Stop::refused("ERR decrement would overflow"))?;
    add_to(view, arguments[1], by)
}

/// Adds to a counter. A key that is not there counts from zero.
fn add_to(view: &mut UnitView, key: &[u8], by: i64) -> CommandResult {
    let before = view.text(key)?;
    let before = before.map_or(Some(0), |text| parse_integer(&text)).ok_or_else(super::arguments::not_an_integer)?;
    let sum = before.checked_add(by);
    let sum = sum.ok_or_else(|| Stop::refused("ERR increment or decrement would overflow"))?;
    view.put_text(key, sum.to_string().into_bytes(), None)?;
    Ok(RedisReply::Integer(sum))
}

/// Serves `INCRBYFLOAT key number`: the new number as a string.
pub(super) fn increment_by_float(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let before = view.text(arguments[1])?.unwrap_or_else(|| b"0".to_vec());
    double(&before)?;
    double(arguments[2])?;
    let sum = add_decimals(&before, arguments[2]).map_err(float_sum_error)?;
    view.put_text(arguments[1], sum.clone().into_bytes(), None)?;
    Ok(RedisReply::text(sum))
}

/// The error of a sum that cannot be made.
pub(super) fn float_sum_error(error: DecimalError) -> Stop {
    match error {
        DecimalError::Invalid => super::arguments::not_a_float(),
        DecimalError::Infinite => Stop::refused("ERR increment would produce NaN or Infinity"),
    }
}

/// Serves `APPEND key text`: the new length in bytes.
pub(super) fn append(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.count_written(arguments[2].len())?;
    let mut text = view.text(arguments[1])?.unwrap_or_default();
    if text.len() + arguments[2].len() > TEXT_BYTES_MAX {
        return Err(Stop::Refused(format!("ERR string exceeds maximum allowed size ({TEXT_BYTES_MAX} bytes)")));
    }
    text.extend_from_slice(arguments[2]);
    let length = text.len();
    view.put_text(arguments[1], text, None)?;
    Ok(RedisReply::count(length))
}

/// Serves `STRLEN key`: the length in bytes.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.text_length(arguments[1]).map(RedisReply::count)
}

/// Serves `GETRANGE key start end`, and its old name SUBSTR: a part of the string.
pub(super) fn part(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let start = integer(arguments[2])?;
    let end = integer(arguments[3])?;
    let choose = |length: usize| {
        if start < 0 && end < 0 && start > end {
            return 0..0;
        }
        // An end before the begin of the string is the begin of it.
        let length_i64 = i64::try_from(length).unwrap_or(i64::MAX);
        let end = if end < 0 { end.saturating_add(length_i64).max(0) } else { end };
        slice(start, end, length)
    };
    Ok(RedisReply::Bulk(view.text_part(arguments[1], choose)?.unwrap_or_default()))
}
