//! Clocks, random numbers, and the threads for work that must not delay other tasks.
//!
//! No other module reads a clock, draws a random number or moves work to another thread, so that a simulation can replace all three
//! (together with paused tokio time, which all timers of the program follow).

use std::{
    fmt::Debug,
    future::Future,
    io,
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use lockkeeper_metrics::Metrics;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, sync::oneshot, task::JoinSet, time::Instant};

/// The clocks of a node.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Monotonic time of this process. Decisions depend on it; never compared between machines.
    fn now(&self) -> Instant;

    /// Milliseconds since 1970-01-01 UTC. For people to read; nothing is decided by it.
    fn wall_ms(&self) -> u64;
}

/// The random source of a node.
pub trait Random: Debug + Send + Sync + 'static {
    /// 128 random bits.
    fn bits(&self) -> u128;
}

/// Where blocking work runs: reading and writing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Blocking {
    /// Runs the work on other threads, so that tasks continue.
    #[default]
    OnThreads,
    /// Runs the work on the caller's thread. A simulation has one thread, and its clock does not advance during the work.
    Here,
}

impl Blocking {
    /// Runs blocking work. Fails as the work does, or if the runtime ends; the work may still be done then. Dropping the future does not
    /// stop it.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        match self {
            Self::OnThreads => tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?,
            Self::Here => work(),
        }
    }

    /// As [`run`](Self::run), for long background work: it runs at low priority (nice 10).
    pub async fn run_in_background<T: Send + 'static>(
        self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::OnThreads => {
                let (done, answer) = oneshot::channel();
                let work = move || {
                    lower_priority();
                    // The caller may have stopped waiting.
                    let _ = done.send(work());
                };

                // A thread of its own, since a thread cannot raise its priority again.
                thread::Builder::new().name(name.to_owned()).spawn(work)?;
                answer.await.map_err(|_| io::Error::other(format!("the thread `{name}` panicked")))?
            }
            Self::Here => work(),
        }
    }

    /// Drops a value that takes long to drop, in the background at low priority.
    pub fn discard<T: Send + 'static>(self, name: &str, what: T) {
        match self {
            Self::OnThreads => {
                let work = move || {
                    lower_priority();
                    drop(what);
                };
                // If the thread cannot be started, the value was dropped with its closure.
                let _ = thread::Builder::new().name(name.to_owned()).spawn(work);
            }
            Self::Here => drop(what),
        }
    }
}

/// The runtime of tasks that clients cause. On a separate runtime, they do not delay heartbeats and votes.
#[derive(Clone, Debug, Default)]
pub enum Tasks {
    /// The caller's runtime: a simulation has no other.
    #[default]
    Here,
    /// This runtime, which must outlive the node.
    On(Handle),
}

impl Tasks {
    /// Starts a task on that runtime, as a member of this set.
    pub fn spawn<T: Send + 'static>(&self, set: &mut JoinSet<T>, task: impl Future<Output = T> + Send + 'static) {
        match self {
            Self::Here => set.spawn(task),
            Self::On(runtime) => set.spawn_on(task, runtime),
        };
    }
}

/// Lowers the priority of this thread: under load it gets about a tenth of the processor time of a normal one.
fn lower_priority() {
    // Only on Linux: elsewhere `nice` would affect the whole process. If it fails, the thread keeps its priority.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}

/// A node's access to its machine, apart from the network and the disk.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Its clocks.
    pub clock: Arc<dyn Clock>,
    /// Its random source.
    pub random: Arc<dyn Random>,
    /// The place where it waits for files, and applies committed entries.
    pub blocking: Blocking,
    /// The tasks that serve its clients.
    pub clients: Tasks,
    /// The tasks that serve the clients of other protocols, and the programs that monitor it. A problem there delays no peer, no client and
    /// no renewal.
    pub adapters: Tasks,
    /// The metrics that it writes.
    pub metrics: Metrics,
}

impl Environment {
    /// A real machine's, with one runtime for all tasks.
    pub fn system() -> Self {
        let clock = Arc::new(SystemClock);
        let random = Arc::new(SystemRandom);
        let clients = Tasks::default();
        let adapters = Tasks::default();
        Self { clock, random, blocking: Blocking::OnThreads, clients, adapters, metrics: Metrics::default() }
    }

    /// A random number generator, seeded from this environment's source.
    pub fn generator(&self) -> impl RngCore + use<> {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.random.bits().to_be_bytes());
        seed[16..].copy_from_slice(&self.random.bits().to_be_bytes());
        StdRng::from_seed(seed)
    }
}

#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where a node reads its wall clock")]
    fn wall_ms(&self) -> u64 {
        // A clock before 1970 is wrong, and shown as 1970: only people read it.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

#[derive(Debug)]
struct SystemRandom;

impl Random for SystemRandom {
    #[expect(clippy::disallowed_methods, reason = "the one place where a node gets its random numbers")]
    fn bits(&self) -> u128 {
        rand::random()
    }
}
