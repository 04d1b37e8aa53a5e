//! A whole node on a log with an entry that no node can apply: it stops before it and names it, and `recover --through` goes on without it.

use std::{fs, path::Path};

use lockkeeper::{
    local::LocalCluster,
    raft::{
        log::{LogOptions, LogStore},
        types::{EntryPayload, LogEntry, LogId, Payload, TypeConfig},
    },
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage as _},
    type_config::TypeConfigExt as _,
};

use crate::support::{client, cluster_of, lockkeeper, long_session, output, text};

/// A cluster of one node, which has granted a lock and does not run.
async fn stopped_cluster() -> LocalCluster {
    let mut cluster = cluster_of(1).await;
    let session = long_session(&client(&cluster)).await;
    std::mem::forget(session.acquire("kept").await.expect("free"));
    cluster.node_mut(1).stop().await.expect("it ran");
    cluster
}

/// The last entry of a node's log.
async fn last_entry(log: &mut LogStore) -> LogId {
    log.get_log_state().await.expect("readable").last_log_id.expect("it has entries")
}

fn directory(cluster: &LocalCluster) -> &Path {
    &cluster.node(1).config().data_dir
}

/// Starts the node, which ends by itself. Returns its exit code and stderr.
async fn serve_to_its_end(cluster: &LocalCluster, environment: Option<(&str, String)>) -> (i32, String) {
    let mut serve = lockkeeper(&["serve", "--config"]);
    serve.arg(cluster.node(1).config_file()).envs(environment);
    let (code, _, said) = text(&output(&mut serve).await);
    (code, said)
}

/// Makes a new cluster that ends after this entry, and returns the text of the locks in it.
async fn recover(cluster: &mut LocalCluster, through: u64) -> String {
    let aside = tempfile::tempdir().expect("a directory");
    let made = aside.path().join("made");
    let member = cluster.node(1).config().this_member().expect("it is a member").clone();
    let member = format!("1={},{}", member.peer_address, member.client_address);
    let through = through.to_string();
    let from = directory(cluster).to_owned();
    let into = made.to_owned();
    let mut recover = lockkeeper(&["recover", "--force-new-cluster", "--cluster-id", "again", "--now"]);
    recover.args(["--through", &through, "--member", &member]);
    recover.arg("--data-dir").arg(&from).arg("--into").arg(&into);
    let (code, _, said) = text(&output(&mut recover).await);
    assert_eq!(code, 0, "{said}");

    fs::remove_dir_all(&from).expect("removed");
    fs::rename(&made, &from).expect("on one file system");
    let file = cluster.node(1).config_file();
    let config = fs::read_to_string(file).expect("readable");
    let id = config.lines().find(|line| line.starts_with("cluster_id = ")).expect("it names its cluster");
    fs::write(file, config.replace(id, "cluster_id = \"again\"")).expect("written");
    cluster.node_mut(1).spawn().expect("it starts");
    cluster.ready(crate::support::LONG).await.expect("the new cluster serves");
    let endpoints = cluster.endpoints().join(",");
    text(&output(&mut lockkeeper(&["list", "--endpoints", &endpoints])).await).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_before_an_entry_that_cannot_be_decoded_and_goes_on_without_it() {
    let mut cluster = stopped_cluster().await;
    let mut log = LogStore::open(&directory(&cluster).join("log"), LogOptions::default()).expect("nobody uses it");
    let last = last_entry(&mut log).await;
    let bad = LogId { index: last.index + 1, ..last };
    let payload = EntryPayload::Normal(Payload(b"no batch of this or of a later version".as_slice().into()));
    let (flushed, answer) = TypeConfig::oneshot();
    let entry = LogEntry { log_id: bad, payload };
    log.append(vec![entry], IOFlushed::<TypeConfig>::signal(flushed)).await.expect("appended");
    answer.await.expect("answered").expect("flushed");
    log.close().await.expect("closed");
    drop(log);

    // At each start.
    for _ in 0..2 {
        let (code, said) = serve_to_its_end(&cluster, None).await;
        assert_eq!(code, 23, "{said}");
        assert!(said.contains(&format!("log entry {bad} cannot be decoded")), "{said}");
        assert!(said.contains(&format!("lockkeeper recover --through {}", last.index)), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    let locks = recover(&mut cluster, last.index).await;
    assert!(locks.contains("kept"), "{locks}");
    cluster.stop().await;
}

/// A panic while an entry is applied ends the process, and the hook names the entry. Only builds for development can be asked for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_panics_over_an_entry_names_it_and_goes_on_without_it() {
    let mut cluster = stopped_cluster().await;
    let mut log = LogStore::open(&directory(&cluster).join("log"), LogOptions::default()).expect("nobody uses it");
    let last = last_entry(&mut log).await;
    let reader = &mut log.get_log_reader().await;
    let entries = openraft::RaftLogReader::try_get_log_entries(reader, ..).await.expect("readable");
    let batches = entries.iter().filter(|entry| matches!(entry.payload, EntryPayload::Normal(_)));
    // After the one that opened the session and the one that acquired the lock there may be ticks.
    let bad = batches.map(|entry| entry.log_id).max().expect("it wrote commands");
    log.close().await.expect("closed");
    drop(log);
    assert!(bad.index <= last.index);

    for _ in 0..2 {
        let asked = ("LOCKKEEPER_PANIC_AT_ENTRY", bad.index.to_string());
        let (code, said) = serve_to_its_end(&cluster, Some(asked)).await;
        assert_eq!(code, 23, "{said}");
        assert!(said.contains(&format!("log entry {bad} cannot be applied (its command 1 of ")), "{said}");
        assert!(said.contains(&format!("a test asked for a panic at entry {}", bad.index)), "{said}");
        assert!(said.contains(&format!("lockkeeper recover --through {}", bad.index - 1)), "{said}");
    }
    let locks = recover(&mut cluster, bad.index - 1).await;
    assert!(!locks.is_empty());
    cluster.stop().await;
}
