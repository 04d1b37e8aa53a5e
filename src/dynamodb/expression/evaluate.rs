//! What a condition says of an item, and what a projection shows of it.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap};

use super::{Comparison, Condition, Operand, Path, Step};
use crate::{Item, Number, Value};

/// The value at a path.
pub(crate) fn at<'a>(item: &'a Item, path: &Path) -> Option<&'a Value> {
    let (first, rest) = path.0.split_first()?;
    let Step::Name(name) = first else { return None };
    rest.iter().try_fold(item.get(name)?, |value, step| match (value, step) {
        (Value::M(map), Step::Name(name)) => map.get(name),
        (Value::L(list), Step::Index(index)) => list.get(*index),
        _ => None,
    })
}

impl Condition {
    /// Whether it is true of an item. An item that is not there has no attributes.
    pub(crate) fn holds(&self, item: &Item) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(item)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(item)),
            Self::Not(inner) => !inner.holds(item),
            Self::Exists(path) => at(item, path).is_some(),
            Self::NotExists(path) => at(item, path).is_none(),
            Self::HasType(operand, kind) => operand.value(item).is_some_and(|value| value.kind() == kind),
            Self::Compare(comparison, left, right) => compare(*comparison, left.value(item), right.value(item)),
            Self::Between(operand, low, high) => {
                let value = operand.value(item);
                compare(Comparison::GreaterOrEqual, value.clone(), low.value(item))
                    && compare(Comparison::LessOrEqual, value, high.value(item))
            }
            Self::In(operand, list) => {
                let value = operand.value(item);
                value.is_some() && list.iter().any(|other| other.value(item) == value)
            }
            Self::BeginsWith(operand, prefix) => {
                match (operand.value(item).as_deref(), prefix.value(item).as_deref()) {
                    (Some(Value::S(text)), Some(Value::S(prefix))) => text.starts_with(prefix),
                    (Some(Value::B(bytes)), Some(Value::B(prefix))) => bytes.starts_with(prefix),
                    _ => false,
                }
            }
            Self::Contains(operand, element) => {
                match (operand.value(item).as_deref(), element.value(item).as_deref()) {
                    (Some(Value::S(text)), Some(Value::S(part))) => text.contains(part),
                    (Some(Value::B(bytes)), Some(Value::B(part))) => {
                        part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
                    }
                    (Some(Value::Ss(set)), Some(Value::S(element))) => set.contains(element),
                    (Some(Value::Ns(set)), Some(Value::N(element))) => set.contains(element),
                    (Some(Value::Bs(set)), Some(Value::B(element))) => set.contains(element),
                    (Some(Value::L(list)), Some(element)) => list.contains(element),
                    _ => false,
                }
            }
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Item) -> Option<Cow<'a, Value>> {
        match self {
            Self::Path(path) => at(item, path).map(Cow::Borrowed),
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Size(inner) => {
                let size = size(inner.value(item)?.as_ref())?;
                Some(Cow::Owned(Value::N(Number::from(size as u64))))
            }
        }
    }
}

fn size(value: &Value) -> Option<usize> {
    match value {
        Value::S(text) => Some(text.chars().count()),
        Value::B(bytes) => Some(bytes.len()),
        Value::Ss(set) => Some(set.len()),
        Value::Ns(set) => Some(set.len()),
        Value::Bs(set) => Some(set.len()),
        Value::L(list) => Some(list.len()),
        Value::M(map) => Some(map.len()),
        Value::N(_) | Value::Bool(_) | Value::Null => None,
    }
}

/// The order of two values, where there is one: of two texts, two numbers, or two byte strings.
pub(crate) fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::S(left), Value::S(right)) => Some(left.cmp(right)),
        (Value::N(left), Value::N(right)) => Some(left.cmp(right)),
        (Value::B(left), Value::B(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// A missing attribute is different from all values, and neither less nor greater than one.
fn compare(comparison: Comparison, left: Option<Cow<'_, Value>>, right: Option<Cow<'_, Value>>) -> bool {
    let (Some(left), Some(right)) = (&left, &right) else {
        return comparison == Comparison::NotEqual;
    };
    let ordered = order(left, right);
    match comparison {
        Comparison::Equal => left == right,
        Comparison::NotEqual => left != right,
        Comparison::Less => ordered.is_some_and(Ordering::is_lt),
        Comparison::LessOrEqual => ordered.is_some_and(Ordering::is_le),
        Comparison::Greater => ordered.is_some_and(Ordering::is_gt),
        Comparison::GreaterOrEqual => ordered.is_some_and(Ordering::is_ge),
    }
}

/// The part of an item that paths show. Elements of a list move together.
pub(crate) fn project<'a>(item: &Item, paths: impl IntoIterator<Item = &'a Path>) -> Item {
    let rests = paths.into_iter().map(|path| &*path.0);
    shown_of_map(item, rests.collect())
}

fn shown_of_map(map: &Item, rests: Vec<&[Step]>) -> Item {
    let parts = by_first_step(rests).into_iter();
    let parts = parts.filter_map(|(step, rests)| {
        let Step::Name(name) = step else { return None };
        Some((name.clone(), shown(map.get(name)?, rests)?))
    });
    parts.collect()
}

fn shown(value: &Value, rests: Vec<&[Step]>) -> Option<Value> {
    if rests.iter().any(|rest| rest.is_empty()) {
        return Some(value.clone());
    }
    match value {
        Value::M(map) => Some(shown_of_map(map, rests)).filter(|map| !map.is_empty()).map(Value::M),
        Value::L(list) => {
            let parts = by_first_step(rests).into_iter();
            let parts = parts.filter_map(|(step, rests)| {
                let Step::Index(index) = step else { return None };
                shown(list.get(*index)?, rests)
            });
            Some(parts.collect::<Vec<_>>()).filter(|list| !list.is_empty()).map(Value::L)
        }
        Value::S(_) | Value::N(_) | Value::B(_) | Value::Bool(_) | Value::Null => None,
        Value::Ss(_) | Value::Ns(_) | Value::Bs(_) => None,
    }
}

fn by_first_step(rests: Vec<&[Step]>) -> BTreeMap<&Step, Vec<&[Step]>> {
    let mut by_step = BTreeMap::<_, Vec<_>>::new();
    for (first, rest) in rests.into_iter().filter_map(<[Step]>::split_first) {
        by_step.entry(first).or_default().push(rest);
    }
    by_step
}
