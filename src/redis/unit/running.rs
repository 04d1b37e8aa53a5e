//! Runs the calls of a unit over a view, within what its scripts may cost.

use tokio::{task::yield_now, time::Instant};

use super::{ScriptInvocation, UnitCall};
use crate::{
    Interpreter, RedisReply, ScriptFailure, ScriptLimits, commands,
    script::ViewHost,
    view::{Stop, UnitView},
};

/// Maximum number of bytes of the replies of a unit.
pub(crate) const REPLY_BYTES_MAX: usize = 8 << 20;

/// What the scripts of one run may cost.
#[derive(Clone, Copy)]
pub(super) struct ScriptBounds {
    /// The time is that of all of them together.
    pub(super) limits: ScriptLimits,
    /// Whether the run can begin again with more.
    pub(super) is_quick: bool,
}

/// Why a run has no replies.
pub(super) enum RunStop {
    /// The unit is over, or something is missing.
    Stopped(Stop),
    /// It takes more than a quick run may.
    TooLong,
}

impl ScriptBounds {
    /// The end of a run whose scripts have taken all the time that they have together.
    fn out_of_time(self) -> RunStop {
        if self.is_quick {
            return RunStop::TooLong;
        }
        let time_ms = self.limits.time_max.as_millis();
        let text =
            format!("ERR the scripts of a transaction ran longer than {time_ms} ms together: make several of it");
        Stop::Over(text).into()
    }
}

impl From<Stop> for RunStop {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

impl From<RunStop> for Stop {
    fn from(stop: RunStop) -> Self {
        match stop {
            RunStop::Stopped(stop) => stop,
            RunStop::TooLong => Self::Over("ERR the scripts take too long: make them shorter".to_owned()),
        }
    }
}

/// A run of the calls of a unit.
pub(super) struct UnitRun<'a> {
    calls: &'a [UnitCall],
    view: &'a mut UnitView,
    interpreter: &'a dyn Interpreter,
    bounds: ScriptBounds,
    /// The end of the time of all its scripts.
    until: Instant,
    /// Number of scripts that have run.
    scripts: usize,
    /// A reply for each call.
    replies: Vec<RedisReply>,
    /// Number of bytes of the replies.
    bytes: usize,
}

impl<'a> UnitRun<'a> {
    /// A run over a view.
    pub(super) fn new(
        calls: &'a [UnitCall],
        view: &'a mut UnitView,
        interpreter: &'a dyn Interpreter,
        bounds: ScriptBounds,
    ) -> Self {
        let until = Instant::now() + bounds.limits.time_max;
        let replies = Vec::with_capacity(calls.len());
        Self { calls, view, interpreter, bounds, until, scripts: 0, replies, bytes: 0 }
    }

    /// Runs all calls, on a thread for scripts. It cannot be [`UnitRun::in_turns`]: whoever yields needs a runtime that comes back to him,
    /// and this thread has none.
    pub(super) fn run_to_end(mut self) -> Result<Vec<RedisReply>, RunStop> {
        for call in self.calls {
            let result = self.run(call);
            self.add(result)?;
        }
        Ok(self.replies)
    }

    /// Runs all calls on a thread of connections, which have turns within commands of very many keys.
    pub(super) async fn in_turns(mut self) -> Result<Vec<RedisReply>, RunStop> {
        for call in self.calls {
            let result = match self.run_divided(call).await {
                Some(result) => result,
                None => self.run(call),
            };
            self.add(result)?;
        }
        Ok(self.replies)
    }

    /// Runs one call.
    fn run(&mut self, call: &UnitCall) -> Result<RedisReply, RunStop> {
        match call {
            UnitCall::Command(arguments) => {
                let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                commands::run(self.view, &arguments).map_err(RunStop::Stopped)
            }
            UnitCall::Script(script) => {
                // Without a bound on all of them, thousands of scripts that do not end would have a place for hours.
                let time_max = self.bounds.limits.time_max;
                let left = if self.scripts == 0 { time_max } else { self.until - Instant::now() };
                if left.is_zero() {
                    return Err(self.bounds.out_of_time());
                }

                self.scripts += 1;
                let limits = ScriptLimits { time_max: left, ..self.bounds.limits };
                run_script(script, self.view, self.interpreter, ScriptBounds { limits, ..self.bounds })
            }
        }
    }

    /// Runs a command of very many keys in parts. `None` means that it runs as a whole.
    async fn run_divided(&mut self, call: &UnitCall) -> Option<Result<RedisReply, RunStop>> {
        let UnitCall::Command(arguments) = call else { return None };
        if arguments.len() <= commands::KEYS_TOGETHER {
            return None;
        }

        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let mut joined = None;
        for part in commands::divide(&arguments)? {
            let reply = match commands::run(self.view, &part) {
                Ok(reply) => reply,
                Err(stop) => return Some(Err(stop.into())),
            };
            joined = Some(match joined {
                Some(before) => commands::join(before, reply),
                None => reply,
            });
            yield_now().await;
        }
        joined.map(Ok)
    }

    /// Adds the reply of a call. A refused call is a reply, and the others go on.
    fn add(&mut self, result: Result<RedisReply, RunStop>) -> Result<(), RunStop> {
        let reply = match result {
            Err(RunStop::Stopped(Stop::Refused(text))) => RedisReply::error(text),
            other => other?,
        };

        self.bytes += reply.bytes();
        if self.bytes > REPLY_BYTES_MAX {
            let text = format!(
                "ERR the replies have more than {REPLY_BYTES_MAX} bytes, the limit of a transaction: read less at a time"
            );
            return Err(Stop::Over(text).into());
        }
        self.replies.push(reply);
        Ok(())
    }
}

/// Runs a script. What it wrote before it failed is undone.
fn run_script(
    script: &ScriptInvocation,
    view: &mut UnitView,
    interpreter: &dyn Interpreter,
    bounds: ScriptBounds,
) -> Result<RedisReply, RunStop> {
    let before = view.clone();
    let ScriptInvocation { source, sha1, keys, arguments, is_read_only } = script;
    let mut host = ViewHost::new(view, *is_read_only);
    let result = interpreter.run(source, sha1, keys, arguments, &mut host, bounds.limits);
    if let Some(stop) = host.finish() {
        return Err(stop.into());
    }
    // A selected database lasts as long as the script.
    view.database = before.database;

    let error = match result {
        Ok(reply) => return Ok(reply),
        Err(ScriptFailure::Compile(text)) => {
            RedisReply::error(format!("ERR Error compiling script (new function): {text}"))
        }
        Err(ScriptFailure::Raised(text)) => RedisReply::Error(text),
        Err(ScriptFailure::OverLimit(_)) if bounds.is_quick => return Err(RunStop::TooLong),
        Err(ScriptFailure::OverLimit(text)) => RedisReply::error(format!("ERR {text}")),
        Err(ScriptFailure::Aborted) => RedisReply::error("ERR the script ended without a result"),
    };
    *view = before;
    Ok(error)
}
