//! The functions of `table` that could run for long without the interpreter's hook: `insert` and `sort`.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::{
    budget::RunBudget,
    raise::{LuaArguments, at_caller, call_guarded, is_text},
};

/// The library takes the square of the length to sort some arrays. So it sorts longer ones by a comparison that is a function of Lua, which
/// the hook interrupts.
const SORTED_AT_ONCE_MAX: usize = 2000;

/// Elements that are moved between two looks at the budget.
const MOVED_AT_ONCE_MAX: u64 = 1000;

/// Makes a table of the functions.
pub(crate) fn library(lua: &Lua, budget: &Rc<RunBudget>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let mover = Rc::clone(budget);
    table.raw_set("insert", lua.create_function(move |lua, arguments| insert(lua, &mover, arguments))?)?;

    let sort: Function = lua.globals().raw_get::<Table>("table")?.raw_get("sort")?;
    table.raw_set("sort", lua.create_function(move |lua, arguments| sort_guarded(lua, &sort, arguments))?)?;
    Ok(table)
}

fn list_of(arguments: &LuaArguments<'_>) -> mlua::Result<Table> {
    match arguments.get(1) {
        Some(Value::Table(table)) => Ok(table.clone()),
        _ => Err(arguments.expected(1, "table")),
    }
}

/// `table.insert(list, value)` and `table.insert(list, position, value)`.
#[expect(clippy::cast_possible_truncation, reason = "the library takes an int of C")]
fn insert(lua: &Lua, budget: &RunBudget, values: MultiValue) -> mlua::Result<()> {
    let arguments = LuaArguments::new(lua, values);
    let list = list_of(&arguments)?;
    let end = i64::try_from(list.raw_len()).unwrap_or(i64::MAX) + 1;
    let (position, value) = match arguments.count() {
        2 => (end, arguments.get(2)),
        3 => (i64::from(arguments.integer(2)? as i32), arguments.get(3)),
        _ => return Err(at_caller(lua, "wrong number of arguments to 'insert'")),
    };

    // Those behind the position move up, from the last. A position far below 1 moves as many that are not there.
    let mut moved = 0;
    for to in (position + 1..=end).rev() {
        list.raw_set(to, list.raw_get::<Value>(to - 1)?)?;
        moved += 1;
        if moved % MOVED_AT_ONCE_MAX == 0 {
            budget.spend(MOVED_AT_ONCE_MAX)?;
        }
    }
    list.raw_set(position, value.cloned().unwrap_or_default())
}

/// `table.sort(list, comparison)`.
fn sort_guarded(lua: &Lua, sort: &Function, values: MultiValue) -> mlua::Result<()> {
    let arguments = LuaArguments::new(lua, values);
    let list = list_of(&arguments)?;
    let comparison = match arguments.get(2) {
        Some(Value::Function(function)) => Some(function.clone()),
        None | Some(Value::Nil) if list.raw_len() > SORTED_AT_ONCE_MAX => {
            Some(lua.load("return function(a, b) return a < b end").set_name("=[C]").eval()?)
        }
        None | Some(Value::Nil) => None,
        Some(_) => return Err(arguments.expected(2, "function")),
    };

    let arguments = [Some(Value::Table(list)), comparison.map(Value::Function)];
    let sorted = call_guarded(lua, sort, arguments.into_iter().flatten().collect());
    match sorted {
        Err(error) if is_text(&error, INVALID_ORDER) => Err(at_caller(lua, INVALID_ORDER)),
        other => other.map(drop),
    }
}

/// The text of the library for a comparison that contradicts itself.
const INVALID_ORDER: &str = "invalid order function for sorting";
