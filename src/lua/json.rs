//! The table `cjson`: values of Lua as JSON, and back.
//!
//! It does what the library of that name does within Redis, its texts of errors included. Tables may be less deep within tables (128
//! instead of 1000), and its settings cannot be changed.

mod decode;
mod encode;

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::{
    budget::{RunBudget, refuse_bytes},
    raise::{LuaArguments, at_caller, bad_argument, native_function},
};

/// The most tables within tables.
const DEPTH_MAX: usize = 128;

/// Bytes that are read or written at the cost of one instruction.
const BYTES_PER_INSTRUCTION: usize = 8;

/// Why there is no value, or no JSON.
enum JsonFailure {
    /// This text, at the place of the call.
    Text(String),
    /// The interpreter failed, or the run is over.
    Lua(mlua::Error),
}

impl From<mlua::Error> for JsonFailure {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

/// Makes the table.
pub(crate) fn library(lua: &Lua, budget: &Rc<RunBudget>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;

    let spender = Rc::clone(budget);
    let encode = move |lua: &Lua, values: MultiValue| {
        let arguments = one_argument(lua, values)?;
        let value = arguments.get(1).cloned().unwrap_or_default();
        let encoded = encode::encode(lua, &spender, &value).map_err(|failure| raised(lua, failure))?;
        lua.create_string(encoded)
    };
    table.raw_set("encode", native_function(lua, encode)?)?;

    let spender = Rc::clone(budget);
    let decode = move |lua: &Lua, values: MultiValue| {
        let arguments = one_argument(lua, values)?;
        let text = arguments.string(1)?;
        charge(&spender, text.as_bytes().len())?;
        decode::decode(lua, &text.as_bytes()).map_err(|failure| raised(lua, failure))
    };
    table.raw_set("decode", native_function(lua, decode)?)?;
    Ok(table)
}

fn one_argument(lua: &Lua, values: MultiValue) -> mlua::Result<LuaArguments<'_>> {
    let arguments = LuaArguments::new(lua, values);
    if arguments.count() == 1 { Ok(arguments) } else { Err(bad_argument(lua, 1, "expected 1 argument")) }
}

fn raised(lua: &Lua, failure: JsonFailure) -> mlua::Error {
    match failure {
        JsonFailure::Text(text) => at_caller(lua, &text),
        JsonFailure::Lua(error) => error,
    }
}

/// Charges for bytes, and refuses more than the run may have in memory.
fn charge(budget: &RunBudget, bytes: usize) -> mlua::Result<()> {
    refuse_bytes(budget, bytes)?;
    Ok(budget.spend(1 + (bytes / BYTES_PER_INSTRUCTION) as u64)?)
}
