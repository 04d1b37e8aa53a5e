//! Where time and chance come from, and where work is done that others must not wait behind.
//!
//! No other place reads a clock, draws a random number or moves work to another thread, so that a simulation can put its own in
//! their place (together with paused tokio time, which the timers of the whole program follow).

use std::{
    fmt::Debug,
    future::Future,
    io,
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, sync::oneshot, task::JoinSet, time::Instant};

/// Clocks.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Monotonic time of this process. Decides; never compared between machines.
    fn now(&self) -> Instant;

    /// Milliseconds since 1970-01-01 UTC. For people to read; nothing is decided by it.
    fn wall_ms(&self) -> u64;
}

/// Chance.
pub trait Random: Debug + Send + Sync + 'static {
    /// 128 random bits.
    fn bits(&self) -> u128;
}

/// Where work is done that blocks: reading and writing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Blocking {
    /// On threads of its own, so that other tasks go on.
    #[default]
    OnThreads,
    /// Here and at once: a simulation has one thread, and its time stands still meanwhile.
    Here,
}

impl Blocking {
    /// Does it. Fails as the work does; also if the runtime ends, and then it may still be done. Dropping the future does not stop it.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        match self {
            Self::OnThreads => tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?,
            Self::Here => work(),
        }
    }

    /// As [`run`](Self::run), for long work that nobody waits for: it gives way to all else that wants a processor.
    pub async fn run_aside<T: Send + 'static>(
        self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::OnThreads => {
                let (done, answer) = oneshot::channel();
                let work = move || {
                    give_way();
                    // Who waited may be gone.
                    let _ = done.send(work());
                };
                // Of its own, since it never gets back what it gives up.
                thread::Builder::new().name(name.to_owned()).spawn(work)?;
                answer.await.map_err(|_| io::Error::other(format!("the thread `{name}` panicked")))?
            }
            Self::Here => work(),
        }
    }

    /// Drops what takes long to take apart, where nobody waits for it.
    pub fn discard<T: Send + 'static>(self, name: &str, what: T) {
        match self {
            Self::OnThreads => {
                let work = move || {
                    give_way();
                    drop(what);
                };
                // If the thread cannot be started, its work was dropped here.
                let _ = thread::Builder::new().name(name.to_owned()).spawn(work);
            }
            Self::Here => drop(what),
        }
    }
}

/// Where tasks run that clients cause. What a node owes its peers, heartbeats and votes, does not wait behind them on another runtime.
#[derive(Clone, Debug, Default)]
pub enum Tasks {
    /// On the runtime of who starts them: a simulation has only that.
    #[default]
    Here,
    /// On this one. It must outlive the node.
    On(Handle),
}

impl Tasks {
    /// Starts a task there, as one of this set.
    pub fn spawn<T: Send + 'static>(&self, set: &mut JoinSet<T>, task: impl Future<Output = T> + Send + 'static) {
        match self {
            Self::Here => set.spawn(task),
            Self::On(runtime) => set.spawn_on(task, runtime),
        };
    }
}

/// From now on this thread has about a tenth of what one has that does not give way, where there is not enough for both.
fn give_way() {
    // Elsewhere that would be the whole process. If it is refused, the work is as urgent as the rest.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}

/// What one node has of its machine, beside the network and the disk.
#[derive(Clone, Debug)]
pub struct Environment {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What comes by chance.
    pub random: Arc<dyn Random>,
    /// Where it waits for files, and applies what is committed.
    pub blocking: Blocking,
    /// Where it serves its clients.
    pub clients: Tasks,
}

impl Environment {
    /// That of a real machine, with one runtime for all.
    pub fn system() -> Self {
        let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom));
        Self { clock, random, blocking: Blocking::OnThreads, clients: Tasks::Here }
    }

    /// A generator of random numbers for those who want one, seeded from this chance.
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

    fn wall_ms(&self) -> u64 {
        // A clock before 1970 is wrong, and shown as 1970: only people read it.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

#[derive(Debug)]
struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&self) -> u128 {
        rand::random()
    }
}
