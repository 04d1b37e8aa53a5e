//! The table of sessions, locks and waiters: a pure function of the log.
//!
//! No clock, no I/O, no async, no randomness. Time and session ids arrive inside commands, so every replica computes the same table.

mod limits;
mod types;

pub use limits::*;
pub use types::*;
