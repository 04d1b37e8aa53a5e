//! Nodes that end by themselves.

use std::sync::atomic::Ordering::SeqCst;

use super::{
    Rig, WALL_MS,
    client::{Client, write_create},
};
use crate::wire::{JuteWriter, Opcode};

async fn create_ttl(client: &mut Client, path: &str, ttl_ms: i64) {
    let write = |out: &mut JuteWriter| {
        write_create(out, path, b"", 5);
        out.long(ttl_ms);
    };
    client.ask(Opcode::CREATE_TTL, write).await.unwrap();
}

#[tokio::test]
async fn a_container_goes_when_its_last_child_has_gone() {
    let rig = Rig::new(1).await;
    let port = &rig.ports[0];
    let mut client = rig.client().await;
    client.create("/c", b"", 4).await.unwrap();
    client.create("/never", b"", 4).await.unwrap();
    client.create("/plain", b"", 0).await.unwrap();
    for _ in 0..3 {
        assert_eq!(port.sweep().await, Ok(0), "it has had no child");
    }
    client.create("/c/x", b"", 0).await.unwrap();
    client.create("/plain/x", b"", 0).await.unwrap();
    client.delete("/plain/x", -1).await.unwrap();
    assert_eq!(port.sweep().await, Ok(0));
    client.delete("/c/x", -1).await.unwrap();
    client.exists("/c", true).await.unwrap();
    assert_eq!(port.sweep().await, Ok(0), "it was not seen empty before");
    // A child that came and went meanwhile begins the wait anew.
    let sent = client.send(Opcode::CREATE, |out| write_create(out, "/c/y", b"", 0)).await;
    client.reply(sent).await.unwrap();
    client.delete("/c/y", -1).await.unwrap();
    assert_eq!(port.sweep().await, Ok(0));
    assert_eq!(port.sweep().await, Ok(1));
    assert_eq!(client.event().await, (2, "/c".to_owned()));
    for path in ["/never", "/plain"] {
        client.exists(path, false).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_with_a_time_to_live_goes_when_it_is_neither_written_nor_a_parent() {
    let rig = Rig::new(1).await;
    let port = &rig.ports[0];
    let mut client = rig.client().await;
    for path in ["/short", "/written", "/parent"] {
        create_ttl(&mut client, path, 1_000).await;
    }
    create_ttl(&mut client, "/long", 1_000_000).await;
    client.create("/parent/x", b"", 0).await.unwrap();
    rig.wall_ms.store(WALL_MS + 999, SeqCst);
    client.set("/written", b"", -1).await.unwrap();
    for _ in 0..2 {
        assert_eq!(port.sweep().await, Ok(0));
    }
    rig.wall_ms.store(WALL_MS + 1_000, SeqCst);
    assert_eq!(port.sweep().await, Ok(0));
    assert_eq!(port.sweep().await, Ok(1));
    assert_eq!(client.exists("/short", false).await, Err(-101));
    client.delete("/parent/x", -1).await.unwrap();
    port.sweep().await.unwrap();
    assert_eq!(port.sweep().await, Ok(1));
    for path in ["/long", "/written"] {
        client.exists(path, false).await.unwrap();
    }
}

#[tokio::test]
async fn many_are_swept_and_one_that_is_written_meanwhile_keeps_none() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for number in 0..150 {
        create_ttl(&mut client, &format!("/{number}"), 1).await;
    }
    rig.wall_ms.store(WALL_MS + 10, SeqCst);
    rig.ports[0].sweep().await.unwrap();
    let key = b"zookeeper\x0075".to_vec();
    let value = rig.cluster.stored(&key).unwrap().value;
    let put = crate::ZookeeperTxn { writes: vec![crate::ZookeeperWrite::Put { key, value }], ..Default::default() };
    rig.cluster.intrude(vec![put]);
    let removed = rig.ports[0].sweep().await.unwrap();
    assert_eq!(removed, 149);
    assert_eq!(client.children("/", false).await.unwrap().len(), 2);
}
