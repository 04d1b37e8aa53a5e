//! The log's implementation of openraft's storage traits.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures::{Stream, TryStreamExt, stream};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    memory::{self, LogMemory, ReadStep},
    opening::{self, LogOpenError, OpenRequest, OpenedLog},
    verify::Installation,
    writer::{CommittedIndex, LogWriter, PendingCommit, WriterJob},
};
use crate::identity::LogOwner;
use crate::types::{LogEntry, LogId, TypeConfig, Vote};
use lockkeeper_metrics::Metrics;
use lockkeeper_storage::{
    database::LockFile,
    disk::Disk,
    health::{FailureHandler, Health, Watchdog, end_the_process},
    panics::{self, Doing},
};
use lockkeeper_transport::LogThrottle;

/// Capacity of the writer's queue, in jobs.
const JOBS_MAX: usize = 256;
/// Bytes of entries in the writer's queue; beyond it, appends wait (backpressure).
const QUEUED_BYTES_MAX: usize = 32 << 20;
/// Bytes that are read in one step, from the disk or for a peer.
const STEP_BYTES_MAX: usize = 1 << 20;
/// Maximum number of attempts to read a range from which entries are removed at the same time.
const READ_ATTEMPTS_MAX: u32 = 100;

/// Options for opening a log.
#[derive(Clone)]
pub struct LogOptions {
    /// The last entry of the node's newest snapshot. A log that contradicts it is refused.
    pub snapshot: Option<LogId>,
    /// The data directory that the log must belong to. It is not checked if it is `None`.
    pub owner: Option<LogOwner>,
    /// Size of the cache of latest entries in memory, bytes.
    pub recent_bytes: usize,
    /// Bytes in each of the journal's two files before they are moved into sled. Each file is allocated an eighth larger.
    pub journal_bytes: u64,
    /// How long one group of writes may take before the log counts as failed.
    pub stall_limit: Duration,
    /// How long a step of the opening may take. For sled the time in which a slow disk reads its file is added. How long the log is does
    /// not matter.
    pub open_limit: Duration,
    /// Called when the log fails.
    pub on_failure: FailureHandler,
    /// The metrics that count its writes.
    pub metrics: Metrics,
}

impl Default for LogOptions {
    /// No snapshot, no owner, 32 MiB of cache, 4 MiB in each file of the journal, 10 s for a group of writes, 120 s for a step of the
    /// opening; a failure [ends the process](end_the_process).
    fn default() -> Self {
        Self {
            snapshot: None,
            owner: None,
            recent_bytes: 32 << 20,
            journal_bytes: 4 << 20,
            stall_limit: Duration::from_secs(10),
            open_limit: Duration::from_secs(120),
            metrics: Metrics::default(),
            on_failure: end_the_process(),
        }
    }
}

/// The Raft log, and the vote, in a directory. Clones share the log.
///
/// When the last clone and the last reader are gone without [`close`](Self::close), the log closes itself soon after.
#[derive(Clone, Debug)]
pub struct LogStore {
    shared: Arc<SharedLog>,
}

/// Reads the log's entries, for replication and for `apply`: usually from memory.
#[derive(Clone, Debug)]
pub struct LogReader {
    shared: Arc<SharedLog>,
}

#[derive(Debug)]
struct SharedLog {
    memory: Mutex<LogMemory>,
    jobs: mpsc::Sender<WriterJob>,
    committed: Arc<CommittedIndex>,
    /// One permit for each KiB of queued entries.
    room: Arc<Semaphore>,
    health: Arc<Health>,
}

impl LogStore {
    /// Opens the log in a directory, or creates one there. Reads all of it. Blocks.
    pub fn open(directory: &Path, options: LogOptions) -> Result<Self, LogOpenError> {
        let LogOptions { snapshot, owner, recent_bytes, journal_bytes, stall_limit, open_limit, on_failure, metrics } =
            options;
        let request =
            OpenRequest { directory: directory.to_owned(), snapshot, owner, recent_bytes, journal_bytes, open_limit };
        let OpenedLog { trees, mark, lock, blobs, recovered } = opening::open(&request)?;

        let health = Arc::new(Health::new(directory.to_owned(), on_failure));
        let vote = recovered.vote;
        let purged = recovered.purged;
        let last = recovered.last();
        let has_leftovers = recovered.has_leftovers;
        let writer = LogWriter {
            trees,
            mark,
            blobs: Some(blobs),
            vote,
            purged,
            last,
            committed: Arc::default(),
            removals: 0,
            has_leftovers,
            health: health.clone(),
            metrics,
            slow: LogThrottle::default(),
        };

        let memory = LogMemory::new(purged, vote, recovered.committed, recovered.recent);
        let failed = |action| move |source| LogOpenError::io(directory, action, source);
        let store = Self::start(writer, memory, stall_limit, lock, directory).map_err(failed("starting a thread"))?;

        if let Some(Installation { keep, snapshot }) = recovered.installation {
            tracing::info!(%snapshot, "an interrupted snapshot install is completed");
            store.take_up(keep, snapshot).map_err(|contradiction| LogOpenError::Damaged {
                directory: directory.to_owned(),
                what: contradiction.to_string(),
            })?;
        }
        Ok(store)
    }

    /// Completes the install of a snapshot. The order matters: a crash between the two steps leaves a log that ends before the snapshot.
    fn take_up(&self, keep: Option<LogId>, snapshot: LogId) -> io::Result<()> {
        let mut memory = self.shared.memory();
        let queue = |job| self.shared.jobs.try_send(job).map_err(|_| self.shared.health.error());
        if memory.truncate_after(keep)? {
            queue(WriterJob::Truncate { after: keep })?;
        }
        if memory.purge(snapshot) {
            queue(WriterJob::Purge(snapshot))?;
        }
        Ok(())
    }

    pub(super) fn start<D: Disk>(
        writer: LogWriter<D>,
        memory: LogMemory,
        stall_limit: Duration,
        lock: LockFile,
        directory: &Path,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        let health = writer.health.clone();
        let committed = Arc::clone(&writer.committed);
        let watchdog = Watchdog::start(health.clone(), stall_limit)?;

        let directory = directory.to_owned();
        thread::Builder::new().name("log-writer".to_owned()).spawn(move || {
            let _advice = panics::advise(&directory, Doing::Serving);
            writer.run(queue, watchdog, lock);
        })?;

        let room = Arc::new(Semaphore::new(QUEUED_BYTES_MAX / 1024));
        Ok(Self { shared: Arc::new(SharedLog { memory: Mutex::new(memory), jobs, committed, room, health }) })
    }

    /// Flushes, closes the files and releases the directory. All clones and readers return errors from then on.
    pub async fn close(&self) -> io::Result<()> {
        let (closed, answer) = oneshot::channel();
        self.shared.send(WriterJob::Close { closed }).await?;
        self.shared.health.wait(async { answer.await.ok() }).await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let memory = self.shared.memory();
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: memory.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader { shared: self.shared.clone() }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (flushed, answer) = oneshot::channel();
        let job = WriterJob::Vote { vote: *vote, flushed };
        // Visible at once: streams of the previous leader end now, not after the flush.
        self.shared.send_with(job, |memory| memory.vote = Some(*vote)).await?;
        self.shared.health.wait(async { answer.await.ok() }).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        // No job, so no sync: the index is a hint with which the next start saves time, and the writer takes it along with the next group.
        // openraft says it for each entry, on the way of each commit.
        let pending = {
            let mut memory = self.shared.memory();
            memory.committed = Some(committed);
            PendingCommit { committed, removals: memory.removals }
        };
        *self.shared.committed.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.memory().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // Both kinds of room are awaited before anything changes: this future may be dropped at each wait, and a dropped append must leave
        // neither a gap in the memory nor a job for the disk.
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let room = self.shared.room(entries.iter().map(memory::size).sum()).await?;
        let slot = self.shared.slot().await?;

        // In one step, so that the queue and the memory have the same order.
        let mut memory = self.shared.memory();
        memory.append(&entries)?;
        slot.send(WriterJob::Append { entries, flushed: callback, room });
        Ok(())
    }

    async fn truncate_after(&mut self, after: Option<LogId>) -> io::Result<()> {
        let slot = self.shared.slot().await?;
        let mut memory = self.shared.memory();
        if memory.truncate_after(after)? {
            slot.send(WriterJob::Truncate { after });
        }
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let slot = self.shared.slot().await?;
        let mut memory = self.shared.memory();
        if memory.purge(upto) {
            slot.send(WriterJob::Purge(upto));
        }
        Ok(())
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let shared = &*self.shared;
        let pages = stream::try_unfold(from, move |from| async move {
            let page = shared.page(from, to, STEP_BYTES_MAX).await?;
            let next = page.last().map(|last| last.log_id.index + 1);
            Ok::<_, io::Error>(next.map(|next| (stream::iter(page.into_iter().map(Ok)), next)))
        });
        Box::pin(pages.try_flatten())
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.shared.read(from, to).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.memory().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        self.shared.page(start, end, STEP_BYTES_MAX).await
    }
}

impl SharedLog {
    fn memory(&self) -> MutexGuard<'_, LogMemory> {
        // A panic cannot leave a change of the memory half done.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn slot(&self) -> io::Result<mpsc::Permit<'_, WriterJob>> {
        self.health.wait(async { self.jobs.reserve().await.ok() }).await
    }

    async fn room(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        // Entries larger than the whole room take all of it.
        let permits = (bytes.min(QUEUED_BYTES_MAX) / 1024) as u32;
        self.health.wait(async { self.room.clone().acquire_many_owned(permits).await.ok() }).await
    }

    async fn send(&self, job: WriterJob) -> io::Result<()> {
        self.slot().await?.send(job);
        Ok(())
    }

    /// Queues a job and changes the memory, in one step.
    async fn send_with(&self, job: WriterJob, change: impl FnOnce(&mut LogMemory)) -> io::Result<()> {
        let slot = self.slot().await?;
        let mut memory = self.memory();
        change(&mut memory);
        slot.send(job);
        Ok(())
    }

    /// All entries of a range, as they were at one moment.
    async fn read(&self, from: u64, to: u64) -> io::Result<Vec<LogEntry>> {
        for _ in 0..READ_ATTEMPTS_MAX {
            // A page at a time, with no lock between two: a truncation may come in between, and entries of two different logs must never be
            // put together. Then all of it begins again.
            let removals = self.memory().removals;
            let mut entries: Vec<LogEntry> = Vec::new();
            loop {
                let next = entries.last().map_or(from, |last| last.log_id.index + 1);
                let page = self.page(next, to, STEP_BYTES_MAX).await?;
                if self.memory().removals != removals {
                    break;
                }
                if page.is_empty() {
                    return Ok(entries);
                }
                entries.extend(page);
            }
        }

        let attempts = READ_ATTEMPTS_MAX;
        Err(io::Error::other(format!(
            "entries were removed during each of {attempts} attempts to read them; read them again"
        )))
    }

    /// The first entries of a range: at least one if there is any, up to about `bytes_max` bytes.
    async fn page(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        loop {
            let (step, removals) = {
                let memory = self.memory();
                (memory.step(from, to, bytes_max), memory.removals)
            };

            let (from, to) = match step {
                ReadStep::Here(entries) => return Ok(entries),
                ReadStep::End => return Ok(Vec::new()),
                ReadStep::OnDisk(from, to) => (from, to),
            };

            let (answer, answered) = oneshot::channel();
            self.send(WriterJob::Read { from, to, bytes_max, answer }).await?;
            let page = self.health.wait(async { answered.await.ok() }).await?;
            // The error may concern entries that were removed during the read: try again.
            if self.memory().removals != removals {
                continue;
            }
            let page = page?;
            // sled answers with the next key that it has. A hole would otherwise be skipped without a word, and replicated as it is.
            return match page.first() {
                Some(first) if first.log_id.index == from => Ok(page),
                Some(_) | None => Err(super::log_trees::damaged(format!("entry {from} is missing"))),
            };
        }
    }
}

/// A range's first index, and the one after its last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}
