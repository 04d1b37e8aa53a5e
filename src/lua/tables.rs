//! The functions of `table` that could run for long without the interpreter's hook: `insert`, `remove` and `sort`.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::{
    budget::RunBudget,
    raise::{LuaArguments, at_caller, call_guarded, is_text, native_function},
};

/// The library takes the square of the length to sort some arrays. So it sorts longer ones by a comparison that is a function of Lua, which
/// the hook interrupts.
const SORTED_AT_ONCE_MAX: usize = 2000;

/// A list with a longer string than this is sorted like a long list: strings with a long common beginning take long to compare.
const SORTED_AT_ONCE_BYTES_MAX: usize = 256;

/// Elements that are moved between two looks at the budget.
const MOVED_AT_ONCE_MAX: u64 = 1000;

/// Makes a table of the functions.
pub(crate) fn library(lua: &Lua, budget: &Rc<RunBudget>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let mover = Rc::clone(budget);
    table.raw_set("insert", native_function(lua, move |lua, arguments| insert(lua, &mover, arguments))?)?;

    let mover = Rc::clone(budget);
    table.raw_set("remove", native_function(lua, move |lua, arguments| remove(lua, &mover, arguments))?)?;

    let sort: Function = lua.globals().raw_get::<Table>("table")?.raw_get("sort")?;
    table.raw_set("sort", native_function(lua, move |lua, arguments| sort_guarded(lua, &sort, arguments))?)?;
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
    let mut spender = MoveSpender { budget, moved: 0 };
    for to in (position + 1..=end).rev() {
        list.raw_set(to, list.raw_get::<Value>(to - 1)?)?;
        spender.count_one()?;
    }
    list.raw_set(position, value.cloned().unwrap_or_default())
}

/// Charges for elements that are moved.
struct MoveSpender<'a> {
    budget: &'a RunBudget,
    moved: u64,
}

impl MoveSpender<'_> {
    fn count_one(&mut self) -> mlua::Result<()> {
        self.moved += 1;
        if self.moved.is_multiple_of(MOVED_AT_ONCE_MAX) {
            self.budget.spend(MOVED_AT_ONCE_MAX)?;
        }
        Ok(())
    }
}

/// `table.remove(list)` and `table.remove(list, position)`: the element that was there.
#[expect(clippy::cast_possible_truncation, reason = "the library takes an int of C")]
fn remove(lua: &Lua, budget: &RunBudget, values: MultiValue) -> mlua::Result<MultiValue> {
    let arguments = LuaArguments::new(lua, values);
    let list = list_of(&arguments)?;
    // The length of a list with holes may be its highest place.
    let end = i64::try_from(list.raw_len()).unwrap_or(i64::MAX);
    let position = i64::from(arguments.integer_or(2, end)? as i32);
    if !(1..=end).contains(&position) {
        return Ok(MultiValue::new());
    }

    let removed: Value = list.raw_get(position)?;
    let mut spender = MoveSpender { budget, moved: 0 };
    for to in position..end {
        list.raw_set(to, list.raw_get::<Value>(to + 1)?)?;
        spender.count_one()?;
    }
    list.raw_set(end, Value::Nil)?;
    Ok(MultiValue::from_vec(vec![removed]))
}

/// `table.sort(list, comparison)`.
fn sort_guarded(lua: &Lua, sort: &Function, values: MultiValue) -> mlua::Result<()> {
    let arguments = LuaArguments::new(lua, values);
    let list = list_of(&arguments)?;
    let comparison = match arguments.get(2) {
        Some(Value::Function(function)) => Some(function.clone()),
        None | Some(Value::Nil) if takes_long_to_sort(&list)? => {
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

/// Whether the library could take long to sort a list by itself.
fn takes_long_to_sort(list: &Table) -> mlua::Result<bool> {
    let length = list.raw_len();
    if length > SORTED_AT_ONCE_MAX {
        return Ok(true);
    }
    for index in 1..=length {
        if let Value::String(text) = list.raw_get::<Value>(index)?
            && text.as_bytes().len() > SORTED_AT_ONCE_BYTES_MAX
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The text of the library for a comparison that contradicts itself.
const INVALID_ORDER: &str = "invalid order function for sorting";
