//! Stored bytes in replies.
//!
//! A command may name one value thousands of times, so a request of some kilobytes can ask for gigabytes. Stored bytes come into a reply
//! only by these functions: the unit pays for them before they are copied.

use super::arguments::CommandResult;
use crate::{
    RedisReply,
    view::{Stop, UnitView},
};

/// A string of stored bytes.
pub(super) fn bulk(view: &mut UnitView, stored: &[u8]) -> CommandResult {
    view.copy(stored).map(RedisReply::Bulk)
}

/// A string of stored bytes, or nil.
pub(super) fn bulk_or_nil(view: &mut UnitView, stored: Option<&Vec<u8>>) -> CommandResult {
    stored.map_or(Ok(RedisReply::Nil), |stored| bulk(view, stored))
}

/// Strings of stored bytes, one after the other.
pub(super) fn bulks<'a>(
    view: &mut UnitView,
    stored: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Result<Vec<RedisReply>, Stop> {
    stored.into_iter().map(|stored| bulk(view, stored)).collect()
}
