//! Tests of the crate.

#![expect(clippy::disallowed_methods, reason = "they measure real time")]

mod attacks;
mod oracle;
mod runs;
mod walk;

use std::collections::BTreeMap;

use lockkeeper_redis::{CallAborted, Interpreter, RedisReply, ScriptFailure, ScriptHost, ScriptLimits};

use crate::LuaInterpreter;

/// A keyspace of strings.
#[derive(Default)]
struct Strings(BTreeMap<Vec<u8>, Vec<u8>>);

impl ScriptHost for Strings {
    fn call(&mut self, arguments: &[&[u8]]) -> Result<RedisReply, CallAborted> {
        Ok(match (arguments[0].to_ascii_lowercase().as_slice(), &arguments[1..]) {
            (b"set", [key, value]) => {
                self.0.insert(key.to_vec(), value.to_vec());
                RedisReply::ok()
            }
            (b"get", [key]) => self.0.get(*key).map_or(RedisReply::Nil, |value| RedisReply::Bulk(value.clone())),
            (b"del", [key]) => RedisReply::Integer(i64::from(self.0.remove(*key).is_some())),
            (b"echo", parts) => RedisReply::Array(parts.iter().map(|part| RedisReply::Bulk(part.to_vec())).collect()),
            (b"abort", _) => return Err(CallAborted),
            _ => RedisReply::error("ERR Unknown Redis command called from script"),
        })
    }
}

/// Runs a script without keys.
fn run(source: &str) -> Result<RedisReply, ScriptFailure> {
    let mut host = Strings::default();
    LuaInterpreter::default().run(source.as_bytes(), "SHA", &[], &[], &mut host, ScriptLimits::default())
}

/// The string that a script returns.
fn text(source: &str) -> String {
    match run(source) {
        Ok(RedisReply::Bulk(text)) => String::from_utf8(text).expect("text"),
        other => panic!("{source}: {other:?}"),
    }
}

/// The error that a script raises.
fn raised(source: &str) -> String {
    match run(source) {
        Err(ScriptFailure::Raised(text)) => String::from_utf8(text).expect("text"),
        other => panic!("{source}: {other:?}"),
    }
}
