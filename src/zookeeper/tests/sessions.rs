//! Sessions: opened, taken over, moved, closed, over.

use std::sync::Arc;

use lockkeeper_accept::ArrivingBytes;
use tokio::{io::AsyncWriteExt as _, time::Duration};

use super::{
    Body, Rig,
    client::{Told, connect_frame, drop_ref, frame, read_frame, write_create},
    until,
};
use crate::{
    AppliedStep, NumberedSession,
    watches::{EventOutbox, WatchHub, WatchLimits, WatchingClient},
    wire::Opcode,
};

#[tokio::test]
async fn timeouts_are_granted_within_bounds() {
    let rig = Rig::new(1).await;
    for (asked, granted) in [(0, 4_000), (-5, 4_000), (3_000, 4_000), (10_000, 10_000), (i32::MAX, 40_000)] {
        let client = rig.connect(0, 0, asked, 0, &[0; 16]).await.unwrap();
        assert_eq!(client.connected.timeout_ms, granted);
        assert!(client.connected.session > 0);
        assert_eq!(client.connected.password.len(), 16);
    }
    let short = Rig::with(1, |options| options.session_timeout_ms_min = 1).await;
    assert_eq!(short.connect(0, 0, 0, 0, &[0; 16]).await.unwrap().connected.timeout_ms, 500);
}

#[tokio::test]
async fn a_connect_without_its_last_byte_is_answered_without_it() {
    let rig = Rig::new(1).await;
    for (has_byte, length) in [(true, 37), (false, 36)] {
        let mut stream = rig.socket(0).await;
        let bytes = frame(|out| {
            out.int(0).long(0).int(6_000).long(0).buffer(Some(&[0; 16]));
            if has_byte {
                out.bool(true);
            }
        });
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(read_frame(&mut stream).await.unwrap().len(), length);
    }
}

#[tokio::test]
async fn a_session_goes_on_at_another_node_with_its_ephemerals() {
    let rig = Rig::new(2).await;
    let mut client = rig.client().await;
    client.create("/e", b"", 1).await.unwrap();
    let mut again = rig.again(1, &client).await.unwrap();
    assert_eq!(again.connected, client.connected);
    assert_eq!(again.exists("/e", false).await.unwrap().owner, client.session());
    // The old connection is closed.
    assert_eq!(client.next().await, None);
    again.delete("/e", -1).await.unwrap();
}

#[tokio::test]
async fn a_late_write_of_a_connection_that_lost_its_session_is_refused() {
    let rig = Rig::new(2).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    // The old node does not hear of it.
    rig.cluster.hold(0);
    let mut again = rig.again(1, &client).await.unwrap();
    let sent = client.send(Opcode::CREATE, |out| write_create(out, "/late", b"", 1)).await;
    assert_eq!(again.create("/mine", b"", 1).await.unwrap().0, "/mine");
    rig.cluster.release(0);
    // It is told so, or closed: what comes first.
    match client.next().await {
        Some(Told::Reply { xid, error, .. }) => {
            assert_eq!((xid, error), (sent, -118));
            assert_eq!(client.next().await, None);
        }
        None => {}
        Some(other) => panic!("{other:?}"),
    }
    again.sync().await;
    assert_eq!(again.exists("/late", false).await, Err(-101));
}

#[tokio::test]
async fn foreign_and_ended_sessions_are_told_so_and_nothing_else_happens() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let own = client.connected.session;
    let password = client.connected.password.clone();
    let mut wrong = password.clone();
    wrong[15] ^= 1;
    for (session, password) in [
        (own, &wrong[..]),
        (own, &[]),
        (own, &password[..15]),
        (own + 1, &password),
        (-1, &password),
        (i64::MIN, &password),
    ] {
        let mut told = rig.connect(0, 0, 6_000, session, password).await.unwrap();
        assert_eq!((told.connected.timeout_ms, told.connected.session), (0, 0));
        assert_eq!(told.connected.password, [0; 16]);
        assert_eq!(told.next().await, None);
    }
    // The rightful client goes on.
    client.create("/e", b"", 1).await.unwrap();
    rig.cluster.expire(client.session());
    let told = rig.connect(0, 0, 6_000, own, &password).await.unwrap();
    assert_eq!(told.connected.timeout_ms, 0);
}

#[tokio::test]
async fn the_end_of_a_session_is_told_before_its_connection_is_closed() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let mut watcher = rig.client().await;
    client.create("/e", b"", 1).await.unwrap();
    client.exists("/e", true).await.unwrap();
    watcher.exists("/e", true).await.unwrap();
    rig.cluster.expire(client.session());
    assert_eq!(client.event().await, (2, "/e".to_owned()));
    assert_eq!(client.next().await, None);
    assert_eq!(watcher.event().await, (2, "/e".to_owned()));
    let told = rig.again(0, &client).await.unwrap();
    assert_eq!(told.connected.timeout_ms, 0);
}

#[tokio::test]
async fn a_session_ends_when_its_client_is_silent_and_a_ping_gives_it_its_time_again() {
    let rig = Rig::with(1, |options| options.session_timeout_ms_min = 500).await;
    let mut silent = rig.connect(0, 0, 500, 0, &[0; 16]).await.unwrap();
    // A machine that is busy for half a second must not end this one.
    let mut pinging = rig.client().await;
    silent.create("/silent", b"", 1).await.unwrap();
    pinging.create("/pinging", b"", 1).await.unwrap();
    pinging.exists("/silent", true).await.unwrap();
    // It is told of the end between two of its pings, none of which is missing.
    loop {
        let before = rig.cluster.deadline(pinging.session());
        tokio::time::sleep(Duration::from_millis(1)).await;
        pinging.send(Opcode::PING, |_| {}).await;
        until("the session is renewed", || rig.cluster.deadline(pinging.session()) > before).await;
        match pinging.next().await {
            Some(Told::Event { kind, path }) => break assert_eq!((kind, &*path), (2, "/silent")),
            Some(Told::Reply { xid: -2, error: 0, .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(silent.next().await, None);
    assert!(rig.cluster.stored(b"zookeeper\0pinging").is_some());
}

#[tokio::test]
async fn a_close_deletes_before_it_is_answered_and_then_the_connection_ends() {
    let rig = Rig::new(2).await;
    let mut client = rig.client().await;
    let mut watcher = rig.client_at(1).await;
    for path in ["/a", "/b", "/c"] {
        client.create(path, b"", 1).await.unwrap();
    }
    watcher.sync().await;
    watcher.exists("/b", true).await.unwrap();
    // What follows a close is not served.
    client.send(Opcode::CLOSE, |_| {}).await;
    client.send(Opcode::CREATE, |out| write_create(out, "/late", b"", 0)).await;
    assert!(matches!(client.next().await, Some(Told::Reply { error: 0, .. })));
    assert_eq!(client.next().await, None);
    assert_eq!(watcher.event().await, (2, "/b".to_owned()));
    for path in ["/a", "/b", "/c", "/late"] {
        assert_eq!(watcher.exists(path, false).await, Err(-101));
    }
    assert_eq!(rig.again(0, &client).await.unwrap().connected.timeout_ms, 0);
}

#[tokio::test]
async fn requests_before_the_end_of_the_bytes_are_served() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for _ in 0..20 {
        client.send(Opcode::CREATE, |out| write_create(out, "/n-", b"", 2)).await;
    }
    client.send(Opcode::CLOSE, |_| {}).await;
    // Some clients close without waiting for the replies.
    client.stream.shutdown().await.unwrap();
    until("all is served", || rig.cluster.stored(b"zookeeper\0n-0000000019").is_some()).await;
    until("the session is over", || rig.cluster.sessions().is_empty()).await;
}

#[tokio::test]
async fn a_closed_socket_is_no_end_unless_that_is_asked_for() {
    let rig = Rig::with(1, |options| options.closed_socket_grace = Some(Duration::from_millis(100))).await;
    let mut gone = rig.client().await;
    gone.create("/gone", b"", 1).await.unwrap();
    let session = gone.session();
    drop(gone);
    // A busy machine may take longer than the grace to connect again.
    let mut again = None;
    while again.is_none() {
        let connected = rig.client().await.connected.clone();
        let back = rig.connect(0, 0, 0, connected.session, &connected.password).await.unwrap();
        again = Some(back).filter(|back| back.connected.session == connected.session);
    }
    let mut again = again.unwrap();
    until("the grace is over", || !rig.cluster.sessions().contains(&session)).await;
    assert!(rig.cluster.stored(b"zookeeper\0gone").is_none());
    // The session that came back has another number: the end of its old connection does not end it.
    let until = tokio::time::Instant::now() + Duration::from_millis(400);
    while tokio::time::Instant::now() < until {
        again.ask(Opcode::PING, |_| {}).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let patient = Rig::new(1).await;
    let mut stays = patient.client().await;
    stays.create("/stays", b"", 1).await.unwrap();
    let connected = stays.connected.clone();
    drop(stays);
    until_connections(&patient, 0).await;
    assert!(patient.cluster.stored(b"zookeeper\0stays").is_some());
    let again = patient.connect(0, 0, 0, connected.session, &connected.password).await.unwrap();
    assert_eq!(again.connected.session, connected.session);
}

#[tokio::test]
async fn a_node_that_stops_abandons_no_session() {
    let rig = Rig::with(2, |options| options.closed_socket_grace = Some(Duration::from_millis(20))).await;
    let mut client = rig.client().await;
    client.create("/e", b"", 1).await.unwrap();
    // A request in flight keeps the port, and with it the sweep.
    let mut busy = rig.client().await;
    rig.cluster.hold(0);
    busy.send(Opcode::CREATE, |out| write_create(out, "/b", b"", 0)).await;
    until("it is in flight", || rig.cluster.stored(b"zookeeper\0b").is_some()).await;
    rig.stop();
    assert_eq!(client.next().await, None);
    // The sweep would have ended it by now.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(rig.cluster.sessions().contains(&client.session()));
}

async fn until_connections(rig: &Rig, count: u64) {
    until("connections end", || rig.ports[0].stats().connections == count).await;
}

#[tokio::test]
async fn a_node_that_cannot_vouch_for_sessions_closes_their_connections() {
    let rig = Rig::new(2).await;
    let mut client = rig.client().await;
    let mut pinging = rig.client().await;
    let mut reading = rig.client().await;
    rig.cluster.cut_off(0);
    // At once for those that would take an answer for a sign that their session lives, and soon for one that is idle.
    pinging.send(Opcode::PING, |_| {}).await;
    reading.send(Opcode::EXISTS, |out| drop_ref(out.string("/").bool(false))).await;
    assert_eq!(pinging.next().await, None);
    assert_eq!(reading.next().await, None);
    assert_eq!(client.next().await, None);
    rig.again(1, &client).await.unwrap();
}

#[tokio::test]
async fn a_node_that_jumps_closes_its_connections_and_serves_again() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.exists("/a", true).await.unwrap_err();
    rig.cluster.end_feeds(0);
    assert_eq!(client.next().await, None);
    let mut again = rig.again(0, &client).await.unwrap();
    again.create("/a", b"", 0).await.unwrap();
}

#[tokio::test]
async fn a_client_of_another_cluster_is_closed_without_an_answer() {
    let rig = Rig::new(1).await;
    assert!(rig.connect(0, 1 << 40, 6_000, 0, &[0; 16]).await.is_none());
    assert!(rig.cluster.sessions().is_empty(), "it comes again, and would leave one each time");
    assert!(rig.connect(0, 1, 6_000, 0, &[0; 16]).await.is_some());
}

#[tokio::test]
async fn a_new_session_sees_nothing_of_the_one_that_is_over() {
    let rig = Rig::new(2).await;
    let mut dead = rig.client().await;
    dead.create("/lock", b"", 1).await.unwrap();
    rig.cluster.hold(1);
    rig.cluster.expire(dead.session());
    // The second node has not applied the end. It answers neither of the two before it has.
    let Some(mut early) = tokio_socket(&rig, dead.connected.session, &dead.connected.password).await else { return };
    let mut fresh = tokio_socket(&rig, 0, &[0; 16]).await.unwrap();
    rig.cluster.release(1);
    let told = read_frame(&mut early).await.unwrap();
    let mut told = Body(&told);
    assert_eq!((told.int(), told.int()), (0, 0));
    read_frame(&mut fresh).await.unwrap();
    let request = frame(|out| drop_ref(out.int(1).int(3).string("/lock").bool(false)));
    fresh.write_all(&request).await.unwrap();
    let reply = read_frame(&mut fresh).await.unwrap();
    let mut reply = Body(&reply);
    assert_eq!((reply.int(), reply.long() > 0, reply.int()), (1, true, -101));
}

async fn tokio_socket(rig: &Rig, session: i64, password: &[u8]) -> Option<tokio::net::TcpStream> {
    let mut stream = rig.socket(1).await;
    stream.write_all(&connect_frame(0, 6_000, session, password)).await.ok()?;
    Some(stream)
}

/// Two attaches of one session at one node may be answered in any order; the later one has the session.
#[test]
fn of_two_connections_of_a_session_the_later_attachment_stays() {
    let hub = WatchHub::new(WatchLimits { per_connection: 1, bytes: 1 });
    hub.begin(0);
    let budget = ArrivingBytes::new(1);
    let outbox = || Arc::new(EventOutbox::new("127.0.0.1:1".parse().unwrap(), 1, &budget));
    let earlier = outbox();
    let later = outbox();
    let stranger = || WatchingClient::stranger("127.0.0.1:1".parse().unwrap());
    let last = hub.register(NumberedSession { session: 7, number: 2 }, &later, stranger()).unwrap();
    let first = hub.register(NumberedSession { session: 7, number: 1 }, &earlier, stranger()).unwrap();
    assert!(earlier.kill.is_cancelled() && !later.kill.is_cancelled());
    hub.forget(first);
    hub.tell(&AppliedStep { revision: 1, over: vec![7], ..AppliedStep::default() }, &|_, _| true);
    assert!(later.is_over(), "it is told that its session is over");
    hub.forget(last);
}
