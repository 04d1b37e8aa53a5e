//! Nodes whose tables differ though they applied the same entries.
//!
//! The data directories of such a cluster are made as a restore makes them, twice with the same random numbers and the same time, and with
//! two tables: so the directory of one node can be taken from the other cluster, and nothing but its table tells it.

use std::{fs, path::Path, sync::atomic::AtomicU64};

use lockkeeper::{
    local::LocalCluster,
    machine::{Machine, Restore, Token, WallTime, first_at},
    proto::v1::{Role, StatusResponse},
    raft::backup::{NewCluster, found},
    table::{MemberNode, Trail},
};
use rand::{SeedableRng as _, rngs::StdRng};

use super::probes::get;
use crate::support::{LONG, client, cluster_with, lockkeeper, long_session, output, text, until};

/// The moment at which both tables are made.
const AT: WallTime = WallTime(1_800_000_000_000);

/// The node with the other table.
const ODD: u64 = 3;

/// Makes the directories of a cluster with this first token. Equal for equal tokens.
async fn make(cluster: &LocalCluster, first_token: u64, directory: &Path) {
    let restore = Restore { at: AT, draw: 7, first_token: Some(Token(first_token)), closed_ms: None };
    let machine = Machine::default().restored(&restore).expect("a first token");
    let member = |node: &lockkeeper::local::LocalNode| {
        let member = node.config().this_member().expect("it is a member").clone();
        let in_log = MemberNode {
            peer_address: member.peer_address,
            client_address: member.client_address,
            ..MemberNode::default()
        };
        (node.id(), (in_log, directory.join(node.id().to_string())))
    };
    let made = NewCluster {
        cluster_id: cluster.node(1).config().cluster_id.parse().expect("a cluster id"),
        members: cluster.nodes().map(member).collect(),
        machine,
        trail: Trail::default(),
        copied: None,
        at: AT,
    };
    found(&made, &mut StdRng::seed_from_u64(7), &AtomicU64::new(0)).await.expect("made");
}

/// A cluster of three, none of which runs: node [`ODD`] has another table than the others. The leader compares them every
/// `compare_tables_ms`.
async fn cluster_with_two_tables(compare_tables_ms: u64) -> LocalCluster {
    let mut cluster = cluster_with(|options| {
        options.http = true;
        options.raft.compare_tables_ms = compare_tables_ms;
    })
    .await;
    cluster.kill().await;
    let aside = tempfile::tempdir().expect("a directory");
    let [right, other] = ["right", "other"].map(|name| aside.path().join(name));
    make(&cluster, first_at(AT), &right).await;
    make(&cluster, first_at(AT) + 1, &other).await;
    for node in cluster.nodes() {
        let made = if node.id() == ODD { &other } else { &right };
        let directory = &node.config().data_dir;
        fs::remove_dir_all(directory).expect("removed");
        fs::rename(made.join(node.id().to_string()), directory).expect("on one file system");
    }
    cluster
}

fn is_named(said: &str) -> bool {
    said.contains(&format!("node {ODD} has another table after entry"))
        && said.contains("than a majority of the voters (nodes 1 and 2, hash")
        && said.contains(&format!("lockkeeper member replace {ODD}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_table_differs_from_that_of_a_majority_ends_and_says_what_to_do() {
    let mut cluster = cluster_with_two_tables(200).await;
    for id in [1, 2] {
        cluster.node_mut(id).spawn().expect("it starts");
    }
    let config = cluster.node(ODD).config_file().to_owned();
    let (code, _, said) = text(&output(lockkeeper(&["serve", "--config"]).arg(config)).await);
    assert_eq!(code, 20, "{said}");
    assert!(is_named(&said) && !said.contains("panicked"), "{said}");

    // The others go on, and neither takes itself for the one that differs.
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("a").await.expect("free");
    assert_eq!(held.loss(), None);
    for id in [1, 2] {
        let status = cluster.node(id).status().await.expect("it runs");
        assert!(status.serving, "{status:?}");
    }
    cluster.stop().await;
}

/// With one of three down there is no majority: of two tables nobody knows which one is right.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_the_follower_that_differs_is_not_healthy_and_goes_on() {
    let mut cluster = cluster_with_two_tables(200).await;
    for id in [1, ODD] {
        cluster.node_mut(id).spawn().expect("it starts");
    }
    let (leader, follower): (StatusResponse, StatusResponse) = until("a follower that is not healthy", async || {
        let statuses = cluster.statuses().await;
        let leads = statuses.values().find(|status| status.role() == Role::Leader && status.serving)?;
        let follows = statuses.values().find(|status| status.role() == Role::Follower)?;
        let is_told = follows.trouble.contains("its table differs from the leader's");
        is_told.then(|| (leads.clone(), follows.clone()))
    })
    .await;
    assert!(!follower.serving);
    let leads = leader.node_id;
    let follows = follower.node_id;
    let reported = until("the leader's report", async || {
        let status = cluster.node(leads).status().await.ok()?;
        let member = status.members.into_iter().find(|member| member.node_id == follows)?;
        Some(member.trouble).filter(|trouble| trouble.contains("has another table after entry"))
    })
    .await;
    assert!(reported.contains("Copies that disagree"), "{reported}");
    let (code, why) = get(&cluster, follows, "/readyz").await.expect("an answer");
    assert!(code == 503 && why.contains("its table differs"), "{code} {why}");
    for (id, expected) in [(follows, "lockkeeper_table_differs 1\n"), (leads, "lockkeeper_table_differs 0\n")] {
        let (_, metrics) = get(&cluster, id, "/metrics").await.expect("an answer");
        assert!(metrics.contains(expected), "node {id}: {metrics}");
    }

    // The third one shows which table is right.
    cluster.node_mut(2).spawn().expect("it starts");
    let (id, said) = until("a node that ends", async || {
        let ended = cluster.nodes().find(|node| is_named(&node.log_tail()));
        ended.map(|node| (node.id(), node.log_tail()))
    })
    .await;
    assert_eq!(id, ODD, "{said}");
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_with_hashes_names_the_node_whose_table_differs() {
    let mut cluster = cluster_with_two_tables(0).await;
    for id in 1..=3 {
        cluster.node_mut(id).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("all of them serve");
    let endpoints = cluster.endpoints().join(",");
    let said = until("the node's name", async || {
        let (_, said, _) = text(&output(&mut lockkeeper(&["status", "--hash", "--endpoints", &endpoints])).await);
        said.contains("another table").then_some(said)
    })
    .await;
    assert!(said.contains("node 3 has another table at index"), "{said}");
    assert!(said.contains("than nodes 1 and 2, which are a majority"), "{said}");
    cluster.stop().await;
}
