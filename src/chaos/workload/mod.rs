//! The operations of clients during a run.
//!
//! Each client is a separate process (`lockkeeper chaos client`), so that it can be stopped and killed at any moment. In a simulation, it
//! is a simulated process ([`run`]). It runs several concurrent tasks, each with its own sessions, and writes its part of the history:
//!
//! * `holder` uses the client library as an application does: it acquires in all modes, writes to the protected resource, releases, and
//!   reads.
//! * `caller` sends requests to the nodes without the library: it retries requests, cancels by request id, renews by single calls, and
//!   sometimes stops renewing while it holds a lock.
//!
//! A holder writes *without* checking that it still holds the lock. So does a process that is paused between the check and the write, which
//! is the case that fencing is for.
//!
//! `locks` has the locks in use, `resource` the protected registers, `writes` the writes to them, and `outcomes` converts answers into
//! history events.

mod caller;
pub(super) mod holder;
pub(super) mod locks;
pub(super) mod outcomes;
pub mod resource;
pub(super) mod writes;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::{interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use lockkeeper_client::Client;

pub use self::locks::Lock;
use self::resource::RegisterPlace;
use super::{
    dial::Dial,
    record::{HistoryClock, Recorder},
};

/// TTLs of sessions. They are short, so that sessions expire during a run.
pub(super) const TTLS: [Duration; 3] =
    [Duration::from_millis(1_200), Duration::from_millis(1_600), Duration::from_millis(2_400)];
/// Number of tasks of each kind in each process.
const HOLDERS: u64 = 3;
const CALLERS: u64 = 1;
/// Time limit of a client's call. It is longer than an election, and shorter than a fault.
pub const CALL_LIMIT: Duration = Duration::from_secs(3);
/// Limit of one attempt at a node.
pub const ATTEMPT_LIMIT: Duration = Duration::from_millis(700);
/// Interval of the progress lines.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// The options of one client process.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its name in the history.
    pub name: String,
    /// The addresses of the nodes.
    pub endpoints: String,
    /// How it reaches them.
    pub dial: Dial,
    /// The socket of the protected registers.
    pub resource: PathBuf,
    /// The file for its part of the history. It must not exist yet.
    pub out: PathBuf,
    /// The start of the history on the clock of this machine, in nanoseconds.
    pub base_ns: u64,
    /// Seed of its operations.
    pub seed: u64,
    /// Number of client processes of the run.
    pub processes: u32,
}

/// The parts that a client is built from.
#[derive(Clone, Debug)]
pub struct ClientParts {
    /// Its name in the history.
    pub name: String,
    /// Seed of its operations.
    pub seed: u64,
    /// Number of clients of the run.
    pub clients: u32,
    /// The client library.
    pub client: Client,
    /// A channel to each node, for calls without the library.
    pub nodes: Vec<Channel>,
    /// The protected registers.
    pub place: RegisterPlace,
    /// The recorder of its part of the history.
    pub recorder: Recorder,
    /// While `false`, its tasks pause at their next step, as those of a stopped process do.
    pub going: watch::Receiver<bool>,
}

/// The state that the tasks of a client share.
#[derive(Debug)]
struct TasksState {
    parts: ClientParts,
    budget: locks::Budget,
    /// A token that is cancelled when the tasks should finish.
    finish: CancellationToken,
}

/// Runs a client process until its stdin closes, then completes its pending operations. Fails if its part of the
/// history is incomplete.
pub async fn run_client(options: ClientOptions) -> io::Result<()> {
    let recorder = Recorder::create(&options.out, &options.name, HistoryClock::with_base(options.base_ns))?;
    let client = options.dial.client(&options.endpoints).call_limit(CALL_LIMIT).attempt_limit(ATTEMPT_LIMIT).build();
    let parts = ClientParts {
        name: options.name,
        seed: options.seed,
        clients: options.processes,
        client: client.map_err(io::Error::other)?,
        nodes: channels(&options.dial, &options.endpoints),
        place: RegisterPlace::Socket(options.resource),
        recorder: recorder.clone(),
        // Other processes stop this one by a signal.
        going: watch::channel(true).1,
    };

    let finish = CancellationToken::new();
    let until_over = async {
        tokio::select! {
            () = until_stdin_closes() => {}
            () = tell(&recorder) => {}
        }
        finish.cancel();
    };
    tokio::join!(run(parts, finish.clone()), until_over);

    match recorder.failure() {
        None => Ok(()),
        Some(error) => Err(io::Error::other(format!("{}: {error}", options.out.display()))),
    }
}

/// A channel to each node, without the library.
pub(super) fn channels(dial: &Dial, endpoints: &str) -> Vec<Channel> {
    endpoints.split(',').map(|address| dial.channel(address, ATTEMPT_LIMIT)).collect()
}

/// Uses locks until `finish` is cancelled, then completes the pending operations.
pub async fn run(parts: ClientParts, finish: CancellationToken) {
    let shared = Arc::new(TasksState { budget: locks::Budget::new(parts.clients), parts, finish });
    let mut tasks = JoinSet::new();
    for number in 0..HOLDERS + CALLERS {
        let random = StdRng::seed_from_u64(shared.parts.seed.wrapping_add(number));
        if number < HOLDERS {
            tasks.spawn(holder::run(Arc::clone(&shared), random));
        } else {
            tasks.spawn(caller::run(Arc::clone(&shared), random));
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn until_stdin_closes() {
    let (closed, wait) = oneshot::channel();
    // Use a separate thread: the runtime waits for its own threads at its end, and this one may block in a read.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = closed.send(());
    });
    let _ = wait.await;
}

/// Prints the numbers of begun operations and of grants on stdout, until stdout is closed or the recorder fails.
async fn tell(recorder: &Recorder) {
    let mut ticks = interval(TELL_EVERY);
    while recorder.failure().is_none() {
        ticks.tick().await;
        let (operations, grants) = recorder.counts();
        if writeln!(io::stdout(), "{operations} {grants}").is_err() {
            return;
        }
    }
}

impl TasksState {
    fn is_over(&self) -> bool {
        self.finish.is_cancelled() || self.parts.recorder.failure().is_some()
    }

    /// Waits for this time, or until the tasks should finish.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            () = self.finish.cancelled() => {}
            () = sleep(time) => {}
        }
        // An error means that the sender is gone. Then nobody can pause the tasks.
        let _ = self.parts.going.clone().wait_for(|going| *going).await;
    }
}

/// A random number of milliseconds.
fn some_ms(random: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.random_range(range))
}

/// True with this probability in percent.
fn percent(random: &mut StdRng, of_hundred: u32) -> bool {
    random.random_range(0..100) < of_hundred
}
