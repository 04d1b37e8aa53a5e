//! Small requests that ask for much, through each door: a stored value that is named thousands of times, a list that is compared with
//! itself, a script that makes results of nothing. Each costs its caller an error, and the node no memory.

use std::{iter::repeat_n, net::SocketAddr};

use futures::future::join_all;
use lockkeeper_etcd::proto::etcdserverpb::{
    PutRequest, RangeRequest, RequestOp, TxnRequest, kv_client::KvClient, request_op::Request,
};

use super::{
    etcd, redis,
    stage::{Descriptors, Stage, memory_mib, peak_mib, watch_peak},
    zookeeper,
};
use crate::{
    redis::{Reply, ok},
    support::leader,
    zookeeper::{JuteAcl, JuteAnswer, JuteRequest},
};

/// What a node may take while such requests are served, beyond its size before: a few replies and scripts at a time.
const PEAK_MIB: u64 = 256;
/// Requests of a kind at one time.
const TOGETHER: usize = 8;
const INVALID_ACL: i32 = -114;

#[tokio::test(flavor = "multi_thread")]
async fn small_requests_for_much_harm_no_other_client() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| {
        options.redis = true;
        options.zookeeper = true;
        options.etcd = true;
    })
    .await;

    let abuse = async |stage: &Stage| {
        let leads = stage.cluster.node(leader(&stage.cluster).await);
        let before = memory_mib(leads);
        watch_peak(leads);

        by_redis(stage).await;
        by_scripts(stage).await;
        by_zookeeper(stage).await;
        by_etcd(stage).await;

        let peak = peak_mib(leads);
        println!("small requests for much: {before} MiB before, {peak} MiB at the peak");
        assert!(peak <= before + PEAK_MIB, "{before} MiB before, {peak} MiB at the peak");
    };
    stage.survives("small requests for much", abuse).await;
}

/// Sends one command by several connections at a time: each is refused with this part of an error.
async fn all_refused(port: SocketAddr, command: &[&str], part: &str) {
    let replies = join_all((0..TOGETHER).map(async |_| redis::connect(port).await.ask(command).await)).await;
    for reply in &replies {
        redis::is_refused(reply, part);
    }
}

/// Commands that name one stored value very often.
async fn by_redis(stage: &Stage) {
    const NAMES: usize = 60_000;
    let port = redis::redis_port(stage).await;
    let mut bystander = redis::bystander(port, None).await;
    let large = "v".repeat(300_000);
    for (command, reply) in
        [(["HSET", "hash", "field", &large], Reply::Number(1)), (["ZADD", "sorted", "1", &large], Reply::Number(1))]
    {
        assert_eq!(bystander.ask(&command).await, reply);
    }

    // Each of these would be 18 GB.
    let fields: Vec<&str> = ["HMGET", "hash"].into_iter().chain(repeat_n("field", NAMES)).collect();
    all_refused(port, &fields, "units of work").await;
    let number = NAMES.to_string();
    let sources = repeat_n("sorted", NAMES);
    let union: Vec<&str> = ["ZUNIONSTORE", "into", &number].into_iter().chain(sources).collect();
    all_refused(port, &union, "units of work").await;
    redis::is_kept(&mut bystander).await;

    // A transaction of the longest script, named by its hash each time: 60 MB of sources.
    let script = format!("return 1 -- {}", "x".repeat(60_000));
    let loaded = bystander.ask(&["SCRIPT", "LOAD", &script]).await;
    let Reply::Text(hash) = loaded else { panic!("{loaded:?}") };
    let mut caller = redis::connect(port).await;
    assert_eq!(caller.ask(&["MULTI"]).await, ok());
    let mut refused = 0;
    for _ in 0..1_000 {
        let queued = caller.ask(&["EVALSHA", &hash, "0"]).await;
        refused += usize::from(matches!(queued, Reply::Error(_)));
    }
    let executed = caller.ask(&["EXEC"]).await;
    assert!(matches!(executed, Reply::Error(_)), "{refused} were refused: {executed:?}");
    redis::is_kept(&mut bystander).await;
}

/// Scripts that ended a node, or held one up: results of nothing, C's own `gmatch`, more arguments than the stack has room for.
async fn by_scripts(stage: &Stage) {
    let port = redis::redis_port(stage).await;
    let mut bystander = redis::bystander(port, None).await;
    for (script, expected) in [
        ("return unpack({}, 0, 2147483647)", "too many results to unpack"),
        ("for _ in string.gfind(string.rep('a', 100000), string.rep('a?', 100000)) do end", ""),
        ("local t = {} for i = 1, 7950 do t[i] = 'a' end return redis.call(unpack(t))", ""),
        (
            "local s = string.rep('a', 1e6) local t = {} for i = 1, 3000 do t[i] = s end return redis.call('echo', unpack(t))",
            "",
        ),
        ("return string.gsub(string.rep('a', 100000), 'a', string.rep('b', 100000))", ""),
    ] {
        let calls = (0..TOGETHER).map(async |_| redis::connect(port).await.ask(&["EVAL", script, "0"]).await);
        for reply in join_all(calls).await {
            redis::is_refused(&reply, expected);
        }
        redis::is_kept(&mut bystander).await;
    }
}

/// A list of access of very many entries that each stand for all of a client's identities, and requests of very many parts that each
/// concern one large node.
async fn by_zookeeper(stage: &Stage) {
    const PARTS: usize = 10_000;
    let port = zookeeper::port(stage).await;
    let mut bystander = zookeeper::bystander(port).await;
    let made = bystander.ask(&JuteRequest::create("/much", &[7; 300_000], 0)).await;
    assert!(made.is_ok(), "{made:?}");

    let mut caller = zookeeper::connect(port, zookeeper::LONGEST_MS).await;
    for number in 0..32 {
        let credentials = format!("user{number}:hush").into_bytes();
        let known = caller.ask(&JuteRequest::Auth { scheme: "digest".to_owned(), credentials }).await;
        assert!(known.is_ok(), "{known:?}");
    }
    let own = JuteAcl { rights: 31, scheme: "auth".to_owned(), identity: String::new() };
    let acl = vec![own; 60_000];
    let set = JuteRequest::SetAcl { path: "/much".to_owned(), acl, version: -1 };
    assert_eq!(caller.ask(&set).await, Err(INVALID_ACL));

    let get = JuteRequest::GetData { path: "/much".to_owned(), watch: false };
    let read = caller.ask(&JuteRequest::MultiRead(vec![get; PARTS])).await;
    if let Ok(JuteAnswer::Parts(parts)) = &read {
        assert!(parts.iter().any(Result::is_err), "three gigabytes");
    }
    let open = JuteRequest::SetAcl { path: "/much".to_owned(), acl: JuteAcl::open(), version: -1 };
    let set = caller.ask(&JuteRequest::Multi(vec![open; PARTS])).await;
    let Ok(JuteAnswer::Parts(parts)) = &set else { panic!("{:?}", set.err()) };
    let done = parts.iter().filter(|part| part.is_ok()).count();
    assert!(done == 0 || done == PARTS, "as a whole or not at all, and not {done}");
    zookeeper::is_kept(&mut bystander).await;
}

/// Transactions that read one large range very often.
async fn by_etcd(stage: &Stage) {
    let mut kv = KvClient::new(etcd::connect(stage).await);
    let put = PutRequest { key: b"much".to_vec(), value: vec![7; 300_000], ..PutRequest::default() };
    kv.put(put).await.expect("it is answered");

    let range = RangeRequest { key: b"much".to_vec(), ..RangeRequest::default() };
    let reads = vec![RequestOp { request: Some(Request::RequestRange(range)) }; 128];
    let txn = TxnRequest { success: reads, ..TxnRequest::default() };
    let calls = (0..TOGETHER).map(|_| {
        let (mut kv, txn) = (kv.clone(), txn.clone());
        async move { kv.txn(txn).await }
    });
    for call in join_all(calls).await {
        let status = call.expect_err("the answer is too large");
        assert!(status.message().contains("the answer has more than"), "{status:?}");
    }
}
