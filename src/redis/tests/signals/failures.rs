//! Blocking pops of clients that go away, at nodes that die, and while there is no leader.

use std::time::Duration;

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{SeveralNodes, reply};
use crate::RedisStoreError;

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
