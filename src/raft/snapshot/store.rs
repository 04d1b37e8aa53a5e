//! A node's snapshots: writing, receiving, keeping the newest.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::file::{self, SnapshotFile};
use crate::types::SnapshotMeta;
use lockkeeper_environment::Blocking;
use lockkeeper_planted::Planted;
use lockkeeper_storage::files::{self, PARTIAL_SUFFIX};
use lockkeeper_table::Trail;

const PREFIX: &str = "snapshot-";

/// The snapshots in a directory. Clones share the store.
///
/// All of its methods except [`latest`](Self::latest) block, and are for [`Blocking::run`].
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    inner: Arc<OpenedStore>,
}

#[derive(Debug)]
struct OpenedStore {
    directory: PathBuf,
    blocking: Blocking,
    latest: Mutex<Option<SnapshotFile>>,
    /// Held while a snapshot is renamed, which takes time; `latest` is not locked during that time.
    publishing: Mutex<()>,
}

/// Numbers for the names of unfinished files. They are deleted in the background, so no store of this process uses a name again.
static PARTIALS: AtomicU64 = AtomicU64::new(0);

/// Why the snapshots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The newest snapshot is damaged. The log does not reach back before it.
    #[error(
        "the snapshot {} is damaged: {what}; replace this node with `lockkeeper member replace`, since its log no longer has the entries \
         that the snapshot replaced",
        path.display()
    )]
    Damaged {
        /// Its file.
        path: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// The newest snapshot has a format that this program does not know.
    #[error("cannot use the snapshot {}: {what}", path.display())]
    Format {
        /// Its file.
        path: PathBuf,
        /// Its format, and what to do.
        what: String,
    },
    /// The operating system returned an error.
    #[error("the snapshots in {} cannot be opened: {source}", directory.display())]
    Io {
        /// Their directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The file of the newest snapshot, if there is one, in the directory of a node that does not run. Changes nothing.
pub fn newest_in(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest = None;
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let index = entry.file_name().to_str().and_then(index_of);
        newest = newest.max(index.map(|index| (index, entry.path())));
    }
    Ok(newest.map(|(_, path)| path))
}

/// The index in the name of a finished snapshot.
fn index_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX).and_then(|index| index.parse().ok())
}

impl SnapshotStore {
    /// Opens the snapshots in a directory, or creates the directory. Checks the newest, and deletes older and unfinished ones.
    pub fn open(directory: &Path) -> Result<Self, SnapshotError> {
        Self::open_with(directory, Blocking::OnThreads)
    }

    /// The same, for a node that waits for its files in this way.
    pub fn open_with(directory: &Path, blocking: Blocking) -> Result<Self, SnapshotError> {
        let failed = |source| SnapshotError::Io { directory: directory.to_owned(), source };
        let found = Self::prepare(directory).map_err(failed)?;

        let latest = found.last().map(|(_, path)| Self::open_latest(path, blocking).map_err(|error| (path, error)));
        let latest = latest.transpose().map_err(|(path, error)| match error.raw_os_error() {
            None if error.kind() == io::ErrorKind::Unsupported => {
                SnapshotError::Format { path: path.clone(), what: error.to_string() }
            }
            None => SnapshotError::Damaged { path: path.clone(), what: error.to_string() },
            Some(_) => failed(error),
        })?;

        if let (Some(latest), Some((index, path))) = (&latest, found.last())
            && latest.index() != *index
        {
            let what = format!("its last entry is {}, which differs from the one in its name", latest.index());
            return Err(SnapshotError::Damaged { path: path.clone(), what });
        }

        for (_, older) in found.iter().rev().skip(1) {
            fs::remove_file(older).map_err(failed)?;
        }

        let latest = Mutex::new(latest);
        let publishing = Mutex::new(());
        let directory = directory.to_owned();
        Ok(Self { inner: Arc::new(OpenedStore { directory, blocking, latest, publishing }) })
    }

    fn open_latest(path: &Path, blocking: Blocking) -> io::Result<SnapshotFile> {
        files::forget_cached(path)?;
        SnapshotFile::check(path, true, blocking)
    }

    /// How this node waits for files.
    pub(crate) fn blocking(&self) -> Blocking {
        self.inner.blocking
    }

    /// The newest snapshot.
    pub fn latest(&self) -> Option<SnapshotFile> {
        self.lock().clone()
    }

    /// Writes a snapshot, and makes it the newest unless there is a newer one by then. `ids_used` has the ids of all members that the
    /// cluster has ever had.
    pub fn write(
        &self,
        meta: &SnapshotMeta,
        ids_used: &BTreeSet<u64>,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> io::Result<SnapshotFile> {
        self.write_with(meta, ids_used, Trail::default(), records)
    }

    /// The same, of a table whose audit trail goes so far.
    pub fn write_with(
        &self,
        meta: &SnapshotMeta,
        ids_used: &BTreeSet<u64>,
        trail: Trail,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> io::Result<SnapshotFile> {
        let path = self.partial();
        let written = file::write(&path, meta, ids_used, trail, records)
            .and_then(|()| SnapshotFile::check(&path, false, self.inner.blocking));

        let written = written.inspect_err(|_| {
            // If this fails, the next start deletes the file.
            let _ = fs::remove_file(&path);
        })?;
        self.publish(&written)?;
        Ok(written)
    }

    /// Begins to receive the file of a peer's snapshot.
    pub fn receive(&self, meta: SnapshotMeta, length: u64) -> io::Result<Receiving> {
        let path = self.partial();
        let file = Some(File::create(&path)?);
        let partial = Partial { file, path: Some(path), blocking: self.inner.blocking };
        Ok(Receiving { meta, length, received: 0, partial })
    }

    /// Makes a snapshot the newest, durably, unless there is one that reaches as far. Idempotent.
    pub fn publish(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        let _one_at_a_time = self.inner.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.latest().is_some_and(|latest| latest.index() >= snapshot.index()) {
            return Ok(());
        }
        let path = self.inner.directory.join(format!("{PREFIX}{:020}", snapshot.index()));
        let is_deleted_first = Planted::OlderSnapshotDeletedFirst.is_on();
        if let Some(older) = self.latest().filter(|_| is_deleted_first) {
            fs::remove_file(older.path())?;
        }
        snapshot.publish_as(&path)?;
        let older = self.lock().replace(snapshot.clone());
        older.filter(|_| !is_deleted_first).map_or(Ok(()), |older| fs::remove_file(older.path()))
    }

    /// Deletes unfinished files; returns the finished snapshots with their indexes, oldest first.
    fn prepare(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
        files::create_directory(directory)?;
        // Sync the directory, for the case that a process ended just after a rename.
        files::sync_directory(directory)?;

        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(PARTIAL_SUFFIX) {
                remove_unfinished(&entry.path())?;
            } else if let Some(index) = index_of(name) {
                found.push((index, entry.path()));
            }
        }

        found.sort();
        Ok(found)
    }

    fn partial(&self) -> PathBuf {
        let number = PARTIALS.fetch_add(1, Ordering::SeqCst);
        self.inner.directory.join(format!("{number}{PARTIAL_SUFFIX}"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<SnapshotFile>> {
        // Replaced in one step, so it is consistent even if another thread panicked.
        self.inner.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes an unfinished file, if it is still there: when a node starts again in the same process, a thread may just be deleting the files
/// that it left unfinished when it ended.
fn remove_unfinished(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A peer's snapshot that is arriving. If dropped before it is finished, it leaves nothing behind.
#[derive(Debug)]
pub struct Receiving {
    meta: SnapshotMeta,
    length: u64,
    received: u64,
    partial: Partial,
}

/// An unfinished file, which is deleted when this is dropped.
#[derive(Debug)]
struct Partial {
    /// Present until it is dropped.
    file: Option<File>,
    /// `None` once a snapshot has the file.
    path: Option<PathBuf>,
    blocking: Blocking,
}

impl Receiving {
    /// Writes the next bytes. Blocks.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.received += bytes.len() as u64;
        if self.received > self.length {
            return Err(rejected("it is longer than announced"));
        }
        self.partial.file().write_all(bytes)
    }

    /// Checks the received snapshot. It is then durable, but not the newest until it is [published](SnapshotStore::publish); if dropped
    /// before, its file is deleted. Blocks.
    pub fn finish(mut self) -> io::Result<SnapshotFile> {
        if self.received != self.length {
            return Err(rejected("it is shorter than announced"));
        }
        file::sync(self.partial.file())?;
        let snapshot = SnapshotFile::check(self.partial.path(), false, self.partial.blocking)?;
        // From here on the snapshot owns the file.
        self.partial.path = None;
        if *snapshot.meta() == self.meta {
            Ok(snapshot)
        } else {
            Err(rejected("its metadata differs from that announced"))
        }
    }
}

impl Partial {
    fn file(&mut self) -> &mut File {
        self.file.as_mut().expect("it is taken only when this is dropped")
    }

    fn path(&self) -> &Path {
        self.path.as_deref().expect("it is taken only when the snapshot is finished")
    }
}

/// The task of a call that breaks off drops it, on Raft's runtime.
impl Drop for Partial {
    fn drop(&mut self) {
        file::drop_file(self.blocking, self.file.take(), self.path.take());
    }
}

fn rejected(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the received snapshot is rejected: {why}"))
}
