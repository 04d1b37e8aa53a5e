//! Applies updates to items.
//!
//! All new values are computed from the old item, and then the paths are written. Elements are removed from lists last, so that each index
//! means what it meant in the old item.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Action, Path, Source, Step, evaluate::at};
use crate::{Item, NumberError, Value, database::ITEM_BYTES_MAX};

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
    fn take(&mut self, value: &Value) -> Result<(), String> {
        let left = self.0.checked_sub(value.size());
        self.0 = left.ok_or_else(|| "Item size to update has exceeded the maximum allowed size".to_owned())?;
        Ok(())
    }

    fn copy(&mut self, value: &Value) -> Result<Value, String> {
        self.take(value)?;
        Ok(value.clone())
    }
}

impl Source {
    fn value(&self, item: &Item, room: &mut ValueRoom) -> Result<Value, String> {
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
                (Value::L(mut first), Value::L(second)) => {
                    first.extend(second);
                    Ok(Value::L(first))
                }
                _ => Err(wrong_type()),
            },
            Self::Plus(left, right) => match (left.value(item, room)?, right.value(item, room)?) {
                (Value::N(left), Value::N(right)) => number(left.plus(right)),
                _ => Err(wrong_type()),
            },
            Self::Minus(left, right) => match (left.value(item, room)?, right.value(item, room)?) {
                (Value::N(left), Value::N(right)) => number(left.minus(right)),
                _ => Err(wrong_type()),
            },
        }
    }
}

fn wrong_type() -> String {
    "An operand in the update expression has an incorrect data type".to_owned()
}

fn number(result: Result<crate::Number, NumberError>) -> Result<Value, String> {
    result.map(Value::N).map_err(|error| error.to_string())
}

/// Adds two numbers, two sets, or two lists, which only the legacy form has. Returns `None` for two types.
fn added(existing: &Value, more: &Value) -> Option<Result<Value, String>> {
    Some(Ok(match (existing, more) {
        (Value::N(a), Value::N(b)) => return Some(number(a.plus(*b))),
        (Value::Ss(a), Value::Ss(b)) => Value::Ss(a | b),
        (Value::Ns(a), Value::Ns(b)) => Value::Ns(a | b),
        (Value::Bs(a), Value::Bs(b)) => Value::Bs(a | b),
        (Value::L(a), Value::L(b)) => Value::L([&**a, &**b].concat()),
        _ => return None,
    }))
}

/// Removes the elements of another set. Returns `None` for two types, and `None` inside if no element is left.
fn without(existing: &Value, less: &Value) -> Option<Option<Value>> {
    let left = match (existing, less) {
        (Value::Ss(a), Value::Ss(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Ss),
        (Value::Ns(a), Value::Ns(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Ns),
        (Value::Bs(a), Value::Bs(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Bs),
        _ => return None,
    };
    Some(left)
}

/// The container of a value.
enum Parent<'a> {
    Map(&'a mut Item),
    List(&'a mut Vec<Value>),
}

fn invalid() -> String {
    "The document path provided in the update expression is invalid for update".to_owned()
}

fn parent<'a>(item: &'a mut Item, steps: &[Step]) -> Result<Parent<'a>, String> {
    let Some((first, inner)) = steps.split_first() else { return Ok(Parent::Map(item)) };
    let Step::Name(head) = first else { return Err(invalid()) };
    let mut value = item.get_mut(head).ok_or_else(invalid)?;

    for step in inner {
        value = match (value, step) {
            (Value::M(map), Step::Name(name)) => map.get_mut(name),
            (Value::L(list), Step::Index(index)) => list.get_mut(*index),
            _ => None,
        }
        .ok_or_else(invalid)?;
    }

    match value {
        Value::M(map) => Ok(Parent::Map(map)),
        Value::L(list) => Ok(Parent::List(list)),
        Value::S(_) | Value::N(_) | Value::B(_) | Value::Bool(_) | Value::Null => Err(invalid()),
        Value::Ss(_) | Value::Ns(_) | Value::Bs(_) => Err(invalid()),
    }
}

fn put(item: &mut Item, path: &Path, value: Value) -> Result<(), String> {
    let (last, parents) = path.0.split_last().ok_or_else(invalid)?;
    match (parent(item, parents)?, last) {
        (Parent::Map(map), Step::Name(name)) => {
            map.insert(name.to_owned(), value);
        }
        // Beyond its end, a list grows by one element.
        (Parent::List(list), Step::Index(index)) => match list.get_mut(*index) {
            Some(element) => *element = value,
            None => list.push(value),
        },
        (Parent::Map(_), Step::Index(_)) | (Parent::List(_), Step::Name(_)) => return Err(invalid()),
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
                (Parent::Map(map), Step::Name(name)) => _ = map.remove(name),
                (Parent::List(_), Step::Index(index)) => _ = indexes.insert(*index),
                (Parent::Map(_), Step::Index(_)) | (Parent::List(_), Step::Name(_)) => return Err(invalid()),
            }
        }
        if let Parent::List(list) = place {
            let mut index = 0;
            list.retain(|_| {
                index += 1;
                !indexes.contains(&(index - 1))
            });
        }
    }
    Ok(())
}
