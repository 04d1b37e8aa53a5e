//! When the session of a dead client ends: its timeout after its last frame, however busy it was before; and what others see of its end.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{
    connection::{JuteConnection, JuteEvent, JuteMessage, JuteSession},
    jute::{JuteAnswer, JuteRequest},
};
use crate::support::until;

/// A bound on failures.
const LONG: Duration = crate::support::LONG;
const TIMEOUT_MS: i32 = 4_000;
const WATCHER_MS: i32 = 40_000;
/// How often clients sent a frame before they died, in milliseconds.
const CADENCES_MS: [u64; 6] = [1, 20, 60, 110, 300, IDLE_MS];
/// How often an idle client pings.
const IDLE_MS: u64 = 1_300;
const OF_EACH: u64 = 4;
/// How much later than an idle client's the session of a busy one may end. On a machine that is quiet, it is some 50 ms.
const LATER_MS_MAX: u64 = 200;

/// A client with a node, which sends frames for a while and falls silent. Returns its node, its cadence, and when it sent its last frame.
async fn die(address: &str, number: u64, cadence_ms: u64) -> (String, (u64, Instant)) {
    let mut client = JuteConnection::open(address, TIMEOUT_MS).await;
    let path = format!("/timed/{cadence_ms}-{number}");
    assert!(client.ask(&JuteRequest::create(&path, b"", 1)).await.is_ok());

    // Each dies at another moment between two renewals.
    let dies = Instant::now() + Duration::from_millis(1_400 + number * 170);
    let mut last = Instant::now();
    while last < dies {
        sleep(Duration::from_millis(cadence_ms)).await;
        last = Instant::now();
        assert!(client.ask(&JuteRequest::Ping).await.is_ok());
    }
    (path, (cadence_ms, last))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: figures of a machine that is quiet"]
async fn the_session_of_a_dead_client_ends_its_timeout_after_its_last_frame() {
    let mut cluster = super::steady_cluster().await;
    let addresses = cluster.zookeeper_endpoints();
    let fresh = JuteSession::fresh(WATCHER_MS);
    let connected =
        until("the port serves", async || JuteConnection::connect(&addresses[0], &fresh).await.ok().flatten());
    let mut watcher = connected.await;
    assert!(watcher.ask(&JuteRequest::create("/timed", b"", 0)).await.is_ok());
    assert!(watcher.ask(&JuteRequest::AddWatch { path: "/timed".to_owned(), mode: 1 }).await.is_ok());

    let clients = CADENCES_MS.iter().flat_map(|cadence| (0..OF_EACH).map(move |number| (number, *cadence)));
    let dying = clients.map(|(number, cadence)| die(&addresses[number as usize % addresses.len()], number, cadence));
    let dead: HashMap<_, _> = join_all(dying).await.into_iter().collect();

    let mut late_ms: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for _ in 0..dead.len() {
        let ended = loop {
            match timeout(LONG, watcher.receive()).await.expect("an event").expect("the server goes on") {
                JuteMessage::Event(JuteEvent { kind: 2, path }) => break path,
                JuteMessage::Event(_) | JuteMessage::Reply(_) => {}
            }
        };
        let (cadence, last) = dead[&ended];
        let lived = last.elapsed();
        let late = lived.checked_sub(Duration::from_millis(TIMEOUT_MS as u64));
        let late = late.unwrap_or_else(|| panic!("{ended} ended early, after {lived:?}"));
        late_ms.entry(cadence).or_default().push(late.as_millis() as u64);
    }

    println!("late by, in ms, for clients that sent a frame each so many ms: {late_ms:?}");
    // A busy machine makes all of them late.
    let latest = |cadence: u64| late_ms[&cadence].iter().copied().max().expect("some of each");
    let idle = latest(IDLE_MS);
    assert!(CADENCES_MS.iter().all(|cadence| latest(*cadence) <= idle + LATER_MS_MAX), "{late_ms:?}");
    cluster.stop().await;
}

/// Nodes of one session: many times what one entry of the log deletes.
const MANY: usize = 5_000;
const AT_ONCE: usize = 500;
/// A busy machine takes a while to make them.
const OWNER_MS: i32 = 12_000;

/// A client whose session is over opens another one in its place: it must see nothing of the one before, however much that had.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: five thousand nodes"]
async fn who_is_let_in_after_the_end_of_a_session_sees_nothing_of_it() {
    let mut cluster = super::steady_cluster().await;
    let addresses = cluster.zookeeper_endpoints();
    let fresh = JuteSession::fresh(WATCHER_MS);
    let connected =
        until("the port serves", async || JuteConnection::connect(&addresses[0], &fresh).await.ok().flatten());
    let mut watcher = connected.await;
    assert!(watcher.ask(&JuteRequest::create("/many", b"", 0)).await.is_ok());

    let mut owner = JuteConnection::open(&addresses[1], OWNER_MS).await;
    for from in (0..MANY).step_by(AT_ONCE) {
        let create = |number| JuteRequest::create(&format!("/many/{number:05}"), b"", 1);
        let made = owner.ask(&JuteRequest::Multi((from..from + AT_ONCE).map(create).collect())).await;
        assert!(made.is_ok(), "{made:?}");
    }
    let children = JuteRequest::GetChildren { path: "/many".to_owned(), watch: false };
    assert!(watcher.ask(&JuteRequest::AddWatch { path: "/many".to_owned(), mode: 1 }).await.is_ok());
    // Its node may be behind the other's.
    assert!(watcher.ask(&JuteRequest::Sync { path: "/many".to_owned() }).await.is_ok());
    assert_eq!(count(&mut watcher, &children).await, MANY);
    drop(owner);

    // The first of its nodes is gone: it is over. Then others are let in, at each node.
    let first = timeout(LONG, watcher.receive()).await.expect("an event").expect("the server goes on");
    assert!(matches!(first, JuteMessage::Event(JuteEvent { kind: 2, .. })), "{first:?}");
    let newcomers = addresses.iter().map(async |address| {
        let mut newcomer = JuteConnection::open(address, TIMEOUT_MS).await;
        count(&mut newcomer, &children).await
    });
    let seen = join_all(newcomers).await;
    assert!(seen.iter().all(|seen| *seen == 0), "of {MANY} nodes they still saw {seen:?}");
    cluster.stop().await;
}

async fn count(connection: &mut JuteConnection, children: &JuteRequest) -> usize {
    match connection.ask(children).await {
        Ok(JuteAnswer::Names(names)) => names.len(),
        other => panic!("{other:?}"),
    }
}
