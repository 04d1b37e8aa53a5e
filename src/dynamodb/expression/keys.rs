//! Key conditions: one partition, and part of its sort keys.

use super::{Comparison, Condition, ConditionOperand, Path};
use crate::AttributeValue;

/// The items that a query reads: one partition, and part of its sort keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyCondition {
    pub(crate) partition: AttributeValue,
    pub(crate) sort: Option<SortCondition>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SortCondition {
    Compare(Comparison, AttributeValue),
    Between(AttributeValue, AttributeValue),
    BeginsWith(AttributeValue),
}

impl KeyCondition {
    /// Converts a condition for a table with these key attributes. The error is in DynamoDB's words.
    pub(crate) fn new(condition: &Condition, partition: &str, sort: Option<&str>) -> Result<Self, String> {
        let mut conditions: Vec<(String, SortCondition)> = Vec::new();
        for part in flattened(condition) {
            let (name, condition) = one(part)?;
            if conditions.iter().any(|(other, _)| *other == name) {
                return Err("KeyConditionExpressions must only contain one condition per key".to_owned());
            }
            conditions.push((name, condition));
            if conditions.len() > 2 {
                return Err("Conditions can be of length 1 or 2 only".to_owned());
            }
        }

        let mut take = |name: &str| {
            let index = conditions.iter().position(|(other, _)| other == name)?;
            Some(conditions.remove(index).1)
        };
        let of_partition = take(partition);
        let of_sort = sort.and_then(&mut take);
        let missed = |name: &str| format!("Query condition missed key schema element: {name}");
        let of_partition = of_partition.ok_or_else(|| missed(partition))?;

        if !conditions.is_empty() {
            return Err(sort.map_or_else(|| "Query key condition not supported".to_owned(), missed));
        }

        let SortCondition::Compare(Comparison::Equal, value) = of_partition else {
            return Err("Query key condition not supported".to_owned());
        };
        Ok(Self { partition: value, sort: of_sort })
    }
}

/// The parts of a chain, including those of chains in parentheses.
fn flattened(condition: &Condition) -> Vec<&Condition> {
    if let Condition::All(parts) = condition { parts.iter().flat_map(flattened).collect() } else { vec![condition] }
}

fn one(condition: &Condition) -> Result<(String, SortCondition), String> {
    let invalid = |operator: &str| Err(format!("Invalid operator used in KeyConditionExpression: {operator}"));

    match condition {
        Condition::Any(_) => invalid("OR"),
        Condition::Not(_) => invalid("NOT"),
        Condition::In(..) => invalid("IN"),
        Condition::Compare(Comparison::NotEqual, ..) => invalid("<>"),
        Condition::Exists(_) => invalid("attribute_exists"),
        Condition::NotExists(_) => invalid("attribute_not_exists"),
        Condition::HasType(..) => invalid("attribute_type"),
        Condition::Contains(..) => invalid("contains"),
        Condition::All(_) => invalid("AND"),

        Condition::Compare(comparison, ConditionOperand::Path(path), right) => {
            Ok((name(path)?, SortCondition::Compare(*comparison, value(right)?)))
        }
        Condition::Compare(comparison, left, ConditionOperand::Path(path)) => {
            Ok((name(path)?, SortCondition::Compare(comparison.mirrored(), value(left)?)))
        }
        Condition::Compare(_, left, _) => {
            value(left)?;
            Err("Invalid condition in KeyConditionExpression: No key attribute specified".to_owned())
        }
        Condition::Between(ConditionOperand::Path(path), low, high) => {
            Ok((name(path)?, SortCondition::Between(value(low)?, value(high)?)))
        }
        Condition::BeginsWith(ConditionOperand::Path(path), prefix) => {
            Ok((name(path)?, SortCondition::BeginsWith(value(prefix)?)))
        }
        Condition::Between(..) | Condition::BeginsWith(..) => {
            let operator = if matches!(condition, Condition::Between(..)) { "BETWEEN" } else { "begins_with" };
            Err(format!(
                "Invalid condition in KeyConditionExpression: {operator} operator must have the key attribute as its \
                 first operand"
            ))
        }
    }
}

fn name(path: &Path) -> Result<String, String> {
    if path.is_nested() {
        return Err("KeyConditionExpressions cannot have conditions on nested attributes".to_owned());
    }
    Ok(path.head().to_owned())
}

fn value(operand: &ConditionOperand) -> Result<AttributeValue, String> {
    match operand {
        ConditionOperand::Value(value) => Ok(value.clone()),
        ConditionOperand::Size(_) => Err("KeyConditionExpressions cannot contain nested operations".to_owned()),
        ConditionOperand::Path(_) => {
            Err("Invalid condition in KeyConditionExpression: Multiple attribute names used in one condition"
                .to_owned())
        }
    }
}
