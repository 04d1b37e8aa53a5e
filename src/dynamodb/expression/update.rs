//! Applies updates to items.
//!
//! All new values are computed from the old item, and then the paths are written. Elements are removed from lists last, so that each index
//! means what it meant in the old item.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Action, Path, PathStep, ValueSource, evaluate::at};
use crate::{AttributeValue, Item, NumberError, database::ITEM_BYTES_MAX};

/// Maximum number of bytes of values that an update may make. They end up in one item, except operands of sums and of sets.
const MADE_BYTES_MAX: usize = 2 * ITEM_BYTES_MAX;

/// Returns the item after the actions. The error is in DynamoDB's words.
pub(crate) fn apply(item: &Item, actions: &[Action]) -> Result<Item, String> {
    let mut updated = item.clone();
    let mut room = ValueRoom(MADE_BYTES_MAX);
    let mut removed = Vec::new();

    for action in actions {
        match action {
            Action::Set(path, source) => put(&mut updated, path, source.value(item, &mut room)?)?,
            Action::Add(path, value) => {
                room.take(value)?;
                let sum = match at(item, path) {
                    None => value.clone(),
                    Some(existing) => {
                        room.take(existing)?;
                        added(existing, value).ok_or_else(wrong_type)??
                    }
                };
                put(&mut updated, path, sum)?;
            }
            Action::Delete(path, value) => {
                let Some(existing) = at(item, path) else { continue };
                room.take(existing)?;
                let left = without(existing, value).ok_or_else(wrong_type)?;
                match left {
                    Some(left) => put(&mut updated, path, left)?,
                    None => removed.push(path),
                }
            }
            Action::Remove(path) => removed.push(path),
        }
    }

    remove(&mut updated, removed)?;
    Ok(updated)
}

/// The number of bytes that may still be made.
struct ValueRoom(usize);

impl ValueRoom {
    fn take(&mut self, value: &AttributeValue) -> Result<(), String> {
        let left = self.0.checked_sub(value.size());
        self.0 = left.ok_or_else(|| "Item size to update has exceeded the maximum allowed size".to_owned())?;
        Ok(())
    }

    fn copy(&mut self, value: &AttributeValue) -> Result<AttributeValue, String> {
        self.take(value)?;
        Ok(value.clone())
    }
}

impl ValueSource {
    fn value(&self, item: &Item, room: &mut ValueRoom) -> Result<AttributeValue, String> {
        match self {
            Self::Value(value) => room.copy(value),
            Self::Path(path) => {
                let value = at(item, path).ok_or_else(|| {
                    "The provided expression refers to an attribute that does not exist in the item".to_owned()
                })?;
                room.copy(value)
            }
            Self::IfNotExists(path, otherwise) => match at(item, path) {
                Some(value) => room.copy(value),
                None => otherwise.value(item, room),
            },
            Self::ListAppend(first, second) => match (first.value(item, room)?, second.value(item, room)?) {
                (AttributeValue::L(mut first), AttributeValue::L(second)) => {
                    first.extend(second);
                    Ok(AttributeValue::L(first))
                }
                _ => Err(wrong_type()),
            },
            Self::Plus(left, right) => match (left.value(item, room)?, right.value(item, room)?) {
                (AttributeValue::N(left), AttributeValue::N(right)) => number(left.plus(right)),
                _ => Err(wrong_type()),
            },
            Self::Minus(left, right) => match (left.value(item, room)?, right.value(item, room)?) {
                (AttributeValue::N(left), AttributeValue::N(right)) => number(left.minus(right)),
                _ => Err(wrong_type()),
            },
        }
    }
}

fn wrong_type() -> String {
    "An operand in the update expression has an incorrect data type".to_owned()
}

fn number(result: Result<crate::Number, NumberError>) -> Result<AttributeValue, String> {
    result.map(AttributeValue::N).map_err(|error| error.to_string())
}

/// Adds two numbers, two sets, or two lists, which only the legacy form has. Returns `None` for two types.
fn added(existing: &AttributeValue, more: &AttributeValue) -> Option<Result<AttributeValue, String>> {
    Some(Ok(match (existing, more) {
        (AttributeValue::N(a), AttributeValue::N(b)) => return Some(number(a.plus(*b))),
        (AttributeValue::Ss(a), AttributeValue::Ss(b)) => AttributeValue::Ss(a | b),
        (AttributeValue::Ns(a), AttributeValue::Ns(b)) => AttributeValue::Ns(a | b),
        (AttributeValue::Bs(a), AttributeValue::Bs(b)) => AttributeValue::Bs(a | b),
        (AttributeValue::L(a), AttributeValue::L(b)) => AttributeValue::L([&**a, &**b].concat()),
        _ => return None,
    }))
}

/// Removes the elements of another set. Returns `None` for two types, and `None` inside if no element is left.
fn without(existing: &AttributeValue, less: &AttributeValue) -> Option<Option<AttributeValue>> {
    let left = match (existing, less) {
        (AttributeValue::Ss(a), AttributeValue::Ss(b)) => {
            Some(a - b).filter(|set| !set.is_empty()).map(AttributeValue::Ss)
        }
        (AttributeValue::Ns(a), AttributeValue::Ns(b)) => {
            Some(a - b).filter(|set| !set.is_empty()).map(AttributeValue::Ns)
        }
        (AttributeValue::Bs(a), AttributeValue::Bs(b)) => {
            Some(a - b).filter(|set| !set.is_empty()).map(AttributeValue::Bs)
        }
        _ => return None,
    };

    Some(left)
}

/// The container of a value.
enum ParentValue<'a> {
    Map(&'a mut Item),
    List(&'a mut Vec<AttributeValue>),
}

fn invalid() -> String {
    "The document path provided in the update expression is invalid for update".to_owned()
}

fn parent<'a>(item: &'a mut Item, steps: &[PathStep]) -> Result<ParentValue<'a>, String> {
    let Some((first, inner)) = steps.split_first() else { return Ok(ParentValue::Map(item)) };
    let PathStep::Name(head) = first else { return Err(invalid()) };
    let mut value = item.get_mut(head).ok_or_else(invalid)?;

    for step in inner {
        value = match (value, step) {
            (AttributeValue::M(map), PathStep::Name(name)) => map.get_mut(name),
            (AttributeValue::L(list), PathStep::Index(index)) => list.get_mut(*index),
            _ => None,
        }
        .ok_or_else(invalid)?;
    }

    match value {
        AttributeValue::M(map) => Ok(ParentValue::Map(map)),
        AttributeValue::L(list) => Ok(ParentValue::List(list)),
        AttributeValue::S(_)
        | AttributeValue::N(_)
        | AttributeValue::B(_)
        | AttributeValue::Bool(_)
        | AttributeValue::Null => Err(invalid()),
        AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_) => Err(invalid()),
    }
}

fn put(item: &mut Item, path: &Path, value: AttributeValue) -> Result<(), String> {
    let (last, parents) = path.0.split_last().ok_or_else(invalid)?;
    match (parent(item, parents)?, last) {
        (ParentValue::Map(map), PathStep::Name(name)) => {
            map.insert(name.to_owned(), value);
        }
        // Beyond its end, a list grows by one element.
        (ParentValue::List(list), PathStep::Index(index)) => match list.get_mut(*index) {
            Some(element) => *element = value,
            None => list.push(value),
        },
        (ParentValue::Map(_), PathStep::Index(_)) | (ParentValue::List(_), PathStep::Name(_)) => return Err(invalid()),
    }
    Ok(())
}

/// Removes the values at paths. The deepest go first, and all elements of one list go together, because removing one moves those behind it.
fn remove(item: &mut Item, paths: Vec<&Path>) -> Result<(), String> {
    let mut by_parent = BTreeMap::<_, Vec<_>>::new();
    for path in paths {
        let (last, parents) = path.0.split_last().ok_or_else(invalid)?;
        by_parent.entry((Reverse(parents.len()), parents)).or_default().push(last);
    }

    for ((_, parents), lasts) in by_parent {
        let mut place = parent(item, parents)?;
        let mut indexes = BTreeSet::new();
        for last in lasts {
            match (&mut place, last) {
                (ParentValue::Map(map), PathStep::Name(name)) => {
                    map.remove(name);
                }
                (ParentValue::List(_), PathStep::Index(index)) => {
                    indexes.insert(*index);
                }
                (ParentValue::Map(_), PathStep::Index(_)) | (ParentValue::List(_), PathStep::Name(_)) => {
                    return Err(invalid());
                }
            }
        }

        if let ParentValue::List(list) = place {
            let mut index = 0;
            list.retain(|_| {
                index += 1;
                !indexes.contains(&(index - 1))
            });
        }
    }
    Ok(())
}
