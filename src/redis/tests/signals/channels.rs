//! Channels and patterns: who gets a message, and what a subscriber may do.

use tokio::time::timeout;

use super::{PATIENCE, SeveralNodes, message};

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
