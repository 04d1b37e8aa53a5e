//! Each operation, with each of its errors.

use super::{
    PATIENCE, Rig, WALL_MS,
    client::{Body, Client, Told, drop_ref, write_create},
};
use crate::{
    ZookeeperStoreError, ZookeeperTxn, ZookeeperWrite,
    wire::{AclEntry, JuteWriter, Opcode, ZnodeStat},
};

const NO_NODE: i32 = -101;
const BAD_VERSION: i32 = -103;
const NO_CHILDREN: i32 = -108;
const EXISTS: i32 = -110;
const NOT_EMPTY: i32 = -111;
const BAD_ARGUMENTS: i32 = -8;
const UNIMPLEMENTED: i32 = -6;

#[tokio::test]
async fn a_node_is_made_read_written_and_deleted() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let (path, zxid) = client.create("/a", b"one", 0).await.unwrap();
    assert_eq!(path, "/a");
    let created = u64::try_from(zxid).unwrap();
    let (data, stat) = client.get("/a", false).await.unwrap();
    assert_eq!(data, b"one");
    let expected = ZnodeStat {
        created,
        modified: created,
        created_ms: WALL_MS,
        modified_ms: WALL_MS,
        data_bytes: 3,
        children_modified: created,
        ..ZnodeStat::default()
    };
    assert_eq!(stat, expected);

    let changed = client.set("/a", b"three", 0).await.unwrap();
    assert_eq!((changed.version, changed.data_bytes, changed.created), (1, 5, created));
    assert_eq!(changed.modified, u64::try_from(client.zxid).unwrap());
    assert_eq!(client.exists("/a", false).await.unwrap(), changed);
    assert_eq!(client.set("/a", b"", 0).await, Err(BAD_VERSION));
    assert_eq!(client.delete("/a", 0).await, Err(BAD_VERSION));
    client.delete("/a", 1).await.unwrap();
    assert_eq!(client.get("/a", false).await, Err(NO_NODE));
    assert_eq!(client.exists("/a", false).await, Err(NO_NODE));
    assert_eq!(client.set("/a", b"", -1).await, Err(NO_NODE));
    assert_eq!(client.delete("/a", -1).await, Err(NO_NODE));
    assert_eq!(client.children("/a", false).await, Err(NO_NODE));
}

#[tokio::test]
async fn data_may_be_absent_and_is_not_the_empty_one() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let write = |out: &mut JuteWriter| {
        out.string("/null").buffer(None);
        AclEntry::write_list(&[AclEntry::open()], out);
        out.int(0);
    };
    client.ask(Opcode::CREATE, write).await.unwrap();
    let (_, body) = client.ask(Opcode::GET_DATA, |out| drop_ref(out.string("/null").bool(false))).await.unwrap();
    assert_eq!(Body(&body).int(), -1);
    client.create("/empty", b"", 0).await.unwrap();
    let (_, body) = client.ask(Opcode::GET_DATA, |out| drop_ref(out.string("/empty").bool(false))).await.unwrap();
    assert_eq!(Body(&body).int(), 0);
}

#[tokio::test]
async fn creates_are_refused_with_their_codes() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    client.create("/e", b"", 1).await.unwrap();
    for (path, flags, code) in [
        ("/a", 0, EXISTS),
        ("/a", 1, EXISTS),
        ("/", 0, EXISTS),
        ("/zookeeper", 0, EXISTS),
        ("/no/b", 0, NO_NODE),
        ("/no/b-", 2, NO_NODE),
        ("/e/b", 0, NO_CHILDREN),
        ("/e/b", 3, NO_CHILDREN),
        ("a", 0, BAD_ARGUMENTS),
        ("", 0, BAD_ARGUMENTS),
        ("/a/", 0, BAD_ARGUMENTS),
        ("/a/\u{1}", 0, BAD_ARGUMENTS),
        ("/b", 7, BAD_ARGUMENTS),
        ("/b", 5, BAD_ARGUMENTS),
        ("/zookeeper/quota/a", 0, UNIMPLEMENTED),
    ] {
        assert_eq!(client.create(path, b"", flags).await, Err(code), "{path} {flags}");
    }
    assert_eq!(client.delete("/", -1).await, Err(BAD_ARGUMENTS));
    assert_eq!(client.delete("/zookeeper", -1).await, Err(BAD_ARGUMENTS));
    client.create("/a/b", b"", 0).await.unwrap();
    assert_eq!(client.delete("/a", -1).await, Err(NOT_EMPTY));
    assert_eq!(client.create("/large", &[0; 500_000], 0).await, Err(BAD_ARGUMENTS));
}

#[tokio::test]
async fn numbers_count_all_children_that_were_ever_made() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    assert_eq!(client.create("/first-", b"", 2).await.unwrap().0, "/first-0000000000");
    client.create("/q", b"", 0).await.unwrap();
    assert_eq!(client.create("/q/x-", b"", 2).await.unwrap().0, "/q/x-0000000000");
    assert_eq!(client.create("/q/", b"", 3).await.unwrap().0, "/q/0000000001");
    client.delete("/q/x-0000000000", -1).await.unwrap();
    client.create("/q/plain", b"", 0).await.unwrap();
    assert_eq!(client.create("/q/x-", b"", 2).await.unwrap().0, "/q/x-0000000003");

    let stat = client.exists("/q", false).await.unwrap();
    assert_eq!((stat.children, stat.child_version, stat.version), (3, 5, 0));
    assert_eq!(stat.children_modified, u64::try_from(client.zxid).unwrap());
    let mut names = client.children("/q", false).await.unwrap();
    names.sort();
    assert_eq!(names, ["0000000001", "plain", "x-0000000003"]);
}

#[tokio::test]
async fn the_nodes_that_are_always_there_are_there() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    assert_eq!(client.children("/", false).await.unwrap(), ["zookeeper"]);
    assert_eq!(client.children("/zookeeper", false).await.unwrap(), ["config", "quota"]);
    assert!(client.get("/zookeeper/config", false).await.unwrap().0.is_empty());
    let root = client.exists("", false).await.unwrap();
    assert_eq!((root.created, root.children, root.child_version), (0, 1, -1));
    client.set("/", b"of the root", -1).await.unwrap();
    assert_eq!(client.get("", false).await.unwrap().0, b"of the root");
    assert_eq!(client.set("/zookeeper", b"", -1).await, Err(BAD_ARGUMENTS));
    let (_, body) = client.ask(Opcode::COUNT_DESCENDANTS, |out| drop_ref(out.string("/"))).await.unwrap();
    assert_eq!(Body(&body).int(), 3);
}

#[tokio::test]
async fn creates_answer_a_stat_where_they_are_asked_to() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let (zxid, body) = client.ask(Opcode::CREATE_WITH_STAT, |out| write_create(out, "/a", b"ab", 1)).await.unwrap();
    let mut body = Body(&body);
    assert_eq!(body.string(), "/a");
    let stat = body.stat();
    assert_eq!((stat.created, stat.owner, stat.data_bytes), (u64::try_from(zxid).unwrap(), client.session(), 2));

    let (_, body) = client.ask(Opcode::CREATE_CONTAINER, |out| write_create(out, "/c", b"", 4)).await.unwrap();
    let mut body = Body(&body);
    assert_eq!((body.string(), body.stat().owner), ("/c".to_owned(), 0));
    let write = |out: &mut JuteWriter| {
        write_create(out, "/t-", b"", 6);
        out.long(1_000);
    };
    let (_, body) = client.ask(Opcode::CREATE_TTL, write).await.unwrap();
    let mut body = Body(&body);
    assert_eq!((body.string(), body.stat().owner), ("/t-0000000002".to_owned(), 0));
    for (flags, ttl_ms) in [(5, 0), (5, -1), (5, 1 << 41), (0, 5)] {
        let write = |out: &mut JuteWriter| {
            write_create(out, "/t", b"", flags);
            out.long(ttl_ms);
        };
        assert_eq!(client.ask(Opcode::CREATE_TTL, write).await, Err(BAD_ARGUMENTS), "{flags} {ttl_ms}");
    }
}

async fn ephemerals(client: &mut Client, prefix: &str) -> Vec<String> {
    let (_, body) = client.ask(Opcode::GET_EPHEMERALS, |out| drop_ref(out.string(prefix))).await.unwrap();
    Body(&body).strings()
}

#[tokio::test]
async fn administration_is_answered() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let mut other = rig.client().await;
    client.create("/app", b"", 0).await.unwrap();
    client.create("/app/b", b"", 1).await.unwrap();
    client.create("/c", b"", 1).await.unwrap();
    other.create("/app/d", b"", 1).await.unwrap();
    assert_eq!(ephemerals(&mut client, "/app").await, ["/app/b"]);
    assert_eq!(ephemerals(&mut client, "/").await.len(), 2);
    let (_, body) = client.ask(Opcode::COUNT_DESCENDANTS, |out| drop_ref(out.string("/app"))).await.unwrap();
    assert_eq!(Body(&body).int(), 2);
    let (_, body) = client.ask(Opcode::WHO_AM_I, |_| {}).await.unwrap();
    let mut body = Body(&body);
    assert_eq!((body.int(), body.string(), body.string()), (1, "ip".to_owned(), "127.0.0.1".to_owned()));

    assert_eq!(client.ask(Opcode::RECONFIG, |_| {}).await, Err(-123));
    assert_eq!(client.ask(Opcode(77), |_| {}).await, Err(UNIMPLEMENTED));
    assert_eq!(client.ask(Opcode(20), |_| {}).await, Err(UNIMPLEMENTED));
    let (_, token) = client.ask(Opcode::SASL, |out| drop_ref(out.buffer(Some(b"x")))).await.unwrap();
    assert_eq!(Body(&token).buffer(), Some(Vec::new()));
    // A request that cannot be read is refused, and the next one is served.
    assert_eq!(client.ask(Opcode::GET_DATA, |out| drop_ref(out.int(1_000))).await, Err(-5));
    client.ask(Opcode::PING, |_| {}).await.unwrap();
    let stats = rig.ports[0].stats();
    assert_eq!((stats.connections, stats.sessions), (2, 2));
    assert!(stats.requests.contains(&("create", 4)), "{stats:?}");
}

#[tokio::test]
async fn access_lists_of_nodes_are_replaced_without_a_write_of_the_data() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"x", 0).await.unwrap();
    let before = client.exists("/a", false).await.unwrap();
    let write = |out: &mut JuteWriter| {
        out.string("/a");
        AclEntry::write_list(&[AclEntry { permissions: 17, ..AclEntry::open() }], out);
        out.int(0);
    };
    let (_, body) = client.ask(Opcode::SET_ACL, write).await.unwrap();
    let after = Body(&body).stat();
    assert_eq!(after, ZnodeStat { acl_version: 1, ..before });
    assert_eq!(client.ask(Opcode::SET_ACL, write).await, Err(BAD_VERSION));
    let (_, body) = client.ask(Opcode::GET_ACL, |out| drop_ref(out.string("/a"))).await.unwrap();
    let mut body = Body(&body);
    assert_eq!(
        (body.int(), body.int(), body.string(), body.string()),
        (1, 17, "world".to_owned(), "anyone".to_owned())
    );
    assert_eq!(body.stat(), after);
}

#[tokio::test]
async fn a_write_that_others_overtake_is_planned_again() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    let stored = rig.cluster.stored(b"zookeeper\0a").unwrap();
    let put = |value: &[u8]| ZookeeperTxn {
        writes: vec![ZookeeperWrite::Put { key: b"zookeeper\0a".to_vec(), value: value.into() }],
        ..ZookeeperTxn::default()
    };
    rig.cluster.intrude((0..20).map(|_| put(&stored.value)).collect());
    assert_eq!(client.set("/a", b"mine", 0).await.unwrap().version, 1);

    // It is gone before the write, and there again before the next.
    let gone = ZookeeperTxn {
        writes: vec![ZookeeperWrite::Delete { key: b"zookeeper\0a".to_vec() }],
        ..ZookeeperTxn::default()
    };
    rig.cluster.intrude(vec![gone]);
    assert_eq!(client.set("/a", b"mine", -1).await, Err(NO_NODE));
}

#[tokio::test]
async fn a_lost_answer_closes_the_connection_and_the_session_goes_on() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    rig.cluster.lose_the_next_answer();
    client.send(Opcode::PING, |_| {}).await;
    client.send(Opcode::CREATE, |out| write_create(out, "/a", b"", 1)).await;
    assert!(matches!(client.next().await, Some(Told::Reply { xid: -2, error: 0, .. })));
    assert_eq!(client.next().await, None);

    // What it did shows at once after the reconnect.
    let mut again = rig.again(0, &client).await.unwrap();
    assert_eq!(again.exists("/a", false).await.unwrap().owner, client.session());
    rig.cluster.fail_next(ZookeeperStoreError::Full("full".to_owned()));
    assert_eq!(again.create("/b", b"", 0).await, Err(-125));
    rig.cluster.fail_next(ZookeeperStoreError::NotExecuted("no leader".to_owned()));
    again.send(Opcode::CREATE, |out| write_create(out, "/b", b"", 1)).await;
    assert_eq!(again.next().await, None);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    let sends = tokio::time::timeout(PATIENCE, async {
        let mut sent = Vec::new();
        for _ in 0..200 {
            sent.push(client.send(Opcode::CREATE, |out| write_create(out, "/a/x-", b"", 3)).await);
        }
        sent.push(client.send(Opcode::GET_CHILDREN, |out| drop_ref(out.string("/a").bool(false))).await);
        sent
    });
    let sent = sends.await.unwrap();
    for xid in &sent[..200] {
        client.reply(*xid).await.unwrap();
    }
    let (_, body) = client.reply(sent[200]).await.unwrap();
    assert_eq!(Body(&body).strings().len(), 200);
}
