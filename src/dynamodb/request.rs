//! Requests: the members that several operations have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    AttributeValue, Item,
    error::{Error, ErrorType, Result},
    legacy::{AttributeUpdate, Expectations},
    value::INVALID_VALUE,
};

/// Reads a body. Unknown members are ignored, as DynamoDB does.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    // serde also reads a struct from a list of its members. DynamoDB does not.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::new(ErrorType::Serialization, "the body is not a JSON object"));
    }

    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        match text.strip_prefix(INVALID_VALUE) {
            // serde adds the place in the JSON.
            Some(message) => {
                Error::validation(message.rsplit_once(" at line ").map_or(message, |(message, _)| message))
            }
            None => Error::new(ErrorType::Serialization, text),
        }
    })
}

/// A change of one item: `PutItem`, `UpdateItem`, `DeleteItem`, and the parts of a transaction.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct WriteRequest {
    pub(crate) table_name: Option<String>,
    pub(crate) item: Option<Item>,
    pub(crate) key: Option<Item>,
    pub(crate) condition_expression: Option<String>,
    pub(crate) update_expression: Option<String>,
    pub(crate) expression_attribute_names: Option<BTreeMap<String, String>>,
    pub(crate) expression_attribute_values: Option<Item>,
    pub(crate) expected: Option<Expectations>,
    pub(crate) conditional_operator: Option<String>,
    pub(crate) attribute_updates: Option<BTreeMap<String, AttributeUpdate>>,
    pub(crate) return_values: Option<String>,
    pub(crate) return_consumed_capacity: Option<String>,
    pub(crate) return_values_on_condition_check_failure: Option<String>,
}

/// A request to read: `GetItem`, `Query`, `Scan`, and the parts of `BatchGetItem` and `TransactGetItems`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ReadRequest {
    pub(crate) table_name: Option<String>,
    pub(crate) index_name: Option<String>,
    pub(crate) key: Option<Item>,
    pub(crate) keys: Option<Vec<Item>>,
    pub(crate) consistent_read: Option<bool>,
    pub(crate) projection_expression: Option<String>,
    pub(crate) attributes_to_get: Option<Vec<String>>,
    pub(crate) key_condition_expression: Option<String>,
    pub(crate) key_conditions: Option<Expectations>,
    pub(crate) filter_expression: Option<String>,
    pub(crate) query_filter: Option<Expectations>,
    pub(crate) scan_filter: Option<Expectations>,
    pub(crate) conditional_operator: Option<String>,
    pub(crate) expression_attribute_names: Option<BTreeMap<String, String>>,
    pub(crate) expression_attribute_values: Option<Item>,
    pub(crate) exclusive_start_key: Option<Item>,
    pub(crate) scan_index_forward: Option<bool>,
    pub(crate) limit: Option<i64>,
    pub(crate) select: Option<String>,
    pub(crate) segment: Option<i64>,
    pub(crate) total_segments: Option<i64>,
    pub(crate) return_consumed_capacity: Option<String>,
}

/// Returns a member, which must be present.
pub(crate) fn required<'a, T>(member: Option<&'a T>, name: &str) -> Result<&'a T> {
    member.ok_or_else(|| {
        let mut lower = name.to_owned();
        lower[..1].make_ascii_lowercase();
        Error::validation(format!(
            "1 validation error detected: Value null at '{lower}' failed to satisfy constraint: Member must not be null"
        ))
    })
}

/// Returns the name of a table, from a name or from an ARN.
pub(crate) fn table_name(name: Option<&String>) -> Result<&str> {
    let Some(given) = name else {
        return Err(Error::validation("The parameter 'TableName' is required but was not present in the request"));
    };
    let name = match given.split_once(":table/") {
        Some((arn, name)) if arn.starts_with("arn:") => name,
        _ => given,
    };

    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
        let pattern = "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+";
        return Err(Error::constraint(name, "tableName", pattern));
    }

    if !(3..=255).contains(&name.len()) {
        return Err(Error::validation("TableName must be at least 3 characters long and at most 255 characters long"));
    }
    Ok(name)
}

/// Refuses parameters of both generations in one request. Returns whether it has expressions.
pub(crate) fn one_generation(expressions: &[(&str, bool)], legacy: &[(&str, bool)]) -> Result<bool> {
    let expressions = given(expressions);
    let legacy = given(legacy);
    if expressions.is_empty() || legacy.is_empty() {
        return Ok(!expressions.is_empty());
    }
    Err(Error::validation(format!(
        "Can not use both expression and non-expression parameters in the same request: Non-expression parameters: \
         {{{}}} Expression parameters: {{{}}}",
        legacy.join(", "),
        expressions.join(", ")
    )))
}

fn given<'a>(parameters: &[(&'a str, bool)]) -> Vec<&'a str> {
    parameters.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect()
}

/// Checks a parameter that has a fixed set of values.
pub(crate) fn one_of(value: Option<&String>, at: &str, allowed: &[&str]) -> Result<()> {
    match value {
        Some(value) if !allowed.contains(&&**value) => {
            Err(Error::constraint(value, at, &format!("Member must satisfy enum value set: [{}]", allowed.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Refuses lists and maps that are nested deeper than 32 levels.
pub(crate) fn check_depth<'a>(values: impl IntoIterator<Item = &'a AttributeValue>) -> Result<()> {
    if values.into_iter().any(AttributeValue::is_too_deep) {
        return Err(Error::validation("Nesting Levels have exceeded supported limits: 32"));
    }
    Ok(())
}

/// The capacity that an operation would have cost, if the client asks for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Capacity {
    pub(crate) table_name: String,
    pub(crate) capacity_units: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<Units>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Units {
    pub(crate) capacity_units: f64,
}

impl Capacity {
    /// Makes the answer's part about capacity. `asked` is `TOTAL`, `INDEXES` or `NONE`.
    pub(crate) fn new(asked: Option<&str>, table: &str, units: f64) -> Option<Self> {
        let detailed = match asked {
            Some("TOTAL") => false,
            Some("INDEXES") => true,
            _ => return None,
        };
        let of_table = detailed.then_some(Units { capacity_units: units });
        Some(Self { table_name: table.to_owned(), capacity_units: units, table: of_table })
    }
}

/// The cost of a read: units of 4 KiB, or half of them if the read is not consistent.
pub(crate) fn read_units(bytes: usize, consistent: bool) -> f64 {
    bytes.div_ceil(4096).max(1) as f64 * if consistent { 1.0 } else { 0.5 }
}

/// The cost of a write: units of 1 KiB.
pub(crate) fn write_units(bytes: usize) -> f64 {
    bytes.div_ceil(1024).max(1) as f64
}
