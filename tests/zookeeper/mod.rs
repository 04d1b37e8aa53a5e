//! ZooKeeper's protocol, as a plain connection sees it, and beside ZooKeeper itself.
//!
//! `jute` and `connection` are a client for tests: every operation, frames in the order in which they come, raw bytes. `oracle` starts
//! Debian's ZooKeeper.

#![allow(dead_code, reason = "the client has all operations, also those that no test sends yet")]

mod connection;
mod guarantees;
mod jute;
mod oracle;
mod smoke;
mod timeouts;
mod walk;

use lockkeeper::local::LocalCluster;

pub(crate) use connection::{JuteConnection, JuteSession, JuteWire};
pub(crate) use jute::{JuteAcl, JuteAnswer, JuteRequest, JuteWriter};

/// Three nodes that serve the protocol, and that a busy machine does not make elect: a connection would end, and a walk with it.
async fn steady_cluster() -> LocalCluster {
    crate::support::cluster_with(|options| {
        options.zookeeper = true;
        options.raft.election_timeout_ms_min = 10_000;
        options.raft.election_timeout_ms_max = 20_000;
    })
    .await
}
