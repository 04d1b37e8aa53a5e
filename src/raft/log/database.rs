//! A sled database, opened with care: what sled leaves to those who use it.
//!
//! The log and [`DurableMap`](crate::raft::durable_map::DurableMap) open theirs here. None of it repairs anything; it sees to it that
//! a database which is not durable, or not whole, is noticed.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use super::panics;
use crate::raft::files;

/// Keeps other processes out of a directory, for as long as it lives.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
}

/// Why a directory was not locked.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// Another process has it.
    InUse,
    /// The system refused.
    Io(io::Error),
}

/// Why work on files that may be damaged came to nothing.
#[derive(Debug)]
pub(crate) enum Stumbled {
    /// The thread could not be started.
    NotStarted(io::Error),
    /// It did not return in time, and may never.
    Late,
    /// It panicked, with this message.
    Panicked(String),
}

impl LockFile {
    pub(crate) fn take(directory: &Path) -> Result<Self, NotLocked> {
        let path = directory.join("lock");
        Self::lock(File::options().create(true).truncate(false).write(true).open(path).map_err(NotLocked::Io)?)
    }

    /// The same, without a file: nothing in the directory changes.
    pub(crate) fn take_whole(directory: &Path) -> Result<Self, NotLocked> {
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
        // To close the file is not enough: a process that another thread has just forked off has it too, until it calls `exec`.
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// Whether there is something in a directory. One that does not exist is empty.
pub(crate) fn is_occupied(directory: &Path) -> bool {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// sled writes its snapshots aside as `snap.….generating`. A kill leaves one, which sled then takes for a finished one.
pub(crate) fn delete_unfinished(database: &Path) -> io::Result<()> {
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

/// sled writes its configuration first of all, in two pieces and without a sync. A log that is interrupted in its first moment has
/// half of it, and would be taken for a damaged one. Without a mark, and with nothing in sled's file, nothing was ever stored.
pub(crate) fn delete_unborn(database: &Path) -> io::Result<()> {
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

/// Does something that may stumble over damaged files on a thread that may panic, or hang.
pub(crate) fn guarded<T: Send + 'static>(
    thread_name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stumbled> {
    let (answer, answered) = mpsc::sync_channel(1);
    let work = move || {
        // Nobody waits any more if it took too long.
        let _ = answer.send(work());
    };
    let thread = thread::Builder::new().name(thread_name.to_owned()).spawn(work).map_err(Stumbled::NotStarted)?;
    match answered.recv_timeout(limit) {
        Ok(answer) => Ok(answer),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Stumbled::Late),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err().map_or_else(String::new, |panic| panics::message(&*panic));
            Err(Stumbled::Panicked(panic))
        }
    }
}

/// Opens it, or makes a new one. Whoever calls holds the lock of the directory that it is in.
pub(crate) fn open(database: &Path, cache_bytes: u64) -> sled::Result<sled::Db> {
    const PAUSE: Duration = Duration::from_millis(10);
    const PAUSES_MAX: u32 = 500;
    forget_cached(database)?;
    let config = sled::Config::new().path(database).flush_every_ms(None).cache_capacity(cache_bytes);
    let mut pauses = 0;
    loop {
        match config.open() {
            // sled locks its file too, and gives it up some time after it was closed: when its last background thread has let go.
            // We hold the directory's lock, so nobody else uses it.
            Err(sled::Error::Io(error))
                if error.to_string().contains("could not acquire lock") && pauses < PAUSES_MAX =>
            {
                pauses += 1;
                thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

/// What sled is about to read must be on the disk; see [`files::forget_cached`].
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

/// sled syncs neither its configuration nor the names of its files: after a power failure the database might be gone, or be taken
/// for one of other settings.
pub(crate) fn sync_names(directory: &Path, database: &Path) -> io::Result<()> {
    File::open(database.join("conf"))?.sync_all()?;
    files::sync_directory(database)?;
    files::sync_directory(directory)?;
    files::sync_directory(files::parent(directory))
}

/// Whether a flush calls our `fdatasync`; see `sync`. What is given writes something that differs each time, and flushes it.
pub(crate) fn is_durable(write_and_flush: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
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
