//! Replication: one log, the same on every node.

pub(crate) mod files;
pub mod log;
pub mod snapshot;
pub mod types;
pub mod wire;
