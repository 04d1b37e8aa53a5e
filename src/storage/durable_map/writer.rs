//! The thread that owns the map's files.

use std::{io, mem, panic};

use tokio::sync::{mpsc, oneshot};

use crate::database::LockFile;

/// The maximum number of insertions in a group commit. Larger groups gain nothing.
const JOBS_PER_GROUP: usize = 128;

/// An insertion, and the channel for its result.
pub(super) struct PendingInsertion {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) answer: oneshot::Sender<io::Result<()>>,
}

/// The writer's view of sled. It is a trait because tests use one whose flush fails.
pub(super) trait MapBackend: Send + 'static {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Returns when all insertions are durable. After a failure the backend must not be used again, because the result of a
    /// second attempt says nothing about the first.
    fn flush(&mut self) -> io::Result<()>;
}

/// The backend, and the lock on its directory.
pub(super) struct MapWriter<T> {
    backend: T,
    lock: Option<LockFile>,
}

impl<T: MapBackend> MapWriter<T> {
    pub(super) fn new(backend: T, lock: LockFile) -> Self {
        Self { backend, lock: Some(lock) }
    }

    #[cfg(test)]
    pub(super) fn unlocked(backend: T) -> Self {
        Self { backend, lock: None }
    }

    /// Serves the queue until all senders are gone, then closes the files. The lock is released last.
    pub(super) fn run(self, queue: mpsc::Receiver<PendingInsertion>) {
        let Self { backend, lock } = self;
        // After a failure or a panic the backend must not be dropped. sled would flush once more, and might hang.
        let mut backend = mem::ManuallyDrop::new(backend);
        let served = panic::catch_unwind(panic::AssertUnwindSafe(|| serve(&mut *backend, queue)));
        match served {
            Ok(Ok(())) => drop(mem::ManuallyDrop::into_inner(backend)),
            // The backend is still open, in an unknown state. The lock keeps other instances out.
            Ok(Err(Failed)) | Err(_) => mem::forget(lock),
        }
    }
}

/// A write failed, and the callers have been told the reason.
struct Failed;

/// Serves the queue until a failure. When it returns, the queue is dropped, and so calls that wait in it and later ones fail.
fn serve(backend: &mut impl MapBackend, mut queue: mpsc::Receiver<PendingInsertion>) -> Result<(), Failed> {
    while let Some(first) = queue.blocking_recv() {
        let mut group = vec![first];
        while group.len() < JOBS_PER_GROUP
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }

        let written =
            group.iter().try_for_each(|job| backend.insert(&job.key, &job.value)).and_then(|()| backend.flush());

        let failed = written.is_err();
        for PendingInsertion { answer, .. } in group {
            let copy = written.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()));
            // The caller may have stopped waiting.
            let _ = answer.send(copy);
        }

        if failed {
            return Err(Failed);
        }
    }
    Ok(())
}
