//! Nodes over a real network: replication, refused calls and cluster formation.

#![expect(clippy::disallowed_methods, reason = "session ids differ between runs")]

mod cluster;
mod copies;
mod forming;
mod ids;
mod late_answers;
mod log;
mod lost_data;
mod pipeline;
mod refusals;
mod replication;
mod table;
mod wires;
