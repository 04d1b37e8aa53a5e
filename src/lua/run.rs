//! One run of a script, in an interpreter of its own.
//!
//! Each run has its own interpreter, which is dropped with it, so a run cannot affect the next one, even by its globals.

use std::{cell::RefCell, rc::Rc, time::Duration};

use lockkeeper_redis::{RedisReply, ScriptFailure, ScriptHost, ScriptLimits};
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, MultiValue, Scope, StdLib, Table, Value, VmState, chunk::ChunkMode,
};

use crate::{
    api::{self, SharedHost},
    base::{self, SealedTables},
    budget::{RunBudget, RunEnded},
    convert::{ResultFailure, ResultReader, line},
    coroutines, json,
    raise::{
        PRELUDE, Raised, caught, foreign_text, keep_library_functions, library_function, native_function,
        scoped_function,
    },
    strings, tables,
};

/// The name of a script in errors.
const SCRIPT: &str = "@user_script";

/// Instructions between two looks at the budget. A single one can take milliseconds, such as a comparison of long strings of zero bytes, so
/// the clock is looked at often. Each call of a function is charged as well.
const INSTRUCTIONS_PER_HOOK: u32 = 50;

/// A script and what it is given.
pub(crate) struct ScriptCall<'a> {
    pub(crate) source: &'a [u8],
    pub(crate) sha1: &'a str,
    pub(crate) keys: &'a [Vec<u8>],
    pub(crate) arguments: &'a [Vec<u8>],
}

/// How a script raised an error that nothing caught.
struct Uncaught {
    /// The reply.
    text: Vec<u8>,
    /// Whether memory was the cause.
    is_memory: bool,
}

/// Compiles a script and runs nothing.
pub(crate) fn check(source: &[u8], memory_bytes_max: usize) -> Result<(), ScriptFailure> {
    let lua = new_interpreter(memory_bytes_max).map_err(|error| over_memory(&error, memory_bytes_max))?;
    compile(&lua, source, None, memory_bytes_max).map(|_| ())
}

/// Runs a script to its end.
pub(crate) fn run(
    call: &ScriptCall<'_>,
    host: &mut dyn ScriptHost,
    limits: ScriptLimits,
    time_max: Duration,
) -> Result<RedisReply, ScriptFailure> {
    let budget = Rc::new(RunBudget::new(limits, time_max));
    let host = RefCell::new(host);
    let uncaught = RefCell::new(None);

    // The interpreter is dropped here with its memory, also after a script that was stopped. Nothing else has to be cleaned up.
    let result = new_interpreter(limits.memory_bytes_max).and_then(|lua| {
        let reply = lua.scope(|scope| Ok(run_in(&lua, scope, call, &budget, &host, &uncaught)));
        lua.remove_global_hook();
        reply
    });

    // The reason why a run was ended counts, not the error that it led to.
    if let Some(ended) = budget.ended() {
        return Err(ended_failure(&budget, ended));
    }
    result.unwrap_or_else(|error| Err(over_memory(&error, limits.memory_bytes_max)))
}

fn ended_failure(budget: &RunBudget, ended: RunEnded) -> ScriptFailure {
    match ended {
        RunEnded::Aborted => ScriptFailure::Aborted,
        RunEnded::Instructions | RunEnded::Time => ScriptFailure::OverLimit(budget.complaint(ended)),
    }
}

fn new_interpreter(memory_bytes_max: usize) -> mlua::Result<Lua> {
    let libraries = StdLib::MATH | StdLib::STRING | StdLib::TABLE;
    // The functions that catch errors stay those of Lua: the prelude has its own around them.
    let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(true))?;
    keep_library_functions(&lua)?;
    lua.set_memory_limit(memory_bytes_max)?;
    Ok(lua)
}

fn over_memory(error: &mlua::Error, memory_bytes_max: usize) -> ScriptFailure {
    ScriptFailure::OverLimit(format!(
        "the script and its data take more than {memory_bytes_max} bytes of memory ({}); make them smaller",
        foreign_text(error)
    ))
}

/// Compiles a script. Its first line may name the engine, as since Redis 7.
fn compile(
    lua: &Lua,
    source: &[u8],
    environment: Option<Table>,
    memory_bytes_max: usize,
) -> Result<Function, ScriptFailure> {
    let source = without_first_line_for_engine(source)?;
    let mut chunk = lua.load(&*source).set_name(SCRIPT).set_mode(ChunkMode::Text);
    // The globals of the script are a table of their own, so that it can replace none of the functions that the prelude works with.
    if let Some(environment) = environment {
        chunk = chunk.set_environment(environment);
    }

    chunk.into_function().map_err(|error| match error {
        mlua::Error::SyntaxError { message, .. } => ScriptFailure::Compile(message),
        other => over_memory(&other, memory_bytes_max),
    })
}

/// The source with its line `#!lua …` left empty, so that the numbers of the other lines stay.
fn without_first_line_for_engine(source: &[u8]) -> Result<Vec<u8>, ScriptFailure> {
    let Some(rest) = source.strip_prefix(b"#!") else { return Ok(source.to_vec()) };
    let end = rest.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| ScriptFailure::Compile("Invalid script shebang".to_owned()))?;

    let words = String::from_utf8_lossy(&rest[..end]).into_owned();
    let mut words = words.split_ascii_whitespace();
    match words.next() {
        Some("lua") => {}
        other => {
            let engine = other.unwrap_or_default();
            return Err(ScriptFailure::Compile(format!("Unexpected engine in script shebang: {engine}")));
        }
    }
    match words.find(|word| !word.starts_with("flags=")) {
        None => Ok(rest[end..].to_vec()),
        Some(option) => Err(ScriptFailure::Compile(format!("Unknown lua shebang option: {option}"))),
    }
}

/// Runs a script in an interpreter that is new.
fn run_in<'scope, 'env>(
    lua: &Lua,
    scope: &'scope Scope<'scope, 'env>,
    call: &ScriptCall<'_>,
    budget: &'env Rc<RunBudget>,
    host: &'env SharedHost<'_>,
    uncaught: &'env RefCell<Option<Uncaught>>,
) -> Result<RedisReply, ScriptFailure> {
    let memory_bytes_max = budget.limits().memory_bytes_max;
    let failed = |error: mlua::Error| over_memory(&error, memory_bytes_max);
    let surroundings = surround(lua, scope, call, budget, host).map_err(failed)?;
    let script = compile(lua, call.source, Some(surroundings.environment), memory_bytes_max)?;

    // Only the script is charged, because the work around it is the same for all scripts.
    let sha1 = call.sha1.to_owned();
    let handler = scoped_function(scope, move |lua, mut arguments| {
        let value = arguments.pop_front().unwrap_or_default();
        *uncaught.borrow_mut() = Some(describe(lua, &value, &sha1)?);
        Ok(())
    });
    let handler = handler.map_err(failed)?;
    charge_from_now(lua, budget).map_err(failed)?;
    let results = surroundings.xpcall.call::<MultiValue>((script, handler));
    lua.remove_global_hook();
    // A script may have caught the error that should end it, and returned normally. The budget still knows that the run is over, so it
    // decides.
    if budget.ended().is_some() {
        // Our caller knows the reason, and tells it.
        return Err(ScriptFailure::Aborted);
    }

    let mut results = results.map_err(failed)?.into_vec().into_iter();
    if results.next() == Some(Value::Boolean(true)) {
        let result = results.next().unwrap_or_default();
        return read_result(&result, budget);
    }
    Err(match uncaught.take() {
        Some(Uncaught { text, is_memory: false }) => ScriptFailure::Raised(line(&text)),
        Some(Uncaught { text, is_memory: true }) => failed(mlua::Error::runtime(String::from_utf8_lossy(&text))),
        // The handler is not asked when there is no memory left, nor when errors of error handlers follow each other.
        None => match results.next().unwrap_or_default() {
            Value::String(text) if text.as_bytes() == b"error in error handling".as_slice() => {
                ScriptFailure::Raised(b"ERR error in error handling".to_vec())
            }
            _ => failed(mlua::Error::MemoryError("not enough memory".to_owned())),
        },
    })
}

fn read_result(value: &Value, budget: &RunBudget) -> Result<RedisReply, ScriptFailure> {
    let limits = budget.limits();
    let mut reader = ResultReader::new(limits.result_bytes_max);
    reader.read(value, 0).map_err(|failure| match failure {
        ResultFailure::Deep => ScriptFailure::Raised(b"ERR reached lua stack limit".to_vec()),
        ResultFailure::Large => ScriptFailure::OverLimit(format!(
            "the result of the script takes more than {} bytes; return less",
            limits.result_bytes_max
        )),
        ResultFailure::Lua(error) => over_memory(&error, limits.memory_bytes_max),
    })
}

/// Charges the budget for each call, and for instructions.
fn charge_from_now(lua: &Lua, budget: &Rc<RunBudget>) -> mlua::Result<()> {
    let triggers = HookTriggers::new().on_calls().every_nth_instruction(INSTRUCTIONS_PER_HOOK);
    let budget = Rc::clone(budget);
    let is_call = |event| matches!(event, mlua::debug::DebugEvent::Call);
    lua.set_global_hook(triggers, move |_, debug| {
        let instructions = if is_call(debug.event()) { 1 } else { u64::from(INSTRUCTIONS_PER_HOOK) };
        budget.spend(instructions)?;
        Ok(VmState::Continue)
    })
}

/// What the prelude makes.
struct PreludeResult {
    /// The globals of the script.
    environment: Table,
    /// Calls a function, and a handler where it raised an error.
    xpcall: Function,
}

fn surround<'scope, 'env>(
    lua: &Lua,
    scope: &'scope Scope<'scope, 'env>,
    call: &ScriptCall<'_>,
    budget: &'env Rc<RunBudget>,
    host: &'env SharedHost<'_>,
) -> mlua::Result<PreludeResult> {
    let native = lua.create_table()?;
    native.raw_set("redis", api::redis(lua, scope, budget, host)?)?;
    native.raw_set("math", api::math(lua)?)?;
    native.raw_set("cjson", json::library(lua, budget)?)?;
    native.raw_set("string", strings::library(lua, budget)?)?;

    let sealed = SealedTables::new(lua)?;
    native.raw_set("real_of", &sealed.real)?;
    native.raw_set("shown_metatable_of", &sealed.shown_metatable)?;
    native.raw_set("base", base::library(lua, &sealed)?)?;
    native.raw_set("wrap", native_function(lua, coroutines::wrap)?)?;
    native.raw_set("table", tables::library(lua, budget)?)?;

    native.raw_set("keys", strings_of(lua, call.keys)?)?;
    native.raw_set("arguments", strings_of(lua, call.arguments)?)?;

    let catcher = Rc::clone(budget);
    let catch = move |lua: &Lua, mut arguments: MultiValue| {
        let value = arguments.pop_front().unwrap_or_default();
        caught(lua, &catcher, value)
    };
    native.raw_set("caught", native_function(lua, catch)?)?;

    let prelude = lua.load(include_str!("prelude.lua")).set_name(PRELUDE).set_mode(ChunkMode::Text);
    let (environment, xpcall) = prelude.call((lua.globals(), native))?;
    Ok(PreludeResult { environment, xpcall })
}

fn strings_of(lua: &Lua, texts: &[Vec<u8>]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(texts.len(), 0)?;
    for (index, text) in texts.iter().enumerate() {
        table.raw_set(index + 1, lua.create_string(text)?)?;
    }
    Ok(table)
}

/// The reply for an error that nothing caught. It is called where the error was raised.
fn describe(lua: &Lua, value: &Value, sha1: &str) -> mlua::Result<Uncaught> {
    let is_memory = matches!(value, Value::Error(error) if is_memory_error(error));
    let mut text = text_of(lua, value)?;
    if let Some((source, line)) = place(lua) {
        let line = line.map_or_else(|| "-1".to_owned(), |line| line.to_string());
        text.extend_from_slice(format!(" script: {sha1}, on {source}:{line}.").as_bytes());
    }
    Ok(Uncaught { text, is_memory })
}

fn is_memory_error(error: &mlua::Error) -> bool {
    let mut cause = error;
    while let Some(parent) = cause.parent() {
        cause = parent;
    }
    matches!(cause, mlua::Error::MemoryError(_))
}

fn text_of(lua: &Lua, value: &Value) -> mlua::Result<Vec<u8>> {
    let with_word = |text: &[u8]| [b"ERR ", text].concat();

    match value {
        Value::Error(error) => match error.downcast_ref::<Raised>() {
            Some(Raised::Reply(text)) => Ok(text.clone()),
            Some(Raised::Text(text)) => Ok(with_word(text)),
            Some(Raised::Object(object)) => text_of(lua, object),
            None => Ok(with_word(foreign_text(error).as_bytes())),
        },
        Value::Table(table) => {
            // Redis ends itself by a table without a text.
            let text = lua.coerce_string(table.get::<Value>("err")?)?;
            Ok(text.map_or_else(|| b"ERR unknown error".to_vec(), |text| text.as_bytes().to_vec()))
        }
        other => {
            let tostring = library_function(lua, "tostring")?;
            let text: mlua::LuaString = tostring.call(other)?;
            Ok(with_word(&text.as_bytes()))
        }
    }
}

/// The source and the line at which an error was raised, as seen from its handler. A function that is not Lua's counts as its caller.
fn place(lua: &Lua) -> Option<(String, Option<usize>)> {
    let frame = |level: usize| {
        lua.inspect_stack(level, |frame| {
            let source = frame.source();
            (source.what == "C", source.source.unwrap_or_default().into_owned(), frame.current_line())
        })
    };

    // Level 0 is the handler itself.
    let (mut is_native, mut source, mut line) = frame(1)?;
    let mut level = 1;
    let is_prelude = |level| frame(level).is_some_and(|(_, source, _)| source == PRELUDE);

    // To a script, a function of the prelude, with the functions that it calls, is a function of the library.
    if is_native && is_prelude(2) {
        level = 2;
    }
    while is_prelude(level) && is_prelude(level + 1) {
        level += 1;
    }
    if is_native || is_prelude(level) {
        is_native = true;
    }
    if is_native && let Some((_, caller, caller_line)) = frame(level + 1) {
        source = caller;
        line = caller_line;
    }
    Some((source, line))
}
