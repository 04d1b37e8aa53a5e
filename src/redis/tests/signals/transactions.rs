//! Messages that transactions publish.

use std::time::Duration;

use tokio::time::sleep;

use super::{SeveralNodes, message};
use crate::{Expiry, LockClaim, RedisTxn, RedisWrite};

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
