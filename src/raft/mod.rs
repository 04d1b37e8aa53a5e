//! Replication: one log, the same on every node.

pub mod commands;
pub(crate) mod files;
pub mod log;
pub mod records;
pub mod snapshot;
pub mod types;
pub mod wire;
mod words;
