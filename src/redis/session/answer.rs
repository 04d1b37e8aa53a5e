//! What failures become for clients.

use crate::{RedisReply, RedisStoreError, view::Stop};

/// The connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closes;

/// The reply for a failure of the store. If it is not known what happened there is none: no text would tell a client so, and a closed
/// connection does.
pub(super) fn failure_reply(failure: RedisStoreError) -> Result<RedisReply, Closes> {
    let text = match failure {
        RedisStoreError::Overloaded(text) => format!("ERR Lockkeeper is overloaded, and nothing was done: {text}"),
        RedisStoreError::Denied(text) => format!("NOPERM {text}"),
        RedisStoreError::TooLarge(text) => format!("ERR {text}"),
        RedisStoreError::Full(text) => {
            format!("OOM command not allowed when used memory > 'maxmemory'. Lockkeeper says: {text}")
        }
        // Clients take this for a server that will be ready soon, and try again.
        RedisStoreError::Unavailable(text) => format!("LOADING Lockkeeper has no leader, and nothing was done: {text}"),
        RedisStoreError::Unknown(why) => {
            tracing::debug!(why, "a connection is closed, since the outcome of its command is not known");
            return Err(Closes);
        }
    };

    Ok(RedisReply::error(text))
}

/// The failure of a read before anything was done: without an answer it is known all the same that nothing happened.
pub(super) fn as_read(failure: RedisStoreError) -> RedisStoreError {
    if let RedisStoreError::Unknown(text) = failure { RedisStoreError::Unavailable(text) } else { failure }
}

/// The reply to a command that was answered here.
pub(super) fn reply_to_one(result: Result<RedisReply, Stop>) -> RedisReply {
    match result {
        Ok(reply) => reply,
        Err(Stop::Refused(text) | Stop::Over(text)) => RedisReply::error(text),
        Err(Stop::Missing) => RedisReply::error("ERR the command needs the keyspace"),
    }
}
