//! Files, maps and journals that survive a power failure, on sled.
//!
//! # It replaces a function of the C library
//!
//! On Linux, this crate defines the C symbol **`sync_file_range`**. All code in the process that calls it, other libraries included, then
//! calls the definition in `sync.rs` instead of the C library's: a full `fdatasync` of the file. That is a stronger promise, and a slower
//! call. sled's flush is durable only so. A program that cannot have that must not link this crate: `lockkeeper-client`,
//! `lockkeeper-machine`, `lockkeeper-checker`, and `lockkeeper-fence` without its feature `disk` do not.
//!
//! # The parts, from the disk up
//!
//! * [`files`]: files that are whole or absent, and bytes with a checksum;
//! * `sync`: makes sled's flush durable; [`database`]: what an opening of sled leaves undone; [`panics`]: what a panic of sled means;
//! * [`disk`]: the calls that a log makes to sled, and no more;
//! * `journal` and [`journaled`]: a write-ahead log before sled;
//! * [`space`]: the free space of a file system;
//! * [`health`]: ends the process when the disk fails or hangs;
//! * [`durable_map`]: a small map on disk, for what is not part of a log.
//!
//! Left out: entries, votes and all else of Raft. What lies in a log is `lockkeeper-raft`'s.

pub mod database;
pub mod disk;
pub mod durable_map;
pub mod files;
#[doc(hidden)]
pub mod fuzzing;
pub mod health;
mod journal;
pub mod journaled;
pub mod panics;
pub mod space;
#[cfg(target_os = "linux")]
mod sync;

/// The name of the file that says which node's data a directory holds. `lockkeeper-raft` writes it; tools beside a node look for it.
pub const IDENTITY_FILE: &str = "identity.toml";
