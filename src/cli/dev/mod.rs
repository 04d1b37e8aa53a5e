//! `lockkeeper dev` runs a whole cluster on this machine, for as long as this program or a command runs.
//!
//! Exit codes: that of the command (128 and the number of the signal that terminated it); 126 or 127 if it could not be
//! run. Without a command: 0 after Ctrl-C, SIGTERM or SIGHUP. In both cases 2 if the directory cannot be used, 12 if
//! the cluster did not start, and 129, 130 or 143 if a signal arrived before that.

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
    arguments, complain,
    exit::{Exit, Failure},
    output::print,
    signals::Signals,
};
use crate::{
    certs::CertsError,
    local::{ClusterOptions, LocalCluster, LocalError},
};

/// Runs a whole cluster on this machine, for tests and demonstrations.
///
/// Its nodes are separate processes on free ports of 127.0.0.1. They run as long as COMMAND, which finds them through
/// LOCKKEEPER_ENDPOINTS, or until Ctrl-C. A node that dies is not restarted.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper dev -- lockkeeper status")]
pub(super) struct Dev {
    /// Number of nodes [default: 3, or the number in DIR]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    nodes: Option<u8>,
    /// Directory of the cluster's data, kept and reused [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Use TLS, with certificates by an authority of the cluster's own; COMMAND finds its own through LOCKKEEPER_CA,
    /// LOCKKEEPER_CERT and LOCKKEEPER_KEY. A cluster in DIR that has it keeps it
    #[arg(long)]
    tls: bool,
    /// Serve DynamoDB's API too; COMMAND finds it through LOCKKEEPER_DYNAMODB_ENDPOINT (one node's) and
    /// LOCKKEEPER_DYNAMODB_ENDPOINTS (all), with --tls also an access key and the authority through the variables of AWS's
    /// SDKs. A cluster in DIR that has it keeps it
    #[arg(long)]
    dynamodb: bool,
    /// Serve etcd's API too; COMMAND finds it through LOCKKEEPER_ETCD_ENDPOINTS (host:port, of all nodes), etcdctl through
    /// ETCDCTL_ENDPOINTS. A cluster in DIR that has it keeps it
    #[arg(long)]
    etcd: bool,
    /// Serve Redis' protocol too; COMMAND finds it through REDIS_URL (one node's) and LOCKKEEPER_REDIS_ENDPOINTS (host:port,
    /// of all nodes). A cluster in DIR that has it keeps it
    #[arg(long)]
    redis: bool,
    /// Serve ZooKeeper's protocol too; COMMAND finds it through ZOOKEEPER_CONNECT (a connect string of all nodes). A cluster
    /// in DIR that has it keeps it
    #[arg(long)]
    zookeeper: bool,
    /// How long the cluster may take to start
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = arguments::duration)]
    timeout: Duration,
    /// Output format of the endpoints
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = DevOutput::Text)]
    output: DevOutput,
    /// The command to run; stdout belongs to it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DevOutput {
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
                    complain(&failure.message);
                }
                failure.exit.into()
            }
        }
    }

    async fn run_until_ended(self) -> Result<u8, Failure> {
        let mut signals = Signals::listen()?;
        let program = env::current_exe()?;
        let nodes = self.nodes.map(usize::from);
        let options = ClusterOptions {
            nodes,
            directory: self.data.clone(),
            timeout: self.timeout,
            tls: self.tls,
            dynamodb: self.dynamodb,
            etcd: self.etcd,
            redis: self.redis,
            zookeeper: self.zookeeper,
            http: true,
            ..ClusterOptions::new(&program)
        };

        if self.output == DevOutput::Text {
            say("starting a cluster on this machine");
        }
        let started = tokio::select! {
            started = LocalCluster::start(options) => started?,
            // The nodes started so far are killed when the future is dropped.
            ending = signals.next() => return Ok(ending.exit_code()),
        };
        self.serve(started, signals, program).await
    }

    async fn serve(self, mut cluster: LocalCluster, signals: Signals, program: PathBuf) -> Result<u8, Failure> {
        let report = report::endpoints(&cluster, self.output).map_err(|error| Failure::new(Exit::Error, error))?;
        let code = if self.command.is_empty() {
            // A reader that is gone, as in `lockkeeper dev | head -1`, ends no cluster: others may use it.
            print(&format!("{report}\n"))?;
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
            LocalError::Directory { source, .. } => Exit::for_path(source),
            LocalError::InUse(_)
            | LocalError::Foreign { .. }
            | LocalError::OtherSize { .. }
            | LocalError::Config(_) => Exit::Usage,
            LocalError::Certs(CertsError::File { source, .. }) => Exit::for_path(source),
            LocalError::NoPorts(_) | LocalError::Certs(_) | LocalError::Spawn { .. } => Exit::Error,
            LocalError::Died { .. } | LocalError::NotReady { .. } => Exit::NoCluster,
        };
        Self::new(exit, error)
    }
}

/// Writes to stderr. It may be closed: the nodes must be stopped all the same.
fn say(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

async fn until_signalled(cluster: &mut LocalCluster, mut signals: Signals) -> u8 {
    tokio::select! {
        ending = signals.next() => say(format_args!("{} received: stopping the cluster", ending.name())),
        never = report::deaths(cluster) => match never {},
    }
    0
}
