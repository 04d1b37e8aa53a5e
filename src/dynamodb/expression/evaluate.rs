//! Evaluates conditions on items, and shows the parts of items that projections name.
//!
//! Everything that is visited, compared or searched is charged to the request's [`Work`].

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap};

use super::{Comparison, Condition, Operand, Path, Step, search};
use crate::{
    Item, Number, Value,
    value::DEPTH_MAX,
    work::{Exhausted, Work},
};

type Result<T> = std::result::Result<T, Exhausted>;

/// Returns the value at a path.
pub(crate) fn at<'a>(item: &'a Item, path: &Path) -> Option<&'a Value> {
    let (first, rest) = path.0.split_first()?;
    let Step::Name(name) = first else { return None };
    rest.iter().try_fold(item.get(name)?, |value, step| match (value, step) {
        (Value::M(map), Step::Name(name)) => map.get(name),
        (Value::L(list), Step::Index(index)) => list.get(*index),
        _ => None,
    })
}

fn found<'a>(item: &'a Item, path: &Path, work: &Work) -> Result<Option<&'a Value>> {
    // A path need not be followed further than an item is deep.
    for step in path.0.iter().take(DEPTH_MAX + 1) {
        match step {
            Step::Name(name) => work.spend_bytes(name.len())?,
            Step::Index(_) => work.spend(1)?,
        }
    }
    Ok(at(item, path))
}

impl Condition {
    /// Whether the condition is true for an item. A missing item has no attributes.
    pub(crate) fn holds(&self, item: &Item, work: &Work) -> Result<bool> {
        work.spend(1)?;
        Ok(match self {
            Self::All(parts) => {
                for part in parts {
                    if !part.holds(item, work)? {
                        return Ok(false);
                    }
                }
                true
            }
            Self::Any(parts) => {
                for part in parts {
                    if part.holds(item, work)? {
                        return Ok(true);
                    }
                }
                false
            }
            Self::Not(inner) => !inner.holds(item, work)?,
            Self::Exists(path) => found(item, path, work)?.is_some(),
            Self::NotExists(path) => found(item, path, work)?.is_none(),
            Self::HasType(operand, kind) => operand.value(item, work)?.is_some_and(|value| value.kind() == kind),
            Self::Compare(comparison, left, right) => {
                compare(*comparison, left.value(item, work)?, right.value(item, work)?, work)?
            }
            Self::Between(operand, low, high) => {
                let value = operand.value(item, work)?;
                compare(Comparison::GreaterOrEqual, value.clone(), low.value(item, work)?, work)?
                    && compare(Comparison::LessOrEqual, value, high.value(item, work)?, work)?
            }
            Self::In(operand, list) => {
                let Some(value) = operand.value(item, work)? else { return Ok(false) };
                for other in list {
                    if let Some(other) = other.value(item, work)?
                        && equal(&other, &value, work)?
                    {
                        return Ok(true);
                    }
                }
                false
            }
            Self::BeginsWith(operand, prefix) => {
                match (operand.value(item, work)?.as_deref(), prefix.value(item, work)?.as_deref()) {
                    (Some(Value::S(text)), Some(Value::S(prefix))) => {
                        work.spend_bytes(text.len().min(prefix.len()))?;
                        text.starts_with(prefix)
                    }
                    (Some(Value::B(bytes)), Some(Value::B(prefix))) => {
                        work.spend_bytes(bytes.len().min(prefix.len()))?;
                        bytes.starts_with(prefix)
                    }
                    _ => false,
                }
            }
            Self::Contains(operand, element) => {
                match (operand.value(item, work)?.as_deref(), element.value(item, work)?.as_deref()) {
                    (Some(whole), Some(element)) => contains(whole, element, work)?,
                    _ => false,
                }
            }
        })
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Item, work: &Work) -> Result<Option<Cow<'a, Value>>> {
        Ok(match self {
            Self::Path(path) => found(item, path, work)?.map(Cow::Borrowed),
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Size(inner) => {
                let Some(value) = inner.value(item, work)? else { return Ok(None) };
                size(&value, work)?.map(|size| Cow::Owned(Value::N(Number::from(size as u64))))
            }
        })
    }
}

fn size(value: &Value, work: &Work) -> Result<Option<usize>> {
    Ok(match value {
        Value::S(text) => {
            work.spend_bytes(text.len())?;
            Some(text.chars().count())
        }
        Value::B(bytes) => Some(bytes.len()),
        Value::Ss(set) => Some(set.len()),
        Value::Ns(set) => Some(set.len()),
        Value::Bs(set) => Some(set.len()),
        Value::L(list) => Some(list.len()),
        Value::M(map) => Some(map.len()),
        Value::N(_) | Value::Bool(_) | Value::Null => None,
    })
}

/// Whether a text or bytes contain others, or whether a set or a list contains an element.
fn contains(whole: &Value, element: &Value, work: &Work) -> Result<bool> {
    // Searching a set takes about as many steps as the number of its elements has binary digits.
    let steps = |elements: usize| 1 + elements.checked_ilog2().unwrap_or(0) as usize;

    Ok(match (whole, element) {
        (Value::S(text), Value::S(part)) => {
            work.spend_bytes(text.len())?;
            text.contains(part)
        }
        (Value::B(bytes), Value::B(part)) => {
            work.spend_bytes(bytes.len())?;
            search::contains(bytes, part)
        }
        (Value::Ss(set), Value::S(element)) => {
            work.spend_bytes(element.len() * steps(set.len()))?;
            set.contains(element)
        }
        (Value::Ns(set), Value::N(element)) => {
            work.spend(steps(set.len()))?;
            set.contains(element)
        }
        (Value::Bs(set), Value::B(element)) => {
            work.spend_bytes(element.len() * steps(set.len()))?;
            set.contains(element)
        }
        (Value::L(list), element) => {
            for one in list {
                if equal(one, element, work)? {
                    return Ok(true);
                }
            }
            false
        }
        _ => false,
    })
}

/// Whether two values are the same. The comparison stops at the first difference.
fn equal(left: &Value, right: &Value, work: &Work) -> Result<bool> {
    match (left, right) {
        (Value::S(left), Value::S(right)) => work.spend_bytes(left.len().min(right.len()))?,
        (Value::B(left), Value::B(right)) => work.spend_bytes(left.len().min(right.len()))?,
        (Value::Ss(left), Value::Ss(right)) if left.len() == right.len() => {
            left.iter().try_for_each(|text| work.spend_bytes(text.len()))?;
        }
        (Value::Ns(left), Value::Ns(right)) if left.len() == right.len() => work.spend(left.len())?,
        (Value::Bs(left), Value::Bs(right)) if left.len() == right.len() => {
            left.iter().try_for_each(|bytes| work.spend_bytes(bytes.len()))?;
        }
        (Value::L(left), Value::L(right)) => {
            work.spend(1)?;
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.iter().zip(right) {
                if !equal(left, right, work)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        (Value::M(left), Value::M(right)) => {
            work.spend(1)?;
            if left.len() != right.len() {
                return Ok(false);
            }
            for ((left_name, left), (right_name, right)) in left.iter().zip(right) {
                work.spend_bytes(left_name.len().min(right_name.len()))?;
                if left_name != right_name || !equal(left, right, work)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        _ => work.spend(1)?,
    }
    Ok(left == right)
}

/// The order of two values, if they have one: two texts, two numbers, or two byte strings.
pub(crate) fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::S(left), Value::S(right)) => Some(left.cmp(right)),
        (Value::N(left), Value::N(right)) => Some(left.cmp(right)),
        (Value::B(left), Value::B(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// Compares two values. A missing attribute differs from all values, and is neither less nor greater than one.
fn compare(
    comparison: Comparison,
    left: Option<Cow<'_, Value>>,
    right: Option<Cow<'_, Value>>,
    work: &Work,
) -> Result<bool> {
    let (Some(left), Some(right)) = (&left, &right) else {
        return Ok(comparison == Comparison::NotEqual);
    };

    let ordered = || {
        let bytes = match (&**left, &**right) {
            (Value::S(left), Value::S(right)) => left.len().min(right.len()),
            (Value::B(left), Value::B(right)) => left.len().min(right.len()),
            _ => 0,
        };
        work.spend_bytes(bytes)?;
        Ok(order(left, right))
    };

    Ok(match comparison {
        Comparison::Equal => equal(left, right, work)?,
        Comparison::NotEqual => !equal(left, right, work)?,
        Comparison::Less => ordered()?.is_some_and(Ordering::is_lt),
        Comparison::LessOrEqual => ordered()?.is_some_and(Ordering::is_le),
        Comparison::Greater => ordered()?.is_some_and(Ordering::is_gt),
        Comparison::GreaterOrEqual => ordered()?.is_some_and(Ordering::is_ge),
    })
}

/// The parts of items that paths show. Elements of a list move together.
///
/// It is a tree, so that the paths are compared to each other once, and not again for each item.
#[derive(Debug, Default)]
pub(crate) struct Projection {
    /// Whether a requested path ends here.
    shows_all: bool,
    names: BTreeMap<String, Projection>,
    indexes: BTreeMap<usize, Projection>,
}

impl Projection {
    pub(crate) fn new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut root = Self::default();

        for path in paths {
            let mut place = &mut root;
            for step in &path.0 {
                place = match step {
                    Step::Name(name) => place.names.entry(name.clone()).or_default(),
                    Step::Index(index) => place.indexes.entry(*index).or_default(),
                };
            }
            place.shows_all = true;
        }
        root
    }

    /// Returns the part of an item that is shown.
    pub(crate) fn project(&self, item: &Item) -> Item {
        let part = |name: &String, value: &Value, inner: &Self| Some((name.clone(), inner.project_value(value)?));
        // The projection may have many names for small items, or few names for large ones.
        if item.len() < self.names.len() {
            item.iter().filter_map(|(name, value)| part(name, value, self.names.get(name)?)).collect()
        } else {
            self.names.iter().filter_map(|(name, inner)| part(name, item.get(name)?, inner)).collect()
        }
    }

    fn project_value(&self, value: &Value) -> Option<Value> {
        if self.shows_all {
            return Some(value.clone());
        }

        match value {
            Value::M(map) => Some(self.project(map)).filter(|map| !map.is_empty()).map(Value::M),
            Value::L(list) => {
                let parts = self.indexes.range(..list.len());
                let parts: Vec<_> = parts.filter_map(|(index, inner)| inner.project_value(list.get(*index)?)).collect();
                Some(parts).filter(|list| !list.is_empty()).map(Value::L)
            }
            Value::S(_) | Value::N(_) | Value::B(_) | Value::Bool(_) | Value::Null => None,
            Value::Ss(_) | Value::Ns(_) | Value::Bs(_) => None,
        }
    }
}
