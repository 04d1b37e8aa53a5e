//! Lists: queues, and elements that wake waiters.

use super::{
    arguments::{
        Arguments, CommandResult, double, integer, is_word, not_an_integer, positive, slice, syntax_error, wrong_number,
    },
    copies::{bulk, bulks},
};
use crate::{
    RedisReply,
    data::ListItems,
    view::{Stop, UnitView},
};

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListEnd {
    /// The begin: the item with index 0.
    Left,
    /// The end: the item with index -1.
    Right,
}

impl ListEnd {
    /// Reads LEFT or RIGHT.
    fn read(argument: &[u8]) -> Result<Self, Stop> {
        if is_word(argument, "LEFT") {
            Ok(Self::Left)
        } else if is_word(argument, "RIGHT") {
            Ok(Self::Right)
        } else {
            Err(syntax_error())
        }
    }

    /// Adds an item at this end.
    fn push(self, items: &mut ListItems, item: Vec<u8>) {
        match self {
            Self::Left => items.push_front(item),
            Self::Right => items.push_back(item),
        }
    }

    /// The items from this end on.
    fn in_order(self, items: &ListItems) -> impl Iterator<Item = &Vec<u8>> {
        let length = items.len();
        (0..length).filter_map(move |place| items.get(if self == Self::Left { place } else { length - 1 - place }))
    }

    /// Takes the item at this end.
    fn pop(self, items: &mut ListItems) -> Option<Vec<u8>> {
        match self {
            Self::Left => items.pop_front(),
            Self::Right => items.pop_back(),
        }
    }
}

/// Serves `LPUSH key item …`: the new length. The last item is the first one of the list then.
pub(super) fn push_left(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    push(view, arguments, ListEnd::Left, false)
}

/// Serves `RPUSH key item …`: the new length.
pub(super) fn push_right(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    push(view, arguments, ListEnd::Right, false)
}

/// Serves `LPUSHX key item …`: 0 without the list.
pub(super) fn push_left_if_present(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    push(view, arguments, ListEnd::Left, true)
}

/// Serves `RPUSHX key item …`: 0 without the list.
pub(super) fn push_right_if_present(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    push(view, arguments, ListEnd::Right, true)
}

/// Adds items at an end, one after the other.
fn push(view: &mut UnitView, arguments: &Arguments<'_>, end: ListEnd, if_present: bool) -> CommandResult {
    let key = arguments[1];
    let items = &arguments[2..];
    view.count_written(items.iter().map(|item| item.len() + 1).sum())?;
    if if_present && view.read::<ListItems>(key)?.is_empty() {
        return Ok(RedisReply::Integer(0));
    }

    let mut list = view.take::<ListItems>(key)?;
    items.iter().for_each(|item| end.push(&mut list, item.to_vec()));
    let length = list.len();
    view.put_back(key, list)?;
    Ok(RedisReply::count(length))
}

/// Serves `LPOP key [count]`: an item, or an array of them if a count is given.
pub(super) fn pop_left(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop(view, arguments, ListEnd::Left, "lpop")
}

/// Serves `RPOP key [count]`, with the last item first.
pub(super) fn pop_right(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop(view, arguments, ListEnd::Right, "rpop")
}

/// Takes items at an end. Without the list the reply is nil, and an absent array if a count is given.
fn pop(view: &mut UnitView, arguments: &Arguments<'_>, end: ListEnd, command: &str) -> CommandResult {
    if arguments.len() > 3 {
        return Err(wrong_number(command));
    }
    let count = arguments.get(2).map(|count| positive(count)).transpose()?;
    let key = arguments[1];
    let present = view.read::<ListItems>(key)?;
    match count {
        None if present.is_empty() => return Ok(RedisReply::Nil),
        Some(_) if present.is_empty() => return Ok(RedisReply::NilArray),
        Some(0) => return Ok(RedisReply::Array(Vec::new())),
        _ => {}
    }

    let popped = bulks(view, end.in_order(&present).take(count.unwrap_or(1)))?;
    drop(present);
    let mut list = view.take::<ListItems>(key)?;
    for _ in &popped {
        end.pop(&mut list);
    }
    view.put_back(key, list)?;
    if count.is_some() {
        return Ok(RedisReply::Array(popped));
    }
    Ok(popped.into_iter().next().unwrap_or(RedisReply::Nil))
}

/// Serves `LLEN key`: the number of items.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.part_count::<ListItems>(arguments[1]).map(RedisReply::count)
}

/// The place of an item that an index names. Negative ones count from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let length_i64 = i64::try_from(length).unwrap_or(i64::MAX);
    let index = if index < 0 { index.saturating_add(length_i64) } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// Serves `LINDEX key index`: the item, or nil beyond the ends.
pub(super) fn item(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    // Without the list, no index is wrong.
    if view.kind(arguments[1])?.is_none() {
        return Ok(RedisReply::Nil);
    }
    // A value of another type is told before an index that is none.
    let index = integer(arguments[2]);
    let item = view.item(arguments[1], |length| place(*index.as_ref().ok()?, length))?;
    index.map(|_| RedisReply::bulk_or_nil(item))
}

/// Serves `LRANGE key start end`: the items between, both included.
pub(super) fn range(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let start = integer(arguments[2])?;
    let end = integer(arguments[3])?;
    let list = view.read::<ListItems>(arguments[1])?;
    let shown = slice(start, end, list.len());
    bulks(view, list.range(shown)).map(RedisReply::Array)
}

/// Serves `LREM key count item`: removes equal items from the begin, from the end if the count is below zero, or all if it is zero. The
/// reply is their number.
pub(super) fn remove(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    let count = integer(arguments[2])?;
    let item = arguments[3];
    let list = view.read::<ListItems>(key)?;
    view.spend(list.len())?;

    let places = list.iter().enumerate().filter(|(_, other)| *other == item).map(|(place, _)| place);
    let limit = if count == 0 { usize::MAX } else { usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX) };
    let mut places: Vec<_> = places.collect();
    if count < 0 {
        places.reverse();
    }
    places.truncate(limit);
    drop(list);

    if places.is_empty() {
        return Ok(RedisReply::Integer(0));
    }

    let removed: std::collections::BTreeSet<_> = places.into_iter().collect();
    let list = view.take::<ListItems>(key)?;
    let kept = list.into_iter().enumerate().filter(|(place, _)| !removed.contains(place)).map(|(_, item)| item);
    view.put_back(key, kept.collect::<ListItems>())?;
    Ok(RedisReply::count(removed.len()))
}

/// Serves `LTRIM key start end`: keeps only the items between.
pub(super) fn trim(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let start = integer(arguments[2])?;
    let end = integer(arguments[3])?;
    let length = view.read::<ListItems>(arguments[1])?.len();
    view.spend(length)?;
    if length > 0 {
        let kept = slice(start, end, length);
        let mut list = view.take::<ListItems>(arguments[1])?;
        list.truncate(kept.end);
        list.drain(..kept.start);
        view.put_back(arguments[1], list)?;
    }
    Ok(RedisReply::ok())
}

/// Serves `LSET key index item`.
pub(super) fn set_item(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    view.count_written(arguments[3].len())?;
    let length = view.read::<ListItems>(key)?.len();
    if length == 0 {
        return Err(Stop::refused("ERR no such key"));
    }

    let place = place(integer(arguments[2])?, length);
    let place = place.ok_or_else(|| Stop::refused("ERR index out of range"))?;

    let mut list = view.take::<ListItems>(key)?;
    list[place] = arguments[3].to_vec();
    view.put_back(key, list)?;
    Ok(RedisReply::ok())
}

/// Serves `LINSERT key BEFORE or AFTER item new`: the new length, -1 without the item, 0 without the list.
pub(super) fn insert(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let key = arguments[1];
    let is_after = if is_word(arguments[2], "AFTER") {
        true
    } else if is_word(arguments[2], "BEFORE") {
        false
    } else {
        return Err(syntax_error());
    };
    view.count_written(arguments[4].len())?;
    let list = view.read::<ListItems>(key)?;
    view.spend(list.len())?;
    if list.is_empty() {
        return Ok(RedisReply::Integer(0));
    }
    let Some(place) = list.iter().position(|item| item == arguments[3]) else { return Ok(RedisReply::Integer(-1)) };

    drop(list);
    let mut list = view.take::<ListItems>(key)?;
    list.insert(place + usize::from(is_after), arguments[4].to_vec());
    let length = list.len();
    view.put_back(key, list)?;
    Ok(RedisReply::count(length))
}

/// The options of LPOS.
struct PositionOptions {
    /// RANK: which match is the first one shown; from the end if it is below zero.
    rank: i64,
    /// COUNT: an array of so many places, and not one place.
    count: Option<usize>,
    /// MAXLEN: no more items are compared.
    compared_max: usize,
}

impl PositionOptions {
    /// Reads the options, in pairs of a name and a number.
    fn read(options: &Arguments<'_>) -> Result<Self, Stop> {
        let mut read = Self { rank: 1, count: None, compared_max: usize::MAX };

        for option in options.chunks(2) {
            let &[name, value] = option else { return Err(syntax_error()) };
            if is_word(name, "RANK") {
                read.rank = integer(value)?;
                if read.rank == 0 {
                    return Err(Stop::refused(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start \
                         from the end of the list",
                    ));
                }
                if read.rank == i64::MIN {
                    return Err(not_an_integer());
                }
            } else if is_word(name, "COUNT") {
                let count = positive(value).map_err(|_| Stop::refused("ERR COUNT can't be negative"))?;
                read.count = Some(if count == 0 { usize::MAX } else { count });
            } else if is_word(name, "MAXLEN") {
                let limit = positive(value).map_err(|_| Stop::refused("ERR MAXLEN can't be negative"))?;
                read.compared_max = if limit == 0 { usize::MAX } else { limit };
            } else {
                return Err(syntax_error());
            }
        }
        Ok(read)
    }
}

/// Serves `LPOS key item`: the index of an equal item, or nil.
pub(super) fn position(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let PositionOptions { rank, count, compared_max } = PositionOptions::read(&arguments[3..])?;
    let list = view.read::<ListItems>(arguments[1])?;
    view.spend(list.len())?;

    let skipped = usize::try_from(rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let is_match = |(_, item): &(usize, &Vec<u8>)| *item == arguments[2];
    let places: Vec<usize> = if rank > 0 {
        let compared = list.iter().enumerate().take(compared_max);
        compared.filter(is_match).skip(skipped).take(count.unwrap_or(1)).map(|(place, _)| place).collect()
    } else {
        let compared = list.iter().enumerate().rev().take(compared_max);
        compared.filter(is_match).skip(skipped).take(count.unwrap_or(1)).map(|(place, _)| place).collect()
    };

    if count.is_some() {
        return Ok(RedisReply::Array(places.into_iter().map(RedisReply::count).collect()));
    }
    Ok(places.first().map_or(RedisReply::Nil, |place| RedisReply::count(*place)))
}

/// Serves `LMOVE source target end end`: the item that moved, or nil.
pub(super) fn move_item(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let from = ListEnd::read(arguments[3])?;
    let to = ListEnd::read(arguments[4])?;
    move_between(view, arguments[1], arguments[2], from, to)
}

/// Serves `RPOPLPUSH source target`: the last item becomes the first one of the other list.
pub(super) fn pop_and_push(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    move_between(view, arguments[1], arguments[2], ListEnd::Right, ListEnd::Left)
}

/// Moves an item. A target of another type is an error before anything moves; without the source it does not matter.
fn move_between(view: &mut UnitView, source: &[u8], target: &[u8], from: ListEnd, to: ListEnd) -> CommandResult {
    let target_kind = view.kind(target)?;
    let present = view.read::<ListItems>(source)?;
    let Some(moved) = from.in_order(&present).next() else { return Ok(RedisReply::Nil) };
    if target_kind.is_some() {
        view.read::<ListItems>(target)?;
    }
    let shown = bulk(view, moved)?;
    drop(present);

    let mut list = view.take::<ListItems>(source)?;
    let item = from.pop(&mut list).expect("the list has an item");
    if source == target {
        to.push(&mut list, item);
        view.put_back(source, list)?;
        return Ok(shown);
    }
    view.put_back(source, list)?;
    let mut list = view.take::<ListItems>(target)?;
    to.push(&mut list, item);
    view.put_back(target, list)?;
    Ok(shown)
}

/// Checks the timeout of a command that waits: seconds, with a fraction. Zero waits for ever.
pub(crate) fn timeout_seconds(argument: &[u8]) -> Result<f64, Stop> {
    let seconds = double(argument).ok().filter(|seconds| seconds.is_finite() && *seconds < 9.2e15);
    let seconds = seconds.ok_or_else(|| Stop::refused("ERR timeout is not a float or out of range"))?;
    if seconds < 0.0 { Err(Stop::refused("ERR timeout is negative")) } else { Ok(seconds) }
}

/// Serves one try of `BLPOP key … timeout`.
pub(super) fn blocking_pop_left(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop_first(view, arguments, ListEnd::Left)
}

/// Serves one try of `BRPOP key … timeout`.
pub(super) fn blocking_pop_right(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop_first(view, arguments, ListEnd::Right)
}

/// One try of a blocking pop: the first list that has an item gives it. Without one the reply is nil, as within a transaction.
fn pop_first(view: &mut UnitView, arguments: &Arguments<'_>, end: ListEnd) -> CommandResult {
    let (timeout, keys) = arguments[1..].split_last().expect("the arity is checked");
    timeout_seconds(timeout)?;
    for key in keys {
        let present = view.read::<ListItems>(key)?;
        let Some(item) = end.in_order(&present).next() else { continue };
        let shown = bulk(view, item)?;
        drop(present);

        let mut list = view.take::<ListItems>(key)?;
        end.pop(&mut list);
        view.put_back(key, list)?;
        return Ok(RedisReply::Array(vec![RedisReply::Bulk(key.to_vec()), shown]));
    }
    Ok(RedisReply::NilArray)
}

/// Serves one try of `BLMOVE source target end end timeout`.
pub(super) fn blocking_move(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    timeout_seconds(arguments[5])?;
    nil_is_array(move_item(view, arguments)?)
}

/// Serves one try of `BRPOPLPUSH source target timeout`.
pub(super) fn blocking_pop_and_push(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    timeout_seconds(arguments[3])?;
    nil_is_array(pop_and_push(view, arguments)?)
}

/// A command that waits in vain answers that there is no array, even if it would have answered with a string.
fn nil_is_array(reply: RedisReply) -> CommandResult {
    Ok(if reply == RedisReply::Nil { RedisReply::NilArray } else { reply })
}
