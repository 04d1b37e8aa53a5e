//! Evaluates conditions on items, and shows the parts of items that projections name.
//!
//! Everything that is visited, compared or searched is charged to the request's [`WorkBudget`].

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap};

use super::{Comparison, Condition, ConditionOperand, Path, PathStep, search};
use crate::{
    AttributeValue, Item, Number,
    value::DEPTH_MAX,
    work::{Exhausted, WorkBudget},
};

type Evaluated<T> = std::result::Result<T, Exhausted>;

/// Returns the value at a path.
pub(crate) fn at<'a>(item: &'a Item, path: &Path) -> Option<&'a AttributeValue> {
    let (first, rest) = path.0.split_first()?;
    let PathStep::Name(name) = first else { return None };
    rest.iter().try_fold(item.get(name)?, |value, step| match (value, step) {
        (AttributeValue::M(map), PathStep::Name(name)) => map.get(name),
        (AttributeValue::L(list), PathStep::Index(index)) => list.get(*index),
        _ => None,
    })
}

fn found<'a>(item: &'a Item, path: &Path, work: &WorkBudget) -> Evaluated<Option<&'a AttributeValue>> {
    // A path need not be followed further than an item is deep.
    for step in path.0.iter().take(DEPTH_MAX + 1) {
        match step {
            PathStep::Name(name) => work.spend_bytes(name.len())?,
            PathStep::Index(_) => work.spend(1)?,
        }
    }
    Ok(at(item, path))
}

impl Condition {
    /// Whether the condition is true for an item. A missing item has no attributes.
    pub(crate) fn holds(&self, item: &Item, work: &WorkBudget) -> Evaluated<bool> {
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
                    (Some(AttributeValue::S(text)), Some(AttributeValue::S(prefix))) => {
                        work.spend_bytes(text.len().min(prefix.len()))?;
                        text.starts_with(prefix)
                    }
                    (Some(AttributeValue::B(bytes)), Some(AttributeValue::B(prefix))) => {
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

impl ConditionOperand {
    fn value<'a>(&'a self, item: &'a Item, work: &WorkBudget) -> Evaluated<Option<Cow<'a, AttributeValue>>> {
        Ok(match self {
            Self::Path(path) => found(item, path, work)?.map(Cow::Borrowed),
            Self::Value(value) => Some(Cow::Borrowed(value)),
            Self::Size(inner) => {
                let Some(value) = inner.value(item, work)? else { return Ok(None) };
                size(&value, work)?.map(|size| Cow::Owned(AttributeValue::N(Number::from(size as u64))))
            }
        })
    }
}

fn size(value: &AttributeValue, work: &WorkBudget) -> Evaluated<Option<usize>> {
    Ok(match value {
        AttributeValue::S(text) => {
            work.spend_bytes(text.len())?;
            Some(text.chars().count())
        }
        AttributeValue::B(bytes) => Some(bytes.len()),
        AttributeValue::Ss(set) => Some(set.len()),
        AttributeValue::Ns(set) => Some(set.len()),
        AttributeValue::Bs(set) => Some(set.len()),
        AttributeValue::L(list) => Some(list.len()),
        AttributeValue::M(map) => Some(map.len()),
        AttributeValue::N(_) | AttributeValue::Bool(_) | AttributeValue::Null => None,
    })
}

/// Whether a text or bytes contain others, or whether a set or a list contains an element.
fn contains(whole: &AttributeValue, element: &AttributeValue, work: &WorkBudget) -> Evaluated<bool> {
    // Searching a set takes about as many steps as the number of its elements has binary digits.
    let steps = |elements: usize| 1 + elements.checked_ilog2().unwrap_or(0) as usize;

    Ok(match (whole, element) {
        (AttributeValue::S(text), AttributeValue::S(part)) => {
            work.spend_bytes(text.len())?;
            text.contains(part)
        }
        (AttributeValue::B(bytes), AttributeValue::B(part)) => {
            work.spend_bytes(bytes.len())?;
            search::contains(bytes, part)
        }
        (AttributeValue::Ss(set), AttributeValue::S(element)) => {
            work.spend_bytes(element.len() * steps(set.len()))?;
            set.contains(element)
        }
        (AttributeValue::Ns(set), AttributeValue::N(element)) => {
            work.spend(steps(set.len()))?;
            set.contains(element)
        }
        (AttributeValue::Bs(set), AttributeValue::B(element)) => {
            work.spend_bytes(element.len() * steps(set.len()))?;
            set.contains(element)
        }
        (AttributeValue::L(list), element) => {
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
fn equal(left: &AttributeValue, right: &AttributeValue, work: &WorkBudget) -> Evaluated<bool> {
    match (left, right) {
        (AttributeValue::S(left), AttributeValue::S(right)) => work.spend_bytes(left.len().min(right.len()))?,
        (AttributeValue::B(left), AttributeValue::B(right)) => work.spend_bytes(left.len().min(right.len()))?,
        (AttributeValue::Ss(left), AttributeValue::Ss(right)) if left.len() == right.len() => {
            left.iter().try_for_each(|text| work.spend_bytes(text.len()))?;
        }
        (AttributeValue::Ns(left), AttributeValue::Ns(right)) if left.len() == right.len() => work.spend(left.len())?,
        (AttributeValue::Bs(left), AttributeValue::Bs(right)) if left.len() == right.len() => {
            left.iter().try_for_each(|bytes| work.spend_bytes(bytes.len()))?;
        }

        (AttributeValue::L(left), AttributeValue::L(right)) => {
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
        (AttributeValue::M(left), AttributeValue::M(right)) => {
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
pub(crate) fn order(left: &AttributeValue, right: &AttributeValue) -> Option<Ordering> {
    match (left, right) {
        (AttributeValue::S(left), AttributeValue::S(right)) => Some(left.cmp(right)),
        (AttributeValue::N(left), AttributeValue::N(right)) => Some(left.cmp(right)),
        (AttributeValue::B(left), AttributeValue::B(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// Compares two values. A missing attribute differs from all values, and is neither less nor greater than one.
fn compare(
    comparison: Comparison,
    left: Option<Cow<'_, AttributeValue>>,
    right: Option<Cow<'_, AttributeValue>>,
    work: &WorkBudget,
) -> Evaluated<bool> {
    let (Some(left), Some(right)) = (&left, &right) else {
        return Ok(comparison == Comparison::NotEqual);
    };

    let ordered = || {
        let bytes = match (&**left, &**right) {
            (AttributeValue::S(left), AttributeValue::S(right)) => left.len().min(right.len()),
            (AttributeValue::B(left), AttributeValue::B(right)) => left.len().min(right.len()),
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
                    PathStep::Name(name) => place.names.entry(name.clone()).or_default(),
                    PathStep::Index(index) => place.indexes.entry(*index).or_default(),
                };
            }
            place.shows_all = true;
        }
        root
    }

    /// Returns the part of an item that is shown.
    pub(crate) fn project(&self, item: &Item) -> Item {
        let part =
            |name: &String, value: &AttributeValue, inner: &Self| Some((name.clone(), inner.project_value(value)?));
        // The projection may have many names for small items, or few names for large ones.
        if item.len() < self.names.len() {
            item.iter().filter_map(|(name, value)| part(name, value, self.names.get(name)?)).collect()
        } else {
            self.names.iter().filter_map(|(name, inner)| part(name, item.get(name)?, inner)).collect()
        }
    }

    fn project_value(&self, value: &AttributeValue) -> Option<AttributeValue> {
        if self.shows_all {
            return Some(value.clone());
        }

        match value {
            AttributeValue::M(map) => Some(self.project(map)).filter(|map| !map.is_empty()).map(AttributeValue::M),
            AttributeValue::L(list) => {
                let parts = self.indexes.range(..list.len());
                let parts: Vec<_> = parts.filter_map(|(index, inner)| inner.project_value(list.get(*index)?)).collect();
                Some(parts).filter(|list| !list.is_empty()).map(AttributeValue::L)
            }
            AttributeValue::S(_)
            | AttributeValue::N(_)
            | AttributeValue::B(_)
            | AttributeValue::Bool(_)
            | AttributeValue::Null => None,
            AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_) => None,
        }
    }
}
