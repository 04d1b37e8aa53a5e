//! A value of Lua as JSON.

use std::io::Write as _;

use mlua::{Function, Lua, LuaString, Table, Value};

use super::{DEPTH_MAX, JsonFailure, charge};
use crate::{
    budget::RunBudget,
    convert::number_of,
    raise::{library_function, type_name},
};

/// An array up to this length may have any holes.
const SPARSE_SAFE: u64 = 10;
/// A longer array must have at least one element for this number of places.
const SPARSE_RATIO: u64 = 2;

pub(super) fn encode(lua: &Lua, budget: &RunBudget, value: &Value) -> Result<Vec<u8>, JsonFailure> {
    let format = library_function(lua, "format")?;
    let mut encoder = JsonEncoder { budget, format, out: Vec::new(), charged: 0 };
    encoder.value(value, 0)?;
    Ok(encoder.out)
}

struct JsonEncoder<'a> {
    budget: &'a RunBudget,
    /// `string.format`, for numbers.
    format: Function,
    out: Vec<u8>,
    /// Number of bytes of `out` that were charged.
    charged: usize,
}

impl JsonEncoder<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), JsonFailure> {
        charge(self.budget, self.out.len() - self.charged)?;
        self.charged = self.out.len();
        if self.charged > self.budget.limits().memory_bytes_max {
            return Err(mlua::Error::MemoryError("not enough memory".to_owned()).into());
        }

        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::Boolean(boolean) => self.out.extend_from_slice(boolean.to_string().as_bytes()),
            Value::Integer(_) | Value::Number(_) => self.number(value)?,
            Value::String(text) => self.string(text),
            Value::Table(table) => self.table(table, depth + 1)?,
            null if *null == Value::NULL => self.out.extend_from_slice(b"null"),
            other => return Err(unsupported(other, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), JsonFailure> {
        if number_of(value).is_some_and(|number| !number.is_finite()) {
            return Err(unsupported(value, "must not be NaN or Inf"));
        }
        let text: LuaString = self.format.call(("%.14g", value))?;
        self.out.extend_from_slice(&text.as_bytes());
        Ok(())
    }

    fn string(&mut self, text: &LuaString) {
        self.out.push(b'"');
        for byte in text.as_bytes().iter().copied() {
            match byte {
                // JSON needs no escape for the slash; the library writes one.
                b'"' | b'\\' | b'/' => self.out.extend_from_slice(&[b'\\', byte]),
                8 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..=31 | 127 => write!(self.out, "\\u{byte:04x}").expect("a vector takes all that is written"),
                other => self.out.push(other),
            }
        }
        self.out.push(b'"');
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), JsonFailure> {
        if depth > DEPTH_MAX {
            return Err(JsonFailure::Text(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        match array_length(table)? {
            // An empty table could be either. The library makes an object of it.
            0 => self.object(table, depth),
            length => self.array(table, length, depth),
        }
    }

    fn array(&mut self, table: &Table, length: u64, depth: usize) -> Result<(), JsonFailure> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            self.value(&table.raw_get(index)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: usize) -> Result<(), JsonFailure> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::replace(&mut is_first, false) {
                self.out.push(b',');
            }

            match &key {
                Value::String(text) => self.string(text),
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.number(&key)?;
                    self.out.push(b'"');
                }
                other => return Err(unsupported(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}

/// The length of an array, or zero if the table is not an array.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the number is whole and not negative")]
fn array_length(table: &Table) -> Result<u64, JsonFailure> {
    let mut length = 0;
    let mut count: u64 = 0;
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair?;
        let index = number_of(&key).filter(|number| number.fract() == 0.0 && *number >= 1.0);
        let Some(index) = index else { return Ok(0) };
        length = length.max(index as u64);
        count += 1;
    }

    if length > SPARSE_SAFE && length > count.saturating_mul(SPARSE_RATIO) {
        return Err(JsonFailure::Text("Cannot serialise table: excessively sparse array".to_owned()));
    }
    Ok(length)
}

fn unsupported(value: &Value, why: &str) -> JsonFailure {
    JsonFailure::Text(format!("Cannot serialise {}: {why}", type_name(Some(value))))
}
