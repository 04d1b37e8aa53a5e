//! How many clients wait, how many subscriptions and patterns there are, and how long their names may be.

use std::time::Duration;

use tokio::time::Instant;

use super::SeveralNodes;
use crate::tests::options;

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
