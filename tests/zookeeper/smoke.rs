//! ZooKeeper's protocol on a real cluster: the parts between it and the cluster, which the protocol's own tests do not have.
//!
//! Sessions that live and end in the log, at whatever node their connections are; reads of a node's own copy; locks that operators see; a
//! leader that dies; and strangers beside whom a client goes on.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    connection::{JuteConnection, JuteEvent, JuteMessage, JuteWire},
    jute::{JuteAnswer, JuteRequest, JuteWriter, op},
};
use crate::support::{cluster_with, leader, lockkeeper, output, text, until};
use lockkeeper::local::{LocalCluster, Signal};

/// A bound on failures.
const LONG: Duration = crate::support::LONG;
/// The longest timeout that is granted: a test goes on for less without a request.
const LONGEST_MS: i32 = 40_000;
/// The shortest one.
const SHORTEST_MS: i32 = 4_000;
const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const SESSION_MOVED: i32 = -118;

async fn three_nodes() -> LocalCluster {
    cluster_with(|options| options.zookeeper = true).await
}

/// A new session at a node that may just have started to serve.
async fn open(address: &str, timeout_ms: i32) -> JuteConnection {
    let fresh = super::connection::JuteSession::fresh(timeout_ms);
    until("a session", async || JuteConnection::connect(address, &fresh).await.ok().flatten()).await
}

async fn operator(cluster: &LocalCluster, arguments: &[&str]) -> String {
    let endpoints = cluster.endpoints().join(",");
    let output = output(lockkeeper(arguments).env("LOCKKEEPER_ENDPOINTS", endpoints)).await;
    let (code, stdout, stderr) = text(&output);
    assert_eq!(code, 0, "{arguments:?}: {stdout}{stderr}");
    stdout
}

/// The path of a new node.
async fn create(connection: &mut JuteConnection, path: &str, flags: i32) -> String {
    match connection.ask(&JuteRequest::create(path, b"mine", flags)).await {
        Ok(JuteAnswer::Path(path)) => path,
        other => panic!("{path}: {other:?}"),
    }
}

fn exists(path: &str, watch: bool) -> JuteRequest {
    JuteRequest::Exists { path: path.to_owned(), watch }
}

/// Whether a node is there, as of now.
async fn is_there(connection: &mut JuteConnection, path: &str) -> bool {
    let sync = connection.ask(&JuteRequest::Sync { path: path.to_owned() }).await;
    assert!(sync.is_ok(), "{sync:?}");
    match connection.ask(&exists(path, false)).await {
        Ok(JuteAnswer::Stat(_)) => true,
        Err(NO_NODE) => false,
        other => panic!("{path}: {other:?}"),
    }
}

/// The next event, whatever else is answered.
async fn event(connection: &mut JuteConnection) -> JuteEvent {
    if !connection.events.is_empty() {
        return connection.events.remove(0);
    }
    loop {
        match timeout(LONG, connection.receive()).await.expect("an event").expect("the server goes on") {
            JuteMessage::Event(event) => return event,
            JuteMessage::Reply(_) => {}
        }
    }
}

/// Writes of one session that are sent together are under way at the same time, and take effect in their order, at any node.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_are_sent_together_take_effect_in_their_order() {
    const ROUNDS: usize = 50;
    let cluster = three_nodes().await;
    for (number, address) in cluster.zookeeper_endpoints().iter().enumerate() {
        let mut client = open(address, LONGEST_MS).await;
        let parent = &create(&mut client, &format!("/locks-{number}"), PERSISTENT).await;
        let path = &format!("{parent}/lock");
        for _ in 0..ROUNDS {
            let delete = JuteRequest::delete(path);
            for request in [
                JuteRequest::create(path, b"mine", EPHEMERAL),
                JuteRequest::create(path, b"again", EPHEMERAL),
                JuteRequest::create(&format!("{parent}/n-"), b"", EPHEMERAL_SEQUENTIAL),
                delete.clone(),
                delete,
            ] {
                client.send(&request).await.expect("it is open");
            }
        }

        for round in 0..ROUNDS {
            let place = format!("{parent}/n-{:010}", 2 * round + 1);
            for expected in [
                Ok(JuteAnswer::Path(path.clone())),
                Err(NODE_EXISTS),
                Ok(JuteAnswer::Path(place)),
                Ok(JuteAnswer::Nothing),
                Err(NO_NODE),
            ] {
                let told = timeout(LONG, client.receive()).await.expect("an answer").expect("it is open");
                let JuteMessage::Reply(reply) = told else { panic!("{told:?}") };
                assert_eq!(reply.answer, expected, "round {round} at node {number}");
            }
        }
    }
}

/// A recipe's lock over three nodes: two places in its queue, the second one woken by the end of the first; seen, and taken back, by
/// operators; and carried to another node by a client that reconnects.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_zookeeper_is_one_of_the_cluster() {
    let cluster = three_nodes().await;
    let addresses = cluster.zookeeper_endpoints();
    let mut ann = open(&addresses[0], LONGEST_MS).await;
    let mut bob = open(&addresses[1], LONGEST_MS).await;

    create(&mut ann, "/app", PERSISTENT).await;
    create(&mut ann, "/app/lock", PERSISTENT).await;
    let first = create(&mut ann, "/app/lock/n-", EPHEMERAL_SEQUENTIAL).await;
    let second = create(&mut bob, "/app/lock/n-", EPHEMERAL_SEQUENTIAL).await;
    assert_eq!((&*first, &*second), ("/app/lock/n-0000000000", "/app/lock/n-0000000001"));

    let children = bob.ask(&JuteRequest::GetChildren { path: "/app/lock".to_owned(), watch: false }).await;
    let Ok(JuteAnswer::Names(mut names)) = children else { panic!("{children:?}") };
    names.sort();
    assert_eq!(names, ["n-0000000000", "n-0000000001"]);
    let Ok(JuteAnswer::Stat(stat)) = bob.ask(&exists(&first, true)).await else { panic!("the first place") };
    assert_eq!(stat.owner, ann.session.id);

    // Operators see a lock with one holder and one that waits; its token is the zxid of the holder's node.
    let listed = operator(&cluster, &["list", "zookeeper/"]).await;
    assert!(listed.contains("zookeeper/app/lock"), "{listed}");
    let shown = operator(&cluster, &["get", "zookeeper/app/lock"]).await;
    assert!(shown.contains(&stat.created_at.to_string()), "{} in {shown}", stat.created_at);
    assert!(shown.contains("127.0.0.1:") && !shown.contains("mine"), "{shown}");

    // Ann reconnects to the third node: her place stays, and the connection that she left can write no more.
    let mut again = JuteConnection::connect(&addresses[2], &ann.session).await.expect("it listens").expect("it lives");
    assert_eq!(again.session.id, ann.session.id);
    assert!(is_there(&mut again, &first).await);
    let late = ann.call(&JuteRequest::create("/app/late", b"", PERSISTENT)).await;
    assert!(late.is_none_or(|reply| reply.answer == Err(SESSION_MOVED)));
    assert!(!is_there(&mut again, "/app/late").await);

    // An operator takes the lock: the node is gone, its watcher is told, and the next place holds.
    operator(&cluster, &["force-release", "zookeeper/app/lock", "--reason", "stuck"]).await;
    assert_eq!(event(&mut bob).await, JuteEvent { kind: 2, path: first.clone() });
    assert!(!is_there(&mut again, &first).await && is_there(&mut again, &second).await);

    // Bob closes his session, and what he held is gone before he is answered.
    let Ok(JuteAnswer::Stat(_)) = again.ask(&exists(&second, true)).await else { panic!("the second place") };
    assert!(bob.call(&JuteRequest::Close).await.is_some());
    assert!(bob.receive().await.is_none(), "the server closes");
    assert_eq!(event(&mut again).await, JuteEvent { kind: 2, path: second.clone() });
    assert_eq!(operator(&cluster, &["list", "zookeeper/"]).await.matches("zookeeper/app/lock").count(), 0);
}

/// A session ends at its timeout, never before, if its socket closes without a word; and it outlives the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_at_its_timeout_and_outlives_the_leader() {
    let cluster = three_nodes().await;
    let leads = leader(&cluster).await;
    let survivor = cluster.nodes().find(|node| node.id() != leads).and_then(|node| node.zookeeper_endpoint());
    let survivor = survivor.expect("three nodes");

    let mut silent = open(&survivor, SHORTEST_MS).await;
    // Its last frame arrives after this, and perhaps long before the answer does.
    let sent = Instant::now();
    create(&mut silent, "/silent", EPHEMERAL).await;
    drop(silent);
    let mut watcher = open(&survivor, LONGEST_MS).await;
    assert!(watcher.ask(&exists("/silent", true)).await.is_ok(), "it was closed for all that the server knows");
    assert_eq!(event(&mut watcher).await, JuteEvent { kind: 2, path: "/silent".to_owned() });
    let lived = sent.elapsed();
    assert!(lived >= Duration::from_millis(SHORTEST_MS as u64), "{lived:?}");

    let mut holder = open(&survivor, LONGEST_MS).await;
    create(&mut holder, "/held", EPHEMERAL).await;
    cluster.node(leads).signal(Signal::KILL);

    // Whether or not its connection stands, the session goes on with the one that leads next.
    let mut session = holder.session.clone();
    let survives = until("the cluster goes on", async || {
        let mut connection = JuteConnection::connect(&survivor, &session).await.ok()?.expect("the session lives");
        session.seen = connection.session.seen;
        let made = connection.call(&JuteRequest::create("/after", b"", EPHEMERAL)).await?;
        (made.answer.is_ok() || made.answer == Err(-110)).then_some(connection)
    });
    let mut connection = survives.await;
    let Ok(JuteAnswer::Stat(stat)) = connection.ask(&exists("/held", false)).await else { panic!("it is held") };
    assert_eq!(stat.owner, session.id);
}

/// Bytes of strangers, on a connection each: they end it at the most.
#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_keeps_its_node_while_strangers_send_nonsense() {
    let cluster = three_nodes().await;
    let address = cluster.zookeeper_endpoints().remove(0);
    let mut bystander = open(&address, LONGEST_MS).await;
    create(&mut bystander, "/kept", EPHEMERAL).await;
    let bystander_id = bystander.session.id;

    // A connect that says whose session it is, with a password that is wrong.
    let mut stolen = JuteWriter::default();
    stolen.int(0).long(0).int(LONGEST_MS).long(bystander_id).buffer(Some(&[7; 16])).boolean(false);
    let mut framed = JuteWriter::default();
    framed.buffer(Some(&stolen.0));

    let long_line = vec![b'a'; 1 << 20];
    let attacks: [&[u8]; 8] = [
        &[0x7f, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 44],
        &[0, 0, 0, 0],
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0\x01\x02\xff\xfe\r\n\r\n",
        &long_line,
        &framed.0,
    ];
    for bytes in attacks {
        let mut wire = JuteWire::open(&address).await.expect("it listens");
        // The port may end the connection before it has read everything.
        let _ = wire.send_bytes(bytes).await;
        assert!(is_there(&mut bystander, "/kept").await);
    }

    // Requests of a stranger that has a session: a multi without an end, watches by the thousand, an operation that nobody knows.
    let mut stranger = open(&address, SHORTEST_MS).await;
    let many = (0..2_000).map(|number| exists(&format!("/no/{number}"), true));
    for request in many {
        if stranger.send(&request).await.is_err() {
            break;
        }
    }
    let mut wire = JuteWire::open(&address).await.expect("it listens");
    let mut connect = JuteWriter::default();
    connect.int(0).long(0).int(SHORTEST_MS).long(0).buffer(Some(&[0; 16])).boolean(false);
    wire.send(&connect.0).await.expect("it reads");
    assert!(wire.receive().await.is_some(), "a new session");
    let mut endless = JuteWriter::default();
    endless.int(1).int(op::MULTI);
    for _ in 0..10_000 {
        endless.int(op::DELETE).boolean(false).int(-1).text("/kept").int(-1);
    }
    let _ = wire.send(&endless.0).await;
    assert!(is_there(&mut bystander, "/kept").await);
    let deleted = bystander.ask(&JuteRequest::delete("/kept")).await;
    assert!(deleted.is_ok(), "{deleted:?}");
}
