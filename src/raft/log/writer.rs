//! The thread that owns the disk.
//!
//! All work on the disk comes to it through one bounded queue and happens in that order: appends, votes, truncations, purges, and reads
//! of entries that are no longer in memory. Group commit: it takes the queued jobs, writes all of them, flushes *once*, and then answers;
//! during a flush, the next group queues up. So one client waits for one flush, and a thousand share one.
//!
//! A vote is answered only once the high-water mark has it too, so that the loss of one block cannot lose a vote.
//!
//! Two writes are deferred: the commit index needs no flush of its own, and goes to disk with the next group; purged entries are removed
//! in slices between the groups.

use std::{
    io, mem, panic,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use openraft::storage::IOFlushed;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::Instant,
};

use super::{
    log_trees::{LogTrees, damaged},
    mark::{LogMark, MarkFile},
    memory::next_index,
};
use crate::types::{LogEntry, LogId, TypeConfig, Vote};
use lockkeeper_metrics::{CommandStage, Metrics};
use lockkeeper_planted::Planted;
use lockkeeper_storage::{
    database::{LockFile, is_occupied},
    disk::Disk,
    health::{DiskFailure, Health, Watchdog},
};
use lockkeeper_transport::LogThrottle;

/// Maximum entries in a group commit; larger groups gain nothing.
const ENTRIES_PER_GROUP: usize = 128;
/// Keys that a purge removes between two groups, at most. They delay a vote: each is read from sled first.
const KEYS_PER_SLICE: usize = 250;
/// A sync that takes this long is logged: nearly the shortest election timeout.
const SLOW_SYNC: Duration = Duration::from_millis(250);
/// After this time without a job, the disk may [idle](Disk::idle).
const IDLE: Duration = Duration::from_millis(50);

/// A job for the writer.
pub(super) enum WriterJob {
    /// Append entries, and report when they are durable.
    Append { entries: Vec<LogEntry>, flushed: IOFlushed<TypeConfig>, room: OwnedSemaphorePermit },
    /// Store the vote, and answer when it is durable.
    Vote { vote: Vote, flushed: oneshot::Sender<()> },
    /// Remove all entries after this one.
    Truncate { after: Option<LogId> },
    /// Remove all entries up to and including this one.
    Purge(LogId),
    /// Read entries as [`LogTrees::entries`] does.
    Read { from: u64, to: u64, bytes_max: usize, answer: oneshot::Sender<io::Result<Vec<LogEntry>>> },
    /// Close in order.
    Close { closed: oneshot::Sender<()> },
}

/// The commit index to write, if there is a new one. It does not wake the writer: the next group includes it.
pub(super) type CommittedIndex = Mutex<Option<PendingCommit>>;

/// A commit index that openraft has said, and the place in the queue at which it said so.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCommit {
    pub(super) committed: LogId,
    /// The number of truncations and purges that were queued by then.
    pub(super) removals: u64,
}

/// The writer's state: the content of the disk, flushed or not.
pub(super) struct LogWriter<D: Disk> {
    pub(super) trees: LogTrees<D>,
    pub(super) mark: MarkFile,
    /// sled's directory for large pages, which it never syncs. It must stay empty.
    pub(super) blobs: Option<PathBuf>,
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    /// The last entry; if there is none, as `purged`.
    pub(super) last: Option<LogId>,
    /// The commit index, if it is not written yet.
    pub(super) committed: Arc<CommittedIndex>,
    /// The number of truncations and purges since the opening.
    pub(super) removals: u64,
    /// Whether purged entries may still be on the disk.
    pub(super) has_leftovers: bool,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Metrics,
    /// Slow syncs.
    pub(super) slow: LogThrottle,
}

/// The answers to give after the flush.
#[derive(Default)]
struct WriteGroup {
    appends: Vec<(IOFlushed<TypeConfig>, OwnedSemaphorePermit)>,
    votes: Vec<oneshot::Sender<()>>,
    /// Whether a job needs the flush.
    is_dirty: bool,
    closed: Option<oneshot::Sender<()>>,
}

impl<D: Disk> LogWriter<D> {
    /// Serves the queue until it is closed, then closes the disk. The lock is released last.
    pub(super) fn run(self, jobs: mpsc::Receiver<WriterJob>, watchdog: Watchdog, lock: LockFile) {
        let health = self.health.clone();
        // After a failure or a panic the disk must not be dropped: sled would flush once more, and might hang.
        let mut writer = mem::ManuallyDrop::new(self);
        let served = panic::catch_unwind(panic::AssertUnwindSafe(|| writer.serve(jobs)));

        let closed = match served.unwrap_or(Err(DiskFailure::Panicked)) {
            Ok(closed) => closed,
            Err(failure) => {
                // The disk is still open, in an unknown state: the lock keeps other instances away.
                mem::forget(lock);
                return health.fail(&failure);
            }
        };

        {
            let _at_disk = health.at_disk();
            drop(mem::ManuallyDrop::into_inner(writer));
        }
        watchdog.stop();
        drop(lock);

        if let Some(closed) = closed {
            // The caller may have stopped waiting.
            let _ = closed.send(());
        }
    }

    fn serve(&mut self, mut jobs: mpsc::Receiver<WriterJob>) -> Result<Option<oneshot::Sender<()>>, DiskFailure> {
        loop {
            // While purged entries are left, the thread does not sleep: it looks for a job between two slices, so a vote waits for one
            // slice at the most.
            let first = if self.has_leftovers {
                jobs.try_recv()
            } else {
                self.next_job(&mut jobs)?.ok_or(mpsc::error::TryRecvError::Disconnected)
            };
            match first {
                Ok(first) => {
                    if let Some(closed) = self.serve_group(first, &mut jobs)? {
                        return Ok(Some(closed));
                    }
                }
                Err(mpsc::error::TryRecvError::Empty) => {}
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.close()?;
                    return Ok(None);
                }
            }
            self.remove_slice()?;
        }
    }

    /// Waits for a job. Returns `None` once the queue is closed.
    fn next_job(&mut self, jobs: &mut mpsc::Receiver<WriterJob>) -> io::Result<Option<WriterJob>> {
        match soon(jobs, IDLE) {
            Poll::Ready(job) => Ok(job),
            Poll::Pending => {
                {
                    let _at_disk = self.health.at_disk();
                    self.trees.disk.idle()?;
                }
                Ok(jobs.blocking_recv())
            }
        }
    }

    /// Does this job and those queued after it, with one flush. Returns the channel of a request to close, if there was one.
    fn serve_group(
        &mut self,
        first: WriterJob,
        jobs: &mut mpsc::Receiver<WriterJob>,
    ) -> Result<Option<oneshot::Sender<()>>, DiskFailure> {
        let mut group = WriteGroup::default();
        let mut entries = 0;
        let mut next = Some(first);
        let began = Instant::now();
        let written = loop {
            let Some(job) = next else { break Ok(()) };
            entries += match &job {
                WriterJob::Append { entries, .. } => entries.len(),
                WriterJob::Vote { .. }
                | WriterJob::Truncate { .. }
                | WriterJob::Purge(_)
                | WriterJob::Read { .. }
                | WriterJob::Close { .. } => 0,
            };
            // The rest of the group is not written: after an error nothing is known of the disk. All of it is refused below, also what was
            // written before.
            if let Err(error) = self.write(job, &mut group) {
                break Err(error);
            }
            next = if entries < ENTRIES_PER_GROUP && group.closed.is_none() { jobs.try_recv().ok() } else { None };
        };

        if !group.appends.is_empty() {
            self.metrics.took(CommandStage::Append, began.elapsed());
        }

        match written.and_then(|()| self.finish(&group)) {
            Ok(()) => {}
            Err(error) => {
                let failure = error.into();
                // Reported first: it usually ends the process.
                self.health.fail(&failure);
                group.refuse(&self.health);
                return Err(failure);
            }
        }

        let closed = group.closed.take();
        group.acknowledge();
        if closed.is_some() {
            self.close()?;
        } else if self.mark.is_due(self.last.as_ref()) {
            self.write_mark()?;
        }
        Ok(closed)
    }

    fn write(&mut self, job: WriterJob, group: &mut WriteGroup) -> io::Result<()> {
        let health = self.health.clone();
        let _at_disk = health.at_disk();
        match job {
            WriterJob::Append { entries, flushed, room } => {
                // Move it before anything that can fail, so that it is answered in any case.
                group.appends.push((flushed, room));
                group.is_dirty = true;
                for entry in &entries {
                    self.trees.insert(entry, self.last.as_ref())?;
                    self.last = Some(entry.log_id);
                }
            }
            WriterJob::Vote { vote, flushed } => {
                group.votes.push(flushed);
                group.is_dirty = true;
                self.trees.set_vote(&vote)?;
                self.vote = Some(vote);
            }
            WriterJob::Truncate { after } => {
                group.is_dirty = true;
                self.truncate(after)?;
                self.removals += 1;
            }
            WriterJob::Purge(upto) => {
                group.is_dirty = true;
                self.trees.set_purged(&upto)?;
                self.purged = Some(upto);
                self.removals += 1;
                self.has_leftovers = true;
                if self.last.is_none_or(|last| last.index <= upto.index) {
                    self.last = Some(upto);
                }
            }
            WriterJob::Read { from, to, bytes_max, answer } => {
                // The caller may have stopped waiting.
                let _ = answer.send(self.trees.entries(from, to, bytes_max));
            }
            WriterJob::Close { closed } => group.closed = Some(closed),
        }
        Ok(())
    }

    /// Removes downwards: after an interruption the log is longer than it should be, but has no gap.
    fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        self.mark.lower(after.as_ref())?;
        for index in (next_index(after.as_ref())..next_index(self.last.as_ref())).rev() {
            self.trees.remove(index)?;
        }
        self.last = after;
        Ok(())
    }

    /// Makes a group durable.
    fn finish(&mut self, group: &WriteGroup) -> io::Result<()> {
        if !group.is_dirty {
            return Ok(());
        }
        // Write it before the sync, so that it needs no further one. Its entries are in the same group or an earlier one.
        self.write_committed()?;
        if Planted::AckBeforeSync.is_on() && !self.is_synced_all_the_same(group) { Ok(()) } else { self.flush() }?;
        // A second sync for a vote, which is rare. One for entries would double the time of each commit.
        if group.votes.is_empty() { Ok(()) } else { self.write_mark() }
    }

    /// For [`Planted::AckBeforeSync`]: a log that lost its vote, or everything, would be refused at opening, which would hide the other
    /// losses.
    fn is_synced_all_the_same(&self, group: &WriteGroup) -> bool {
        !group.votes.is_empty() || self.last.is_none_or(|last| last.index.is_multiple_of(64))
    }

    /// The commit index is a hint and may be lost, but must never be ahead of the log: at the next start that would look like a lost end,
    /// and entries that another leader replaced would be applied.
    ///
    /// It is said beside the queue. Once all removals that were queued before it are done, only appends may be missing, and then the log
    /// has the entry if it reaches it.
    fn write_committed(&mut self) -> io::Result<()> {
        let pending = {
            // A panic cannot leave it half changed.
            let mut pending = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
            let are_removed = |until| until <= self.removals || Planted::CommitBeforeRemoval.is_on();
            pending.take_if(|pending| are_removed(pending.removals) && Some(pending.committed) <= self.last)
        };
        pending.map_or(Ok(()), |pending| self.trees.set_committed(&pending.committed))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _at_disk = self.health.at_disk();
        let began = Instant::now();
        self.trees.disk.flush()?;

        let took = began.elapsed();
        self.metrics.took(CommandStage::Sync, took);
        if took >= SLOW_SYNC
            && let Some(count) = self.slow.count()
        {
            tracing::warn!(
                count,
                took_ms = took.as_millis() as u64,
                "the disk of the log is slow: syncs took very long"
            );
        }
        Ok(())
    }

    /// Removes a slice of the purged entries, if any are left.
    fn remove_slice(&mut self) -> io::Result<()> {
        let Some(purged) = self.purged.filter(|_| self.has_leftovers) else { return Ok(()) };
        let is_done = {
            let _at_disk = self.health.at_disk();
            self.trees.remove_upwards(purged.index, KEYS_PER_SLICE)?
        };
        // The last removals are flushed with the next group.
        if !is_done {
            self.flush()?;
        }
        self.has_leftovers = !is_done;
        Ok(())
    }

    /// Records the end of the log, which must be durable by now.
    fn write_mark(&mut self) -> io::Result<()> {
        let _at_disk = self.health.at_disk();
        if self.blobs.as_ref().is_some_and(|blobs| is_occupied(blobs)) {
            return Err(damaged("sled has written a page to `blobs`, which it never syncs"));
        }
        self.mark.update(LogMark { vote: self.vote, last: self.last })
    }

    fn close(&mut self) -> io::Result<()> {
        self.write_committed()?;
        self.flush()?;
        {
            let _at_disk = self.health.at_disk();
            self.trees.disk.close()?;
        }
        self.write_mark()
    }
}

impl WriteGroup {
    fn acknowledge(self) {
        for (flushed, room) in self.appends {
            flushed.io_completed(Ok(()));
            drop(room);
        }
        for flushed in self.votes {
            // The caller may have stopped waiting; the vote is stored all the same.
            let _ = flushed.send(());
        }
    }

    fn refuse(self, health: &Health) {
        for (flushed, _room) in self.appends {
            flushed.io_completed(Err(health.error()));
        }
        // Dropping their senders tells votes and requests to close.
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next job, or the end of the queue, if it comes within about `limit`. May return `Pending` early.
fn soon(jobs: &mut mpsc::Receiver<WriterJob>, limit: Duration) -> Poll<Option<WriterJob>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    match jobs.poll_recv(&mut context) {
        Poll::Ready(job) => Poll::Ready(job),
        Poll::Pending => {
            thread::park_timeout(limit);
            jobs.poll_recv(&mut context)
        }
    }
}
