//! `completions`: shell completions.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{Cli, Exit, Failure, output::print};

/// Prints a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Example, for bash: source <(lockkeeper completions bash)")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        // Into memory first: `generate` panics if the output cannot be written.
        let mut script = Vec::new();
        generate(self.shell, &mut Cli::command(), "lockkeeper", &mut script);
        print(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Success)
    }
}
