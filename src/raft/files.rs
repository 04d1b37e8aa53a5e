//! Small habits of writing files so that they survive a power failure.
//!
//! A file is whole or absent: it is written aside, synced, renamed, and then the directory that names it is synced too. What it
//! holds carries a version byte and a checksum, so that a damaged file is noticed and never half believed.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// How the name of a file ends while it is being written. Whoever finds one may delete it.
pub(crate) const PARTIAL_SUFFIX: &str = ".partial";

/// Makes the names in a directory durable: those created, renamed and deleted.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes a file that is complete and synced at `from` the one at `to`, durably. Both are in one directory.
pub(crate) fn publish(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(parent(to))
}

/// Writes a small file, or replaces the one that is there: after a crash it is the old one or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(PARTIAL_SUFFIX);
    let partial = Path::new(&partial);
    let mut file = File::create(partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    publish(partial, path)
}

/// The directory that names this file; the current one for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Puts a version byte and a checksum before a message. The checksum also covers `context`: what the message is about, so that it
/// cannot pass for another one.
pub(crate) fn seal(version: u8, context: &[u8], message: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SEAL_BYTES + message.len());
    sealed.push(version);
    sealed.extend_from_slice(&checksum(version, context, message).to_be_bytes());
    sealed.extend_from_slice(message);
    sealed
}

/// The message in what [`seal`] made, if it is of this version and undamaged.
pub(crate) fn unseal<'a>(version: u8, context: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], Broken> {
    let Some((head, message)) = sealed.split_at_checked(SEAL_BYTES) else { return Err(Broken::Short) };
    if checksum(head[0], context, message).to_be_bytes() != head[1..] {
        return Err(Broken::Checksum);
    }
    // Only now: a flipped bit in the version byte is damage, not a newer version.
    if head[0] != version {
        return Err(Broken::Version(head[0]));
    }
    Ok(message)
}

/// Why sealed bytes cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// Something is missing.
    #[error("it is cut short")]
    Short,
    /// Something is not as it was written.
    #[error("its checksum does not match")]
    Checksum,
    /// It is whole, but not for us.
    #[error("it has format {0}, which this version of the program does not know")]
    Version(u8),
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
        assert_eq!(unseal(1, b"purged", &sealed), Err(Broken::Checksum));
        assert_eq!(unseal(1, b"vote", &seal(2, b"vote", b"message")), Err(Broken::Version(2)));
        assert_eq!(unseal(1, b"vote", b"1234"), Err(Broken::Short));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal(1, b"vote", &flipped), Err(Broken::Checksum), "bit {bit}");
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
}
