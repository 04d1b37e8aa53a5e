//! The thread that owns the disk.
//!
//! All that touches the disk comes to it through one bounded queue and happens in that order: appends, votes, truncations, purges,
//! and reads of entries that are no longer in memory. It takes what has queued up, writes all of it, flushes *once*, and then
//! answers: while one flush lasts, the next group gathers. So one client waits for one flush, and a thousand share one.
//!
//! A vote is answered only when the high-water mark has it too: the loss of one block takes no vote.
//!
//! What is left for later: the commit index needs no flush of its own, and goes to disk with the next one; purged entries are
//! removed in slices, between the groups.

use std::{
    io, mem, panic,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use openraft::storage::IOFlushed;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{
    database::LockFile,
    disk::Disk,
    health::{Failure, Health, Watchdog},
    mark::{Mark, MarkFile},
    memory::next_index,
    tables::{Tables, damaged},
};
use crate::{
    planted::Planted,
    raft::types::{Entry, LogId, TypeConfig, Vote},
};

/// A group is closed when it has so many entries; beyond that a larger one gains nothing.
const ENTRIES_PER_GROUP: usize = 128;
/// Keys that are removed between two groups, at most, when the log is purged. A vote waits for so many: each is read from sled first.
const KEYS_PER_SLICE: usize = 250;
/// Without a job for so long, the disk may [rest](Disk::rest).
const IDLE: Duration = Duration::from_millis(50);

/// Something for the writer to do.
pub(super) enum Job {
    /// Add entries at the end, and say when they are durable.
    Append { entries: Vec<Entry>, flushed: IOFlushed<TypeConfig>, room: OwnedSemaphorePermit },
    /// Keep the vote, and answer when it is durable.
    Vote { vote: Vote, flushed: oneshot::Sender<()> },
    /// Remove all entries after this one.
    Truncate { after: Option<LogId> },
    /// Remove all entries up to and including this one.
    Purge(LogId),
    /// Read entries as [`Tables::entries`] does.
    Read { from: u64, to: u64, bytes_max: usize, answer: oneshot::Sender<io::Result<Vec<Entry>>> },
    /// End, in order.
    Close { closed: oneshot::Sender<()> },
}

/// A commit index that is to be written. It wakes nobody: the next group takes it along.
pub(super) type Committed = Mutex<Option<LogId>>;

/// The writer's state: what is on the disk, flushed or not.
pub(super) struct Writer<D: Disk> {
    pub(super) tables: Tables<D>,
    pub(super) mark: MarkFile,
    /// sled's place for large pages, which it never syncs. It must stay empty.
    pub(super) blobs: Option<PathBuf>,
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    /// Of the last entry; if there is none, as `purged`.
    pub(super) last: Option<LogId>,
    /// How far the log is committed, if that is not written yet.
    pub(super) committed: Arc<Committed>,
    /// Entries that are purged may still be on the disk.
    pub(super) has_leftovers: bool,
    pub(super) health: Arc<Health>,
}

/// What is to be said after the flush.
#[derive(Default)]
struct Group {
    appends: Vec<(IOFlushed<TypeConfig>, OwnedSemaphorePermit)>,
    votes: Vec<oneshot::Sender<()>>,
    /// Something needs the flush.
    is_dirty: bool,
    closed: Option<oneshot::Sender<()>>,
}

impl<D: Disk> Writer<D> {
    /// Serves the queue until it is closed, then closes the disk. The lock is released last of all.
    pub(super) fn run(self, jobs: mpsc::Receiver<Job>, watchdog: Watchdog, lock: LockFile) {
        let health = self.health.clone();
        // Neither after a failure nor in a panic may the disk be dropped: sled would flush once more, and might hang.
        let mut writer = mem::ManuallyDrop::new(self);
        let served = panic::catch_unwind(panic::AssertUnwindSafe(|| writer.serve(jobs)));
        let closed = match served.unwrap_or(Err(Failure::Panicked)) {
            Ok(closed) => closed,
            Err(failure) => {
                // The disk is still open, in a state that nobody knows: no other instance may come near it.
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
            // Who asked may have stopped waiting.
            let _ = closed.send(());
        }
    }

    fn serve(&mut self, mut jobs: mpsc::Receiver<Job>) -> Result<Option<oneshot::Sender<()>>, Failure> {
        loop {
            let first = match self.has_leftovers {
                true => jobs.try_recv(),
                false => self.next_job(&mut jobs)?.ok_or(mpsc::error::TryRecvError::Disconnected),
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

    /// Waits for a job; `None`: there will be none.
    fn next_job(&mut self, jobs: &mut mpsc::Receiver<Job>) -> io::Result<Option<Job>> {
        match soon(jobs, IDLE) {
            Poll::Ready(job) => Ok(job),
            Poll::Pending => {
                {
                    let _at_disk = self.health.at_disk();
                    self.tables.disk.rest()?;
                }
                Ok(jobs.blocking_recv())
            }
        }
    }

    /// Does this job and those that have queued up behind it, with one flush. Answers who asked to close, if someone did.
    fn serve_group(
        &mut self,
        first: Job,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Result<Option<oneshot::Sender<()>>, Failure> {
        let mut group = Group::default();
        let mut entries = 0;
        let mut next = Some(first);
        let written = loop {
            let Some(job) = next else { break Ok(()) };
            entries += match &job {
                Job::Append { entries, .. } => entries.len(),
                Job::Vote { .. } | Job::Truncate { .. } | Job::Purge(_) | Job::Read { .. } | Job::Close { .. } => 0,
            };
            if let Err(error) = self.write(job, &mut group) {
                break Err(error);
            }
            next = match entries < ENTRIES_PER_GROUP && group.closed.is_none() {
                true => jobs.try_recv().ok(),
                false => None,
            };
        };
        match written.and_then(|()| self.finish(&group)) {
            Ok(()) => {}
            Err(error) => {
                let failure = error.into();
                // First of all: it usually ends the process.
                self.health.fail(&failure);
                group.refuse(&self.health);
                return Err(failure);
            }
        }
        let closed = group.closed.take();
        group.acknowledge();
        match closed.is_some() {
            true => self.close()?,
            false if self.mark.is_due(self.last.as_ref()) => self.write_mark()?,
            false => {}
        }
        Ok(closed)
    }

    fn write(&mut self, job: Job, group: &mut Group) -> io::Result<()> {
        let health = self.health.clone();
        let _at_disk = health.at_disk();
        match job {
            Job::Append { entries, flushed, room } => {
                // Before anything that can fail: whatever happens, it is answered.
                group.appends.push((flushed, room));
                group.is_dirty = true;
                for entry in &entries {
                    self.tables.insert(entry, self.last.as_ref())?;
                    self.last = Some(entry.log_id);
                }
            }
            Job::Vote { vote, flushed } => {
                group.votes.push(flushed);
                group.is_dirty = true;
                self.tables.set_vote(&vote)?;
                self.vote = Some(vote);
            }
            Job::Truncate { after } => {
                group.is_dirty = true;
                self.truncate(after)?;
            }
            Job::Purge(upto) => {
                group.is_dirty = true;
                self.tables.set_purged(&upto)?;
                self.purged = Some(upto);
                self.has_leftovers = true;
                if self.last.is_none_or(|last| last.index <= upto.index) {
                    self.last = Some(upto);
                }
            }
            Job::Read { from, to, bytes_max, answer } => {
                // Who asked may have stopped waiting.
                let _ = answer.send(self.tables.entries(from, to, bytes_max));
            }
            Job::Close { closed } => group.closed = Some(closed),
        }
        Ok(())
    }

    /// Downwards: if it is interrupted, the log is longer than it should be, but has no gap.
    fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        self.mark.lower(after.as_ref())?;
        for index in (next_index(after.as_ref())..next_index(self.last.as_ref())).rev() {
            self.tables.remove(index)?;
        }
        self.last = after;
        Ok(())
    }

    /// Makes a group durable.
    fn finish(&mut self, group: &Group) -> io::Result<()> {
        if !group.is_dirty {
            return Ok(());
        }
        self.write_committed()?;
        match Planted::AckBeforeSync.is_on() && !self.is_synced_all_the_same(group) {
            true => Ok(()),
            false => self.flush(),
        }?;
        if group.votes.is_empty() { Ok(()) } else { self.write_mark() }
    }

    /// With that bug, a log that forgot its vote, or all of itself, would not be opened again, and nobody would see what else is gone.
    fn is_synced_all_the_same(&self, group: &Group) -> bool {
        !group.votes.is_empty() || self.last.is_none_or(|last| last.index.is_multiple_of(64))
    }

    /// A hint, which may be lost, but must never be ahead of the log: at the next start that would look like a lost end.
    fn write_committed(&mut self) -> io::Result<()> {
        let committed = {
            // Each change of it is whole.
            let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
            committed.take_if(|committed| Some(*committed) <= self.last)
        };
        committed.map_or(Ok(()), |committed| self.tables.set_committed(&committed))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _at_disk = self.health.at_disk();
        self.tables.disk.flush()
    }

    /// Removes some of what is purged, if there is any left.
    fn remove_slice(&mut self) -> io::Result<()> {
        let Some(purged) = self.purged.filter(|_| self.has_leftovers) else { return Ok(()) };
        let is_done = {
            let _at_disk = self.health.at_disk();
            self.tables.remove_upwards(purged.index, KEYS_PER_SLICE)?
        };
        // Its end goes with the next group.
        if !is_done {
            self.flush()?;
        }
        self.has_leftovers = !is_done;
        Ok(())
    }

    /// Notes how far the log has come, which must be durable by now.
    fn write_mark(&mut self) -> io::Result<()> {
        let _at_disk = self.health.at_disk();
        if self.blobs.as_ref().is_some_and(|blobs| super::database::is_occupied(blobs)) {
            return Err(damaged("sled has put a page into `blobs`, where it is never synced"));
        }
        self.mark.update(Mark { vote: self.vote, last: self.last })
    }

    fn close(&mut self) -> io::Result<()> {
        self.write_committed()?;
        self.flush()?;
        {
            let _at_disk = self.health.at_disk();
            self.tables.disk.close()?;
        }
        self.write_mark()
    }
}

impl Group {
    fn acknowledge(self) {
        for (flushed, room) in self.appends {
            flushed.io_completed(Ok(()));
            drop(room);
        }
        for flushed in self.votes {
            // Who asked may have stopped waiting; the vote is kept all the same.
            let _ = flushed.send(());
        }
    }

    fn refuse(self, health: &Health) {
        for (flushed, _room) in self.appends {
            flushed.io_completed(Err(health.error()));
        }
        // Votes and who asked to close learn of it by the loss of their senders.
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next job, or the end of them, if it comes within about so long. It may give up early.
fn soon(jobs: &mut mpsc::Receiver<Job>, limit: Duration) -> Poll<Option<Job>> {
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
