//! Errors of functions that are written in Rust, raised as those of Lua's library are.
//!
//! The binding wraps an error of a Rust function in a userdata. No script may see one: [`caught`] turns it into the value that the function
//! meant to raise, wherever a script can catch errors.

use std::rc::Rc;

use mlua::{Function, IntoLuaMulti, Lua, MultiValue, Number, Scope, Table, Value};
use thiserror::Error;

use crate::{
    budget::{RunBudget, RunEnded},
    pattern::MatchFailure,
};

/// The name of the chunk that surrounds scripts.
pub(crate) const PRELUDE: &str = "=prelude";

/// The value that a Rust function raises.
#[derive(Clone, Debug, Error)]
pub(crate) enum Raised {
    /// A text, as `error` raises it.
    #[error("{}", String::from_utf8_lossy(.0))]
    Text(Vec<u8>),
    /// A table with `err`, as `redis.call` raises it.
    #[error("{}", String::from_utf8_lossy(.0))]
    Reply(Vec<u8>),
    /// A value of the script, passed on.
    #[error("an error object of the script")]
    Object(Value),
}

impl From<Raised> for mlua::Error {
    fn from(raised: Raised) -> Self {
        Self::external(raised)
    }
}

impl From<RunEnded> for mlua::Error {
    fn from(ended: RunEnded) -> Self {
        Self::external(ended)
    }
}

/// The stack of a function in Rust has room for 8000 values, its arguments among them, and the binding panics where it finds none for its
/// own work. A script may call any function with as many arguments as it likes.
const ARGUMENTS_MAX: usize = 7900;

/// Makes a function of the library in Rust. With too many arguments it raises an error.
pub(crate) fn native_function<R: IntoLuaMulti>(
    lua: &Lua,
    function: impl Fn(&Lua, MultiValue) -> mlua::Result<R> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, arguments: MultiValue| {
        ensure_few(&arguments)?;
        function(lua, arguments)
    })
}

/// The same for a function that borrows what lives as long as the run.
pub(crate) fn scoped_function<'scope, R: IntoLuaMulti>(
    scope: &'scope Scope<'scope, '_>,
    function: impl Fn(&Lua, MultiValue) -> mlua::Result<R> + 'scope,
) -> mlua::Result<Function> {
    scope.create_function(move |lua, arguments: MultiValue| {
        ensure_few(&arguments)?;
        function(lua, arguments)
    })
}

/// Refuses too many arguments.
fn ensure_few(arguments: &MultiValue) -> mlua::Result<()> {
    if arguments.len() > ARGUMENTS_MAX {
        return Err(Raised::Text(b"too many arguments".to_vec()).into());
    }
    Ok(())
}

/// Functions of the interpreter that functions in Rust call, under their names in the registry. `Lua::globals` is for when no script runs:
/// it panics where the stack has no room, or where a script has taken all memory.
const CALLED_NATIVELY: [(&str, Option<&str>); 5] = [
    ("pcall", None),
    ("tostring", None),
    ("format", Some("string")),
    ("create", Some("coroutine")),
    ("resume", Some("coroutine")),
];

/// Keeps the functions that [`library_function`] finds.
pub(crate) fn keep_library_functions(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    for (name, library) in CALLED_NATIVELY {
        let library: Table = library.map_or(Ok(globals.clone()), |library| globals.raw_get(library))?;
        lua.set_named_registry_value(name, library.raw_get::<Function>(name)?)?;
    }
    Ok(())
}

/// A function of the interpreter, while a script runs.
pub(crate) fn library_function(lua: &Lua, name: &str) -> mlua::Result<Function> {
    lua.named_registry_value(name)
}

/// An error at the place of the call: `luaL_error`.
pub(crate) fn at_caller(lua: &Lua, text: &str) -> mlua::Error {
    let place = lua.inspect_stack(1, |caller| {
        let line = caller.current_line()?;
        Some(format!("{}:{line}: ", caller.source().short_src?))
    });
    let place = place.flatten().unwrap_or_default();
    Raised::Text(format!("{place}{text}").into_bytes()).into()
}

/// An error about an argument, from 1: `luaL_argerror`.
pub(crate) fn bad_argument(lua: &Lua, number: usize, text: &str) -> mlua::Error {
    let names = lua.inspect_stack(0, |running| {
        let names = running.names();
        (names.name.map(std::borrow::Cow::into_owned), names.name_what == Some("method"))
    });
    let (name, is_method) = names.unwrap_or_default();
    let name = name.unwrap_or_else(|| "?".to_owned());

    // The caller of a method does not count its object as an argument.
    match number - usize::from(is_method) {
        0 => at_caller(lua, &format!("calling '{name}' on bad self ({text})")),
        number => at_caller(lua, &format!("bad argument #{number} to '{name}' ({text})")),
    }
}

/// The name of a value's type.
pub(crate) fn type_name(value: Option<&Value>) -> &'static str {
    match value {
        None => "no value",
        Some(Value::Integer(_)) => "number",
        Some(Value::LightUserData(_)) => "userdata",
        Some(value) => value.type_name(),
    }
}

/// The arguments of a call of a function of the library.
pub(crate) struct LuaArguments<'a> {
    lua: &'a Lua,
    values: MultiValue,
}

impl<'a> LuaArguments<'a> {
    pub(crate) fn new(lua: &'a Lua, values: MultiValue) -> Self {
        Self { lua, values }
    }

    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    /// The argument of this number, from 1.
    pub(crate) fn get(&self, number: usize) -> Option<&Value> {
        self.values.get(number - 1)
    }

    /// A string, or a number as a string: `luaL_checklstring`.
    pub(crate) fn string(&self, number: usize) -> mlua::Result<mlua::LuaString> {
        let value = self.get(number);
        let coerced = self.lua.coerce_string(value.cloned().unwrap_or_default())?;
        coerced.ok_or_else(|| self.expected(number, "string"))
    }

    /// A number, or a string that is one: `luaL_checknumber`.
    pub(crate) fn number(&self, number: usize) -> mlua::Result<Number> {
        let value = self.get(number);
        let coerced = self.lua.coerce_number(value.cloned().unwrap_or_default())?;
        coerced.ok_or_else(|| self.expected(number, "number"))
    }

    /// A number without its fraction: `luaL_checkinteger`.
    pub(crate) fn integer(&self, number: usize) -> mlua::Result<i64> {
        self.number(number).map(to_integer)
    }

    /// As [`Self::integer`], or this one if there is none.
    pub(crate) fn integer_or(&self, number: usize, default: i64) -> mlua::Result<i64> {
        match self.get(number) {
            None | Some(Value::Nil) => Ok(default),
            Some(_) => self.integer(number),
        }
    }

    pub(crate) fn expected(&self, number: usize, what: &str) -> mlua::Error {
        let text = format!("{what} expected, got {}", type_name(self.get(number)));
        bad_argument(self.lua, number, &text)
    }
}

/// A number as the processor converts it: a number that does not fit, and NaN, become the smallest integer.
#[expect(clippy::cast_possible_truncation, reason = "the fraction is meant to go, and the range is checked")]
pub(crate) fn to_integer(number: Number) -> i64 {
    const LIMIT: Number = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&number) { number as i64 } else { i64::MIN }
}

/// The error of a match, at the place of the call.
pub(crate) fn match_failed(lua: &Lua, failure: MatchFailure) -> mlua::Error {
    match failure {
        MatchFailure::Pattern(text) => at_caller(lua, text),
        MatchFailure::Ended(ended) => ended.into(),
    }
}

/// The value that a script sees for a caught one, and an error again if the run is over.
pub(crate) fn caught(lua: &Lua, budget: &Rc<RunBudget>, value: Value) -> mlua::Result<Value> {
    if let Some(ended) = budget.ended() {
        return Err(ended.into());
    }
    match value {
        Value::Error(error) => raised_value(lua, &error),
        other => Ok(other),
    }
}

fn raised_value(lua: &Lua, error: &mlua::Error) -> mlua::Result<Value> {
    match error.downcast_ref::<Raised>() {
        Some(Raised::Text(text)) => lua.create_string(text).map(Value::String),
        Some(Raised::Reply(text)) => error_table(lua, text).map(Value::Table),
        Some(Raised::Object(value)) => Ok(value.clone()),
        None => lua.create_string(foreign_text(error)).map(Value::String),
    }
}

/// The table by which Redis shows the error of a command.
pub(crate) fn error_table(lua: &Lua, text: &[u8]) -> mlua::Result<mlua::Table> {
    let table = lua.create_table_with_capacity(0, 2)?;
    table.raw_set("err", lua.create_string(text)?)?;
    table.raw_set("ignore_error_stats_update", true)?;
    Ok(table)
}

/// The text of an error that the binding itself made, such as a lack of memory.
pub(crate) fn foreign_text(error: &mlua::Error) -> String {
    let mut cause = error;
    while let Some(parent) = cause.parent() {
        cause = parent;
    }
    match cause {
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => text.clone(),
        mlua::Error::StackError => "stack overflow".to_owned(),
        other => other.to_string(),
    }
}

/// Calls a function of the script so that its errors pass this function unchanged, and returns its first result.
pub(crate) fn call_guarded(lua: &Lua, function: &Function, arguments: Vec<Value>) -> mlua::Result<Value> {
    let mut results = call_guarded_all(lua, function, arguments)?;
    Ok(results.pop_front().unwrap_or_default())
}

/// As [`call_guarded`], with all results.
///
/// The binding makes a text of an error object that passes Rust. So it is caught in Lua, and raised again as [`Raised::Object`].
pub(crate) fn call_guarded_all(lua: &Lua, function: &Function, arguments: Vec<Value>) -> mlua::Result<MultiValue> {
    let pcall = library_function(lua, "pcall")?;
    let mut values = MultiValue::from_vec(arguments);
    values.push_front(Value::Function(function.clone()));

    let mut results = pcall.call::<MultiValue>(values)?;
    if results.pop_front() == Some(Value::Boolean(true)) {
        return Ok(results);
    }
    match results.pop_front().unwrap_or_default() {
        Value::Error(error) => Err(*error),
        Value::String(text) => Err(Raised::Text(text.as_bytes().to_vec()).into()),
        object => Err(Raised::Object(object).into()),
    }
}

/// Whether an error is this text.
pub(crate) fn is_text(error: &mlua::Error, text: &str) -> bool {
    matches!(error.downcast_ref(), Some(Raised::Text(raised)) if raised == text.as_bytes())
}
