//! Blocking pops and channels, at several nodes over one store.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{Api, Memory, Scripted, options};
use crate::{
    Expiry, LockClaim, RedisOptions, RedisStore as _, RedisStoreError, RedisTxn, RedisWrite, node::RedisNode,
    signals::port,
};

/// More than anything here takes, in the time of a test, which is not real.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes over one store.
pub(super) struct SeveralNodes {
    pub(super) store: Memory,
    nodes: Vec<Arc<RedisNode<Memory>>>,
}

impl SeveralNodes {
    pub(super) fn new(count: u64) -> Self {
        let store = Memory::default();
        let node = |seed| {
            let options = RedisOptions { seed, ..options() };
            Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options))
        };
        let nodes = (1..=count).map(node).collect();
        Self { store, nodes }
    }

    pub(super) fn client(&self, node: usize) -> Api {
        Api::at(self.store.clone(), Arc::clone(&self.nodes[node]))
    }

    /// Number of the entries that begin so.
    pub(super) async fn count(&self, prefix: &str) -> u64 {
        let mut end = prefix.as_bytes().to_vec();
        end.push(0xff);
        self.store.count(&port(), prefix.as_bytes().to_vec(), end).await.unwrap_or(u64::MAX)
    }

    pub(super) async fn until_count(&self, prefix: &str, count: u64) {
        let reached = timeout(PATIENCE, async {
            while self.count(prefix).await != count {
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(reached.await.is_ok(), "{} entries of {prefix}, not {count}", self.count(prefix).await);
    }

    /// Has a client wait, and returns after it has its place.
    pub(super) async fn waits(&self, node: usize, line: &str) -> JoinHandle<(String, Duration)> {
        let before = self.count("redis/wait/").await;
        let mut client = self.client(node);
        let line = line.to_owned();
        let began = Instant::now();
        let waiting = tokio::spawn(async move { (client.call(&line).await, began.elapsed()) });
        let keys = self.count("redis/wait/");
        let placed = timeout(PATIENCE, async {
            while self.count("redis/wait/").await == before {
                sleep(Duration::from_millis(1)).await;
            }
        });
        drop(keys);
        assert!(placed.await.is_ok(), "no place");
        waiting
    }
}

pub(super) async fn reply(waiting: JoinHandle<(String, Duration)>) -> String {
    timeout(PATIENCE, waiting).await.expect("a reply in time").expect("no panic").0
}

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

/// Each channel is a read of its own.
#[tokio::test(start_paused = true)]
async fn channels_are_counted_until_the_deadline_of_a_command() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    nodes.store.slow_down_ranges(Duration::from_secs(1));
    assert_eq!(client.call("pubsub numsub a b").await, "*4|$1|a|:0|$1|b|:0|");

    let began = Instant::now();
    let refused = client.call(&format!("pubsub numsub{}", " c".repeat(1_000))).await;
    assert!(refused.contains("1000 channels could not be counted in time: ask for fewer"), "{refused}");
    assert_eq!(began.elapsed(), options().command_timeout);
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
async fn a_client_that_has_gone_gets_nothing_and_holds_up_nobody() {
    let nodes = SeveralNodes::new(2);
    let gone = nodes.waits(0, "blpop queue 0").await;
    let stays = nodes.waits(1, "blpop queue 0").await;
    gone.abort();
    nodes.until_count("redis/wait/", 1).await;

    let mut pusher = nodes.client(0);
    pusher.call("rpush queue a").await;
    assert_eq!(reply(stays).await, "*2|$5|queue|$1|a|");
    pusher.expect(&[("rpush queue b", ":1|"), ("lrange queue 0 -1", "*1|$1|b|")]).await;
}

#[tokio::test(start_paused = true)]
async fn the_clients_of_a_dead_node_hold_up_others_for_some_seconds() {
    let mut nodes = SeveralNodes::new(2);
    let dead = nodes.waits(0, "blpop queue 0").await;
    // A node that dies leaves its entries as they are.
    let stays = nodes.waits(1, "blpop queue 0").await;
    nodes.nodes[0].signals.stop();
    dead.abort();
    nodes.nodes.remove(0);

    let began = Instant::now();
    nodes.client(0).call("rpush queue a").await;
    assert_eq!(reply(stays).await, "*2|$5|queue|$1|a|");
    let took = began.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_keep_their_places_while_there_is_no_leader() {
    let nodes = SeveralNodes::new(2);
    let first = nodes.waits(0, "blpop queue 0").await;
    let second = nodes.waits(1, "blpop queue 0").await;

    nodes.store.fail(Some(RedisStoreError::Unavailable("no leader".to_owned())));
    nodes.store.end_feeds();
    sleep(Duration::from_secs(3)).await;
    let mut pusher = nodes.client(1);
    assert!(pusher.call("rpush queue a").await.starts_with("-LOADING"));
    nodes.store.fail(None);

    pusher.call("rpush queue a").await;
    pusher.call("rpush queue b").await;
    assert_eq!(reply(first).await, "*2|$5|queue|$1|a|");
    assert_eq!(reply(second).await, "*2|$5|queue|$1|b|");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_without_a_leader_is_no_nil() {
    let nodes = SeveralNodes::new(1);
    let waiting = nodes.waits(0, "blpop queue 3").await;
    nodes.store.fail(Some(RedisStoreError::Unavailable("no leader".to_owned())));
    assert!(reply(waiting).await.starts_with("-LOADING"));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_does_not_wait() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    client.expect(&[("multi", "+OK|"), ("blpop none 0", "+QUEUED|"), ("exec", "*1|*-1|")]).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_clients_are_bounded() {
    let nodes = SeveralNodes::new(1);
    for number in 0..1000 {
        nodes.store.put(&format!("redis/wait/12/redis/0/full/{number:04}"), b"");
    }
    let mut client = nodes.client(0);
    let text = client.call("blpop full 1").await;
    assert!(text.starts_with("-ERR 1000 clients wait for the same key"), "{text}");
    let keys = vec!["k"; 65].join(" ");
    let text = client.call(&format!("blpop {keys} 1")).await;
    assert!(text.starts_with("-ERR a client waits for at most 64 keys"), "{text}");
}

/// The next message of a client.
pub(super) async fn message(client: &mut Api) -> String {
    let message = timeout(PATIENCE, client.session.next_message()).await.expect("a message in time");
    let mut out = Vec::new();
    client.session.write_message(&message, &mut out);
    String::from_utf8_lossy(&out).replace("\r\n", "|")
}

#[tokio::test(start_paused = true)]
async fn a_message_reaches_the_subscribers_of_all_nodes_in_order() {
    let nodes = SeveralNodes::new(3);
    let mut one = nodes.client(0);
    let mut two = nodes.client(1);
    let mut by_pattern = nodes.client(1);
    assert_eq!(one.call("subscribe news other").await, "*3|$9|subscribe|$4|news|:1|*3|$9|subscribe|$5|other|:2|");
    assert_eq!(two.call("subscribe news").await, "*3|$9|subscribe|$4|news|:1|");
    assert_eq!(by_pattern.call("psubscribe n*").await, "*3|$10|psubscribe|$2|n*|:1|");

    let mut publisher = nodes.client(2);
    publisher
        .expect(&[
            ("pubsub numsub news other none", "*6|$4|news|:2|$5|other|:1|$4|none|:0|"),
            ("pubsub channels", "*2|$4|news|$5|other|"),
            ("pubsub channels n*", "*1|$4|news|"),
            ("pubsub numpat", ":1|"),
            ("publish news hello", ":3|"),
            ("publish news again", ":3|"),
            ("publish zero hello", ":0|"),
        ])
        .await;
    for text in ["hello", "again"] {
        let expected = format!("*3|$7|message|$4|news|$5|{text}|");
        assert_eq!(message(&mut one).await, expected);
        assert_eq!(message(&mut two).await, expected);
        assert_eq!(message(&mut by_pattern).await, format!("*4|$8|pmessage|$2|n*|$4|news|$5|{text}|"));
    }

    assert_eq!(one.call("unsubscribe news").await, "*3|$11|unsubscribe|$4|news|:1|");
    publisher.expect(&[("pubsub numsub news", "*2|$4|news|:1|"), ("publish news x", ":2|")]).await;
    assert_eq!(one.call("unsubscribe").await, "*3|$11|unsubscribe|$5|other|:0|");
    assert_eq!(one.call("get key").await, "$-1|");

    // The end of a connection ends its subscriptions.
    drop((one, two, by_pattern));
    nodes.until_count("redis/channel/", 0).await;
    nodes.until_count("redis/pattern/", 0).await;
}

/// A portalocker lock is a subscription: another client finds its connection by its name among the subscribers, and may end it.
#[tokio::test(start_paused = true)]
async fn subscribers_are_listed_and_ended_by_their_type() {
    let nodes = SeveralNodes::new(1);
    let mut asks = nodes.client(0);
    let mut holder = nodes.client(0);
    let names = |list: String| {
        let words = list.split([' ', '|']).filter_map(|word| word.strip_prefix("name="));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    asks.call("client setname asks").await;
    holder.call("client setname holder").await;
    assert_eq!(names(asks.call("client list type pubsub").await), [""; 0]);

    holder.call("subscribe a b").await;
    holder.call("psubscribe c*").await;
    let listed = asks.call("client list type pubsub").await;
    assert!(listed.contains(" flags=P ") && listed.contains(" sub=2 psub=1 "), "{listed}");
    assert_eq!(names(listed), ["holder"]);
    assert_eq!(names(asks.call("client list type NORMAL").await), ["asks"]);
    for kind in ["master", "replica", "slave"] {
        assert_eq!(asks.call(&format!("client list type {kind}")).await, "$0||");
    }
    let unknown = "-ERR Unknown client type 'nonsense'|";
    asks.expect(&[
        ("client list type nonsense", unknown),
        ("client kill type nonsense", unknown),
        ("client kill type master", ":0|"),
        ("client kill type normal", ":0|"),
        ("client kill user nobody", ":0|"),
        ("client kill type pubsub user default skipme what", "-ERR syntax error|"),
        ("client kill laddr 127.0.0.1:6379", "-ERR LADDR is not served: name connections by ADDR or ID|"),
    ])
    .await;
    assert!(!holder.session.client().kill.is_cancelled());

    holder.call("unsubscribe").await;
    holder.call("punsubscribe").await;
    assert_eq!(names(asks.call("client list type pubsub").await), [""; 0]);
    holder.call("subscribe a").await;
    asks.expect(&[("client kill type pubsub user default", ":1|")]).await;
    assert!(holder.session.client().kill.is_cancelled() && !asks.session.client().kill.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn two_that_subscribe_at_once_never_both_believe_to_be_alone() {
    let nodes = SeveralNodes::new(2);
    for round in 0..20 {
        let mut tasks = Vec::new();
        for node in [0, 1] {
            let mut client = nodes.client(node);
            let mut asks = nodes.client(node);
            tasks.push(tokio::spawn(async move {
                client.call(&format!("subscribe lock{round}")).await;
                let alone = asks.call(&format!("pubsub numsub lock{round}")).await.ends_with(":1|");
                (client, alone)
            }));
        }
        let mut holders = 0;
        for task in tasks {
            holders += u32::from(task.await.expect("no panic").1);
        }
        assert!(holders <= 1, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_transaction_comes_after_its_writes() {
    let nodes = SeveralNodes::new(2);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe done").await;
    let mut writer = nodes.client(1);
    writer
        .expect(&[
            ("multi", "+OK|"),
            ("set key value", "+QUEUED|"),
            ("publish done key", "+QUEUED|"),
            ("exec", "*2|+OK|:1|"),
        ])
        .await;
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$3|key|");
    assert_eq!(nodes.client(0).call("get key").await, "$5|value|");
}

#[tokio::test(start_paused = true)]
async fn all_messages_of_a_transaction_that_writes_nothing_arrive_once() {
    let nodes = SeveralNodes::new(2);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe a b").await;
    let mut publisher = nodes.client(1);
    for round in ["1", "2"] {
        publisher.call("multi").await;
        for channel in ["none", "a", "b", "a"] {
            publisher.expect(&[(&format!("publish {channel} {round}"), "+QUEUED|")]).await;
        }
        publisher.expect(&[("exec", "*4|:0|:1|:1|:1|")]).await;
        for channel in ["a", "b", "a"] {
            let expected = format!("*3|$7|message|$1|{channel}|$1|{round}|");
            assert_eq!(message(&mut subscriber).await, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn more_messages_that_nobody_gets_than_somebody_may_get_are_no_error() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    client.call("multi").await;
    for _ in 0..150 {
        client.call("publish none x").await;
    }
    assert!(client.call("exec").await.starts_with("*150|:0|"));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_read_is_disconnected_and_the_others_get_all() {
    let nodes = SeveralNodes::new(1);
    let mut slow = nodes.client(0);
    let mut quick = nodes.client(0);
    slow.call("subscribe news").await;
    quick.call("subscribe news").await;
    let mut publisher = nodes.client(0);
    for number in 0..1100 {
        publisher.call(&format!("publish news {number:04}")).await;
        assert_eq!(message(&mut quick).await, format!("*3|$7|message|$4|news|$4|{number:04}|"));
    }
    assert!(slow.session.client().kill.is_cancelled());
    assert!(!quick.session.client().kill.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_of_resp2_runs_no_other_commands() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    client.call("subscribe news").await;
    let text = client.call("get key").await;
    assert!(text.starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE"), "{text}");
    client
        .expect(&[
            ("ping", "*2|$4|pong|$0||"),
            ("ping x", "*2|$4|pong|$1|x|"),
            ("reset", "+RESET|"),
            ("get key", "$-1|"),
        ])
        .await;
    nodes.until_count("redis/channel/", 0).await;

    client.call("hello 3").await;
    assert_eq!(client.call("subscribe news").await, ">3|$9|subscribe|$4|news|:1|");
    assert_eq!(client.call("get key").await, "_|");
    client.call("publish news x").await;
    assert_eq!(message(&mut client).await, ">3|$7|message|$4|news|$1|x|");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_of_a_connection_are_bounded() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    let names: Vec<_> = (0..1024).map(|number| format!("c{number}")).collect();
    let acknowledged = client.call(&format!("subscribe {}", names.join(" "))).await;
    assert!(acknowledged.ends_with("|$5|c1023|:1024|"), "{acknowledged}");
    let text = client.call("subscribe more").await;
    assert!(text.starts_with("-ERR a connection has at most 1024 subscriptions"), "{text}");
    drop(client);
    nodes.until_count("redis/channel/", 0).await;
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
async fn names_are_bounded_and_one_that_the_store_refuses_holds_up_no_other() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    let long = "x".repeat(1025);
    for (line, error) in [
        (format!("blpop {long} 1"), "-ERR the key has 1025 bytes"),
        (format!("subscribe {long}"), "-ERR the name of a channel has at most 1024 bytes"),
        (format!("psubscribe a {long}"), "-ERR the name of a channel has at most 1024 bytes"),
        (format!("publish {long} x"), "-ERR the name of a channel has at most 1024 bytes"),
    ] {
        let reply = client.call(&line).await;
        assert!(reply.starts_with(error), "{reply}");
    }

    nodes.store.refuse_keys_with("poison");
    let acknowledged = client.call("subscribe poison news").await;
    assert!(acknowledged.ends_with("|$4|news|:2|"), "{acknowledged}");
    assert_eq!(nodes.client(0).call("pubsub numsub news").await, "*2|$4|news|:1|");
}

/// Clients wait, give up and go away at any moment, while items come and the leader goes: each item is given to one client, or is left.
#[tokio::test(start_paused = true)]
async fn no_item_is_lost_or_given_twice() {
    for seed in 0..40 {
        let mut random = seed * 7919 + 1;
        let mut below = |end: u64| {
            random = (random * 48271) % 0x7fff_ffff;
            random % end
        };
        let nodes = SeveralNodes::new(3);
        let mut pusher = nodes.client(0);
        let mut pushed = Vec::new();
        let mut waiting = Vec::new();

        for step in 0..60 {
            match below(10) {
                0..4 => {
                    let mut client = nodes.client(usize::try_from(below(3)).expect("a small number"));
                    let command = ["blpop a b 0", "brpop b a 2", "blpop a 0.5", "bzpopmin z 1"]
                        [usize::try_from(below(4)).expect("small")];
                    waiting.push(tokio::spawn(async move { client.call(command).await }));
                }
                4..7 => {
                    let line = [format!("rpush a i{step}"), format!("lpush b i{step}"), format!("zadd z 1 i{step}")];
                    let line = &line[usize::try_from(below(3)).expect("small")];
                    if pusher.call(line).await.starts_with(':') {
                        pushed.push(format!("i{step}"));
                    }

                    // Some go away at the very moment at which something comes for them.
                    for _ in 0..below(40) {
                        tokio::task::yield_now().await;
                    }
                    waiting.iter().filter(|_| below(3) == 0).for_each(JoinHandle::abort);
                }
                7 if !waiting.is_empty() => {
                    let gone = usize::try_from(below(waiting.len() as u64)).expect("small");
                    waiting[gone].abort();
                }
                8 if below(3) == 0 => {
                    nodes.store.fail(Some(RedisStoreError::Unavailable("no leader".to_owned())));
                    sleep(Duration::from_millis(below(400))).await;
                    nodes.store.fail(None);
                }
                _ => sleep(Duration::from_millis(below(50))).await,
            }
            for _ in 0..below(30) {
                tokio::task::yield_now().await;
            }
        }

        // Whoever waits for ever goes away in the end.
        sleep(Duration::from_secs(8)).await;
        waiting.iter().for_each(JoinHandle::abort);
        let mut found = Vec::new();
        for client in waiting {
            found.extend(client.await.ok());
        }
        sleep(Duration::from_secs(8)).await;
        for line in ["lrange a 0 -1", "lrange b 0 -1", "zrange z 0 -1"] {
            found.push(pusher.call(line).await);
        }

        let mut items: Vec<_> =
            found.iter().flat_map(|reply| reply.split('|')).filter(|part| part.starts_with('i')).collect();
        items.sort_unstable();
        pushed.sort_unstable();
        assert_eq!(items, pushed, "seed {seed}");
        assert_eq!(nodes.count("redis/wait/").await, 0, "seed {seed}");
    }
}

/// The entries of subscribers are renewed all the time, so a node has a bounded number of them. Who comes too late is told so, and stays
/// connected.
#[tokio::test(start_paused = true)]
async fn a_node_keeps_a_bounded_number_of_subscriptions() {
    let nodes = SeveralNodes::new(1);
    let mut clients: Vec<_> = (0..17).map(|_| nodes.client(0)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let channels: Vec<_> = (0..1000).map(|channel| format!("{number}-{channel}")).collect();
        let reply = client.call(&format!("subscribe {}", channels.join(" "))).await;
        if number < 16 {
            assert!(reply.ends_with(":1000|"), "{number}");
        } else {
            assert!(reply.starts_with("-ERR a node keeps 16384 places"), "{reply}");
        }
    }
    let late = &mut clients[16];
    assert_eq!(late.call("subscribe 0-0 own").await, "*3|$9|subscribe|$3|0-0|:1|*3|$9|subscribe|$3|own|:2|");
    assert!(late.call("unsubscribe").await.ends_with(":0|"));

    // There is room again.
    clients[0].call("unsubscribe").await;
    let channels: Vec<_> = (0..1000).map(|channel| format!("late-{channel}")).collect();
    assert!(clients[16].call(&format!("subscribe {}", channels.join(" "))).await.ends_with(":1000|"));
}

/// Each message is compared with every pattern.
#[tokio::test(start_paused = true)]
async fn a_node_keeps_a_bounded_number_of_patterns() {
    let nodes = SeveralNodes::new(1);
    let [mut first, mut second] = [nodes.client(0), nodes.client(0)];
    let patterns: Vec<_> = (0..1024).map(|pattern| format!("{pattern}-*")).collect();
    assert!(first.call(&format!("psubscribe {}", patterns.join(" "))).await.ends_with(":1024|"));
    let refused = second.call("psubscribe other-*").await;
    assert!(refused.starts_with("-ERR a node keeps 1024 patterns"), "{refused}");
    assert!(second.call("psubscribe 7-*").await.ends_with(":1|"), "others have it already");
    assert_eq!(nodes.client(0).call("publish 7-a hello").await, ":2|");

    // Nor are they long.
    first.call("reset").await;
    second.call("reset").await;
    let long = |number: usize| format!("*{number:0>1000}");
    let patterns: Vec<_> = (0..32).map(long).collect();
    assert!(first.call(&format!("psubscribe {}", patterns.join(" "))).await.ends_with(":32|"));
    let refused = second.call(&format!("psubscribe {}", long(32))).await;
    assert!(refused.contains("and 32768 bytes of them"), "{refused}");
}

/// Nor can clients that wait take all places of a node.
#[tokio::test(start_paused = true)]
async fn a_node_keeps_a_bounded_number_of_waiting_clients() {
    let nodes = SeveralNodes::new(1);
    let mut subscribers: Vec<_> = (0..17).map(|_| nodes.client(0)).collect();
    for (number, client) in subscribers.iter_mut().enumerate() {
        let count = if number < 16 { 1000 } else { 384 };
        let channels: Vec<_> = (0..count).map(|channel| format!("{number}-{channel}")).collect();
        assert!(client.call(&format!("subscribe {}", channels.join(" "))).await.ends_with(&format!(":{count}|")));
    }
    let refused = nodes.client(0).call("blpop queue 1").await;
    assert!(refused.starts_with("-ERR a node keeps 16384 places"), "{refused}");
    subscribers[0].call("unsubscribe 0-0").await;
    assert_eq!(nodes.client(0).call("blpop queue 1").await, "*-1|");
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

/// Receivers are counted before a unit runs, and a subscription may be acknowledged between that and the commit.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_after_the_count_of_a_transaction_gets_its_message() {
    let nodes = SeveralNodes::new(2);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe other").await;
    let mut writer = nodes.client(1);
    writer.expect(&[("multi", "+OK|"), ("set key value", "+QUEUED|"), ("publish done key", "+QUEUED|")]).await;
    nodes.store.slow_down(Duration::from_secs(1));
    let executing = tokio::spawn(async move { writer.call("exec").await });
    sleep(Duration::from_millis(10)).await;
    nodes.store.slow_down(Duration::ZERO);

    assert_eq!(subscriber.call("subscribe done").await, "*3|$9|subscribe|$4|done|:2|");
    assert_eq!(nodes.client(0).call("exists key").await, ":0|", "the commit is under way");
    assert_eq!(executing.await.expect("no panic"), "*2|+OK|:0|");
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$3|key|");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_before_a_transaction_reads_gets_its_message() {
    let nodes = SeveralNodes::new(2);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe other").await;
    let mut reader = nodes.client(1);
    reader.expect(&[("multi", "+OK|"), ("get key", "+QUEUED|"), ("publish done key", "+QUEUED|")]).await;
    nodes.store.slow_down_ranges(Duration::from_millis(500));
    let executing = tokio::spawn(async move { reader.call("exec").await });
    // The subscribers of the channel are counted, and those of patterns not yet.
    sleep(Duration::from_millis(750)).await;

    assert_eq!(subscriber.call("subscribe done").await, "*3|$9|subscribe|$4|done|:2|");
    assert!(!executing.is_finished());
    assert_eq!(executing.await.expect("no panic"), "*2|$-1|:1|");
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$3|key|");
}

/// A transaction that publishes and writes nothing else depends on what it has read all the same.
#[tokio::test(start_paused = true)]
async fn nothing_is_published_if_what_was_read_has_changed() {
    let nodes = SeveralNodes::new(1);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe done").await;
    let change = || {
        let key = b"redis/0/key".to_vec();
        let write = RedisWrite::Put { key, value: b"sx".to_vec(), expiry: Expiry::None, claim: LockClaim::None };
        RedisTxn { writes: vec![write], ..RedisTxn::default() }
    };

    let mut publisher = nodes.client(0);
    publisher.expect(&[("watch key", "+OK|"), ("multi", "+OK|"), ("publish done watched", "+QUEUED|")]).await;
    nodes.store.intrude(change(), 1);
    assert_eq!(publisher.call("exec").await, "*-1|");

    // Without a watched key it runs again, and its answer is that of the run whose message was sent.
    publisher.call("del key").await;
    publisher.expect(&[("multi", "+OK|"), ("get key", "+QUEUED|"), ("publish done read", "+QUEUED|")]).await;
    nodes.store.intrude(change(), 1);
    assert_eq!(publisher.call("exec").await, "*2|$1|x|:1|");
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$4|read|");
}

/// In RESP2 nothing else tells a message from the reply to the next command.
#[tokio::test(start_paused = true)]
async fn no_message_comes_after_the_acknowledgement_that_ends_a_subscription() {
    let nodes = SeveralNodes::new(1);
    let mut client = nodes.client(0);
    client.call("subscribe news other").await;
    let deliver = async |text: &'static [u8]| nodes.nodes[0].signals.deliver(b"news", text).await;
    deliver(b"one").await;
    let one = "*3|$7|message|$4|news|$3|one|";
    assert_eq!(client.call("unsubscribe other").await, format!("{one}*3|$11|unsubscribe|$5|other|:1|"));

    deliver(b"two").await;
    deliver(b"last").await;
    let two = "*3|$7|message|$4|news|$3|two|*3|$7|message|$4|news|$4|last|";
    assert_eq!(client.call("unsubscribe").await, format!("{two}*3|$11|unsubscribe|$4|news|:0|"));
    deliver(b"nobody").await;
    assert!(timeout(PATIENCE, client.session.next_message()).await.is_err(), "a message without a subscription");
    assert_eq!(client.call("get key").await, "$-1|");
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
