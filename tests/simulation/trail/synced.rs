//! What a machine that loses its power keeps of the audit files: what was synced, and as much of the rest as the seed says.
//!
//! The files are real, so the kernel of this machine has all that was written. This module defines the two symbols by which a program waits
//! for a disk, `fsync` and `fdatasync`: they note how long an audit file is, and do nothing else. All other files of a run survive each
//! crash as they are, so no file needs a real sync. The product does not know of it.
//!
//! A file keeps a prefix of what was not synced, also in the middle of a line. Its entry in the directory is never lost.

#![expect(unsafe_code, reason = "defines two C symbols; see the module's documentation")]

use std::{
    collections::BTreeMap,
    ffi::c_int,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use lockkeeper_audit::{AUDIT_PREFIX, files_in};
use rand::{Rng as _, rngs::StdRng};

/// How long each audit file was at its last sync, bytes. Their paths are absolute.
static SYNCED: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// The audit files in a directory, which need not exist.
pub(super) fn audit_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match files_in(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found,
    }
}

/// Cuts the audit files in this directory, which no process has open, as a crash of the process or of its machine does. Returns the number
/// of bytes that are lost.
pub(crate) fn lose_unsynced(directory: &Path, random: &mut StdRng) -> io::Result<u64> {
    let mut lost = 0;
    for path in audit_files(directory)? {
        let path = path.canonicalize()?;
        let length = fs::metadata(&path)?.len();
        let synced = SYNCED.lock().expect("nothing panics while it has the lengths").get(&path).copied();
        let synced = synced.unwrap_or_default();
        if synced >= length {
            continue;
        }

        let kept = match random.random_range(0..3) {
            0 => synced,
            // Only the process was killed.
            1 => length,
            _ => random.random_range(synced..=length),
        };
        OpenOptions::new().write(true).open(&path)?.set_len(kept)?;
        lost += length - kept;
    }
    Ok(lost)
}

/// Notes that what was written to a file until now is durable, if it is an audit file.
fn note_sync(descriptor: c_int) {
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{descriptor}")) else { return };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !name.starts_with(AUDIT_PREFIX) {
        return;
    }
    if let Ok(file) = fs::metadata(&path) {
        SYNCED.lock().expect("nothing panics while it has the lengths").insert(path, file.len());
    }
}

/// Syncs the content of a file. Returns 0.
//
// SAFETY: the name and the signature are the C library's own. That function would do more, for a power failure of the real machine, after
// which nobody reads the files of a run.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    note_sync(descriptor);
    0
}

/// Syncs a file. Returns 0.
//
// SAFETY: as for `fdatasync`.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    note_sync(descriptor);
    0
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs::File, io::Write as _};

    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn what_was_synced_is_kept_and_of_the_rest_a_prefix() {
        let mut lengths = BTreeSet::new();
        for seed in 0..60 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let path = directory.path().join(format!("{AUDIT_PREFIX}1.jsonl"));
            let mut file = File::create(&path).expect("it can be made");
            file.write_all(b"synced").expect("written");
            file.sync_data().expect("synced");
            file.write_all(b"not").expect("written");
            drop(file);

            let lost = lose_unsynced(directory.path(), &mut StdRng::seed_from_u64(seed)).expect("it can be cut");
            let kept = fs::read(&path).expect("it is there");
            assert!(b"syncednot".starts_with(&kept) && kept.len() as u64 + lost == 9, "{kept:?}, {lost} lost");
            lengths.insert(kept.len());
        }
        assert!(lengths.first() == Some(&6) && lengths.last() == Some(&9) && lengths.len() > 2, "{lengths:?}");
        assert!(audit_files(Path::new("absent")).expect("no directory has no files").is_empty());
    }
}
