//! Connections: bytes in, bytes out, bounds.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{Api, Scripted, memory::Memory, options};
use crate::{Redis, RedisIdentity, RedisOptions, RedisStore as _, node::RedisNode, session::RedisSession};

/// Time within which whatever a test waits for has happened.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port with a store in memory. It stops when this is dropped.
pub(super) struct Port {
    address: std::net::SocketAddr,
    pub(super) store: Memory,
    stopping: CancellationToken,
}

impl Port {
    pub(super) async fn open(options: RedisOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Memory::default();
        let redis = Redis::new(store.clone(), Arc::new(Scripted), options);
        let stopping = CancellationToken::new();
        let stopped = stopping.clone();
        tokio::spawn(async move { redis.serve(listener, stopped).await });
        Self { address, store, stopping }
    }

    pub(super) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

pub(super) struct Client(TcpStream);

impl Client {
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Reads these bytes.
    pub(super) async fn expect(&mut self, expected: &str) {
        let mut read = vec![0; expected.len()];
        timeout(PATIENCE, self.0.read_exact(&mut read)).await.expect("in time").expect("not closed");
        assert_eq!(String::from_utf8_lossy(&read), expected);
    }

    /// Reads all until the connection is closed.
    pub(super) async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.expect("in time");
        String::from_utf8_lossy(&rest).into_owned()
    }
}

#[tokio::test]
async fn pipelines_are_answered_in_order_and_half_requests_wait() {
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\nGET k\r\n*2\r\n$3\r\nGE").await;
    client.expect("+OK\r\n$1\r\nv\r\n").await;
    client.send(b"T\r\n$4\r\nnone\r\nPING\r\nQUIT\r\nPING\r\n").await;
    assert_eq!(client.rest().await, "$-1\r\n+PONG\r\n+OK\r\n");
}

#[tokio::test]
async fn a_broken_request_is_told_after_the_replies_before_it() {
    let port = Port::open(options()).await;
    for (bytes, error) in [
        (&b"PING\r\n*1\r\n$9223372036854775808\r\n"[..], "invalid bulk length"),
        (b"PING\r\n*1000000\r\n", "invalid multibulk length"),
        (b"PING\r\n*1\r\n+OK\r\n", "expected '$', got '+'"),
    ] {
        let mut client = port.connect().await;
        client.send(bytes).await;
        assert_eq!(client.rest().await, format!("+PONG\r\n-ERR Protocol error: {error}\r\n"));
    }
}

#[tokio::test]
async fn a_lost_answer_closes_after_the_replies_before_it() {
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    port.store.lose_the_next_answer();
    client.send(b"PING\r\nEVAL 'set k v' 0\r\nPING\r\n").await;
    assert_eq!(client.rest().await, "+PONG\r\n");
}

#[tokio::test]
async fn a_client_that_sends_and_does_not_read_is_bounded_and_harms_nobody() {
    let port = Port::open(options()).await;
    port.store.put("redis/0/large", &[&b"s"[..], &[b'x'; 100_000]].concat());
    let mut greedy = port.connect().await;
    let flood = b"GET large\r\n".repeat(4_000_000);
    // It sends as long as the port reads. That ends long before all 400 GB of replies were made.
    let sent = timeout(Duration::from_secs(2), greedy.0.write_all(&flood)).await;
    assert!(sent.is_err(), "all of it was read");

    let mut other = port.connect().await;
    other.send(b"SET lock a NX PX 1000\r\n").await;
    other.expect("+OK\r\n").await;
}

#[tokio::test]
async fn a_pipeline_larger_than_the_sockets_hold_is_answered() {
    const REQUESTS: usize = 50_000;
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    // The client sends all before it reads, as many libraries do.
    timeout(PATIENCE, client.send(&b"SET k v\r\n".repeat(REQUESTS))).await.expect("read in time");
    client.expect(&"+OK\r\n".repeat(REQUESTS)).await;
}

#[tokio::test]
async fn strangers_prove_who_they_are() {
    let port = Port::open(options()).await;
    port.store.add_user("ann", "hush");
    let mut client = port.connect().await;
    client.send(b"GET k\r\nAUTH ann wrong\r\nAUTH ann hush\r\nGET k\r\n").await;
    client.expect("-NOAUTH Authentication required.\r\n").await;
    client.expect("-WRONGPASS invalid username-password pair or user is disabled.\r\n").await;
    client.expect("+OK\r\n$-1\r\n").await;

    let mut stranger = port.connect().await;
    stranger.send(b"*1\r\n$20000\r\n").await;
    assert_eq!(stranger.rest().await, "-ERR Protocol error: unauthenticated bulk length\r\n");
    let mut greeting = port.connect().await;
    greeting.send(b"HELLO 3 AUTH ann hush SETNAME worker\r\nCLIENT GETNAME\r\n").await;
    greeting.expect("%7\r\n").await;
}

#[tokio::test]
async fn a_connection_ends_with_its_password_also_while_it_waits() {
    let port = Port::open(options()).await;
    port.store.add_user("ann", "hush");
    port.store.add_user("bob", "hush");
    let mut idle = port.connect().await;
    idle.send(b"AUTH ann hush\r\n").await;
    idle.expect("+OK\r\n").await;
    let mut waits = port.connect().await;
    waits.send(b"AUTH ann hush\r\nBLPOP queue 0\r\n").await;
    waits.expect("+OK\r\n").await;
    // Whose password counts is who authenticated last.
    let mut other = port.connect().await;
    other.send(b"AUTH ann hush\r\nAUTH bob hush\r\n").await;
    other.expect("+OK\r\n+OK\r\n").await;
    until_waiting(&port.store, 1).await;

    port.store.remove_user("ann");
    assert_eq!((idle.rest().await, waits.rest().await), (String::new(), String::new()));
    other.send(b"RPUSH queue a\r\n").await;
    other.expect(":1\r\n").await;
}

/// Whatever password came after it.
#[tokio::test]
async fn a_connection_does_not_outlive_its_certificate() {
    let store = Memory::default();
    store.add_user("bob", "hush");
    let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options()));
    let (withdraw, told) = oneshot::channel();
    let withdrawn = Box::pin(async move { told.await.expect("it is told") });
    let ann = RedisIdentity { name: "ann".to_owned(), withdrawn };
    let session = RedisSession::new(Arc::clone(&node), ([127, 0, 0, 1], 4000).into(), Some(ann));
    let mut api = Api { store, node, session };

    assert_eq!(api.call("AUTH bob hush").await, "+OK|");
    let kill = api.session.client().kill.clone();
    assert!(!kill.is_cancelled());
    withdraw.send(()).expect("it waits");
    timeout(PATIENCE, kill.cancelled()).await.expect("the connection ends");
}

/// A pool gives its connections to others after RESET.
#[tokio::test(start_paused = true)]
async fn reset_takes_back_what_a_password_has_proven() {
    let store = Memory::default();
    store.add_user("ann", "hush");
    store.add_user("bob", "hush");
    store.limit_connections(1);
    let mut first = Api::over(store.clone());
    let mut second = first.other();
    assert_eq!(first.call("auth ann hush").await, "+OK|");
    for line in ["client setname worker", "select 3", "subscribe news"] {
        first.call(line).await;
    }
    assert_eq!(first.call("reset").await, "+RESET|");
    assert_eq!(first.call("get key").await, "-NOAUTH Authentication required.|");

    // It is not counted for ann, and does not end with her password.
    assert_eq!(second.call("auth ann hush").await, "+OK|");
    store.remove_user("ann");
    let ends = second.session.client().kill.clone();
    timeout(PATIENCE, ends.cancelled()).await.expect("a connection that has proven it");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!first.session.client().kill.is_cancelled());

    drop(second);
    assert_eq!(first.call("auth bob hush").await, "+OK|");
    let told = first.call("client info").await;
    for part in [" name= ", " db=0 ", " sub=0 ", " user=bob "] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

#[tokio::test]
async fn after_reset_a_client_is_who_its_certificate_says() {
    let store = Memory::default();
    store.add_user("bob", "hush");
    let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options()));
    let ann = RedisIdentity { name: "ann".to_owned(), withdrawn: Box::pin(std::future::pending()) };
    let session = RedisSession::new(Arc::clone(&node), ([127, 0, 0, 1], 4000).into(), Some(ann));
    let mut api = Api { store, node, session };

    for (line, user) in [("auth bob hush", " user=bob "), ("reset", " user=ann ")] {
        api.call(line).await;
        let told = api.call("client info").await;
        assert!(told.contains(user), "{line}: {told}");
    }
}

/// It has the time of an arrival, however long it was known.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_a_stranger_again_does_not_stay() {
    let port = Port::open(options()).await;
    port.store.add_user("ann", "hush");
    let mut client = port.connect().await;
    client.send(b"AUTH ann hush\r\n").await;
    client.expect("+OK\r\n").await;
    client.send(b"RESET\r\n").await;
    client.expect("+RESET\r\n").await;
    assert_eq!(client.rest().await, "");

    let mut again = port.connect().await;
    again.send(b"AUTH ann hush\r\nRESET\r\nAUTH ann hush\r\n").await;
    again.expect("+OK\r\n+RESET\r\n+OK\r\n").await;
    tokio::time::sleep(2 * options().arrival_timeout).await;
    again.send(b"PING\r\n").await;
    again.expect("+PONG\r\n").await;
}

#[tokio::test]
async fn connections_are_counted_for_their_identity() {
    let port = Port::open(options()).await;
    port.store.add_user("ann", "hush");
    port.store.limit_connections(1);
    let mut first = port.connect().await;
    // The same connection is one, however often it says who it is.
    first.send(b"AUTH ann hush\r\nAUTH ann hush\r\n").await;
    first.expect("+OK\r\n+OK\r\n").await;
    let mut second = port.connect().await;
    second.send(b"AUTH ann hush\r\nGET k\r\n").await;
    second.expect("-ERR max number of clients reached: too many\r\n-NOAUTH Authentication required.\r\n").await;
    drop(first);
    timeout(PATIENCE, async {
        loop {
            second.send(b"AUTH ann hush\r\n").await;
            let mut reply = [0; 5];
            second.0.read_exact(&mut reply).await.unwrap();
            if reply == *b"+OK\r\n" {
                break;
            }
            second.expect("max number of clients reached: too many\r\n").await;
        }
    })
    .await
    .expect("a connection that has ended is not counted");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_has_the_time_of_an_arrival_and_takes_no_place_of_others() {
    let options = RedisOptions { connections_max: 4, ..options() };
    let port = Port::open(options).await;
    port.store.add_user("ann", "hush");
    let mut known = Vec::new();
    for _ in 0..2 {
        let mut client = port.connect().await;
        client.send(b"AUTH ann hush\r\n").await;
        client.expect("+OK\r\n").await;
        known.push(client);
    }
    // Two arrivals have a place, and each that comes displaces another.
    let mut strangers = Vec::new();
    for _ in 0..6 {
        let mut stranger = port.connect().await;
        stranger.send(b"AUTH ann wrong\r\nPING\r\n").await;
        strangers.push(stranger);
    }
    for stranger in &mut strangers {
        // The last ones end by time: nothing that they have sent prolongs it.
        stranger.rest().await;
    }
    for client in &mut known {
        client.send(b"PING\r\n").await;
        client.expect("+PONG\r\n").await;
    }
}

#[tokio::test]
async fn connections_can_be_listed_and_ended() {
    let port = Port::open(options()).await;
    let mut first = port.connect().await;
    first.send(b"CLIENT SETNAME first\r\nCLIENT ID\r\n").await;
    first.expect("+OK\r\n:1\r\n").await;
    let mut second = port.connect().await;
    second.send(b"CLIENT KILL ID 1\r\nCLIENT LIST\r\n").await;
    second.expect(":1\r\n").await;
    assert_eq!(first.rest().await, "");
    second.send(b"CLIENT KILL ID 99\r\nQUIT\r\n").await;
    assert!(second.rest().await.ends_with(":0\r\n+OK\r\n"));
}

/// It is told so, and nothing more is run.
#[tokio::test]
async fn a_client_may_end_its_own_connection() {
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    client.send(b"CLIENT KILL SKIPME no\r\nSET key value\r\n").await;
    assert_eq!(client.rest().await, ":1\r\n");
    assert_eq!(port.store.commits(), 0);
}

#[tokio::test(start_paused = true)]
async fn half_a_request_ends_in_time_and_an_idle_connection_stays() {
    let port = Port::open(options()).await;
    let mut silent = port.connect().await;
    let mut half = port.connect().await;
    half.send(b"PING\r\n*1\r\n$4\r\nPI").await;
    half.expect("+PONG\r\n").await;
    let mut idle = port.connect().await;
    idle.send(b"PING\r\n").await;
    idle.expect("+PONG\r\n").await;
    assert_eq!((silent.rest().await, half.rest().await), (String::new(), String::new()));
    idle.send(b"PING\r\n").await;
    idle.expect("+PONG\r\n").await;
}

#[tokio::test]
async fn requests_that_take_all_memory_are_refused() {
    let options = RedisOptions { requests_bytes_max: 300_000, ..options() };
    let port = Port::open(options).await;
    let mut large = port.connect().await;
    large.send(&[&b"*2\r\n$4\r\nECHO\r\n$1000000\r\n"[..], &[b'x'; 400_000]].concat()).await;
    assert!(large.rest().await.starts_with("-ERR requests that are not answered take all memory"));
    let mut small = port.connect().await;
    small.send(b"PING\r\n").await;
    small.expect("+PONG\r\n").await;
}

#[tokio::test]
async fn clients_of_sentinel_find_the_leader() {
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    client.send(b"SENTINEL get-master-addr-by-name any\r\nROLE\r\nSENTINEL replicas any\r\nSENTINEL masters\r\n").await;
    client.expect("*2\r\n$8\r\n10.0.0.2\r\n$4\r\n6379\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n*0\r\n*2\r\n*26\r\n").await;
}

#[tokio::test]
async fn clients_of_sentinel_are_told_of_another_leader() {
    let port = Port::open(options()).await;
    let mut client = port.connect().await;
    client.send(b"SUBSCRIBE +switch-master\r\n").await;
    client.expect("*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n").await;
    // Elections go on until one was noticed.
    let elections = async {
        for leader in [0, 3, 0, 2].into_iter().cycle() {
            port.store.elect(leader);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let told = async {
        let head = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$36\r\n";
        client.expect(head).await;
        let mut told = [0; 36];
        timeout(PATIENCE, client.0.read_exact(&mut told)).await.expect("in time").expect("not closed");
        String::from_utf8_lossy(&told).into_owned()
    };
    let told = tokio::select! {
        told = told => told,
        () = elections => unreachable!("they do not end"),
    };
    let [to_third, to_second] =
        ["mymaster 10.0.0.2 6379 10.0.0.3 6379", "mymaster 10.0.0.3 6379 10.0.0.2 6379"].map(str::to_owned);
    assert!(told == to_third || told == to_second, "{told}");
}

/// Waits until there are so many clients that wait for an item.
async fn until_waiting(store: &Memory, count: u64) {
    let (from, to) = (b"redis/wait/".to_vec(), b"redis/wait0".to_vec());
    let reached = timeout(PATIENCE, async {
        while store.count(&crate::signals::port(), from.clone(), to.clone()).await != Ok(count) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    reached.await.expect("in time");
}

#[tokio::test]
async fn a_client_that_closes_its_connection_while_it_waits_gets_nothing() {
    let port = Port::open(options()).await;
    let mut gone = port.connect().await;
    gone.send(b"BLPOP queue 0\r\n").await;
    until_waiting(&port.store, 1).await;
    let mut stays = port.connect().await;
    stays.send(b"BLPOP queue 0\r\nPING\r\n").await;
    until_waiting(&port.store, 2).await;
    drop(gone);
    until_waiting(&port.store, 1).await;

    let mut pusher = port.connect().await;
    pusher.send(b"RPUSH queue a\r\n").await;
    pusher.expect(":1\r\n").await;
    stays.expect("*2\r\n$5\r\nqueue\r\n$1\r\na\r\n+PONG\r\n").await;
    until_waiting(&port.store, 0).await;
}

#[tokio::test]
async fn a_client_that_goes_away_behind_many_requests_gets_nothing() {
    let port = Port::open(options()).await;
    let mut gone = port.connect().await;
    gone.send(b"BLPOP queue 0\r\n").await;
    until_waiting(&port.store, 1).await;
    gone.send(&b"PING\r\n".repeat(20_000)).await;
    drop(gone);
    until_waiting(&port.store, 0).await;

    // One that sends without end while it waits is ended, too.
    let mut endless = port.connect().await;
    endless.send(b"BLPOP queue 0\r\n").await;
    let flood = async { while endless.0.write_all(&[b'x'; 10_000]).await.is_ok() {} };
    timeout(PATIENCE, flood).await.expect("in time");
    until_waiting(&port.store, 0).await;
}

#[tokio::test]
async fn messages_reach_a_connection_that_sends_nothing() {
    let port = Port::open(options()).await;
    let mut subscriber = port.connect().await;
    subscriber.send(b"SUBSCRIBE news\r\n").await;
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n").await;

    let mut publisher = port.connect().await;
    publisher.send(b"PUBLISH news a\r\nPUBLISH news b\r\n").await;
    publisher.expect(":1\r\n:1\r\n").await;
    for text in ["a", "b"] {
        subscriber.expect(&format!("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\n{text}\r\n")).await;
    }
    drop(subscriber);
    timeout(PATIENCE, async {
        loop {
            publisher.send(b"PUBSUB NUMPAT\r\nPUBLISH news c\r\n").await;
            publisher.expect(":0\r\n:").await;
            let mut count = [0; 3];
            publisher.0.read_exact(&mut count).await.unwrap();
            if count == *b"0\r\n" {
                break;
            }
        }
    })
    .await
    .expect("the end of a connection is the end of its subscriptions");
}
