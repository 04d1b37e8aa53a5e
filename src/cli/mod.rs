//! The program, one command a file.
//!
//! Every command ends with a code that says what happened; each file lists its own. Common to all: 0 is success, 2 a command line
//! or a configuration that cannot be used.

mod dev;
mod logging;
mod serve;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A lock service: replicated by Raft, every grant with a fencing token.
#[derive(Parser, Debug)]
#[command(name = "lockkeeper", version, propagate_version = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Serve),
    Dev(dev::Dev),
}

/// Runs the program.
pub fn run() -> ExitCode {
    match Program::parse().command {
        Command::Serve(command) => command.run(),
        Command::Dev(command) => command.run(),
    }
}
