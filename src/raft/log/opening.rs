//! Opening a log: the checks before it is used.
//!
//! sled responds to damage with a panic, with an error, by losing entries silently, or not at all. A log that came back shorter, or
//! empty, would let its node vote twice in a term and break promises to other members. So every entry is read and checked here, and the
//! log is compared with the commit index, the snapshot, and the high-water mark. On any contradiction the node does not start, and the
//! message says what to do.
//!
//! The steps, in this order:
//! 1. take the lock, so that no second process uses these files;
//! 2. delete unfinished files of an opening that was killed (sled would never open again, sled #1527);
//! 3. drop the files' pages from the kernel's cache, so that all of it is read from the disk;
//! 4. open sled, on a thread of its own, since it may panic or hang on damaged files;
//! 5. make the names of the new files durable, which sled does not do;
//! 6. check that a flush reaches the disk;
//! 7. move records that only the journal has into sled;
//! 8. read and check everything.

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    log_trees::LogTrees,
    mark::{LogMark, MarkFile},
    memory::RecentEntries,
    verify::{self, Recovered},
};
use crate::identity::{Incarnation, LogOwner, Start};
use crate::types::LogId;
use lockkeeper_storage::{
    database::{self, GuardedError, LockFile, NotLocked, Progress, SledError, Unprepared},
    disk::{Disk, SledDisk},
    files,
    journaled::Journaled,
    panics::{self, Doing, NoRoom},
};

/// Why a log was not opened. Nothing was changed or lost.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// Another process has it open.
    #[error("the directory {} is in use by another process: stop that process, or use another directory", directory.display())]
    Locked {
        /// The log's directory.
        directory: PathBuf,
    },
    /// The log is not as it was last written. It must not be used again: other members rely on what it may have lost.
    #[error(
        "the log in {} is damaged: {what}; replace this node with `lockkeeper member replace`, since other members rely on entries and \
         votes that it may have lost",
        directory.display()
    )]
    Damaged {
        /// The log's directory.
        directory: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// The log does not belong to this data directory, or is an older copy.
    #[error(
        "the log in {} is not the one that this node had: {what}; put its own data back, all of the data directory from one moment and the \
         newest that there is, or replace this node with `lockkeeper member replace`",
        directory.display()
    )]
    NotOwn {
        /// The log's directory.
        directory: PathBuf,
        /// The damage.
        what: String,
    },
    /// A flush does not reach the disk on this system, so writes would not survive a power failure.
    #[error(
        "the log in {} would not be durable: sled's flush does not call this program's fdatasync; use an official build",
        directory.display()
    )]
    NotDurable {
        /// The log's directory.
        directory: PathBuf,
    },
    /// sled did not return, as on some damaged files, or reading the log came no further.
    #[error(
        "the log in {} was not opened: no progress within {limit:?}; if its disk was busy or stuck, start this node again; if that \
         repeats, the files are damaged: replace this node with `lockkeeper member replace`",
        directory.display()
    )]
    Late {
        /// The log's directory.
        directory: PathBuf,
        /// The time limit of a step.
        limit: Duration,
    },
    /// The disk is full, so the log cannot be written.
    #[error("the log in {} cannot be opened: {no_room} ({source})", directory.display())]
    Full {
        /// The log's directory.
        directory: PathBuf,
        /// Why.
        no_room: NoRoom,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system returned an error.
    #[error("the log in {} cannot be opened: {action}: {source}", directory.display())]
    Io {
        /// The log's directory.
        directory: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl LogOpenError {
    pub(super) fn io(directory: &Path, action: &'static str, source: io::Error) -> Self {
        let directory = directory.to_owned();
        match NoRoom::told_by(&source) {
            Some(no_room) => Self::Full { directory, no_room, source },
            None => Self::Io { directory, action, source },
        }
    }
}

/// The parts of an open log.
pub(super) struct OpenedLog {
    pub(super) trees: LogTrees<Store>,
    pub(super) mark: MarkFile,
    pub(super) lock: LockFile,
    pub(super) blobs: PathBuf,
    pub(super) recovered: Recovered,
}

/// The parameters of an opening.
#[derive(Clone, Debug)]
pub(super) struct OpenRequest {
    pub(super) directory: PathBuf,
    /// The last entry of the newest snapshot.
    pub(super) snapshot: Option<LogId>,
    /// The data directory that the log must belong to.
    pub(super) owner: Option<LogOwner>,
    pub(super) recent_bytes: usize,
    pub(super) journal_bytes: u64,
    pub(super) open_limit: Duration,
}

/// sled's page cache. Reads use the log's own cache, so it need not be large.
const SLED_CACHE_BYTES: u64 = 8 << 20;

/// The name of the file with the mark.
const HIGH_WATER: &str = "high-water";

/// Whether a log was ever opened to the end in this directory. One that was not has stored nothing.
pub(crate) fn is_begun(directory: &Path) -> io::Result<bool> {
    fs::exists(directory.join(HIGH_WATER))
}

/// Opens the log in a directory, or creates one there.
pub(super) fn open(request: &OpenRequest) -> Result<OpenedLog, LogOpenError> {
    let directory = &request.directory;
    let failed = |action| move |source| LogOpenError::io(directory, action, source);

    files::create_directory(directory).map_err(failed("making the directory"))?;
    let lock = LockFile::take(directory).map_err(|not_locked| match not_locked {
        NotLocked::InUse => LogOpenError::Locked { directory: directory.clone() },
        NotLocked::Io(error) => failed("locking the file `lock`")(error),
    })?;
    let mark = MarkFile::read(directory.join(HIGH_WATER)).map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidData {
            damaged(directory, format!("the file `high-water` cannot be read: {error}"))
        } else {
            failed("reading the file `high-water`")(error)
        }
    })?;
    let database = directory.join("sled");
    let blobs = database.join(database::BLOBS);
    // Nothing is stored before the mark exists: files without it belong to an opening that was killed, and nobody relies on them.
    database::prepare(&database, mark.is_none()).map_err(|unprepared| match unprepared {
        Unprepared::Io(error) => failed("deleting unfinished files of sled")(error),
        Unprepared::Blobs => {
            damaged(directory, "sled's directory `blobs` is not empty, and its files were never synced".into())
        }
    })?;

    let (trees, recovered) = open_guarded(request, &database, mark.as_ref().map(MarkFile::mark).cloned())?;
    let last = recovered.last();
    let mark = match mark {
        Some(mark) => Ok(mark),
        None => MarkFile::create(directory.join(HIGH_WATER)),
    };
    // The last mark may lag behind by many entries. All of them were read from the disk just now, so from here on none of them may be lost.
    let mark = mark.and_then(|mut mark| mark.update(LogMark { vote: recovered.vote, last }).map(|()| mark));
    match mark {
        Ok(mark) => Ok(OpenedLog { trees, mark, lock, blobs, recovered }),
        Err(error) => {
            // If dropped, sled would flush once more, and panic if that fails as well. Unflushed writes were not acknowledged. The lock
            // keeps other instances away while sled is open.
            mem::forget((trees, lock));
            Err(failed("writing the file `high-water`")(error))
        }
    }
}

/// sled, behind the journal.
pub(super) type Store = Journaled<SledDisk>;
type OpenedTrees = Result<(LogTrees<Store>, Recovered), LogOpenError>;

/// Runs the steps that may panic or hang on damaged files on a thread of their own. sled's opening is one step; then each entry that is
/// read and checked is one, so that a long log needs no longer limit.
fn open_guarded(request: &OpenRequest, database: &Path, mark: Option<LogMark>) -> OpenedTrees {
    let directory = &request.directory;
    let failed = |action| move |source| LogOpenError::io(directory, action, source);

    let work = {
        let request = request.clone();
        let database = database.to_owned();
        move |progress: &Progress| {
            let _advice = panics::advise(&request.directory, Doing::Opening);
            open_tables(&request, &database, mark, progress)
        }
    };

    let limit = database::opening_limit(database, request.open_limit);
    database::guarded("log-open", limit, work).unwrap_or_else(|stumbled| match stumbled {
        GuardedError::NotStarted(error) => Err(failed("starting a thread")(error)),
        GuardedError::Late => Err(LogOpenError::Late { directory: directory.clone(), limit }),
        GuardedError::Panicked(panic) => match NoRoom::told_by(&panic) {
            Some(no_room) => {
                Err(LogOpenError::Full { directory: directory.clone(), no_room, source: io::Error::other(panic) })
            }
            // sled also panics when a sync fails. Then the disk must be repaired; the log may be intact.
            None => {
                Err(damaged(directory, format!("sled panicked on it (unless the disk itself reports errors): {panic}")))
            }
        },
    })
}

fn open_tables(request: &OpenRequest, database: &Path, mark: Option<LogMark>, progress: &Progress) -> OpenedTrees {
    let directory = &request.directory;
    let failed = |action| move |source| LogOpenError::io(directory, action, source);
    let broken = |error: io::Error| {
        if database::is_damage(&error) {
            damaged(directory, error.to_string())
        } else {
            failed("reading and checking it")(error)
        }
    };

    let sled = database::open(database, SLED_CACHE_BYTES).map_err(|error| match error {
        SledError::Io(source) => failed("opening the database")(source),
        SledError::CollectionNotFound(_)
        | SledError::Unsupported(_)
        | SledError::ReportableBug(_)
        | SledError::Corruption { .. } => broken(error.into()),
    })?;
    progress.step();
    database::sync_names(directory, database).map_err(failed("syncing the directory"))?;

    let mut trees = LogTrees::new(SledDisk::new(&sled).map_err(broken)?);
    // The trees keep the database open: dropping them closes it.
    drop(sled);
    begin(&mut trees, mark.as_ref()).map_err(broken)?;

    let is_durable = database::is_durable(|| {
        // This also upgrades the format of a log from before the journal.
        trees.set_formatted()?;
        trees.write_self_test()?;
        trees.disk.flush()
    });
    if !is_durable.map_err(failed("writing to the database"))? {
        return Err(LogOpenError::NotDurable { directory: directory.clone() });
    }
    progress.step();
    let disk = Journaled::open(trees.disk, directory, request.journal_bytes).map_err(broken)?;
    progress.step();
    let mut trees = LogTrees::new(disk);
    if mark.is_none() && !trees.is_blank().map_err(broken)? {
        return Err(damaged(directory, MARK_MISSING.to_owned()));
    }

    let recent = RecentEntries::new(request.recent_bytes);
    let is_new = mark.is_none();
    let mark = mark.unwrap_or_default();
    let recovered = verify::verify(&mut trees, &mark, request.snapshot, recent, progress).map_err(broken)?;
    if let Some(owner) = &request.owner {
        check_owner(directory, owner, trees.owner().map_err(broken)?, is_new)?;
        // After all checks: a log that is refused keeps the start by which it is found out again.
        trees.set_owner(owner.incarnation, owner.next).map_err(failed("writing to the database"))?;
        trees.disk.flush().map_err(failed("writing to the database"))?;
    }
    Ok((trees, recovered))
}

/// The log and the identity of a data directory name each other, and both record each start: neither can be lost, or restored from a
/// copy, without the other.
fn check_owner(
    directory: &Path,
    owner: &LogOwner,
    noted: Option<(Incarnation, Start)>,
    is_new: bool,
) -> Result<(), LogOpenError> {
    let not_own = |what: String| Err(LogOpenError::NotOwn { directory: directory.to_owned(), what });

    match noted {
        None if (is_new || owner.was_noted) && !owner.may_be_new => {
            not_own("it is gone, with this node's votes and acknowledged entries".to_owned())
        }
        // The log is new, or from a version that did not record this.
        None => Ok(()),
        Some((incarnation, _)) if incarnation != owner.incarnation => {
            not_own(format!("it belongs to incarnation {incarnation}, and this node is {}", owner.incarnation))
        }
        Some((_, start)) if !owner.last.is_empty() && !owner.last.contains(&start) => not_own(format!(
            "it was last used by start {start}, the data directory was not: one of the two is an older copy"
        )),
        Some(_) => Ok(()),
    }
}

const MARK_MISSING: &str = "the file `high-water` is missing";

/// Tells a new database from an emptied one, and marks a new one.
fn begin<D: Disk>(trees: &mut LogTrees<D>, mark: Option<&LogMark>) -> io::Result<()> {
    let is_blank = trees.is_blank()?;
    match (trees.is_formatted()?, mark) {
        (true, Some(_)) => Ok(()),
        // The mark is created before anything is stored. A crash may come between creating the database and the mark, but not later.
        (true, None) if is_blank => Ok(()),
        (true, None) => Err(files::damaged(MARK_MISSING)),
        (false, None) if is_blank => {
            trees.set_formatted()?;
            trees.disk.flush()
        }
        (false, _) => Err(files::damaged("the database was emptied, or is not one of this program")),
    }
}

fn damaged(directory: &Path, what: String) -> LogOpenError {
    LogOpenError::Damaged { directory: directory.to_owned(), what }
}
