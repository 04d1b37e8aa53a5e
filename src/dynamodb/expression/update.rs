//! What an update makes of an item.
//!
//! All new values are computed from the item as it was; then the paths are written. Elements are removed from lists last, the later ones
//! first, so that each index means what it meant in the item as it was.

use std::cmp::Reverse;

use super::{Action, Path, Source, Step, evaluate::at};
use crate::{Item, NumberError, Value};

/// The item after the actions; or the problem, in DynamoDB's words.
pub(crate) fn apply(item: &Item, actions: &[Action]) -> Result<Item, String> {
    let mut updated = item.clone();
    for action in actions {
        match action {
            Action::Set(path, source) => put(&mut updated, path, source.value(item)?)?,
            Action::Add(path, value) => {
                let sum = match at(item, path) {
                    None => value.clone(),
                    Some(existing) => added(existing, value).ok_or_else(wrong_type)??,
                };
                put(&mut updated, path, sum)?;
            }
            Action::Delete(path, value) => {
                let Some(existing) = at(item, path) else { continue };
                let left = without(existing, value).ok_or_else(wrong_type)?;
                match left {
                    Some(left) => put(&mut updated, path, left)?,
                    None => remove(&mut updated, path)?,
                }
            }
            Action::Remove(_) => {}
        }
    }
    let mut removed: Vec<_> =
        actions.iter().filter_map(|action| if let Action::Remove(path) = action { Some(path) } else { None }).collect();
    removed.sort_by_key(|path| Reverse(&path.0));
    removed.into_iter().try_for_each(|path| remove(&mut updated, path))?;
    Ok(updated)
}

impl Source {
    fn value(&self, item: &Item) -> Result<Value, String> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::Path(path) => at(item, path).cloned().ok_or_else(|| {
                "The provided expression refers to an attribute that does not exist in the item".to_owned()
            }),
            Self::IfNotExists(path, otherwise) => match at(item, path) {
                Some(value) => Ok(value.clone()),
                None => otherwise.value(item),
            },
            Self::ListAppend(first, second) => match (first.value(item)?, second.value(item)?) {
                (Value::L(first), Value::L(second)) => Ok(Value::L([first, second].concat())),
                _ => Err(wrong_type()),
            },
            Self::Plus(left, right) => match (left.value(item)?, right.value(item)?) {
                (Value::N(left), Value::N(right)) => number(left.plus(right)),
                _ => Err(wrong_type()),
            },
            Self::Minus(left, right) => match (left.value(item)?, right.value(item)?) {
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

/// A number and a number; a set and a set; a list and a list, which only the legacy form has. `None`: two types.
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

/// A set without the elements of another; inside, `None` where none is left. `None`: two types.
fn without(existing: &Value, less: &Value) -> Option<Option<Value>> {
    let left = match (existing, less) {
        (Value::Ss(a), Value::Ss(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Ss),
        (Value::Ns(a), Value::Ns(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Ns),
        (Value::Bs(a), Value::Bs(b)) => Some(a - b).filter(|set| !set.is_empty()).map(Value::Bs),
        _ => return None,
    };
    Some(left)
}

/// Where a path ends.
enum Place<'a> {
    Map(&'a mut Item, &'a str),
    List(&'a mut Vec<Value>, usize),
}

fn place<'a>(item: &'a mut Item, path: &'a Path) -> Result<Place<'a>, String> {
    let invalid = || "The document path provided in the update expression is invalid for update".to_owned();
    let (last, parents) = path.0.split_last().ok_or_else(invalid)?;
    let Some((first, inner)) = parents.split_first() else {
        return match last {
            Step::Name(name) => Ok(Place::Map(item, name)),
            Step::Index(_) => Err(invalid()),
        };
    };
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
    match (value, last) {
        (Value::M(map), Step::Name(name)) => Ok(Place::Map(map, name)),
        (Value::L(list), Step::Index(index)) => Ok(Place::List(list, *index)),
        _ => Err(invalid()),
    }
}

fn put(item: &mut Item, path: &Path, value: Value) -> Result<(), String> {
    match place(item, path)? {
        Place::Map(map, name) => {
            map.insert(name.to_owned(), value);
        }
        // Beyond its end, a list grows by one element.
        Place::List(list, index) => match list.get_mut(index) {
            Some(element) => *element = value,
            None => list.push(value),
        },
    }
    Ok(())
}

fn remove(item: &mut Item, path: &Path) -> Result<(), String> {
    match place(item, path)? {
        Place::Map(map, name) => {
            map.remove(name);
        }
        Place::List(list, index) => {
            if index < list.len() {
                list.remove(index);
            }
        }
    }
    Ok(())
}
