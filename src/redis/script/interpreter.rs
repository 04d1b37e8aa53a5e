//! The interpreter of scripts: a parameter.

use std::time::Duration;

use thiserror::Error;

use crate::RedisReply;

/// What one run of a script may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Instructions of the interpreter.
    pub instructions_max: u64,
    /// Time, for what takes long in few instructions. The scripts of a transaction share it.
    pub time_max: Duration,
    /// Bytes of memory, including the interpreter's own state.
    pub memory_bytes_max: usize,
    /// Bytes of its result, all parts together.
    pub result_bytes_max: usize,
}

impl Default for ScriptLimits {
    /// Far more than scripts of lock clients take, and less than a second.
    fn default() -> Self {
        Self {
            instructions_max: 10_000_000,
            time_max: Duration::from_secs(2),
            memory_bytes_max: 16 << 20,
            result_bytes_max: 4 << 20,
        }
    }
}

/// The run must end at once: the host has no further answer for it.
///
/// No code of the script may catch this, not even `pcall`. The interpreter ends the run with [`ScriptFailure::Aborted`]; whatever it would
/// have returned otherwise is of no use. The host answers every later call of the same run so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallAborted;

/// The keyspace, as a script sees it.
pub trait ScriptHost {
    /// Runs a command: its name, and its arguments.
    ///
    /// The reply has the forms of RESP2 only, whatever the connection speaks: no map, set, double, push or verbatim text. An error of the
    /// command is a reply ([`RedisReply::Error`]): `redis.call` raises it, `redis.pcall` returns it as a table.
    fn call(&mut self, arguments: &[&[u8]]) -> Result<RedisReply, CallAborted>;
}

/// Why a script has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScriptFailure {
    /// It is not a program. The text is the interpreter's, such as `user_script:1: '=' expected near 'x'`.
    #[error("{0}")]
    Compile(String),
    /// It raised an error. These are the bytes of the reply, without the leading `-`, as Redis makes them: a word in capitals, the text
    /// and, unless the script gave an error table of its own, `script: SHA, on @user_script:LINE.`
    #[error("{}", String::from_utf8_lossy(.0))]
    Raised(Vec<u8>),
    /// It took more than [`ScriptLimits`] allow. The text names the limit.
    #[error("{0}")]
    OverLimit(String),
    /// The host ended it: [`CallAborted`].
    #[error("the host ended the run")]
    Aborted,
}

/// Runs scripts. It is called on threads that may block for as long as [`ScriptLimits`] allow, from several at a time.
pub trait Interpreter: Send + Sync + 'static {
    /// Compiles a script and runs nothing. Fails with [`ScriptFailure::Compile`].
    fn check(&self, source: &[u8]) -> Result<(), ScriptFailure>;

    /// Runs a script to its end. `sha1` is the SHA1 of the source in 40 lower-case hexadecimal digits: the name of the script in errors,
    /// and the key of what the interpreter keeps of it.
    ///
    /// The result has the forms of RESP2, as Redis converts Lua's values: a number is truncated to an integer, `false` and `nil` are nil, a
    /// table ends at its first nil.
    fn run(
        &self,
        source: &[u8],
        sha1: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        host: &mut dyn ScriptHost,
        limits: ScriptLimits,
    ) -> Result<RedisReply, ScriptFailure>;
}
