//! The log of a node: one line for what an operator must know, and as JSON where that is asked for.

use std::{fs, time::Duration};

use lockkeeper::local::{ClusterOptions, LocalCluster, LocalNode};
use serde_json::Value;
use tokio::time::{Instant, sleep};

const LONG: Duration = crate::support::LONG;
/// Lines that a leader may write while one of three members is away, and as it comes back: it sends some dozen heartbeats a second.
const LINES_MAX: usize = 12;

fn log(node: &LocalNode) -> String {
    fs::read_to_string(node.log_file()).expect("a log")
}

/// The log of this node, once it has this text.
async fn logged(cluster: &LocalCluster, node: u64, wanted: &str) -> String {
    let deadline = Instant::now() + LONG;
    loop {
        let text = log(cluster.node(node));
        if text.contains(wanted) {
            return text;
        }
        assert!(Instant::now() < deadline, "node {node} does not log {wanted:?}: {text}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_away_is_one_line_and_not_a_line_for_each_heartbeat() {
    let mut options =
        ClusterOptions { nodes: Some(3), timeout: LONG, ..ClusterOptions::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    // A busy machine causes no election.
    (options.raft.election_timeout_ms_min, options.raft.election_timeout_ms_max) = (10_000, 20_000);
    let mut cluster = LocalCluster::start(options).await.expect("three nodes come up");
    let leads = cluster.statuses().await.values().map(|status| status.leader_id).find(|id| *id != 0).expect("a leader");
    let away = (1..=3).find(|node| *node != leads).expect("a follower");

    let before = log(cluster.node(leads)).lines().count();
    cluster.node_mut(away).kill().await;
    logged(&cluster, leads, &format!("member {away} does not answer")).await;
    let node = cluster.node_mut(away);
    let plain = log(node).len();
    node.set_environment([("LOCKKEEPER_LOG_FORMAT".into(), "json".into())]);
    node.spawn().expect("it starts");
    let text = logged(&cluster, leads, &format!("member {away} answers")).await;
    let lines: Vec<&str> = text.lines().skip(before).collect();
    assert!(lines.len() <= LINES_MAX, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("does not answer")).count(), 1, "{lines:#?}");

    let text = logged(&cluster, away, "this node can serve\"").await;
    for line in text[plain..].lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(line["node"] == away && line["message"].is_string() && line["level"].is_string(), "{line}");
    }
    cluster.stop().await;
}
