//! `coroutine.wrap`, which adds the place of the call to the text of an error. The library cannot add it to an error of a Rust function.

use mlua::{Function, Lua, MultiValue, Value};

use crate::raise::{LuaArguments, Raised, at_caller, bad_argument, library_function, native_function};

/// Makes a function that resumes a coroutine.
pub(crate) fn wrap(lua: &Lua, values: MultiValue) -> mlua::Result<Function> {
    let arguments = LuaArguments::new(lua, values);
    let body = match arguments.get(1) {
        Some(Value::Function(body)) => body.clone(),
        _ => return Err(bad_argument(lua, 1, "Lua function expected")),
    };

    let resume = library_function(lua, "resume")?;
    let coroutine: Value = library_function(lua, "create")?.call(body).map_err(|error| match error {
        // The body is a function in C, which none of Lua 5.1's coroutines can run.
        mlua::Error::RuntimeError(_) | mlua::Error::CallbackError { .. } => {
            bad_argument(lua, 1, "Lua function expected")
        }
        other => other,
    })?;
    native_function(lua, move |lua, arguments: MultiValue| resume_wrapped(lua, &resume, &coroutine, arguments))
}

fn resume_wrapped(
    lua: &Lua,
    resume: &Function,
    coroutine: &Value,
    mut arguments: MultiValue,
) -> mlua::Result<MultiValue> {
    arguments.push_front(coroutine.clone());
    let mut results = resume.call::<MultiValue>(arguments)?;
    if results.pop_front() == Some(Value::Boolean(true)) {
        return Ok(results);
    }

    match results.pop_front().unwrap_or_default() {
        Value::Error(error) => match error.downcast_ref::<Raised>() {
            Some(Raised::Text(text)) => Err(at_caller(lua, &String::from_utf8_lossy(text))),
            _ => Err(*error),
        },
        Value::String(text) => Err(at_caller(lua, &text.to_string_lossy())),
        object => Err(Raised::Object(object).into()),
    }
}
