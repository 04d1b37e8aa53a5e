//! Redis' protocol on a real cluster, as a plain connection sees it.
//!
//! The protocol by itself, over a store in memory, is tested in its own crate (`src/redis/tests`); here are the parts between it and the
//! cluster: deadlines in cluster time, units that run at the leader, locks that operators see, and a leader that dies.

mod chaos;
mod operators;
mod serializable;

use std::time::Duration;

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::support::{cluster_with, leader, lockkeeper, output, text, until};
use lockkeeper::local::{LocalCluster, Signal};

/// A bound on failures.
pub(crate) const LONG: Duration = crate::support::LONG;
/// The script by which nearly all clients release: delete the key if it has this value.
pub(crate) const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// A reply of RESP2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Number(i64),
    Text(String),
    Nil,
    List(Vec<Reply>),
}

/// A connection of a client, over TCP or TLS.
pub(crate) struct Connection<S = TcpStream>(BufReader<S>);

impl Connection {
    pub(crate) async fn open(address: &str) -> Option<Self> {
        let stream = timeout(LONG, TcpStream::connect(address)).await.expect("a connection, or a refusal");
        Some(Self::over(stream.ok()?))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, arguments: &[&str]) -> Option<()> {
        let mut request = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
        }
        timeout(LONG, self.0.write_all(request.as_bytes())).await.expect("a request is read").ok()
    }

    /// The next reply, or `None` if the connection ends.
    pub(crate) async fn read(&mut self) -> Option<Reply> {
        timeout(LONG, self.parse()).await.expect("a reply, or the end of the connection")
    }

    async fn parse(&mut self) -> Option<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let rest = line[1..].trim_end();
        Some(match line.as_bytes()[0] {
            b'+' => Reply::Status(rest.to_owned()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Number(rest.parse().expect("a number")),
            b'$' if rest == "-1" => Reply::Nil,
            b'$' => {
                let mut text = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut text).await.ok()?;
                text.truncate(text.len() - 2);
                Reply::Text(String::from_utf8(text).expect("text"))
            }
            b'*' if rest == "-1" => Reply::Nil,
            b'*' => {
                let mut list = Vec::new();
                for _ in 0..rest.parse::<usize>().expect("a length") {
                    list.push(Box::pin(self.parse()).await?);
                }
                Reply::List(list)
            }
            _ => panic!("no reply of RESP2: {line:?}"),
        })
    }

    pub(crate) async fn call(&mut self, arguments: &[&str]) -> Option<Reply> {
        self.send(arguments).await?;
        self.read().await
    }

    /// The answer of a cluster that serves.
    pub(crate) async fn ask(&mut self, arguments: &[&str]) -> Reply {
        self.call(arguments).await.unwrap_or_else(|| panic!("no answer to {arguments:?}"))
    }
}

pub(crate) fn ok() -> Reply {
    Reply::Status("OK".to_owned())
}

pub(crate) fn text_of(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

async fn three_nodes() -> LocalCluster {
    let cluster = cluster_with(|options| options.redis = true).await;
    // Entries with deadlines need all members' word: the first write may come before it.
    for address in cluster.redis_endpoints() {
        until("the port serves", async || {
            let mut connection = Connection::open(&address).await?;
            let set = connection.call(&["SET", "ready", &address, "PX", "60000"]).await?;
            (set == ok()).then_some(())
        })
        .await;
    }
    cluster
}

async fn connections(cluster: &LocalCluster) -> Vec<Connection> {
    let mut connections = Vec::new();
    for address in cluster.redis_endpoints() {
        connections.push(Connection::open(&address).await.expect("it listens"));
    }
    connections
}

async fn operator(cluster: &LocalCluster, arguments: &[&str]) -> String {
    let endpoints = cluster.endpoints().join(",");
    let output = output(lockkeeper(arguments).env("LOCKKEEPER_ENDPOINTS", endpoints)).await;
    let (code, stdout, stderr) = text(&output);
    assert_eq!(code, 0, "{arguments:?}: {stdout}{stderr}");
    stdout
}

/// A plain lock over all nodes: taken, refused, extended, released by its owner alone; seen, and taken back, by operators.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_redis_is_one_of_the_cluster() {
    let cluster = three_nodes().await;
    let mut nodes = connections(&cluster).await;
    assert_eq!(nodes[0].ask(&["CLIENT", "SETNAME", "ann"]).await, ok());
    assert_eq!(nodes[0].ask(&["SET", "jobs", "secret", "NX", "PX", "60000"]).await, ok());
    for node in &mut nodes {
        assert_eq!(node.ask(&["SET", "jobs", "other", "NX", "PX", "60000"]).await, Reply::Nil);
        assert_eq!(node.ask(&["GET", "jobs"]).await, text_of("secret"));
        assert_eq!(node.ask(&["EVAL", RELEASE, "1", "jobs", "other"]).await, Reply::Number(0));
        let Reply::Number(left) = node.ask(&["PTTL", "jobs"]).await else { panic!("no number") };
        assert!((0..=60_000).contains(&left), "{left}");
    }

    let listed = operator(&cluster, &["list", "redis/"]).await;
    assert!(listed.contains("redis/0/jobs"), "{listed}");
    let shown = operator(&cluster, &["get", "redis/0/jobs"]).await;
    assert!(shown.contains("ann") && !shown.contains("secret"), "{shown}");
    let Reply::Text(token) = nodes[1].ask(&["GET", "lockkeeper:token:jobs"]).await else { panic!("no token") };
    assert!(shown.contains(&token), "{token} in {shown}");

    // A script that is no compare-and-delete runs at the leader, whichever node it is sent to.
    let counts = "redis.call('set', KEYS[2], redis.call('get', KEYS[1]) .. ARGV[1]); return {KEYS[2], 7}";
    for (number, node) in nodes.iter_mut().enumerate() {
        let other = format!("other-{number}");
        let reply = node.ask(&["EVAL", counts, "2", "jobs", &other, "!"]).await;
        assert_eq!(reply, Reply::List(vec![text_of(&other), Reply::Number(7)]));
        assert_eq!(node.ask(&["GET", &other]).await, text_of("secret!"));
    }

    assert_eq!(nodes[2].ask(&["EVAL", RELEASE, "1", "jobs", "secret"]).await, Reply::Number(1));
    assert_eq!(nodes[1].ask(&["GET", "jobs"]).await, Reply::Nil);

    // Whoever takes over a lock in place has another token.
    let mut tokens = Vec::new();
    for hand_over in
        ["redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', 60000)", "redis.call('set', KEYS[1], ARGV[1], 'keepttl')"]
    {
        let holder = tokens.len().to_string();
        nodes[0].ask(&["EVAL", hand_over, "1", "passed-on", &holder]).await;
        let Reply::Text(token) = nodes[1].ask(&["GET", "lockkeeper:token:passed-on"]).await else { panic!("no token") };
        tokens.push(token.parse::<u64>().expect("a number"));
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");

    // An operator takes one back: what its owner does by its value finds it gone.
    assert_eq!(nodes[1].ask(&["SET", "jobs", "second", "NX", "PX", "60000"]).await, ok());
    operator(&cluster, &["force-release", "redis/0/jobs", "--reason", "stuck"]).await;
    assert_eq!(nodes[1].ask(&["EVAL", RELEASE, "1", "jobs", "second"]).await, Reply::Number(0));
    assert_eq!(nodes[0].ask(&["SET", "jobs", "third", "NX", "PX", "60000"]).await, ok());
}

/// Commands of one connection that are sent together are under way at the same time, and take effect in their order, at any node.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_takes_effect_in_its_order() {
    const ROUNDS: usize = 100;
    let cluster = three_nodes().await;
    for (number, connection) in connections(&cluster).await.iter_mut().enumerate() {
        let key = &format!("lock-{number}");
        for round in 0..ROUNDS {
            let mine = &round.to_string();
            connection.send(&["SET", key, mine, "NX", "PX", "60000"]).await.expect("it is open");
            connection.send(&["SET", key, "other", "NX", "PX", "60000"]).await.expect("it is open");
            connection.send(&["EVAL", RELEASE, "1", key, "other"]).await.expect("it is open");
            connection.send(&["EVAL", RELEASE, "1", key, mine]).await.expect("it is open");
        }
        for round in 0..ROUNDS {
            for expected in [ok(), Reply::Nil, Reply::Number(0), Reply::Number(1)] {
                let reply = timeout(LONG, connection.read()).await.expect("an answer");
                assert_eq!(reply.expect("it is open"), expected, "round {round} at node {number}");
            }
        }
    }
}

/// An expiry is never early, is seen by all nodes, and frees the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_at_its_deadline_and_not_before() {
    let cluster = three_nodes().await;
    let mut nodes = connections(&cluster).await;
    for round in 0..5 {
        let began = Instant::now();
        let key = format!("short-{round}");
        assert_eq!(nodes[round % 3].ask(&["SET", &key, "a", "NX", "PX", "400"]).await, ok());
        let node = &mut nodes[(round + 1) % 3];
        loop {
            let left = node.ask(&["PTTL", &key]).await;
            if left == Reply::Number(-2) {
                break;
            }
            let Reply::Number(left) = left else { panic!("{left:?}") };
            assert!((0..=400).contains(&left), "{left}");
        }
        assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
        for node in &mut nodes {
            assert_eq!(node.ask(&["GET", &key]).await, Reply::Nil);
        }
        assert_eq!(nodes[round % 3].ask(&["SET", &key, "b", "NX", "PX", "60000"]).await, ok());
    }
}

/// A lock that was answered with OK is held afterwards, whoever leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_the_leader() {
    let cluster = three_nodes().await;
    let leads = leader(&cluster).await;
    let survivor = cluster.nodes().find(|node| node.id() != leads).and_then(|node| node.redis_endpoint());
    let survivor = survivor.expect("three nodes");
    let mut connection = Connection::open(&survivor).await.expect("it listens");
    assert_eq!(connection.ask(&["SET", "held", "mine", "NX", "PX", "120000"]).await, ok());
    cluster.node(leads).signal(Signal::KILL);

    let value = until("the cluster answers again", async || {
        let mut connection = Connection::open(&survivor).await?;
        let answer = connection.call(&["GET", "held"]).await?;
        (!matches!(answer, Reply::Error(_))).then_some(answer)
    })
    .await;
    assert_eq!(value, text_of("mine"));

    let refused = until("an answer to SET NX", async || {
        let mut connection = Connection::open(&survivor).await?;
        let answer = connection.call(&["SET", "held", "other", "NX", "PX", "1000"]).await?;
        (!matches!(answer, Reply::Error(_))).then_some(answer)
    })
    .await;
    assert_eq!(refused, Reply::Nil);
    let mut connection = Connection::open(&survivor).await.expect("it listens");
    let Reply::Number(left) = connection.ask(&["PTTL", "held"]).await else { panic!("no number") };
    assert!((1..=120_000).contains(&left), "{left}");
    assert_eq!(connection.ask(&["EVAL", RELEASE, "1", "held", "mine"]).await, Reply::Number(1));
}
