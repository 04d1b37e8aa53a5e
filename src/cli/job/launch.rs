//! The step between keeper and command: requests the parent-death signal, then becomes the command.
//!
//! The signal must be requested by the process itself between `fork` and `exec`, where safe Rust cannot run code. So
//! this program runs in between, with a second `exec`.

use std::{ffi::OsString, io, os::unix::process::CommandExt as _, process::Command};

use clap::Args;
use rustix::process::Pid;

use super::descendants::die_with_parent;
use crate::cli::{Exit, Failure};

/// Becomes a command that dies with its parent. Called by the keeper
#[derive(Args, Debug)]
pub(in crate::cli) struct Launch {
    /// The keeper's process id
    #[arg(long)]
    keeper: i32,
    /// The command, after `--`
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Launch {
    /// Returns only on failure. Its error message and exit code then stand for those of the command.
    pub(in crate::cli) fn run(self) -> Result<Exit, Failure> {
        let keeper = Pid::from_raw(self.keeper).ok_or_else(|| Failure::new(Exit::Usage, "no process id"))?;
        if !die_with_parent(keeper)? {
            return Ok(Exit::Lost);
        }
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| Failure::new(Exit::Usage, "no command given"))?;
        let error = Command::new(program).args(arguments).exec();
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        Err(Failure::new(exit, format!("cannot run {program:?}: {error}")))
    }
}
