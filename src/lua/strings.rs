//! The functions of `string` that could run for long without the interpreter's hook: `rep`, and all that match patterns.

use std::{cell::Cell, rc::Rc};

use memchr::memmem;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

use crate::{
    budget::{RunBudget, charge_bytes, refuse_bytes},
    pattern::{Capture, Matcher, is_plain},
    raise::{LuaArguments, at_caller, bad_argument, call_guarded, match_failed, native_function, type_name},
};

/// Makes a table of the functions.
pub(crate) fn library(lua: &Lua, budget: &Rc<RunBudget>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let add = |name: &str, function: fn(&Lua, &Rc<RunBudget>, MultiValue) -> mlua::Result<MultiValue>| {
        let budget = Rc::clone(budget);
        let function = native_function(lua, move |lua, arguments| function(lua, &budget, arguments))?;
        table.raw_set(name, function)
    };

    add("rep", rep)?;
    add("find", |lua, budget, arguments| find(lua, budget, arguments, true))?;
    add("match", |lua, budget, arguments| find(lua, budget, arguments, false))?;
    add("gmatch", gmatch)?;
    add("gsub", gsub)?;
    Ok(table)
}

fn one(value: Value) -> MultiValue {
    MultiValue::from_vec(vec![value])
}

/// `string.rep(text, count)`.
#[expect(clippy::cast_possible_truncation, reason = "the library takes an int of C")]
fn rep(lua: &Lua, budget: &Rc<RunBudget>, values: MultiValue) -> mlua::Result<MultiValue> {
    let arguments = LuaArguments::new(lua, values);
    let text = arguments.string(1)?;
    let count = usize::try_from(arguments.integer(2)? as i32).unwrap_or(0);

    let text = text.as_bytes();
    let length = text.len().saturating_mul(count);
    charge_bytes(budget, length)?;
    lua.create_string(text.repeat(if text.is_empty() { 0 } else { count })).map(|text| one(Value::String(text)))
}

/// `string.find(text, pattern, from, plain)` and `string.match(text, pattern, from)`.
fn find(lua: &Lua, budget: &Rc<RunBudget>, values: MultiValue, wants_place: bool) -> mlua::Result<MultiValue> {
    let arguments = LuaArguments::new(lua, values);
    let text = arguments.string(1)?;
    let pattern = arguments.string(2)?;
    let from = arguments.integer_or(3, 1)?;

    let text = text.as_bytes();
    let pattern = pattern.as_bytes();
    let first = start_from(from, text.len());
    let asks_plain = arguments.get(4).is_some_and(|plain| !matches!(plain, Value::Nil | Value::Boolean(false)));
    if wants_place && (asks_plain || is_plain(&pattern)) {
        charge_bytes(budget, text.len().saturating_add(pattern.len()))?;
        return Ok(place_of(&text, &pattern, first));
    }

    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(&text, &pattern, budget);
    for start in first..=text.len() {
        let end = matcher.match_at(start, usize::from(is_anchored)).map_err(|failure| match_failed(lua, failure))?;
        if let Some(end) = end {
            return found(lua, &matcher, &text, start, end, wants_place);
        }
        if is_anchored {
            break;
        }
    }
    Ok(one(Value::Nil))
}

/// The first position, from 0: a negative one counts from the end.
fn start_from(from: i64, length: usize) -> usize {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from = if from < 0 { from.saturating_add(length).saturating_add(1).max(0) } else { from };
    usize::try_from(from.saturating_sub(1).clamp(0, length)).expect("it is between 0 and a length")
}

/// Finds where a part begins and ends, in linear time.
fn place_of(text: &[u8], part: &[u8], first: usize) -> MultiValue {
    match memmem::find(&text[first..], part).map(|offset| first + offset) {
        Some(start) => MultiValue::from_vec(vec![position(start + 1), position(start + part.len())]),
        None => one(Value::Nil),
    }
}

fn position(position: usize) -> Value {
    Value::Integer(i64::try_from(position).unwrap_or(i64::MAX))
}

fn found(
    lua: &Lua,
    matcher: &Matcher<'_>,
    text: &[u8],
    start: usize,
    end: usize,
    wants_place: bool,
) -> mlua::Result<MultiValue> {
    if !wants_place {
        let captures = matcher.captured(start, end).map_err(|failure| match_failed(lua, failure))?;
        return values_of(lua, text, &captures).map(MultiValue::from_vec);
    }

    let captures = matcher.own_captures().map_err(|failure| match_failed(lua, failure))?;
    let mut values = vec![position(start + 1), position(end)];
    values.extend(values_of(lua, text, &captures)?);
    Ok(MultiValue::from_vec(values))
}

fn values_of(lua: &Lua, text: &[u8], captures: &[Capture]) -> mlua::Result<Vec<Value>> {
    captures.iter().map(|capture| value_of(lua, text, *capture)).collect()
}

fn value_of(lua: &Lua, text: &[u8], capture: Capture) -> mlua::Result<Value> {
    match capture {
        Capture::Part(start, length) => lua.create_string(&text[start..start + length]).map(Value::String),
        Capture::Position(place) | Capture::Open(place) => Ok(position(place + 1)),
    }
}

/// `string.gmatch(text, pattern)`.
fn gmatch(lua: &Lua, budget: &Rc<RunBudget>, values: MultiValue) -> mlua::Result<MultiValue> {
    let arguments = LuaArguments::new(lua, values);
    let text = arguments.string(1)?;
    let pattern = arguments.string(2)?;

    let budget = Rc::clone(budget);
    let next_start = Cell::new(0);
    let function =
        native_function(lua, move |lua, _: MultiValue| next_match(lua, &budget, &text, &pattern, &next_start))?;
    Ok(one(Value::Function(function)))
}

fn next_match(
    lua: &Lua,
    budget: &RunBudget,
    text: &LuaString,
    pattern: &LuaString,
    next_start: &Cell<usize>,
) -> mlua::Result<MultiValue> {
    let text = text.as_bytes();
    let pattern = pattern.as_bytes();
    let mut matcher = Matcher::new(&text, &pattern, budget);

    for start in next_start.get()..=text.len() {
        let end = matcher.match_at(start, 0).map_err(|failure| match_failed(lua, failure))?;
        if let Some(end) = end {
            // After an empty match the next one begins a byte later.
            next_start.set(if end == start { end + 1 } else { end });
            return found(lua, &matcher, &text, start, end, false);
        }
    }
    next_start.set(text.len() + 1);
    Ok(one(Value::Nil))
}

/// The third argument of `string.gsub`.
enum Replacement {
    Text(Vec<u8>),
    Function(Function),
    Table(Table),
}

/// `string.gsub(text, pattern, replacement, count)`.
#[expect(clippy::cast_possible_truncation, reason = "the library takes an int of C")]
fn gsub(lua: &Lua, budget: &Rc<RunBudget>, values: MultiValue) -> mlua::Result<MultiValue> {
    let arguments = LuaArguments::new(lua, values);
    let text = arguments.string(1)?;
    let pattern = arguments.string(2)?;
    let replacement = replacement(lua, &arguments)?;
    let count_max = match arguments.get(4) {
        None | Some(Value::Nil) => usize::MAX,
        Some(_) => usize::try_from(arguments.integer(4)? as i32).unwrap_or(0),
    };

    let text = text.as_bytes();
    let pattern = pattern.as_bytes();
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(&text, &pattern, budget);
    let mut replaced = Vec::new();
    let mut count = 0;
    let mut start = 0;
    while count < count_max {
        let end = matcher.match_at(start, usize::from(is_anchored)).map_err(|failure| match_failed(lua, failure))?;
        if let Some(end) = end {
            count += 1;
            append(lua, &matcher, &text, (start, end), &replacement, &mut replaced)?;
            charge_bytes(budget, replaced.len()).map(|()| budget.spend(1))??;
        }

        match end {
            Some(end) if end > start => start = end,
            _ if start < text.len() => {
                replaced.push(text[start]);
                start += 1;
            }
            _ => break,
        }
        if is_anchored {
            break;
        }
    }

    replaced.extend_from_slice(&text[start..]);
    let replaced = lua.create_string(replaced)?;
    Ok(MultiValue::from_vec(vec![Value::String(replaced), position(count)]))
}

fn replacement(lua: &Lua, arguments: &LuaArguments<'_>) -> mlua::Result<Replacement> {
    match arguments.get(3) {
        Some(Value::Function(function)) => Ok(Replacement::Function(function.clone())),
        Some(Value::Table(table)) => Ok(Replacement::Table(table.clone())),
        Some(Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
            arguments.string(3).map(|text| Replacement::Text(text.as_bytes().to_vec()))
        }
        _ => Err(bad_argument(lua, 3, "string/function/table expected")),
    }
}

/// Appends what stands for a match.
fn append(
    lua: &Lua,
    matcher: &Matcher<'_>,
    text: &[u8],
    (start, end): (usize, usize),
    replacement: &Replacement,
    to: &mut Vec<u8>,
) -> mlua::Result<()> {
    let value = match replacement {
        Replacement::Text(template) => return append_template(lua, matcher, text, (start, end), template, to),
        Replacement::Function(function) => {
            let captures = matcher.captured(start, end).map_err(|failure| match_failed(lua, failure))?;
            call_guarded(lua, function, values_of(lua, text, &captures)?)?
        }
        Replacement::Table(table) => {
            let capture = matcher.capture(0, start, end).map_err(|failure| match_failed(lua, failure))?;
            index_guarded(lua, table, value_of(lua, text, capture)?)?
        }
    };

    match &value {
        Value::Nil | Value::Boolean(false) => to.extend_from_slice(&text[start..end]),
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            let part = lua.coerce_string(value)?.expect("a string or a number is a string");
            to.extend_from_slice(&part.as_bytes());
        }
        other => {
            let text = format!("invalid replacement value (a {})", type_name(Some(other)));
            return Err(at_caller(lua, &text));
        }
    }
    Ok(())
}

/// Appends a text in which `%1` to `%9` stand for captures, and `%0` for the whole match. A short text may name a long match many times.
fn append_template(
    lua: &Lua,
    matcher: &Matcher<'_>,
    text: &[u8],
    (start, end): (usize, usize),
    template: &[u8],
    to: &mut Vec<u8>,
) -> mlua::Result<()> {
    let mut bytes = template.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            to.push(byte);
            continue;
        }

        refuse_bytes(matcher.budget(), to.len())?;
        match bytes.next() {
            Some(b'0') => to.extend_from_slice(&text[start..end]),
            Some(digit @ b'1'..=b'9') => {
                let index = usize::from(digit - b'1');
                let capture = matcher.capture(index, start, end).map_err(|failure| match_failed(lua, failure))?;
                let value = value_of(lua, text, capture)?;
                let part = lua.coerce_string(value)?.expect("a capture is a string or a number");
                to.extend_from_slice(&part.as_bytes());
            }
            // Lua 5.1 reads the zero byte behind its string.
            other => to.push(other.unwrap_or(0)),
        }
    }
    Ok(())
}

/// Reads from a table of the script, by its metamethods if it has some.
fn index_guarded(lua: &Lua, table: &Table, key: Value) -> mlua::Result<Value> {
    if table.has_metatable() {
        let index = lua.load("local table, key = ... return table[key]").set_name("=[C]").into_function()?;
        return call_guarded(lua, &index, vec![Value::Table(table.clone()), key]);
    }
    table.raw_get(key)
}
