//! Data and configurations with which a node refuses to start, and requests that reach the wrong cluster.

use std::{fs, path::Path, time::Duration};

use lockkeeper::{
    client::{Client, SessionOptions},
    config::Config,
    local::LocalCluster,
    raft::identity::FILE_NAME,
};

use crate::support::{LONG, client, cluster, cluster_of, leader, lockkeeper, long_session, output, text, until};

/// Runs a node that must not start. Returns its exit code and its stderr.
async fn refused(config: &Path, arguments: &[&str]) -> (i32, String) {
    let (code, _, said) = text(&output(lockkeeper(&["serve", "--config"]).arg(config).args(arguments)).await);
    assert!(!said.contains("panicked"), "{said}");
    (code, said)
}

fn assert_refused((code, said): (i32, String), expected: i32, words: &[&str]) {
    assert_eq!(code, expected, "{said}");
    for word in words {
        assert!(said.contains(word), "it does not say {word:?}:\n{said}");
    }
}

fn data_directory(cluster: &LocalCluster, id: u64) -> &Path {
    &cluster.node(id).config().data_dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_and_a_taken_address_are_refused() {
    let cluster = cluster().await;
    let node = cluster.node(1);
    let taken = refused(node.config_file(), &[]).await;
    assert_refused(taken, i32::from(lockkeeper::local::EXIT_ADDRESS_IN_USE), &[&node.config().client_listen, "in use"]);
    let locked = refused(node.config_file(), &["--client-listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]).await;
    assert_refused(locked, 20, &[&data_directory(&cluster, 1).display().to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_and_a_wiped_data_directory_are_refused() {
    let mut cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat").await.expect("free");
    cluster.node_mut(1).kill().await;
    let node = cluster.node(1);

    let foreign = refused(node.config_file(), &["--cluster-id", "another"]).await;
    assert_refused(foreign, 25, &["another", &data_directory(&cluster, 1).display().to_string()]);

    let elsewhere = tempfile::tempdir().expect("a directory");
    fs::write(elsewhere.path().join("letters.txt"), "not ours").expect("written");
    let not_ours = refused(node.config_file(), &["--data-dir", &elsewhere.path().display().to_string()]).await;
    assert_refused(not_ours, 25, &[&elsewhere.path().display().to_string()]);
    assert!(elsewhere.path().join("letters.txt").exists(), "nothing of it was touched");

    fs::remove_dir_all(data_directory(&cluster, 1)).expect("wiped");
    let wiped = refused(node.config_file(), &[]).await;
    assert_refused(wiped, 25, &["node 1", "put its own data directory back"]);

    // The other two nodes serve, and nothing is lost.
    let check = client(&cluster).check("seat", held.token()).await.expect("the cluster answers");
    assert!(check.held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_refused_or_loses_nothing() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    for number in 0..50 {
        std::mem::forget(session.acquire(&format!("seat/{number}")).await.expect("free"));
    }
    // The node records its committed index outside of its log.
    let identity = data_directory(&cluster, 2).join(FILE_NAME);
    until("the note", async || fs::read_to_string(&identity).ok()?.contains("committed_index").then_some(())).await;
    cluster.node_mut(2).kill().await;
    let database = find(data_directory(&cluster, 2), "db").expect("sled's file");
    let whole = fs::read(&database).expect("read");
    // A truncated database: with an empty log, the node could vote a second time in a term.
    fs::write(&database, []).expect("cut");
    let (code, said) = refused(cluster.node(2).config_file(), &[]).await;
    assert_eq!(code, 25, "{said}");
    assert!(said.contains("replace this node"), "it does not say what to do:\n{said}");
    fs::write(&database, whole).expect("mended");
    // A missing log directory, with the high-water mark in it.
    let log = data_directory(&cluster, 2).join("log");
    let aside = data_directory(&cluster, 2).with_extension("aside");
    fs::rename(&log, &aside).expect("moved");
    let (code, said) = refused(cluster.node(2).config_file(), &[]).await;
    assert_eq!(code, 25, "{said}");
    assert!(said.contains("it is gone, with this node's votes and acknowledged entries"), "{said}");
    fs::remove_dir_all(&log).expect("removed");
    fs::rename(&aside, &log).expect("moved back");
    cluster.node_mut(2).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_be_used_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("node.toml");
    let good =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/cluster-configs/node1.toml")).expect("the sample");
    let parsed: Config = toml::from_str(&good).expect("the sample is good");
    assert_eq!(parsed.node_id, 1);
    let cases: [(String, &[&str]); 4] = [
        (format!("colour = \"red\"\n{good}"), &["colour"]),
        (good.replace("node_id = 2", "node_id = 1"), &["node_id", "1"]),
        (good.replacen("node_id = 1", "node_id = 9", 1), &["9", "members"]),
        ("this is not TOML".to_string(), &["node.toml"]),
    ];
    for (text, words) in cases {
        fs::write(&file, &text).expect("written");
        assert_refused(refused(&file, &[]).await, 2, words);
    }
    let missing = directory.path().join("missing.toml");
    assert_refused(refused(&missing, &[]).await, 2, &["missing.toml"]);
    fs::write(&file, &good).expect("written");
    let unwritable =
        ["--data-dir", "/proc/lockkeeper", "--client-listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"];
    assert_refused(refused(&file, &unwritable).await, 20, &["/proc/lockkeeper"]);
}

/// Pods and ports of a laptop are given to others. The last leader that a node knows is dead, and another cluster's leader has its address.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_not_executed_by_another_cluster_at_the_leaders_address() {
    let mut cluster = cluster().await;
    let mut stranger = cluster_of(1).await;
    let led = leader(&cluster).await;
    let left = led % 3 + 1;
    let other = left % 3 + 1;
    let taken = cluster.node(led).config().peer_listen.clone();
    cluster.node_mut(other).kill().await;
    cluster.node_mut(led).kill().await;

    stranger.node_mut(1).stop().await;
    let node = stranger.node(1);
    let config = fs::read_to_string(node.config_file()).expect("readable");
    let moved = config.replace(&node.config().peer_listen, &taken);
    assert_ne!(config, moved);
    fs::write(node.config_file(), moved).expect("written");
    stranger.node_mut(1).spawn().expect("it starts");
    stranger.ready(LONG).await.expect("it serves");

    let endpoint = cluster.node(left).endpoint();
    let brief = Client::builder(&endpoint).call_limit(Duration::from_secs(2)).build().expect("a valid endpoint");
    until("a request that reached the other cluster", async || {
        let options = SessionOptions { ttl: LONG, label: "astray".to_owned() };
        brief.open(options).await.expect_err("there is no majority");
        let log = fs::read_to_string(cluster.node(left).log_file()).expect("readable");
        log.contains("another node answers at the leader's address").then_some(())
    })
    .await;
    let sessions = client(&stranger).sessions("").await.expect("it serves");
    assert!(sessions.sessions.is_empty(), "{sessions:?}");
}

/// Finds the file of this name in the tree.
fn find(directory: &Path, name: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| match entry.path() {
        path if path.is_dir() => find(&path, name),
        path => (entry.file_name() == name).then_some(path),
    })
}
