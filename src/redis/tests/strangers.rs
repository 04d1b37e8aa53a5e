//! Clients that would harm others: by what they publish, subscribe to, wait for, or end.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use super::{
    Api, Scripted,
    memory::Memory,
    options,
    signals::{SeveralNodes, message},
};
use crate::{RedisIdentity, node::RedisNode, session::RedisSession};

/// A client of a node, from this address.
fn client_at(api: &Api, address: [u8; 4], identity: Option<&str>) -> Api {
    let proven = |name: &str| RedisIdentity { name: name.to_owned(), withdrawn: Box::pin(std::future::pending()) };
    let session = RedisSession::new(Arc::clone(&api.node), SocketAddr::from((address, 4000)), identity.map(proven));
    Api { store: api.store.clone(), node: Arc::clone(&api.node), session }
}

fn is_ended(api: &Api) -> bool {
    api.session.client().kill.is_cancelled()
}

/// Clients of Sentinel would follow them to another server.
#[tokio::test(start_paused = true)]
async fn no_client_publishes_as_a_sentinel_does() {
    let nodes = SeveralNodes::new(2);
    let mut listens = nodes.client(0);
    listens.call("subscribe +switch-master news").await;
    listens.call("psubscribe *s*").await;
    let mut stranger = nodes.client(1);
    for channel in ["+switch-master", "+sentinel", "-sdown", "__sentinel__:hello"] {
        let refused =
            stranger.request(["publish", channel, "mymaster"].map(|word| word.as_bytes().to_vec()).to_vec()).await;
        assert!(
            refused.starts_with(&format!("-NOPERM clients do not publish on the channel '{channel}'")),
            "{refused}"
        );
    }

    // Nor by a script or a transaction, whose other commands take effect.
    let script = |source: &str| vec![b"EVAL".to_vec(), source.as_bytes().to_vec(), b"0".to_vec()];
    let refused = stranger.request(script("publish +switch-master mymaster")).await;
    assert!(refused.starts_with("-NOPERM "), "{refused}");
    for line in ["multi", "publish +switch-master mymaster", "publish news hello"] {
        stranger.call(line).await;
    }
    let replies = stranger.call("exec").await;
    assert!(replies.starts_with("*2|-NOPERM ") && replies.ends_with("|:2|"), "{replies}");
    assert_eq!(message(&mut listens).await, "*3|$7|message|$4|news|$5|hello|");
}

/// A node of an earlier version does not refuse it.
#[tokio::test(start_paused = true)]
async fn what_the_log_has_of_a_channel_of_sentinel_is_not_delivered() {
    let nodes = SeveralNodes::new(1);
    let mut listens = nodes.client(0);
    listens.call("subscribe +switch-master +slave news").await;
    nodes.store.put("redis/message/+switch-master", b"mymaster 1.1.1.1 1 2.2.2.2 2");
    nodes.store.put("redis/message/+slave", b"slave 2.2.2.2:2 2.2.2.2 2 @ mymaster 1.1.1.1 1");
    nodes.store.put("redis/message/news", b"hello");
    assert_eq!(message(&mut listens).await, "*3|$7|message|$4|news|$5|hello|");
}

#[tokio::test]
async fn clients_see_and_end_connections_of_their_own_identity_alone() {
    let store = Memory::default();
    let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options()));
    let mut nobody = Api::at(store, node);
    let mut ann = client_at(&nobody, [10, 0, 0, 1], Some("ann"));
    let mut other = client_at(&nobody, [10, 0, 0, 2], Some("ann"));
    let bob = client_at(&nobody, [10, 0, 0, 1], Some("bob"));
    let users = |list: String| {
        let words = list.split([' ', '|']).filter_map(|word| word.strip_prefix("user="));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(users(nobody.call("client list").await), ["default"]);
    assert_eq!(users(ann.call("client list").await), ["ann", "ann"]);

    // Nor does the id or the address of another help.
    for client in [&mut nobody, &mut other] {
        let bob = bob.session.client().id;
        client.expect(&[(&format!("client kill id {bob}"), ":0|"), ("client kill user bob", ":0|")]).await;
    }
    assert_eq!(nobody.call("client kill 10.0.0.1:4000").await, "-ERR No such client|");
    assert_eq!(nobody.call("client kill skipme yes").await, ":0|");
    assert_eq!(other.call("client kill skipme yes").await, ":1|");
    assert!(is_ended(&ann) && !is_ended(&bob) && !is_ended(&nobody) && !is_ended(&other));
}

/// Whoever has proven nothing may be anybody. A portalocker lock is a subscription, and a holder that does not answer is ended by another
/// client, which may be at another address.
#[tokio::test(start_paused = true)]
async fn strangers_end_connections_of_their_own_address_and_subscribers() {
    let nodes = SeveralNodes::new(1);
    let here = nodes.client(0);
    let mut holder = client_at(&here, [10, 0, 0, 1], None);
    let worker = client_at(&here, [10, 0, 0, 1], None);
    let mut neighbour = client_at(&here, [10, 0, 0, 1], None);
    let mut stranger = client_at(&here, [10, 0, 0, 2], None);
    holder.call("client setname holder").await;
    holder.call("subscribe lock").await;

    let listed = stranger.call("client list type normal").await;
    assert_eq!(listed.matches(" addr=10.0.0.1:4000 ").count(), 2, "{listed}");
    let worker_id = worker.session.client().id;
    stranger.expect(&[(&format!("client kill id {worker_id}"), ":0|"), ("client kill type normal", ":0|")]).await;
    assert_eq!(stranger.call(&format!("client kill id {}", holder.session.client().id)).await, ":1|");
    assert!(is_ended(&holder) && !is_ended(&worker) && !is_ended(&here));
    assert_eq!(neighbour.call(&format!("client kill id {worker_id}")).await, ":1|");
    assert!(is_ended(&worker) && !is_ended(&neighbour));
}

/// Places of subscriptions and of clients that wait: each address has a part of what others leave, and so has each identity.
#[tokio::test(start_paused = true)]
async fn no_client_takes_all_places_of_a_node() {
    let nodes = SeveralNodes::new(1);
    let here = nodes.client(0);
    let mut greedy: Vec<_> = (0..17).map(|_| client_at(&here, [10, 0, 0, 1], None)).collect();
    for (number, client) in greedy.iter_mut().enumerate() {
        let channels: Vec<_> = (0..1000).map(|channel| format!("{number}-{channel}")).collect();
        let reply = client.call(&format!("subscribe {}", channels.join(" "))).await;
        assert_eq!(number < 16, reply.ends_with(":1000|"), "{number}: {reply}");
    }
    assert!(greedy[16].call("subscribe 0-0").await.ends_with(":1|"), "another has it already");
    let keys: Vec<_> = (0..64).map(|key| format!("k{key}")).collect();
    let waits = format!("blpop {} 0.1", keys.join(" "));
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let mut client = client_at(&here, [10, 0, 0, 1], None);
        let waits = waits.clone();
        waiting.push(tokio::spawn(async move { client.call(&waits).await }));
    }
    let mut refused = 0;
    for waiting in waiting {
        let reply = waiting.await.expect("no panic");
        let is_refused = reply.starts_with("-ERR a node keeps 16384 places");
        assert!(is_refused || reply == "*-1|", "{reply}");
        refused += usize::from(is_refused);
    }
    assert!(refused > 0, "there is room for 6 of 10");

    let mut others = [([10, 0, 0, 2], None), ([10, 0, 0, 1], Some("ann"))].map(|(at, name)| client_at(&here, at, name));
    for (number, other) in others.iter_mut().enumerate() {
        assert_eq!(other.call(&waits).await, "*-1|");
        let channels: Vec<_> = (0..500).map(|channel| format!("other-{number}-{channel}")).collect();
        assert!(other.call(&format!("subscribe {}", channels.join(" "))).await.ends_with(":500|"));
    }
}

#[tokio::test(start_paused = true)]
async fn no_client_takes_all_patterns_of_a_node() {
    let nodes = SeveralNodes::new(1);
    let here = nodes.client(0);
    let [mut greedy, mut again, mut other] = [1, 1, 2].map(|last| client_at(&here, [10, 0, 0, last], None));
    let patterns: Vec<_> = (0..1024).map(|pattern| format!("{pattern}-*")).collect();
    assert!(greedy.call(&format!("psubscribe {}", patterns.join(" "))).await.ends_with(":1024|"));
    let refused = again.call("psubscribe other-*").await;
    assert!(refused.starts_with("-ERR a node keeps 1024 patterns"), "{refused}");
    assert!(other.call("psubscribe other-* more-*").await.ends_with(":2|"));
}

/// There may be thousands of them, and none waits for anything.
#[tokio::test]
async fn others_have_turns_between_the_commands_of_a_transaction_that_a_node_answers_itself() {
    let mut api = Api::new();
    api.expect(&[("multi", "+OK|"), ("client getname", "+QUEUED|"), ("client getname", "+QUEUED|")]).await;
    let mut executed = pin!(api.call("exec"));
    let mut context = Context::from_waker(Waker::noop());
    for turn in 0..2 {
        assert!(executed.as_mut().poll(&mut context).is_pending(), "turn {turn}");
    }
    assert_eq!(executed.await, "*2|$-1|$-1|");
}

#[tokio::test]
async fn descriptions_of_commands_are_bounded() {
    let mut api = Api::new();
    let names = |count| " get".repeat(count);
    assert!(api.call(&format!("command info{}", names(256))).await.starts_with("*256|*10|$3|get|"));
    let refused = api.call(&format!("command info{}", names(257))).await;
    assert_eq!(refused, "-ERR COMMAND INFO names 257 commands, and at most 256 are described together: name fewer|");
}
