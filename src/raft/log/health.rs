//! What happens when the disk fails: the process ends.
//!
//! A failed sync says that something is lost, not what, and a second attempt may report success for pages that the kernel has
//! already thrown away. So no sync is repeated, nothing that depends on one is answered, and the node is restarted by whoever runs
//! it: on opening it sees what is really there. sled can also hang on an error, rather than report it; a watchdog then ends the
//! process just as well.

use std::{
    fmt,
    io::{self, Write as _},
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::panics::{FREE_SPACE, tells_of_full_disk};

/// Why the log cannot go on. What was not acknowledged by then may or may not be on the disk.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A write or a sync failed.
    #[error("the disk reports: {0}")]
    Disk(#[from] io::Error),
    /// A write or a sync did not return for this long.
    #[error("the disk did not answer for {0:?}")]
    Stalled(Duration),
    /// The store broke down.
    #[error("the store panicked")]
    Panicked,
}

impl Failure {
    fn is_full_disk(&self) -> bool {
        match self {
            Self::Disk(error) => tells_of_full_disk(error),
            Self::Stalled(_) | Self::Panicked => false,
        }
    }
}

/// What to do when the log fails: called once, with the directory's name and the cause. Usually it does not return.
pub type FailureHandler = Arc<dyn Fn(&std::path::Path, &Failure) + Send + Sync>;

/// How the process ends when its log cannot go on: the code of a node that cannot start either.
pub const EXIT_FAILED: u8 = 20;

/// Says why, and ends the process at once: no destructor may touch the files again.
pub fn end_the_process() -> FailureHandler {
    Arc::new(|directory, failure| {
        let directory = directory.display();
        let what_to_do = match failure.is_full_disk() {
            true => format!(": the disk is full: {FREE_SPACE}"),
            false => String::new(),
        };
        tracing::error!(%directory, %failure, "the log failed; this process ends so that nothing unsynced is acknowledged{what_to_do}");
        // Logging may be off, or buffered. And whoever read it may be gone.
        let _ = writeln!(
            io::stderr(),
            "lockkeeper: the log in {directory} failed: {failure}; this process ends so that nothing unsynced is acknowledged{what_to_do}"
        );
        match failure {
            Failure::Disk(_) | Failure::Stalled(_) => process::exit(EXIT_FAILED.into()),
            Failure::Panicked => process::abort(),
        }
    })
}

/// Whether the log is well; shared by its users, its writer and the watchdog.
pub(super) struct Health {
    directory: PathBuf,
    on_failure: FailureHandler,
    is_reported: AtomicBool,
    failed: CancellationToken,
    /// Rises whenever the writer turns to the disk and whenever it is back: odd while it is there.
    steps: AtomicU64,
}

/// The writer is at the disk for as long as this lives.
pub(super) struct AtDisk<'a>(&'a Health);

impl Health {
    pub(super) fn new(directory: PathBuf, on_failure: FailureHandler) -> Self {
        Self {
            directory,
            on_failure,
            is_reported: AtomicBool::new(false),
            failed: CancellationToken::new(),
            steps: AtomicU64::new(0),
        }
    }

    /// The writer turns to the disk.
    pub(super) fn at_disk(&self) -> AtDisk<'_> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        AtDisk(self)
    }

    /// The log cannot go on.
    pub(super) fn fail(&self, failure: &Failure) {
        if !self.is_reported.swap(true, Ordering::SeqCst) {
            (self.on_failure)(&self.directory, failure);
        }
        self.failed.cancel();
    }

    /// Waits for the writer's answer, or for its failure: a wait ends when the watchdog loses patience.
    pub(super) async fn wait<T>(&self, answer: impl Future<Output = Option<T>>) -> io::Result<T> {
        tokio::select! {
            biased;
            () = self.failed.cancelled() => Err(self.error()),
            answer = answer => answer.ok_or_else(|| self.error()),
        }
    }

    /// What users are told from then on.
    pub(super) fn error(&self) -> io::Error {
        let state = match self.failed.is_cancelled() {
            true => "has failed",
            false => "is closed",
        };
        io::Error::other(format!("the log in {} {state}", self.directory.display()))
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, on_failure: _, is_reported: _, failed, steps: _ } = self;
        f.debug_struct("Health").field("directory", directory).field("failed", &failed.is_cancelled()).finish()
    }
}

impl Drop for AtDisk<'_> {
    fn drop(&mut self) {
        self.0.steps.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reports a writer that does not come back from the disk.
pub(super) struct Watchdog {
    // Dropped to end the thread.
    _alive: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

/// The watchdog looks so many times before it reports. It counts its own looks rather than read a clock: a process that was
/// suspended has then not stalled.
const LOOKS: u32 = 4;

impl Watchdog {
    pub(super) fn start(health: Arc<Health>, stall_limit: Duration) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let watch = move || {
            let (mut seen, mut looks) = (0, 0);
            while ended.recv_timeout(stall_limit / LOOKS) == Err(mpsc::RecvTimeoutError::Timeout) {
                let step = health.steps.load(Ordering::SeqCst);
                let is_stuck = step % 2 == 1 && step == seen;
                looks = if is_stuck { looks + 1 } else { 0 };
                seen = step;
                if looks == LOOKS {
                    return health.fail(&Failure::Stalled(stall_limit));
                }
            }
        };
        let thread = thread::Builder::new().name("log-watchdog".to_owned()).spawn(watch)?;
        Ok(Self { _alive: alive, thread })
    }

    pub(super) fn stop(self) {
        let Self { _alive: alive, thread } = self;
        drop(alive);
        // It panics only where the failure handler does, and then that was reported.
        let _ = thread.join();
    }
}
