//! What a node tells and leaves behind that stops, or leads and is cut off from the others.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use lockkeeper::local::{LocalCluster, Signal};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        LeaseGrantRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient,
        lease_client::LeaseClient, maintenance_client::MaintenanceClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    v3electionpb::{CampaignRequest, LeaderRequest, election_client::ElectionClient},
    v3lockpb::{LockRequest, lock_client::LockClient},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tonic::{Request, Status, transport::Channel};

use super::{
    LONG,
    clients::{leader_and_other, until_keys},
    cluster,
};

async fn channel(cluster: &LocalCluster, node: u64) -> Channel {
    let endpoint = cluster.node(node).etcd_endpoint().expect("it serves the API");
    Channel::from_shared(format!("http://{endpoint}")).expect("a URL").connect().await.expect("it listens")
}

/// A lease that outlives the test.
async fn lease(channel: &Channel) -> i64 {
    let granted = LeaseClient::new(channel.clone()).lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await;
    granted.expect("a lease").into_inner().id
}

/// Callers that wait for a lock and an election at this node give their places up when it is stopped, though their leases go on: they are
/// told so, and would be holders whom nobody knows otherwise.
async fn stopped_while_callers_wait(cluster: &mut LocalCluster, stopped: u64, name: &str) {
    let other = channel(cluster, stopped % 3 + 1).await;
    let held = LockRequest { name: name.into(), lease: lease(&other).await };
    LockClient::new(other.clone()).lock(held).await.expect("it is free");
    let waits_at = channel(cluster, stopped).await;
    let request = LockRequest { name: name.into(), lease: lease(&waits_at).await };
    let mut client = LockClient::new(waits_at.clone());
    let waits = tokio::spawn(async move { client.lock(request).await });
    // In the same queue: an election has the same keys.
    let request = CampaignRequest { name: name.into(), lease: lease(&waits_at).await, value: b"v".into() };
    let mut client = ElectionClient::new(waits_at);
    let campaigns = tokio::spawn(async move { client.campaign(request).await });
    until_keys(&other, name, 3).await;

    cluster.node_mut(stopped).stop().await;
    until_keys(&other, name, 1).await;
    let told = |error: Status| assert_eq!(error.message(), "etcdserver: server stopped", "{error:?}");
    told(timeout(LONG, waits).await.expect("in time").expect("it runs").expect_err("no turn"));
    told(timeout(LONG, campaigns).await.expect("in time").expect("it runs").expect_err("no turn"));
    cluster.node_mut(stopped).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("all serve");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_stopped_leaves_no_keys_of_those_that_waited_there() {
    let mut cluster = cluster().await;
    let (_, follower) = leader_and_other(&cluster).await;
    stopped_while_callers_wait(&mut cluster, follower, "stopped-follower").await;
    let (leader, _) = leader_and_other(&cluster).await;
    stopped_while_callers_wait(&mut cluster, leader, "stopped-leader").await;
    cluster.stop().await;
}

/// What `GET /health` answers.
async fn health(address: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("text");
    answer
}

async fn until_health(address: &str, wanted: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        let health = health(address).await;
        if health.contains(wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted}: {health}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A request that is only good while there is a leader.
fn only_with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", "true".parse().expect("ASCII"));
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_nobody_counts_as_none() {
    const NO_LEADER: &str = "etcdserver: no leader";
    let mut cluster = cluster().await;
    let (leader, _) = leader_and_other(&cluster).await;
    let endpoint = cluster.node(leader).etcd_endpoint().expect("it serves the API");
    let channel = channel(&cluster, leader).await;
    let create = WatchCreateRequest { key: b"a".into(), ..WatchCreateRequest::default() };
    let watch = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // Its requests go on.
    let watch = stream::iter([watch]).chain(stream::pending());
    let events = WatchClient::new(channel.clone()).watch(only_with_leader(watch)).await;
    let mut events = events.expect("a stream").into_inner();
    assert!(events.message().await.expect("an answer").expect("the first one").created);
    let mut election = ElectionClient::new(channel.clone());
    let observing = tokio::spawn(async move {
        let observe = only_with_leader(LeaderRequest { name: b"jobs".into() });
        election.observe(observe).await?.into_inner().message().await
    });
    until_health(&endpoint, "\"true\"").await;

    for follower in (1..=3).filter(|node| *node != leader) {
        cluster.node(follower).pause().await;
    }
    until_health(&endpoint, "\"false\"").await;
    let ended = timeout(LONG, events.message()).await.expect("in time");
    assert_eq!(ended.expect_err("no leader").message(), NO_LEADER);
    let ended = timeout(LONG, observing).await.expect("in time").expect("it runs");
    assert_eq!(ended.expect_err("no leader").message(), NO_LEADER);
    let read = RangeRequest { key: b"a".into(), serializable: true, ..RangeRequest::default() };
    let read = KvClient::new(channel.clone()).range(only_with_leader(read)).await;
    assert_eq!(read.expect_err("no leader").message(), NO_LEADER);
    let status = MaintenanceClient::new(channel.clone()).status(StatusRequest {}).await.expect("its own");
    let status = status.into_inner();
    assert_eq!((status.leader, status.errors), (0, vec![NO_LEADER.to_owned()]));

    for follower in (1..=3).filter(|node| *node != leader) {
        cluster.node(follower).signal(Signal::CONT);
    }
    until_health(&endpoint, "\"true\"").await;
    cluster.stop().await;
}
