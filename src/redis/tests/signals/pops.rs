//! Blocking pops: who gets an item, and what a client that waits is told.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{PATIENCE, SeveralNodes, reply};

#[tokio::test(start_paused = true)]
async fn items_go_to_clients_in_the_order_of_their_arrival_over_all_nodes() {
    let nodes = SeveralNodes::new(3);
    let mut waiting = Vec::new();
    for node in [0, 1, 0, 2, 1] {
        waiting.push(nodes.waits(node, "blpop queue 0").await);
    }

    let mut pusher = nodes.client(2);
    for item in ["a", "b", "c", "d", "e"] {
        pusher.call(&format!("rpush queue {item}")).await;
    }
    for (waiting, item) in waiting.into_iter().zip(["a", "b", "c", "d", "e"]) {
        assert_eq!(reply(waiting).await, format!("*2|$5|queue|$1|{item}|"));
    }
    assert_eq!(pusher.call("llen queue").await, ":0|");
    nodes.until_count("redis/wait/", 0).await;
}

#[tokio::test(start_paused = true)]
async fn one_write_of_several_items_serves_several_clients() {
    let nodes = SeveralNodes::new(2);
    let mut waiting = Vec::new();
    for node in [0, 1, 1] {
        waiting.push(nodes.waits(node, "brpop queue 0").await);
    }
    nodes.client(0).call("rpush queue a b c").await;
    for (waiting, item) in waiting.into_iter().zip(["c", "b", "a"]) {
        assert_eq!(reply(waiting).await, format!("*2|$5|queue|$1|{item}|"));
    }
}

#[tokio::test(start_paused = true)]
async fn each_command_that_waits_is_served() {
    let nodes = SeveralNodes::new(2);
    let mut pusher = nodes.client(1);
    for (line, push, expected) in [
        ("blpop a b 0", "rpush b x", "*2|$1|b|$1|x|"),
        ("brpop a b 0", "lpush a x", "*2|$1|a|$1|x|"),
        ("blmove a c left right 0", "rpush a x", "$1|x|"),
        ("brpoplpush a c 0", "rpush a y", "$1|y|"),
        ("bzpopmin z 0", "zadd z 2 two 1 one", "*3|$1|z|$3|one|$1|1|"),
        ("bzpopmax z 0", "zadd z 3 three", "*3|$1|z|$3|two|$1|2|"),
    ] {
        let waits_already = line.starts_with("bzpopmax");
        let mut client = nodes.client(0);
        let waiting = if waits_already {
            assert_eq!(client.call(line).await, expected);
            continue;
        } else {
            nodes.waits(0, line).await
        };
        pusher.call(push).await;
        assert_eq!(reply(waiting).await, expected, "{line}");
    }
    assert_eq!(pusher.call("lrange c 0 -1").await, "*2|$1|y|$1|x|");
    nodes.until_count("redis/wait/", 0).await;
}

/// It is served once the key is one of the right type, or by another key.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_is_not_told_that_a_key_has_another_type() {
    let nodes = SeveralNodes::new(2);
    let mut writer = nodes.client(1);
    for (line, pushes, expected) in [
        ("blpop a 0", &["del a", "rpush a x"][..], "*2|$1|a|$1|x|"),
        ("blpop a b 0", &["rpush b x"], "*2|$1|b|$1|x|"),
        ("bzpopmin a b 0", &["zadd b 1 x"], "*3|$1|b|$1|x|$1|1|"),
        ("blmove a c left right 0", &["del a", "rpush a x"], "$1|x|"),
        // That of the target is told, when there is an item.
        (
            "brpoplpush a s 0",
            &["del a", "rpush a x"],
            "-WRONGTYPE Operation against a key holding the wrong kind of value|",
        ),
    ] {
        writer.call("flushdb").await;
        writer.call("set s x").await;
        let waiting = nodes.waits(0, line).await;
        writer.call("set a x").await;
        sleep(Duration::from_secs(5)).await;
        assert!(!waiting.is_finished(), "{line}");
        for push in pushes {
            writer.call(push).await;
        }
        assert_eq!(reply(waiting).await, expected, "{line}");
        nodes.until_count("redis/wait/", 0).await;
    }
    assert_eq!(writer.call("lrange a 0 -1").await, "*1|$1|x|", "nothing was moved");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_while_others_wait_is_told_that_a_key_has_another_type() {
    let nodes = SeveralNodes::new(2);
    let waiting = nodes.waits(0, "blpop a 0").await;
    let mut writer = nodes.client(1);
    writer.call("set a x").await;
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
    for line in ["blpop a 0", "blpop none a 0", "bzpopmin a 0", "blmove a c left left 0"] {
        assert_eq!(timeout(PATIENCE, writer.call(line)).await.as_deref(), Ok(wrong), "{line}");
    }
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_answered_a_little_early() {
    let nodes = SeveralNodes::new(1);
    for (timeout, from_ms, to_ms) in [("5", 4950, 4980), ("1", 950, 980), ("0.1", 70, 80), ("0.01", 5, 10)] {
        let began = Instant::now();
        assert_eq!(nodes.client(0).call(&format!("blpop none {timeout}")).await, "*-1|");
        let took_ms = began.elapsed().as_millis();
        assert!((from_ms..=to_ms).contains(&took_ms), "{timeout} s: {took_ms} ms");
    }
    nodes.until_count("redis/wait/", 0).await;

    let mut client = nodes.client(0);
    client
        .expect(&[
            ("blpop none -1", "-ERR timeout is negative|"),
            ("blpop none x", "-ERR timeout is not a float or out of range|"),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_transaction_does_not_wait() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    client.expect(&[("multi", "+OK|"), ("blpop none 0", "+QUEUED|"), ("exec", "*1|*-1|")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_while_another_waits_waits_behind_it() {
    let nodes = SeveralNodes::new(1);
    // It waits at another node, and has not heard of the item yet.
    nodes.store.put("redis/wait/13/redis/0/queue/other", b"");
    let mut client = nodes.client(0);
    client.expect(&[("rpush queue a", ":1|"), ("blpop queue 2", "*-1|"), ("llen queue", ":1|")]).await;

    nodes.until_count("redis/wait/", 1).await;
    let behind = nodes.waits(0, "blpop queue 0").await;
    nodes.store.delete("redis/wait/13/redis/0/queue/other");
    assert_eq!(reply(behind).await, "*2|$5|queue|$1|a|");
}

#[tokio::test(start_paused = true)]
async fn who_may_not_read_a_key_takes_no_place_of_those_that_wait_for_it() {
    let nodes = SeveralNodes::new(1);
    let waiting = nodes.waits(0, "blpop queue 0").await;
    nodes.store.deny_keys_with("queue");
    let mut stranger = nodes.client(0);
    let commits = nodes.store.commits();
    assert_eq!(stranger.call("blpop queue 5").await, "-NOPERM no right to queue|");
    assert_eq!(nodes.store.commits(), commits, "it had a place");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn of_many_clients_of_a_node_only_the_first_looks_and_all_are_served_at_once() {
    let nodes = SeveralNodes::new(1);
    // The node hears of writes from its first client on that waits.
    nodes.client(0).call("blpop other 0.1").await;
    nodes.until_count("redis/wait/", 0).await;
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let mut client = nodes.client(0);
            tokio::spawn(async move { client.call("blpop queue 0").await })
        })
        .collect();
    nodes.until_count("redis/wait/", 50).await;
    sleep(Duration::from_secs(2)).await;
    let before = nodes.store.reads();
    sleep(Duration::from_secs(10)).await;
    let reads = nodes.store.reads() - before;
    assert!(reads < 50, "{reads} reads in 10 s");

    // One transaction has made all their places, and they still have the order in which they came.
    let began = Instant::now();
    let items: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    nodes.client(0).call(&format!("rpush queue {}", items.join(" "))).await;
    for (waiting, item) in waiting.into_iter().zip(&items) {
        let popped = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic");
        assert_eq!(popped, format!("*2|$5|queue|${}|{item}|", item.len()));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// Nothing comes that would wake it.
#[tokio::test(start_paused = true)]
async fn a_client_that_loses_its_right_waits_no_longer() {
    let nodes = SeveralNodes::new(2);
    let denied = nodes.waits(0, "blpop secret queue 0").await;
    let behind = nodes.waits(1, "blpop queue 0").await;
    nodes.store.deny_keys_with("secret");
    assert_eq!(reply(denied).await, "-NOPERM no right to secret|");

    nodes.until_count("redis/wait/", 1).await;
    assert_eq!(nodes.client(1).call("rpush queue x").await, ":1|");
    assert_eq!(reply(behind).await, "*2|$5|queue|$1|x|");
}
