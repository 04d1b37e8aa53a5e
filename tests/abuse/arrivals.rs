//! Connections that send nothing, or an incomplete preface.

use std::net::SocketAddr;

use futures::future::join_all;
use lockkeeper::client::{Client, SessionOptions};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{
    frames::PREFACE,
    sized,
    stage::{Descriptors, Stage, address},
};
use crate::support::{LONG, leader, until};

/// The full attack: more connections than a node accepts. The smaller one: more than it accepts without a complete preface.
const FULL_HALF_PREFACES: usize = 10_050;
const MANY_HALF_PREFACES: usize = 1_500;
/// The same for a node with fewer descriptors: it accepts 672 clients, 84 of them without a complete preface.
const FEW_DESCRIPTORS: u32 = 1_024;
const SMALL_HALF_PREFACES: usize = 800;
/// More connections than the peers' port accepts.
const HALF_PREFACES_PEERS: usize = 1_010;
/// With a soft limit of 1,024 descriptors, this number once stopped two nodes of three.
const SILENT: usize = 1_100;

/// Opens connections that send `words`, a part of a preface, and keeps them open.
pub(crate) async fn say(address: SocketAddr, connections: usize, words: &[u8]) -> Vec<TcpStream> {
    const AT_ONCE: usize = 50;
    let mut open = Vec::new();
    while open.len() < connections {
        let some = join_all((0..AT_ONCE).map(async |_| {
            let mut stream = TcpStream::connect(address).await.ok()?;
            stream.write_all(words).await.ok()?;
            Some(stream)
        }));
        // A refused connection counts as tried too.
        open.extend(some.await.into_iter().map(|stream| stream.ok_or(())));
    }
    open.into_iter().flatten().collect()
}

fn half_a_preface() -> &'static [u8] {
    &PREFACE[..PREFACE.len() / 2]
}

/// A new client connects to a node and is served.
async fn newcomer(endpoint: &str) {
    let client = Client::builder(endpoint).call_limit(LONG).build().expect("an endpoint");
    let session = timeout(LONG, client.open(SessionOptions::default())).await.expect("in time").expect("a session");
    session.acquire("newcomer's").await.expect("free").release().await.expect("it was held");
    session.close().await.expect("it was open");
}

/// Opens connections to each node that send `words`; meanwhile new clients connect. Returns the smallest number of connections per node.
async fn crowd(stage: &Stage, connections: usize, words: &[u8]) -> usize {
    let listens = stage.cluster.nodes().map(|node| address(&node.config().client_listen));
    let crowd = join_all(listens.map(|clients| say(clients, connections, words))).await;
    for endpoint in stage.cluster.endpoints() {
        newcomer(&endpoint).await;
    }
    crowd.iter().map(Vec::len).min().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_keep_no_new_client_out_where_descriptors_are_few() {
    let mut stage = Stage::open(Descriptors::Hard(FEW_DESCRIPTORS)).await;
    let prefaces = async |stage: &Stage| crowd(stage, SMALL_HALF_PREFACES, half_a_preface()).await;
    let came = stage.survives("half prefaces, few descriptors", prefaces).await;
    assert_eq!(came, SMALL_HALF_PREFACES, "nothing was shown");
    let silence = async |stage: &Stage| crowd(stage, SILENT, b"").await;
    stage.survives("silent connections, few descriptors", silence).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_stop_no_node_that_starts_with_few_descriptors() {
    let mut stage = Stage::open(Descriptors::Soft(1_024)).await;
    let came = stage.survives("silent connections", async |stage: &Stage| crowd(stage, SILENT, b"").await).await;
    assert_eq!(came, SILENT, "nothing was shown");
    let prefaces = async |stage: &Stage| {
        let held = say(stage.leader().await, sized(MANY_HALF_PREFACES, FULL_HALF_PREFACES), half_a_preface()).await;
        newcomer(&stage.leader().await.to_string()).await;
        held.len()
    };
    stage.survives("half prefaces", prefaces).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_prefaces_at_the_peers_port_do_not_prevent_an_election() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let first = leader(&stage.cluster).await;
    let listens: Vec<_> = stage.cluster.nodes().map(|node| address(&node.config().peer_listen)).collect();
    let mut held = Vec::new();
    for peers in listens {
        held.extend(say(peers, HALF_PREFACES_PEERS, half_a_preface()).await);
    }
    stage.cluster.node_mut(first).kill().await;
    let killed = Instant::now();
    let abuse = async |stage: &Stage| {
        until("another leader", async || {
            let statuses = stage.cluster.statuses().await;
            statuses
                .values()
                .find(|status| status.leader_id != first && status.leader_id != 0 && status.serving)
                .map(drop)
        })
        .await;
        println!("another leader after {:.1?}", killed.elapsed());
        newcomer(&stage.cluster.endpoints().join(",")).await;
    };
    stage.suffers("half prefaces at the peers' port", abuse).await;
    drop(held);
}
