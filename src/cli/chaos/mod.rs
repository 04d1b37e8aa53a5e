//! `lockkeeper chaos` runs clusters under faults, and has the tools for their histories.

mod check;
mod client;
mod export;
mod report;
mod run;

use clap::{Args, Subcommand};

use super::{Exit, Failure};

/// Tests clusters under faults, and checks the histories of such runs.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper chaos run --duration 5m --faults partition,kill")]
pub(super) struct Chaos {
    #[command(subcommand)]
    command: ChaosCommand,
}

#[derive(Subcommand, Debug)]
enum ChaosCommand {
    Run(run::RunChaos),
    Check(check::CheckHistories),
    Report(report::ReportOf),
    Export(export::Export),
    #[command(hide = true)]
    Client(client::ClientProcess),
}

impl Chaos {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            ChaosCommand::Run(run) => run.run().await,
            ChaosCommand::Check(check) => check.run(),
            ChaosCommand::Report(report) => report.run(),
            ChaosCommand::Export(export) => export.run(),
            ChaosCommand::Client(client) => client.run().await,
        }
    }
}
