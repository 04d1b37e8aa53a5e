//! Commands about the server and the connection that transactions and scripts may use as well.

use super::arguments::{Arguments, CommandResult, integer, wrong_number};
use crate::{
    RedisReply,
    key::DATABASES,
    view::{Stop, UnitView},
};

/// Serves `PING [message]`: PONG as a status, or the message as a string.
pub(super) fn ping(_view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    match arguments {
        [_] => Ok(RedisReply::Status(b"PONG".to_vec())),
        [_, message] => Ok(RedisReply::Bulk(message.to_vec())),
        _ => Err(wrong_number("ping")),
    }
}

/// Serves `ECHO message`.
pub(super) fn echo(_view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::Bulk(arguments[1].to_vec()))
}

/// The time is the unit's, so it does not change within a transaction or a script.
pub(super) fn time(view: &mut UnitView, _arguments: &Arguments<'_>) -> CommandResult {
    let us = view.wall_us()?;
    let parts = [us / 1_000_000, us % 1_000_000].map(|part| RedisReply::text(part.to_string()));
    Ok(RedisReply::Array(parts.to_vec()))
}

/// Serves `SELECT number`. In a script it lasts as long as the script.
pub(super) fn select(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.database = database(arguments[1])?;
    Ok(RedisReply::ok())
}

/// Serves `PUBLISH channel message` within a transaction or a script. The message goes out after the commit.
pub(super) fn publish(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.publish(arguments[1], arguments[2])
        .map(|receivers| RedisReply::Integer(i64::try_from(receivers).unwrap_or(i64::MAX)))
}

/// Reads the number of a database.
pub(crate) fn database(argument: &[u8]) -> Result<u8, Stop> {
    let number = integer(argument)?;
    let database = u8::try_from(number).ok().filter(|database| *database < DATABASES);
    database.ok_or_else(|| Stop::refused("ERR DB index is out of range"))
}
