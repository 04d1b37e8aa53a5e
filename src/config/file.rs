//! Parses TOML into a [`Config`], and reports every error with its line and column.

use std::ops::Range;

use serde::Deserialize as _;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, Deserializer},
};

use super::Config;

/// Fails with all errors of syntax or, if there are none, with all unknown keys and all values of a wrong type.
pub(super) fn parse(text: &str) -> Result<Config, Vec<String>> {
    let (mut table, malformed) = DeTable::parse_recoverable(text);
    if !malformed.is_empty() {
        return Err(malformed.into_iter().map(|error| located(error, text)).collect());
    }

    // serde stops at the first error. Remove the key or value of the error, and parse the rest again.
    let mut problems = Vec::new();
    loop {
        let error = match Config::deserialize(Deserializer::from(table.clone())) {
            Ok(config) if problems.is_empty() => return Ok(config),
            Ok(_) => return Err(problems),
            Err(error) => error,
        };

        let culprit = error.span();
        problems.push(located(error, text));
        if !culprit.is_some_and(|span| take_from_table(table.get_mut(), &span)) {
            return Err(problems);
        }
    }
}

fn located(mut error: toml::de::Error, text: &str) -> String {
    error.set_input(Some(text));
    error.to_string()
}

/// Removes the key or value at this position of the text.
fn take_from_table(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    let found = table.iter().find(|(key, value)| key.span() == *span || value.span() == *span);
    if let Some(key) = found.map(|(key, _)| key.clone()) {
        return table.remove(&key).is_some();
    }
    table.iter_mut().any(|(_, value)| take_from_value(value, span))
}

fn take_from_value(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => take_from_table(table, span),
        DeValue::Array(array) => {
            // `DeArray` cannot remove an element.
            let count = array.len();
            let mut kept = DeArray::new();
            array.iter().filter(|element| element.span() != *span).for_each(|other| kept.push(other.clone()));
            *array = kept;
            array.len() < count || array.iter_mut().any(|element| take_from_value(element, span))
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            false
        }
    }
}
