//! Clients while their node is cut off from the others: those that come and go faster than anything can be written, and very many
//! subscriptions that end at once.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::local::{LocalNode, Signal};
use lockkeeper_machine::EVENT_BYTES_MAX;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    redis::{connect, redis_port},
    sized,
    stage::{Descriptors, Stage, address, memory_mib},
};
use crate::{
    redis::{Connection, Reply, text_of},
    support::{LONG, leader, until},
};

/// Clients that come and go during an outage. If their node kept what it was to write for each of the smaller number, it would take some
/// hundred MiB.
const SMALL_PASSERS: usize = 1_500;
const FULL_PASSERS: usize = 80_000;
/// What the connections of so many take while they are served, also when there is a leader.
const SMALL_PASSING_MIB: usize = 64;
const FULL_PASSING_MIB: usize = 400;
/// How many of them are there at a time.
const SIDE_BY_SIDE: usize = 16;
/// New names in the request of each.
const NAMES: usize = 1_000;
/// Clients that subscribe and stay, each to [`NAMES`] names: a node keeps 16,384 places.
const SMALL_SUBSCRIBERS: usize = 3;
const FULL_SUBSCRIBERS: usize = 16;
/// The history of the keyspace, in which places come and go: its limit.
const HISTORY_MIB: u64 = (EVENT_BYTES_MAX >> 20) as u64;
/// How often its memory is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Longer than the entries live that a node keeps for its subscribers.
const CUT_OFF: Duration = Duration::from_millis(6_500);

/// A request that subscribes to names which no other request has.
fn subscription(number: usize) -> Vec<u8> {
    let mut request = format!("*{}\r\n$9\r\nSUBSCRIBE\r\n", NAMES + 1);
    for name in 0..NAMES {
        let name = format!("passing/{number}/{name}");
        request.push_str(&format!("${}\r\n{name}\r\n", name.len()));
    }
    request.into_bytes()
}

/// The nodes but for this one.
fn others(stage: &Stage, node: u64) -> Vec<&LocalNode> {
    stage.cluster.nodes().filter(|other| other.id() != node).collect()
}

/// Clients that subscribe and leave at once, until so many have done so.
async fn come_and_go(port: SocketAddr, clients: usize) {
    let next = AtomicUsize::new(0);
    let passing = (0..SIDE_BY_SIDE).map(async |_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= clients {
                return;
            }
            // The node may refuse a client of many. It goes without having read anything.
            if let Ok(mut stream) = TcpStream::connect(port).await {
                let _ = stream.write_all(&subscription(number)).await;
            }
        }
    });
    timeout(5 * LONG, join_all(passing)).await.expect("a node takes or refuses whoever comes");
}

/// The most memory of a node while something goes on, in MiB.
async fn most_memory_during(node: &LocalNode, work: impl Future<Output = ()>) -> u64 {
    let mut most = 0;
    let looks = async {
        loop {
            most = most.max(memory_mib(node));
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = looks => {}
    }
    most
}

/// A connection with a subscription that is counted.
async fn subscriber(port: SocketAddr, channel: &str) -> Connection {
    until("a subscription", async || {
        let mut connection = Connection::open(&port.to_string()).await?;
        let reply = connection.call(&["SUBSCRIBE", channel]).await?;
        matches!(reply, Reply::List(_)).then_some(connection)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_come_and_go_without_a_leader_leave_nothing_behind() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.redis = true).await;
    stage.allow_mib(HISTORY_MIB);
    let abuse = async |stage: &Stage| {
        let port = redis_port(stage).await;
        let leads = leader(&stage.cluster).await;
        let node = stage.cluster.node(leads);
        drop(subscriber(port, "before").await);
        // What a few of them take, all others may take together.
        come_and_go(port, SIDE_BY_SIDE * 4).await;
        let before = memory_mib(node);

        // Their node may read what they sent long after they have gone, so all of it counts, until it serves again.
        let outage = async {
            join_all(others(stage, leads).into_iter().map(LocalNode::pause)).await;
            come_and_go(port, sized(SMALL_PASSERS, FULL_PASSERS)).await;
            others(stage, leads).into_iter().for_each(|other| other.signal(Signal::CONT));
            drop(subscriber(port, "afterwards").await);
        };
        let most = most_memory_during(node, outage).await;
        println!("{before} MiB before the outage, {most} MiB until the node serves again");
        let allowed = before + HISTORY_MIB + sized(SMALL_PASSING_MIB, FULL_PASSING_MIB) as u64;
        assert!(most <= allowed, "{before} MiB before, {most} MiB while clients come and go");
    };
    stage.suffers("clients that subscribe and leave while there is no leader", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_subscriptions_that_end_at_once_end_no_others() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.redis = true).await;
    let abuse = async |stage: &Stage| {
        let leads = leader(&stage.cluster).await;
        let [cut_off, stays] = others(stage, leads)[..] else { panic!("three nodes") };
        let port_of = |node: &LocalNode| address(&node.redis_endpoint().expect("it has the port"));
        let mut kept = subscriber(port_of(stays), "kept").await;
        let mut many = Vec::new();
        for number in 0..sized(SMALL_SUBSCRIBERS, FULL_SUBSCRIBERS) {
            let names: Vec<String> = (0..NAMES).map(|name| format!("many/{number}/{name}")).collect();
            let mut connection = connect(port_of(cut_off)).await;
            let words: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(names.iter().map(String::as_str)).collect();
            connection.send(&words).await.expect("it reads");
            for _ in 0..NAMES {
                assert!(matches!(connection.read().await, Some(Reply::List(_))), "a node has room for them");
            }
            many.push(connection);
        }

        cut_off.pause().await;
        sleep(CUT_OFF).await;
        cut_off.signal(Signal::CONT);
        for mut connection in many {
            assert_eq!(connection.read().await, None, "others were not told of it, so its node must end it");
        }

        // Whoever comes now has a place again, and whoever was at another node has kept its own.
        drop(subscriber(port_of(cut_off), "again").await);
        let told = until("a message", async || {
            let mut publisher = Connection::open(&port_of(cut_off).to_string()).await?;
            let told = publisher.call(&["PUBLISH", "kept", "still"]).await?;
            (told == Reply::Number(1)).then_some(told)
        });
        told.await;
        let message = Reply::List(["message", "kept", "still"].map(text_of).to_vec());
        assert_eq!(kept.read().await, Some(message));
    };
    stage.suffers("subscriptions that end at once, since their node was cut off", abuse).await;
}
