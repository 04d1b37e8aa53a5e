//! The placeholders of a request's expressions: `ExpressionAttributeNames` and `ExpressionAttributeValues`.
//!
//! An expression may name a placeholder as often as it likes, and each time stands for its whole value. So these bytes are bounded too.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    AttributeValue, Item,
    error::{Error, Result},
    value::item_size,
};

/// Maximum number of bytes of all placeholders and their values.
const BYTES_MAX: usize = 2 << 20;
/// Maximum number of bytes of the name of an attribute.
const NAME_BYTES_MAX: usize = 65_535;
/// Maximum number of bytes that the expressions of a request stand for. Each placeholder counts as often as it is used.
const USED_BYTES_MAX: usize = 4 << 20;

/// The placeholders of a request, and those that its expressions have used.
#[derive(Debug, Default)]
pub(crate) struct Placeholders<'a> {
    names: Option<&'a BTreeMap<String, String>>,
    values: Option<&'a Item>,
    used: RefCell<BTreeSet<String>>,
    used_bytes: Cell<usize>,
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

        let names_bytes: usize = names.into_iter().flatten().map(|(key, name)| key.len() + name.len()).sum();
        let bytes = names_bytes + values.map_or(0, item_size);
        if bytes > BYTES_MAX {
            return Err(Error::validation(format!(
                "ExpressionAttributeNames and ExpressionAttributeValues have {bytes} bytes, and the limit is {BYTES_MAX}"
            )));
        }

        if let Some(name) = names.into_iter().flatten().map(|(_, name)| name).find(|name| name.len() > NAME_BYTES_MAX) {
            return Err(Error::validation(format!(
                "ExpressionAttributeNames contains a name of {} bytes, and the limit is {NAME_BYTES_MAX}",
                name.len()
            )));
        }

        Ok(Self { names, values, ..Self::default() })
    }

    fn note_use(&self, placeholder: &str, bytes: usize) -> Result<(), String> {
        let bytes = self.used_bytes.get() + bytes;
        self.used_bytes.set(bytes);
        if bytes > USED_BYTES_MAX {
            return Err(format!(
                "the placeholders of the request's expressions stand for more than {USED_BYTES_MAX} bytes, each as often as it is used: \
                 use {placeholder} less often"
            ));
        }
        self.used.borrow_mut().insert(placeholder.to_owned());
        Ok(())
    }

    /// Returns the name that `#name` stands for.
    pub(super) fn name(&self, placeholder: &str) -> Result<String, String> {
        let name = self.names.and_then(|names| names.get(placeholder)).ok_or_else(|| {
            format!(
                "An expression attribute name used in the document path is not defined; attribute name: {placeholder}"
            )
        })?;
        self.note_use(placeholder, name.len())?;
        Ok(name.clone())
    }

    /// Returns the value that `:value` stands for.
    pub(super) fn value(&self, placeholder: &str) -> Result<AttributeValue, String> {
        let value = self.values.and_then(|values| values.get(placeholder)).ok_or_else(|| {
            format!("An expression attribute value used in expression is not defined; attribute value: {placeholder}")
        })?;
        self.note_use(placeholder, value.size())?;
        Ok(value.clone())
    }

    /// Refuses placeholders that no expression uses, and the parameters themselves if there is no expression.
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
