//! Opening a sled database with the checks that sled leaves to its callers.
//!
//! The log and [`DurableMap`](crate::durable_map::DurableMap) use it. Nothing here repairs a database, but a database that is
//! not durable or not complete is noticed.

use std::{
    fs::{self, DirEntry, File},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
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
    /// The work made no step in time, and may never do so.
    Late,
    /// The work panicked, with this message.
    Panicked(String),
}

/// Why the files of a database were not prepared.
#[derive(Debug)]
pub enum Unprepared {
    /// sled's directory `blobs` is not empty. Its files were never synced.
    Blobs,
    /// The operating system returned an error.
    Io(io::Error),
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

/// The name of sled's directory for large pages.
pub const BLOBS: &str = "blobs";

/// Whether a directory has entries. A directory that does not exist has none.
pub fn is_occupied(directory: &Path) -> bool {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The entries of a directory. A directory that does not exist has none.
fn entries(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(entries.into_iter().flatten())
}

/// Deletes unfinished snapshots of sled. sled writes them aside as `snap.….generating`. A kill can leave one, and sled
/// would take it for a finished snapshot.
fn delete_unfinished(database: &Path) -> io::Result<()> {
    for entry in entries(database)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }

    Ok(())
}

/// Prepares the files of a database for sled: unfinished ones are deleted, and pages that were never synced are refused. With `is_new`,
/// nothing was ever stored, so what an interrupted opening left is deleted too.
pub fn prepare(database: &Path, is_new: bool) -> Result<(), Unprepared> {
    delete_unfinished(database).map_err(Unprepared::Io)?;
    if is_new {
        delete_unwritten(database).map_err(Unprepared::Io)?;
    }
    if is_occupied(&database.join(BLOBS)) { Err(Unprepared::Blobs) } else { Ok(()) }
}

/// Deletes the configuration of a database that never stored anything.
///
/// sled writes its configuration first, in two pieces and without a sync. A log that is interrupted then has half of it, and
/// would be taken for damaged. Without a mark, and with an empty file of sled, nothing was ever stored.
fn delete_unwritten(database: &Path) -> io::Result<()> {
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

/// Bytes that the slowest disk on which a database is opened reads in a second.
const READ_PER_SECOND_MIN: u64 = 16 << 20;

/// How long sled may take to open this database: `limit`, and the time in which a slow disk reads all of it. sled cannot be asked how far
/// it has come, and begins again at each attempt: with a fixed limit a large database on a slow disk would never open.
pub fn opening_limit(database: &Path, limit: Duration) -> Duration {
    let bytes = fs::metadata(database.join("db")).map_or(0, |file| file.len());
    limit.saturating_add(Duration::from_secs(bytes / READ_PER_SECOND_MIN))
}

/// The steps that guarded work has made. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts a step: the work goes on.
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Looks at the progress of guarded work within its limit. They are counted, instead of the time: a suspended process must not count as
/// late.
const LOOKS: u32 = 4;

/// Runs work that may panic or hang on damaged files, on a thread of its own. It may take as long as it needs, if no step takes longer than
/// `limit`.
pub fn guarded<T: Send + 'static>(
    thread_name: &str,
    limit: Duration,
    work: impl FnOnce(&Progress) -> T + Send + 'static,
) -> Result<T, GuardedError> {
    let (answer, answered) = mpsc::sync_channel(1);
    let progress = Progress::default();
    let work = {
        let progress = progress.clone();
        move || {
            // The receiver is gone if the work took too long.
            let _ = answer.send(work(&progress));
        }
    };

    let thread = thread::Builder::new().name(thread_name.to_owned()).spawn(work).map_err(GuardedError::NotStarted)?;

    let mut seen = progress.steps();
    let mut looks = 0;
    while looks < LOOKS {
        match answered.recv_timeout(limit / LOOKS) {
            Ok(answer) => return Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let steps = progress.steps();
                looks = if steps == seen { looks + 1 } else { 0 };
                seen = steps;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = thread.join().err().map_or_else(String::new, |panic| panics::message(&*panic));
                return Err(GuardedError::Panicked(panic));
            }
        }
    }
    Err(GuardedError::Late)
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

/// Whether an error is about the content of the files. All other errors come from the operating system: a full disk does not damage a
/// database, and a message must not advise to give it up.
pub fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        // sled maps corruption to the first kind, missing trees and its own bugs to the others.
        io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotFound
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Other
    )
}

/// Makes sure that sled reads what is on the disk. [`files::forget_cached`] says why that is not obvious.
fn forget_cached(database: &Path) -> io::Result<()> {
    for entry in entries(database)? {
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

    /// The pause of work that goes on, and the limit of a step, which is far longer, and shorter than all of the work.
    const PAUSE: Duration = Duration::from_millis(10);
    const LIMIT: Duration = Duration::from_millis(800);

    #[test]
    fn work_that_goes_on_is_not_late_however_long_it_takes() {
        let steps = guarded("test", LIMIT, |progress| {
            for _ in 0..3 * LIMIT.as_millis() / PAUSE.as_millis() {
                #[expect(clippy::disallowed_methods, reason = "the thread has nothing else to do")]
                thread::sleep(PAUSE);
                progress.step();
            }
            progress.steps()
        });
        assert_eq!(steps.unwrap(), 240);
    }

    #[test]
    fn work_that_stands_still_is_late() {
        let (_open, never) = mpsc::channel::<()>();
        let stuck = guarded("test", LIMIT / 8, move |progress| {
            progress.step();
            never.recv()
        });
        assert!(matches!(stuck, Err(GuardedError::Late)), "{stuck:?}");
    }

    #[test]
    fn a_large_database_may_take_longer() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(opening_limit(directory.path(), LIMIT), LIMIT, "there is none");
        let file = File::create(directory.path().join("db")).unwrap();
        file.set_len(100 * READ_PER_SECOND_MIN).unwrap();
        assert_eq!(opening_limit(directory.path(), LIMIT), LIMIT + Duration::from_secs(100));
    }
}
