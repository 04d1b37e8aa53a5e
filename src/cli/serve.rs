//! `lockkeeper serve` runs one node until it is stopped.
//!
//! Exit codes: 0 after a requested shutdown; 2: the configuration is invalid; 20 to 25 as in [`super::exit`]; 129, 130
//! and 143: a second signal (SIGHUP of its terminal, Ctrl-C, SIGTERM) ended it at once. A bug in the program aborts it
//! (134).

use std::{
    env,
    error::Error,
    io::{self, IsTerminal as _},
    num::NonZeroUsize,
    path::PathBuf,
    process::{self, ExitCode},
    thread,
    time::Duration,
};

use clap::Args;
use tokio::{runtime::Runtime, sync::oneshot, time};
use tracing::{error, info, warn};

use super::{
    complain,
    exit::Exit,
    logging::{self, LogFormat},
    signals::{self, ReceivedSignal, Signals},
    traces,
};
use crate::{
    config::{Config, Overrides},
    planted::{CAN_HAVE_BUGS, planted},
    server::{self, Remedy, Runtimes, ServeError, descriptors},
};
use lockkeeper_storage::panics::{FREE_SPACE, tells_of_full_disk};

/// Each step of the drain has its own deadline; this limit covers a step that misses its deadline.
const DRAIN_MAX: Duration = Duration::from_secs(30);
const LEFTOVERS_MAX: Duration = Duration::from_secs(2);

/// Runs one node of a cluster.
///
/// It logs to stderr. SIGTERM or Ctrl-C stops it: it accepts no new calls, transfers its leadership, and answers
/// pending requests. A second signal ends it at once. SIGHUP stops it too if stderr is a terminal, which is closed
/// then; otherwise SIGHUP is ignored, since the configuration is read only at start.
#[derive(Args, Debug)]
pub(super) struct ServeNode {
    /// The configuration file; cluster-configs/node1.toml explains it
    #[arg(long, env = "LOCKKEEPER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Overrides `cluster_id` of the configuration
    #[arg(long, env = "LOCKKEEPER_CLUSTER_ID", value_name = "NAME")]
    cluster_id: Option<String>,
    /// Overrides `node_id` of the configuration
    #[arg(long, env = "LOCKKEEPER_NODE_ID", value_name = "ID")]
    node_id: Option<u64>,
    /// Overrides `data_dir` of the configuration
    #[arg(long, env = "LOCKKEEPER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Overrides `client_listen` of the configuration
    #[arg(long, env = "LOCKKEEPER_CLIENT_LISTEN", value_name = "HOST:PORT")]
    client_listen: Option<String>,
    /// Overrides `peer_listen` of the configuration
    #[arg(long, env = "LOCKKEEPER_PEER_LISTEN", value_name = "HOST:PORT")]
    peer_listen: Option<String>,
    /// Overrides `bootstrap` of the configuration
    #[arg(long, env = "LOCKKEEPER_BOOTSTRAP", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    bootstrap: Option<bool>,
    /// TLS with the files of this directory, as `lockkeeper certs` makes them: ca.pem, node-ID.pem, node-ID-key.pem. Overrides
    /// `tls` of the configuration
    #[arg(long, env = "LOCKKEEPER_CERTS", value_name = "DIR")]
    certs: Option<PathBuf>,
    /// Allow addresses beyond this machine without TLS: whoever reaches them may do anything. Overrides `insecure` of the
    /// configuration
    #[arg(long, env = "LOCKKEEPER_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    insecure: Option<bool>,
    /// Joins the cluster of these nodes: their addresses for clients. Overrides `join` of the configuration, which then
    /// needs no members
    #[arg(long, env = "LOCKKEEPER_JOIN", value_name = "HOST:PORT,…", value_delimiter = ',')]
    join: Option<Vec<String>>,
    /// Where clients reach a node that joins, if not at `client_listen`. Overrides `client_address` of the configuration
    #[arg(long, env = "LOCKKEEPER_CLIENT_ADDRESS", value_name = "HOST:PORT")]
    client_address: Option<String>,
    /// Where peers reach a node that joins, if not at `peer_listen`. Overrides `peer_address` of the configuration
    #[arg(long, env = "LOCKKEEPER_PEER_ADDRESS", value_name = "HOST:PORT")]
    peer_address: Option<String>,
    /// Overrides `log` of the configuration: a filter such as "info" or "info,lockkeeper_raft=debug"
    #[arg(long, env = "LOCKKEEPER_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How the lines of the log are written
    #[arg(long, env = "LOCKKEEPER_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    /// Stop also when stdin closes, so that the node does not outlive its parent process
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

impl ServeNode {
    pub(super) fn run(self) -> ExitCode {
        let until_stdin_closes = self.until_stdin_closes;
        let log_format = self.log_format;
        let (file, overrides) = self.into_parts();
        let config = match Config::load(&file, overrides) {
            Ok(config) => config,
            Err(error) => {
                complain(&error.to_string());
                return Exit::Usage.into();
            }
        };

        logging::start(config.node_id, &config.log, log_format);
        logging::abort_on_panic();
        if let Some(planted) = planted() {
            warn!("THIS NODE RUNS WITH A PLANTED BUG: {}", planted.name());
        } else if CAN_HAVE_BUGS {
            info!("this is a development build: it can run with planted bugs, and none is on");
        }
        config.warnings().iter().for_each(|warning| warn!(file = %file.display(), "{warning}"));

        descriptors::raise();
        match run(config, until_stdin_closes) {
            Ok(()) => {
                info!("stopped");
                ExitCode::SUCCESS
            }
            Err(error) => {
                error!("{}", with_remedy(&error.to_string()));
                exit_code(&*error).into()
            }
        }
    }

    fn into_parts(self) -> (PathBuf, Overrides) {
        let Self { config, cluster_id, node_id, data_dir, client_listen, peer_listen, bootstrap, .. } = self;
        let Self { insecure, certs, join, client_address, peer_address, log, .. } = self;

        let overrides = Overrides {
            cluster_id,
            node_id,
            data_dir,
            client_listen,
            peer_listen,
            bootstrap,
            insecure,
            certs,
            join,
            client_address,
            peer_address,
            log,
            traces_endpoint: traces::endpoint(),
        };

        (config, overrides)
    }
}

/// Threads of the Raft runtime. Its tasks wake each other for every entry; a second thread would be woken each time, which costs a third
/// more CPU time for a pair at one worker, and a tenth of the throughput at 64. Long work runs elsewhere: clients' calls on their own
/// runtime, those of other protocols on another, large groups of entries on the apply thread, file writes on threads of their own.
const RAFT_WORKERS: usize = 1;

fn run(config: Config, until_stdin_closes: bool) -> Result<(), Box<dyn Error>> {
    let raft = raft_runtime()?;
    let clients = runtime("clients")?;
    let adapters = runtime("adapters")?;

    let served: Result<(), ServeError> = raft.block_on(async {
        signals::fail_beyond_file_limit()?;
        let signals = Signals::listen()?;
        let told_to_stop = told_to_stop(signals, until_stdin_closes);
        let runtimes = Runtimes { clients: clients.handle().clone(), adapters: adapters.handle().clone() };
        Ok::<_, io::Error>(server::serve(config, runtimes, told_to_stop).await)
    })?;

    // All work that matters has finished; the rest hangs.
    adapters.shutdown_timeout(LEFTOVERS_MAX);
    clients.shutdown_timeout(LEFTOVERS_MAX);
    raft.shutdown_timeout(LEFTOVERS_MAX);
    Ok(served?)
}

/// The runtime of Raft, the peers and the proposer. No client's work runs on its threads.
fn raft_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().thread_name("raft").worker_threads(RAFT_WORKERS).enable_all().build()
}

/// For the clients, or for the adapters: etcd's and DynamoDB's API, the console, probes and metrics. Each uses half of the processors, at
/// least one: Raft, the log's threads and the kernel's network stack need the rest, and more threads mostly wake each other.
/// `TOKIO_WORKER_THREADS` overrides the number.
fn runtime(name: &'static str) -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        builder.worker_threads((processors / 2).max(1));
    }
    builder.thread_name(name).enable_all().build()
}

/// Returns when the node is to stop. From then on a second signal, or [`DRAIN_MAX`], ends the process.
async fn told_to_stop(mut signals: Signals, until_stdin_closes: bool) {
    let has_terminal = io::stderr().is_terminal();
    tokio::select! {
        ending = told_to_end(&mut signals, has_terminal) => info!("{} received: stopping", ending.name()),
        () = stdin_closed(), if until_stdin_closes => info!("stdin was closed: stopping"),
    }

    tokio::spawn(async move {
        let code = tokio::select! {
            ending = told_to_end(&mut signals, has_terminal) => {
                warn!("{} received while stopping: exiting at once", ending.name());
                ending.exit_code()
            }
            () = time::sleep(DRAIN_MAX) => {
                error!("the shutdown did not complete within {} s: exiting at once", DRAIN_MAX.as_secs());
                Exit::NotDrained.code()
            }
        };
        process::exit(code.into());
    });
}

/// The next signal that stops the node. SIGHUP does if stderr is a terminal, which is then gone. Without a terminal,
/// SIGHUP is usually sent to make a daemon reload its configuration or reopen its log file.
async fn told_to_end(signals: &mut Signals, has_terminal: bool) -> ReceivedSignal {
    loop {
        let ending = signals.next().await;
        if ending != ReceivedSignal::Hangup || has_terminal {
            return ending;
        }
        info!("SIGHUP received: nothing to reload, the node goes on; SIGTERM stops it");
    }
}

async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    // A separate thread: the runtime waits for its own threads at its end, and this one may block in a read.
    std::thread::spawn(move || {
        // A failed read counts as closed: the parent is gone. If the receiver is gone too, nothing is lost.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = closed.send(());
    });
    let _ = wait.await;
}

/// What the node ends with. Any file that it writes, at its start or later, can meet a full disk, and few errors know what to do about it.
fn with_remedy(error: &str) -> String {
    if !tells_of_full_disk(&error) || error.contains(FREE_SPACE) {
        return error.to_owned();
    }
    format!("{error}: the disk is full: {FREE_SPACE}")
}

/// Supervisors tell by the code whether another start can succeed: see [`super::exit`].
fn exit_code(error: &(dyn Error + 'static)) -> Exit {
    let in_use = |error: &&(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    if std::iter::successors(Some(error), |&error| error.source()).any(|error| in_use(&error)) {
        return Exit::AddressInUse;
    }

    match error.downcast_ref::<ServeError>().map_or(Remedy::StartAgain, ServeError::remedy) {
        Remedy::StartAgain => Exit::CannotServe,
        Remedy::Configuration => Exit::Usage,
        Remedy::Data => Exit::DataUnusable,
        Remedy::NewNode => Exit::Removed,
        Remedy::Unapplied => Exit::Unapplied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_met_a_full_disk_says_what_to_do_once() {
        let full = io::Error::from_raw_os_error(28);
        let said = with_remedy(&format!("cannot write identity.toml.new: {full}"));
        assert!(said.ends_with(&format!(": the disk is full: {FREE_SPACE}")), "{said}");
        assert_eq!(with_remedy(&said), said);
        let other = "the peer address is in use";
        assert_eq!(with_remedy(other), other);
    }
}
