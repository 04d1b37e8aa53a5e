//! Transactions: compares, what operations see and show, transactions in them, and the locks that they claim.

use std::time::Duration;

use lockkeeper_machine::{LockName, Page as LockPage, Put, PutLease, Ticket, Token, Txn, TxnOperation, Value};
use tokio::{
    spawn,
    time::{Instant, timeout},
};
use tonic::codegen::Service as _;

use super::*;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, PutResponse, ResponseOp, TxnResponse,
    range_request::{SortOrder, SortTarget},
    response_op::Response,
};

/// A bound on failures.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: LockPage = LockPage { size: 10, holders_after: Token(0), waiters_after: Ticket(0) };

async fn commit(kv: &mut KvClient<Routes>, txn: TxnRequest) -> TxnResponse {
    kv.txn(txn).await.unwrap().into_inner()
}

fn range(response: &ResponseOp) -> &RangeResponse {
    match &response.response {
        Some(Response::ResponseRange(range)) => range,
        other => panic!("{other:?}"),
    }
}

fn inner(response: &ResponseOp) -> &TxnResponse {
    match &response.response {
        Some(Response::ResponseTxn(txn)) => txn,
        other => panic!("{other:?}"),
    }
}

/// The transaction of etcd's own mutex.
fn enqueue(name: &str, lease: i64) -> TxnRequest {
    let key = format!("{name}/{lease:x}");
    let owner = RangeRequest {
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        limit: 1,
        ..prefix(&format!("{name}/"))
    };
    TxnRequest {
        compare: vec![absent(&key)],
        success: vec![operation(PutRequest { lease, ..put(&key, "") }), operation(owner.clone())],
        failure: vec![operation(RangeRequest { key: key.into(), ..Default::default() }), operation(owner)],
    }
}

#[tokio::test]
async fn etcds_mutex_sees_its_owner_and_operators_see_the_queue() {
    let api = Api::new();
    let mut kv = api.kv();
    for id in [0x77, 0x11, 0x55] {
        api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
    }
    for (id, again) in [(0x77, false), (0x11, false), (0x11, true), (0x55, false)] {
        let answer = commit(&mut kv, enqueue("jobs", id)).await;
        assert_eq!(answer.succeeded, !again);
        assert_eq!(keys(range(&answer.responses[1])), ["jobs/77"], "the first one to come");
        if !again {
            let own = kv.range(prefix(&format!("jobs/{id:x}"))).await.unwrap().into_inner();
            assert_eq!(own.kvs[0].create_revision, answer.header.unwrap().revision);
        }
    }
    let machine = api.store.machine();
    let lock = machine.lock(&LockName::new("etcd/jobs").unwrap(), PAGE);
    let first = kv.range(prefix("jobs/77")).await.unwrap().into_inner().kvs.remove(0);
    let tokens: Vec<Token> = lock.holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, [Token(first.create_revision.cast_unsigned())]);
    assert_eq!(lock.waiters.len(), 2);
}

#[tokio::test]
async fn operations_see_what_those_before_them_did() {
    let api = Api::new();
    let mut kv = api.kv();
    for key in ["a1", "a2", "a3"] {
        kv.put(put(key, "old")).await.unwrap();
    }
    let read = || operation(prefix("a"));
    let success = vec![
        read(),
        operation(PutRequest { prev_kv: true, ..put("a2", "new") }),
        read(),
        operation(DeleteRangeRequest { prev_kv: true, key: b"a3".into(), range_end: b"a9".into() }),
        operation(put("b", "new")),
        read(),
    ];
    let answer = commit(&mut kv, TxnRequest { success, ..Default::default() }).await;
    let revision = answer.header.unwrap().revision;
    let seen = |place: usize| -> Vec<(String, i64)> {
        let shown = range(&answer.responses[place]);
        shown.kvs.iter().map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.version)).collect()
    };
    assert_eq!(seen(0), [("a1".into(), 1), ("a2".into(), 1), ("a3".into(), 1)]);
    assert_eq!(seen(2), [("a1".into(), 1), ("a2".into(), 2), ("a3".into(), 1)]);
    assert_eq!(range(&answer.responses[2]).kvs[1].mod_revision, revision);
    assert_eq!(seen(5), [("a1".into(), 1), ("a2".into(), 2)]);
    let Some(Response::ResponsePut(before)) = &answer.responses[1].response else { panic!() };
    assert_eq!(before.prev_kv.as_ref().unwrap().value, b"old");
    let Some(Response::ResponseDeleteRange(deleted)) = &answer.responses[3].response else { panic!() };
    assert_eq!((deleted.deleted, &deleted.prev_kvs[0].key[..]), (1, &b"a3"[..]));
    let all = kv.range(prefix("a")).await.unwrap().into_inner();
    assert_eq!(all.header.unwrap().revision, revision, "one revision for all");
}

#[tokio::test]
async fn a_large_transaction_shows_what_it_replaced() {
    let api = Api::new();
    let mut kv = api.kv();
    let all = |value: &'static str| {
        let puts = (0..128).map(move |n| operation(PutRequest { prev_kv: true, ..put(&format!("k{n}"), value) }));
        TxnRequest { success: puts.collect(), ..Default::default() }
    };
    commit(&mut kv, all("1")).await;
    let answer = commit(&mut kv, all("2")).await;
    for response in &answer.responses {
        let Some(Response::ResponsePut(answer)) = &response.response else { panic!() };
        assert_eq!(answer.prev_kv.as_ref().unwrap().value, b"1");
    }
}

#[tokio::test]
async fn every_target_and_result_is_compared() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use TargetUnion::{CreateRevision, Lease, ModRevision, Value, Version};
    let api = Api::new();
    let mut kv = api.kv();
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    let created = kv.put(put("a", "x")).await.unwrap().into_inner().header.unwrap().revision;
    kv.put(PutRequest { lease: 77, ..put("a", "m") }).await.unwrap();
    let value = |value: &str| Value(value.into());
    let cases = [
        ("a", Equal, CreateRevision(created), true),
        ("a", NotEqual, CreateRevision(created), false),
        ("a", Greater, CreateRevision(created), false),
        ("a", Greater, ModRevision(created), true),
        ("a", Less, ModRevision(created + 2), true),
        ("a", Equal, Version(2), true),
        ("a", Greater, Version(-1), true),
        ("a", NotEqual, Version(-1), true),
        ("a", Equal, Version(-1), false),
        ("a", Less, Version(-1), false),
        ("a", Equal, value("m"), true),
        ("a", Less, value("n"), true),
        ("a", Greater, value("n"), false),
        ("a", Equal, Lease(77), true),
        ("a", Greater, Lease(0), true),
        ("none", Equal, Lease(0), true),
        ("none", Equal, Version(0), true),
        ("none", Equal, value(""), false),
        ("none", NotEqual, value("x"), false),
        ("none", Less, CreateRevision(1), true),
    ];
    for (key, result, union, holds) in cases {
        let condition = vec![compare(key, result, union.clone())];
        // By the store, and by the adapter, which reads where nothing is written.
        let writes = TxnRequest { compare: condition.clone(), success: vec![operation(put("b", ""))], failure: vec![] };
        let reads = TxnRequest { compare: condition.clone(), success: vec![operation(prefix("b"))], failure: vec![] };
        let ranges = condition.into_iter().map(|it| Compare { range_end: [key.as_bytes(), &[0]].concat(), ..it });
        let ranges = TxnRequest { compare: ranges.collect(), success: vec![operation(put("b", ""))], failure: vec![] };
        for txn in [writes, reads, ranges] {
            assert_eq!(commit(&mut kv, txn).await.succeeded, holds, "{key} {result:?} {union:?}");
        }
    }
}

#[tokio::test]
async fn a_compare_of_a_range_holds_for_each_key() {
    let api = Api::new();
    let mut kv = api.kv();
    for key in ["a1", "a2", "a3"] {
        kv.put(put(key, "v")).await.unwrap();
    }
    kv.put(put("a2", "v")).await.unwrap();
    let condition = |version| Compare {
        range_end: b"b".into(),
        ..compare("a", CompareResult::Less, TargetUnion::Version(version))
    };
    let txn = |version| TxnRequest {
        compare: vec![condition(version)],
        success: vec![operation(put("done", ""))],
        failure: vec![],
    };
    assert!(!commit(&mut kv, txn(2)).await.succeeded);
    assert!(commit(&mut kv, txn(3)).await.succeeded);
}

#[tokio::test]
async fn transactions_in_transactions_are_decided_before_the_first_operation() {
    let api = Api::new();
    let mut kv = api.kv();
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    // Patroni's: keep the leader key if it is mine, otherwise take it if there is none.
    let patroni = |name: &str| TxnRequest {
        compare: vec![compare("leader", CompareResult::Equal, TargetUnion::Value(name.into()))],
        success: vec![operation(PutRequest { lease: 77, ..put("leader", name) })],
        failure: vec![operation(TxnRequest {
            compare: vec![absent("leader")],
            success: vec![operation(PutRequest { lease: 77, ..put("leader", name) })],
            failure: vec![],
        })],
    };
    let taken = commit(&mut kv, patroni("one")).await;
    assert!(!taken.succeeded && inner(&taken.responses[0]).succeeded);
    assert!(commit(&mut kv, patroni("one")).await.succeeded);
    let refused = commit(&mut kv, patroni("two")).await;
    assert!(!refused.succeeded && !inner(&refused.responses[0]).succeeded);
    let lock = api.store.machine().lock(&LockName::new("etcd/leader").unwrap(), PAGE);
    assert_eq!(lock.holders.len(), 1, "operators see the leader");
    // The inner compare does not see the outer put.
    let txn = TxnRequest {
        success: vec![
            operation(put("new", "")),
            operation(TxnRequest {
                compare: vec![absent("new")],
                success: vec![operation(prefix("new"))],
                failure: vec![],
            }),
        ],
        ..Default::default()
    };
    let answer = commit(&mut kv, txn).await;
    let inner = inner(&answer.responses[1]);
    assert!(inner.succeeded);
    assert_eq!(keys(range(&inner.responses[0])), ["new"], "but the inner read does");
}

#[tokio::test]
async fn a_leader_key_is_a_lock_without_a_condition_too() {
    let api = Api::new();
    let mut kv = api.kv();
    for id in [77, 78] {
        api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
    }
    let held = |name: &str| {
        let holders = api.store.machine().lock(&LockName::new(&format!("etcd/{name}")).unwrap(), PAGE).holders;
        holders.iter().map(|holder| holder.token.0).collect::<Vec<_>>()
    };
    // As Patroni does after it has founded a cluster; its members' keys are no locks.
    let leader = "/service/demo/leader";
    for (lease, token) in [(77, 2), (77, 2), (78, 4)] {
        kv.put(PutRequest { lease, ..put(leader, "one") }).await.unwrap();
        assert_eq!(held(leader), [token]);
    }
    for other in ["/service/demo/members/one", "/leader", "leader"] {
        kv.put(PutRequest { lease: 77, ..put(other, "one") }).await.unwrap();
        assert_eq!(held(other), [0; 0], "{other}");
    }
    kv.put(put(leader, "one")).await.unwrap();
    assert_eq!(held(leader), [0; 0], "it has no lease");
}

#[tokio::test]
async fn a_transaction_takes_effect_whole_or_not_at_all() {
    let api = Api::new();
    let mut kv = api.kv();
    let success = vec![operation(put("a", "")), operation(PutRequest { lease: 5, ..put("b", "") })];
    let error = kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert_eq!(shown(&error), "5 etcdserver: requested lease not found");
    let past = RangeRequest { revision: 99, ..prefix("a") };
    let success = vec![operation(put("a", "")), operation(past)];
    let error = kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert_eq!(shown(&error), "11 etcdserver: mvcc: required revision is a future revision");
    assert_eq!(kv.range(prefix("a")).await.unwrap().into_inner().count, 0);
}

#[tokio::test]
async fn a_transaction_that_has_written_shows_the_past_that_is_forgotten_meanwhile() {
    let api = Api::new();
    let mut kv = api.kv();
    let first = kv.put(put("a", "old")).await.unwrap().into_inner().header.unwrap().revision;
    kv.put(put("a", "new")).await.unwrap();

    api.store.forget_past();
    let past = RangeRequest { revision: first, ..prefix("a") };
    let success = vec![operation(put("b", "")), operation(past.clone())];
    let answer = commit(&mut kv, TxnRequest { success: success.clone(), ..Default::default() }).await;
    assert_eq!(range(&answer.responses[1]).kvs[0].value, b"old");

    // Whoever comes later is refused, and nothing is written.
    let error = kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap_err();
    assert_eq!(shown(&error), "11 etcdserver: mvcc: required revision has been compacted");
    assert_eq!(kv.range(prefix("b")).await.unwrap().into_inner().kvs[0].version, 1);
}

/// More writes than the store's transaction can show the former entries of.
fn crowd(write: impl Fn(&str) -> RequestOp) -> TxnRequest {
    let writes = |first: usize| (first..first + 70).map(|n| write(&format!("k{n:03}"))).collect();
    let inner = |first| operation(TxnRequest { success: writes(first), ..Default::default() });
    TxnRequest { success: vec![inner(0), inner(70)], ..Default::default() }
}

#[tokio::test]
async fn a_crowded_transaction_that_has_written_shows_what_it_has_replaced() {
    let api = Api::new();
    let mut kv = api.kv();
    commit(&mut kv, crowd(|key| operation(put(key, key)))).await;

    // What was before the commit is forgotten right after it.
    api.store.forget_past();
    let puts = crowd(|key| operation(PutRequest { prev_kv: true, ..put(key, "new") }));
    let answer = commit(&mut kv, puts).await;
    for response in answer.responses.iter().flat_map(|response| &inner(response).responses) {
        let Some(Response::ResponsePut(PutResponse { prev_kv: Some(before), .. })) = &response.response else {
            panic!("{response:?}")
        };
        assert_eq!(before.key, before.value);
    }

    api.store.forget_past();
    let delete = |key: &str| operation(DeleteRangeRequest { prev_kv: true, key: key.into(), ..Default::default() });
    let mut deletes = crowd(delete);
    deletes.success.push(delete("k000"));
    let answer = commit(&mut kv, deletes).await;
    let (last, inners) = answer.responses.split_last().expect("three");
    for response in inners.iter().flat_map(|response| &inner(response).responses) {
        let Some(Response::ResponseDeleteRange(answer)) = &response.response else { panic!() };
        assert_eq!((answer.deleted, &answer.prev_kvs[0].value[..]), (1, &b"new"[..]));
    }
    let Some(Response::ResponseDeleteRange(again)) = &last.response else { panic!() };
    assert_eq!((again.deleted, again.prev_kvs.len()), (0, 0));
}

#[tokio::test]
async fn a_crowded_transaction_that_would_show_too_much_writes_nothing() {
    let mut kv = Api::new().kv();
    let large = "x".repeat(300 << 10);
    for n in 0..14 {
        kv.put(put(&format!("k{n:03}"), &large)).await.unwrap();
    }
    let puts = crowd(|key| operation(PutRequest { prev_kv: true, ..put(key, "new") }));
    let error = kv.txn(puts).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error}");
    assert_eq!(kv.range(prefix("k000")).await.unwrap().into_inner().kvs[0].version, 1);
}

#[tokio::test]
async fn the_answers_of_a_transaction_have_one_limit() {
    let mut kv = Api::new().kv();
    let large = "x".repeat(300 << 10);
    let first = kv.put(put("a1", &large)).await.unwrap().into_inner().header.unwrap().revision;
    kv.put(put("a2", &large)).await.unwrap();

    // Each answer has 600 KiB.
    let present = |count| vec![operation(prefix("a")); count];
    let past = |count| vec![operation(RangeRequest { revision: first + 1, ..prefix("a") }); count];
    let both = |count: usize| [present(count), past(count)].concat();
    let inner = |count| vec![operation(TxnRequest { success: present(count), ..Default::default() }); 2];
    let counts = |count| vec![operation(RangeRequest { count_only: true, ..prefix("a") }); count];

    let too_large = "8 etcdserver: the answer has more than 4194304 bytes: ask for fewer keys, with a limit";
    let txn = |success: Vec<RequestOp>| TxnRequest { success, ..Default::default() };
    for (fits, exceeds) in [(present(6), present(7)), (past(6), past(7)), (both(3), both(4)), (inner(3), inner(4))] {
        commit(&mut kv, txn(fits)).await;
        assert_eq!(shown(&kv.txn(txn(exceeds)).await.unwrap_err()), too_large);
    }
    commit(&mut kv, txn(counts(128))).await;

    // One that writes and shows too much of the past writes nothing.
    let writes = [past(7), vec![operation(put("b", ""))]].concat();
    assert_eq!(shown(&kv.txn(txn(writes)).await.unwrap_err()), too_large);
    assert_eq!(kv.range(prefix("b")).await.unwrap().into_inner().count, 0);
}

#[tokio::test]
async fn a_transaction_of_too_many_reads_is_refused_before_the_first_one() {
    let api = Api::new();
    let mut kv = api.kv();
    let many = |one: TxnRequest| TxnRequest { success: vec![operation(one); 64], ..Default::default() };
    let reads = many(TxnRequest { success: vec![operation(prefix("a")); 17], ..Default::default() });
    let too_many = "3 etcdserver: too many operations in txn request";
    assert_eq!(shown(&kv.txn(reads).await.unwrap_err()), too_many);
    assert_eq!(api.store.led_reads(), 1, "the revision");

    let compares = many(TxnRequest { compare: vec![absent("a"); 17], ..Default::default() });
    assert_eq!(shown(&kv.txn(compares).await.unwrap_err()), too_many);
    assert_eq!(api.store.led_reads(), 1);
}

/// Clients that beat each other all the time would fill the log with attempts.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_loses_again_pauses_before_the_next_attempt() {
    let api = Api::new();
    let mut kv = api.kv();
    kv.put(put("a", "")).await.unwrap();
    let txn = || TxnRequest {
        compare: vec![compare("a", CompareResult::Greater, TargetUnion::Version(0))],
        success: vec![operation(PutRequest { ignore_value: true, ..put("a", "") })],
        failure: vec![],
    };
    // One write of another client before each of the two calls of an attempt.
    let others = |losses: usize| {
        let key = crate::key::from_wire(b"a").expect("a key");
        let value = Value::new(b"other").expect("short");
        let put = TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None });
        vec![Txn::new(vec![], vec![put], vec![]).expect("in bounds"); 2 * losses]
    };

    let mut pauses = Vec::new();
    for losses in [0, 1, 2, 3, 9] {
        api.store.interleave(others(losses));
        let began = Instant::now();
        assert!(commit(&mut kv, txn()).await.succeeded);
        pauses.push(began.elapsed());
    }
    assert_eq!(pauses[..2], [Duration::ZERO; 2], "one that loses by chance tries again at once");
    assert!(pauses[1..].is_sorted() && pauses[2] >= Duration::from_millis(2), "{pauses:?}");
    assert!(pauses[4] >= Duration::from_millis(200), "the pauses grow: {pauses:?}");

    // The deadline stays: with 32 losses it is refused before.
    api.store.interleave(others(32));
    let began = Instant::now();
    let error = kv.txn(txn()).await.unwrap_err();
    assert_eq!(shown(&error), "8 etcdserver: too many requests");
    assert!(began.elapsed() < Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn the_reads_of_a_transaction_have_one_deadline() {
    let api = Api::new();
    let mut kv = api.kv();
    api.store.read_slowly(Duration::from_secs(1));
    let reads = |count| TxnRequest { success: vec![operation(prefix("a")); count], ..Default::default() };
    commit(&mut kv, reads(6)).await;
    let error = kv.txn(reads(8)).await.unwrap_err();
    assert_eq!(shown(&error), "14 etcdserver: request timed out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_of_transactions_in_transactions_are_not_compared_with_each_other() {
    let mut kv = Api::new().kv();
    // 36 in 46 in 45: on no level more than etcd allows, and 75,000 in all. Each transaction deletes a key, and puts others.
    let mut next = 0..u32::MAX;
    let mut key = || format!("{:05}", next.next().expect("enough"));
    let mut inner = || {
        let deleted = operation(DeleteRangeRequest { key: key().into(), ..Default::default() });
        operation(TxnRequest {
            success: [deleted].into_iter().chain((1..36).map(|_| operation(put(&key(), "")))).collect(),
            ..Default::default()
        })
    };
    let mut middle = || TxnRequest { success: (0..46).map(|_| inner()).collect(), ..Default::default() };
    let mut success: Vec<_> = (0..45).map(|_| operation(middle())).collect();
    success.push(operation(put("00001", "")));
    let answering = spawn(async move { kv.txn(TxnRequest { success, ..Default::default() }).await });
    let error = timeout(PATIENCE, answering).await.expect("in time").unwrap().unwrap_err();
    assert_eq!(shown(&error), "3 etcdserver: duplicate key given in txn request");
}

#[tokio::test]
async fn bad_transactions_get_etcds_errors() {
    let mut kv = Api::new().kv();
    let mut error = async |txn: TxnRequest| shown(&kv.txn(txn).await.unwrap_err());
    let then = |success: Vec<RequestOp>| TxnRequest { success, ..Default::default() };
    let many = |count| (0..count).map(|n| operation(put(&n.to_string(), ""))).collect::<Vec<_>>();
    let too_many = "3 etcdserver: too many operations in txn request";
    assert_eq!(error(then(many(129))).await, too_many);
    assert_eq!(error(then(vec![operation(then(many(128)))])).await, too_many);
    assert_eq!(error(TxnRequest { compare: vec![absent("a"); 129], ..Default::default() }).await, too_many);
    let duplicate = "3 etcdserver: duplicate key given in txn request";
    assert_eq!(error(then(vec![operation(put("a", "")), operation(put("a", ""))])).await, duplicate);
    assert_eq!(error(then(vec![operation(delete("a")), operation(put("ab", ""))])).await, duplicate);
    assert_eq!(error(then(vec![operation(then(many(1))), operation(put("0", ""))])).await, duplicate);
    let empty = "3 etcdserver: key is not provided";
    assert_eq!(error(then(vec![operation(PutRequest::default())])).await, empty);
    assert_eq!(error(TxnRequest { compare: vec![Compare::default()], ..Default::default() }).await, empty);
    assert_eq!(error(then(vec![RequestOp::default()])).await, "3 etcdserver: key not found");
    // One branch of a transaction inside or the other is run, so both may put a key.
    let both = TxnRequest { success: many(1), failure: many(1), ..Default::default() };
    assert!(kv.txn(then(vec![operation(both.clone())])).await.is_ok());
    let nested = then(vec![operation(then(vec![operation(both)]))]);
    assert!(kv.txn(nested).await.is_ok());
}

/// Objects of very many operations would take very many times the bytes of the message.
#[tokio::test]
async fn too_many_operations_are_refused_before_one_is_decoded() {
    // Empty ones, and a last one that cannot be decoded.
    let message = [&[0x12, 0].repeat(128)[..], &[0x12, 1, 0]].concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = axum::body::Body::from([&[0][..], &length, &message].concat());
    let request = http::Request::post("/etcdserverpb.KV/Txn").header("content-type", "application/grpc");
    let request = request.body(tonic::body::Body::new(body)).unwrap();

    let answer = Api::new().routes().call(request).await.expect("an answer");
    let status = Status::from_header_map(answer.headers()).expect("a status");
    assert_eq!(shown(&status), "3 etcdserver: too many operations in txn request");
}
