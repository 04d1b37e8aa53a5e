//! MULTI, WATCH, pipelines, and what happens when others write in between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::yield_now,
    time::{advance, sleep},
};

use super::{Api, memory::Memory, words};
use crate::{Expiry, LockClaim, RedisReply, RedisStoreError, RedisTxn, RedisWrite, unit::UnitOutcome};

fn lines(lines: &[&str]) -> Vec<Vec<Vec<u8>>> {
    lines.iter().map(|line| words(line)).collect()
}

/// A write of another client.
fn intrusion(key: &str) -> RedisTxn {
    let write = RedisWrite::Put {
        key: format!("redis/0/{key}").into_bytes(),
        value: b"s100".to_vec(),
        expiry: Expiry::None,
        claim: LockClaim::None,
    };
    RedisTxn { writes: vec![write], ..RedisTxn::default() }
}

#[tokio::test(start_paused = true)]
async fn commands_are_queued_and_run_together() {
    let mut api = Api::new();
    let replies = api.pipeline(lines(&["MULTI", "SET a 1", "INCR a", "LPUSH a x", "GET a", "PING", "EXEC"])).await;
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
    assert_eq!(replies.as_deref(), Ok(&*format!("+OK|{}*5|+OK|:2|{wrong}$1|2|+PONG|", "+QUEUED|".repeat(5))));
    assert_eq!(api.store.commits(), 1);
    api.expect(&[
        ("EXEC", "-ERR EXEC without MULTI|"),
        ("DISCARD", "-ERR DISCARD without MULTI|"),
        ("MULTI", "+OK|"),
        ("MULTI", "-ERR MULTI calls can not be nested|"),
        ("WATCH a", "-ERR WATCH inside MULTI is not allowed|"),
        ("SET a 2", "+QUEUED|"),
        ("DISCARD", "+OK|"),
        ("GET a", "$1|2|"),
        ("MULTI", "+OK|"),
        ("NONE", "-ERR unknown command 'NONE', with args beginning with: |"),
        ("SET a 3", "+QUEUED|"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.|"),
        ("GET a", "$1|2|"),
        ("MULTI", "+OK|"),
        ("SELECT 3", "+QUEUED|"),
        ("SET a three", "+QUEUED|"),
        ("CLIENT GETNAME", "+QUEUED|"),
        ("EXEC", "*3|+OK|+OK|$-1|"),
        ("GET a", "$5|three|"),
        ("MULTI", "+OK|"),
        ("EXEC", "*0|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_watched_key_abandons() {
    let mut api = Api::new();
    let mut other = api.other();
    for change in ["SET k 2", "DEL k", "PEXPIRE k 100000", "SET k 1"] {
        api.call("SET k 1").await;
        api.call("WATCH k none").await;
        other.call(change).await;
        api.expect(&[("MULTI", "+OK|"), ("SET done x", "+QUEUED|"), ("EXEC", "*-1|"), ("EXISTS done", ":0|")]).await;
    }

    // One's own change counts, UNWATCH forgets, and EXEC does, too.
    api.expect(&[
        ("WATCH k", "+OK|"),
        ("SET k 5", "+OK|"),
        ("MULTI", "+OK|"),
        ("EXEC", "*-1|"),
        ("MULTI", "+OK|"),
        ("EXEC", "*0|"),
        ("WATCH k", "+OK|"),
        ("SET k 6", "+OK|"),
        ("UNWATCH", "+OK|"),
        ("MULTI", "+OK|"),
        ("GET k", "+QUEUED|"),
        ("EXEC", "*1|$1|6|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_watched_key_is_a_change_and_an_end_before_is_none() {
    let mut api = Api::new();
    api.call("SET k 1 PX 100").await;
    api.call("WATCH k").await;
    advance(Duration::from_millis(100)).await;
    api.expect(&[("MULTI", "+OK|"), ("EXEC", "*-1|")]).await;
    api.call("WATCH k").await;
    advance(Duration::from_millis(100)).await;
    api.expect(&[("MULTI", "+OK|"), ("EXEC", "*0|")]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_is_compared_and_run_again() {
    let mut api = Api::new();
    api.call("SET n 1").await;
    api.store.intrude(intrusion("n"), 1);
    assert_eq!(api.call("INCR n").await, ":101|");

    // An absence is something that was read.
    api.store.intrude(intrusion("m"), 1);
    assert_eq!(api.call("INCR m").await, ":101|");

    // So is a range: a script that saw no key of it and then writes.
    api.store.intrude(intrusion("lock:1"), 1);
    let script = vec![b"EVAL".to_vec(), b"keys lock:*\nset done x\nkeys lock:*".to_vec(), b"0".to_vec()];
    assert_eq!(api.request(script).await, "*1|$6|lock:1|");
}

#[tokio::test(start_paused = true)]
async fn tries_are_bounded_and_nothing_is_done_then() {
    let mut api = Api::new();
    api.store.intrude(intrusion("n"), usize::MAX);
    let reply = api.call("INCR n").await;
    assert!(reply.starts_with("-ERR other clients changed the same keys"), "{reply}");
    let mut other = api.other();
    assert_eq!(other.call("GET n").await, "$3|100|");
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_is_one_commit_with_its_replies_in_order() {
    let mut api = Api::new();
    let pipeline = ["SET a 1", "LPUSH a x", "NONE", "INCR a", "GET a", "SET b 1 NX PX 1000", "DEL a b"];
    let replies = api.pipeline(lines(&pipeline)).await.expect("it goes on");
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
    let unknown = "-ERR unknown command 'NONE', with args beginning with: |";
    assert_eq!(replies, format!("+OK|{wrong}{unknown}:2|$1|2|+OK|:2|"));
    assert_eq!(api.store.commits(), 2, "an unknown command is between them");

    let many: Vec<_> = (0..1000).map(|number| words(&format!("SET key:{number} v"))).collect();
    let commits = api.store.commits();
    assert_eq!(api.pipeline(many).await.as_deref(), Ok(&*"+OK|".repeat(1000)));
    assert_eq!(api.store.commits() - commits, 10);
}

#[tokio::test(start_paused = true)]
async fn commands_that_are_too_much_together_run_one_by_one() {
    let mut api = Api::new();
    let keys: Vec<_> = (0..200).map(|number| format!("k{number} v")).collect();
    let set_many = format!("MSET {}", keys.join(" "));
    let replies = api.pipeline(lines(&[&set_many, &set_many.replace('k', "m"), "GET k199"])).await;
    assert_eq!(replies.as_deref(), Ok("+OK|+OK|$1|v|"));

    let reply = api.call(&format!("{set_many} {}", keys.join(" ").replace('k', "x"))).await;
    assert!(reply.starts_with("-ERR more than 256"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn too_many_keys_cannot_be_watched() {
    let mut api = Api::new();
    let keys: Vec<_> = (0..10_000).map(|number| number.to_string()).collect();
    let reply = api.call(&format!("WATCH {}", keys.join(" "))).await;
    assert_eq!(reply, "-ERR a transaction can watch at most 256 keys: watch fewer|");
}

#[tokio::test(start_paused = true)]
async fn units_go_to_the_leader_and_reads_of_keys_do_not() {
    let store = Memory::default();
    store.follow();
    let mut api = Api::over(store.clone());
    for line in ["GET k", "TTL k", "MGET a b", "PING", "SET k v NX PX 100", "DEL k"] {
        api.call(line).await;
    }
    assert_eq!(store.given().len(), 0);

    api.call("INCR n").await;
    let given = store.given();
    let caller = api.caller();
    let outcome = super::handle(store.clone()).run_unit(&caller, &given[0]).await;
    assert_eq!(UnitOutcome::decode(&outcome), Some(done(2)));
    let outcome = super::handle(store).run_unit(&caller, b"?").await;
    assert!(matches!(UnitOutcome::decode(&outcome), Some(UnitOutcome::Failed(RedisStoreError::Unavailable(_)))));
}

fn done(number: i64) -> UnitOutcome {
    UnitOutcome::Done { replies: vec![RedisReply::Integer(number)], database: 0 }
}

#[tokio::test(start_paused = true)]
async fn replies_of_this_node_in_a_transaction_are_bounded() {
    let mut api = Api::new();
    let documents = api.call("COMMAND DOCS").await;
    let mut transaction = vec!["MULTI"];
    transaction.extend(["COMMAND DOCS"; 1_000]);
    transaction.extend(["SET a 1", "EXEC"]);
    let replies = api.pipeline(lines(&transaction)).await.expect("an answer");

    let documented = replies.matches(&documents).count();
    assert!((1..500).contains(&documented), "{documented}");
    let refused =
        replies.matches("-ERR the command was not run: the replies of the transaction have more than").count();
    assert_eq!(documented + refused, 1_000);
    // The unit has happened.
    assert!(replies.ends_with("+OK|"), "the last reply");
    assert_eq!(api.call("GET a").await, "$1|1|");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_refused_keeps_nothing() {
    let mut api = Api::new();
    api.expect(&[("MULTI", "+OK|"), ("SET a 1", "+QUEUED|")]).await;
    assert!(api.session.queued_bytes() > 0);
    assert!(api.call("NONE").await.starts_with("-ERR unknown command"));
    for _ in 0..10 {
        assert_eq!(api.call("SET a 1").await, "+QUEUED|");
        assert_eq!(api.session.queued_bytes(), 0);
    }
    api.expect(&[("EXEC", "-EXECABORT Transaction discarded because of previous errors.|"), ("GET a", "$-1|")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_database_of_very_many_keys_is_emptied_however_long_it_takes() {
    let mut api = Api::new();
    let store = api.store.clone();
    let fill = || (0..2_000).for_each(|number| store.put(&format!("redis/0/{number:05}"), b"sx"));
    fill();
    api.store.slow_down(Duration::from_secs(1));
    assert_eq!(api.call("FLUSHDB").await, "+OK|");
    assert_eq!(api.call("DBSIZE").await, ":0|");

    // What has happened is not denied.
    api.store.slow_down(Duration::ZERO);
    fill();
    api.store.fail_after(3, RedisStoreError::Unavailable("no leader".to_owned()));
    let text = api.call("FLUSHDB").await;
    assert_eq!(text, "-ERR FLUSHDB did not end, and a part of the keys is gone: no leader; send it again|");
    api.store.fail_after(u64::MAX / 2, RedisStoreError::Unavailable(String::new()));
    assert_ne!(api.call("DBSIZE").await, ":2000|");
}

#[tokio::test(start_paused = true)]
async fn the_scripts_of_a_transaction_are_bounded_however_they_are_named() {
    let mut api = Api::new();
    let source = format!("get K1{}", " ".repeat(60 << 10));
    let hash = crate::sha1::hexadecimal(source.as_bytes());
    let load = ["SCRIPT", "LOAD", &source].map(|word| word.as_bytes().to_vec());
    api.request(load.to_vec()).await;
    let evaluated = format!("EVALSHA {hash} 1 k");

    let text = "-ERR the scripts of the transaction have more than 4194304 bytes: make several of it|";
    for (count, last, done) in [(60, "$-1|", ":1|"), (100, text, ":0|")] {
        let mut transaction = vec!["MULTI", "SET done x"];
        transaction.extend(std::iter::repeat_n(&*evaluated, count));
        transaction.push("EXEC");
        let replies = api.pipeline(lines(&transaction)).await.expect("it goes on");
        assert!(replies.ends_with(last), "{replies}");
        assert_eq!(api.call("DEL done").await, done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_of_keys_by_which_a_script_decides_is_compared() {
    let mut api = Api::new();
    api.call("SET k v").await;
    let script = |source: &str| vec![b"EVAL".to_vec(), source.as_bytes().to_vec(), b"0".to_vec()];
    api.store.intrude(intrusion("other"), 1);
    assert_eq!(api.request(script("dbsize\nset done x\ndbsize")).await, ":3|");

    // A key that is gone is noticed as well, and so is the count of a transaction.
    let gone = RedisWrite::Delete { key: b"redis/0/other".to_vec() };
    api.store.intrude(RedisTxn { writes: vec![gone], ..RedisTxn::default() }, 1);
    let replies = api.pipeline(lines(&["MULTI", "DBSIZE", "DEL done", "DBSIZE", "EXEC"])).await;
    assert_eq!(replies.as_deref(), Ok("+OK|+QUEUED|+QUEUED|+QUEUED|*3|:2|:1|:1|"));

    // By itself it costs one read, however many keys there are.
    (0..500).for_each(|number| api.store.put(&format!("redis/0/{number}"), b"sx"));
    let before = api.store.reads();
    assert_eq!(api.call("DBSIZE").await, ":501|");
    assert_eq!(api.request(script("dbsize")).await, ":501|");
    assert_eq!(api.store.reads() - before, 2);
    let refused = api.request(script("dbsize\nset done x")).await;
    assert!(refused.starts_with("-ERR DBSIZE in a script or transaction that writes compares each key"), "{refused}");
    assert_eq!(api.request(script("flushdb\nset done x\ndbsize")).await, ":1|");
}

#[tokio::test(start_paused = true)]
async fn commands_of_very_many_keys_let_others_have_turns() {
    const KEYS: usize = 8_000;
    let mut api = Api::new();
    for number in (0..KEYS).step_by(2) {
        api.store.put(&format!("redis/0/{number}"), format!("s{number}").as_bytes());
    }
    let turns = Arc::new(AtomicUsize::new(0));
    let others = {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        })
    };
    yield_now().await;

    let names: String = (0..KEYS).map(|number| format!(" {number}")).collect();
    let value = |number: usize| {
        let text = number.to_string();
        if number.is_multiple_of(2) { format!("${}|{text}|", text.len()) } else { "$-1|".to_owned() }
    };
    let all: String = (0..KEYS).map(value).collect();
    for (command, expected) in [
        ("mget", format!("*{KEYS}|{all}")),
        ("exists", format!(":{}|", KEYS / 2)),
        ("touch", format!(":{}|", KEYS / 2)),
        ("mget none", format!("*{}|$-1|{all}", KEYS + 1)),
    ] {
        let before = turns.load(Ordering::Relaxed);
        assert!(api.call(&format!("{command}{names}")).await == expected, "{command}");
        let others_had = turns.load(Ordering::Relaxed) - before;
        assert!(others_had >= KEYS / 1000, "{command}: {others_had} turns");
    }
    others.abort();

    // What is deleted is one transaction, which has a limit.
    assert!(api.call(&format!("unlink{names}")).await.starts_with("-ERR more than 256"));
    assert_eq!(api.call(&format!("exists{names}")).await, format!(":{}|", KEYS / 2));
}

/// Each of them has the entries of all its keys in memory while others have turns.
#[tokio::test(start_paused = true)]
async fn commands_of_very_many_keys_have_the_places_of_those_that_read_ranges() {
    let mut api = Api::new();
    api.store.slow_down_ranges(Duration::from_secs(2));
    for _ in 0..8 {
        let mut reads_range = api.other();
        tokio::spawn(async move { reads_range.call("keys *").await });
    }
    sleep(Duration::from_secs(1)).await;

    let mut other = api.other();
    let names: String = (0..1001).map(|number| format!(" {number}")).collect();
    let many = tokio::spawn(async move { other.call(&format!("exists{names}")).await });
    assert_eq!(api.call("exists a b c").await, ":0|");
    sleep(Duration::from_millis(500)).await;
    assert!(!many.is_finished());
    assert_eq!(many.await.expect("no panic"), ":0|");
}
