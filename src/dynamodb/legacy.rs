//! The parameters that came before expressions: `Expected`, `AttributeUpdates`, `KeyConditions`, `QueryFilter`, `ScanFilter`,
//! `AttributesToGet`.
//!
//! They become the trees that expressions become, and have the same limits. The Kinesis Client Library sends them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    AttributeValue,
    error::{Error, Result},
    expression::{
        Action, Comparison, Condition, ConditionOperand, IN_OPERANDS_MAX, OPERATORS_MAX, Path, ValueSource, evaluate,
        too_many_in_operands,
    },
};

/// Maximum number of names of `AttributesToGet`.
const NAMES_MAX: usize = 255;

/// The condition on one attribute.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Expectation {
    value: Option<AttributeValue>,
    exists: Option<bool>,
    comparison_operator: Option<String>,
    attribute_value_list: Option<Vec<AttributeValue>>,
}

/// The change of one attribute.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct AttributeUpdate {
    action: Option<String>,
    value: Option<AttributeValue>,
}

pub(crate) type Expectations = BTreeMap<String, Expectation>;

/// Converts the conditions of `Expected`, or of a filter.
pub(crate) fn condition(expectations: &Expectations, operator: Option<&str>) -> Result<Condition> {
    if expectations.len() > OPERATORS_MAX {
        return Err(Error::validation(format!(
            "the request has conditions for {} attributes, and the limit is {OPERATORS_MAX}",
            expectations.len()
        )));
    }

    let parts = expectations.iter().map(|(name, expectation)| expectation.condition(name)).collect::<Result<_>>()?;
    match operator {
        None | Some("AND") => Ok(Condition::All(parts)),
        Some("OR") => Ok(Condition::Any(parts)),
        Some(other) => {
            Err(Error::constraint(other, "conditionalOperator", "Member must satisfy enum value set: [OR, AND]"))
        }
    }
}

impl Expectation {
    fn condition(&self, name: &str) -> Result<Condition> {
        let path = Path::attribute(name);
        let Some(operator) = self.comparison_operator.as_deref() else { return self.equality(name, path) };

        if self.exists.is_some() {
            return Err(Error::parameters(format!(
                "Exists and ComparisonOperator cannot be used together for Attribute: {name}"
            )));
        }

        let values = match (&self.attribute_value_list, &self.value) {
            (Some(_), Some(_)) => {
                return Err(Error::parameters(format!(
                    "Value and AttributeValueList cannot be used together for Attribute: {name}"
                )));
            }
            (Some(list), None) => list.as_slice(),
            (None, Some(value)) => std::slice::from_ref(value),
            (None, None) => &[],
        };

        compared(path, operator, values)
    }

    /// Converts a condition without an operator: the attribute equals a value, or is absent.
    fn equality(&self, name: &str, path: Path) -> Result<Condition> {
        if self.attribute_value_list.is_some() {
            return Err(Error::parameters(format!(
                "AttributeValueList can only be used with a ComparisonOperator for Attribute: {name}"
            )));
        }

        match (self.exists, &self.value) {
            (Some(false), None) => Ok(Condition::NotExists(path)),
            (Some(false), Some(_)) => {
                Err(Error::parameters(format!("Value cannot be used when Exists is false for Attribute: {name}")))
            }
            (None | Some(true), Some(value)) => Ok(Condition::Compare(
                Comparison::Equal,
                ConditionOperand::Path(path),
                ConditionOperand::Value(value.clone()),
            )),
            (exists @ (None | Some(true)), None) => {
                let exists = exists.map_or("null", |_| "true");
                Err(Error::parameters(format!("Value must be provided when Exists is {exists} for Attribute: {name}")))
            }
        }
    }
}

fn compared(path: Path, operator: &str, values: &[AttributeValue]) -> Result<Condition> {
    let count = values.len();
    let wrong_count =
        || Error::parameters(format!("Invalid number of argument(s) for the {operator} ComparisonOperator"));

    if values.windows(2).any(|pair| pair[0].kind() != pair[1].kind()) {
        return Err(Error::parameters("AttributeValues inside AttributeValueList must be of same type"));
    }

    let allowed: &[&str] = match operator {
        "EQ" | "NE" => &["S", "N", "B", "SS", "NS", "BS", "BOOL", "NULL", "L", "M"],
        "BEGINS_WITH" => &["S", "B"],
        _ => &["S", "N", "B"],
    };
    if let Some(value) = values.iter().find(|value| !allowed.contains(&value.kind())) {
        return Err(Error::parameters(format!(
            "ComparisonOperator {operator} is not valid for {} AttributeValue type",
            value.kind()
        )));
    }

    let one = || match values {
        [value] => Ok(ConditionOperand::Value(value.clone())),
        _ => Err(wrong_count()),
    };
    let left = ConditionOperand::Path(path.clone());
    let comparison = |comparison| Ok(Condition::Compare(comparison, left.clone(), one()?));

    match operator {
        "EQ" => comparison(Comparison::Equal),
        "NE" => comparison(Comparison::NotEqual),
        "LT" => comparison(Comparison::Less),
        "LE" => comparison(Comparison::LessOrEqual),
        "GT" => comparison(Comparison::Greater),
        "GE" => comparison(Comparison::GreaterOrEqual),
        "BEGINS_WITH" => Ok(Condition::BeginsWith(left, one()?)),
        "CONTAINS" => Ok(Condition::Contains(left, one()?)),
        "NOT_CONTAINS" => Ok(Condition::All(vec![
            Condition::Exists(path),
            Condition::Not(Box::new(Condition::Contains(left, one()?))),
        ])),
        "NULL" | "NOT_NULL" if count > 0 => Err(wrong_count()),
        "NULL" => Ok(Condition::NotExists(path)),
        "NOT_NULL" => Ok(Condition::Exists(path)),
        "IN" if count == 0 => Err(wrong_count()),
        "IN" if count > IN_OPERANDS_MAX => Err(Error::validation(too_many_in_operands(count))),
        "IN" => Ok(Condition::In(left, values.iter().cloned().map(ConditionOperand::Value).collect())),
        "BETWEEN" => match values {
            [low, high] if evaluate::order(low, high).is_none_or(std::cmp::Ordering::is_le) => Ok(Condition::Between(
                left,
                ConditionOperand::Value(low.clone()),
                ConditionOperand::Value(high.clone()),
            )),
            [_, _] => Err(Error::validation(
                "The BETWEEN condition was provided a range where the lower bound is greater than the upper bound",
            )),
            _ => Err(wrong_count()),
        },
        _ => Err(Error::constraint(
            operator,
            "comparisonOperator",
            "Member must satisfy enum value set: [IN, NULL, BETWEEN, LT, NOT_CONTAINS, EQ, GT, NOT_NULL, NE, LE, \
             BEGINS_WITH, GE, CONTAINS]",
        )),
    }
}

/// Converts `AttributesToGet` to paths.
pub(crate) fn paths(names: &[String]) -> Result<Vec<Path>> {
    if !(1..=NAMES_MAX).contains(&names.len()) {
        let constraint = format!("Member must have length between 1 and {NAMES_MAX}");
        return Err(Error::constraint(format!("{} names", names.len()), "attributesToGet", &constraint));
    }
    let mut different = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !different.insert(*name)) {
        return Err(Error::parameters(format!("Duplicate value in attribute name: {name}")));
    }
    Ok(names.iter().map(|name| Path::attribute(name)).collect())
}

/// Converts `AttributeUpdates` to actions.
pub(crate) fn actions(updates: &BTreeMap<String, AttributeUpdate>) -> Result<Vec<Action>> {
    updates.iter().map(|(name, update)| action(Path::attribute(name), update)).collect()
}

/// Whether these updates can only take something away.
pub(crate) fn only_deletes(updates: &BTreeMap<String, AttributeUpdate>) -> bool {
    !updates.is_empty() && updates.values().all(|update| update.action.as_deref() == Some("DELETE"))
}

fn action(path: Path, update: &AttributeUpdate) -> Result<Action> {
    // DynamoDB's default.
    let action = update.action.as_deref().unwrap_or("PUT");
    let Some(value) = update.value.clone() else {
        return if action == "DELETE" {
            Ok(Action::Remove(path))
        } else {
            Err(Error::parameters("Only DELETE action is allowed when no attribute value is specified"))
        };
    };

    let is_set = matches!(value, AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_));
    match action {
        "PUT" => Ok(Action::Set(path, ValueSource::Value(value))),
        "ADD" if is_set || matches!(value, AttributeValue::N(_) | AttributeValue::L(_)) => Ok(Action::Add(path, value)),
        "ADD" => Err(Error::parameters(format!("ADD action is not supported for the type {}", value.kind()))),
        "DELETE" if is_set => Ok(Action::Delete(path, value)),
        "DELETE" => {
            Err(Error::parameters(format!("DELETE action with value is not supported for the type {}", value.kind())))
        }
        _ => Err(Error::constraint(
            action,
            "attributeUpdates.member.action",
            "Member must satisfy enum value set: [ADD, PUT, DELETE]",
        )),
    }
}
