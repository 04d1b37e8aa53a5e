//! Replication: one log, the same on every node.

pub mod types;
pub mod wire;
