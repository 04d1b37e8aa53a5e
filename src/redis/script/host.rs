//! A view as a script sees it.

use crate::{
    CallAborted, RedisReply, ScriptHost,
    commands::{self, Arguments, CommandRunner, CommandSpec, Flag},
    key::token_key,
    view::{Stop, UnitView},
};

/// The host of one run of a script.
pub(crate) struct ViewHost<'a> {
    /// What the script sees and writes.
    view: &'a mut UnitView,
    /// Whether it was called by a command that may not write.
    is_read_only: bool,
    /// Why the run is over.
    ended: Option<Stop>,
}

impl<'a> ViewHost<'a> {
    /// Begins a run over a view.
    pub(crate) fn new(view: &'a mut UnitView, is_read_only: bool) -> Self {
        view.is_script = true;
        Self { view, is_read_only, ended: None }
    }

    /// Ends the run, and says why the host ended it, if it did.
    pub(crate) fn finish(self) -> Option<Stop> {
        self.view.is_script = false;
        self.ended
    }

    /// Runs one command of the script.
    fn run(&mut self, arguments: &Arguments<'_>) -> Result<RedisReply, Stop> {
        let command = find(arguments)?;
        if self.is_read_only && command.has(Flag::Write) {
            return Err(Stop::refused("ERR Write commands are not allowed from read-only scripts."));
        }
        let reply = commands::run(self.view, arguments)?;

        // A script may decide by the absence of a key that it has read.
        if command.has(Flag::ReadOnly) {
            for key in command.keys(arguments) {
                // The token of a lock has no key of its own, and there are no rights for it: the absent key is the lock itself.
                let token_of = token_key(key).filter(|_| command.name == "get");
                self.view.note_decided(token_of.unwrap_or(key))?;
            }
        }
        Ok(reply)
    }
}

/// Finds a command that scripts may call. The texts of errors are those of Redis within scripts.
fn find(arguments: &Arguments<'_>) -> Result<&'static CommandSpec, Stop> {
    let known = arguments.first().and_then(|name| commands::find(name));
    let command = known.ok_or_else(|| Stop::refused("ERR Unknown Redis command called from script"))?;
    if !matches!(command.run, CommandRunner::Data(_)) || command.has(Flag::NoScript) || command.has(Flag::Blocking) {
        return Err(Stop::refused("ERR This Redis command is not allowed from script"));
    }
    commands::find_checked(arguments)
        .map_err(|_| Stop::refused("ERR Wrong number of args calling Redis command from script"))
}

impl ScriptHost for ViewHost<'_> {
    fn call(&mut self, arguments: &[&[u8]]) -> Result<RedisReply, CallAborted> {
        if self.ended.is_some() {
            return Err(CallAborted);
        }
        match self.run(arguments) {
            Ok(reply) => Ok(reply.into_resp2()),
            Err(Stop::Refused(text)) => Ok(RedisReply::error(text)),
            Err(end @ (Stop::Missing | Stop::Over(_))) => {
                self.ended = Some(end);
                Err(CallAborted)
            }
        }
    }
}
