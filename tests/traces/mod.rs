//! Traces of requests, from real nodes, at a collector in the test.
//!
//! One acquire can be followed from the client through a follower to the leader, and there through queue, commit and apply; and a collector
//! that is silent or gone costs spans, not service.

mod collector;

use std::{future::IntoFuture as _, time::Duration};

use lockkeeper::{
    client::Client,
    config::TracesConfig,
    local::LocalCluster,
    proto::v1::{AcquireRequest, GetRequest, Want, locks_client::LocksClient},
};
use lockkeeper_etcd::proto::etcdserverpb::{PutRequest, kv_client::KvClient};
use tokio::time::{Instant, timeout};
use tonic::Request;

use self::collector::{Collector, Seen};
use crate::support::{LONG, client, cluster_with, leader, lockkeeper, long_session, output, text, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A cluster whose nodes begin no traces by themselves. Its elections are those that the test causes.
async fn traced(endpoint: &str) -> LocalCluster {
    cluster_with(|options| {
        options.traces = TracesConfig { endpoint: endpoint.to_owned(), sample_ratio: 0.0 };
        options.http = true;
        options.etcd = true;
    })
    .await
}

async fn follower(cluster: &LocalCluster) -> u64 {
    let leads = leader(cluster).await;
    (1..=3).find(|node| *node != leads).expect("three nodes")
}

fn traceparent(sampled: bool) -> String {
    let flags = if sampled { "01" } else { "00" };
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// Acquires a lock at this node, as part of the caller's trace: sampled or not.
async fn acquire_at(cluster: &LocalCluster, node: u64, session: &str, lock: &str, sampled: bool) {
    let mut locks = LocksClient::new(cluster.node(node).channel().await.expect("it serves"));
    let wanted = Want { name: lock.to_owned(), ..Want::default() };
    let message = AcquireRequest { session_id: session.to_owned(), locks: vec![wanted], ..Default::default() };
    let mut request = Request::new(message);
    request.metadata_mut().insert("traceparent", traceparent(sampled).parse().expect("ASCII"));
    locks.acquire(request).await.expect("it is answered");
}

/// The spans of this name, once the collector has so many.
async fn spans(collector: &Collector, name: &str, count: usize) -> Vec<Seen> {
    until(&format!("{count} spans {name}"), async || {
        let found: Vec<_> = collector.spans().into_iter().filter(|span| span.name == name).collect();
        assert!(found.len() <= count, "{found:?}");
        (found.len() == count).then_some(found)
    })
    .await
}

fn assert_within(part: &Seen, whole: &Seen) {
    assert_eq!((&part.trace, &part.parent), (&whole.trace, &whole.id), "{part:?} is not a child of {whole:?}");
    let is_within = whole.from <= part.from && part.from <= part.to && part.to <= whole.to;
    assert!(is_within, "{part:?} is not within {whole:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_at_a_follower_is_one_trace() {
    let collector = Collector::start().await;
    let cluster = traced(&collector.endpoint).await;
    let leads = leader(&cluster).await;
    let follows = follower(&cluster).await;
    let session = long_session(&client(&cluster)).await;

    // Not sampled, or without a context: no spans, as the last step shows.
    acquire_at(&cluster, follows, &session.id().to_string(), "quiet", false).await;
    session.acquire("silent").await.expect("free").release().await.expect("it was held");
    acquire_at(&cluster, follows, &session.id().to_string(), "seat", true).await;

    let calls = spans(&collector, "acquire_locks", 2).await;
    let at = |node: u64| calls.iter().find(|span| span.node == node.to_string()).expect("one of each node");
    let first = at(follows);
    let second = at(leads);
    assert_eq!((&*first.trace, &*first.parent), (TRACE, CALLER));
    assert_eq!(first.attribute("lockkeeper.forwarded_to"), Some(leads.to_string()));
    // Two processes read the same clock here.
    assert_within(second, first);
    assert_eq!(second.attribute("lockkeeper.lock").as_deref(), Some("seat"));
    let index: u64 = second.attribute("lockkeeper.log_index").expect("it is in the log").parse().expect("a number");
    let status = cluster.node(leads).status().await.expect("it answers");
    assert!(index > 0 && index <= status.last_log_index, "{index}, and the log ends at {}", status.last_log_index);

    let mut parts = Vec::new();
    for name in ["queue", "commit", "apply"] {
        let part = spans(&collector, name, 1).await.remove(0);
        assert_within(&part, second);
        parts.push(part);
    }
    assert!(parts.windows(2).all(|two| two[0].to == two[1].from), "a gap or an overlap: {parts:?}");
    let all = collector.spans();
    assert!(all.len() == 5 && all.iter().all(|span| span.trace == TRACE), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_by_etcds_api_belongs_to_its_callers_trace() {
    let collector = Collector::start().await;
    let cluster = traced(&collector.endpoint).await;
    let leads = leader(&cluster).await;
    let follows = follower(&cluster).await;
    let endpoint = &cluster.etcd_endpoints()[usize::try_from(follows - 1).expect("few nodes")];
    let mut kv = KvClient::connect(format!("http://{endpoint}")).await.expect("it listens");
    for (key, sampled) in [("quiet", false), ("seen", true)] {
        let mut request = Request::new(PutRequest { key: key.into(), value: "1".into(), ..PutRequest::default() });
        request.metadata_mut().insert("traceparent", traceparent(sampled).parse().expect("ASCII"));
        kv.put(request).await.expect("it is answered");
    }

    let apply = spans(&collector, "apply", 1).await.remove(0);
    // Each node sends its own.
    spans(&collector, "txn", 2).await;
    let all = collector.spans();
    let parent_of = |span: &Seen| all.iter().find(|whole| whole.id == span.parent).cloned();
    let at_leader = parent_of(&apply).expect("the call at the leader");
    let at_follower = parent_of(&at_leader).expect("the call at the follower");
    assert_eq!((&at_leader.node, &at_follower.node), (&leads.to_string(), &follows.to_string()));
    assert_eq!((&*at_follower.trace, &*at_follower.parent), (TRACE, CALLER));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_passes_on_its_callers_trace_and_a_wait_is_a_part_of_it() {
    let collector = Collector::start().await;
    let cluster = traced(&collector.endpoint).await;
    let holder = long_session(&client(&cluster)).await;
    let held = holder.acquire("seat").await.expect("free");

    let present = || Some(format!("00-{TRACE}-{CALLER}-01"));
    let client = Client::builder(&cluster.endpoints().join(",")).call_limit(LONG).traceparent(present);
    let waiter = long_session(&client.build().expect("valid endpoints")).await;
    let waiting = tokio::spawn(waiter.acquire("seat").into_future());
    until("the wait", async || {
        let lock = holder_view(&cluster).await;
        (lock == 1).then_some(())
    })
    .await;
    held.release().await.expect("it was held");
    let granted = waiting.await.expect("no panic").expect("it is free");

    let leads = leader(&cluster).await.to_string();
    let wait = spans(&collector, "wait", 1).await.remove(0);
    let calls: Vec<_> = collector.spans().into_iter().filter(|span| span.name == "acquire_locks").collect();
    let call = calls.iter().find(|span| span.id == wait.parent).expect("the acquire that waited");
    assert_eq!(call.node, leads);
    assert_within(&wait, call);
    assert_eq!(call.trace, TRACE);
    let apply = collector.spans().into_iter().find(|span| span.name == "apply" && span.parent == call.id);
    assert!(apply.expect("it was applied before").to <= wait.from);
    granted.release().await.expect("it was held");
}

/// Acquires that wait for the seat.
async fn holder_view(cluster: &LocalCluster) -> u64 {
    client(cluster).get("seat").await.expect("it answers").lock.queue_length as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_the_first_span_of_its_trace() {
    let collector = Collector::start().await;
    let cluster = traced(&collector.endpoint).await;
    let endpoints = cluster.endpoints().join(",");
    let mut command = lockkeeper(&["lock", "seat", "--endpoints", &endpoints, "--", "true"]);
    let (code, _, error) = text(&output(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)).await);
    assert_eq!((code, &*error), (0, ""));
    let root = spans(&collector, "lockkeeper lock", 1).await.remove(0);
    assert_eq!((&*root.parent, &*root.service), ("", "lockkeeper-cli"));
    until("the acquire in its trace", async || {
        let is_its = |span: &Seen| span.name == "acquire_locks" && span.parent == root.id && span.trace == root.trace;
        collector.spans().iter().any(is_its).then_some(())
    })
    .await;
}

/// The cluster goes on, and a node stops as it would without traces: `endpoint` takes none.
async fn goes_on_without_a_collector(endpoint: &str) {
    /// Beyond the deadlines of a drain (4 s) and of the flush (2 s), on a busy machine.
    const STOP_MAX: Duration = Duration::from_secs(20);
    let mut cluster = traced(endpoint).await;
    let follows = follower(&cluster).await;
    let session = long_session(&client(&cluster)).await;
    for round in 0..20 {
        let lock = format!("seat/{round}");
        timeout(LONG, acquire_at(&cluster, follows, &session.id().to_string(), &lock, true)).await.expect("in time");
    }
    let mut locks = LocksClient::new(cluster.node(follows).channel().await.expect("it serves"));
    let asked = GetRequest { name: "seat/19".to_owned(), ..Default::default() };
    let lock = locks.get(asked).await.expect("it answers").into_inner().lock.expect("a lock");
    assert_eq!(lock.holders.len(), 1);
    until("spans that are counted as dropped", async || (dropped(&cluster, follows).await > 0).then_some(())).await;
    acquire_at(&cluster, follows, &session.id().to_string(), "last", true).await;
    let began = Instant::now();
    let ended = cluster.node_mut(follows).stop().await.expect("it ran");
    assert!(ended.success(), "{ended}: it was killed, or failed");
    assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
}

/// The count of a node's spans that were not sent.
async fn dropped(cluster: &LocalCluster, node: u64) -> u64 {
    let address = cluster.node(node).config().http.listen.clone();
    let text = collector::get(&address, "/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix("lockkeeper_dropped_spans_total "));
    line.expect("the metric").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_delays_nothing() {
    let collector = Collector::silent().await;
    goes_on_without_a_collector(&collector.endpoint).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_delays_nothing() {
    let endpoint = Collector::gone().await;
    goes_on_without_a_collector(&endpoint).await;
}
