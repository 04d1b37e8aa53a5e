//! The Raft log and the vote, on disk: a write-ahead log (the journal), then sled.
//!
//! A log that silently forgets is worse than one that is lost: its node votes a second time in a term, or counts towards a majority for
//! an entry that it no longer has, and a token is issued twice. So this module is built around two promises:
//!
//! * acknowledged writes are durable, even if anything fails afterwards;
//! * a log that differs from what was written is not opened.
//!
//! Its parts, from the disk up:
//!
//! * `sync` makes sled's flush durable; `database` does at opening what sled omits; `disk` is the part of sled that the log uses;
//! * `record` and `log_trees` define how entries and votes are stored in sled;
//! * `journal` and `journaled` are the write-ahead log before sled: one small fsync makes new writes durable, and they are moved into
//!   sled later;
//! * `mark` records outside of sled how far the log reached;
//! * `opening` and `verify` check all of it before anything is served;
//! * `writer` is the one thread that owns the disk: one queue, group commit with one flush for all queued writes;
//! * `memory` is the cache that readers see, without touching the disk;
//! * [`slow_followers`] limits the bytes of log that are kept behind a snapshot, and for a slow follower;
//! * `health` ends the process when the disk fails or hangs;
//! * [`LogStore`] implements openraft's storage traits. Except for `database`, nothing else is visible outside, so another log can take
//!   its place.
//!
//! ## Left out
//!
//! Repair. A damaged log is not reconstructed from its remains: the other members have all of it, and a new member would copy it from
//! them.

#[cfg(test)]
mod faults;
mod log_trees;
mod mark;
mod memory;
mod opening;
pub(crate) mod record;
pub mod slow_followers;
mod store;
mod verify;
mod writer;

pub use lockkeeper_storage::{
    health::{DiskFailure, EXIT_FAILED, FailureHandler, end_the_process},
    panics::explain_panic,
};
pub use opening::LogOpenError;
pub(crate) use opening::is_begun;
pub use store::{LogOptions, LogReader, LogStore};
