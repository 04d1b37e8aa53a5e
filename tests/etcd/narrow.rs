//! What an identity needs whose rule names some keys alone: its own keys are enough.

use std::fs;

use lockkeeper::{config::AuthConfig, local::LocalCluster};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        kv_client::KvClient, lease_client::LeaseClient, request_op::Request, response_op::Response,
    },
    v3lockpb::{LockRequest, lock_client::LockClient},
};
use lockkeeper_machine::Identity;
use lockkeeper_policy::BearerToken;
use tonic::{
    Code, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::with_timing;

const POLICY: &str = r#"
[[rule]]
who = ["ann"]
may = ["read", "acquire"]
prefix = "etcd/jobs/"

[[rule]]
who = ["eve"]
may = ["read", "acquire"]
prefix = "etcd/jobs/7"

[[rule]]
who = ["ops"]
may = ["administer"]
"#;
const NAMES: [&str; 3] = ["ann", "eve", "ops"];

/// Sends a token with each call.
#[derive(Clone)]
struct As(MetadataValue<Ascii>);

impl Interceptor for As {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        request.metadata_mut().insert("token", self.0.clone());
        Ok(request)
    }
}

/// A connection of an identity.
type Connected = InterceptedService<Channel, As>;

fn token(name: &str) -> BearerToken {
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(name.bytes().cycle()).for_each(|(byte, letter)| *byte = letter);
    BearerToken::from_random(bytes)
}

async fn connected(cluster: &LocalCluster, name: &str) -> Connected {
    let endpoint = format!("http://{}", cluster.etcd_endpoints()[0]);
    let channel = Channel::from_shared(endpoint).expect("a URL").connect().await.expect("it listens");
    InterceptedService::new(channel, As(token(name).reveal().parse().expect("a header")))
}

async fn lease(of: &Connected, id: i64) -> i64 {
    let granted = LeaseClient::new(of.clone()).lease_grant(LeaseGrantRequest { ttl: 600, id }).await;
    granted.expect("a lease").into_inner().id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_to_some_keys_is_enough_for_them_and_for_their_queue_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let tokens = directory.path().join("tokens.toml");
    let policy = directory.path().join("policy.toml");
    let entries = NAMES.map(|name| token(name).entry(&Identity::new(name).expect("valid")));
    fs::write(&tokens, entries.concat()).expect("written");
    fs::write(&policy, POLICY).expect("written");
    let auth = AuthConfig { tokens, policy, anonymous: true };
    let mut cluster = with_timing(10_000, |options| options.auth = auth).await;
    let [ann, eve, ops] =
        [connected(&cluster, "ann").await, connected(&cluster, "eve").await, connected(&cluster, "ops").await];

    // The keys of a lease are its owner's to see.
    let own = lease(&ann, 0).await;
    let key = format!("jobs/{own:x}").into_bytes();
    let put = PutRequest { key: key.clone(), value: b"1".into(), lease: own, ..PutRequest::default() };
    let first = KvClient::new(ann.clone()).put(put.clone()).await.expect("its own key").into_inner();
    let revision = first.header.expect("each has one").revision;
    let shown = LeaseTimeToLiveRequest { id: own, keys: true };
    let shown = LeaseClient::new(ann.clone()).lease_time_to_live(shown).await.expect("its own lease");
    assert_eq!(shown.into_inner().keys, [&key[..]]);

    // A transaction that writes a key, and shows what it was.
    let past = RangeRequest { key: key.clone(), revision, ..RangeRequest::default() };
    let put = PutRequest { value: b"2".into(), ..put };
    let operation = |request| RequestOp { request: Some(request) };
    let success = vec![operation(Request::RequestPut(put)), operation(Request::RequestRange(past))];
    let done = KvClient::new(ann.clone()).txn(TxnRequest { success, ..TxnRequest::default() }).await;
    let done = done.expect("its own key").into_inner();
    let Some(Response::ResponseRange(shown)) = &done.responses[1].response else { panic!("{done:?}") };
    assert_eq!(shown.kvs[0].value, b"1");
    // Who may compact need not read keys.
    let compacted = KvClient::new(ops.clone()).compact(CompactionRequest { revision, physical: false }).await;
    compacted.expect("it administers the cluster");

    // A rule for one place of a queue is none for the queue.
    let of_eve = lease(&eve, 0x7).await;
    let denied = LockClient::new(eve.clone()).lock(LockRequest { name: b"jobs".into(), lease: of_eve }).await;
    let denied = denied.expect_err("it may not hold the lock etcd/jobs");
    assert_eq!((denied.code(), denied.message()), (Code::PermissionDenied, "etcdserver: permission denied"));
    let plain = PutRequest { key: b"jobs/7".into(), ..PutRequest::default() };
    KvClient::new(eve.clone()).put(plain).await.expect("a key that is no lock's");
    cluster.stop().await;
}
