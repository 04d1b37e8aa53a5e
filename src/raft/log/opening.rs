//! Opening a log: what is checked before anything is served from it.
//!
//! sled answers damage with a panic, with an error, by losing entries silently, or not at all. A log that came back shorter, or
//! empty, would let its node vote twice in a term and break what the others rely on. So every entry is read and checked here, and
//! the whole is held against what is known from elsewhere: the commit index, the snapshot, and the high-water mark. Whatever does
//! not fit, the answer is one: this node does not start, and the message says what to do.
//!
//! In this order:
//! 1. take the lock, so that no second process is in these files;
//! 2. delete what a kill during an earlier opening left behind (sled would never open again, sled #1527);
//! 3. open sled, on a thread of its own, since it may panic or hang on damaged files;
//! 4. make the names of the new files durable, which sled does not do;
//! 5. see that a flush reaches the disk;
//! 6. read and check everything.

use std::{
    fs::{self, File},
    io, mem,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{
    disk::{Disk, SledDisk},
    mark::{Mark, MarkFile},
    memory::Recent,
    panics,
    tables::Tables,
    verify::{self, Recovered},
};
use crate::raft::{files, types::LogId};

/// Why a log was not opened. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the directory {} is in use by another process: stop that one first, or use another directory", directory.display())]
    Locked {
        /// The log's directory.
        directory: PathBuf,
    },
    /// The log is not what it was when it was last written. It must not be used again: what it has forgotten, others rely on.
    #[error(
        "the log in {} is damaged: {what}; do not start this member on it again: remove the member from the cluster, then add a \
         new one with a new id and an empty directory",
        directory.display()
    )]
    Damaged {
        /// The log's directory.
        directory: PathBuf,
        /// What was found.
        what: String,
    },
    /// A flush does not reach the disk on this system. Nothing would survive a power failure.
    #[error(
        "the log in {} would not be durable: sled's flush does not call this program's fdatasync; use an official build",
        directory.display()
    )]
    NotDurable {
        /// The log's directory.
        directory: PathBuf,
    },
    /// The system refused.
    #[error("the log in {} cannot be opened: {action}: {source}", directory.display())]
    Io {
        /// The log's directory.
        directory: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What an open log begins with.
pub(super) struct Opened {
    pub(super) tables: Tables<SledDisk>,
    pub(super) mark: MarkFile,
    pub(super) lock: LockFile,
    pub(super) blobs: PathBuf,
    pub(super) recovered: Recovered,
}

/// What the opening needs to know.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) directory: PathBuf,
    /// Up to where the newest snapshot reaches.
    pub(super) snapshot: Option<LogId>,
    pub(super) recent_bytes: usize,
    pub(super) open_limit: Duration,
}

/// sled's page cache. The log's own cache is what is read from, so it need not be large.
const SLED_CACHE_BYTES: u64 = 48 << 20;

/// Opens the log in a directory, or makes a new one there.
pub(super) fn open(request: &Request) -> Result<Opened, OpenError> {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::Io { directory: directory.clone(), action, source };

    fs::create_dir_all(directory).map_err(failed("making the directory"))?;
    let lock = LockFile::take(directory)?;
    let mark = MarkFile::read(directory.join("high-water")).map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidData {
            damaged(directory, format!("the file `high-water` cannot be read: {error}"))
        } else {
            failed("reading the file `high-water`")(error)
        }
    })?;
    let database = directory.join("sled");
    let blobs = database.join("blobs");
    delete_unfinished(&database).map_err(failed("deleting unfinished files of sled"))?;
    if mark.is_none() {
        delete_unborn(&database).map_err(failed("deleting unfinished files of sled"))?;
    }
    if is_occupied(&blobs) {
        return Err(damaged(
            directory,
            "sled's directory `blobs` is not empty, and what is in it was never synced".into(),
        ));
    }

    let (tables, recovered) = open_guarded(request, &database, mark.as_ref().map(MarkFile::mark).cloned())?;
    let last = recovered.last();
    let mark = match mark {
        Some(mark) => Ok(mark),
        None => MarkFile::create(directory.join("high-water")),
    };
    let mark = mark.and_then(|mut mark| mark.update(Mark { vote: recovered.vote, last }).map(|()| mark));
    match mark {
        Ok(mark) => Ok(Opened { tables, mark, lock, blobs, recovered }),
        Err(error) => {
            // sled would flush once more, and panic if that fails as well. Nothing that is not flushed was acknowledged; and no other
            // instance may come near these files while it is open.
            mem::forget((tables, lock));
            Err(failed("writing the file `high-water`")(error))
        }
    }
}

/// Whether there is something in a directory. One that does not exist is empty.
pub(super) fn is_occupied(directory: &Path) -> bool {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Keeps other processes out of a directory, for as long as it lives.
#[derive(Debug)]
pub(super) struct LockFile {
    _file: File,
}

impl LockFile {
    pub(super) fn take(directory: &Path) -> Result<Self, OpenError> {
        let failed =
            |source| OpenError::Io { directory: directory.to_owned(), action: "locking the file `lock`", source };
        let path = directory.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked { directory: directory.to_owned() }),
            Err(error) => Err(failed(error.into())),
        }
    }
}

/// sled writes its snapshots aside as `snap.….generating`. A kill leaves one, which sled then takes for a finished one.
fn delete_unfinished(database: &Path) -> io::Result<()> {
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
fn delete_unborn(database: &Path) -> io::Result<()> {
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

type Guarded = Result<(Tables<SledDisk>, Recovered), OpenError>;

/// Does all that may stumble over damaged files on a thread that may panic, or hang.
fn open_guarded(request: &Request, database: &Path, mark: Option<Mark>) -> Guarded {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::Io { directory: directory.clone(), action, source };
    let (answer, answered) = mpsc::sync_channel(1);
    let work = {
        let (request, database) = (request.clone(), database.to_owned());
        move || {
            let _advice = panics::advise(&request.directory);
            // Nobody waits any more if it took too long.
            let _ = answer.send(open_tables(&request, &database, mark));
        }
    };
    let thread = thread::Builder::new().name("log-open".to_owned()).spawn(work).map_err(failed("starting a thread"))?;
    match answered.recv_timeout(request.open_limit) {
        Ok(opened) => opened,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let source = io::Error::new(
                io::ErrorKind::TimedOut,
                format!("sled did not return within {:?}; if that repeats, the files are damaged", request.open_limit),
            );
            Err(failed("opening the database")(source))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err().map_or_else(String::new, |panic| panics::message(&*panic));
            // It does so too when a sync fails. Then the disk is to be mended, not the cluster.
            Err(damaged(
                directory,
                format!("sled panicked on it (unless that is an error of the disk itself): {panic}"),
            ))
        }
    }
}

fn open_tables(request: &Request, database: &Path, mark: Option<Mark>) -> Guarded {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::Io { directory: directory.clone(), action, source };
    let broken = |error: io::Error| match is_damage(&error) {
        true => damaged(directory, error.to_string()),
        false => failed("reading and checking it")(error),
    };

    let sled = open_sled(database).map_err(|error| match error {
        sled::Error::Io(source) => failed("opening the database")(source),
        sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. } => broken(error.into()),
    })?;
    sync_names(directory, database).map_err(failed("syncing the directory"))?;

    let mut tables = Tables { disk: SledDisk::new(&sled).map_err(broken)? };
    // The trees keep the database open. Closing it is then a matter of dropping them.
    drop(sled);
    begin(&mut tables, mark.as_ref()).map_err(broken)?;
    if !is_durable(&mut tables).map_err(failed("writing to the database"))? {
        return Err(OpenError::NotDurable { directory: directory.clone() });
    }
    let recent = Recent::new(request.recent_bytes);
    let recovered = verify::verify(&mut tables, &mark.unwrap_or_default(), request.snapshot, recent).map_err(broken)?;
    Ok((tables, recovered))
}

/// Whether an error is about what the files hold. All others come from the system: a full disk takes no log away, and whoever reads
/// the message must not give up a member for it.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        // sled has the first for corruption, and the others for trees that are gone and for its own bugs.
        io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotFound
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Other
    )
}

fn open_sled(database: &Path) -> sled::Result<sled::Db> {
    const PAUSE: Duration = Duration::from_millis(10);
    const PAUSES_MAX: u32 = 500;
    let config = sled::Config::new().path(database).flush_every_ms(None).cache_capacity(SLED_CACHE_BYTES);
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

/// sled syncs neither its configuration nor the names of its files: after a power failure the database might be gone, or be taken
/// for one of other settings.
fn sync_names(directory: &Path, database: &Path) -> io::Result<()> {
    File::open(database.join("conf"))?.sync_all()?;
    files::sync_directory(database)?;
    files::sync_directory(directory)?;
    files::sync_directory(files::parent(directory))
}

/// Tells a new database from one that was emptied, and marks a new one as ours.
fn begin<D: Disk>(tables: &mut Tables<D>, mark: Option<&Mark>) -> io::Result<()> {
    let is_blank = tables.is_blank()?;
    match (tables.is_formatted()?, mark) {
        (true, Some(_)) => Ok(()),
        // The mark is made before anything is stored. A crash may come between the database and the mark, but not later.
        (true, None) if is_blank => Ok(()),
        (true, None) => Err(super::tables::damaged("the file `high-water` is missing")),
        (false, None) if is_blank => {
            tables.set_formatted()?;
            tables.disk.flush()
        }
        (false, _) => Err(super::tables::damaged("the database was emptied, or is not one of this program")),
    }
}

/// Whether a flush calls our `fdatasync`; see `sync`.
fn is_durable<D: Disk>(tables: &mut Tables<D>) -> io::Result<bool> {
    let before = sync_calls();
    tables.write_self_test()?;
    tables.disk.flush()?;
    Ok(cfg!(not(target_os = "linux")) || sync_calls() > before)
}

fn sync_calls() -> u64 {
    #[cfg(target_os = "linux")]
    return super::sync::calls();
    #[cfg(not(target_os = "linux"))]
    0
}

fn damaged(directory: &Path, what: String) -> OpenError {
    OpenError::Damaged { directory: directory.to_owned(), what }
}
