//! Clients that wait for values of different types in the same key.

use std::time::Duration;

use tokio::time::sleep;

use super::signals::{SeveralNodes, reply};

/// The first of all clients is not the one for whom a value of its own type never comes.
#[tokio::test(start_paused = true)]
async fn a_value_goes_to_the_first_client_that_takes_its_type() {
    for other in [0, 1] {
        let nodes = SeveralNodes::new(2);
        let sorted = nodes.waits(0, "bzpopmin q 0").await;
        let list = nodes.waits(other, "blpop q 0").await;
        let behind = nodes.waits(0, "brpop q 0").await;

        let mut pusher = nodes.client(1);
        pusher.call("rpush q a b").await;
        assert_eq!(reply(list).await, "*2|$1|q|$1|a|");
        assert_eq!(reply(behind).await, "*2|$1|q|$1|b|");
        assert!(!sorted.is_finished());

        pusher.call("zadd q 1 member").await;
        assert_eq!(reply(sorted).await, "*3|$1|q|$6|member|$1|1|");
        nodes.until_count("redis/wait/", 0).await;
    }
}

/// It would wait for nothing: those before it can take nothing of what is there.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_is_served_at_once_if_only_those_of_other_types_wait() {
    let nodes = SeveralNodes::new(1);
    let sorted = nodes.waits(0, "bzpopmax q 0").await;
    let mut client = nodes.client(0);
    client.expect(&[("rpush q a b", ":2|"), ("blpop q 0", "*2|$1|q|$1|a|"), ("blmove q r left left 0", "$1|b|")]).await;
    assert!(!sorted.is_finished());
    sorted.abort();
}

/// Its node does not say which type it takes.
#[tokio::test(start_paused = true)]
async fn a_client_of_an_earlier_version_is_before_those_of_every_type() {
    let nodes = SeveralNodes::new(1);
    nodes.store.put("redis/wait/9/redis/0/q/earlier", b"");
    let lists = nodes.waits(0, "blpop q 0").await;
    let sorted = nodes.waits(0, "bzpopmin z q 0").await;
    nodes.client(0).call("rpush q a").await;
    sleep(Duration::from_secs(5)).await;
    assert!(!lists.is_finished());

    nodes.store.delete("redis/wait/9/redis/0/q/earlier");
    assert_eq!(reply(lists).await, "*2|$1|q|$1|a|");
    nodes.client(0).call("zadd q 1 m").await;
    assert_eq!(reply(sorted).await, "*3|$1|q|$1|m|$1|1|");
}
