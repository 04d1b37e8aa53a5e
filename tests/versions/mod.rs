//! Clusters whose members run programs of different versions: real nodes on real networks and disks, in this process.
//!
//! A node gets the cluster versions that its program supports as a parameter. `Versions::OWN` is today's program; `Versions::NEXT` the next
//! one, with one more command ([`Command::Probe`]), which today's refuses in its log as it refuses one that it cannot decode.

mod keyspace;
mod nodes;

use std::time::Duration;

use lockkeeper::{
    machine::{Command, Reply, Version, Versions},
    raft::NoReply,
};

use crate::support::{LONG, until};
use nodes::Cluster;

const TODAY: Versions = Versions::OWN;
const NEXT: Versions = Versions::NEXT;

/// Proposes the new command at the leader.
async fn probe(cluster: &Cluster) -> Result<Reply, NoReply> {
    until("an answer from a leader", async || {
        let replica = cluster.leader().await;
        match replica.propose(Command::Probe, LONG).await {
            Ok(delivery) => Some(Ok(delivery.reply)),
            Err(NoReply::NotLeader | NoReply::NoQuorum | NoReply::Unknown) => None,
            Err(why) => Some(Err(why)),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_is_upgraded_node_by_node_and_an_old_program_is_refused_afterwards() {
    let mut cluster = Cluster::start(&[TODAY, TODAY, TODAY]).await;
    let today = TODAY.highest;
    let next = NEXT.highest;
    cluster.reaches(today).await;
    let too_low = Err(NoReply::VersionTooLow { needs: next, has: today });
    assert_eq!(probe(&cluster).await, too_low);
    let token = cluster.acquire("before").await;

    for upgraded in [1, 2] {
        cluster.restart(upgraded, NEXT).await;
        cluster.acquire(&format!("{upgraded} of 3")).await;
        // The leader has heard all of them and looks once a second.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(cluster.version().await, today, "node {upgraded} of 3 has the new program");
        let leader = cluster.leader().await;
        assert_eq!(probe(&cluster).await, too_low);
        if leader.table().versions().own() == NEXT {
            let without = leader.members_without(next);
            assert!(without.contains_key(&3), "{without:?}");
            let status = cluster.leader_status().await;
            assert!(status.cluster_version_waits.contains("node 3 (runs another version)"), "{status:?}");
        }
    }
    // The way back, before the version rises.
    cluster.restart(2, TODAY).await;
    cluster.acquire("after the way back").await;
    cluster.restart(2, NEXT).await;

    cluster.restart(3, NEXT).await;
    cluster.reaches(next).await;
    assert_eq!(probe(&cluster).await, Ok(Reply::Probed));
    let later = cluster.acquire("after").await;
    assert!(later > token);

    // An old program on an upgraded member's data: it has the new commands in its log.
    let refused = cluster.restart_to_its_end(1, TODAY).await;
    assert!(refused.contains("install a later version of Lockkeeper on this node"), "{refused}");
    assert!(refused.contains(&format!("supports {TODAY}")), "{refused}");
    // The others serve on, and the member comes back with the new program.
    cluster.acquire("without node 1").await;
    cluster.restart(1, NEXT).await;
    cluster.agree().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_of_a_later_version_is_refused() {
    let mut cluster = Cluster::start(&[NEXT, NEXT, NEXT]).await;
    cluster.reaches(NEXT.highest).await;
    // Until the log no longer has the entry that raised the version: only the snapshot tells it.
    for number in 0..40 {
        cluster.acquire(&format!("many/{number}")).await;
    }
    cluster.has_purged(3).await;
    let refused = cluster.restart_to_its_end(3, TODAY).await;
    assert!(refused.contains("a record of the snapshot cannot be read"), "{refused}");
    assert!(refused.contains(&format!("supports {TODAY}")) && refused.contains("install that version"), "{refused}");
    cluster.restart(3, NEXT).await;
    cluster.agree().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_program_from_before_versions_keeps_the_cluster_at_version_1() {
    let old = Versions::UNSAID;
    let mut cluster = Cluster::start(&[TODAY, TODAY, old]).await;
    cluster.acquire("with an old member").await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(cluster.version().await, Version::FIRST);
    cluster.restart(3, TODAY).await;
    cluster.reaches(TODAY.highest).await;
    cluster.agree().await;
    cluster.end().await;
}
