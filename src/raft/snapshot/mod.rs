//! Snapshots of the machine, as files.
//!
//! A snapshot replaces the log up to its last entry, so it must be as durable as the log: it is written aside, synced, renamed, and
//! its directory synced, before anybody hears of it. The newest is kept; the others go. Peers are sent the file as it is.
//!
//! ```text
//! magic and version, 8 bytes
//! length of the header, 4 bytes      header: a SnapshotFileHeader
//! length of a record, 4 bytes        record             (any number of times)
//! 0xffffffff                         number of records, 8 bytes
//! checksum (CRC-32) of all the above, 4 bytes
//! ```
//!
//! Numbers are big-endian. What a record holds is the business of who wrote it. The checksum of the whole file is verified before
//! anything in it is used, whether it comes from the disk or from a peer.
//!
//! ## Left out
//!
//! Falling back on an older snapshot. The log was purged up to the newest, so what lies between is gone: a damaged one is an error.

mod file;
mod pace;
mod store;

pub use file::{Records, SnapshotFile};
pub(super) use pace::Pace;
pub use store::{Receiving, SnapshotError, SnapshotStore};
