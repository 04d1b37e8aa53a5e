//! `lockkeeper dev`: a whole cluster on this machine, for as long as this program or a command runs.
//!
//! Ends as the command did (128 and the number of the signal that ended it), 126 or 127 if it could not be run. Without a command:
//! 0 after Ctrl-C, SIGTERM or SIGHUP. Either way 2 if the directory cannot be used, 12 if the cluster did not come up, 129, 130 or 143 if
//! a signal came before it had.

mod command;
mod report;

use std::{
    env, fmt,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};

use super::{
    arguments,
    exit::{Exit, Failure},
    signals::Signals,
};
use crate::local::{LocalCluster, LocalError, Options};

/// Runs a whole cluster on this machine, to try things out.
///
/// Its nodes are processes of their own on free ports of 127.0.0.1. They live as long as COMMAND, which finds them by
/// LOCKKEEPER_ENDPOINTS, or until Ctrl-C. A node that dies is not started again.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper dev -- lockkeeper status")]
pub(super) struct Dev {
    /// How many nodes [default: 3, or as many as DIR has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    nodes: Option<u8>,
    /// Keep the cluster here, and go on with what is here [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How long the cluster may take to come up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = arguments::duration)]
    timeout: Duration,
    /// How to say where the nodes are
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    output: Output,
    /// What to run; stdout is all its own
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A form of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

impl Dev {
    pub(super) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(self.run_until_ended()));
        match ended {
            Ok(code) => code.into(),
            Err(failure) => {
                if !failure.message.is_empty() {
                    say(format_args!("error: {}", failure.message));
                }
                failure.exit.into()
            }
        }
    }

    async fn run_until_ended(self) -> Result<u8, Failure> {
        let mut signals = Signals::listen()?;
        let program = env::current_exe()?;
        let nodes = self.nodes.map(usize::from);
        let options = Options { nodes, directory: self.data.clone(), timeout: self.timeout, ..Options::new(&program) };

        if self.output == Output::Text {
            say("starting a cluster on this machine");
        }
        let started = tokio::select! {
            started = LocalCluster::start(options) => started?,
            // What was started so far is killed with the future.
            ending = signals.next() => return Ok(ending.exit_code()),
        };
        self.serve(started, signals, program).await
    }

    async fn serve(self, mut cluster: LocalCluster, signals: Signals, program: PathBuf) -> Result<u8, Failure> {
        let report = report::of(&cluster, self.output).map_err(|error| Failure::new(Exit::Error, error))?;
        let code = if self.command.is_empty() {
            writeln!(io::stdout(), "{report}")?;
            until_signalled(&mut cluster, signals).await
        } else {
            say(&report);
            command::run(&self.command, &mut cluster, signals, &program).await
        };
        cluster.stop().await;
        Ok(code)
    }
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        let exit = match &error {
            LocalError::Directory { source, .. } => Exit::of_path(source),
            LocalError::InUse(_)
            | LocalError::Foreign { .. }
            | LocalError::OtherSize { .. }
            | LocalError::Config(_) => Exit::Usage,
            LocalError::NoPorts(_) | LocalError::Spawn { .. } => Exit::Error,
            LocalError::Died { .. } | LocalError::NotReady { .. } => Exit::NoCluster,
        };
        Self::new(exit, error)
    }
}

/// To the terminal, which may be gone: that is no reason to leave the nodes alone.
fn say(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

async fn until_signalled(cluster: &mut LocalCluster, mut signals: Signals) -> u8 {
    tokio::select! {
        ending = signals.next() => say(format_args!("{} came: stopping the cluster", ending.name())),
        never = report::deaths(cluster) => match never {},
    }
    0
}
