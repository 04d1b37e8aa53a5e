//! Scripts: how they are found, and how they meet the keyspace.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, advance, timeout};

use super::{Api, memory::Memory, options, words};
use crate::{Interpreter, RedisOptions, RedisReply, ScriptFailure, ScriptHost, ScriptLimits, node::RedisNode};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// The begin of scripts that are compiled until they are released.
const COMPILED_FOR_LONG: &str = "compiled for long";

/// An interpreter whose scripts take long: `held` until they are released, `nap` for some milliseconds.
#[derive(Default)]
struct Busy {
    held: AtomicUsize,
    is_released: Mutex<bool>,
    released: Condvar,
}

impl Busy {
    fn hold(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
        let is_released = self.is_released.lock().unwrap();
        let released = self.released.wait_timeout_while(is_released, PATIENCE, |is_released| !*is_released);
        drop(released);
    }

    fn release(&self) {
        *self.is_released.lock().unwrap() = true;
        self.released.notify_all();
    }
}

impl Interpreter for Busy {
    fn check(&self, source: &[u8]) -> Result<(), ScriptFailure> {
        if source.starts_with(COMPILED_FOR_LONG.as_bytes()) {
            self.hold();
        }
        Ok(())
    }

    fn run(
        &self,
        source: &[u8],
        _sha1: &str,
        _keys: &[Vec<u8>],
        _arguments: &[Vec<u8>],
        _host: &mut dyn ScriptHost,
        limits: ScriptLimits,
    ) -> Result<RedisReply, ScriptFailure> {
        self.check(source)?;
        if source == b"nap" {
            let waited = self.released.wait_timeout(self.is_released.lock().unwrap(), Duration::from_millis(5));
            drop(waited);
        }
        if source == b"held" {
            if limits.instructions_max < ScriptLimits::default().instructions_max {
                return Err(ScriptFailure::OverLimit("too long".to_owned()));
            }
            self.hold();
        }
        Ok(RedisReply::Integer(1))
    }
}

#[tokio::test]
async fn short_scripts_do_not_wait_for_long_ones() {
    let busy = Arc::new(Busy::default());
    let store = Memory::default();
    let options = RedisOptions { scripts_max: 2, ..options() };
    let node = Arc::new(RedisNode::new(store.clone(), Arc::clone(&busy) as Arc<dyn Interpreter>, options));
    let held: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Api::at(store.clone(), Arc::clone(&node));
            tokio::spawn(async move { client.request(script("EVAL", "held", "0")).await })
        })
        .collect();
    let begun = timeout(PATIENCE, async {
        while busy.held.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    });
    begun.await.expect("as many begin as there are places");

    let mut client = Api::at(store, node);
    assert_eq!(client.request(script("EVAL", "short", "0")).await, ":1|");
    assert_eq!(busy.held.load(Ordering::SeqCst), 2, "the others have no place yet");
    busy.release();
    for held in held {
        assert_eq!(held.await.expect("no panic"), ":1|");
    }
}

#[tokio::test]
async fn a_script_that_is_not_over_by_the_deadline_costs_its_client_an_error_and_no_more() {
    let busy = Arc::new(Busy::default());
    let store = Memory::default();
    let options = RedisOptions { command_timeout: Duration::from_millis(100), ..options() };
    let node = Arc::new(RedisNode::new(store.clone(), Arc::clone(&busy) as Arc<dyn Interpreter>, options));
    let mut client = Api::at(store, node);

    let late = "-ERR the script did not end in time, and nothing was done|";
    assert_eq!(client.request(script("EVAL", "held", "0")).await, late);
    let compiled = format!("{COMPILED_FOR_LONG}{}", " ".repeat(10 << 10));
    let load = vec![b"SCRIPT".to_vec(), b"LOAD".to_vec(), compiled.into_bytes()];
    assert_eq!(client.request(load).await, late);
    busy.release();
    assert_eq!(client.request(script("EVAL", "held", "0")).await, ":1|");
}

#[tokio::test]
async fn the_scripts_of_a_transaction_share_their_time() {
    let store = Memory::default();
    let script_limits = ScriptLimits { time_max: Duration::from_millis(30), ..ScriptLimits::default() };
    let options = RedisOptions { script_limits, ..options() };
    let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Busy::default()), options));
    let mut client = Api::at(store, node);

    let mut transaction = vec![words("MULTI"), words("SET a 1")];
    transaction.extend((0..200).map(|_| script("EVAL", "nap", "0")));
    transaction.push(words("EXEC"));
    let replies = client.pipeline(transaction).await.expect("an answer");
    let text = "-ERR the scripts of a transaction ran longer than 30 ms together: make several of it|";
    assert!(replies.ends_with(text), "{replies}");
    assert_eq!(client.call("GET a").await, "$-1|");
}

#[tokio::test]
async fn a_script_that_would_take_long_to_compile_is_refused() {
    let mut api = Api::new();
    let longest = "#".repeat(64 << 10);
    let text = "-ERR the script has 65537 bytes, and the limit is 65536: make several scripts of it|";
    for command in ["SCRIPT LOAD", "EVAL"] {
        let request = |source: &str| {
            let source = source.as_bytes().to_vec();
            words(command).into_iter().chain([source]).chain(words(if command == "EVAL" { "0" } else { "" })).collect()
        };
        assert!(!api.request(request(&longest)).await.contains("the limit is"), "{command}");
        assert_eq!(api.request(request(&format!("{longest}#"))).await, text, "{command}");
    }
}

#[tokio::test]
async fn compiling_long_scripts_does_not_keep_short_ones_waiting() {
    let busy = Arc::new(Busy::default());
    let store = Memory::default();
    let options = RedisOptions { scripts_max: 2, ..options() };
    let node = Arc::new(RedisNode::new(store.clone(), Arc::clone(&busy) as Arc<dyn Interpreter>, options));
    let long = format!("{COMPILED_FOR_LONG}{}", " ".repeat(10_000));
    let compiled: Vec<_> = ["EVAL", "SCRIPT LOAD"]
        .map(|command| {
            let mut client = Api::at(store.clone(), Arc::clone(&node));
            let mut request = words(command);
            request.push(long.clone().into_bytes());
            request.extend(words(if command == "EVAL" { "0" } else { "" }));
            tokio::spawn(async move { client.request(request).await })
        })
        .into();
    let begun = timeout(PATIENCE, async {
        while busy.held.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    });
    begun.await.expect("both are compiled");

    // One thread serves all clients here: it is free.
    let mut client = Api::at(store, node);
    assert_eq!(client.request(script("EVAL", "short", "0")).await, ":1|");
    busy.release();
    for compiled in compiled {
        let reply = compiled.await.expect("no panic");
        assert!(!reply.starts_with('-'), "{reply}");
    }
}

#[tokio::test(start_paused = true)]
async fn receivers_are_counted_once_for_each_channel_of_a_script() {
    let mut api = Api::new();
    let source: Vec<_> = (0..50).map(|number| format!("publish channel-{number} x")).collect();
    let before = api.store.reads();
    assert_eq!(api.request(script("EVAL", &source.join("\n"), "0")).await, ":0|");
    let reads = api.store.reads() - before;
    assert!(reads < 200, "{reads} reads");
}

/// Whatever a node has to learn of the scripts before.
#[tokio::test(start_paused = true)]
async fn without_a_leader_a_script_that_is_named_is_refused_in_the_time_of_a_command() {
    let mut api = Api::new();
    let release = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    for source in [release, "get K1"] {
        api.request(script("SCRIPT", "LOAD", "").into_iter().chain([source.as_bytes().to_vec()]).collect()).await;
    }
    let named = |source: &str| script("EVALSHA", &crate::sha1::hexadecimal(source.as_bytes()), "1 k v");
    let mut transaction = vec![words("MULTI")];
    transaction.extend((0..50).map(|_| named("get K1")));
    transaction.extend((0..50).map(|number| named(&format!("get {number}"))));
    transaction.push(words("EXEC"));
    api.store.lose_the_leader();

    for (requests, refused) in [
        (vec![named("get K1")], 1),
        (vec![named("get another")], 1),
        ((0..50).map(|_| named(release)).collect(), 50),
        (transaction, 1),
    ] {
        // The last look whether scripts are to be forgotten was before.
        advance(Duration::from_secs(2)).await;
        let began = Instant::now();
        let replies = api.pipeline(requests).await.expect("an answer");
        assert_eq!(replies.matches("-LOADING ").count(), refused, "{replies}");
        let took = began.elapsed();
        assert!(took <= Duration::from_millis(4_500), "{took:?} for {refused} of them");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_asks_once_for_each_script() {
    let mut api = Api::new();
    let mut transaction = vec![words("MULTI")];
    transaction.extend((0..100).map(|_| script("EVALSHA", &crate::sha1::hexadecimal(b"get K1"), "1 k")));
    transaction.push(words("EXEC"));
    let before = api.store.reads();
    let replies = api.pipeline(transaction).await.expect("an answer");
    assert_eq!(replies.matches("-NOSCRIPT ").count(), 100);
    assert!(api.store.reads() - before < 5, "{} reads", api.store.reads() - before);
}

#[tokio::test(start_paused = true)]
async fn a_script_that_reads_the_token_of_a_lock_needs_the_right_to_the_lock_alone() {
    let mut api = Api::new();
    api.store.deny_keys_with("lockkeeper:token:");
    assert_eq!(api.request(script("EVAL", "get lockkeeper:token:k", "0")).await, "$-1|");
    api.call("SET k v NX PX 60000").await;
    let token = api.call("GET lockkeeper:token:k").await;
    assert!(token.starts_with('$') && token != "$-1|", "{token}");
    assert_eq!(api.request(script("EVAL", "get lockkeeper:token:k", "0")).await, token);
    assert_eq!(api.request(script("EVAL", "get K1", "1 lockkeeper:token:k")).await, token);
}
