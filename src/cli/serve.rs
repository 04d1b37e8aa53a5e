//! `lockkeeper serve`: runs one node, until it is told to stop.
//!
//! Ends with 0 after it was told to; 2: the configuration cannot be used; 20 to 22 as in [`super::exit`]; 129, 130 and 143: it was told
//! to stop a second time (SIGHUP of its terminal, Ctrl-C, SIGTERM) and left off at once. A node with a mistake in its program aborts (134).

use std::{
    env,
    error::Error,
    io::{self, IsTerminal as _, Write as _},
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
    exit::Exit,
    logging,
    signals::{Ending, Signals},
};
use crate::{
    planted::{Planted, planted},
    server::{
        self, ServeError,
        config::{Config, Overrides},
        descriptors,
    },
};

/// A node that drains has a deadline for each step; this is for the case that one of them does not hold.
const DRAIN_MAX: Duration = Duration::from_secs(30);
const LEFTOVERS_MAX: Duration = Duration::from_secs(2);

/// Runs one node of a cluster.
///
/// It logs to stderr, and stops on SIGTERM or Ctrl-C: it takes no new calls, hands over what it leads, and answers what it has
/// begun. A second signal ends it at once. SIGHUP stops it too if stderr is a terminal, since that is gone then; otherwise it goes on:
/// the configuration is read at the start only.
#[derive(Args, Debug)]
pub(super) struct Serve {
    /// The configuration; cluster-configs/node1.toml explains it
    #[arg(long, env = "LOCKKEEPER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Instead of the configuration's `cluster_id`
    #[arg(long, env = "LOCKKEEPER_CLUSTER_ID", value_name = "NAME")]
    cluster_id: Option<String>,
    /// Instead of the configuration's `node_id`
    #[arg(long, env = "LOCKKEEPER_NODE_ID", value_name = "ID")]
    node_id: Option<u64>,
    /// Instead of the configuration's `data_dir`
    #[arg(long, env = "LOCKKEEPER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Instead of the configuration's `client_listen`
    #[arg(long, env = "LOCKKEEPER_CLIENT_LISTEN", value_name = "HOST:PORT")]
    client_listen: Option<String>,
    /// Instead of the configuration's `peer_listen`
    #[arg(long, env = "LOCKKEEPER_PEER_LISTEN", value_name = "HOST:PORT")]
    peer_listen: Option<String>,
    /// Instead of the configuration's `bootstrap`
    #[arg(long, env = "LOCKKEEPER_BOOTSTRAP", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    bootstrap: Option<bool>,
    /// Instead of the configuration's `log`: a filter, such as "info" or "info,lockkeeper::raft=debug"
    #[arg(long, env = "LOCKKEEPER_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Stop also when stdin closes: a node that another process runs does not outlive it, however that ends
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        let until_stdin_closes = self.until_stdin_closes;
        let (file, overrides) = self.into_parts();
        let config = match Config::load(&file, overrides) {
            Ok(config) => config,
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {error}");
                return Exit::Usage.into();
            }
        };

        logging::start(config.node_id, &config.log);
        logging::abort_on_panic();
        if cfg!(feature = "planted-bugs") {
            let planted = planted().map_or("none now", Planted::name);
            warn!("THIS BUILD CAN HAVE BUGS THAT WERE PLANTED ON PURPOSE, and is for tests only; planted: {planted}");
        }
        config.warnings().iter().for_each(|warning| warn!(file = %file.display(), "{warning}"));

        descriptors::raise();
        match run(config, until_stdin_closes) {
            Ok(()) => {
                info!("stopped");
                ExitCode::SUCCESS
            }
            Err(error) => {
                error!("{error}");
                exit_code(&*error).into()
            }
        }
    }

    fn into_parts(self) -> (PathBuf, Overrides) {
        let Self { config, cluster_id, node_id, data_dir, client_listen, peer_listen, bootstrap, log, .. } = self;
        (config, Overrides { cluster_id, node_id, data_dir, client_listen, peer_listen, bootstrap, log })
    }
}

/// Threads for Raft and the peers. One: its tasks hand over to each other all the time, and on two threads each hand-over wakes a thread (a
/// third more CPU time for a pair at one worker, a tenth less throughput at 64). Long work is elsewhere: clients' calls have a runtime of
/// their own, large groups of entries are applied by another thread, and files are written by others.
const RAFT_WORKERS: usize = 1;

fn run(config: Config, until_stdin_closes: bool) -> Result<(), Box<dyn Error>> {
    let (raft, clients) = (raft_runtime()?, clients_runtime()?);
    let served: Result<(), ServeError> = raft.block_on(async {
        let signals = Signals::listen()?;
        let told_to_stop = told_to_stop(signals, until_stdin_closes);
        Ok::<_, io::Error>(server::serve(config, clients.handle().clone(), told_to_stop).await)
    })?;
    // All that matters has been waited for; what is left hangs.
    clients.shutdown_timeout(LEFTOVERS_MAX);
    raft.shutdown_timeout(LEFTOVERS_MAX);
    Ok(served?)
}

/// For Raft, the peers and the proposer: nothing that a client asks for keeps its threads.
fn raft_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().thread_name("raft").worker_threads(RAFT_WORKERS).enable_all().build()
}

/// For the clients. Half of the processors work on it, at least one: Raft, the log's threads and the kernel's network need the rest, and more
/// threads mostly wake each other. `TOKIO_WORKER_THREADS` says otherwise.
fn clients_runtime() -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        builder.worker_threads((processors / 2).max(1));
    }
    builder.thread_name("clients").enable_all().build()
}

/// Ends when the node is to stop. From then on, impatience ends the process: a second signal, or the lapse of time.
async fn told_to_stop(mut signals: Signals, until_stdin_closes: bool) {
    let has_terminal = io::stderr().is_terminal();
    tokio::select! {
        ending = told_to_end(&mut signals, has_terminal) => info!("{} came: stopping", ending.name()),
        () = stdin_closed(), if until_stdin_closes => info!("stdin was closed: stopping"),
    }
    tokio::spawn(async move {
        let code = tokio::select! {
            ending = told_to_end(&mut signals, has_terminal) => {
                warn!("{} came while stopping: ends at once", ending.name());
                ending.exit_code()
            }
            () = time::sleep(DRAIN_MAX) => {
                error!("did not stop within {} s: ends at once", DRAIN_MAX.as_secs());
                Exit::NotDrained.code()
            }
        };
        process::exit(code.into());
    });
}

/// The next signal that is to end the node. SIGHUP is one if it ran in a terminal, which is then gone. To one that did not, it is sent by who
/// expects a daemon to reload something, or to open its log file anew.
async fn told_to_end(signals: &mut Signals, has_terminal: bool) -> Ending {
    loop {
        let ending = signals.next().await;
        if ending != Ending::Hangup || has_terminal {
            return ending;
        }
        info!("SIGHUP came: there is nothing to reload, the node goes on; SIGTERM stops it");
    }
}

async fn stdin_closed() {
    let (closed, wait) = oneshot::channel();
    // A thread of its own, not one of the runtime's: those are waited for when the runtime ends, and this one may sit in a read.
    std::thread::spawn(move || {
        // A failed read is as good as a closed one: nobody is there any more. Nor is it an error if nobody waits.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = closed.send(());
    });
    let _ = wait.await;
}

fn exit_code(error: &(dyn Error + 'static)) -> Exit {
    let in_use = |error: &&(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    match std::iter::successors(Some(error), |&error| error.source()).find(in_use) {
        Some(_) => Exit::AddressInUse,
        None => Exit::CannotServe,
    }
}
