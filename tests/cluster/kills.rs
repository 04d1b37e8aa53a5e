//! `kill -9`, at any moment, under load.

use std::time::{Duration, Instant};

use lockkeeper::local::LocalCluster;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::{
    load::Load,
    support::{LONG, client, cluster_with, leader, until},
};

/// For which followers trust a leader that they do not hear, where a test says so.
const LEASE: Duration = Duration::from_secs(20);
/// Kills of a single node.
const ROUNDS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_whichever_node_is_killed() {
    // Few entries between snapshots: some of the nodes come back by one.
    let mut cluster = cluster_with(|options| {
        options.raft.snapshot_entries = 500;
        options.raft.keep_entries = 100;
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
async fn nothing_acknowledged_is_lost_when_all_are_killed() {
    let mut cluster = cluster_with(|options| options.raft.snapshot_entries = 500).await;
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

/// Without a word from its system, nobody would take its place before its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_process_has_ended_is_not_waited_for() {
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
        assert!(began.elapsed() < LEASE, "it was waited for");
        cluster.node_mut(killed).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("it serves again");
    }
    load.finish().await;
}

/// Waits until two nodes at least have applied the same log, and compares what they made of it: all do at some moment, since the
/// table's hash is taken at an index.
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
                let (node, index) = (status.node_id, status.applied_index);
                assert_eq!(hash, status.table_hash, "nodes {other} and {node} disagree at index {index}");
                return Some(());
            }
        }
        None
    })
    .await;
}
