//! Replication: one log, the same on every node.

pub mod commands;
pub mod records;
pub mod types;
pub mod wire;
mod words;
