//! Lua 5.1 for the scripts of Redis' clients.
//!
//! ```text
//! run         one run of a script, in an interpreter of its own
//! prelude     its globals, sealed (in Lua)
//! api         the table `redis`
//! base        the functions of the base library that look at tables directly
//! convert     replies as values of Lua, and back
//! strings     the functions of `string` that could run for long
//! tables      those of `table`
//! coroutines  `coroutine.wrap`
//! json        the table `cjson`
//! pattern     the patterns that these match, in bounded time
//! raise       errors of functions that are not Lua's
//! budget      what a run may cost
//! ```
//!
//! The interpreter is that of Redis, PUC-Rio's Lua 5.1 in C (`mlua`, vendored), so numbers as strings, the order of `pairs`, the length of
//! tables with holes and the texts of errors are the same. It is a crate of its own since it compiles C.
//!
//! **A script costs its caller an error, and nobody else anything.** Memory is bounded by the allocator; instructions and time by a hook
//! that is called every few instructions and before each call. The hook is not called within a function of C, so each of those must end
//! soon whatever it is given: the ones that did not are replaced (`strings`, `tables`). A run that is over cannot go
//! on by catching the error: each further step raises it again.
//!
//! **Left out**, since they have no use for locks or no bound: compiling texts (`load`, `loadstring`, `string.dump`), `newproxy` (its
//! finalizers run without the hook), `setfenv` and `getfenv` (Redis has neither), the libraries `bit`, `cmsgpack` and `struct`, replies in
//! the forms of RESP3 (`redis.setresp(3)` is accepted and changes nothing), `redis.acl_check_cmd`, and the log (`redis.log` checks its
//! arguments). Tables that contain themselves are an error where Redis returns one inside thousands of arrays.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the values and errors of the binding: most of them have one answer"
)]

mod api;
mod base;
mod budget;
mod convert;
mod coroutines;
mod json;
mod pattern;
mod raise;
mod random;
mod run;
mod strings;
mod tables;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkeeper_redis::{Interpreter, RedisReply, ScriptFailure, ScriptHost, ScriptLimits};

use run::ScriptCall;

/// Runs scripts in Lua 5.1, each in an interpreter of its own.
#[derive(Clone, Copy, Debug)]
pub struct LuaInterpreter {
    time_max: Duration,
}

impl Default for LuaInterpreter {
    /// A run may take two seconds, which no script of a lock client comes near.
    fn default() -> Self {
        Self::with_time_max(Duration::from_secs(2))
    }
}

impl LuaInterpreter {
    /// An interpreter whose runs may take this long. It comes beside [`ScriptLimits`], for what takes long in few instructions.
    pub fn with_time_max(time_max: Duration) -> Self {
        Self { time_max }
    }
}

impl Interpreter for LuaInterpreter {
    fn check(&self, source: &[u8]) -> Result<(), ScriptFailure> {
        run::check(source, ScriptLimits::default().memory_bytes_max)
    }

    fn run(
        &self,
        source: &[u8],
        sha1: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        host: &mut dyn ScriptHost,
        limits: ScriptLimits,
    ) -> Result<RedisReply, ScriptFailure> {
        let time_max = self.time_max.min(limits.time_max);
        run::run(&ScriptCall { source, sha1, keys, arguments }, host, limits, time_max)
    }
}
