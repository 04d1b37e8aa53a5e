//! Subscribers whose node cannot vouch for them any more.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{
    Api,
    signals::{SeveralNodes, message},
};
use crate::RedisStoreError;

/// More than anything here takes, in the time of a test, which is not real.
const PATIENCE: Duration = Duration::from_secs(30);

fn no_leader() -> RedisStoreError {
    RedisStoreError::Unavailable("no leader".to_owned())
}

/// Waits until a client's connection is ended by its node.
async fn disconnected(client: &Api) {
    let kill = client.session.client().kill.clone();
    assert!(timeout(PATIENCE, kill.cancelled()).await.is_ok(), "it stays connected");
}

fn is_disconnected(client: &Api) -> bool {
    client.session.client().kill.is_cancelled()
}

/// Some libraries take a subscription for a lock: the next holder may have it when the entry has ended.
#[tokio::test(start_paused = true)]
async fn a_subscriber_is_disconnected_before_others_can_count_it_no_more() {
    let nodes = SeveralNodes::new(2);
    let mut by_channel = nodes.client(0);
    let mut by_pattern = nodes.client(0);
    let mut waits_for_nothing = nodes.client(0);
    by_channel.call("subscribe lock").await;
    by_pattern.call("psubscribe l*").await;
    waits_for_nothing.call("get key").await;
    sleep(Duration::from_secs(60)).await;
    assert!(!is_disconnected(&by_channel) && !is_disconnected(&by_pattern), "they were renewed all the time");

    nodes.store.fail(Some(no_leader()));
    let began = Instant::now();
    disconnected(&by_channel).await;
    disconnected(&by_pattern).await;
    let took = began.elapsed();
    nodes.store.fail(None);
    assert_eq!(nodes.count("redis/channel/").await, 1);
    assert_eq!(nodes.count("redis/pattern/").await, 1);
    assert!(took > Duration::from_secs(3), "{took:?}: an election takes less");
    assert!(!is_disconnected(&waits_for_nothing));

    // Who comes now is as safe as before.
    drop((by_channel, by_pattern));
    let mut later = nodes.client(0);
    assert_eq!(later.call("subscribe lock").await, "*3|$9|subscribe|$4|lock|:1|");
    sleep(Duration::from_secs(60)).await;
    assert!(!is_disconnected(&later));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_some_seconds_disconnects_nobody() {
    let nodes = SeveralNodes::new(1);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe news").await;
    for _ in 0..20 {
        nodes.store.fail(Some(no_leader()));
        sleep(Duration::from_millis(2_900)).await;
        nodes.store.fail(None);
        sleep(Duration::from_millis(800)).await;
    }
    assert!(!is_disconnected(&subscriber));
}

#[tokio::test(start_paused = true)]
async fn subscribers_are_disconnected_when_their_node_may_have_missed_messages() {
    let nodes = SeveralNodes::new(2);
    let mut missed = nodes.client(0);
    missed.call("subscribe news").await;
    nodes.store.end_feeds();
    disconnected(&missed).await;
    drop(missed);

    let mut again = nodes.client(0);
    assert_eq!(again.call("subscribe news").await, "*3|$9|subscribe|$4|news|:1|");
    assert_eq!(nodes.client(1).call("publish news x").await, ":1|");
}

/// The feed ends between the moment at which a client is noted and that at which all nodes know of it.
#[tokio::test(start_paused = true)]
async fn a_subscription_is_not_acknowledged_across_a_gap_of_the_feed() {
    let nodes = SeveralNodes::new(1);
    nodes.client(0).call("subscribe other").await;
    let mut client = nodes.client(0);
    nodes.store.fail(Some(no_leader()));
    let subscribing = tokio::spawn(async move {
        let reply = client.call("subscribe news").await;
        (reply, client)
    });
    sleep(Duration::from_millis(200)).await;
    nodes.store.end_feeds();
    sleep(Duration::from_millis(200)).await;
    nodes.store.fail(None);

    let (reply, client) = timeout(PATIENCE, subscribing).await.expect("an answer in time").expect("no panic");
    assert!(reply == "closed" && is_disconnected(&client), "{reply}");
}

/// Those who come to a store that is full do not take away what others have.
#[tokio::test(start_paused = true)]
async fn in_a_full_store_subscriptions_stay_and_new_ones_are_refused_at_once() {
    let nodes = SeveralNodes::new(1);
    let mut stays: Vec<_> = (0..9).map(|_| nodes.client(0)).collect();
    for client in &mut stays {
        client.call("subscribe news").await;
    }
    nodes.store.fill(true);

    let began = Instant::now();
    for round in 0..200 {
        let mut new = nodes.client(0);
        assert_eq!(new.call(&format!("subscribe new-{round} other-{round}")).await, "closed");
        assert!(nodes.client(0).call("blpop queue 1").await.starts_with("-OOM"));
        sleep(Duration::from_millis(100)).await;
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}: each was told at once");
    assert!(took > Duration::from_secs(15), "{took:?}: entries have ended meanwhile that were not renewed");
    assert!(!stays.iter().any(is_disconnected));
    assert_eq!(nodes.client(0).call("pubsub numsub news").await, "*2|$4|news|:9|");

    nodes.store.fill(false);
    assert_eq!(nodes.client(0).call("subscribe new").await, "*3|$9|subscribe|$3|new|:1|");
}

/// Its message is part of the transaction: no failure comes between the two.
#[tokio::test(start_paused = true)]
async fn what_a_transaction_publishes_is_committed_with_its_writes() {
    let nodes = SeveralNodes::new(2);
    let mut subscriber = nodes.client(1);
    subscriber.call("subscribe done").await;
    let mut writer = nodes.client(0);
    let commits = [("multi", "+OK|"), ("set key value", "+QUEUED|"), ("publish done key", "+QUEUED|")];
    writer.expect(&commits).await;
    nodes.store.fail_after(1, no_leader());
    assert_eq!(writer.call("exec").await, "*2|+OK|:1|");
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$3|key|");

    // Nor is it said to be sent when it was not.
    writer.expect(&[("multi", "+OK|"), ("publish done again", "+QUEUED|")]).await;
    assert!(writer.call("exec").await.starts_with("-LOADING"));
}

#[tokio::test(start_paused = true)]
async fn in_a_full_store_a_lock_is_released_though_its_message_has_no_room() {
    let nodes = SeveralNodes::new(1);
    let mut subscriber = nodes.client(0);
    subscriber.call("subscribe done").await;
    let mut holder = nodes.client(0);
    holder.call("set lock value").await;
    nodes.store.fill(true);

    // The writes of these leave no room.
    holder.expect(&[("multi", "+OK|"), ("append lock x", "+QUEUED|"), ("publish done lost", "+QUEUED|")]).await;
    assert_eq!(holder.call("exec").await, "*2|:6|:1|");
    assert_eq!(holder.call("get lock").await, "$6|valuex|");
    // Those of these do.
    holder.expect(&[("multi", "+OK|"), ("del lock", "+QUEUED|"), ("publish done lock", "+QUEUED|")]).await;
    assert_eq!(holder.call("exec").await, "*2|:1|:1|");
    assert_eq!(message(&mut subscriber).await, "*3|$7|message|$4|done|$4|lock|");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_nobody_gets_holds_up_no_writes() {
    let nodes = SeveralNodes::new(1);
    nodes.store.refuse_keys_with("redis/message/");
    let mut holder = nodes.client(0);
    holder.expect(&[("multi", "+OK|"), ("set lock value", "+QUEUED|"), ("publish done lock", "+QUEUED|")]).await;
    assert_eq!(holder.call("exec").await, "*2|+OK|:0|");
    assert_eq!(holder.call("get lock").await, "$5|value|");
}
