//! Makes sled's flush durable on Linux.
//!
//! sled 0.34 ends each flush, and each reuse of a segment, with `sync_file_range`. That call starts the write-back of pages; it neither
//! waits for the disk's own cache nor writes the file's size, so acknowledged writes are lost in a power failure. This module defines the
//! symbol `sync_file_range` itself, as an `fdatasync`: the linker resolves sled's call to it. Each call is counted, and at every start
//! the log checks that a flush of its own called it (see `opening`): if another linker or another version of sled bypasses it, the node
//! refuses to run.
//!
//! `posix_fadvise` is called by its C symbol too, so that the layer of the power tests that replaces the kernel sees the call.
//!
//! This is the only module with `unsafe`: a C symbol cannot be defined without it. On systems without `sync_file_range`, sled uses
//! `sync_all`, and nothing is needed.

#![expect(unsafe_code, reason = "defines a C symbol and calls another; see the module's documentation")]

use std::{
    ffi::{c_int, c_uint},
    fs::File,
    io,
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicU64, Ordering},
};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often this process has called our `sync_file_range`.
pub(super) fn calls() -> u64 {
    CALLS.load(Ordering::SeqCst)
}

unsafe extern "C" {
    fn fdatasync(file: c_int) -> c_int;
    #[cfg(target_pointer_width = "64")]
    fn posix_fadvise(file: c_int, offset: i64, length: i64, advice: c_int) -> c_int;
}

/// Drops a file's clean pages from the kernel's cache.
#[cfg(target_pointer_width = "64")]
pub(crate) fn forget_pages(file: &File) -> io::Result<()> {
    // SAFETY: takes no pointer, and any number is a valid argument; offsets are 64 bits wide on these systems. Offset and length 0: the
    // whole file.
    match unsafe { posix_fadvise(file.as_raw_fd(), 0, 0, rustix::fs::Advice::DontNeed as c_int) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The same, where offsets may have another width.
#[cfg(not(target_pointer_width = "64"))]
pub(crate) fn forget_pages(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Syncs the whole file's data, and the metadata needed to read it, whatever range was asked for. Returns 0, or -1 with `errno` set.
//
// SAFETY: the name is the C library's own, and so is the signature (`off64_t` is an i64 everywhere); the function does more than the one
// that it replaces promises.
#[unsafe(no_mangle)]
extern "C" fn sync_file_range(file: c_int, _offset: i64, _length: i64, _flags: c_uint) -> c_int {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: takes no pointer, and any number is a valid argument: for a number that is not an open file it returns an error.
    unsafe { fdatasync(file) }
}
