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

    /// The space for the audit trail, if the node writes one. Blocks in the same way.
    fn read_audit(&self) -> io::Result<Option<Space>> {
        Ok(None)
    }
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

/// The directories whose file systems end the node when they are full.
#[derive(Clone, Debug)]
pub struct NodeDirectories {
    /// The log, the snapshots, and what lies beside them.
    pub data: OfDirectory,
    /// The audit trail, if the node writes one.
    pub audit: Option<OfDirectory>,
}

impl FreeSpace for NodeDirectories {
    fn read(&self) -> io::Result<Space> {
        self.data.read()
    }

    fn read_audit(&self) -> io::Result<Option<Space>> {
        self.audit.as_ref().map(FreeSpace::read).transpose()
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
        let data = OfDirectory(directory.path().to_owned());
        let both = NodeDirectories { data: data.clone(), audit: Some(OfDirectory("/proc".into())) };
        assert_eq!(both.read_audit().unwrap().map(|audit| audit.free), Some(0), "that one never has space");
        assert!(both.read().unwrap().free > 0);
        assert_eq!(NodeDirectories { data, audit: None }.read_audit().unwrap(), None);
        fs::remove_dir(directory.path()).unwrap();
        let gone = OfDirectory(directory.path().to_owned()).read().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
