//! What lock clients do: acquire, refusal, release, extension, tokens, and what operators see.

use std::{sync::Arc, time::Duration};

use tokio::time::advance;

use super::{Api, memory::Memory, words};
use crate::{LockClaim, RedisStoreError};

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn eval(source: &str, rest: &str) -> Vec<Vec<u8>> {
    let mut request = vec![b"EVAL".to_vec(), source.as_bytes().to_vec()];
    request.extend(words(rest));
    request
}

#[tokio::test(start_paused = true)]
async fn a_pair_of_a_plain_lock_is_two_commits_and_no_read() {
    let mut api = Api::new();
    api.call("CLIENT SETNAME worker-7").await;
    let reads = api.store.reads();
    assert_eq!(api.call("SET lock mine NX PX 1000").await, "+OK|");
    assert_eq!(api.call("SET lock other NX PX 1000").await, "$-1|");
    assert_eq!(api.request(eval(EXTEND, "1 lock other 5000")).await, ":0|");
    assert_eq!(api.request(eval(EXTEND, "1 lock mine 5000")).await, ":1|");
    assert_eq!(api.request(eval(RELEASE, "1 lock other")).await, ":0|");
    assert_eq!(api.request(eval(RELEASE, "1 lock mine")).await, ":1|");
    assert_eq!(api.request(eval(RELEASE, "1 lock mine")).await, ":0|");
    assert_eq!((api.store.reads(), api.store.commits()), (reads, 7));
}

#[tokio::test(start_paused = true)]
async fn a_shape_keeps_the_errors_of_the_interpreter() {
    let mut api = Api::new();
    api.call("LPUSH lock x").await;
    // The stub of an interpreter knows no Lua. That it is asked shows that the transaction was not the answer.
    let reply = api.request(eval(RELEASE, "1 lock x")).await;
    assert!(reply.starts_with("-ERR Unknown Redis command called from script"), "{reply}");
    let reply = api.request(eval(EXTEND, "1 none mine soon")).await;
    assert!(reply.starts_with("-ERR Unknown Redis command called from script"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_free_at_its_deadline() {
    let mut api = Api::new();
    api.call("SET lock a NX PX 1000").await;
    advance(Duration::from_millis(999)).await;
    assert_eq!(api.call("SET lock b NX PX 1000").await, "$-1|");
    advance(Duration::from_millis(1)).await;
    assert_eq!(api.call("SET lock b NX PX 1000").await, "+OK|");
}

#[tokio::test(start_paused = true)]
async fn a_token_rises_with_each_holder_and_not_with_an_extension() {
    let mut api = Api::new();
    assert_eq!(api.call("GET lockkeeper:token:lock").await, "$-1|");
    let mut tokens = Vec::new();
    for holder in ["a", "b"] {
        api.call(&format!("SET lock {holder} NX PX 1000")).await;
        let token = api.call("GET lockkeeper:token:lock").await;
        api.call("PEXPIRE lock 5000").await;
        api.call(&format!("SET lock {holder} XX PX 9000")).await;
        api.request(eval(EXTEND, &format!("1 lock {holder} 5000"))).await;
        assert_eq!(api.call("GET lockkeeper:token:lock").await, token);
        tokens.push(token);
        api.call("DEL lock").await;
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");

    // One that is handed over in place has another token, too, however that is said.
    api.call("SET lock a NX PX 1000").await;
    let mut before = api.call("GET lockkeeper:token:lock").await;
    for hand_over in ["SET lock b XX PX 1000", "SET lock c XX KEEPTTL", "MULTI|DEL lock|SET lock c NX PX 1000|EXEC"] {
        for line in hand_over.split('|') {
            api.call(line).await;
        }
        let after = api.call("GET lockkeeper:token:lock").await;
        assert!(after > before, "{hand_over}: {after} after {before}");
        before = after;

        let left = api.call("PTTL lock").await;
        assert!(left.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() > 500, "{hand_over}: {left}");
    }
    assert_eq!(api.call("KEYS *").await, "*1|$4|lock|");
}

#[tokio::test(start_paused = true)]
async fn the_token_is_told_in_the_transaction_that_acquires() {
    let mut api = Api::new();
    let acquire = ["MULTI", "SET lock a NX PX 1000", "GET lockkeeper:token:lock", "EXEC"];
    let replies = api.pipeline(acquire.map(words).to_vec()).await.expect("it goes on");
    let told = api.call("GET lockkeeper:token:lock").await;
    assert_eq!(replies, format!("+OK|+QUEUED|+QUEUED|*2|+OK|{told}"));
}

#[tokio::test(start_paused = true)]
async fn operators_see_what_was_created_conditionally_with_a_deadline() {
    let mut api = Api::new();
    api.call("HELLO 2 SETNAME worker-7").await;
    api.call("CLIENT SETINFO LIB-NAME redis-py").await;
    api.call("CLIENT SETINFO LIB-VER 8.1.0").await;
    for line in ["SET one v NX PX 1000", "SET two v PX 1000", "SETNX three v", "SET four v", "SET five v NX"] {
        api.call(line).await;
    }
    let claim = api.store.claim("redis/0/one");
    let Some(LockClaim::New { name, holder }) = &claim else { panic!("{claim:?}") };
    assert_eq!(name, "redis/0/one");
    assert!(holder.starts_with("worker-7, redis-py 8.1.0, 127.0.0.1:4000 #"), "{holder}");
    for other in ["two", "three", "four", "five"] {
        assert_eq!(api.store.claim(&format!("redis/0/{other}")), Some(LockClaim::None), "{other}");
    }

    // A script, and a transaction over a watched key, decide by an absence as well.
    api.request(eval("exists K1\nset K1 v px 1000", "1 six")).await;
    assert!(matches!(api.store.claim("redis/0/six"), Some(LockClaim::New { .. })));
    api.pipeline(["WATCH seven", "MULTI", "SET seven v PX 1000", "EXEC"].map(words).to_vec())
        .await
        .expect("it goes on");
    assert!(matches!(api.store.claim("redis/0/seven"), Some(LockClaim::New { .. })));
}

/// The request is repeated, and its own lock does not refuse it. Nobody is told of a lock that another request has taken.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_answer_was_lost_is_known_after_all() {
    const TAKE: &str = "SET lock same NX PX 60000";
    let store = Memory::default();
    let mut api = Api::over(store.clone());
    let mut other = api.other();

    store.lose_the_next_answer();
    assert_eq!(api.call(TAKE).await, "+OK|");
    let token = api.call("GET lockkeeper:token:lock").await;
    // The same value, by the same connection and by another one, whose requests are lost, too.
    for api in [&mut api, &mut other] {
        store.lose_the_next_request();
        assert_eq!(api.call(TAKE).await, "$-1|");
        store.lose_the_next_answer();
        assert_eq!(api.call(TAKE).await, "$-1|");
    }
    assert_eq!(api.call("GET lockkeeper:token:lock").await, token, "it was written once");

    api.call("DEL lock").await;
    store.lose_the_next_request();
    assert_eq!(api.call(TAKE).await, "+OK|");
    assert_eq!(api.call("GET lock").await, "$4|same|");

    // Without an answer in the time of a command it stays unknown.
    store.fail(Some(RedisStoreError::Unknown("why".to_owned())));
    assert_eq!(api.call(TAKE).await, "closed");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_closes_and_a_missing_leader_says_so() {
    let store = Memory::default();
    let mut api = Api::over(store.clone());
    for line in ["SETNX lock a", "INCR n", "DEL lock"] {
        store.lose_the_next_answer();
        assert_eq!(api.call(line).await, "closed", "{line}");
    }
    assert_eq!(api.call("GET n").await, "$1|1|", "it has taken effect");

    for (failure, reply) in [
        (
            RedisStoreError::Unavailable("why".to_owned()),
            "-LOADING Lockkeeper has no leader, and nothing was done: why|",
        ),
        (RedisStoreError::Overloaded("why".to_owned()), "-ERR Lockkeeper is overloaded, and nothing was done: why|"),
        (RedisStoreError::Denied("why".to_owned()), "-NOPERM why|"),
        (
            RedisStoreError::Full("why".to_owned()),
            "-OOM command not allowed when used memory > 'maxmemory'. Lockkeeper says: why|",
        ),
    ] {
        store.fail(Some(failure));
        for line in ["SET lock a NX PX 1000", "GET lock", "INCR n", "WATCH k", "KEYS *", "FLUSHDB"] {
            assert_eq!(api.call(line).await, reply, "{line}");
        }
    }
    // What needs no leader is answered without one.
    for (line, reply) in [("PING", "+PONG|"), ("ECHO x", "$1|x|"), ("SELECT 0", "+OK|")] {
        assert_eq!(api.call(line).await, reply, "{line}");
    }
    assert!(api.call("INFO").await.contains("loading:1|"));
    store.fail(None);
    assert!(api.call("INFO").await.contains("loading:0|"));
}

/// Operators see which libraries use the port, by names that no client chooses.
#[tokio::test]
async fn what_clients_do_is_counted_by_their_libraries() {
    let mut api = Api::new();
    let mut stranger = api.other();
    api.call("client setinfo lib-name redis-py(django-redis)").await;
    stranger.call("client setinfo lib-name mine").await;
    let pipeline = ["get a", "get b", "get c", "nonsense"].map(super::words);
    api.pipeline(pipeline.into()).await.expect("it is open");
    let unknown = "evalsha 0000000000000000000000000000000000000000 0";
    assert!(stranger.call(unknown).await.starts_with("-NOSCRIPT"));

    let node = Arc::clone(&api.node);
    let counts = || {
        let used = node.clients.libraries();
        used.iter().map(|it| (it.library, it.connections, it.commands, it.errors)).collect::<Vec<_>>()
    };
    assert_eq!(counts(), [("untold", 0, 2, 0), ("other", 1, 1, 0), ("redis-py", 1, 4, 1)]);
    drop((api, stranger));
    assert_eq!(counts(), [("untold", 0, 2, 0), ("other", 0, 1, 0), ("redis-py", 0, 4, 1)]);
}
