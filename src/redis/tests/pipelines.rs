//! Commands of plain locks that arrive together.

use std::sync::Arc;

use super::{Api, Memory, options, words};
use crate::{
    CallAborted, Interpreter, RedisReply, ScriptFailure, ScriptHost, ScriptLimits, node::RedisNode, resp::RequestWords,
};

const RELEASE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

fn release(key: &str, value: &str) -> RequestWords {
    ["eval", RELEASE, "1", key, value].map(|word| word.as_bytes().to_vec()).to_vec()
}

#[tokio::test(start_paused = true)]
async fn they_take_effect_in_their_order() {
    let mut api = Api::new();
    let mut sent = Vec::new();
    let mut expected = String::new();
    for _ in 0..30 {
        sent.extend(["SET lock a NX PX 60000", "SET lock b NX PX 60000"].map(words));
        sent.extend([release("lock", "b"), release("lock", "a"), words("SETNX lock c"), words("DEL lock other")]);
        expected.push_str("+OK|$-1|:0|:1|:1|:1|");
    }
    assert_eq!(api.pipeline(sent).await.expect("it goes on"), expected);
    assert_eq!(api.store.together(), 100);
    assert_eq!(api.store.reads(), 0, "none of them reads before");
}

#[tokio::test(start_paused = true)]
async fn other_commands_between_them_keep_their_places() {
    let mut api = Api::new();
    let lines = ["SET a 1 NX", "SET b 2 NX", "INCR a", "GET a", "DEL b", "EXISTS b", "SUBSCRIBE", "SETNX b 3", "GET b"];
    let replies = api.pipeline(lines.map(words).to_vec()).await.expect("it goes on");
    let wrong = "-ERR wrong number of arguments for 'subscribe' command|";
    assert_eq!(replies, format!("+OK|+OK|:2|$1|2|:1|:0|{wrong}:1|$1|3|"));
}

#[tokio::test(start_paused = true)]
async fn one_that_needs_the_interpreter_after_all_has_its_place() {
    let mut api = Api::new();
    api.call("RPUSH list x").await;
    let sent = vec![words("SETNX a 1"), release("list", "x"), words("SETNX a 2")];
    let replies = api.pipeline(sent).await.expect("it goes on");
    let (first, rest) = replies.split_once(":1|").expect("the first reply");
    assert!(first.is_empty() && rest.starts_with('-') && rest.ends_with("|:0|"), "{replies}");
}

/// An interpreter that runs the script by which clients release, and no other.
struct Releases;

impl Interpreter for Releases {
    fn check(&self, _source: &[u8]) -> Result<(), ScriptFailure> {
        Ok(())
    }

    fn run(
        &self,
        _source: &[u8],
        _sha1: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        host: &mut dyn ScriptHost,
        _limits: ScriptLimits,
    ) -> Result<RedisReply, ScriptFailure> {
        let mut call = |command: &[u8]| {
            let reply = host.call(&[command, &keys[0]]).map_err(|CallAborted| ScriptFailure::Aborted)?;
            if let RedisReply::Error(text) = reply { Err(ScriptFailure::Raised(text)) } else { Ok(reply) }
        };
        let is_own = call(b"get")? == RedisReply::Bulk(arguments[0].clone());
        if is_own { call(b"del") } else { Ok(RedisReply::Integer(0)) }
    }
}

/// What follows a script has taken effect when its answer is there. A script that ran after that would release another's lock.
#[tokio::test(start_paused = true)]
async fn a_script_over_another_type_is_not_run_after_what_follows_it() {
    let store = Memory::default();
    let mut api = Api::at(store.clone(), Arc::new(RedisNode::new(store, Arc::new(Releases), options())));
    api.call("RPUSH lock x").await;
    let sent = vec![release("lock", "mine"), words("DEL lock"), words("SET lock mine NX PX 60000")];
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
    assert_eq!(api.pipeline(sent).await.expect("it goes on"), format!("{wrong}:1|+OK|"));
    assert_eq!(api.call("GET lock").await, "$4|mine|");
    assert_eq!(api.request(release("lock", "mine")).await, ":1|");
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_answer_was_lost_is_known_before_what_follows_it_begins() {
    let store = Memory::default();
    let mut api = Api::over(store.clone());
    let sent = || vec![words("SET lock a NX PX 60000"), release("lock", "a"), words("SET lock b NX PX 60000")];
    for lose in [Memory::lose_the_next_answer, Memory::lose_the_next_request] {
        lose(&store);
        assert_eq!(api.pipeline(sent()).await.expect("it goes on"), "+OK|:1|+OK|");
        assert_eq!(api.call("DEL lock").await, ":1|");
    }
    // What is no lock with a deadline cannot be repeated: nobody knows whether it has happened.
    let sent = ["SETNX other a", "SETNX third a"].map(words);
    store.lose_the_next_answer();
    assert_eq!(api.pipeline(sent.to_vec()).await, Err(crate::session::Closes));
    assert_eq!(api.other().call("EXISTS other third").await, ":1|");
}

#[tokio::test(start_paused = true)]
async fn they_are_queued_by_a_transaction_and_refused_to_strangers() {
    let mut api = Api::new();
    let lines = ["SETNX a 1", "MULTI", "SETNX b 1", "SETNX c 1", "EXEC", "SETNX b 2"];
    let replies = api.pipeline(lines.map(words).to_vec()).await.expect("it goes on");
    assert_eq!(replies, ":1|+OK|+QUEUED|+QUEUED|*2|:1|:1|:0|");

    let store = Memory::default();
    store.add_user("ann", "secret");
    let mut stranger = Api::over(store);
    let lines = ["SETNX a 1", "SETNX b 1", "AUTH ann secret", "SETNX a 2", "SETNX b 2"];
    let replies = stranger.pipeline(lines.map(words).to_vec()).await.expect("it goes on");
    let refused = "-NOAUTH Authentication required.|".repeat(2);
    assert_eq!(replies, format!("{refused}+OK|:1|:1|"));
}
