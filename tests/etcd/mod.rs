//! etcd's API on a real cluster, as unmodified clients see it, and beside etcd itself.
//!
//! The services by themselves, over a store in memory, are tested in their own crate (`src/etcd/tests`); here are the parts between them
//! and the cluster. `etcdctl` and the `etcd` that is compared with are Debian's, unpacked into the build directory. Where they cannot be
//! had, the tests that need them are skipped, and say so.

#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod access;
mod chaos;
mod clients;
mod compaction;
mod etcdctl;
mod http;
mod lock_set;
mod locks;
mod narrow;
mod nodes;
mod patroni;
mod services;
mod walk;

use std::time::Duration;

use lockkeeper::local::{ClusterOptions, LocalCluster};
use lockkeeper_etcd::proto::etcdserverpb::{MemberListRequest, cluster_client::ClusterClient};
use tokio::time::{Instant, sleep};

/// A bound on failures.
const LONG: Duration = crate::support::LONG;

/// Three nodes that serve the API, and have told each other where. A busy machine is no reason to elect: a write that an election cuts off
/// has an answer that clients do not expect.
async fn cluster() -> LocalCluster {
    with_timing(1_500, |_| {}).await
}

/// The same for a test in which no node dies.
async fn steady_cluster() -> LocalCluster {
    with_timing(10_000, |_| {}).await
}

async fn with_timing(election_timeout_ms: u64, change: impl FnOnce(&mut ClusterOptions)) -> LocalCluster {
    let mut options =
        ClusterOptions { etcd: true, timeout: LONG, ..ClusterOptions::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    options.raft.election_timeout_ms_min = election_timeout_ms;
    options.raft.election_timeout_ms_max = 2 * election_timeout_ms;
    change(&mut options);
    let cluster = LocalCluster::start(options).await.expect("a cluster");
    if !cluster.nodes().all(|node| node.config().auth.policy.as_os_str().is_empty()) {
        return cluster;
    }
    let endpoint = format!("http://{}", cluster.etcd_endpoints()[0]);
    let mut members = ClusterClient::connect(endpoint).await.expect("it listens");
    let deadline = Instant::now() + LONG;
    loop {
        let listed = members.member_list(MemberListRequest::default()).await.expect("an answer").into_inner().members;
        if listed.len() == 3 && listed.iter().all(|member| member.client_ur_ls.len() == 1) {
            return cluster;
        }
        assert!(Instant::now() < deadline, "{listed:?}");
        sleep(Duration::from_millis(50)).await;
    }
}
