//! Sets: members of groups.

use super::{
    arguments::{Arguments, CommandResult, positive, syntax_error},
    keys::{ScanOptions, scan_cursor},
};
use crate::{
    RedisReply,
    data::SetMembers,
    view::{Stop, UnitView},
};

/// Serves `SADD key member …`: the number of new members.
pub(super) fn add(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let added = &arguments[2..];
    view.count_written(added.iter().map(|member| member.len() + 1).sum())?;
    let present = view.read::<SetMembers>(arguments[1])?;
    if added.iter().all(|member| present.contains(member)) {
        return Ok(RedisReply::Integer(0));
    }
    drop(present);

    let mut members = view.take::<SetMembers>(arguments[1])?;
    let count = added.iter().filter(|member| members.set(member, ())).count();
    view.put_back(arguments[1], members)?;
    Ok(RedisReply::count(count))
}

/// Serves `SREM key member …`: the number of members that were there.
pub(super) fn remove(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let present = view.read::<SetMembers>(arguments[1])?;
    if !arguments[2..].iter().any(|member| present.contains(member)) {
        return Ok(RedisReply::Integer(0));
    }
    drop(present);

    let mut members = view.take::<SetMembers>(arguments[1])?;
    let removed = arguments[2..].iter().filter(|member| members.remove(member)).count();
    view.put_back(arguments[1], members)?;
    Ok(RedisReply::count(removed))
}

/// All members, in their order. Each costs work.
fn all(view: &mut UnitView, key: &[u8]) -> Result<Vec<Vec<u8>>, Stop> {
    let members = view.read::<SetMembers>(key)?;
    view.spend(members.len())?;
    Ok(members.in_order().map(|(member, ())| member.clone()).collect())
}

/// Serves `SMEMBERS key`: all members, as a set in the third version of the protocol.
pub(super) fn members(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::Set(all(view, arguments[1])?.into_iter().map(RedisReply::Bulk).collect()))
}

/// Serves `SISMEMBER key member`.
pub(super) fn contains(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::flag(view.read::<SetMembers>(arguments[1])?.contains(arguments[2])))
}

/// Serves `SMISMEMBER key member …`: 1 or 0 for each.
pub(super) fn contains_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let members = view.read::<SetMembers>(arguments[1])?;
    Ok(RedisReply::Array(arguments[2..].iter().map(|member| RedisReply::flag(members.contains(member))).collect()))
}

/// Serves `SCARD key`: the number of members.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    Ok(RedisReply::count(view.read::<SetMembers>(arguments[1])?.len()))
}

/// Removes members that are drawn at random.
pub(super) fn pop(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if arguments.len() > 3 {
        return Err(syntax_error());
    }
    let count = arguments.get(2).map(|count| positive(count)).transpose()?;
    let mut left = all(view, arguments[1])?;
    if left.is_empty() {
        return Ok(if count.is_some() { RedisReply::Set(Vec::new()) } else { RedisReply::Nil });
    }

    let mut drawn = Vec::new();
    while drawn.len() < count.unwrap_or(1) && !left.is_empty() {
        let place = view.random_below(left.len());
        drawn.push(left.swap_remove(place));
    }
    if !drawn.is_empty() {
        let mut members = view.take::<SetMembers>(arguments[1])?;
        for member in &drawn {
            members.remove(member);
        }
        view.put_back(arguments[1], members)?;
    }
    if count.is_some() {
        return Ok(RedisReply::Set(drawn.into_iter().map(RedisReply::Bulk).collect()));
    }
    Ok(RedisReply::bulk_or_nil(drawn.pop()))
}

/// Serves `SSCAN key cursor`: all members in one step, as Redis does with small sets.
pub(super) fn scan(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    scan_cursor(arguments[2])?;
    let all = all(view, arguments[1])?;
    let options = ScanOptions::read_for_parts(&arguments[3..], all.len())?;
    view.spend(all.iter().map(|member| options.work(member)).sum())?;
    let shown = all.into_iter().filter(|member| options.shows(member));
    Ok(RedisReply::Array(vec![RedisReply::text("0"), RedisReply::bulks(shown)]))
}
