//! Sets: members of groups.

use super::{
    arguments::{Arguments, CommandResult, positive, syntax_error},
    copies::bulks,
    keys::{ScanOptions, scan_cursor},
};
use crate::{RedisReply, data::SetMembers, view::UnitView};

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

/// Serves `SMEMBERS key`: all members, as a set in the third version of the protocol.
pub(super) fn members(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let members = view.read::<SetMembers>(arguments[1])?;
    bulks(view, members.in_order().map(|(member, ())| member)).map(RedisReply::Set)
}

/// Serves `SISMEMBER key member`.
pub(super) fn contains(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.has_member(arguments[1], arguments[2]).map(RedisReply::flag)
}

/// Serves `SMISMEMBER key member …`: 1 or 0 for each.
pub(super) fn contains_many(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let members = view.read::<SetMembers>(arguments[1])?;
    Ok(RedisReply::Array(arguments[2..].iter().map(|member| RedisReply::flag(members.contains(member))).collect()))
}

/// Serves `SCARD key`: the number of members.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.part_count::<SetMembers>(arguments[1]).map(RedisReply::count)
}

/// Removes members that are drawn at random.
pub(super) fn pop(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    if arguments.len() > 3 {
        return Err(syntax_error());
    }
    let count = arguments.get(2).map(|count| positive(count)).transpose()?;
    let present = view.read::<SetMembers>(arguments[1])?;
    view.spend(present.len())?;
    let mut left: Vec<&Vec<u8>> = present.in_order().map(|(member, ())| member).collect();
    if left.is_empty() {
        return Ok(if count.is_some() { RedisReply::Set(Vec::new()) } else { RedisReply::Nil });
    }

    let mut drawn = Vec::new();
    while drawn.len() < count.unwrap_or(1) && !left.is_empty() {
        let place = view.random_below(left.len());
        drawn.push(view.copy(left.swap_remove(place))?);
    }
    drop(present);
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
    let members = view.read::<SetMembers>(arguments[1])?;
    let options = ScanOptions::read_for_parts(&arguments[3..], members.len())?;
    let all = || members.in_order().map(|(member, ())| member);
    view.spend(all().map(|member| options.work(member)).sum())?;
    let shown = bulks(view, all().filter(|member| options.shows(member)))?;
    Ok(RedisReply::Array(vec![RedisReply::text("0"), RedisReply::Array(shown)]))
}
