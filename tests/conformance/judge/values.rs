//! How expectations are compared with what was seen.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::scenario::{Comparison, Condition};

/// What the names in a scenario stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    /// The tokens of locks.
    tokens: BTreeMap<String, u64>,
    /// The values of variables, by field and letter: an id `x` is no session `x`.
    variables: BTreeMap<(String, String), String>,
}

/// Fields whose values may be named by a lock, or by the rival.
const TOKENS: &[&str] = &["token", "epoch", "holder", "holders"];

impl Bindings {
    pub(crate) fn grant(&mut self, lock: &str, token: u64) {
        self.tokens.insert(lock.to_owned(), token);
    }

    pub(crate) fn token(&self, lock: &str) -> Option<u64> {
        self.tokens.get(lock).copied()
    }

    /// Fails if the field has not the value that it must have. A variable that has no value yet takes the one that was found.
    pub(crate) fn compare(&mut self, found: &Value, condition: &Condition, rivals: &[u64]) -> Result<(), String> {
        let Condition { field, comparison, value } = condition;
        let seen = show(&found[field.as_str()]);
        let is_so = match comparison {
            Comparison::Equal => self.is_equal(field, &seen, value, rivals),
            Comparison::Unequal => !self.is_equal(field, &seen, value, rivals),
            Comparison::AtMost => self.number(&seen)? <= self.number(value)?,
            Comparison::AtLeast => self.number(&seen)? >= self.number(value)?,
        };
        if is_so {
            return Ok(());
        }
        Err(format!("{field} is {seen:?}, in {found}"))
    }

    fn is_equal(&mut self, field: &str, seen: &str, wanted: &str, rivals: &[u64]) -> bool {
        if TOKENS.contains(&field) && wanted != "none" {
            let seen: Vec<&str> = seen.split(',').collect();
            let wanted: Vec<&str> = wanted.split(',').collect();
            return seen.len() == wanted.len()
                && seen.iter().zip(wanted).all(|(seen, lock)| self.is_token(seen, lock, rivals));
        }

        let is_variable = wanted.len() == 1 && wanted.chars().all(|letter| letter.is_ascii_lowercase());
        if is_variable {
            let kind = if ["lowest", "acquire_id", "kept"].contains(&field) { "id" } else { field };
            let known = self.variables.entry((kind.to_owned(), wanted.to_owned()));
            return known.or_insert_with(|| seen.to_owned()) == seen;
        }
        seen == wanted
    }

    fn is_token(&self, seen: &str, lock: &str, rivals: &[u64]) -> bool {
        let Ok(token) = seen.parse::<u64>() else { return false };
        if lock == "rival" {
            return rivals.contains(&token);
        }
        self.tokens.get(lock).copied().or_else(|| lock.parse().ok()) == Some(token)
    }

    fn number(&self, text: &str) -> Result<u64, String> {
        text.parse().map_err(|_| format!("{text:?} is no number"))
    }
}

/// A value as scenarios write it.
fn show(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(show).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}
