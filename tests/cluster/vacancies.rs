//! A live leader whose port refuses new connections: its followers must go on trusting it.

use std::{collections::BTreeMap, fs, time::Duration};

use lockkeeper::{config::ConfiguredMember, local::LocalCluster};

use tokio::time::Instant;

use super::door::Door;
use crate::support::{LONG, client, cluster_with, leader, long_session, until};

/// Longer than a follower needs to decide whether the leader lives.
const VERDICT: Duration = Duration::from_secs(10);

/// Three nodes that connect through proxies, by the pair of nodes (from, to). Two heartbeat intervals are longer than a delay on a busy
/// machine, so that no other election happens.
async fn cluster_with_doors() -> (LocalCluster, BTreeMap<(u64, u64), Door>) {
    let mut cluster = cluster_with(|options| {
        options.raft.heartbeat_ms = 1_000;
        options.raft.election_timeout_ms_min = 3_000;
        options.raft.election_timeout_ms_max = 6_000;
    })
    .await;
    cluster.stop().await;
    let members: Vec<ConfiguredMember> = cluster.node(1).config().members.clone();
    let mut doors = BTreeMap::new();
    for (from, to) in (1..=3).flat_map(|from| members.iter().map(move |to| (from, to))) {
        if from != to.node_id {
            doors.insert((from, to.node_id), Door::to(&to.peer_address).await);
        }
    }
    let way = |from: u64, to: &ConfiguredMember| {
        let door = doors.get(&(from, to.node_id)).map(Door::address);
        ConfiguredMember { peer_address: door.unwrap_or_else(|| to.peer_address.clone()), ..to.clone() }
    };
    cluster.route(way).expect("the configurations can be written");
    for id in 1..=3 {
        cluster.node_mut(id).spawn().expect("it starts again");
    }
    cluster.ready(LONG).await.expect("they serve again");
    (cluster, doors)
}

async fn term(cluster: &LocalCluster) -> u64 {
    cluster.statuses().await.values().map(|status| status.term).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_leader_whose_port_refuses_connections_is_not_replaced() {
    let (cluster, mut doors) = cluster_with_doors().await;
    let session = long_session(&client(&cluster)).await;
    let leading = leader(&cluster).await;
    let before = term(&cluster).await;
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leading).collect();
    for follower in &followers {
        doors.get_mut(&(*follower, leading)).expect("there is one").shut().await;
    }
    let has_decided = |follower: &u64| {
        let log = fs::read_to_string(cluster.node(*follower).log_file()).unwrap_or_default();
        log.contains("but the leader still sends messages")
    };
    let mut next = Instant::now();
    until("the followers' verdict", async || {
        assert_eq!(term(&cluster).await, before, "the followers took a leader that lives for one that is gone");
        let undecided: Vec<&u64> = followers.iter().filter(|follower| !has_decided(follower)).collect();
        // The break of an idle connection goes unnoticed, so break one that carries entries.
        if Instant::now() >= next {
            // Send entries, so that the busiest connection is the one that carries them.
            for _ in 0..30 {
                let held = session.acquire("seat").data(&[7; 8192]).await.expect("free");
                held.release().await.expect("it was held");
            }
            undecided.iter().for_each(|follower| doors[&(leading, **follower)].break_the_busiest());
            next = Instant::now() + VERDICT;
        }
        undecided.is_empty().then_some(())
    })
    .await;
    session.acquire("seat").await.expect("free").release().await.expect("it was held");
    assert_eq!((leader(&cluster).await, term(&cluster).await), (leading, before));
}
