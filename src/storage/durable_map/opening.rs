//! Opening a map: the checks before anything is written to it.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{MapContents, writer::MapBackend};
use crate::{
    database::{self, GuardedError, LockFile, NotLocked, Progress, Unprepared},
    files,
    panics::NoRoom,
};

/// Why a map on disk was not opened. Nothing was changed or lost.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the directory open, or this one has.
    #[error("the directory {} is in use, by this process or another: close it there, or choose another directory", directory.display())]
    Locked {
        /// The directory.
        directory: PathBuf,
    },
    /// The contents are not as they were last written, so insertions may be lost.
    #[error(
        "the data in {} is damaged: {what}; start with an empty directory only if no request that was admitted before can come again",
        directory.display()
    )]
    Damaged {
        /// The directory.
        directory: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// A flush does not reach the disk on this system, so insertions would not survive a power failure.
    #[error(
        "data in {} would not be durable: sled's flush does not call this program's fdatasync; link the program as its own build does",
        directory.display()
    )]
    NotDurable {
        /// The directory.
        directory: PathBuf,
    },
    /// sled did not return, as on some damaged files, or reading the data came no further.
    #[error(
        "the data in {} was not opened: no progress within {limit:?}; if its disk was busy or stuck, open it again, and keep it as it is",
        directory.display()
    )]
    Late {
        /// The directory.
        directory: PathBuf,
        /// The time limit of a step.
        limit: Duration,
    },
    /// Nothing more can be written. No insertion is lost.
    #[error("the data in {} cannot be opened: {why}; nothing is lost: make room, then open it again ({source})", directory.display())]
    Full {
        /// The directory.
        directory: PathBuf,
        /// Why, for people.
        why: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system returned an error.
    #[error("the directory {} cannot be opened: {action}: {source}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn io(directory: &Path, action: &'static str, source: io::Error) -> Self {
        Self::full(directory, source).unwrap_or_else(|source| Self::Io {
            directory: directory.to_owned(),
            action,
            source,
        })
    }

    /// The error of a write for which there is no room, or the error itself if it is another one.
    fn full(directory: &Path, source: io::Error) -> Result<Self, io::Error> {
        let why = match NoRoom::told_by(&source) {
            Some(NoRoom::Disk) => "the disk is full",
            Some(NoRoom::FileSize) => "a file is as large as this process may make it",
            None => return Err(source),
        };
        Ok(Self::Full { directory: directory.to_owned(), why, source })
    }

    fn damaged(directory: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { directory: directory.to_owned(), what: what.into() }
    }
}

/// The parts of an open map.
pub(super) struct OpenedMap {
    pub(super) backend: Trees,
    pub(super) lock: LockFile,
    pub(super) contents: MapContents,
}

/// The size of sled's page cache in bytes. Nothing is read after the opening, so it need not be large.
const SLED_CACHE_BYTES: u64 = 8 << 20;
/// How long a step of the opening may take, beside the time in which sled reads its file. sled can hang on damaged files.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// The version of the values' format, and of the file [`MADE`].
const FORMAT: u8 = 1;
/// The name of a file beside sled. It exists from the moment at which the map may hold values.
pub(super) const MADE: &str = "made";
/// The name of sled's directory.
pub(super) const SLED: &str = "sled";
const SELF_TEST: &[u8] = b"self-test";
const FORMATTED: &[u8] = b"format";

/// Opens the map in a directory, or makes a new one there.
pub(super) fn open(directory: &Path) -> Result<OpenedMap, OpenError> {
    let failed = |action| move |source| OpenError::io(directory, action, source);
    files::create_directory(directory).map_err(failed("making the directory"))?;
    let lock = LockFile::take(directory).map_err(|not_locked| match not_locked {
        NotLocked::InUse => OpenError::Locked { directory: directory.to_owned() },
        NotLocked::Io(error) => failed("locking the file `lock`")(error),
    })?;

    let work = {
        let directory = directory.to_owned();
        move |progress: &Progress| open_trees(&directory, progress)
    };

    let limit = database::opening_limit(&directory.join(SLED), OPEN_LIMIT);
    let opened = database::guarded("durable-map-open", limit, work);
    let (backend, contents) = opened.unwrap_or_else(|error| Err(after_guarded(directory, limit, error)))?;
    Ok(OpenedMap { backend, lock, contents })
}

/// Why there is no map. Only damage is called so: whoever begins with an empty directory, as its message says, admits old tokens.
pub(super) fn after_guarded(directory: &Path, limit: Duration, error: GuardedError) -> OpenError {
    match error {
        GuardedError::NotStarted(error) => OpenError::io(directory, "starting a thread", error),
        GuardedError::Late => OpenError::Late { directory: directory.to_owned(), limit },
        // sled panics on damage, and where it finds no room.
        GuardedError::Panicked(panic) => match OpenError::full(directory, io::Error::other(panic)) {
            Ok(full) => full,
            Err(panic) => {
                OpenError::damaged(directory, format!("sled panicked on it (unless the disk reports errors): {panic}"))
            }
        },
    }
}

fn open_trees(directory: &Path, progress: &Progress) -> Result<(Trees, MapContents), OpenError> {
    let failed = |action| move |source| OpenError::io(directory, action, source);
    let broken = |error: io::Error| {
        if database::is_damage(&error) {
            OpenError::damaged(directory, error.to_string())
        } else {
            failed("reading and checking it")(error)
        }
    };
    let database = directory.join(SLED);
    let is_made = directory.join(MADE).try_exists().map_err(failed("looking for the file `made`"))?;
    // Nothing is stored before that file exists: without it these files belong to an opening that was killed, or had no room.
    database::prepare(&database, !is_made).map_err(|unprepared| match unprepared {
        Unprepared::Io(error) => failed("deleting unfinished files of sled")(error),
        Unprepared::Blobs => {
            OpenError::damaged(directory, "sled's directory `blobs` is not empty, and is never synced")
        }
    })?;

    let sled = database::open(&database, SLED_CACHE_BYTES).map_err(|error| match error {
        sled::Error::Io(source) => failed("opening the database")(source),
        sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. } => OpenError::damaged(directory, error.to_string()),
    })?;
    progress.step();
    database::sync_names(directory, &database).map_err(failed("syncing the directory"))?;

    let mut trees = Trees::new(&sled).map_err(failed("opening the tables"))?;
    if !database::is_durable(|| trees.write_self_test()).map_err(failed("writing to the database"))? {
        return Err(OpenError::NotDurable { directory: directory.to_owned() });
    }
    let is_formatted = trees.is_formatted().map_err(broken)?;
    begin(&mut trees, directory, is_made, is_formatted)?;
    let contents = trees.contents(progress).map_err(broken)?;
    Ok((trees, contents))
}

/// Tells a new map from an emptied one, and marks a new one.
fn begin(trees: &mut Trees, directory: &Path, is_made: bool, is_formatted: bool) -> Result<(), OpenError> {
    let failed = |action| move |source| OpenError::io(directory, action, source);

    match (is_made, is_formatted) {
        (true, true) => Ok(()),
        (true, false) => Err(OpenError::damaged(directory, "its database was emptied")),
        (false, _) if !trees.values.is_empty() => Err(OpenError::damaged(directory, "the file `made` is missing")),
        // The map is new, or its first opening was interrupted here. The database is marked first, so the file never exists
        // without the mark.
        (false, _) => {
            trees.set_formatted().map_err(failed("writing to the database"))?;
            files::replace(&directory.join(MADE), &[FORMAT]).map_err(failed("writing the file `made`"))
        }
    }
}

/// The map's two trees in one sled database: the values, and metadata.
pub(super) struct Trees {
    values: sled::Tree,
    meta: sled::Tree,
}

impl Trees {
    /// The trees keep the database open. Dropping them closes it.
    fn new(database: &sled::Db) -> io::Result<Self> {
        Ok(Self { values: database.open_tree("values")?, meta: database.open_tree("meta")? })
    }

    /// Writes a value that differs each time, to give a flush something to do.
    fn write_self_test(&mut self) -> io::Result<()> {
        let runs = self.meta.get(SELF_TEST)?.and_then(|runs| <[u8; 8]>::try_from(&*runs).ok());
        let runs = runs.map_or(0, u64::from_be_bytes).wrapping_add(1);
        self.meta.insert(SELF_TEST, &runs.to_be_bytes())?;
        self.flush()
    }

    fn is_formatted(&self) -> io::Result<bool> {
        match self.meta.get(FORMATTED)?.as_deref() {
            None => Ok(false),
            Some([FORMAT]) => Ok(true),
            Some(other) => Err(broken(format!(
                "it has format {other:?}, and this program reads format {FORMAT}: {}",
                files::OTHER_FORMAT
            ))),
        }
    }

    fn set_formatted(&mut self) -> io::Result<()> {
        self.meta.insert(FORMATTED, &[FORMAT])?;
        self.flush()
    }

    /// Each value that is read is a step of the progress.
    fn contents(&self, progress: &Progress) -> io::Result<MapContents> {
        let read = |pair: sled::Result<(sled::IVec, sled::IVec)>| {
            progress.step();
            let (key, sealed) = pair?;
            match files::unseal(FORMAT, &key, &sealed) {
                Ok(value) => Ok((key.to_vec(), value.to_vec())),
                Err(why) => {
                    Err(broken(format!("the value of {:?} cannot be read: {why}", key.escape_ascii().to_string())))
                }
            }
        };
        self.values.iter().map(read).collect()
    }
}

impl MapBackend for Trees {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.values.insert(key, files::seal(FORMAT, key, value))?;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // This flushes the whole database, not only this tree.
        self.values.flush()?;
        Ok(())
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
