//! Scripts: how they are found, and how they meet the keyspace.

use std::time::Duration;

use tokio::time::advance;

use super::{Api, memory::Memory, words};

fn script(command: &str, source: &str, rest: &str) -> Vec<Vec<u8>> {
    let mut request = vec![command.as_bytes().to_vec(), source.as_bytes().to_vec()];
    request.extend(words(rest));
    request
}

#[tokio::test(start_paused = true)]
async fn a_script_is_found_by_its_hash_once_it_is_known() {
    let mut api = Api::new();
    let hash = crate::sha1::hexadecimal(b"set K1 A1\nget K1");
    let by_hash = |hash: &str| script("EVALSHA", hash, "1 k v");
    assert_eq!(api.request(by_hash(&hash)).await, "-NOSCRIPT No matching script. Please use EVAL.|");
    assert_eq!(api.request(script("EVAL", "set K1 A1\nget K1", "1 k v")).await, "$1|v|");
    assert_eq!(api.request(by_hash(&hash.to_ascii_uppercase())).await, "$1|v|");
    assert_eq!(api.request(script("SCRIPT", "FLUSH", "")).await, "+OK|");
    assert_eq!(api.request(by_hash(&hash)).await, "-NOSCRIPT No matching script. Please use EVAL.|");
    assert_eq!(api.request(by_hash("x")).await, "-NOSCRIPT No matching script. Please use EVAL.|");
}

#[tokio::test(start_paused = true)]
async fn a_loaded_script_is_known_to_all_nodes_and_forgotten_by_all() {
    let store = Memory::default();
    let mut api = Api::over(store.clone());
    let mut other = Api::over(store);
    let source = "get K1";
    let hash = crate::sha1::hexadecimal(source.as_bytes());
    assert_eq!(api.request(vec![b"SCRIPT".to_vec(), b"LOAD".to_vec(), source.into()]).await, format!("$40|{hash}|"));
    assert_eq!(other.request(script("EVALSHA", &hash, "1 k")).await, "$-1|");
    assert_eq!(other.call(&format!("SCRIPT EXISTS {hash} x")).await, "*2|:1|:0|");

    assert_eq!(api.call("SCRIPT FLUSH SYNC").await, "+OK|");
    advance(Duration::from_secs(1)).await;
    assert_eq!(other.call(&format!("SCRIPT EXISTS {hash}")).await, "*1|:0|");
    assert_eq!(
        api.call("SCRIPT LOAD !").await,
        "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '!'|"
    );
    api.expect(&[
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.|"),
        ("SCRIPT FLUSH NOW", "-ERR SCRIPT FLUSH only support SYNC|ASYNC option|"),
        ("SCRIPT WHAT", "-ERR unknown subcommand 'WHAT'. Try SCRIPT HELP.|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_declared_are_loaded_when_they_are_read() {
    let mut api = Api::new();
    api.store.put("redis/0/first", b"s1");
    for number in 1..50 {
        api.store.put(&format!("redis/0/{number}"), format!("s{}", number + 1).as_bytes());
    }
    assert_eq!(api.request(script("EVAL", "chain 40", "0")).await, "$2|40|");
    // Each read is another run, and their number is bounded.
    for number in 50..400 {
        api.store.put(&format!("redis/0/{number}"), format!("s{}", number + 1).as_bytes());
    }
    let reply = api.request(script("EVAL", "chain 300", "0")).await;
    assert!(reply.starts_with("-ERR the commands read more than"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn a_script_that_fails_writes_nothing() {
    let mut api = Api::new();
    assert_eq!(api.request(script("EVAL", "set K1 v\nraise stop", "1 k")).await, "-ERR stop|");
    assert_eq!(api.call("EXISTS k").await, ":0|");
    // Within a transaction the others stay.
    let requests = vec![
        words("MULTI"),
        words("SET a 1"),
        script("EVAL", "set a 2\nselect 3\nraise stop", "0"),
        words("GET a"),
        words("EXEC"),
    ];
    let replies = api.pipeline(requests).await.expect("it goes on");
    assert_eq!(replies, "+OK|+QUEUED|+QUEUED|+QUEUED|*3|+OK|-ERR stop|$1|1|");
}

#[tokio::test(start_paused = true)]
async fn arguments_of_scripts_are_checked_as_redis_does() {
    let mut api = Api::new();
    for (rest, error) in [
        ("x", "-ERR value is not an integer or out of range|"),
        ("1", "-ERR Number of keys can't be greater than number of args|"),
        ("-1", "-ERR Number of keys can't be negative|"),
    ] {
        assert_eq!(api.request(script("EVAL", "get k", rest)).await, error);
    }
    for (source, reply) in [
        ("nothing", "-ERR Unknown Redis command called from script|"),
        ("get", "-ERR Wrong number of args calling Redis command from script|"),
        ("multi", "-ERR This Redis command is not allowed from script|"),
        ("hgetall none", "*0|"),
        ("blpop none 0", "-ERR This Redis command is not allowed from script|"),
    ] {
        assert_eq!(api.request(script("EVAL", source, "0")).await, reply, "{source}");
    }
    let reply = api.request(script("EVAL_RO", "set k v", "0")).await;
    assert_eq!(reply, "-ERR Write commands are not allowed from read-only scripts.|");
}

#[tokio::test(start_paused = true)]
async fn a_script_sees_forms_of_the_second_version_and_its_own_database() {
    let mut api = Api::new();
    api.call("HELLO 3").await;
    api.call("ZADD z 1.5 a").await;
    assert_eq!(api.request(script("EVAL", "zscore K1 a", "1 z")).await, "$3|1.5|");
    assert_eq!(api.request(script("EVAL", "select 2\nset k two", "0")).await, "+OK|");
    assert_eq!(api.call("GET k").await, "_|");
    api.call("SELECT 2").await;
    assert_eq!(api.call("GET k").await, "$3|two|");
}
