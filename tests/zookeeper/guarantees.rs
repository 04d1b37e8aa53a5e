//! What clients rely on without asking: order, sessions that move, and sessions that end.
//!
//! Each guarantee is a function of the servers' addresses, and runs on ZooKeeper itself too: what it does not hold is no guarantee that
//! clients have. `expired_means_gone` is one of ours alone.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    connection::{JuteConnection, JuteEvent, JuteMessage, JuteSession},
    jute::{JuteAnswer, JuteRequest},
    oracle::Oracle,
};

const TIMEOUT_MS: i32 = 20_000;
/// The shortest that ZooKeeper grants by default.
const SHORT_MS: i32 = 4_000;
const NO_NODE: i32 = -101;
const SESSION_MOVED: i32 = -118;
/// A bound on failures.
const LONG: Duration = crate::support::LONG;

fn children(path: &str, watch: bool) -> JuteRequest {
    JuteRequest::GetChildren { path: path.to_owned(), watch }
}

fn exists(path: &str) -> JuteRequest {
    JuteRequest::Exists { path: path.to_owned(), watch: false }
}

async fn open(addresses: &[String], place: usize) -> JuteConnection {
    JuteConnection::open(&addresses[place % addresses.len()], TIMEOUT_MS).await
}

/// Two hundred creates and a read that are sent at once: all are answered in order, and the read shows all.
async fn requests_take_effect_in_order(addresses: &[String]) {
    let mut ann = open(addresses, 0).await;
    ann.ask(&JuteRequest::create("/order", b"", 0)).await.expect("a node");
    for _ in 0..200 {
        ann.send(&JuteRequest::create("/order/n-", b"", 2)).await.expect("it takes them");
    }
    ann.send(&children("/order", false)).await.expect("it takes it");
    let mut answers = Vec::new();
    while answers.len() < 201 {
        let Some(JuteMessage::Reply(reply)) = ann.receive().await else { panic!("a reply") };
        answers.push(reply.answer.expect("no error"));
    }
    for (number, answer) in answers[..200].iter().enumerate() {
        assert_eq!(*answer, JuteAnswer::Path(format!("/order/n-{number:010}")));
    }
    let JuteAnswer::Names(names) = &answers[200] else { panic!("names: {:?}", answers[200]) };
    assert_eq!(names.len(), 200, "a read sees what was sent before it");
}

/// An event comes before any reply that shows the change: to a read, and to the client's own write.
async fn events_come_before_what_shows_them(addresses: &[String]) {
    let mut ann = open(addresses, 0).await;
    let mut bob = open(addresses, 1).await;
    ann.ask(&JuteRequest::create("/events", b"", 0)).await.expect("a node");
    for number in 0..50 {
        let before = ann.ask(&children("/events", true)).await.expect("names");
        let path = format!("/events/{number}");
        bob.ask(&JuteRequest::create(&path, b"", 0)).await.expect("a node");
        let deadline = Instant::now() + LONG;
        while ann.ask(&children("/events", false)).await.expect("names") == before {
            assert!(ann.events.is_empty() || Instant::now() < deadline, "never shown");
        }
        let told = vec![JuteEvent { kind: 4, path: "/events".to_owned() }];
        assert_eq!(ann.take_events(), told, "told before it was shown");

        ann.ask(&children("/events", true)).await.expect("names");
        ann.ask(&JuteRequest::delete(&path)).await.expect("it is there");
        assert_eq!(ann.take_events(), told, "told of its own write before the reply");
    }
}

/// A session goes on at another server with its ephemerals; what is sent on the connection that it left is refused.
async fn sessions_move(addresses: &[String]) {
    let mut left = open(addresses, 0).await;
    left.ask(&JuteRequest::create("/moved", b"", 1)).await.expect("a node");
    let session = left.session.clone();
    let address = &addresses[1 % addresses.len()];
    let mut here = JuteConnection::connect(address, &session).await.expect("it listens").expect("it lives");
    assert_eq!((here.session.id, here.session.timeout_ms), (session.id, session.timeout_ms));
    let JuteAnswer::Stat(stat) = here.ask(&exists("/moved")).await.expect("it is there") else { panic!("a stat") };
    assert_eq!(stat.owner, session.id);

    let late = left.call(&JuteRequest::create("/late", b"", 0)).await;
    assert!(late.is_none_or(|reply| reply.answer == Err(SESSION_MOVED)), "the connection that it left");
    assert_eq!(here.ask(&exists("/late")).await, Err(NO_NODE), "nothing was done");
    here.ask(&JuteRequest::Close).await.expect("it closes");
}

/// A closed session's nodes are gone before the reply; then the server closes, and the session cannot be attached.
async fn close_ends_at_once(addresses: &[String]) {
    let mut ann = open(addresses, 0).await;
    let mut bob = open(addresses, 0).await;
    ann.ask(&JuteRequest::create("/closed", b"", 1)).await.expect("a node");
    ann.ask(&JuteRequest::Close).await.expect("it closes");
    assert_eq!(bob.ask(&exists("/closed")).await, Err(NO_NODE), "gone when the close is answered");
    assert_eq!(ann.receive().await, None, "the server closes");
    for address in addresses {
        let attached = JuteConnection::connect(address, &ann.session).await.expect("it listens");
        assert!(attached.is_none(), "a closed session is over");
    }
}

/// Who does not know a session's password does not get it, and a client that has seen more than there is is not served.
async fn strangers_get_nothing(addresses: &[String]) {
    let ann = open(addresses, 0).await;
    let mut stranger = ann.session.clone();
    stranger.password[3] ^= 1;
    let attached = JuteConnection::connect(&addresses[0], &stranger).await.expect("it listens");
    assert!(attached.is_none(), "a wrong password");
    let ahead = JuteSession { seen: i64::MAX, ..JuteSession::fresh(TIMEOUT_MS) };
    assert!(JuteConnection::connect(&addresses[0], &ahead).await.is_err(), "it is behind that client");
}

/// A session that is silent ends, not before its timeout; one that is closed without a word, too.
async fn silence_ends_a_session(addresses: &[String]) {
    let mut ann = JuteConnection::open(&addresses[0], SHORT_MS).await;
    let mut bob = open(addresses, 1).await;
    assert_eq!(ann.session.timeout_ms, SHORT_MS, "it is granted");
    let sent = Instant::now();
    ann.ask(&JuteRequest::create("/silent", b"", 1)).await.expect("a node");
    bob.ask(&JuteRequest::Sync { path: "/".to_owned() }).await.expect("it answers");
    let watched = JuteRequest::Exists { path: "/silent".to_owned(), watch: true };
    bob.ask(&watched).await.expect("it is there");
    drop(ann);
    while bob.events.is_empty() {
        bob.ask(&JuteRequest::Ping).await.expect("it answers");
        assert!(sent.elapsed() < LONG, "it never ends");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(sent.elapsed() >= Duration::from_millis(SHORT_MS as u64), "early: after {:?}", sent.elapsed());
    assert_eq!(bob.take_events(), vec![JuteEvent { kind: 2, path: "/silent".to_owned() }]);
}

/// Once a server tells a client that its session is over, that server shows its nodes to nobody.
async fn expired_means_gone(addresses: &[String]) {
    let mut ann = JuteConnection::open(&addresses[0], SHORT_MS).await;
    ann.ask(&JuteRequest::create("/expired", b"", 1)).await.expect("a node");
    let mut others = Vec::new();
    for place in 0..addresses.len() {
        others.push(open(addresses, place).await);
    }
    // The end shows at the first one, and the session is asked for at all others at once.
    let started = Instant::now();
    while others[0].ask(&exists("/expired")).await.is_ok() {
        assert!(started.elapsed() < LONG, "it never ends");
        sleep(Duration::from_millis(5)).await;
    }
    for (address, other) in addresses.iter().zip(&mut others).rev() {
        match JuteConnection::connect(address, &ann.session).await {
            Ok(None) => assert_eq!(other.ask(&exists("/expired")).await, Err(NO_NODE), "told that it is over"),
            Ok(Some(_)) => panic!("it had ended"),
            // A server that is behind what the client has seen.
            Err(_) => {}
        }
    }
}

async fn all_hold(addresses: &[String]) {
    requests_take_effect_in_order(addresses).await;
    events_come_before_what_shows_them(addresses).await;
    sessions_move(addresses).await;
    close_ends_at_once(addresses).await;
    silence_ends_a_session(addresses).await;
    strangers_get_nothing(addresses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn zookeeper_gives_the_guarantees() {
    let oracle = match Oracle::start().await {
        Ok(oracle) => oracle,
        Err(problem) => return crate::skipped::skipped(format_args!("ZooKeeper cannot be had: {problem}")),
    };
    all_hold(std::slice::from_ref(&oracle.address)).await;
    oracle.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: sessions that end by themselves"]
async fn a_cluster_gives_the_guarantees() {
    let mut cluster = super::steady_cluster().await;
    let addresses = cluster.zookeeper_endpoints();
    all_hold(&addresses).await;
    for _ in 0..3 {
        expired_means_gone(&addresses).await;
    }
    cluster.stop().await;
}
