//! Ends the process when the disk fails or hangs.
//!
//! A failed sync means that some data is lost, but not which, and a second attempt may report success for pages that the kernel
//! has already dropped. Therefore no sync is repeated, and nothing that depends on one is acknowledged. The process ends, its
//! supervisor restarts it, and opening the log shows what is on the disk. sled can also hang on an error instead of reporting
//! it; then a watchdog ends the process.

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

use super::panics::NoRoom;

/// Why the log cannot continue. Writes that were not acknowledged by then may or may not be on the disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskFailure {
    /// A write or a sync failed.
    #[error("the disk reports: {0}")]
    Disk(#[from] io::Error),
    /// A write or a sync did not return within this time.
    #[error("the disk did not answer for {0:?}")]
    Stalled(Duration),
    /// The store panicked.
    #[error("the store panicked")]
    Panicked,
}

impl DiskFailure {
    fn no_room(&self) -> Option<NoRoom> {
        match self {
            Self::Disk(error) => NoRoom::told_by(error),
            Self::Stalled(_) | Self::Panicked => None,
        }
    }
}

/// Called once when the log fails, with the directory and the cause. Usually it does not return.
pub type FailureHandler = Arc<dyn Fn(&std::path::Path, &DiskFailure) + Send + Sync>;

/// The exit code of a process whose log failed; the same as for a node that cannot start.
pub const EXIT_FAILED: u8 = 20;

/// Logs the cause and ends the process at once, because no destructor may touch the files again.
pub fn end_the_process() -> FailureHandler {
    Arc::new(|directory, failure| {
        let directory = directory.display();
        let what_to_do = failure.no_room().map_or_else(String::new, |no_room| format!(": {no_room}"));

        tracing::error!(%directory, %failure, "the log failed; this process ends so that nothing unsynced is acknowledged{what_to_do}");

        // Also write to stderr, because logging may be off or buffered. Its reader may be gone, too, so a failure does not matter.

        // Logging may be off or buffered, and the reader of stderr may be gone.
        let _ = writeln!(
            io::stderr(),
            "lockkeeper: the log in {directory} failed: {failure}; this process ends so that nothing unsynced is acknowledged{what_to_do}"
        );

        match failure {
            DiskFailure::Disk(_) | DiskFailure::Stalled(_) => process::exit(EXIT_FAILED.into()),
            DiskFailure::Panicked => process::abort(),
        }
    })
}

/// The state of the log. Its users, its writer and the watchdog share it.
pub struct Health {
    directory: PathBuf,
    on_failure: FailureHandler,
    is_reported: AtomicBool,
    failed: CancellationToken,
    /// Incremented when the writer begins and ends work on the disk. It is odd while the writer works.
    steps: AtomicU64,
}

/// The writer works on the disk as long as this lives.
pub struct AtDisk<'a>(&'a Health);

impl Health {
    /// The health of a log in this directory. The log is well at first.
    pub fn new(directory: PathBuf, on_failure: FailureHandler) -> Self {
        Self {
            directory,
            on_failure,
            is_reported: AtomicBool::new(false),
            failed: CancellationToken::new(),
            steps: AtomicU64::new(0),
        }
    }

    /// Marks that the writer works on the disk.
    pub fn at_disk(&self) -> AtDisk<'_> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        AtDisk(self)
    }

    /// Reports that the log cannot continue.
    pub fn fail(&self, failure: &DiskFailure) {
        if !self.is_reported.swap(true, Ordering::SeqCst) {
            (self.on_failure)(&self.directory, failure);
        }
        self.failed.cancel();
    }

    /// Waits for the writer's answer or for a failure, such as the watchdog's.
    pub async fn wait<T>(&self, answer: impl Future<Output = Option<T>>) -> io::Result<T> {
        tokio::select! {
            biased;
            () = self.failed.cancelled() => Err(self.error()),
            answer = answer => answer.ok_or_else(|| self.error()),
        }
    }

    /// The error that users get once the log failed or was closed.
    pub fn error(&self) -> io::Error {
        let state = if self.failed.is_cancelled() { "has failed" } else { "is closed" };
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

/// Reports a writer whose disk operation does not return.
pub struct Watchdog {
    // Dropped to end the thread.
    _alive: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

/// The number of checks before the watchdog reports. It counts its own checks instead of reading a clock, because a suspended
/// process must not count as stalled.
const CHECKS: u32 = 4;

impl Watchdog {
    /// Starts the watchdog. A call to the disk that takes longer than `stall_limit` is [`DiskFailure::Stalled`].
    pub fn start(health: Arc<Health>, stall_limit: Duration) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();

        let watch = move || {
            let mut seen = 0;
            let mut checks = 0;
            while ended.recv_timeout(stall_limit / CHECKS) == Err(mpsc::RecvTimeoutError::Timeout) {
                let step = health.steps.load(Ordering::SeqCst);
                // Odd, and as it was at the last check: the same work on the disk is still under way.
                let is_stuck = step % 2 == 1 && step == seen;
                checks = if is_stuck { checks + 1 } else { 0 };
                seen = step;

                if checks == CHECKS {
                    return health.fail(&DiskFailure::Stalled(stall_limit));
                }
            }
        };

        let thread = thread::Builder::new().name("log-watchdog".to_owned()).spawn(watch)?;
        Ok(Self { _alive: alive, thread })
    }

    /// Ends the watchdog, and waits until its thread has ended.
    pub fn stop(self) {
        let Self { _alive: alive, thread } = self;
        drop(alive);
        // The thread panics only if the failure handler does, which was reported already.
        let _ = thread.join();
    }
}
