//! Writing files so that they survive a power failure.
//!
//! A file is complete or absent: it is written under another name, synced, renamed, and then its directory is synced too. Its content
//! carries a version byte and a checksum, so that a damaged file is noticed and never used in part.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use lockkeeper_planted::Planted;

/// The suffix of a file that is being written. A leftover file with it may be deleted.
pub const PARTIAL_SUFFIX: &str = ".partial";

/// Makes the names in a directory durable, including those just created, renamed and deleted.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Creates a directory and its missing parents durably, for this user alone (mode 0700).
///
/// Its name is synced also if it exists already: the process that created it may have ended before the sync.
pub fn create_directory(directory: &Path) -> io::Result<()> {
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    let missing = directory.ancestors().take_while(is_missing).count();
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    directory.ancestors().take(missing.max(1)).try_for_each(sync_name)
}

/// A warning if others than the owner of a file or directory may read it or write to it. There is none if the file cannot be
/// looked at.
pub fn warn_of_others(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    let wanted = if metadata.is_dir() { 700 } else { 600 };
    let shown = path.display();
    (mode & 0o077 != 0)
        .then(|| format!("{shown} is open to others than its owner (mode {mode:o}): run chmod {wanted} on it"))
}

fn sync_name(directory: &Path) -> io::Result<()> {
    match sync_directory(parent(directory)) {
        // Only its owner may read the parent, as for systemd's services with a dynamic user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(rustix::fs::syncfs(File::open(directory)?)?)
        }
        synced => synced,
    }
}

/// Makes sure that later reads of a file return what its disk holds.
///
/// After a failed sync the kernel keeps the pages that it could not write, marks them clean, and reports the error once: to the
/// process that ended because of it. The next process finds these pages in the cache as if they were on the disk (Rebello et
/// al., "Can applications recover from fsync failures?", USENIX ATC '20), but a power failure would lose them.
///
/// Therefore all pages that can still be written are written, and then the file's pages are dropped from the cache. Recording
/// the failure instead would not help, because the record would have to be written to the same disk.
pub fn forget_cached(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    #[cfg(target_os = "linux")]
    super::sync::forget_pages(&file)?;
    Ok(())
}

/// Renames a complete and synced file from `from` to `to`, durably. Both are in one directory. After an error that [`is_shortage`] nothing
/// is renamed.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    // Opened before the renaming: a process without a descriptor for it must not find out between the two steps.
    let directory = File::open(parent(to))?;
    fs::rename(from, to)?;
    if Planted::NameNotSynced.is_on() { Ok(()) } else { directory.sync_all().map_err(unsynced) }
}

/// A failed sync. What was not written then is unknown, and a second attempt may report success for what the kernel has dropped.
#[derive(Debug, thiserror::Error)]
#[error("a sync failed: {0}")]
struct FailedSync(io::Error);

/// An error of a sync, so that it is not taken for a shortage.
pub fn unsynced(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), FailedSync(error))
}

/// Whether an error says no more than that the system is short of something: of space, descriptors, threads or memory. The same work may
/// succeed later. An error of a [sync](unsynced) says more.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let of_system = error.raw_os_error().map(Errno::from_raw_os_error);
    of_system.is_some_and(|errno| {
        [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM].contains(&errno)
    })
}

/// Creates or replaces a small file. After a crash it is the old one or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(PARTIAL_SUFFIX);
    let partial = Path::new(&partial);
    let mut file = File::create(partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    publish(partial, path)
}

/// The directory that contains this file. For a bare name it is the current one.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Puts a version byte and a checksum before a message. The checksum also covers `context`, the subject of the message.
/// Therefore the message cannot pass for one on another subject.
pub fn seal(version: u8, context: &[u8], message: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SEAL_BYTES + message.len());
    sealed.push(version);
    sealed.extend_from_slice(&checksum(version, context, message).to_be_bytes());
    sealed.extend_from_slice(message);
    sealed
}

/// Returns the message that [`seal`] wrapped, if it has this version and is undamaged.
pub fn unseal<'a>(version: u8, context: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], SealError> {
    let Some((head, message)) = sealed.split_at_checked(SEAL_BYTES) else { return Err(SealError::Short) };
    if checksum(head[0], context, message).to_be_bytes() != head[1..] {
        return Err(SealError::Checksum);
    }
    // The version is checked last, because a flipped bit in the version byte is damage, not a newer version.
    if head[0] != version {
        return Err(SealError::Version { found: head[0], reads: version });
    }
    Ok(message)
}

/// Why sealed bytes cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SealError {
    /// Bytes are missing.
    #[error("it is cut short")]
    Short,
    /// Bytes differ from what was written.
    #[error("its checksum does not match")]
    Checksum,
    /// The bytes are undamaged, but of another version.
    #[error("it has format {found}, and this program reads format {reads}: {OTHER_FORMAT}")]
    Version {
        /// The version of the bytes.
        found: u8,
        /// The version that this program reads.
        reads: u8,
    },
}

/// What to do with data of an unknown format.
pub const OTHER_FORMAT: &str = "start the version of Lockkeeper that wrote it, or a later one";

/// An error for data that are intact but have a format that this program does not know. It is not an error of damage, because
/// nothing is lost.
pub fn unknown_format(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what.into())
}

/// An error for sealed data that cannot be used.
pub fn unsealable(what: &str, why: &SealError) -> io::Error {
    match why {
        SealError::Version { .. } => unknown_format(format!("{what}: {why}")),
        SealError::Short | SealError::Checksum => damaged(format!("{what} cannot be read: {why}")),
    }
}

/// An error for a disk whose content differs from what was written.
pub fn damaged(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

const SEAL_BYTES: usize = 1 + 4;

fn checksum(version: u8, context: &[u8], message: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[version]);
    hasher.update(context);
    hasher.update(message);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_notices_every_flipped_bit() {
        let sealed = seal(1, b"vote", b"message");
        assert_eq!(unseal(1, b"vote", &sealed), Ok(&b"message"[..]));
        assert_eq!(unseal(1, b"purged", &sealed), Err(SealError::Checksum));
        assert_eq!(unseal(1, b"vote", &seal(2, b"vote", b"message")), Err(SealError::Version { found: 2, reads: 1 }));
        assert_eq!(unseal(1, b"vote", b"1234"), Err(SealError::Short));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal(1, b"vote", &flipped), Err(SealError::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn a_replaced_file_is_the_new_one_and_leaves_nothing_aside() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        replace(&path, b"old").expect("written");
        replace(&path, b"new").expect("replaced");
        assert_eq!(fs::read(&path).expect("readable"), b"new");
        assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 1);
    }

    #[test]
    fn a_failed_sync_is_no_shortage() {
        let full = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert!(is_shortage(&full()));
        let failed = unsynced(full());
        assert!(!is_shortage(&failed) && failed.kind() == io::ErrorKind::StorageFull);
        assert!(failed.to_string().contains("No space left"), "{failed}");
        for other in [rustix::io::Errno::IO, rustix::io::Errno::ROFS, rustix::io::Errno::FBIG] {
            assert!(!is_shortage(&io::Error::from_raw_os_error(other.raw_os_error())), "{other}");
        }
        assert!(!is_shortage(&damaged("a page")) && !is_shortage(&io::Error::other("a panic")));
    }

    #[test]
    fn a_directory_is_made_with_its_parents() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let deep = directory.path().join("a/b/c");
        create_directory(&deep).expect("made");
        create_directory(&deep).expect("it is there");
        assert!(deep.is_dir());
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&deep), mode(&directory.path().join("a"))), (0o700, 0o700));
        assert_eq!(warn_of_others(&deep), None);
        fs::set_permissions(&deep, fs::Permissions::from_mode(0o750)).expect("it is ours");
        let warning = warn_of_others(&deep).expect("a group may read it");
        assert!(
            warning.ends_with("a/b/c is open to others than its owner (mode 750): run chmod 700 on it"),
            "{warning}"
        );
        fs::write(directory.path().join("file"), b"in the way").expect("written");
        create_directory(&directory.path().join("file/d")).expect_err("a file is in the way");
    }

    /// Whether the file's first page is cached, or `None` if this file system does not tell.
    #[cfg(target_os = "linux")]
    fn is_cached(path: &Path) -> Option<bool> {
        let file = File::open(path).expect("readable");
        let mut byte = [0];
        match rustix::io::preadv2(&file, &mut [io::IoSliceMut::new(&mut byte)], 0, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(_) => Some(true),
            Err(rustix::io::Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    /// Attempts until the pages of a file are no longer cached.
    #[cfg(target_os = "linux")]
    const FORGOTTEN_AFTER_MAX: usize = 1_000;

    #[cfg(target_os = "linux")]
    #[test]
    fn cached_pages_are_read_from_the_disk_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        fs::write(&path, vec![7; 100_000]).expect("written");
        if is_cached(&path) != Some(true) {
            return println!("NOT TESTED: this file system does not say what is cached");
        }
        // The look has the kernel read the page (since 5.10), and finds it if the disk is done before this thread runs on.
        let is_forgotten = (0..FORGOTTEN_AFTER_MAX).any(|_| {
            forget_cached(&path).expect("synced");
            is_cached(&path) == Some(false)
        });
        assert!(is_forgotten, "still cached after {FORGOTTEN_AFTER_MAX} attempts");
        assert_eq!(fs::read(&path).expect("readable"), vec![7; 100_000]);
    }
}
