//! The step between keeper and command: asks the kernel for the death signal, and becomes the command.
//!
//! It must be asked for by the process itself, between `fork` and `exec`, where safe Rust does not run any code of ours. So there is a
//! program in between, this one, and two `exec`s.

use std::{ffi::OsString, io, os::unix::process::CommandExt as _, process::Command};

use clap::Args;
use rustix::process::Pid;

use super::family::die_with_parent;
use crate::cli::{Exit, Failure};

/// Becomes a command that dies with its parent. For the keeper to call.
#[derive(Args, Debug)]
pub(in crate::cli) struct Launch {
    /// The keeper's process id.
    #[arg(long)]
    keeper: i32,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Launch {
    /// Returns only if it did not become the command. What it says then, and its exit code, stand for the command's.
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
