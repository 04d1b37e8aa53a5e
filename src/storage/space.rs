//! The free space of the file system that holds a directory.
//!
//! Left out: quotas of a user or a project. The kernel shows them in `statvfs` on some file systems only; a write beyond a quota fails as
//! on a full disk does.

use std::{fmt, io, path::PathBuf};

/// The size of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that a process without privileges can still write.
    pub free: u64,
    /// All of its bytes.
    pub total: u64,
}

/// Reads the free space for a node's data. A parameter of the node, so that tests and simulations can set it.
pub trait FreeSpace: fmt::Debug + Send + Sync + 'static {
    /// The space now. Blocks, on some network file systems for as long as their server is away.
    fn read(&self) -> io::Result<Space>;
}

/// The file system of a directory.
#[derive(Clone, Debug)]
pub struct OfDirectory(pub PathBuf);

impl FreeSpace for OfDirectory {
    fn read(&self) -> io::Result<Space> {
        let found = rustix::fs::statvfs(&self.0)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }
}

/// Several directories that the node writes to. The one on the file system with the least free space counts.
#[derive(Clone, Debug)]
pub struct OfDirectories(pub Vec<OfDirectory>);

impl FreeSpace for OfDirectories {
    fn read(&self) -> io::Result<Space> {
        let mut least: Option<Space> = None;
        for directory in &self.0 {
            let space = directory.read()?;
            if least.is_none_or(|least| space.free < least.free) {
                least = Some(space);
            }
        }
        least.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no directory to read"))
    }
}

/// A space that never changes.
impl FreeSpace for Space {
    fn read(&self) -> io::Result<Space> {
        Ok(*self)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_has_the_space_of_its_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let space = OfDirectory(directory.path().to_owned()).read().unwrap();
        assert!(space.free <= space.total && space.total > 0, "{space:?}");
        let other = OfDirectory("/proc".into());
        let both = OfDirectories(vec![OfDirectory(directory.path().to_owned()), other]).read().unwrap();
        assert_eq!(both.free, 0, "that one never has space");
        assert!(OfDirectories(Vec::new()).read().is_err());
        fs::remove_dir(directory.path()).unwrap();
        let gone = OfDirectory(directory.path().to_owned()).read().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
