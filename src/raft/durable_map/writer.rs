//! The thread that owns the map's files.

use std::{io, mem, panic};

use tokio::sync::{mpsc, oneshot};

use super::super::log::database::LockFile;

/// A group is closed when it has so many insertions; beyond that a larger one gains nothing.
const JOBS_PER_GROUP: usize = 128;

/// An insertion that somebody waits for.
pub(super) struct Job {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) answer: oneshot::Sender<io::Result<()>>,
}

/// What the map asks of sled. A trait, so that tests can have one whose flush fails.
pub(super) trait Table: Send + 'static {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Returns when all that was inserted is durable. After a failure the table must not be used again: what a second attempt
    /// reports says nothing about the first.
    fn flush(&mut self) -> io::Result<()>;
}

/// The table, and the lock that keeps others out of it.
pub(super) struct Writer<T> {
    table: T,
    lock: Option<LockFile>,
}

impl<T: Table> Writer<T> {
    pub(super) fn new(table: T, lock: LockFile) -> Self {
        Self { table, lock: Some(lock) }
    }

    #[cfg(test)]
    pub(super) fn unlocked(table: T) -> Self {
        Self { table, lock: None }
    }

    /// Serves the queue until nobody can fill it any more, then closes the files. The lock is released last of all.
    pub(super) fn run(self, queue: mpsc::Receiver<Job>) {
        let Self { table, lock } = self;
        // Neither after a failure nor in a panic may the table be dropped: sled would flush once more, and might hang.
        let mut table = mem::ManuallyDrop::new(table);
        let served = panic::catch_unwind(panic::AssertUnwindSafe(|| serve(&mut *table, queue)));
        match served {
            Ok(Ok(())) => drop(mem::ManuallyDrop::into_inner(table)),
            // It is still open, in a state that nobody knows: no other instance may come near it.
            Ok(Err(Failed)) | Err(_) => mem::forget(lock),
        }
    }
}

/// Those who waited know why.
struct Failed;

/// When it returns, the queue is gone too: who still waits in it, or comes later, learns of it by that.
fn serve(table: &mut impl Table, mut queue: mpsc::Receiver<Job>) -> Result<(), Failed> {
    while let Some(first) = queue.blocking_recv() {
        let mut group = vec![first];
        while group.len() < JOBS_PER_GROUP
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }
        let written = group.iter().try_for_each(|job| table.insert(&job.key, &job.value)).and_then(|()| table.flush());
        let failed = written.is_err();
        for Job { answer, .. } in group {
            let copy = written.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()));
            // Who asked may have stopped waiting.
            let _ = answer.send(copy);
        }
        if failed {
            return Err(Failed);
        }
    }
    Ok(())
}
