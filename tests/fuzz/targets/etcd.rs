//! etcd's API: the messages of its services, and paths and bodies of its gateway.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream::iter};
use lockkeeper_etcd::{
    EtcdFacts, EtcdFound, EtcdMember, EtcdPage, EtcdSession, EtcdStore, EtcdStoreError, KeptAlive, NodeCondition,
    WatchedEvents,
    proto::{
        etcdserverpb::{
            AuthenticateRequest, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest,
            LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp,
            TxnRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
            auth_client::AuthClient,
            compare::{CompareResult, CompareTarget, TargetUnion},
            kv_client::KvClient,
            lease_client::LeaseClient,
            request_op::Request,
            watch_client::WatchClient,
            watch_request::RequestUnion,
        },
        v3electionpb::{
            CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest, election_client::ElectionClient,
        },
        v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient},
    },
    services,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::{runtime, time::timeout};
use tonic::{
    Response, Status, Streaming,
    codegen::{Body, Service as _},
};

use super::says;

#[path = "../../../src/etcd/tests/memory.rs"]
#[allow(dead_code, reason = "the services are tested with more of it")]
mod memory;

/// The services, over a store in memory.
type Routes = lockkeeper_etcd::EtcdServices<memory::Memory>;

/// A lease that there is, and one that there is not.
const LEASES: [i64; 2] = [77, 5];

/// Runs until nothing more happens: a lock that is not free is waited for without end. What it has started ends with it.
fn run<F: Future<Output = ()>>(run: impl FnOnce(Routes) -> F) {
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let routes = services(memory::Memory::default());
        fill(&routes).await;
        let _ = timeout(Duration::from_secs(60), run(routes)).await;
    });
}

/// What each input finds: a lease with a lock, an election, and keys of some revisions.
async fn fill(routes: &Routes) {
    let mut kv = KvClient::new(routes.clone());
    let mut leases = LeaseClient::new(routes.clone());
    leases.lease_grant(LeaseGrantRequest { ttl: 60, id: LEASES[0] }).await.expect("granted");
    for (key, lease) in [("a", 0), ("a", 77), ("b/1", 0), ("b/2", 77)] {
        kv.put(PutRequest { lease, ..put(key) }).await.expect("put");
    }
    let lock = LockRequest { name: b"jobs".to_vec(), lease: LEASES[0] };
    LockClient::new(routes.clone()).lock(lock).await.expect("it is free");
    let campaign = CampaignRequest { name: b"boss".to_vec(), lease: LEASES[0], value: b"me".to_vec() };
    ElectionClient::new(routes.clone()).campaign(campaign).await.expect("nobody else");
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.into(), value: b"value".to_vec(), ..PutRequest::default() }
}

/// An error has a code of etcd's and a text.
fn check(status: &Status) {
    assert_ne!(status.code(), tonic::Code::Unknown, "{status:?}");
    assert_ne!(status.code(), tonic::Code::Internal, "{status:?}");
    says(&status.message());
}

/// An input is the name of a method, a line feed, and its message; of `watch` and `keep_alive`, messages with their lengths.
pub(super) fn message(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (Ok(method), message) = (str::from_utf8(&input[..at]), input.get(at + 1..).unwrap_or_default()) else { return };
    run(async |routes| call(routes, method, message).await);
}

async fn call(routes: Routes, method: &str, message: &[u8]) {
    macro_rules! unary {
        ($client:ident::$method:ident($request:ident)) => {
            match $request::decode(message) {
                Ok(request) => match $client::new(routes).$method(request).await {
                    Ok(answer) => drop(answer.into_inner().encode_to_vec()),
                    Err(status) => check(&status),
                },
                Err(error) => says(&error),
            }
        };
    }
    match method {
        "range" => unary!(KvClient::range(RangeRequest)),
        "put" => unary!(KvClient::put(PutRequest)),
        "delete_range" => unary!(KvClient::delete_range(DeleteRangeRequest)),
        "txn" => unary!(KvClient::txn(TxnRequest)),
        "compact" => unary!(KvClient::compact(CompactionRequest)),
        "grant" => unary!(LeaseClient::lease_grant(LeaseGrantRequest)),
        "revoke" => unary!(LeaseClient::lease_revoke(LeaseRevokeRequest)),
        "time_to_live" => unary!(LeaseClient::lease_time_to_live(LeaseTimeToLiveRequest)),
        "lock" => unary!(LockClient::lock(LockRequest)),
        "unlock" => unary!(LockClient::unlock(UnlockRequest)),
        "campaign" => unary!(ElectionClient::campaign(CampaignRequest)),
        "proclaim" => unary!(ElectionClient::proclaim(ProclaimRequest)),
        "leader" => unary!(ElectionClient::leader(LeaderRequest)),
        "resign" => unary!(ElectionClient::resign(ResignRequest)),
        "authenticate" => unary!(AuthClient::authenticate(AuthenticateRequest)),
        "observe" => match LeaderRequest::decode(message) {
            Ok(request) => read(ElectionClient::new(routes).observe(request).await).await,
            Err(error) => says(&error),
        },
        "keep_alive" => {
            let requests = iter(several::<LeaseKeepAliveRequest>(message));
            read(LeaseClient::new(routes).lease_keep_alive(requests).await).await;
        }
        "watch" => read(WatchClient::new(routes).watch(iter(several::<WatchRequest>(message))).await).await,
        _ => {}
    }
}

/// The messages up to one that is none.
fn several<M: Message + Default>(mut bytes: &[u8]) -> Vec<M> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        match M::decode_length_delimited(&mut bytes) {
            Ok(message) => messages.push(message),
            Err(error) => {
                says(&error);
                break;
            }
        }
    }
    messages
}

/// Reads a stream to its end, as long as it has answers.
async fn read<M>(answers: Result<Response<Streaming<M>>, Status>) {
    let mut answers = match answers {
        Ok(answers) => answers.into_inner(),
        Err(status) => return check(&status),
    };
    while let Some(answer) = answers.next().await {
        if let Err(status) = answer {
            return check(&status);
        }
    }
}

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let [lease, none] = LEASES;
    let prefix = RangeRequest { key: b"b/".into(), range_end: b"b0".into(), ..RangeRequest::default() };
    let compare = |target: CompareTarget, result: CompareResult, union| Compare {
        key: b"a".into(),
        target: target.into(),
        result: result.into(),
        target_union: Some(union),
        ..Compare::default()
    };
    let does = |request| RequestOp { request: Some(request) };
    let inner = TxnRequest {
        compare: vec![
            compare(CompareTarget::Mod, CompareResult::Less, TargetUnion::ModRevision(9)),
            Compare {
                range_end: b"c".into(),
                ..compare(CompareTarget::Lease, CompareResult::NotEqual, TargetUnion::Lease(none))
            },
        ],
        success: vec![does(Request::RequestDeleteRange(DeleteRangeRequest {
            key: b"b/1".into(),
            ..Default::default()
        }))],
        failure: vec![does(Request::RequestPut(put("c")))],
    };
    let txn = TxnRequest {
        compare: vec![
            compare(CompareTarget::Create, CompareResult::Greater, TargetUnion::CreateRevision(0)),
            compare(CompareTarget::Version, CompareResult::Equal, TargetUnion::Version(2)),
            compare(CompareTarget::Value, CompareResult::Equal, TargetUnion::Value(b"value".into())),
        ],
        success: vec![
            does(Request::RequestPut(PutRequest { lease, prev_kv: true, ..put("locks/4d") })),
            does(Request::RequestRange(prefix.clone())),
            does(Request::RequestTxn(inner)),
        ],
        failure: vec![does(Request::RequestRange(RangeRequest { revision: 2, ..prefix.clone() }))],
    };
    let sorted = RangeRequest {
        sort_target: 2,
        sort_order: 2,
        limit: 1,
        max_create_revision: 9,
        count_only: true,
        ..prefix.clone()
    };
    let past =
        RangeRequest { key: b"\0".into(), range_end: b"\0".into(), revision: 2, keys_only: true, ..Default::default() };
    let kept =
        PutRequest { key: b"a".into(), ignore_value: true, ignore_lease: true, prev_kv: true, ..Default::default() };
    let delete = DeleteRangeRequest { key: b"a".into(), range_end: b"\0".into(), prev_kv: true };
    let leader = LeaderKey { name: b"boss".into(), key: b"boss/4d".into(), rev: 6, lease };
    let create = |create| WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let watch = WatchCreateRequest {
        key: b"a".into(),
        range_end: b"z".into(),
        start_revision: 1,
        prev_kv: true,
        ..Default::default()
    };
    let filtered =
        WatchCreateRequest { filters: vec![0, 1], fragment: true, progress_notify: true, watch_id: 7, ..watch.clone() };
    let cancel = WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 7 })) };
    let progress = WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
    let watches = [create(watch), create(filtered), progress, cancel].map(|it| it.encode_length_delimited_to_vec());
    let renewals = LEASES.map(|id| LeaseKeepAliveRequest { id }.encode_length_delimited_to_vec());
    [
        ("range", sorted.encode_to_vec()),
        ("range", past.encode_to_vec()),
        ("put", kept.encode_to_vec()),
        ("put", PutRequest { lease, ..put("jobs/4d") }.encode_to_vec()),
        ("delete_range", delete.encode_to_vec()),
        ("txn", txn.encode_to_vec()),
        ("compact", CompactionRequest { revision: 3, physical: true }.encode_to_vec()),
        ("grant", LeaseGrantRequest { ttl: 60, id: none }.encode_to_vec()),
        ("revoke", LeaseRevokeRequest { id: lease }.encode_to_vec()),
        ("time_to_live", LeaseTimeToLiveRequest { id: lease, keys: true }.encode_to_vec()),
        ("lock", LockRequest { name: b"jobs".into(), lease }.encode_to_vec()),
        ("unlock", UnlockRequest { key: b"jobs/4d".into() }.encode_to_vec()),
        ("campaign", CampaignRequest { name: b"boss".into(), lease, value: b"again".into() }.encode_to_vec()),
        ("proclaim", ProclaimRequest { leader: Some(leader.clone()), value: b"this".into() }.encode_to_vec()),
        ("leader", LeaderRequest { name: b"boss".into() }.encode_to_vec()),
        ("observe", LeaderRequest { name: b"boss".into() }.encode_to_vec()),
        ("resign", ResignRequest { leader: Some(leader) }.encode_to_vec()),
        ("authenticate", AuthenticateRequest { name: "ann".into(), password: "secret".into() }.encode_to_vec()),
        ("keep_alive", renewals.concat()),
        ("watch", watches.concat()),
    ]
    .map(|(method, message)| [method.as_bytes(), b"\n", &message].concat())
    .into()
}

/// A body in one part.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// An input is a path, a line feed, and a body. Each answer is JSON, or lines of it, and an error has a text.
pub(super) fn json(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let path = &input[..at];
    let body = Bytes::copy_from_slice(input.get(at + 1..).unwrap_or_default());
    let (method, path) = path.strip_prefix(b"GET ").map_or(("POST", path), |path| ("GET", path));
    let request = http::Request::builder().method(method).uri(path).body(tonic::body::Body::new(Whole(Some(body))));
    let Ok(request) = request else { return };
    run(async |mut routes| {
        let answer = routes.call(request).await.expect("it does not fail");
        let status = answer.status();
        let mut body = answer.into_body();
        let mut text = Vec::new();
        let read = async {
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                text.extend(frame.expect("it is whole").into_data().unwrap_or_default());
            }
        };
        // A watch has no end.
        let _ = timeout(Duration::from_secs(1), read).await;
        for value in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
            let value = value.expect("an answer is JSON");
            let error = value.get("error");
            assert!(error.is_some() || status.is_success(), "{status}: {value}");
            let message = error.map(|error| error.get("message").or(value.get("message")).and_then(Value::as_str));
            message.into_iter().for_each(|message| says(&message.expect("an error has a text")));
        }
    });
}

pub(super) fn json_seeds() -> Vec<Vec<u8>> {
    let lease = json!({ "ID": "77", "keys": true });
    let put = json!({ "request_put": { "key": "YQ==", "value": "Yg==", "lease": 77, "prev_kv": true } });
    let absent = json!({ "key": "YQ==", "target": "CREATE", "result": "EQUAL", "create_revision": "0" });
    let range =
        json!({ "request_range": { "key": "YQ==", "range_end": "AA==", "sort_order": 2, "sort_target": "MOD" } });
    let inner = json!({ "request_txn": { "compare": [absent], "success": [put] } });
    let value = json!({ "key": "YQ==", "target": "VALUE", "value": "dmFsdWU=" });
    let txn = json!({ "compare": [value], "success": [put, range], "failure": [inner, { "request_delete_range": { "key": "YQ==" } }] });
    let create = json!({ "create_request": { "key": "YQ==", "range_end": "eg==", "start_revision": "1", "filters": ["NOPUT"] } });
    let name = json!({ "name": "Ym9zcw==", "lease": "77", "value": "bWU=" });
    let leader =
        json!({ "leader": { "name": "Ym9zcw==", "key": "Ym9zcy80ZA==", "rev": "6", "lease": "77" }, "value": "bWU=" });
    let deep = |depth: usize| "{\"success\":[{\"request_txn\":".repeat(depth) + "{}" + &"}]}".repeat(depth);
    let posts = [
        ("/v3/kv/range", json!({ "key": "YQ==", "range_end": "eg==", "limit": 1e300, "revision": "-1" }).to_string()),
        ("/v3/kv/range", json!({ "key": "no base64", "limit": "99999999999999999999" }).to_string()),
        ("/v3beta/kv/put", json!({ "key": "YQ==", "value": "_-8", "ignored": [1] }).to_string()),
        ("/v3/kv/deleterange", json!({ "key": "AA==", "range_end": "AA==" }).to_string()),
        ("/v3/kv/txn", txn.to_string()),
        ("/v3/kv/txn", deep(4)),
        ("/v3/kv/txn", deep(200)),
        ("/v3/kv/range", "[".repeat(5_000)),
        ("/v3/kv/compaction", json!({ "revision": 3 }).to_string()),
        ("/v3/lease/grant", json!({ "TTL": "60", "ID": 0 }).to_string()),
        ("/v3/lease/revoke", lease.to_string()),
        ("/v3/kv/lease/timetolive", lease.to_string()),
        ("/v3/lease/leases", String::new()),
        ("/v3/lease/keepalive", format!("{lease}{}\n{{", json!({ "ID": 5 }))),
        ("/v3/watch", format!("{create}\n{create}{}", json!({ "cancel_request": { "watch_id": 1 } }))),
        ("/v3alpha/lock/lock", name.to_string()),
        ("/v3/lock/unlock", json!({ "key": "am9icy80ZA==" }).to_string()),
        ("/v3/election/campaign", name.to_string()),
        ("/v3/election/proclaim", leader.to_string()),
        ("/v3/election/observe", name.to_string()),
        ("/v3/election/resign", leader.to_string()),
        ("/v3/auth/authenticate", json!({ "name": "ann", "password": "secret" }).to_string()),
        ("/v3/maintenance/status", "{}".to_owned()),
        ("/v3/cluster/member/list", "{}".to_owned()),
        ("/v3/nope", "\"x\"".to_owned()),
        ("GET /version", String::new()),
        ("GET /health", String::new()),
        ("GET /v3/kv/range?key=YQ==", String::new()),
    ];
    posts.map(|(path, body)| format!("{path}\n{body}").into_bytes()).into()
}
