//! Snapshots of the machine, as files.
//!
//! A snapshot replaces the log up to its last entry, so it must be as durable as the log: it is written aside, synced, renamed, and its
//! directory synced, before it is used. Only the newest is kept. Peers are sent the file unchanged.
//!
//! ```text
//! magic and version, 8 bytes
//! length of the header, 4 bytes      header: a SnapshotFileHeader
//! length of a record, 4 bytes        record             (any number of times)
//! 0xffffffff                         number of records, 8 bytes
//! checksum (CRC-32) of all the above, 4 bytes
//! ```
//!
//! Numbers are big-endian. The writer defines the content of records. The checksum of the whole file is verified before anything in it is
//! used, whether it comes from the disk or from a peer.
//!
//! ## Left out
//!
//! Falling back on an older snapshot. The log was purged up to the newest one, so the entries between the two are gone: a damaged
//! snapshot is an error.

mod file;
mod pace;
mod store;

pub use file::{Records, SnapshotFile};
pub(crate) use file::{read_record as read_piece, write_end, write_piece};
pub(super) use pace::{Pace, is_worth};
pub use store::{Receiving, SnapshotError, SnapshotStore, newest_in};
