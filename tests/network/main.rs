//! Nodes over a real network: what they replicate, whom they refuse, and how they find each other.

mod cluster;
mod forming;
mod log;
mod pipeline;
mod refusals;
mod replication;
mod table;
mod wires;
