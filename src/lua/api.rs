//! The table `redis` of scripts, and Redis' own functions of `math`.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use lockkeeper_redis::{RedisReply, ScriptHost};
use mlua::{Function, Lua, MultiValue, Scope, Table, Value};
use sha1::{Digest, Sha1};

use crate::{
    budget::{RunBudget, RunEnded, charge_bytes},
    convert::{error_text, to_lua},
    raise::{LuaArguments, Raised, at_caller, bad_argument, error_table, native_function, scoped_function},
    random::Lrand48,
};

/// The version that scripts see: that of the interpreter with which this one was compared.
const VERSION: (&str, u32) = ("7.0.15", 0x0007_000f);

/// The levels of `redis.log`.
const LOG_LEVELS: [(&str, u8); 4] = [("LOG_DEBUG", 0), ("LOG_VERBOSE", 1), ("LOG_NOTICE", 2), ("LOG_WARNING", 3)];

/// The flags of `redis.set_repl`, which have no effect here.
const REPLICATION_FLAGS: [(&str, u8); 5] =
    [("REPL_NONE", 0), ("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3)];

/// The keyspace, as the functions of one run share it.
pub(crate) type SharedHost<'a> = RefCell<&'a mut dyn ScriptHost>;

/// Makes the table `redis`.
pub(crate) fn redis<'scope, 'env>(
    lua: &Lua,
    scope: &'scope Scope<'scope, 'env>,
    budget: &'env Rc<RunBudget>,
    host: &'env SharedHost<'_>,
) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let format: Function = lua.globals().raw_get::<Table>("string")?.raw_get("format")?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let format = format.clone();
        let function =
            scoped_function(scope, move |lua, arguments| call_command(lua, budget, host, &format, &arguments, raises))?;
        table.raw_set(name, function)?;
    }

    for (name, level) in LOG_LEVELS.into_iter().chain(REPLICATION_FLAGS) {
        table.raw_set(name, level)?;
    }
    table.raw_set("REDIS_VERSION", VERSION.0)?;
    table.raw_set("REDIS_VERSION_NUM", VERSION.1)?;

    table.raw_set("error_reply", native_function(lua, error_reply)?)?;
    table.raw_set("status_reply", native_function(lua, status_reply)?)?;
    table.raw_set("sha1hex", native_function(lua, sha1hex)?)?;
    table.raw_set("log", native_function(lua, log)?)?;
    table.raw_set("setresp", native_function(lua, setresp)?)?;
    table.raw_set("set_repl", native_function(lua, set_repl)?)?;

    // Writes are replicated, and no scripts, so this is so already. There is no debugger.
    table.raw_set("replicate_commands", native_function(lua, |_, _: MultiValue| Ok(true))?)?;
    table.raw_set("breakpoint", native_function(lua, |_, _: MultiValue| Ok(false))?)?;
    table.raw_set("debug", native_function(lua, |_, _: MultiValue| Ok(()))?)?;
    Ok(table)
}

/// An error table, as `redis.call` raises it.
fn reply_error(text: &str) -> mlua::Error {
    Raised::Reply(format!("ERR {text}").into_bytes()).into()
}

/// `redis.call` and `redis.pcall`.
fn call_command(
    lua: &Lua,
    budget: &RunBudget,
    host: &SharedHost<'_>,
    format: &Function,
    arguments: &MultiValue,
    raises: bool,
) -> mlua::Result<Value> {
    let reply = match command_arguments(budget, format, arguments)? {
        Ok(arguments) => {
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let answer = host.borrow_mut().call(&arguments);
            answer.map_err(|_| budget.end(RunEnded::Aborted))?
        }
        Err(complaint) => {
            let text = format!("ERR {complaint}").into_bytes();
            if raises {
                return Err(Raised::Reply(text).into());
            }
            // As in Redis, an error that no command made has no other field.
            let table = lua.create_table()?;
            table.raw_set("err", lua.create_string(text)?)?;
            return Ok(Value::Table(table));
        }
    };

    if let RedisReply::Error(text) = &reply
        && raises
    {
        return Err(Raised::Reply(error_text(text)).into());
    }
    to_lua(lua, reply)
}

/// The arguments as bytes, or the reason why they cannot be bytes.
///
/// A script has a string once, however many arguments it is; here are as many copies. So they are counted before they are made.
fn command_arguments(
    budget: &RunBudget,
    format: &Function,
    values: &MultiValue,
) -> mlua::Result<Result<Vec<Vec<u8>>, &'static str>> {
    if values.is_empty() {
        return Ok(Err("Please specify at least one argument for this redis lib call"));
    }

    let lengths = values.iter().map(|value| value.as_string().map_or(0, |text| text.as_bytes().len()));
    charge_bytes(budget, lengths.fold(0, usize::saturating_add))?;

    let mut arguments = Vec::with_capacity(values.len());
    for value in values {
        arguments.push(match value {
            Value::String(text) => text.as_bytes().to_vec(),
            // A whole number of up to 17 digits is what `%.17g` would make of it, without a call of the interpreter.
            Value::Integer(integer) if integer.unsigned_abs() < 100_000_000_000_000_000 => {
                integer.to_string().into_bytes()
            }
            Value::Integer(_) | Value::Number(_) => {
                let text: mlua::LuaString = format.call(("%.17g", value))?;
                text.as_bytes().to_vec()
            }
            _ => return Ok(Err("Lua redis lib command arguments must be strings or integers")),
        });
    }
    Ok(Ok(arguments))
}

/// The only argument, if it is a string.
fn only_string(arguments: &MultiValue) -> Option<Vec<u8>> {
    match arguments.front() {
        Some(Value::String(text)) if arguments.len() == 1 => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn wrong_arguments(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("err", "ERR wrong number or type of arguments")?;
    Ok(table)
}

fn error_reply(lua: &Lua, arguments: MultiValue) -> mlua::Result<Table> {
    let Some(text) = only_string(&arguments) else { return wrong_arguments(lua) };
    // A text may begin with the sign by which the protocol marks errors.
    let text = text.strip_prefix(b"-").unwrap_or(&text);
    let table = error_table(lua, &error_text(text))?;
    // As in Redis, only the error of a command has this field.
    table.raw_set("ignore_error_stats_update", Value::Nil)?;
    Ok(table)
}

fn status_reply(lua: &Lua, arguments: MultiValue) -> mlua::Result<Table> {
    let Some(text) = only_string(&arguments) else { return wrong_arguments(lua) };
    let table = lua.create_table()?;
    table.raw_set("ok", lua.create_string(text)?)?;
    Ok(table)
}

fn sha1hex(lua: &Lua, arguments: MultiValue) -> mlua::Result<String> {
    if arguments.len() != 1 {
        return Err(reply_error("wrong number of arguments"));
    }

    // A value that is not a text counts as an empty one.
    let value = arguments.into_vec().pop().unwrap_or_default();
    let text = match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
        _ => None,
    };
    let digest = Sha1::digest(text.map_or_else(Vec::new, |text| text.as_bytes().to_vec()));
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Checks its arguments as Redis does, and keeps nothing: the log of a node is not for programs of its clients.
fn log(lua: &Lua, arguments: MultiValue) -> mlua::Result<()> {
    if arguments.len() < 2 {
        return Err(reply_error("redis.log() requires two arguments or more."));
    }
    let level = lua.coerce_number(arguments.front().cloned().unwrap_or_default())?;
    // Redis casts to an int of C: 3.9 is 3, and -0.5 is 0.
    match level {
        None => Err(reply_error("First argument must be a number (log level).")),
        Some(level) if (0.0..4.0).contains(&level.trunc()) => Ok(()),
        Some(_) => Err(reply_error("Invalid debug level.")),
    }
}

/// Replies have the forms of RESP2 in any case.
fn setresp(lua: &Lua, arguments: MultiValue) -> mlua::Result<()> {
    if arguments.len() != 1 {
        return Err(reply_error("redis.setresp() requires one argument."));
    }
    let version = lua.coerce_number(arguments.front().cloned().unwrap_or_default())?;
    match version.map(f64::trunc) {
        Some(version) if (2.0..4.0).contains(&version) => Ok(()),
        _ => Err(reply_error("RESP version must be 2 or 3.")),
    }
}

/// What a transaction wrote is replicated as a whole.
fn set_repl(lua: &Lua, arguments: MultiValue) -> mlua::Result<()> {
    if arguments.len() != 1 {
        // The text is that of Redis, which miscounts.
        return Err(reply_error("redis.set_repl() requires two arguments."));
    }
    // A value that cannot become a number counts as 0, as by `lua_tonumber`.
    let flags = lua.coerce_number(arguments.front().cloned().unwrap_or_default())?.unwrap_or(0.0);
    if (0.0..4.0).contains(&flags.trunc()) {
        return Ok(());
    }
    Err(reply_error("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."))
}

/// Makes Redis' own functions of `math`.
pub(crate) fn math(lua: &Lua) -> mlua::Result<Table> {
    let generator = Rc::new(Cell::new(Lrand48::new()));
    let table = lua.create_table()?;

    let numbers = Rc::clone(&generator);
    table.raw_set("random", native_function(lua, move |lua, arguments| random(lua, &numbers, arguments))?)?;
    let seed = move |lua: &Lua, arguments| {
        let seed = LuaArguments::new(lua, arguments).integer(1)?;
        generator.set(Lrand48::from_seed(seed));
        Ok(())
    };
    table.raw_set("randomseed", native_function(lua, seed)?)?;
    Ok(table)
}

#[expect(clippy::cast_possible_truncation, reason = "the library takes an int of C")]
fn random(lua: &Lua, generator: &Cell<Lrand48>, values: MultiValue) -> mlua::Result<f64> {
    // Drawn before the arguments are looked at: as in Redis, a call with wrong ones moves the sequence on.
    let mut numbers = generator.get();
    let fraction = f64::from(numbers.draw() % Lrand48::MAX) / f64::from(Lrand48::MAX);
    generator.set(numbers);

    let arguments = LuaArguments::new(lua, values);
    match arguments.count() {
        0 => Ok(fraction),
        1 => {
            let most = arguments.integer(1)? as i32;
            if most < 1 {
                return Err(bad_argument(lua, 1, "interval is empty"));
            }
            Ok((fraction * f64::from(most)).floor() + 1.0)
        }
        2 => {
            let least = arguments.integer(1)? as i32;
            let most = arguments.integer(2)? as i32;
            if least > most {
                return Err(bad_argument(lua, 2, "interval is empty"));
            }
            // An int of C wraps around: from its least to its greatest number there are 0 numbers.
            let width = most.wrapping_sub(least).wrapping_add(1);
            Ok((fraction * f64::from(width)).floor() + f64::from(least))
        }
        _ => Err(at_caller(lua, "wrong number of arguments")),
    }
}
