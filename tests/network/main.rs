//! Nodes over a real network: what they replicate, whom they refuse, and how they find each other.

#![expect(clippy::disallowed_methods, reason = "session ids differ between runs")]

mod cluster;
mod copies;
mod forming;
mod late_answers;
mod log;
mod lost_data;
mod pipeline;
mod refusals;
mod replication;
mod table;
mod wires;
