//! What tests with real processes share: a cluster of them, and waiting for a condition.
//!
//! A test gets a cluster that serves, breaks it through [`LocalCluster::node_mut`] (kill, stop, pause by a signal, start again), and
//! waits by [`eventually`]. All processes are dead when the cluster is dropped, also if the test fails.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::{collections::BTreeMap, future::Future, path::PathBuf, time::Duration};

use lockkeeper::{
    local::{LocalCluster, Options},
    proto::v1 as pb,
};
use tokio::time::{self, Instant};

/// Longer than anything here takes on a busy machine: only a failing test waits for so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(20);

/// The program under test.
pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_lockkeeper").into()
}

/// So many nodes of the program under test, in a temporary directory.
pub(crate) fn options(nodes: usize) -> Options {
    Options { nodes: Some(nodes), ..Options::new(program()) }
}

/// A cluster that serves.
pub(crate) async fn cluster(nodes: usize) -> LocalCluster {
    LocalCluster::start(options(nodes)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Looks again and again until there is something to see. Panics after [`PATIENCE`], with `what` was waited for.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Each look has the deadline too: it may be a call that nobody answers.
        match time::timeout_at(deadline, look()).await {
            Ok(Some(seen)) => return seen,
            Ok(None) if Instant::now() < deadline => time::sleep(POLL).await,
            Ok(None) | Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
        }
    }
}

/// Waits until these nodes agree on a leader among them, which itself says that it serves; its id.
pub(crate) async fn leader_of(cluster: &LocalCluster, node_ids: &[u64]) -> u64 {
    eventually(&format!("a leader of the nodes {node_ids:?}"), async || {
        let mut statuses = cluster.statuses().await;
        statuses.retain(|id, _| node_ids.contains(id));
        agreed_leader(&statuses, node_ids.len())
    })
    .await
}

fn agreed_leader(statuses: &BTreeMap<u64, pb::StatusResponse>, nodes: usize) -> Option<u64> {
    let (leader, _) = statuses.iter().find(|(_, status)| status.role() == pb::Role::Leader && status.serving)?;
    let agreed = statuses.values().all(|status| status.leader_id == *leader);
    (agreed && statuses.len() == nodes).then_some(*leader)
}
