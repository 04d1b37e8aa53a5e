//! Replication: one log, the same on every node.

pub mod forming;
pub mod identity;
pub mod network;
pub mod types;
pub mod wire;
