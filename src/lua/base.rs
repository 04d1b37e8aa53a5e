//! The functions of the base library that look at tables directly, without metamethods. They know which tables are sealed.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::raise::{LuaArguments, Raised, at_caller, bad_argument, call_guarded_all, is_text, native_function};

/// The text of the library for a metatable that may not be replaced.
const PROTECTED: &str = "cannot change a protected metatable";

/// The text of the library for more results than its stack takes.
const TOO_MANY_RESULTS: &str = "too many results to unpack";

/// More values than the stack of the library takes (its `LUAI_MAXCSTACK`).
const UNPACKED_MAX: i64 = 8000;

/// Hides from scripts that tables are sealed: a script sees the table that a sealed one stands for.
pub(crate) struct SealedTables {
    /// The real table of each sealed one.
    pub(crate) real: Table,
    /// The metatable that a sealed table seems to have. That of strings is under the empty string.
    pub(crate) shown_metatable: Table,
}

impl SealedTables {
    pub(crate) fn new(lua: &Lua) -> mlua::Result<Self> {
        Ok(Self { real: lua.create_table()?, shown_metatable: lua.create_table()? })
    }
}

/// The functions of the library, and the sealed tables.
struct Base {
    real: Table,
    shown_metatable: Table,
    originals: Table,
}

impl Base {
    /// The original function, by its name.
    fn original(&self, name: &str) -> mlua::Result<Function> {
        self.originals.raw_get(name)
    }

    fn real_table(&self, table: &Value) -> mlua::Result<Option<Value>> {
        let real: Value = self.real.raw_get(table)?;
        Ok(Some(real).filter(|real| !real.is_nil()))
    }
}

/// Makes a table of the functions.
pub(crate) fn library(lua: &Lua, sealed: &SealedTables) -> mlua::Result<Table> {
    let base = Rc::new(Base {
        real: sealed.real.clone(),
        shown_metatable: sealed.shown_metatable.clone(),
        originals: lua.globals(),
    });
    let table = lua.create_table()?;
    let add = |name: &'static str, function: fn(&Lua, &Base, &LuaArguments<'_>) -> mlua::Result<MultiValue>| {
        let base = Rc::clone(&base);
        let function = native_function(lua, move |lua, values| function(lua, &base, &LuaArguments::new(lua, values)))?;
        table.raw_set(name, function)
    };

    add("next", |lua, base, arguments| {
        let table = real_argument(base, arguments)?;
        let key = arguments.get(2).cloned().unwrap_or_default();
        call_guarded_all(lua, &base.original("next")?, vec![table, key])
    })?;
    add("pairs", |_, base, arguments| {
        let table = real_argument(base, arguments)?;
        let next = Value::Function(base.original("next")?);
        Ok(MultiValue::from_vec(vec![next, table, Value::Nil]))
    })?;
    add("rawget", |lua, base, arguments| {
        let table = real_argument(base, arguments)?;
        let key = any(lua, arguments, 2)?;
        call_guarded_all(lua, &base.original("rawget")?, vec![table, key])
    })?;
    add("rawset", |lua, base, arguments| {
        let table = writable_argument(base, arguments)?;
        let key = any(lua, arguments, 2)?;
        let value = any(lua, arguments, 3)?;
        call_guarded_all(lua, &base.original("rawset")?, vec![table, key, value])
    })?;
    add("getmetatable", metatable)?;
    add("setmetatable", set_metatable)?;
    add("unpack", unpack)?;
    Ok(table)
}

fn any(lua: &Lua, arguments: &LuaArguments<'_>, number: usize) -> mlua::Result<Value> {
    arguments.get(number).cloned().ok_or_else(|| bad_argument(lua, number, "value expected"))
}

fn table_argument<'a>(arguments: &'a LuaArguments<'_>) -> mlua::Result<&'a Value> {
    arguments.get(1).filter(|value| value.is_table()).ok_or_else(|| arguments.expected(1, "table"))
}

/// The table to read from.
fn real_argument(base: &Base, arguments: &LuaArguments<'_>) -> mlua::Result<Value> {
    let table = table_argument(arguments)?;
    Ok(base.real_table(table)?.unwrap_or_else(|| table.clone()))
}

fn readonly() -> mlua::Error {
    // The interpreter of Redis raises it within the function, and so without the place of the call.
    Raised::Text(b"Attempt to modify a readonly table".to_vec()).into()
}

/// The table to write to.
fn writable_argument(base: &Base, arguments: &LuaArguments<'_>) -> mlua::Result<Value> {
    let table = table_argument(arguments)?;
    match base.real_table(table)? {
        Some(_) => Err(readonly()),
        None => Ok(table.clone()),
    }
}

/// `unpack(list, first, last)`.
///
/// The library counts what is between two of C's `int`s in an `int`, and with a count that does not fit writes beyond its stack
/// (CVE-2025-46817). So the count is looked at before the library sees it.
#[expect(clippy::cast_possible_truncation, reason = "the library takes ints of C")]
fn unpack(lua: &Lua, base: &Base, arguments: &LuaArguments<'_>) -> mlua::Result<MultiValue> {
    let list = real_argument(base, arguments)?;
    let first = arguments.integer_or(2, 1)? as i32;
    let last = match (arguments.get(3), &list) {
        (None | Some(Value::Nil), Value::Table(list)) => i32::try_from(list.raw_len()).unwrap_or(i32::MAX),
        _ => arguments.integer(3)? as i32,
    };
    if i64::from(last) - i64::from(first) >= UNPACKED_MAX {
        return Err(at_caller(lua, TOO_MANY_RESULTS));
    }

    let values = vec![list, Value::Integer(i64::from(first)), Value::Integer(i64::from(last))];
    match call_guarded_all(lua, &base.original("unpack")?, values) {
        Err(error) if is_text(&error, TOO_MANY_RESULTS) => Err(at_caller(lua, TOO_MANY_RESULTS)),
        other => other,
    }
}

fn metatable(lua: &Lua, base: &Base, arguments: &LuaArguments<'_>) -> mlua::Result<MultiValue> {
    let value = any(lua, arguments, 1)?;
    let shown = match &value {
        Value::String(_) => Some(base.shown_metatable.raw_get("")?),
        Value::Table(_) if base.real_table(&value)?.is_some() => Some(base.shown_metatable.raw_get(value.clone())?),
        _ => None,
    };
    match shown {
        Some(metatable) => Ok(MultiValue::from_vec(vec![metatable])),
        None => call_guarded_all(lua, &base.original("getmetatable")?, vec![value]),
    }
}

fn set_metatable(lua: &Lua, base: &Base, arguments: &LuaArguments<'_>) -> mlua::Result<MultiValue> {
    table_argument(arguments)?;
    let metatable = match arguments.get(2) {
        Some(metatable @ (Value::Nil | Value::Table(_))) => metatable.clone(),
        _ => return Err(bad_argument(lua, 2, "nil or table expected")),
    };

    let table = writable_argument(base, arguments)?;
    match call_guarded_all(lua, &base.original("setmetatable")?, vec![table, metatable]) {
        Err(error) if is_text(&error, PROTECTED) => Err(at_caller(lua, PROTECTED)),
        other => other,
    }
}
