//! `chaos`: runs under faults, and the tools for their histories.

mod check;
mod client;
mod report;
mod run;

use clap::{Args, Subcommand};

use super::{Exit, Failure};

/// Tests clusters under faults, and checks the histories of such runs.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper chaos run --duration 5m --faults partition,kill")]
pub(super) struct Chaos {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::Run),
    Check(check::Check),
    Report(report::ReportOf),
    #[command(hide = true)]
    Client(client::Client),
}

impl Chaos {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            Command::Run(run) => run.run().await,
            Command::Check(check) => check.run(),
            Command::Report(report) => report.run(),
            Command::Client(client) => client.run().await,
        }
    }
}
