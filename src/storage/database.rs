//! Opening a sled database with the checks that sled leaves to its callers.
//!
//! The log and [`DurableMap`](crate::durable_map::DurableMap) use it. Nothing here repairs a database, but a database that is
//! not durable or not complete is noticed.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use super::panics;
use crate::files;

/// The error that sled reports.
pub use sled::Error as SledError;

/// An exclusive lock on a directory against other processes. It is held until the value is dropped.
#[derive(Debug)]
pub struct LockFile {
    file: File,
}

/// Why a directory was not locked.
#[derive(Debug)]
pub enum NotLocked {
    /// Another process has the lock.
    InUse,
    /// The operating system returned an error.
    Io(io::Error),
}

/// Why guarded work on files that may be damaged gave no result.
#[derive(Debug)]
pub enum GuardedError {
    /// The thread could not be started.
    NotStarted(io::Error),
    /// The work did not return in time, and may never do so.
    Late,
    /// The work panicked, with this message.
    Panicked(String),
}

impl LockFile {
    /// Locks the file `lock` in this directory. The file is made if there is none.
    pub fn take(directory: &Path) -> Result<Self, NotLocked> {
        let path = directory.join("lock");
        Self::lock(File::options().create(true).truncate(false).write(true).open(path).map_err(NotLocked::Io)?)
    }

    /// Locks the directory itself, without a file. Nothing in the directory changes.
    pub fn take_directory(directory: &Path) -> Result<Self, NotLocked> {
        Self::lock(File::open(directory).map_err(NotLocked::Io)?)
    }

    fn lock(file: File) -> Result<Self, NotLocked> {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(NotLocked::InUse),
            Err(error) => Err(NotLocked::Io(error.into())),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing the file is not enough. A process that another thread has just forked has it, too, until it calls `exec`.
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// Whether a directory has entries. A directory that does not exist has none.
pub fn is_occupied(directory: &Path) -> bool {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Deletes unfinished snapshots of sled. sled writes them aside as `snap.….generating`. A kill can leave one, and sled
/// would take it for a finished snapshot.
pub fn delete_unfinished(database: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(database) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };

    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }

    Ok(())
}

/// Deletes the configuration of a database that never stored anything.
///
/// sled writes its configuration first, in two pieces and without a sync. A log that is interrupted then has half of it, and
/// would be taken for damaged. Without a mark, and with an empty file of sled, nothing was ever stored.
pub fn delete_unwritten(database: &Path) -> io::Result<()> {
    let is_empty = match fs::metadata(database.join("db")) {
        Ok(file) => file.len() == 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    match is_empty.then(|| fs::remove_file(database.join("conf"))) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Some(_) | None => Ok(()),
    }
}

/// Runs work that may panic or hang on damaged files, on a thread of its own, for at most `limit`.
pub fn guarded<T: Send + 'static>(
    thread_name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GuardedError> {
    let (answer, answered) = mpsc::sync_channel(1);
    let work = move || {
        // The receiver is gone if the work took too long.
        let _ = answer.send(work());
    };

    let thread = thread::Builder::new().name(thread_name.to_owned()).spawn(work).map_err(GuardedError::NotStarted)?;

    match answered.recv_timeout(limit) {
        Ok(answer) => Ok(answer),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(GuardedError::Late),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err().map_or_else(String::new, |panic| panics::message(&*panic));
            Err(GuardedError::Panicked(panic))
        }
    }
}

/// Opens or creates a database. The caller holds the lock of its directory.
pub fn open(database: &Path, cache_bytes: u64) -> sled::Result<sled::Db> {
    const PAUSE: Duration = Duration::from_millis(10);
    const PAUSES_MAX: u32 = 500;
    forget_cached(database)?;

    let config = sled::Config::new().path(database).flush_every_ms(None).cache_capacity(cache_bytes);

    let mut pauses = 0;
    loop {
        match config.open() {
            // sled locks its file, too, and releases it only when its last background thread ends, some time after the database
            // was closed. We hold the directory's lock, so no other process uses it.
            Err(sled::Error::Io(error))
                if error.to_string().contains("could not acquire lock") && pauses < PAUSES_MAX =>
            {
                pauses += 1;
                #[expect(clippy::disallowed_methods, reason = "opening blocks its thread anyway, and runs in no task")]
                thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

/// Makes sure that sled reads what is on the disk. [`files::forget_cached`] says why that is not obvious.
fn forget_cached(database: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(database) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };

    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files::forget_cached(&entry.path())?;
        }
    }

    Ok(())
}

/// Syncs sled's configuration and the names of its files, because sled does not. Without it the database might be gone after a
/// power failure, or be taken for one with other settings.
pub fn sync_names(directory: &Path, database: &Path) -> io::Result<()> {
    File::open(database.join("conf"))?.sync_all()?;
    files::sync_directory(database)?;
    files::sync_directory(directory)?;
    files::sync_directory(files::parent(directory))
}

/// Whether a flush calls our `fdatasync`; see `sync`. `write_and_flush` writes a value that differs each time, and flushes it.
pub fn is_durable(write_and_flush: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
    let before = sync_calls();
    write_and_flush()?;
    Ok(cfg!(not(target_os = "linux")) || sync_calls() > before)
}

fn sync_calls() -> u64 {
    #[cfg(target_os = "linux")]
    return super::sync::calls();
    #[cfg(not(target_os = "linux"))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_up_even_if_a_forked_process_still_has_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let lock = LockFile::take(directory.path()).unwrap();
        assert!(matches!(LockFile::take(directory.path()), Err(NotLocked::InUse)));
        let forked = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(LockFile::take(directory.path()).is_ok());
        drop(forked);
    }
}
