//! What clients do while the faults come.
//!
//! Each client is a process of its own (`lockkeeper chaos-client`), so that it can be stopped and killed in the middle of what it does;
//! in a simulation, a simulated one ([`run`]). It runs several tasks at once, each with sessions of its own, and writes its part of the
//! history:
//!
//! * `holder`: uses the library, as an application would: acquires in all ways, writes to what the lock protects, releases, reads;
//! * `caller`: speaks to the nodes without the library: it sends the same request again, cancels by the request's id, renews by hand, and
//!   now and then falls silent with a lock in its hands.
//!
//! A holder writes *without* looking whether it still holds the lock. That is what a process does that was stopped between the look and
//! the write, and what fences are for.
//!
//! * `locks`: which locks, by turns; `resource`: what they protect; `writes`: writing to it; `words`: answers, in the words of a history.

mod caller;
pub(super) mod holder;
pub(super) mod locks;
pub mod resource;
pub(super) mod words;
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
use tonic::transport::{Channel, Endpoint};

pub use self::locks::Lock;
use self::resource::Place;
use super::record::{Recorder, Timeline};
use crate::client::Client;

/// How long sessions live. Short, so that they expire while somebody looks.
pub(super) const TTLS: [Duration; 3] =
    [Duration::from_millis(1_200), Duration::from_millis(1_600), Duration::from_millis(2_400)];
/// Tasks of each kind, in each process.
const HOLDERS: u64 = 3;
const CALLERS: u64 = 1;
/// How long a client's call may take: longer than an election, shorter than a fault.
pub const CALL_LIMIT: Duration = Duration::from_secs(3);
/// How long one node is given to answer.
pub const ATTEMPT_LIMIT: Duration = Duration::from_millis(700);
/// Between two lines that say how far it is.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// What one client process is told.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its name in the history.
    pub name: String,
    /// Where it finds the nodes.
    pub endpoints: String,
    /// The socket of what the locks protect.
    pub resource: PathBuf,
    /// Where its part of the history goes. A new file.
    pub out: PathBuf,
    /// Zero of the history, on the clock of this machine, nanoseconds.
    pub base_ns: u64,
    /// So that it does the same again, if the cluster does.
    pub seed: u64,
    /// Client processes of the run.
    pub processes: u32,
}

/// What a client is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Its name in the history.
    pub name: String,
    /// So that it does the same again, if the cluster does.
    pub seed: u64,
    /// Clients of the run.
    pub clients: u32,
    /// Its way to the cluster, by the library.
    pub client: Client,
    /// Its way to each node, without.
    pub nodes: Vec<Channel>,
    /// What the locks protect.
    pub place: Place,
    /// Its part of the history.
    pub recorder: Recorder,
    /// False: its tasks stop where they are next, as those of a stopped process do, until it is true.
    pub going: watch::Receiver<bool>,
}

/// What the tasks of a client share.
#[derive(Debug)]
struct Shared {
    parts: Parts,
    budget: locks::Budget,
    /// It is time to end.
    finish: CancellationToken,
}

/// Runs a client process until its stdin closes; then ends what it has begun. Fails if its history is not whole.
pub async fn run_client(options: ClientOptions) -> io::Result<()> {
    let recorder = Recorder::create(&options.out, &options.name, Timeline::of_base(options.base_ns))?;
    let client = Client::builder(&options.endpoints).call_limit(CALL_LIMIT).attempt_limit(ATTEMPT_LIMIT).build();
    let parts = Parts {
        name: options.name,
        seed: options.seed,
        clients: options.processes,
        client: client.map_err(io::Error::other)?,
        nodes: options.endpoints.split(',').filter_map(channel).collect(),
        place: Place::Socket(options.resource),
        recorder: recorder.clone(),
        // A process is stopped by others.
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

/// A way to one node, without the library.
pub(super) fn channel(address: &str) -> Option<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    Some(endpoint.connect_timeout(ATTEMPT_LIMIT).tcp_nodelay(true).connect_lazy())
}

/// Uses locks until `finish`, then ends what it has begun.
pub async fn run(parts: Parts, finish: CancellationToken) {
    let shared = Arc::new(Shared { budget: locks::Budget::new(parts.clients), parts, finish });
    let mut tasks = JoinSet::new();
    for number in 0..HOLDERS + CALLERS {
        let random = StdRng::seed_from_u64(shared.parts.seed.wrapping_add(number));
        match number < HOLDERS {
            true => tasks.spawn(holder::run(Arc::clone(&shared), random)),
            false => tasks.spawn(caller::run(Arc::clone(&shared), random)),
        };
    }
    while tasks.join_next().await.is_some() {}
}

async fn until_stdin_closes() {
    let (closed, wait) = oneshot::channel();
    // A thread of its own, not one of the runtime's: those are waited for when the runtime ends, and this one may sit in a read.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = closed.send(());
    });
    let _ = wait.await;
}

/// Says on stdout how many operations were begun and how many grants there were, until nobody listens or it cannot write.
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

impl Shared {
    fn is_over(&self) -> bool {
        self.finish.is_cancelled() || self.parts.recorder.failure().is_some()
    }

    /// Waits so long, or until it is time to end.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            () = self.finish.cancelled() => {}
            () = sleep(time) => {}
        }
        // An error says that nobody is there any more who could stop it.
        let _ = self.parts.going.clone().wait_for(|going| *going).await;
    }
}

/// Milliseconds, by chance.
fn some_ms(random: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.random_range(range))
}

/// It happens in so many of a hundred cases.
fn percent(random: &mut StdRng, of_hundred: u32) -> bool {
    random.random_range(0..100) < of_hundred
}
