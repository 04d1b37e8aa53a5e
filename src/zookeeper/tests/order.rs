//! The guarantees of order over two nodes, one of which lags.

use super::{
    Rig,
    client::{Told, drop_ref, write_create},
    until,
};
use crate::wire::Opcode;

#[tokio::test]
async fn own_writes_are_read_at_a_node_that_lags() {
    let rig = Rig::new(2).await;
    let mut client = rig.client_at(1).await;
    rig.cluster.hold(1);
    // The write is done elsewhere, and answered when this node has it.
    let create = client.send(Opcode::CREATE, |out| write_create(out, "/a", b"mine", 0)).await;
    let get = client.send(Opcode::GET_DATA, |out| drop_ref(out.string("/a").bool(false))).await;
    until("the write is done", || rig.cluster.stored(b"zookeeper\0a").is_some()).await;
    let mut other = rig.client_at(0).await;
    assert_eq!(other.get("/a", false).await.unwrap().0, b"mine");
    rig.cluster.release(1);
    let (written, _) = client.reply(create).await.unwrap();
    let (read, _) = client.reply(get).await.unwrap();
    assert!(read >= written);
}

#[tokio::test]
async fn zxid_never_falls_for_a_client_that_goes_to_a_node_that_lags() {
    let rig = Rig::new(2).await;
    let mut client = rig.client_at(0).await;
    rig.cluster.hold(1);
    let (_, zxid) = client.create("/a", b"", 0).await.unwrap();
    let again = rig.again(1, &client);
    tokio::pin!(again);
    // The node does not serve it before it has all that the client has seen.
    tokio::select! {
        biased;
        _ = &mut again => panic!("served by a node that lags"),
        () = until("the attach is done", || rig.cluster.revision() > u64::try_from(zxid).unwrap()) => {}
    }
    rig.cluster.release(1);
    let mut again = again.await.unwrap();
    assert!(again.exists("/a", false).await.is_ok());
    assert!(again.zxid > zxid);
}

#[tokio::test]
async fn reads_may_be_old_and_a_sync_makes_them_fresh() {
    let rig = Rig::new(2).await;
    let mut reader = rig.client_at(1).await;
    let mut writer = rig.client_at(0).await;
    rig.cluster.hold(1);
    for _ in 0..20 {
        writer.create("/n-", b"", 2).await.unwrap();
    }
    assert_eq!(reader.children("/", false).await.unwrap(), ["zookeeper"]);
    let sync = reader.send(Opcode::SYNC, |out| drop_ref(out.string("/"))).await;
    let list = reader.send(Opcode::GET_CHILDREN, |out| drop_ref(out.string("/").bool(false))).await;
    rig.cluster.release(1);
    let (synced, _) = reader.reply(sync).await.unwrap();
    assert_eq!(synced, writer.zxid);
    let (_, body) = reader.reply(list).await.unwrap();
    assert_eq!(super::Body(&body).strings().len(), 21);
}

#[tokio::test]
async fn a_failure_that_a_node_that_lags_finds_is_confirmed_before_it_is_told() {
    let rig = Rig::new(2).await;
    let mut ahead = rig.client_at(0).await;
    let mut behind = rig.client_at(1).await;
    rig.cluster.hold(1);
    ahead.create("/a", b"", 0).await.unwrap();
    ahead.set("/a", b"1", 0).await.unwrap();
    // For this node there is no such node, and later it has version 0.
    let before = rig.cluster.commits();
    let set = behind.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(None).int(1))).await;
    until("it asks", || rig.cluster.commits() > before).await;
    rig.cluster.release(1);
    behind.reply(set).await.unwrap();
}

#[tokio::test]
async fn a_refusal_shows_what_a_node_that_lags_has_not_applied() {
    let rig = Rig::new(2).await;
    let mut ahead = rig.client_at(0).await;
    let mut behind = rig.client_at(1).await;
    rig.cluster.refuse_early();
    rig.cluster.hold(1);
    ahead.create("/a", b"", 0).await.unwrap();
    // The write is planned again with what the refusal has shown, and done before this node has heard of the node that it writes.
    let set = behind.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(None).int(0))).await;
    let created = u64::try_from(ahead.zxid).unwrap();
    until("it is done", || rig.cluster.stored(b"zookeeper\0a").unwrap().modified > created).await;

    // A failure, too, is told when all before it is.
    let failing = behind.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(None).int(0))).await;
    rig.cluster.release(1);
    behind.reply(set).await.unwrap();
    assert_eq!(behind.reply(failing).await, Err(-103));
}

#[tokio::test]
async fn events_at_a_node_that_lags_come_before_the_reply_that_shows_them() {
    let rig = Rig::new(2).await;
    let mut watcher = rig.client_at(1).await;
    let mut writer = rig.client_at(0).await;
    writer.create("/a", b"", 0).await.unwrap();
    watcher.sync().await;
    watcher.get("/a", true).await.unwrap();
    rig.cluster.hold(1);
    writer.set("/a", b"1", -1).await.unwrap();
    assert_eq!(watcher.get("/a", false).await.unwrap().1.version, 0);
    let sync = watcher.send(Opcode::SYNC, |out| drop_ref(out.string("/"))).await;
    rig.cluster.release(1);
    assert_eq!(watcher.event().await, (3, "/a".to_owned()));
    watcher.reply(sync).await.unwrap();
}

#[tokio::test]
async fn clients_of_one_queue_do_not_make_each_other_plan_again() {
    const CLIENTS: usize = 32;
    let rig = Rig::new(2).await;
    let mut first = rig.client().await;
    first.create("/q", b"", 0).await.unwrap();
    let mut waiting = Vec::new();
    for index in 0..CLIENTS {
        let mut client = rig.client_at(index % 2).await;
        client.sync().await;
        waiting.push(client);
    }

    let before = rig.cluster.commits();
    let tasks = waiting.into_iter().map(|mut client| {
        tokio::spawn(async move {
            let (path, _) = client.create("/q/lock-", b"", 3).await.unwrap();
            client.delete(&path, -1).await.unwrap();
            path
        })
    });
    let mut paths = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        paths.push(task.await.unwrap());
    }
    paths.sort();
    let expected: Vec<_> = (0..CLIENTS).map(|number| format!("/q/lock-{number:010}")).collect();
    assert_eq!(paths, expected);
    assert_eq!(rig.cluster.commits() - before, 2 * CLIENTS as u64, "one commit for each write");
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_shows_after_the_reconnect() {
    let rig = Rig::new(2).await;
    for _ in 0..20 {
        let mut client = rig.client_at(0).await;
        client.create("/p-", b"", 2).await.unwrap();
        rig.cluster.lose_the_next_answer();
        let prefix = format!("/p-0-{}-", client.session());
        client.send(Opcode::CREATE, |out| write_create(out, &prefix, b"", 3)).await;
        assert_eq!(client.next().await, None);
        let mut again = rig.again(1, &client).await.unwrap();
        let names = again.children("/", false).await.unwrap();
        assert!(names.iter().any(|name| format!("/{name}").starts_with(&prefix)), "{prefix} is not in {names:?}");
        again.send(Opcode::CLOSE, |_| {}).await;
        assert!(matches!(again.next().await, Some(Told::Reply { error: 0, .. })));
    }
}
