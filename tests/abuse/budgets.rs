//! Budgets of memory, which no request exceeds alone: many clients ask at one time for what decodes to very much, or for answers that they
//! do not read. What the node takes meanwhile has a bound, which it exceeds by far if one of the budgets does not count.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use lockkeeper::local::LocalNode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::{sleep, timeout},
};

use super::{
    dynamodb, readers,
    stage::{Descriptors, MEMORY_SLACK_MIB, Stage, memory_mib, peak_mib, watch_peak},
    zookeeper,
};
use crate::{
    support::{LONG, leader, until},
    zookeeper::{JuteRequest, JuteWriter},
};

/// What is decoded of all requests at DynamoDB's port has this budget. Without it, the [`SCANS`] take more than three times as much: each
/// page has [`ITEMS`] of [`MAPS`], of 700 bytes each.
const DECODED_MIB: u64 = 192;
const SCANS: u8 = 16;
const ITEMS: usize = 4;
const MAPS: usize = 12_000;
/// What a scan is answered that has no room for one item: it may come again.
const THROTTLED: &str = "ProvisionedThroughputExceededException";
/// What it is answered after its time limit, on a busy machine.
const LATE: &str = "no answer within";

/// The requests of pipelines that are under way have this budget at one address, and their answers that are not read [`ANSWERS_MIB`].
/// Without the first, the [`PIPELINES`] take four times as much as both.
const UNDER_WAY_MIB: u64 = 128;
const ANSWERS_MIB: u64 = 16;
const PIPELINES: usize = 100;
const REQUESTS: u64 = 3_000;

/// The port's budgets for requests that are not answered and for replies that are not read, together. Without the second, the [`READERS`]
/// take more than twice as much: 4 MiB of replies each.
const ZOOKEEPER_MIB: u64 = 96;
const READERS: u8 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_together_take_no_more_memory_than_the_budgets_have() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| {
        options.dynamodb = true;
        options.zookeeper = true;
    })
    .await;

    let abuse = async |stage: &Stage| {
        let leads = stage.cluster.node(leader(&stage.cluster).await);
        // The first one starts with the least memory: the node keeps some of what it took for its next requests.
        within("unread pipelines", leads, UNDER_WAY_MIB + ANSWERS_MIB, by_pipelines(stage, leads)).await;
        within("unread replies", leads, ZOOKEEPER_MIB, by_zookeeper(stage, leads)).await;
        within("decoded items", leads, DECODED_MIB, by_dynamodb(stage)).await;
    };
    stage.survives("many clients together", abuse).await;
}

/// The node takes no more than so much, and what is not counted, while this goes on.
async fn within(what: &str, node: &LocalNode, budget_mib: u64, abuse: impl Future<Output = ()>) {
    let before = memory_mib(node);
    watch_peak(node);
    abuse.await;

    let peak = peak_mib(node);
    println!("{what}: {before} MiB before, {peak} MiB at the peak");
    assert!(peak <= before + budget_mib + MEMORY_SLACK_MIB, "{what}: {before} MiB before, {peak} MiB at the peak");
}

/// Returns once the node takes no more memory than a second before.
async fn stands_still(node: &LocalNode) {
    let mut last = 0;
    until("memory to stand still", async || {
        let before = std::mem::replace(&mut last, memory_mib(node));
        sleep(Duration::from_secs(1)).await;
        (last <= before + 1).then_some(())
    })
    .await;
}

/// A socket of one of many addresses of this host.
fn socket_of(client: u8) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 1, 1 + client], 0).into()).expect("all of these addresses are this host's");
    socket
}

/// Scans of items of very many maps, at one time. They take turns, item by item, and each keeps those of its page: so the pages of some end
/// before the last item.
async fn by_dynamodb(stage: &Stage) {
    let port = dynamodb::port(stage).await;
    dynamodb::create(port, 0).await;
    let maps = vec![r#"{"M":{"a":{"NULL":true}}}"#; MAPS].join(",");
    for key in 0..ITEMS {
        let item = format!(r#"{{"key":{{"S":"{key}"}},"x":{{"L":[{maps}]}}}}"#);
        let put = format!(r#"{{"TableName":"locks","Item":{item}}}"#);
        let (status, answer) = dynamodb::call(port, "PutItem", &put).await;
        assert_eq!(status, "200", "{answer:.300}");
    }

    until("pages that end before the last item", async || {
        let (answers, ()) = tokio::join!(scans(port), heartbeats(port));
        let with = |part: &str| answers.iter().filter(|answer| answer.contains(part)).count();
        let ended = with("LastEvaluatedKey");
        let throttled = with(THROTTLED);
        let late = with(LATE);
        println!("{ended} of {SCANS} pages ended before the last item, {throttled} before the first; {late} came late");
        assert_eq!(with("HTTP/1.1 200") + throttled + late, answers.len(), "{answers:.300?}");
        (ended > 0).then_some(())
    })
    .await;
}

/// The answers to scans whose last bytes come one right after the other: so they are under way together, however busy this machine is.
async fn scans(port: SocketAddr) -> Vec<String> {
    let scan = dynamodb::request("Scan", r#"{"TableName":"locks"}"#);
    let (last, first) = scan.split_last().expect("it is not empty");
    let scanners = join_all((0..SCANS).map(async |client| {
        let mut scanner = socket_of(client).connect(port).await.expect("it listens");
        scanner.write_all(first).await.expect("it is read");
        scanner.writable().await.expect("it is open");
        scanner
    }));
    let scanners = scanners.await;
    for scanner in &scanners {
        assert_eq!(scanner.try_write(&[*last]).expect("there is room for a byte"), 1);
    }

    join_all(scanners.into_iter().map(async |mut scanner| {
        let mut answer = String::new();
        timeout(LONG, scanner.read_to_string(&mut answer)).await.expect("in time").expect("it is answered");
        answer
    }))
    .await
}

/// What a lock client asks for meanwhile.
async fn heartbeats(port: SocketAddr) {
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"lock"}}}"#;
    for _ in 0..10 {
        let (status, answer) = dynamodb::call(port, "GetItem", get).await;
        assert_eq!(status, "200", "{answer:.300}");
    }
}

/// Very many small requests on streams whose answers are not taken. Another stream of the same address goes on.
async fn by_pipelines(stage: &Stage, leads: &LocalNode) {
    let client = readers::connect(stage, 0).await;
    let mut unread = Vec::new();
    for _ in 0..PIPELINES {
        unread.push(readers::Unread::gets(&client, "none", REQUESTS).await);
    }

    stands_still(leads).await;
    readers::read_one_by_one(stage, 50).await;
    drop(unread);
}

/// Clients at many addresses ask for a large node again and again, and read nothing.
async fn by_zookeeper(stage: &Stage, leads: &LocalNode) {
    let port = zookeeper::port(stage).await;
    let mut bystander = zookeeper::bystander(port).await;
    let made = bystander.ask(&JuteRequest::create("/waits", &[7; 300_000], 0)).await;
    assert!(made.is_ok(), "{made:?}");

    let mut get = JuteWriter::default();
    get.int(1).int(4).text("/waits").boolean(false);
    let asked = [zookeeper::first_frame(), zookeeper::frame(&get.0).repeat(20)].concat();
    let unread = join_all((0..READERS).map(async |client| {
        let socket = socket_of(client);
        // The kernel would else take most of what is answered.
        socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
        let mut reader = socket.connect(port).await.expect("it listens");
        // The port may have ended the connection before: it has no room.
        let _ = reader.write_all(&asked).await;
        reader
    }));
    let unread = unread.await;

    stands_still(leads).await;
    zookeeper::is_kept(&mut bystander).await;
    drop(unread);
}
