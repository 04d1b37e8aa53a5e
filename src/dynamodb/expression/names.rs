//! `ExpressionAttributeNames` and `ExpressionAttributeValues`: what the placeholders of a request's expressions stand for.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    Item, Value,
    error::{Error, Result},
};

/// The placeholders of a request, and which of them its expressions have used.
#[derive(Debug, Default)]
pub(crate) struct Placeholders<'a> {
    names: Option<&'a BTreeMap<String, String>>,
    values: Option<&'a Item>,
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Placeholders<'a> {
    pub(crate) fn new(names: Option<&'a BTreeMap<String, String>>, values: Option<&'a Item>) -> Result<Self> {
        let well_formed = |key: &str, first: char| {
            key.strip_prefix(first).is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            })
        };
        if names.is_some_and(BTreeMap::is_empty) {
            return Err(Error::validation("ExpressionAttributeNames must not be empty"));
        }
        if let Some(key) = names.into_iter().flatten().map(|(key, _)| key).find(|key| !well_formed(key, '#')) {
            return Err(Error::validation(format!(
                "ExpressionAttributeNames contains invalid key: Syntax error; key: \"{key}\""
            )));
        }
        if values.is_some_and(BTreeMap::is_empty) {
            return Err(Error::validation("ExpressionAttributeValues must not be empty"));
        }
        if let Some(key) = values.into_iter().flatten().map(|(key, _)| key).find(|key| !well_formed(key, ':')) {
            return Err(Error::validation(format!(
                "ExpressionAttributeValues contains invalid key: Syntax error; key: \"{key}\""
            )));
        }
        Ok(Self { names, values, used: RefCell::default() })
    }

    /// What `#name` stands for.
    pub(super) fn name(&self, placeholder: &str) -> Result<String, String> {
        let name = self.names.and_then(|names| names.get(placeholder)).ok_or_else(|| {
            format!(
                "An expression attribute name used in the document path is not defined; attribute name: {placeholder}"
            )
        })?;
        self.used.borrow_mut().insert(placeholder.to_owned());
        Ok(name.clone())
    }

    /// What `:value` stands for.
    pub(super) fn value(&self, placeholder: &str) -> Result<Value, String> {
        let value = self.values.and_then(|values| values.get(placeholder)).ok_or_else(|| {
            format!("An expression attribute value used in expression is not defined; attribute value: {placeholder}")
        })?;
        self.used.borrow_mut().insert(placeholder.to_owned());
        Ok(value.clone())
    }

    /// Placeholders that no expression uses are an error; where there is no expression, the parameters are one.
    pub(crate) fn finish(self, has_expression: bool) -> Result<()> {
        let used = self.used.into_inner();
        let parameters: [(&str, Vec<&String>); 2] = [
            ("ExpressionAttributeNames", self.names.into_iter().flatten().map(|(key, _)| key).collect()),
            ("ExpressionAttributeValues", self.values.into_iter().flatten().map(|(key, _)| key).collect()),
        ];
        for (parameter, keys) in parameters {
            if !keys.is_empty() && !has_expression {
                return Err(Error::validation(format!("{parameter} can only be specified when using expressions")));
            }
            let unused: Vec<_> = keys.into_iter().filter(|key| !used.contains(*key)).map(String::as_str).collect();
            if !unused.is_empty() {
                return Err(Error::validation(format!(
                    "Value provided in {parameter} unused in expressions: keys: {{{}}}",
                    unused.join(", ")
                )));
            }
        }
        Ok(())
    }
}
