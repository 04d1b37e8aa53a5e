//! The protocol over sockets, and a store in memory with several nodes.

mod abuse;
mod access;
mod client;
mod hidden;
mod memory;
mod multis;
mod operations;
mod order;
mod pipeline;
mod sessions;
mod sweeps;
mod tree;
mod watches;
mod wire;
mod words;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Duration, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Zookeeper, ZookeeperOptions};
use client::{Body, Client, Connected, connect_frame, read_frame};
use memory::{MemoryCluster, MemoryNode};

/// Time within which whatever a test waits for has happened.
const PATIENCE: Duration = Duration::from_secs(60);
/// 2025-01-01, in milliseconds.
const WALL_MS: i64 = 1_735_689_600_000;

/// Nodes with their ports. They stop when this is dropped.
struct Rig {
    cluster: MemoryCluster,
    addresses: Vec<SocketAddr>,
    ports: Vec<Zookeeper<MemoryNode>>,
    wall_ms: Arc<AtomicI64>,
    stopping: DropGuard,
}

impl Rig {
    async fn new(members: usize) -> Self {
        Self::with(members, |_| {}).await
    }

    async fn with(members: usize, adjust: impl Fn(&mut ZookeeperOptions)) -> Self {
        let cluster = MemoryCluster::new(members);
        let stopping = CancellationToken::new();
        let wall_ms = Arc::new(AtomicI64::new(WALL_MS));
        let random = Arc::new(AtomicU64::new(1));
        let mut addresses = Vec::new();
        let mut ports = Vec::new();
        for index in 0..members {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            let wall = Arc::clone(&wall_ms);
            let random = Arc::clone(&random);
            let mut options =
                ZookeeperOptions::new(move || wall.load(SeqCst), move || random.fetch_add(1 << 40, SeqCst));
            adjust(&mut options);
            let port = Zookeeper::new(cluster.node(index), options);
            ports.push(port.clone());
            let stopped = stopping.clone();
            tokio::spawn(async move { port.serve(listener, stopped).await });
        }

        let ticking = cluster.clone();
        let stopped = stopping.clone();
        tokio::spawn(async move {
            while !stopped.is_cancelled() {
                ticking.tick();
                sleep(Duration::from_millis(10)).await;
            }
        });
        Self { cluster, addresses, ports, wall_ms, stopping: stopping.drop_guard() }
    }

    /// Has all ports stop, as a node that is shut down does.
    fn stop(&self) {
        self.stopping.token().cancel();
    }

    /// A client with a new session at the first node.
    async fn client(&self) -> Client {
        self.client_at(0).await
    }

    async fn client_at(&self, index: usize) -> Client {
        self.connect(index, 0, 30_000, 0, &[0; 16]).await.expect("a session")
    }

    async fn socket(&self, index: usize) -> TcpStream {
        TcpStream::connect(self.addresses[index]).await.unwrap()
    }

    /// Connects; `None` if the server closes without an answer.
    async fn connect(
        &self,
        index: usize,
        last_seen: i64,
        timeout_ms: i32,
        session: i64,
        password: &[u8],
    ) -> Option<Client> {
        let stream = self.socket(index).await;
        let bytes = connect_frame(last_seen, timeout_ms, session, password);
        Self::greet(stream, &bytes).await
    }

    /// A client with a new session at the first node, that comes from another address of this machine.
    async fn client_from(&self, address: &str) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        let stream = socket.connect(self.addresses[0]).await.unwrap();
        Self::greet(stream, &connect_frame(0, 30_000, 0, &[0; 16])).await.expect("a session")
    }

    async fn greet(mut stream: TcpStream, bytes: &[u8]) -> Option<Client> {
        tokio::io::AsyncWriteExt::write_all(&mut stream, bytes).await.unwrap();
        let payload = read_frame(&mut stream).await?;
        let mut body = Body(&payload);
        assert_eq!(body.int(), 0);
        let timeout_ms = body.int();
        let session = body.long();
        let connected = Connected { timeout_ms, session, password: body.buffer().unwrap() };
        assert!(!body.bool());
        Some(Client::new(stream, connected))
    }

    /// Takes a session over, at a node.
    async fn again(&self, index: usize, client: &Client) -> Option<Client> {
        let Connected { session, password, .. } = &client.connected;
        let mut again = self.connect(index, client.zxid, 30_000, *session, password).await?;
        again.zxid = client.zxid;
        Some(again)
    }
}

/// Waits for a condition.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not in time: {what}"));
}
