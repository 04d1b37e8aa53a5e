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
//! 3. drop what the kernel has of the files in memory, so that all of it is read from the disk;
//! 4. open sled, on a thread of its own, since it may panic or hang on damaged files;
//! 5. make the names of the new files durable, which sled does not do;
//! 6. see that a flush reaches the disk;
//! 7. move into sled what only the journal has;
//! 8. read and check everything.

use std::{
    io, mem,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    database::{self, LockFile, NotLocked, Stumbled},
    disk::{Disk, SledDisk},
    journaled::Journaled,
    mark::{Mark, MarkFile},
    memory::Recent,
    panics::{self, Doing, FREE_SPACE, tells_of_full_disk},
    tables::Tables,
    verify::{self, Recovered},
};
use crate::raft::{
    files,
    identity::{Incarnation, LogOwner, Start},
    types::LogId,
};

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
    /// It is not the log that belongs to this data directory, or an older copy of it.
    #[error(
        "the log in {} is not the one that this node had: {what}; put its own data back, all of the data directory from one moment and the \
         newest that there is, or leave this node stopped: the cluster serves while most of its members run",
        directory.display()
    )]
    NotOwn {
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
    /// sled did not come to an end, as it does on some damaged files.
    #[error(
        "the log in {} was not opened within {limit:?}: if its disk was busy or stuck, start this member again; if that repeats, the \
         files are damaged: remove the member from the cluster, then add a new one with a new id and an empty directory",
        directory.display()
    )]
    Late {
        /// The log's directory.
        directory: PathBuf,
        /// How long it was given.
        limit: Duration,
    },
    /// The disk is full.
    #[error("the log in {} cannot be opened: the disk is full: {FREE_SPACE} ({source})", directory.display())]
    Full {
        /// The log's directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
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

impl OpenError {
    pub(super) fn io(directory: &Path, action: &'static str, source: io::Error) -> Self {
        let directory = directory.to_owned();
        match tells_of_full_disk(&source) {
            true => Self::Full { directory, source },
            false => Self::Io { directory, action, source },
        }
    }
}

/// What an open log begins with.
pub(super) struct Opened {
    pub(super) tables: Tables<Store>,
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
    /// The data directory that it must belong to.
    pub(super) owner: Option<LogOwner>,
    pub(super) recent_bytes: usize,
    pub(super) journal_bytes: u64,
    pub(super) open_limit: Duration,
}

/// sled's page cache. The log's own cache is what is read from, so it need not be large.
const SLED_CACHE_BYTES: u64 = 8 << 20;

/// Opens the log in a directory, or makes a new one there.
pub(super) fn open(request: &Request) -> Result<Opened, OpenError> {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::io(directory, action, source);

    files::create_directory(directory).map_err(failed("making the directory"))?;
    let lock = LockFile::take(directory).map_err(|not_locked| match not_locked {
        NotLocked::InUse => OpenError::Locked { directory: directory.clone() },
        NotLocked::Io(error) => failed("locking the file `lock`")(error),
    })?;
    let mark = MarkFile::read(directory.join("high-water")).map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidData {
            damaged(directory, format!("the file `high-water` cannot be read: {error}"))
        } else {
            failed("reading the file `high-water`")(error)
        }
    })?;
    let database = directory.join("sled");
    let blobs = database.join("blobs");
    database::delete_unfinished(&database).map_err(failed("deleting unfinished files of sled"))?;
    if mark.is_none() {
        database::delete_unborn(&database).map_err(failed("deleting unfinished files of sled"))?;
    }
    if database::is_occupied(&blobs) {
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

/// sled, behind its journal.
pub(super) type Store = Journaled<SledDisk>;
type Guarded = Result<(Tables<Store>, Recovered), OpenError>;

/// Does all that may stumble over damaged files on a thread that may panic, or hang.
fn open_guarded(request: &Request, database: &Path, mark: Option<Mark>) -> Guarded {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::io(directory, action, source);
    let work = {
        let (request, database) = (request.clone(), database.to_owned());
        move || {
            let _advice = panics::advise(&request.directory, Doing::Opening);
            open_tables(&request, &database, mark)
        }
    };
    database::guarded("log-open", request.open_limit, work).unwrap_or_else(|stumbled| match stumbled {
        Stumbled::NotStarted(error) => Err(failed("starting a thread")(error)),
        Stumbled::Late => Err(OpenError::Late { directory: directory.clone(), limit: request.open_limit }),
        Stumbled::Panicked(panic) if tells_of_full_disk(&panic) => {
            Err(OpenError::Full { directory: directory.clone(), source: io::Error::other(panic) })
        }
        // It does so too when a sync fails. Then the disk is to be mended, not the cluster.
        Stumbled::Panicked(panic) => Err(damaged(
            directory,
            format!("sled panicked on it (unless that is an error of the disk itself): {panic}"),
        )),
    })
}

fn open_tables(request: &Request, database: &Path, mark: Option<Mark>) -> Guarded {
    let directory = &request.directory;
    let failed = |action| move |source| OpenError::io(directory, action, source);
    let broken = |error: io::Error| match is_damage(&error) {
        true => damaged(directory, error.to_string()),
        false => failed("reading and checking it")(error),
    };

    let sled = database::open(database, SLED_CACHE_BYTES).map_err(|error| match error {
        sled::Error::Io(source) => failed("opening the database")(source),
        sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. } => broken(error.into()),
    })?;
    database::sync_names(directory, database).map_err(failed("syncing the directory"))?;

    let mut tables = Tables::new(SledDisk::new(&sled).map_err(broken)?);
    // The trees keep the database open. Closing it is then a matter of dropping them.
    drop(sled);
    begin(&mut tables, mark.as_ref()).map_err(broken)?;
    let is_durable = database::is_durable(|| {
        // Also one of before there was a journal is one with it from now on.
        tables.set_formatted()?;
        tables.write_self_test()?;
        tables.disk.flush()
    });
    if !is_durable.map_err(failed("writing to the database"))? {
        return Err(OpenError::NotDurable { directory: directory.clone() });
    }
    let disk = Journaled::open(tables.disk, directory, request.journal_bytes).map_err(broken)?;
    let mut tables = Tables::new(disk);
    if mark.is_none() && !tables.is_blank().map_err(broken)? {
        return Err(damaged(directory, MARK_MISSING.to_owned()));
    }
    let recent = Recent::new(request.recent_bytes);
    let is_new = mark.is_none();
    let recovered = verify::verify(&mut tables, &mark.unwrap_or_default(), request.snapshot, recent).map_err(broken)?;
    if let Some(owner) = &request.owner {
        check_owner(directory, owner, tables.owner().map_err(broken)?, is_new)?;
        tables.set_owner(owner.incarnation, owner.next).map_err(failed("writing to the database"))?;
        tables.disk.flush().map_err(failed("writing to the database"))?;
    }
    Ok((tables, recovered))
}

/// The log and the identity of a data directory name each other, and note each start: neither can be lost, or put back, without the other.
fn check_owner(
    directory: &Path,
    owner: &LogOwner,
    noted: Option<(Incarnation, Start)>,
    is_new: bool,
) -> Result<(), OpenError> {
    let not_own = |what: String| Err(OpenError::NotOwn { directory: directory.to_owned(), what });
    match noted {
        None if (is_new || owner.was_noted) && !owner.may_be_new => {
            not_own("it is gone, and what this node promised with it".to_owned())
        }
        // It is new, or of before this was noted.
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

const MARK_MISSING: &str = "the file `high-water` is missing";

/// Tells a new database from one that was emptied, and marks a new one as ours.
fn begin<D: Disk>(tables: &mut Tables<D>, mark: Option<&Mark>) -> io::Result<()> {
    let is_blank = tables.is_blank()?;
    match (tables.is_formatted()?, mark) {
        (true, Some(_)) => Ok(()),
        // The mark is made before anything is stored. A crash may come between the database and the mark, but not later.
        (true, None) if is_blank => Ok(()),
        (true, None) => Err(super::tables::damaged(MARK_MISSING)),
        (false, None) if is_blank => {
            tables.set_formatted()?;
            tables.disk.flush()
        }
        (false, _) => Err(super::tables::damaged("the database was emptied, or is not one of this program")),
    }
}

fn damaged(directory: &Path, what: String) -> OpenError {
    OpenError::Damaged { directory: directory.to_owned(), what }
}
