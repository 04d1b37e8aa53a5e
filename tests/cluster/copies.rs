//! Data directories that are replaced by an older copy.

use std::{fs, io::ErrorKind, path::Path};

use lockkeeper::{local::LocalCluster, proto::v1::StatusResponse};

use crate::support::{LONG, client, cluster, leader, lockkeeper, long_session, output, text, until};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let path = entry.as_ref().expect("readable").path();
        let to = to.join(entry.expect("readable").file_name());
        if path.is_dir() {
            copy(&path, &to);
        } else if let Err(error) = fs::copy(&path, &to) {
            // A node that runs removes what it needs no longer.
            assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", path.display());
        }
    }
}

async fn acquire(cluster: &LocalCluster, name: &str) {
    let session = long_session(&client(cluster)).await;
    std::mem::forget(session.acquire(name).await.expect("free"));
}

async fn status(cluster: &LocalCluster, id: u64) -> Option<StatusResponse> {
    cluster.statuses().await.remove(&id)
}

/// Waits until a node has applied what the leader has committed.
async fn catches_up(cluster: &LocalCluster, id: u64) {
    let leader = leader(cluster).await;
    until("a node that catches up", async || {
        let there = status(cluster, leader).await?;
        let here = status(cluster, id).await?;
        (here.applied_index == there.committed_index).then_some(())
    })
    .await;
}

async fn follower(cluster: &LocalCluster) -> u64 {
    leader(cluster).await % 3 + 1
}

/// Replaces a node's data by a copy, and starts the node, which must refuse. Returns its stderr.
async fn put_back(cluster: &mut LocalCluster, id: u64, older: &Path) -> String {
    let directory = cluster.node(id).config().data_dir.clone();
    fs::remove_dir_all(&directory).expect("removed");
    copy(older, &directory);
    let config = cluster.node(id).config_file().to_owned();
    let (code, _, said) = text(&output(lockkeeper(&["serve", "--config"]).arg(config)).await);
    assert_eq!(code, 25, "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_older_copy_of_its_data_refuses_to_start_and_says_why() {
    let mut cluster = cluster().await;
    acquire(&cluster, "first").await;
    let id = follower(&cluster).await;
    catches_up(&cluster, id).await;
    let aside = tempfile::tempdir().expect("a directory");
    let own = tempfile::tempdir().expect("a directory");
    let directory = cluster.node(id).config().data_dir.clone();

    // A copy of a running node, as a file backup makes it. The other nodes know the later entries that this node acknowledged.
    copy(&directory, &aside.path().join("running"));
    acquire(&cluster, "second").await;
    catches_up(&cluster, id).await;
    cluster.node_mut(id).kill().await;
    copy(&directory, &aside.path().join("stopped"));
    copy(&directory, &own.path().join("data"));
    let said = put_back(&mut cluster, id, &aside.path().join("running")).await;
    assert!(said.contains("older copy") && said.contains("that it had entry"), "{said}");
    // A second start, as by a supervisor, is refused too.
    let config = cluster.node(id).config_file().to_owned();
    let (code, _, said) = text(&output(lockkeeper(&["serve", "--config"]).arg(config)).await);
    assert!(code == 25 && said.contains("older copy"), "{said}");

    // Its current data are accepted. From then on, data from before that start are refused.
    fs::remove_dir_all(&directory).expect("removed");
    copy(&own.path().join("data"), &directory);
    cluster.node_mut(id).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves again");
    catches_up(&cluster, id).await;
    cluster.node_mut(id).kill().await;
    let said = put_back(&mut cluster, id, &aside.path().join("stopped")).await;
    assert!(said.contains("older copy"), "{said}");

    // The other two nodes serve, and nothing is lost.
    let there = client(&cluster).list("", "").await.expect("the cluster answers");
    assert_eq!(there.locks.len(), 2);
}

/// The latest start in the identity of a node.
fn latest_start(cluster: &LocalCluster, id: u64) -> Option<String> {
    let text = identity(cluster, id);
    let starts = text.lines().skip_while(|line| !line.starts_with("starts = "));
    let starts: String = starts.take_while(|line| !line.starts_with("starting") && !line.starts_with("[[")).collect();
    starts.rsplit('"').nth(1).map(str::to_owned)
}

fn identity(cluster: &LocalCluster, id: u64) -> String {
    fs::read_to_string(cluster.node(id).config().data_dir.join("identity.toml")).expect("readable")
}

/// Two followers that never relied on each other: with the leader down, they would be a majority that lacks what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_known_to_the_other_follower_though_the_leader_is_down() {
    let mut cluster = cluster().await;
    acquire(&cluster, "first").await;
    let leads = leader(&cluster).await;
    let id = leads % 3 + 1;
    let other = (leads + 1) % 3 + 1;
    catches_up(&cluster, id).await;
    let aside = tempfile::tempdir().expect("a directory");
    let directory = cluster.node(id).config().data_dir.clone();
    cluster.node_mut(id).stop().await.expect("it ran");
    copy(&directory, &aside.path().join("older"));
    cluster.node_mut(id).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves");
    catches_up(&cluster, id).await;
    let started = latest_start(&cluster, id).expect("it was started");
    let knows = async || identity(&cluster, other).contains(&started).then_some(());
    until("the other follower knows the start", knows).await;

    cluster.node_mut(leads).kill().await;
    cluster.node_mut(id).kill().await;
    let said = put_back(&mut cluster, id, &aside.path().join("older")).await;
    assert!(said.contains("older copy") && said.contains(&format!("node {other} remembers")), "{said}");
}
