//! A small map on disk: what is inserted has reached the disk when the insertion returns.
//!
//! For what must outlive a crash but is not part of the log, such as the tokens that a fence has seen. All of it is read at the
//! opening and handed over; from then on it is only written. One thread owns sled, as for the [`log`](crate::raft::log) and for the
//! same reasons: it takes what has queued up, inserts all of it, flushes *once*, and answers. A failed flush is never repeated: the
//! map is closed for good, and only a new opening shows what is there.
//!
//! What notices a loss: sled's files are opened with care (see `log::database`), each value has a checksum of its own, and a file
//! beside sled tells a new map from one whose database came back empty.
//!
//! ## Left out
//!
//! Removal, reading back, and a watchdog: an insertion waits as long as the disk takes, and whoever waits may stop. Nor is every
//! damage noticed: a database that lost its last insertions to a disk that forgets looks like one in which they never were.

mod opening;
#[cfg(test)]
mod tests;
mod writer;

pub use opening::OpenError;

use std::{
    fmt, io,
    path::Path,
    sync::{Mutex, mpsc as blocking},
    thread,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use writer::{Job, Table, Writer};

/// Insertions that wait for the writer's thread; beyond that, callers wait to enter.
const QUEUE_MAX: usize = 1024;

/// How long dropping the map waits for its thread to close the files. All that was acknowledged is durable before.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// What it held when it was opened: keys and values, in the order of the keys.
pub(crate) type Contents = Vec<(Vec<u8>, Vec<u8>)>;

/// The map, as those who write to it have it. When it is dropped, its files are closed.
pub(crate) struct DurableMap {
    jobs: Option<mpsc::Sender<Job>>,
    /// Disconnects when the thread has let go of the files.
    closed: Mutex<blocking::Receiver<()>>,
}

impl DurableMap {
    /// Opens the map in a directory, or makes a new one there. Blocks, also for a sync.
    pub(crate) fn open(directory: &Path) -> Result<(Self, Contents), OpenError> {
        let opened = opening::open(directory)?;
        let map = Self::start(Writer::new(opened.table, opened.lock));
        let map = map.map_err(|source| OpenError::io(directory, "starting a thread", source))?;
        Ok((map, opened.contents))
    }

    fn start<T: Table>(writer: Writer<T>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let (open, closed) = blocking::channel();
        let work = move || {
            // Dropped last of all, also in a panic.
            let _open: blocking::Sender<()> = open;
            writer.run(queue);
        };
        thread::Builder::new().name("durable-map".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), closed: Mutex::new(closed) })
    }

    /// Inserts, or replaces. What it returned from is on the disk. Insertions take place in the order in which they are called.
    ///
    /// After an error the map is closed, and whether this insertion took place shows when it is opened again. If the future is dropped,
    /// it takes place or not; if it does, then before all that are called later. Keys and values: up to 1 KiB together.
    pub(crate) async fn insert(&self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().expect("it is taken only when the map is dropped");
        jobs.send(Job { key, value, answer }).await.map_err(|_| has_failed())?;
        answered.await.map_err(|_| has_failed())?
    }
}

fn has_failed() -> io::Error {
    io::Error::other("an earlier write to it failed: open it anew, which shows what is there")
}

impl Drop for DurableMap {
    fn drop(&mut self) {
        self.jobs = None;
        let closed = self.closed.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        // It answers by hanging up. If it does not, the disk hangs: the files stay locked until the process ends.
        let _ = closed.recv_timeout(CLOSE_LIMIT);
    }
}

impl fmt::Debug for DurableMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_closed = self.jobs.as_ref().is_none_or(mpsc::Sender::is_closed);
        f.debug_struct("DurableMap").field("is_closed", &is_closed).finish()
    }
}
