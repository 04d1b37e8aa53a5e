//! The directory of a cluster on this machine; [`super`] lists its contents.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use lockkeeper_config::{Config, Overrides};

use super::{CERTIFICATES, error::LocalError};

const CONFIG: &str = "node.toml";
const LOCK: &str = "lock";

/// A directory, locked against other users while this exists.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    temporary: Option<TempDir>,
    /// The lock file. The operating system releases the lock when the process ends.
    _lock: File,
}

impl Directory {
    /// Opens this directory, and creates it if needed. Refuses a directory with other files: the cluster would mix with
    /// them, and a later removal of the cluster would delete them.
    pub(super) fn open(path: &Path) -> Result<Self, LocalError> {
        let fail = |source| LocalError::Directory { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(fail)?;
        // The path must be absolute, because the nodes' configurations contain it.
        let path = path.canonicalize().map_err(fail)?;
        if let Some(file) = foreign(&path).map_err(fail)? {
            return Err(LocalError::Foreign { path, file });
        }
        let lock = lock(&path)?;
        Ok(Self { path, temporary: None, _lock: lock })
    }

    /// A new directory that is removed on drop.
    pub(super) fn temporary() -> Result<Self, LocalError> {
        let fail = |source| LocalError::Directory { path: std::env::temp_dir(), source };
        let temporary = tempfile::Builder::new().prefix("lockkeeper-").tempdir().map_err(fail)?;
        let mut directory = Self::open(temporary.path())?;
        directory.temporary = Some(temporary);
        Ok(directory)
    }

    /// Keeps the directory, even if it is temporary.
    pub(super) fn keep(&mut self) {
        if let Some(temporary) = &mut self.temporary {
            temporary.disable_cleanup(true);
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of one node.
    pub(super) fn node(&self, node_id: u64) -> PathBuf {
        self.path.join(format!("node{node_id}"))
    }

    /// The configurations of the nodes in this directory, sorted by id.
    pub(super) fn configs(&self) -> Result<Vec<Config>, LocalError> {
        let fail = |source| LocalError::Directory { path: self.path.clone(), source };
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
            ids.extend(name.strip_prefix("node").and_then(|id| id.parse::<u64>().ok()));
        }
        ids.sort_unstable();
        let files = ids.into_iter().map(|node_id| config_file(&self.node(node_id))).filter(|file| file.exists());
        files.map(|file| Ok(Config::load(&file, Overrides::default())?)).collect()
    }

    /// Deletes the directory of one node, with its data.
    pub(super) fn delete(&self, node_id: u64) -> Result<(), LocalError> {
        let folder = self.node(node_id);
        fs::remove_dir_all(&folder).map_err(|source| LocalError::Directory { path: folder.clone(), source })
    }

    /// Writes the configuration of a node.
    pub(super) fn write(&self, config: &Config) -> Result<(), LocalError> {
        let folder = self.node(config.node_id);
        let file = config_file(&folder);
        let fail = |source| LocalError::Directory { path: folder.clone(), source };
        let text = toml::to_string(config).map_err(|error| fail(io::Error::other(error)))?;
        fs::create_dir_all(&folder).map_err(fail)?;
        fs::write(file, text).map_err(fail)
    }
}

/// The configuration file in a node's directory.
pub(super) fn config_file(folder: &Path) -> PathBuf {
    folder.join(CONFIG)
}

/// The alphabetically first name in this directory that does not belong to a cluster.
fn foreign(path: &Path) -> io::Result<Option<String>> {
    let mut foreign = None;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_node = name.strip_prefix("node").is_some_and(|id| id.parse::<u64>().is_ok());

        if !is_node
            && ![LOCK, CERTIFICATES].contains(&name.as_str())
            && foreign.as_ref().is_none_or(|first| name < *first)
        {
            foreign = Some(name);
        }
    }

    Ok(foreign)
}

fn lock(path: &Path) -> Result<File, LocalError> {
    let file = path.join(LOCK);
    let fail = |source| LocalError::Directory { path: file.clone(), source };
    let lock = File::create(&file).map_err(fail)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(LocalError::InUse(path.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(fail(source)),
    }
}
