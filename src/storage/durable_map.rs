//! A small map on disk: an inserted value is durable when the insertion returns.
//!
//! It stores what must survive a crash but is not part of the log, such as the tokens that a fence has seen. All of it is read
//! at opening and returned to the caller; afterwards it is only written. One thread owns sled, as for the log and for the same
//! reason: group commit. The thread takes the queued insertions, inserts all of them, flushes *once*, and answers. A failed
//! flush is never repeated: the map is closed for good, and only a new opening shows which insertions are durable.
//!
//! Losses are noticed in three ways: sled's files are checked when they are opened (see `log::database`), each value has its own
//! checksum, and a file beside sled tells a new map from one whose database came back empty.
//!
//! ## Left out
//!
//! Removal, reading back, and a watchdog: an insertion waits as long as the disk takes, and the caller may stop waiting. Some damage is
//! not noticed: a database that lost its last insertions to a disk that ignored a sync looks as if they had never been made.

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

use writer::{MapBackend, MapWriter, PendingInsertion};

/// Capacity of the writer's queue, in insertions; beyond it, callers wait (backpressure).
const QUEUE_MAX: usize = 1024;

/// How long dropping the map waits for its thread to close the files. All acknowledged insertions are durable before.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The contents at opening: keys and values, sorted by key.
pub type MapContents = Vec<(Vec<u8>, Vec<u8>)>;

/// The writers' handle of the map. Dropping it closes the files.
pub struct DurableMap {
    jobs: Option<mpsc::Sender<PendingInsertion>>,
    /// Disconnects when the thread has closed the files.
    closed: Mutex<blocking::Receiver<()>>,
}

impl DurableMap {
    /// Opens the map in a directory, or creates one there. Blocks, also for a sync.
    pub fn open(directory: &Path) -> Result<(Self, MapContents), OpenError> {
        let opened = opening::open(directory)?;
        let map = Self::start(MapWriter::new(opened.backend, opened.lock));
        let map = map.map_err(|source| OpenError::io(directory, "starting a thread", source))?;
        Ok((map, opened.contents))
    }

    fn start<T: MapBackend>(writer: MapWriter<T>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let (open, closed) = blocking::channel();
        let work = move || {
            // Dropped last, also after a panic.
            let _open: blocking::Sender<()> = open;
            writer.run(queue);
        };
        thread::Builder::new().name("durable-map".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), closed: Mutex::new(closed) })
    }

    /// Inserts or replaces a value; it is durable when this returns `Ok`. Insertions take place in the order of the calls.
    ///
    /// After an error the map is closed; whether this insertion took place shows at the next opening. If the future is dropped, the
    /// insertion may or may not take place; if it does, it precedes all later ones. Key and value: at most 1 KiB together.
    pub async fn insert(&self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().expect("it is taken only when the map is dropped");
        jobs.send(PendingInsertion { key, value, answer }).await.map_err(|_| has_failed())?;
        answered.await.map_err(|_| has_failed())?
    }
}

fn has_failed() -> io::Error {
    io::Error::other(
        "an earlier write to this map failed, so it is closed; open it again to see which insertions are durable",
    )
}

impl Drop for DurableMap {
    fn drop(&mut self) {
        self.jobs = None;
        let closed = self.closed.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The thread answers by hanging up. If it does not, the disk hangs: the files stay locked until the process ends.
        let _ = closed.recv_timeout(CLOSE_LIMIT);
    }
}

impl fmt::Debug for DurableMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_closed = self.jobs.as_ref().is_none_or(mpsc::Sender::is_closed);
        f.debug_struct("DurableMap").field("is_closed", &is_closed).finish()
    }
}
