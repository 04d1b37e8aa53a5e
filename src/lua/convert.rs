//! Replies of commands as values of Lua, and values of Lua as replies.

use lockkeeper_redis::RedisReply;
use mlua::{Lua, LuaString, Table, Value};

use crate::raise::{error_table, to_integer};

/// The most tables within tables of a result. A table that contains itself ends here.
const DEPTH_MAX: usize = 128;

/// The bytes that an element of a result costs beside those of its strings.
const ELEMENT_BYTES: usize = 32;

/// The value that a script gets for a reply.
pub(crate) fn to_lua(lua: &Lua, reply: RedisReply) -> mlua::Result<Value> {
    match reply {
        #[expect(clippy::cast_precision_loss, reason = "Lua 5.1 has no other numbers")]
        RedisReply::Integer(integer) => Ok(Value::Number(integer as f64)),
        RedisReply::Bulk(bytes) | RedisReply::Verbatim(bytes) => lua.create_string(bytes).map(Value::String),
        // Not nil, at which a table would end.
        RedisReply::Nil | RedisReply::NilArray | RedisReply::OwnRevision => Ok(Value::Boolean(false)),
        RedisReply::Status(text) => {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set("ok", lua.create_string(text)?)?;
            Ok(Value::Table(table))
        }
        RedisReply::Error(text) => error_table(lua, &error_text(&text)).map(Value::Table),
        RedisReply::Array(parts) | RedisReply::Set(parts) | RedisReply::Push(parts) => sequence(lua, parts),
        RedisReply::Map(pairs) | RedisReply::Pairs(pairs) => {
            sequence(lua, pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        }
        RedisReply::Double(number) => lua.create_string(number.to_string()).map(Value::String),
    }
}

fn sequence(lua: &Lua, parts: Vec<RedisReply>) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(parts.len(), 0)?;
    for (index, part) in parts.into_iter().enumerate() {
        table.raw_set(index + 1, to_lua(lua, part)?)?;
    }
    Ok(Value::Table(table))
}

/// The text of an error, as scripts see it: it begins with a word in capitals. A text of one word gets one.
pub(crate) fn error_text(text: &[u8]) -> Vec<u8> {
    let text = until_zero(text);
    match text.iter().position(|byte| *byte == b' ') {
        None => [b"ERR ", trim_line_ends(text)].concat(),
        Some(space) => {
            let (word, rest) = text.split_at(space + 1);
            [word, trim_line_ends(rest)].concat()
        }
    }
}

fn trim_line_ends(text: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = text.iter().position(|byte| !is_end(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_end(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// A text that fits a line of the protocol.
pub(crate) fn line(text: &[u8]) -> Vec<u8> {
    let as_space = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    trim_line_ends(until_zero(text)).iter().map(as_space).collect()
}

fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Why a result cannot become a reply.
pub(crate) enum ResultFailure {
    /// Tables are too deep within tables.
    Deep,
    /// The result is larger than allowed.
    Large,
    /// The interpreter failed.
    Lua(mlua::Error),
}

impl From<mlua::Error> for ResultFailure {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

/// Makes a reply of the value that a script returned.
pub(crate) struct ResultReader {
    bytes_left: usize,
}

impl ResultReader {
    /// Makes a limit of this number of bytes for all parts together.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_left: bytes_max }
    }

    pub(crate) fn read(&mut self, value: &Value, depth: usize) -> Result<RedisReply, ResultFailure> {
        self.charge(ELEMENT_BYTES)?;
        match value {
            Value::String(text) => self.bytes(text).map(RedisReply::Bulk),
            Value::Integer(integer) => Ok(RedisReply::Integer(*integer)),
            // The fraction is lost, as in Redis. A script that wants to keep it returns a text.
            Value::Number(number) => Ok(RedisReply::Integer(to_integer(*number))),
            Value::Boolean(true) => Ok(RedisReply::Integer(1)),
            Value::Table(table) => self.table(table, depth),
            _ => Ok(RedisReply::Nil),
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), ResultFailure> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(ResultFailure::Large)?;
        Ok(())
    }

    fn bytes(&mut self, text: &LuaString) -> Result<Vec<u8>, ResultFailure> {
        let text = text.as_bytes();
        self.charge(text.len())?;
        Ok(text.to_vec())
    }

    /// A table with certain fields is a reply of another kind than an array.
    fn table(&mut self, table: &Table, depth: usize) -> Result<RedisReply, ResultFailure> {
        if depth == DEPTH_MAX {
            return Err(ResultFailure::Deep);
        }

        if let Value::String(text) = table.raw_get("err")? {
            return self.bytes(&text).map(|text| RedisReply::Error(line(&text)));
        }
        if let Value::String(text) = table.raw_get("ok")? {
            return self.bytes(&text).map(|text| RedisReply::Status(status_line(&text)));
        }
        if let Some(number) = number_of(&table.raw_get("double")?) {
            return Ok(RedisReply::Double(number));
        }
        if let Value::String(text) = table.raw_get("big_number")? {
            return self.bytes(&text).map(RedisReply::Bulk);
        }
        if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
            && let Value::String(_) = verbatim.raw_get("format")?
            && let Value::String(text) = verbatim.raw_get("string")?
        {
            return self.bytes(&text).map(RedisReply::Verbatim);
        }
        if let Value::Table(map) = table.raw_get("map")? {
            return self.pairs(&map, depth).map(RedisReply::Map);
        }
        if let Value::Table(set) = table.raw_get("set")? {
            let members = self.pairs(&set, depth)?;
            return Ok(RedisReply::Set(members.into_iter().map(|(member, _)| member).collect()));
        }
        self.array(table, depth)
    }

    fn pairs(&mut self, table: &Table, depth: usize) -> Result<Vec<(RedisReply, RedisReply)>, ResultFailure> {
        let mut pairs = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            let key = self.read(&key, depth + 1)?;
            pairs.push((key, self.read(&value, depth + 1)?));
        }
        Ok(pairs)
    }

    /// The elements up to the first nil.
    fn array(&mut self, table: &Table, depth: usize) -> Result<RedisReply, ResultFailure> {
        let mut parts = Vec::new();
        loop {
            let value: Value = table.raw_get(parts.len() + 1)?;
            if value.is_nil() {
                return Ok(RedisReply::Array(parts));
            }
            parts.push(self.read(&value, depth + 1)?);
        }
    }
}

/// The number that a value is.
pub(crate) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(*number),
        #[expect(clippy::cast_precision_loss, reason = "it was a number of Lua")]
        Value::Integer(integer) => Some(*integer as f64),
        _ => None,
    }
}

/// A status keeps the spaces at its ends.
fn status_line(text: &[u8]) -> Vec<u8> {
    let as_space = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    until_zero(text).iter().map(as_space).collect()
}
