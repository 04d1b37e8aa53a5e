//! Commands of plain locks that arrive together.

use super::{Api, Memory, words};
use crate::resp::RequestWords;

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
