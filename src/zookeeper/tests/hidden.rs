//! Events of nodes that the client which watches them may not read: nobody is told of them (CVE-2024-23944 of ZooKeeper).

use super::{
    Rig,
    access::{authenticate, create_with, entry},
    client::Client,
    watches::{CHILDREN, CREATED, DATA, DELETED, add_watch, event, events},
};
use crate::wire::{AclEntry, Opcode};

/// A client that has proven to be Ann.
async fn ann(rig: &Rig) -> Client {
    let mut client = rig.client().await;
    authenticate(&mut client, "digest", b"ann:hush").await.unwrap();
    client
}

/// A list for the one who gives it.
fn own() -> [AclEntry; 1] {
    [entry(31, "auth", "")]
}

async fn set_acl(client: &mut Client, path: &str, acl: &[AclEntry]) {
    let set = client.ask(Opcode::SET_ACL, |out| {
        out.string(path);
        AclEntry::write_list(acl, out);
        out.int(-1);
    });
    set.await.unwrap();
}

#[tokio::test]
async fn a_recursive_watch_is_told_only_of_nodes_that_its_client_may_read() {
    let rig = Rig::new(1).await;
    let mut writer = ann(&rig).await;
    let mut insider = ann(&rig).await;
    let mut stranger = rig.client().await;
    for watcher in [&mut insider, &mut stranger] {
        add_watch(watcher, "/", 1).await;
    }

    create_with(&mut writer, "/own", &own()).await.unwrap();
    writer.create("/own/open", b"", 0).await.unwrap();
    writer.set("/own", b"x", -1).await.unwrap();
    writer.delete("/own/open", -1).await.unwrap();
    writer.delete("/own", -1).await.unwrap();
    let all = [
        event(CREATED, "/own"),
        event(CREATED, "/own/open"),
        event(DATA, "/own"),
        event(DELETED, "/own/open"),
        event(DELETED, "/own"),
    ];
    assert_eq!(events(&mut insider).await, all);
    // As with ZooKeeper, the list of the node itself counts, and not that of its parent.
    assert_eq!(events(&mut stranger).await, [event(CREATED, "/own/open"), event(DELETED, "/own/open")]);
}

#[tokio::test]
async fn a_watch_of_one_shot_is_gone_though_its_client_is_not_told() {
    let rig = Rig::new(1).await;
    let mut writer = ann(&rig).await;
    let mut stranger = rig.client().await;
    assert_eq!(stranger.exists("/own", true).await, Err(-101));
    create_with(&mut writer, "/own", &own()).await.unwrap();
    assert_eq!(events(&mut stranger).await, []);
    assert_eq!(rig.ports[0].stats().watches, 0);

    // To see that it is there, no right is needed.
    stranger.exists("/own", true).await.unwrap();
    writer.set("/own", b"x", -1).await.unwrap();
    set_acl(&mut writer, "/own", &[AclEntry::open()]).await;
    writer.set("/own", b"y", -1).await.unwrap();
    assert_eq!(events(&mut stranger).await, []);
    stranger.get("/own", true).await.unwrap();
    writer.set("/own", b"z", -1).await.unwrap();
    assert_eq!(events(&mut stranger).await, [event(DATA, "/own")]);
}

#[tokio::test]
async fn children_are_told_to_those_who_may_list_them_at_that_time() {
    let rig = Rig::new(1).await;
    let mut writer = ann(&rig).await;
    let mut stranger = rig.client().await;
    writer.create("/parent", b"", 0).await.unwrap();
    add_watch(&mut stranger, "/parent", 0).await;
    create_with(&mut writer, "/parent/own", &own()).await.unwrap();
    assert_eq!(events(&mut stranger).await, [event(CHILDREN, "/parent")], "the parent's list counts");

    // The list is closed and opened again before the events leave: the one of each change counts.
    stranger.children("/parent", true).await.unwrap();
    set_acl(&mut writer, "/parent", &own()).await;
    writer.create("/parent/x", b"", 0).await.unwrap();
    writer.delete("/parent/x", -1).await.unwrap();
    set_acl(&mut writer, "/parent", &[AclEntry::open()]).await;
    assert_eq!(events(&mut stranger).await, []);
    writer.create("/parent/y", b"", 0).await.unwrap();
    assert_eq!(events(&mut stranger).await, [event(CHILDREN, "/parent")], "the watch that stays");
}

#[tokio::test]
async fn the_end_of_a_node_is_told_by_the_list_that_it_had_last() {
    let rig = Rig::new(1).await;
    let mut writer = ann(&rig).await;
    let mut stranger = rig.client().await;
    writer.create("/closed", b"", 0).await.unwrap();
    create_with(&mut writer, "/opened", &own()).await.unwrap();
    stranger.get("/closed", true).await.unwrap();
    stranger.children("/closed", true).await.unwrap();
    stranger.exists("/opened", true).await.unwrap();

    set_acl(&mut writer, "/closed", &own()).await;
    set_acl(&mut writer, "/opened", &[AclEntry::open()]).await;
    writer.delete("/closed", -1).await.unwrap();
    writer.delete("/opened", -1).await.unwrap();
    assert_eq!(events(&mut stranger).await, [event(DELETED, "/opened")]);
    assert_eq!(rig.ports[0].stats().watches, 0);
}

#[tokio::test]
async fn what_a_client_proves_after_it_has_set_a_watch_counts_when_the_watch_fires() {
    let rig = Rig::new(1).await;
    let mut writer = ann(&rig).await;
    let mut watcher = rig.client().await;
    watcher.exists("/own", true).await.unwrap_err();
    authenticate(&mut watcher, "digest", b"ann:hush").await.unwrap();
    create_with(&mut writer, "/own", &own()).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(CREATED, "/own")]);
}

#[tokio::test]
async fn what_the_policy_has_come_to_forbid_is_not_told() {
    let rig = Rig::new(1).await;
    let mut owner = rig.client().await;
    let mut watcher = rig.client().await;
    for path in ["/hidden", "/open"] {
        owner.create(path, b"", 1).await.unwrap();
    }
    add_watch(&mut watcher, "/", 1).await;
    watcher.get("/hidden", true).await.unwrap();

    rig.cluster.forbid("hidden");
    rig.cluster.expire(owner.session());
    assert_eq!(events(&mut watcher).await, [event(DELETED, "/open")]);
    assert_eq!(rig.ports[0].stats().watches, 1, "the one that stays");
}
