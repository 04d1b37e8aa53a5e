//! Words of four letters.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{PATIENCE, Rig};
use crate::wire::Opcode;

async fn ask(rig: &Rig, index: usize, word: &str) -> String {
    let mut stream = rig.socket(index).await;
    stream.write_all(word.as_bytes()).await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.expect("in time").unwrap();
    text
}

#[tokio::test]
async fn probes_are_answered_with_figures_that_are_true() {
    let rig = Rig::new(2).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    client.create("/a/e", b"", 1).await.unwrap();
    client.get("/a", true).await.unwrap();
    client.ask(Opcode::PING, |_| {}).await.unwrap();

    assert_eq!(ask(&rig, 0, "ruok\n").await, "imok");
    assert_eq!(ask(&rig, 0, "isro").await, "rw");
    assert!(ask(&rig, 0, "envi").await.contains("\nzookeeper.version=3.8.0-"));
    let text = ask(&rig, 0, "srvr").await;
    assert!(text.starts_with("Zookeeper version: 3.8.0-"), "{text}");
    // The connect and four requests, and their answers.
    for line in ["Received: 5", "Sent: 5", "Connections: 1", "Outstanding: 0", "Mode: leader", "Node count: 6"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(text.contains(&format!("Zxid: 0x{:x}\n", rig.cluster.revision())), "{text}");
    assert!(ask(&rig, 1, "srvr").await.contains("Mode: follower"));

    let monitor = ask(&rig, 0, "mntr").await;
    for line in ["zk_znode_count\t6", "zk_ephemerals_count\t1", "zk_watch_count\t1", "zk_num_alive_connections\t1"] {
        assert!(monitor.lines().any(|found| found == line), "{line} in {monitor}");
    }
    assert!(ask(&rig, 0, "cons").await.contains(&format!("sid=0x{:x}", client.session())));
    assert!(ask(&rig, 0, "stat").await.contains("(queued=0,recved=5,sent=5)"));
    assert_eq!(ask(&rig, 0, "wchs").await, "1 connections watching 1 paths\nTotal watches:1\n");
    assert!(ask(&rig, 0, "dump").await.contains("\t/a/e\n"));
    assert!(ask(&rig, 0, "conf").await.contains("minSessionTimeout=4000\nmaxSessionTimeout=40000\n"));
    assert!(ask(&rig, 0, "quit").await.contains("not in the whitelist"));
}

#[tokio::test]
async fn nodes_are_counted_when_they_have_changed_and_not_for_each_word() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for number in 0..50 {
        client.create(&format!("/{number}"), b"", 0).await.unwrap();
    }

    assert!(ask(&rig, 0, "srvr").await.contains("Node count: 54"));
    let shown = rig.cluster.shown();
    assert!(shown >= 50, "{shown}");
    for word in ["srvr", "stat", "mntr", "srvr"] {
        assert!(ask(&rig, 0, word).await.contains("54"));
    }
    assert_eq!(rig.cluster.shown(), shown);

    client.create("/another", b"", 0).await.unwrap();
    let mut text = ask(&rig, 0, "srvr").await;
    while !text.contains("Node count: 55") {
        text = ask(&rig, 0, "srvr").await;
    }
}

#[tokio::test]
async fn a_node_without_a_leader_says_that_it_does_not_serve() {
    let rig = Rig::new(1).await;
    rig.cluster.cut_off(0);
    assert_eq!(ask(&rig, 0, "ruok").await, "imok");
    assert!(ask(&rig, 0, "srvr").await.contains("not currently serving requests"));
}

#[tokio::test]
async fn strangers_do_not_see_who_is_connected() {
    let rig = Rig::new(1).await;
    rig.cluster.add_user("ann", "hush");
    for word in ["cons", "dump", "stat", "wchs"] {
        assert!(ask(&rig, 0, word).await.contains("no certificate"));
    }
    assert!(ask(&rig, 0, "srvr").await.contains("Mode: standalone"));
}
