//! A node that was down while the log was purged catches up with a snapshot.

use std::fs;

use lockkeeper::{
    local::LocalCluster,
    proto::v1::{StatusRequest, StatusResponse, cluster_client::ClusterClient},
};

use crate::support::{LONG, client, cluster_with, leader, long_session, until};

const ENTRIES: u64 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lags_behind_the_purged_log_gets_a_snapshot() {
    let mut cluster = cluster_with(|options| {
        options.raft.snapshot_entries = ENTRIES;
        options.raft.keep_entries = ENTRIES / 5;
    })
    .await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let kept = session.acquire("kept").data(b"through the snapshot").await.expect("free");
    let away = leader(&cluster).await % 3 + 1;
    cluster.node_mut(away).kill().await;
    let left_at = cluster.statuses().await.values().map(|status| status.last_log_index).max().expect("two answer");

    // Until both other nodes have purged the entries that it needs.
    until("the logs to be purged", async || {
        session.acquire("turn").await.expect("free").release().await.expect("it was held");
        let statuses = cluster.statuses().await;
        statuses.values().all(|status| status.purged_index > left_at).then_some(())
    })
    .await;
    cluster.node_mut(away).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("it serves again");

    let other = away % 3 + 1;
    let ask = async |id| -> Option<StatusResponse> {
        let mut asked = ClusterClient::new(cluster.node(id).channel().await.ok()?);
        Some(asked.status(StatusRequest { table_hash: true }).await.ok()?.into_inner())
    };
    until("equal tables", async || {
        let back = ask(away).await?;
        let there = ask(other).await?;
        let same = back.applied_index == there.applied_index && back.applied_index > left_at;
        same.then(|| assert_eq!(back.table_hash, there.table_hash, "equal at an equal index"))
    })
    .await;
    // A status is no atomic view: the snapshot's index may appear after the applied index.
    until("the snapshot that brought it up to date", async || {
        (ask(away).await?.snapshot_index > left_at).then_some(())
    })
    .await;
    // A stale read at this node shows the table from the snapshot.
    let shown = until("its own table", async || {
        let mut locks = lockkeeper::proto::v1::locks_client::LocksClient::new(cluster.node(away).channel().await.ok()?);
        let request = lockkeeper::proto::v1::GetRequest { name: "kept".into(), stale: true, ..Default::default() };
        locks.get(request).await.ok()?.into_inner().lock
    })
    .await;
    assert_eq!(shown.holders[0].token, kept.token().0);
    assert_eq!(shown.data.as_deref(), Some(&b"through the snapshot"[..]));
    kept.release().await.expect("it was held throughout");

    // The beginning and the end of each snapshot are a line, with the size and the time at the end: the operators' page names them.
    let written = lines(&cluster, other, &["writing a snapshot index=", "wrote a snapshot index="]);
    assert!(written[0].0 < written[1].0, "{written:?}");
    let taken = ["taking over the leader's snapshot index=", "took over the leader's snapshot index="];
    let taken = lines(&cluster, away, &taken);
    assert!(taken[0].0 < taken[1].0 && number(&taken[0].1, "index=") > left_at, "{taken:?}");
    assert_eq!(number(&taken[0].1, "bytes="), number(&taken[1].1, "bytes="), "{taken:?}");
    for (_, end) in [&written[1], &taken[1]] {
        assert!(end.contains(" INFO ") && number(end, "bytes=") > 100, "{end}");
        // It says how long it took, whatever that was.
        let _ = number(end, "took_ms=");
    }
}

/// The first line of a node's log with each of these texts, and its number.
fn lines(cluster: &LocalCluster, node: u64, texts: &[&str]) -> Vec<(usize, String)> {
    let log = fs::read_to_string(cluster.node(node).log_file()).expect("a log");
    let first = |text: &&str| {
        let line = log.lines().enumerate().find(|(_, line)| line.contains(text));
        let (number, line) = line.unwrap_or_else(|| panic!("node {node} does not log {text:?}: {log}"));
        (number, line.to_owned())
    };
    texts.iter().map(first).collect()
}

fn number(line: &str, name: &str) -> u64 {
    let value = line.split_once(&format!(" {name}")).and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {line}"))
}
