//! Keys of any type: whether they are there, how long they live, their names.

use super::{
    arguments::{Arguments, CommandResult, integer, is_word, not_an_integer, syntax_error},
    glob,
    strings::{
        AT_MILLISECOND, AT_SECOND, MILLISECONDS, SECONDS, TimeUnit, expire_or_delete, from_now, persist_if_mortal,
    },
};
use crate::{
    RedisReply,
    data::DatumKind,
    key::DATABASES,
    view::{Life, Stop, UnitView},
};

/// Maximum number of keys that KEYS reads.
const KEYS_MAX: usize = 10_000;
/// Number of keys that a step of SCAN reads, unless the client says another number; and the maximum.
const SCAN_COUNT: usize = 10;
/// The most that a step reads, whatever the client says.
const SCAN_COUNT_MAX: usize = 1000;

/// Serves `DEL key …` and UNLINK: the number of keys that were there.
pub(super) fn delete(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let mut deleted = 0;
    for key in &arguments[1..] {
        deleted += usize::from(view.delete(key)?);
    }
    Ok(RedisReply::count(deleted))
}

/// Serves `EXISTS key …` and TOUCH: a key counts as often as it is named.
pub(super) fn exists(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let mut present = 0;
    for key in &arguments[1..] {
        present += usize::from(view.exists(key)?);
    }
    Ok(RedisReply::count(present))
}

/// Serves `TYPE key`: the name of the type as a status, or none.
pub(super) fn type_name(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let name = view.kind(arguments[1])?.map_or("none", DatumKind::name);
    Ok(RedisReply::Status(name.as_bytes().to_vec()))
}

/// Serves `EXPIRE key seconds`: 1, or 0 without the key or if an option says no.
pub(super) fn expire(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    expire_in(view, arguments, SECONDS, "expire")
}

/// Serves `PEXPIRE key milliseconds`.
pub(super) fn expire_milliseconds(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    expire_in(view, arguments, MILLISECONDS, "pexpire")
}

/// Serves `EXPIREAT key time`, in seconds since 1970.
pub(super) fn expire_at(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    expire_in(view, arguments, AT_SECOND, "expireat")
}

/// Serves `PEXPIREAT key time`, in milliseconds since 1970.
pub(super) fn expire_at_millisecond(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    expire_in(view, arguments, AT_MILLISECOND, "pexpireat")
}

/// When EXPIRE changes a deadline.
#[derive(Default)]
struct ExpireOptions {
    /// NX: only if there is no deadline.
    if_endless: bool,
    /// XX: only if there is a deadline.
    if_mortal: bool,
    /// GT: only if it becomes later. Without a deadline, a key lives for ever.
    if_greater: bool,
    /// LT: only if it becomes earlier.
    if_less: bool,
}

impl ExpireOptions {
    /// Reads the options, and refuses those that cannot be together.
    fn read(options: &Arguments<'_>) -> Result<Self, Stop> {
        let mut read = Self::default();
        for option in options {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => read.if_endless = true,
                b"XX" => read.if_mortal = true,
                b"GT" => read.if_greater = true,
                b"LT" => read.if_less = true,
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Err(Stop::Refused(format!("ERR Unsupported option {option}")));
                }
            }
        }

        if read.if_endless && (read.if_mortal || read.if_greater || read.if_less) {
            return Err(Stop::refused("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if read.if_greater && read.if_less {
            return Err(Stop::refused("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(read)
    }

    /// Whether a key with this life gets the new one, in milliseconds.
    fn allow(&self, life: Life, new_ms: i64) -> bool {
        match life {
            Life::Endless => !self.if_mortal && !self.if_greater,
            Life::Ms(ms) => {
                let ms = i64::try_from(ms).unwrap_or(i64::MAX);
                !self.if_endless && (!self.if_greater || new_ms > ms) && (!self.if_less || new_ms < ms)
            }
        }
    }
}

/// Gives a key another deadline. A time that has passed removes it, and that counts as done.
fn expire_in(view: &mut UnitView, arguments: &Arguments<'_>, unit: TimeUnit, command: &str) -> CommandResult {
    let key = arguments[1];
    let options = ExpireOptions::read(&arguments[3..])?;
    let number = integer(arguments[2])?;
    let ms = from_now(number, unit, view.wall_ms()?);
    let ms = ms.ok_or_else(|| Stop::Refused(format!("ERR invalid expire time in '{command}' command")))?;

    let Some(life) = view.life(key)? else { return Ok(RedisReply::Integer(0)) };
    if !options.allow(life, ms) {
        return Ok(RedisReply::Integer(0));
    }
    expire_or_delete(view, key, ms)?;
    Ok(RedisReply::Integer(1))
}

/// Serves `PERSIST key`: 1 if a deadline was taken away.
pub(super) fn persist(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::flag(persist_if_mortal(view, arguments[1])?))
}

/// Serves `TTL key`: seconds, rounded to the nearest; -1 without a deadline, -2 without the key.
pub(super) fn time_to_live(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    life_in(view, arguments, |ms| ms.saturating_add(500) / 1000)
}

/// Serves `PTTL key`: milliseconds, with the same exceptions.
pub(super) fn milliseconds_to_live(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    life_in(view, arguments, |ms| ms)
}

/// Serves `EXPIRETIME key`: the deadline in seconds since 1970, by the clock of the node that leads.
pub(super) fn expire_time(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let now_ms = view.wall_ms()?;
    life_in(view, arguments, |ms| ms.saturating_add(now_ms).saturating_add(500) / 1000)
}

/// Serves `PEXPIRETIME key`: the deadline in milliseconds since 1970.
pub(super) fn expire_time_milliseconds(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let now_ms = view.wall_ms()?;
    life_in(view, arguments, |ms| ms.saturating_add(now_ms))
}

/// Shows the rest of a key's life.
fn life_in(view: &mut UnitView, arguments: &Arguments<'_>, shown: impl Fn(u64) -> u64) -> CommandResult {
    let life = match view.life(arguments[1])? {
        None => -2,
        Some(Life::Endless) => -1,
        Some(Life::Ms(ms)) => i64::try_from(shown(ms)).unwrap_or(i64::MAX),
    };
    Ok(RedisReply::Integer(life))
}

/// Serves `RENAME key new`: the value and the deadline move along, and the former value of the new name is deleted.
pub(super) fn rename(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    rename_key(view, arguments[1], arguments[2])?;
    Ok(RedisReply::ok())
}

/// Serves `RENAMENX key new`: 0 if the new name is taken.
pub(super) fn rename_if_absent(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let is_present = view.exists(arguments[2])?;
    if view.exists(arguments[1])? && is_present {
        return Ok(RedisReply::Integer(0));
    }
    rename_key(view, arguments[1], arguments[2])?;
    Ok(RedisReply::Integer(1))
}

/// Renames a key. Renaming a key to its own name changes nothing.
fn rename_key(view: &mut UnitView, from: &[u8], to: &[u8]) -> Result<(), Stop> {
    view.exists(to)?;
    if !view.exists(from)? {
        return Err(Stop::refused("ERR no such key"));
    }
    if from != to {
        view.rename(from, to)?;
    }
    Ok(())
}

/// Serves `KEYS pattern`, up to a number of keys. Only those with the literal begin of the pattern are read.
pub(super) fn keys(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let pattern = arguments[1];
    let (seen, more) = view.keys(b"", glob::literal_prefix(pattern), KEYS_MAX)?;
    if more {
        return Err(Stop::Refused(format!(
            "ERR KEYS would read more than {KEYS_MAX} keys, the limit: use SCAN, or a longer prefix before the first wildcard"
        )));
    }
    view.spend(seen.iter().map(|seen| glob::work(pattern, seen.key.len())).sum())?;
    let matching = seen.into_iter().map(|seen| seen.key).filter(|key| glob::matches(pattern, key));
    Ok(RedisReply::bulks(matching))
}

/// Serves `SCAN cursor` with MATCH, COUNT and TYPE. It reads the keys in their order, so those that are there all the time are shown once,
/// whatever comes and goes.
pub(super) fn scan(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let cursor = scan_cursor(arguments[1])?;
    let options = ScanOptions::read(&arguments[2..], true)?;
    let pattern = options.pattern.unwrap_or(b"*");
    let prefix = glob::literal_prefix(pattern).to_vec();

    let after = view.cursors().position(cursor).unwrap_or_default();
    let (seen, more) = view.keys(&after, &prefix, options.count)?;
    let last = seen.last().map(|seen| [&seen.key[..], &[0]].concat());
    let cursor = match last {
        Some(next) if more => view.cursors().cursor(&next),
        _ => 0,
    };

    view.spend(seen.iter().map(|seen| glob::work(pattern, seen.key.len())).sum())?;
    let is_shown = |kind: DatumKind| options.kind.is_none_or(|asked| is_word(asked, kind.name()));
    let shown = seen.into_iter().filter(|seen| is_shown(seen.kind) && glob::matches(pattern, &seen.key));
    let keys = RedisReply::bulks(shown.map(|seen| seen.key));
    Ok(RedisReply::Array(vec![RedisReply::text(cursor.to_string()), keys]))
}

/// Reads a cursor. Any number is one: those that are not known begin again.
pub(super) fn scan_cursor(argument: &[u8]) -> Result<u64, Stop> {
    let cursor = std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| Stop::refused("ERR invalid cursor"))
}

/// The options of SCAN and its relatives.
pub(super) struct ScanOptions<'a> {
    /// MATCH: shows only what matches.
    pub(super) pattern: Option<&'a [u8]>,
    /// COUNT: about so many are read.
    pub(super) count: usize,
    /// TYPE: shows only keys of this type.
    pub(super) kind: Option<&'a [u8]>,
}

impl<'a> ScanOptions<'a> {
    /// Reads the options. Only SCAN itself has types.
    pub(super) fn read(options: &[&'a [u8]], has_type: bool) -> Result<Self, Stop> {
        let mut read = Self { pattern: None, count: SCAN_COUNT, kind: None };

        for option in options.chunks(2) {
            let &[name, value] = option else { return Err(syntax_error()) };
            if is_word(name, "MATCH") {
                read.pattern = Some(value);
            } else if is_word(name, "COUNT") {
                let count = integer(value)?;
                if count < 1 {
                    return Err(syntax_error());
                }
                read.count = usize::try_from(count).map_err(|_| not_an_integer())?.min(SCAN_COUNT_MAX);
            } else if has_type && is_word(name, "TYPE") {
                read.kind = Some(value);
            } else {
                return Err(syntax_error());
            }
        }
        Ok(read)
    }

    /// Reads the options for the parts of a structure. Without the key, wrong options are no error.
    pub(super) fn read_for_parts(options: &[&'a [u8]], part_count: usize) -> Result<Self, Stop> {
        if part_count == 0 { Self::read(&[], false) } else { Self::read(options, false) }
    }

    /// Units of work that it takes to learn whether a field or member is shown.
    pub(super) fn work(&self, name: &[u8]) -> usize {
        self.pattern.map_or(1, |pattern| glob::work(pattern, name.len()))
    }

    /// Whether a field or member is shown.
    pub(super) fn shows(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// Serves `DBSIZE`: the number of keys of the database.
pub(super) fn count(view: &mut UnitView, _arguments: &Arguments<'_>) -> CommandResult {
    let count = view.count_keys()?;
    Ok(RedisReply::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
}

/// Serves `RANDOMKEY`: one of the first thousand keys, drawn at random.
pub(super) fn random_key(view: &mut UnitView, _arguments: &Arguments<'_>) -> CommandResult {
    let (mut seen, _) = view.keys(b"", b"", SCAN_COUNT_MAX)?;
    if seen.is_empty() {
        return Ok(RedisReply::Nil);
    }
    let drawn = view.random_below(seen.len());
    Ok(RedisReply::Bulk(seen.swap_remove(drawn).key))
}

/// Serves `FLUSHDB` within a transaction. By itself it may take several, see the session.
pub(super) fn flush_database(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    check_flush(arguments)?;
    view.flush(view.database);
    Ok(RedisReply::ok())
}

/// Serves `FLUSHALL` within a transaction.
pub(super) fn flush_all(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    check_flush(arguments)?;
    (0..DATABASES).for_each(|database| view.flush(database));
    Ok(RedisReply::ok())
}

/// Checks the one argument that a flush may have.
pub(crate) fn check_flush(arguments: &Arguments<'_>) -> Result<(), Stop> {
    match arguments {
        [_] => Ok(()),
        [_, how] if is_word(how, "ASYNC") || is_word(how, "SYNC") => Ok(()),
        _ => Err(syntax_error()),
    }
}
