//! The first revisions of a cluster, and those that a compaction forgets, at nodes that follow.

use futures::stream;
use lockkeeper::local::LocalCluster;
use lockkeeper_etcd::proto::etcdserverpb::{
    CompactionRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient,
    watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::time::timeout;
use tonic::transport::Channel;

use super::{LONG, clients::leader_and_other, steady_cluster};

/// Compactions at a node that follows: each finds its copy behind the leader's.
const ROUNDS: usize = 20;

async fn channel(cluster: &LocalCluster, node: u64) -> Channel {
    let endpoint = cluster.node(node).etcd_endpoint().expect("it serves the API");
    Channel::from_shared(format!("http://{endpoint}")).expect("a URL").connect().await.expect("it listens")
}

async fn put(channel: &Channel) -> i64 {
    let request = PutRequest { key: b"a".into(), value: b"1".into(), ..PutRequest::default() };
    let answer = KvClient::new(channel.clone()).put(request).await.expect("it is put").into_inner();
    answer.header.expect("each has one").revision
}

/// Whether a watch from this revision on is canceled, since it is forgotten.
async fn is_canceled(channel: &Channel, start_revision: i64) -> bool {
    let create = WatchCreateRequest { key: b"a".into(), start_revision, ..WatchCreateRequest::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = stream::iter([request]);
    let mut answers = WatchClient::new(channel.clone()).watch(requests).await.expect("a stream").into_inner();
    let mut next = async || timeout(LONG, answers.message()).await.expect("in time").expect("no error").expect("one");
    let created = next().await;
    assert!(created.created && !created.canceled, "{created:?}");
    next().await.canceled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_answer_to_a_compaction_finds_nothing_below_it() {
    let mut cluster = steady_cluster().await;
    let (leader, other) = leader_and_other(&cluster).await;
    let at_leader = channel(&cluster, leader).await;
    let at_other = channel(&cluster, other).await;
    let first = put(&at_leader).await;
    assert!(first > 1, "no write of a client has revision 1: {first}");
    let ahead = RangeRequest {
        key: b"a".into(),
        range_end: b"b".into(),
        max_create_revision: first - 1,
        ..RangeRequest::default()
    };
    let ahead = KvClient::new(at_other.clone()).range(ahead).await.expect("an answer").into_inner();
    assert_eq!(ahead.kvs, [], "nothing is ahead of the first key");

    for _ in 0..ROUNDS {
        let before = put(&at_leader).await;
        let revision = put(&at_leader).await;
        let mut kv = KvClient::new(at_other.clone());
        kv.compact(CompactionRequest { revision, physical: false }).await.expect("it is compacted");
        assert!(is_canceled(&at_other, before).await, "{before} is forgotten");
        let again = kv.compact(CompactionRequest { revision, physical: false }).await.expect_err("it was compacted");
        assert_eq!(again.message(), "etcdserver: mvcc: required revision has been compacted");
    }
    cluster.stop().await;
}
