//! The audit trail: the same bytes on every node, sound after kills, restarts and snapshots.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use lockkeeper::{
    client::Client,
    config::{AuditConfig, AuthConfig},
    local::LocalCluster,
    proto::v1::{AcquireRequest, OpenSessionRequest, Want, locks_client::LocksClient, sessions_client::SessionsClient},
};
use lockkeeper_audit::{AuditEvent, AuditLine, Reader, files_in, verify};
use lockkeeper_policy::BearerToken;
use lockkeeper_types::Identity;
use tempfile::TempDir;

use crate::support::{LONG, client, cluster_with, leader, lockkeeper, long_session, output, text, until};

const ENTRIES: u64 = 40;

/// A cluster with audit files of this size, and with snapshots after few entries.
async fn audited(directory: &TempDir, file_bytes: u64) -> LocalCluster {
    let directory = directory.path().to_owned();
    cluster_with(|options| {
        options.audit = AuditConfig { directory, file_bytes, files_kept: 0 };
        (options.raft.snapshot_entries, options.raft.keep_entries) = (ENTRIES, ENTRIES / 5);
    })
    .await
}

fn files_of(directory: &Path, node: u64) -> Vec<PathBuf> {
    files_in(&directory.join(format!("node-{node}"))).expect("the node has begun its files")
}

/// The lines of a node's files by their numbers, as they are written.
fn lines_of(directory: &Path, node: u64) -> BTreeMap<u64, String> {
    let mut lines = BTreeMap::new();
    for path in files_of(directory, node) {
        let mut reader = Reader::open(&path).expect("an audit file");
        let mut number = reader.header.after;
        while let Some(line) = reader.next().expect("it can be read") {
            number += 1;
            assert_eq!(lines.insert(number, line.to_owned()), None, "line {number} is written twice");
        }
    }
    lines
}

/// What a line tells, and how that came.
fn told(line: &AuditLine<'_>) -> (AuditEvent, Option<String>) {
    (line.what, line.how.as_deref().map(str::to_owned))
}

/// The trail has begun.
async fn begun(cluster: &LocalCluster) {
    until("the cluster version that has the trail", async || {
        let statuses = cluster.statuses().await;
        (statuses.len() == 3 && statuses.values().all(|status| status.audit_lines > 0)).then_some(())
    })
    .await;
}

/// The end of the trail, once all three nodes have the same.
async fn head(cluster: &LocalCluster) -> (u64, String) {
    until("the same end of the trail on all nodes", async || {
        let statuses = cluster.statuses().await;
        let heads: Vec<_> = statuses.values().map(|status| (status.audit_lines, status.audit_head.clone())).collect();
        let (lines, hash) = heads.first()?;
        let is_same = heads.len() == 3 && heads.iter().all(|(other, _)| other == lines);
        is_same.then(|| {
            assert!(heads.iter().all(|(_, other)| other == hash), "the chains differ: {heads:?}");
            (*lines, hash.clone())
        })
    })
    .await
}

/// A wait that is granted, one that is left, an expiry, a forced release, operators' acts and releases.
async fn story(client: &Client, cluster: &LocalCluster) {
    let first = long_session(client).await;
    let second = long_session(client).await;
    let held = first.acquire("seat").await.expect("free");
    let waiter = tokio::spawn(second.acquire("seat").into_future());
    until("the waiter", async || cluster.statuses().await.values().any(|status| status.waiters == 1).then_some(()))
        .await;
    held.release().await.expect("it was held");
    let passed = waiter.await.expect("no panic").expect("it is the next one");
    let gave_up = first.acquire("seat").wait_at_most(Duration::from_millis(50)).await;
    assert!(gave_up.is_err());
    passed.release().await.expect("it was held");

    let forced = second.acquire("forced").await.expect("free");
    assert_eq!(client.force_release("forced", "drill").now().await.expect("an operator may").len(), 1);
    assert!(forced.release().await.is_err());
    first.close().await.expect("it is open");

    // Nobody renews it.
    let channel = cluster.node(leader(cluster).await).channel().await.expect("it serves");
    let open = OpenSessionRequest { ttl_ms: 1_000, label: "short".to_owned(), ..Default::default() };
    let short = SessionsClient::new(channel.clone()).open(open).await.expect("a session").into_inner();
    let want = Want { name: "orphan".to_owned(), ..Want::default() };
    let acquire = AcquireRequest { session_id: short.session_id, locks: vec![want], ..AcquireRequest::default() };
    LocksClient::new(channel).acquire(acquire).await.expect("free");
    let patient = second.acquire("orphan").await.expect("after the expiry");
    patient.release().await.expect("it was held");
    second.close().await.expect("it is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_write_the_same_lines_through_a_kill_and_a_restart() {
    let directory = TempDir::new().expect("a directory");
    // The smallest files, so that they are rotated.
    let mut cluster = audited(&directory, 4096).await;
    begun(&cluster).await;
    let client = client(&cluster);
    story(&client, &cluster).await;
    let killed = leader(&cluster).await;
    cluster.node_mut(killed).kill().await;
    // As if the crash had torn a line.
    let last = files_of(directory.path(), killed).pop().expect("a file");
    let mut torn = OpenOptions::new().append(true).open(last).expect("a file");
    torn.write_all(br#"{"line":1234,"index""#).expect("written");
    story(&client, &cluster).await;
    cluster.node_mut(killed).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("it serves again");
    let (count, hash) = head(&cluster).await;
    cluster.stop().await;

    let mut all = BTreeMap::new();
    for node in 1..=3 {
        let lines = lines_of(directory.path(), node);
        assert_eq!(lines.keys().next_back(), Some(&count), "node {node} has the last line");
        for (number, line) in lines {
            let first = all.entry(number).or_insert_with(|| line.clone());
            assert_eq!(*first, line, "line {number} of node {node}");
        }
        let files = files_of(directory.path(), node);
        assert!(files.len() > 1, "node {node} has begun a second file");
        let mut lines: Vec<(AuditEvent, Option<String>)> = Vec::new();
        let expected = Some(hash.parse().expect("a hash"));
        let report = verify(&files, expected, |line| lines.push(told(line))).expect("sound");
        assert_eq!((report.head.lines, report.open.1, report.open.2), (count, 0, 0));
        let has =
            |what, how: Option<&str>| lines.iter().any(|(told, as_told)| *told == what && as_told.as_deref() == how);
        if node != killed {
            assert_eq!(report.gaps, [], "node {node} was there all the time");
            let whats = [
                AuditEvent::Begun,
                AuditEvent::SessionOpened,
                AuditEvent::Granted,
                AuditEvent::Queued,
                AuditEvent::Released,
            ];
            assert!(whats.into_iter().all(|what| has(what, None)), "{lines:?}");
            assert!(has(AuditEvent::SessionEnded, Some("closed")) && has(AuditEvent::SessionEnded, Some("expired")));
            assert!(has(AuditEvent::Lost, Some("expired")) && has(AuditEvent::Lost, Some("forced")));
            assert!(has(AuditEvent::Left, Some("timed out")) && has(AuditEvent::ForcedRelease, Some("now")));
        }
    }

    let node = killed % 3 + 1;
    let other = (killed + 1) % 3 + 1;
    let path = |node: u64| directory.path().join(format!("node-{node}")).to_string_lossy().into_owned();
    let (code, sound, _) =
        text(&output(&mut lockkeeper(&["audit", "verify", "--head", &hash, &path(node), &path(other)])).await);
    assert_eq!((code, sound.contains(&format!("sound: lines 1 to {count} "))), (0, true), "{sound}");
    let (code, story, _) = text(&output(&mut lockkeeper(&["audit", "show", "--lock", "forced", &path(node)])).await);
    assert_eq!(
        (code, story.lines().filter(|line| line.contains("forced release of forced")).count()),
        (0, 2),
        "{story}"
    );
    assert!(story.contains("reason: drill"), "{story}");

    let first = &files_of(directory.path(), node)[0];
    let changed = fs::read_to_string(first).expect("text").replacen("\"label\":\"test\"", "\"label\":\"best\"", 1);
    fs::write(first, changed).expect("written");
    let (code, _, broken) = text(&output(&mut lockkeeper(&["audit", "verify", &path(node)])).await);
    assert!(code == 1 && broken.contains("the chain breaks"), "{code} {broken}");
}

/// Whoever asks for all data of the cluster and may not have them is in the trail, as for any other request.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_backup_is_in_the_trail() {
    let directory = TempDir::new().expect("a directory");
    let token = BearerToken::from_random([7; 32]);
    let auth = AuthConfig {
        tokens: directory.path().join("tokens.toml"),
        policy: directory.path().join("policy.toml"),
        ..AuthConfig::default()
    };
    fs::write(&auth.tokens, token.entry(&Identity::new("eyes").expect("valid"))).expect("written");
    fs::write(&auth.policy, "[[rule]]\nwho = [\"eyes\"]\nmay = [\"read\"]\n").expect("written");
    let trail = directory.path().join("audit");
    let cluster = cluster_with(|options| {
        options.audit = AuditConfig { directory: trail.clone(), ..AuditConfig::default() };
        options.nodes = Some(1);
        options.auth = auth;
    })
    .await;
    until("the trail begins", async || {
        cluster.statuses().await.values().any(|status| status.audit_lines > 0).then_some(())
    })
    .await;

    let file = directory.path().join("all.backup").to_string_lossy().into_owned();
    let endpoints = cluster.endpoints().join(",");
    let arguments = ["snapshot", "save", &file, "--endpoints", &endpoints];
    let run = output(lockkeeper(&arguments).env("LOCKKEEPER_BEARER_TOKEN", token.reveal())).await;
    let (code, _, err) = text(&run);
    assert!(code == 13 && err.contains("may not administer"), "{code} {err}");

    let note = until("the note", async || {
        let mut lines = lines_of(&trail, 1).into_values();
        lines.find(|line| line.contains(r#""act":"refused""#))
    })
    .await;
    assert!(note.contains(r#""by":"eyes""#) && note.contains("administer"), "{note}");
}

/// A follower sends it without asking the leader, which writes the trail.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_a_follower_sends_is_in_the_trail() {
    let directory = TempDir::new().expect("a directory");
    let trail = directory.path().join("audit");
    let options = AuditConfig { directory: trail.clone(), ..AuditConfig::default() };
    let cluster = cluster_with(|cluster| cluster.audit = options).await;
    begun(&cluster).await;

    let leading = leader(&cluster).await;
    let follower = leading % 3 + 1;
    let file = directory.path().join("all.backup").to_string_lossy().into_owned();
    let endpoint = cluster.node(follower).endpoint();
    let saved = output(&mut lockkeeper(&["snapshot", "save", &file, "--endpoints", &endpoint])).await;
    assert_eq!(text(&saved).0, 0, "{:?}", text(&saved));

    let target = format!("from node {follower}");
    let line = until("the line", async || {
        let mut lines = lines_of(&trail, leading).into_values();
        lines.find(|line| line.contains(r#""act":"save-snapshot""#))
    })
    .await;
    assert!(line.contains(&target), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_got_a_snapshot_has_a_gap_which_another_one_fills() {
    let directory = TempDir::new().expect("a directory");
    let mut cluster = audited(&directory, 1 << 20).await;
    begun(&cluster).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let away = leader(&cluster).await % 3 + 1;
    cluster.node_mut(away).kill().await;
    let left_at = cluster.statuses().await.values().map(|status| status.last_log_index).max().expect("two answer");
    until("the logs to be purged", async || {
        session.acquire("turn").await.expect("free").release().await.expect("it was held");
        cluster.statuses().await.values().all(|status| status.purged_index > left_at).then_some(())
    })
    .await;
    cluster.node_mut(away).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("it serves again");
    // The new file is begun by the first line after the gap.
    session.acquire("turn").await.expect("free").release().await.expect("it was held");
    let (count, hash) = head(&cluster).await;
    cluster.stop().await;

    let hash = Some(hash.parse().expect("a hash"));
    let own = files_of(directory.path(), away);
    let report = verify(&own, hash, |_| {}).expect("sound");
    assert_eq!((report.gaps.len(), report.head.lines), (1, count), "{report:?}");
    let filled = [own, files_of(directory.path(), away % 3 + 1)].concat();
    let report = verify(&filled, hash, |_| {}).expect("sound");
    assert_eq!((report.gaps, report.first, report.head.lines), (vec![], 1, count));
}
