//! What connections keep in memory counts against the budget of the node.

use super::{
    Api, options,
    port::{Client, Port},
};
use crate::RedisOptions;

/// The budget of these tests. One address may have half of it.
const BUDGET: usize = 300_000;
const REFUSED: &str = "-ERR requests that are not answered take all memory for them";

fn request(words: &[&str]) -> Vec<u8> {
    let arguments = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), arguments.collect::<String>()).into_bytes()
}

async fn small_port() -> Port {
    Port::open(RedisOptions { requests_bytes_max: BUDGET, ..options() }).await
}

async fn expect_refusal(client: &mut Client) {
    let rest = client.rest().await;
    assert!(rest.starts_with(REFUSED), "{rest}");
}

#[tokio::test(start_paused = true)]
async fn what_a_client_has_kept_is_counted_until_it_says_otherwise() {
    let mut api = Api::new();
    for (keep, forget) in [("watch a b", "unwatch"), ("subscribe a b", "reset"), ("psubscribe a*", "reset")] {
        assert_eq!(api.session.held_bytes(), 0, "{keep}");
        api.call(keep).await;
        let held = api.session.held_bytes();
        assert!(held > 50, "{keep}: {held} bytes");
        // What it has already is not counted again.
        api.call(keep).await;
        assert_eq!(api.session.held_bytes(), held, "{keep}");
        api.call(forget).await;
    }

    api.call("watch a").await;
    let watched = api.session.held_bytes();
    api.expect(&[("multi", "+OK|"), ("set a 1", "+QUEUED|")]).await;
    assert!(api.session.held_bytes() > watched);
    api.expect(&[("exec", "*1|+OK|"), ("watch a", "+OK|"), ("multi", "+OK|"), ("discard", "+OK|")]).await;
    assert_eq!(api.session.held_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn watched_keys_are_bounded_by_their_bytes() {
    let mut api = Api::new();
    let long = |letter: &str| letter.repeat(600_000);
    assert_eq!(api.call(&format!("watch {}", long("a"))).await, "+OK|");
    let refused = api.call(&format!("watch {}", long("b"))).await;
    assert!(refused.starts_with("-ERR the watched keys of a connection take at most 1048576 bytes"), "{refused}");
    api.expect(&[("watch c", "+OK|"), ("unwatch", "+OK|")]).await;
    assert_eq!(api.call(&format!("watch {}", long("b"))).await, "+OK|");
}

#[tokio::test]
async fn keys_that_a_client_watches_take_the_room_of_its_requests() {
    let port = small_port().await;
    let mut client = port.connect().await;
    let long = "k".repeat(140_000);
    for _ in 0..3 {
        client.send(&request(&["UNWATCH"])).await;
        client.expect("+OK\r\n").await;
        client.send(&request(&["WATCH", &long])).await;
        client.expect("+OK\r\n").await;
    }
    client.send(&request(&["WATCH", &long[..20_000]])).await;
    expect_refusal(&mut client).await;
}

#[tokio::test]
async fn subscriptions_take_the_room_of_requests() {
    let port = small_port().await;
    let mut client = port.connect().await;
    // 60 names of 1,000 bytes have room as a request, and not as subscriptions.
    let names: Vec<_> = (0..60).map(|number| format!("{number:0>1000}")).collect();
    let words: Vec<_> = ["SUBSCRIBE"].into_iter().chain(names.iter().map(String::as_str)).collect();
    client.send(&request(&words)).await;
    for (place, name) in names.iter().enumerate() {
        client.expect(&format!("*3\r\n$9\r\nsubscribe\r\n$1000\r\n{name}\r\n:{}\r\n", place + 1)).await;
    }
    expect_refusal(&mut client).await;
}

/// It keeps the arguments twice for as long as it waits.
#[tokio::test]
async fn a_command_that_waits_has_its_arguments_counted() {
    let port = small_port().await;
    let mut client = port.connect().await;
    let target = "t".repeat(100_000);
    client.send(&request(&["LMOVE", "queue", &target, "LEFT", "LEFT"])).await;
    client.expect("$-1\r\n").await;
    client.send(&request(&["BLMOVE", "queue", &target, "LEFT", "LEFT", "0"])).await;
    expect_refusal(&mut client).await;
}
