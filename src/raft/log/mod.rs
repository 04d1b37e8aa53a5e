//! The Raft log, and the vote, in sled.
//!
//! A log that forgets is worse than one that is lost: its node votes a second time in a term, or counts towards a majority for an
//! entry that it no longer has, and a token is issued twice. So this module is built around two promises:
//!
//! * what is acknowledged is on the disk, whatever fails afterwards;
//! * a log that is not what it was is not opened.
//!
//! How it is put together, from the disk up:
//!
//! * `sync` makes sled's flush durable; `database` does at an opening what sled leaves undone; `disk` is what is asked of sled, and
//!   no more;
//! * `record` and `tables` say how entries and votes lie there;
//! * `journal` and `journaled` stand before sled: what is new is durable with one small sync, and moved into sled later;
//! * `mark` notes outside of sled how far the log had come;
//! * `opening` and `verify` check all of it before anything is served;
//! * `writer` is the one thread that owns the disk: one queue, one flush for all that has gathered;
//! * `memory` is what readers see, without touching the disk;
//! * `health` ends the process when the disk fails or hangs;
//! * [`LogStore`] is openraft's view of it all. But for `database`, nothing else here is known outside, so another log can take its
//!   place.
//!
//! ## Left out
//!
//! Repair. A damaged log is not mended from its remains: the other members have all of it, and a new member copies it from them.

pub(crate) mod database;
mod disk;
#[cfg(test)]
mod faults;
mod health;
mod journal;
mod journaled;
mod mark;
mod memory;
mod opening;
mod panics;
mod record;
mod store;
#[cfg(target_os = "linux")]
pub(crate) mod sync;
mod tables;
mod verify;
mod writer;

pub use health::{EXIT_FAILED, Failure, FailureHandler, end_the_process};
pub use opening::OpenError;
pub use panics::explain_panic;
pub use store::{LogReader, LogStore, Options};
