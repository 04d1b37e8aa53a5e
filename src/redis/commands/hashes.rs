//! Hashes: locks that count their holders, members of groups.

use super::{
    arguments::{Arguments, CommandResult, double, integer, wrong_number},
    copies::{bulk, bulk_or_nil, bulks},
    keys::{ScanOptions, scan_cursor},
    strings::float_sum_error,
};
use crate::{
    RedisReply,
    data::HashFields,
    number::{DecimalError, add_decimals, parse_integer},
    view::{Stop, UnitView},
};

/// Serves `HSET key field value …`: the number of new fields.
pub(super) fn set(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    set_fields(view, arguments, "hset").map(RedisReply::count)
}

/// Serves `HMSET key field value …`: OK.
pub(super) fn set_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    set_fields(view, arguments, "hmset")?;
    Ok(RedisReply::ok())
}

/// Sets fields, and returns the number of new ones.
fn set_fields(view: &mut UnitView, arguments: &Arguments<'_>, command: &str) -> Result<usize, Stop> {
    let pairs = &arguments[2..];
    if pairs.len() % 2 == 1 {
        return Err(wrong_number(command));
    }
    view.count_written(pairs.iter().map(|part| part.len() + 1).sum())?;
    let mut fields = view.take::<HashFields>(arguments[1])?;
    let added = pairs.chunks(2).filter(|pair| fields.set(pair[0], pair[1].to_vec())).count();
    view.put_back(arguments[1], fields)?;
    Ok(added)
}

/// Serves `HSETNX key field value`: 0 if the field is there.
pub(super) fn set_if_absent(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if view.read::<HashFields>(arguments[1])?.contains(arguments[2]) {
        return Ok(RedisReply::Integer(0));
    }
    set_fields(view, arguments, "hsetnx").map(RedisReply::count)
}

/// Serves `HGET key field`: the value, or nil.
pub(super) fn get(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.field(arguments[1], arguments[2]).map(RedisReply::bulk_or_nil)
}

/// Serves `HMGET key field …`: a value or nil for each.
pub(super) fn get_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let fields = view.read::<HashFields>(arguments[1])?;
    let values = arguments[2..].iter().map(|field| bulk_or_nil(view, fields.get(field)));
    values.collect::<Result<_, _>>().map(RedisReply::Array)
}

/// Serves `HGETALL key`: fields and values, as a map in the third version of the protocol.
pub(super) fn get_all(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let fields = view.read::<HashFields>(arguments[1])?;
    let pairs = fields.in_order().map(|(field, value)| Ok((bulk(view, field)?, bulk(view, value)?)));
    pairs.collect::<Result<_, _>>().map(RedisReply::Map)
}

/// Serves `HKEYS key`: the names of the fields.
pub(super) fn names(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let fields = view.read::<HashFields>(arguments[1])?;
    bulks(view, fields.in_order().map(|(field, _)| field)).map(RedisReply::Array)
}

/// Serves `HVALS key`: the values of the fields.
pub(super) fn values(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let fields = view.read::<HashFields>(arguments[1])?;
    bulks(view, fields.in_order().map(|(_, value)| value)).map(RedisReply::Array)
}

/// Serves `HSCAN key cursor`: all fields in one step, as Redis does with small hashes.
pub(super) fn scan(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    scan_cursor(arguments[2])?;
    let fields = view.read::<HashFields>(arguments[1])?;
    let options = ScanOptions::read_for_parts(&arguments[3..], fields.len())?;
    view.spend(fields.in_order().map(|(field, _)| options.work(field)).sum())?;
    let shown = fields.in_order().filter(|(field, _)| options.shows(field));
    let parts = bulks(view, shown.flat_map(|(field, value)| [field, value]))?;
    Ok(RedisReply::Array(vec![RedisReply::text("0"), RedisReply::Array(parts)]))
}

/// Serves `HDEL key field …`: the number of fields that were there.
pub(super) fn delete(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let present = view.read::<HashFields>(arguments[1])?;
    if !arguments[2..].iter().any(|field| present.contains(field)) {
        return Ok(RedisReply::Integer(0));
    }
    drop(present);
    let mut fields = view.take::<HashFields>(arguments[1])?;
    let removed = arguments[2..].iter().filter(|field| fields.remove(field)).count();
    view.put_back(arguments[1], fields)?;
    Ok(RedisReply::count(removed))
}

/// Serves `HEXISTS key field`.
pub(super) fn exists(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::flag(view.field_length(arguments[1], arguments[2])?.is_some()))
}

/// Serves `HLEN key`: the number of fields.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.part_count::<HashFields>(arguments[1]).map(RedisReply::count)
}

/// Serves `HSTRLEN key field`: the length of the value in bytes.
pub(super) fn value_length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::count(view.field_length(arguments[1], arguments[2])?.unwrap_or(0)))
}

/// Serves `HINCRBY key field number`: the new number.
pub(super) fn increment(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let by = integer(arguments[3])?;
    let fields = view.read::<HashFields>(arguments[1])?;
    let before = fields.get(arguments[2]).map_or(Some(0), |text| parse_integer(text));
    let before = before.ok_or_else(|| Stop::refused("ERR hash value is not an integer"))?;
    let sum = before.checked_add(by);
    let sum = sum.ok_or_else(|| Stop::refused("ERR increment or decrement would overflow"))?;

    drop(fields);
    put_field(view, arguments, sum.to_string().into_bytes())?;
    Ok(RedisReply::Integer(sum))
}

/// Serves `HINCRBYFLOAT key field number`: the new number as a string.
pub(super) fn increment_by_float(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if double(arguments[3])?.is_infinite() {
        return Err(Stop::refused("ERR value is NaN or Infinity"));
    }
    let fields = view.read::<HashFields>(arguments[1])?;
    let before = fields.get(arguments[2]).map_or(&b"0"[..], Vec::as_slice);
    let sum = add_decimals(before, arguments[3]).map_err(|error| match error {
        DecimalError::Invalid => Stop::refused("ERR hash value is not a float"),
        DecimalError::Infinite => float_sum_error(error),
    })?;

    drop(fields);
    put_field(view, arguments, sum.clone().into_bytes())?;
    Ok(RedisReply::text(sum))
}

/// Sets the one field of a counter.
fn put_field(view: &mut UnitView, arguments: &Arguments<'_>, value: Vec<u8>) -> Result<(), Stop> {
    view.count_written(arguments[2].len() + value.len())?;
    let mut fields = view.take::<HashFields>(arguments[1])?;
    fields.set(arguments[2], value);
    view.put_back(arguments[1], fields)
}
