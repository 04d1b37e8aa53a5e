//! `kill -9` of nodes at any moment, under load.

use std::time::{Duration, Instant};

use lockkeeper::{config::RaftConfig, local::LocalCluster};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::load::Load;
use crate::support::{LONG, client, cluster_with, leader, until};

/// How long followers trust a silent leader, in the test that uses it.
const LEASE: Duration = Duration::from_secs(20);
/// Kills of a single node.
const ROUNDS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a minute of kills, beside those of chaos"]
async fn nothing_acknowledged_is_lost_whichever_node_is_killed() {
    // Few entries between snapshots, so that some nodes catch up with a snapshot.
    let mut cluster = cluster_with(|options| {
        options.raft = RaftConfig { snapshot_entries: 500, keep_entries: 100, ..RaftConfig::default() };
    })
    .await;
    let mut load = Load::start(&client(&cluster), 8);
    let mut random = SmallRng::seed_from_u64(7);
    for round in 0..ROUNDS {
        load.progress(random.random_range(50..200)).await;
        let leading = leader(&cluster).await;
        let victim = match round % 2 {
            0 => leading,
            _ => leading % 3 + 1,
        };
        cluster.node_mut(victim).kill().await;
        load.progress(100).await;
        cluster.node_mut(victim).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("it serves again");
    }
    agree(&cluster).await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a minute of kills, beside those of chaos"]
async fn nothing_acknowledged_is_lost_when_all_are_killed() {
    let with_snapshots = RaftConfig { snapshot_entries: 500, ..RaftConfig::default() };
    let mut cluster = cluster_with(|options| options.raft = with_snapshots).await;
    let mut load = Load::start(&client(&cluster), 8);
    for _ in 0..3 {
        load.progress(200).await;
        for id in 1..=3 {
            cluster.node_mut(id).kill().await;
        }
        for id in 1..=3 {
            cluster.node_mut(id).spawn().expect("it starts again");
        }
        cluster.ready(LONG).await.expect("they serve again");
    }
    load.progress(200).await;
    agree(&cluster).await;
    load.finish().await;
}

/// A killed leader's system refuses connections. Without that sign, followers would wait until its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_replaced_before_its_lease_is_over() {
    let mut cluster = cluster_with(|options| {
        options.raft.election_timeout_ms_min = 10_000;
        options.raft.election_timeout_ms_max = LEASE.as_millis() as u64;
    })
    .await;
    let mut load = Load::start(&client(&cluster), 4);
    for _ in 0..3 {
        load.progress(50).await;
        let killed = leader(&cluster).await;
        cluster.node_mut(killed).kill().await;
        let began = Instant::now();
        load.progress(50).await;
        let logs = || cluster.nodes().map(|node| node.log_tail()).collect::<Vec<_>>().join("\n");
        assert!(began.elapsed() < LEASE, "the followers waited for its lease:\n{}", logs());
        cluster.node_mut(killed).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("it serves again");
    }
    load.finish().await;
}

/// Waits until two nodes have reported the same applied index, and compares the hashes of their tables at that index.
async fn agree(cluster: &LocalCluster) {
    let mut hashes = std::collections::BTreeMap::new();
    until("nodes at the same index", async || {
        for node in cluster.nodes() {
            let channel = node.channel().await.ok()?;
            let mut asked = lockkeeper::proto::v1::cluster_client::ClusterClient::new(channel);
            let request = lockkeeper::proto::v1::StatusRequest { table_hash: true };
            let status = asked.status(request).await.ok()?.into_inner();
            let first = hashes.insert(status.applied_index, (status.node_id, status.table_hash));
            if let Some((other, hash)) = first.filter(|(other, _)| *other != status.node_id) {
                let node = status.node_id;
                let index = status.applied_index;
                assert_eq!(hash, status.table_hash, "nodes {other} and {node} disagree at index {index}");
                return Some(());
            }
        }
        None
    })
    .await;
}
