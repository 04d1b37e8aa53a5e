//! ZooKeeper: one ephemeral node, or the recipe of sequential nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::OnceCell,
    time::{sleep, timeout},
};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::{
    CONNECTIONS,
    peer::{Hand, Lease, Peer, Servers},
};

/// Recipe locks of the workers: each needs an existing parent node.
const PARENTS: usize = 8_192;
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Create and delete a node.
    Raw,
    /// The documented queue recipe: fair.
    Recipe,
}

pub(crate) struct ZooKeeper {
    servers: Servers,
    way: Way,
    pool: OnceCell<Vec<Client>>,
}

impl ZooKeeper {
    pub(crate) fn new(servers: Servers, way: Way) -> Self {
        Self { servers, way, pool: OnceCell::new() }
    }

    async fn connect(&self, node: usize) -> Result<Client> {
        let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
        Ok(connector.connect(&self.servers.endpoints[node]).await?)
    }

    async fn pool(&self) -> Result<&Vec<Client>> {
        let connect = || async {
            let leader = self.leader().await?;
            try_join_all((0..CONNECTIONS).map(|_| self.connect(leader))).await
        };
        self.pool.get_or_try_init(connect).await
    }

    async fn leads(&self, node: usize) -> Result<bool> {
        let mut stream = TcpStream::connect(&self.servers.endpoints[node]).await?;
        stream.write_all(b"srvr").await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        Ok(said.contains("Mode: leader"))
    }
}

async fn make(client: &Client, path: &str) -> Result<()> {
    match client.create(path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

struct ZooKeeperHand {
    client: Client,
    way: Way,
}

impl ZooKeeperHand {
    async fn queue(&self, lock: &str) -> Result<Vec<u8>> {
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = self.client.create(&format!("{lock}/wait-"), b"me", &mode).await?;
        let own = format!("wait-{sequence}");
        loop {
            let mut queue = self.client.list_children(lock).await?;
            queue.sort_unstable();
            let place = queue.iter().position(|waits| *waits == own).context("its own node does not exist")?;
            let Some(before) = place.checked_sub(1) else { return Ok(format!("{lock}/{own}").into()) };
            match self.client.get_and_watch_data(&format!("{lock}/{}", queue[before])).await {
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[tonic::async_trait]
impl Hand for ZooKeeperHand {
    async fn acquire(&mut self, name: &str) -> Result<Vec<u8>> {
        if self.way == Way::Recipe {
            return self.queue(name).await;
        }
        self.client.create(name, b"me", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await?;
        Ok(name.into())
    }

    async fn release(&mut self, _name: &str, grant: Vec<u8>) -> Result<()> {
        Ok(self.client.delete(str::from_utf8(&grant)?, None).await?)
    }

    async fn is_held(&mut self, name: &str) -> Result<bool> {
        // A read without a sync may be stale. The session keeps the order of requests, so both are sent at once.
        let (synced, read) = tokio::join!(self.client.sync(name), self.client.get_data(name));
        synced?;
        match read {
            Ok(_) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[tonic::async_trait]
impl Peer for ZooKeeper {
    async fn hand(&self, worker: usize) -> Result<Box<dyn Hand>> {
        let client = self.pool().await?[worker % CONNECTIONS].clone();
        Ok(Box::new(ZooKeeperHand { client, way: self.way }))
    }

    async fn hand_at(&self, node: usize) -> Result<Box<dyn Hand>> {
        // Fails at once if the node does not serve.
        RawSession::open(&self.servers.endpoints[node], SESSION_TIMEOUT).await?;
        Ok(Box::new(ZooKeeperHand { client: self.connect(node).await?, way: self.way }))
    }

    async fn leases(&self, count: usize, ttl: Duration, spread: bool) -> Result<Vec<Box<dyn Lease>>> {
        let leader = self.leader().await?;
        let mut leases: Vec<Box<dyn Lease>> = Vec::new();
        while leases.len() < count {
            let open = |place: usize| {
                let node = if spread { place % self.servers.endpoints.len() } else { leader };
                RawSession::open(&self.servers.endpoints[node], ttl)
            };
            let until = (leases.len() + 64).min(count);
            let opened = try_join_all((leases.len()..until).map(open)).await?;
            leases.extend(opened.into_iter().map(|session| Box::new(session) as Box<dyn Lease>));
        }
        Ok(leases)
    }

    async fn leader(&self) -> Result<usize> {
        for _ in 0..200 {
            for node in 0..self.servers.endpoints.len() {
                if let Ok(Ok(true)) = timeout(Duration::from_millis(500), self.leads(node)).await {
                    return Ok(node);
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("no ZooKeeper node leads")
    }

    async fn is_ready(&self, node: usize) -> bool {
        let opening = RawSession::open(&self.servers.endpoints[node], SESSION_TIMEOUT);
        matches!(timeout(Duration::from_millis(500), opening).await, Ok(Ok(_)))
    }

    fn own_name(&self, worker: usize, number: u64) -> String {
        match self.way {
            Way::Raw => format!("/own/{number:016x}"),
            // This worker's share of the parents, for up to 256 workers.
            Way::Recipe => format!("/own/{}", (number as usize % (PARENTS / 256)) * 256 + worker % 256),
        }
    }

    async fn prepare(&self) -> Result<()> {
        let client = &self.pool().await?[0];
        for parent in ["/own", "/one", "/held", "/read"] {
            make(client, parent).await?;
        }
        if self.way == Way::Recipe {
            let parents: Vec<String> = (0..PARENTS).map(|number| format!("/own/{number}")).collect();
            for parents in parents.chunks(500) {
                try_join_all(parents.iter().map(|parent| make(client, parent))).await?;
            }
        }
        Ok(())
    }
}

/// A session that only pings, since the client crate's ping rate is fixed.
struct RawSession(TcpStream);

impl RawSession {
    async fn open(endpoint: &str, ttl: Duration) -> Result<Self> {
        let mut stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        let mut message = Vec::new();
        message.extend(0_i32.to_be_bytes()); // protocol version
        message.extend(0_i64.to_be_bytes()); // last transaction seen
        message.extend(i32::try_from(ttl.as_millis())?.to_be_bytes());
        message.extend(0_i64.to_be_bytes()); // a new session
        message.extend(16_i32.to_be_bytes()); // password length
        message.extend([0; 16]);
        message.push(0); // not read-only
        stream.write_i32(message.len().try_into()?).await?;
        stream.write_all(&message).await?;
        let length = stream.read_i32().await?;
        let mut answer = vec![0; length.try_into()?];
        stream.read_exact(&mut answer).await?;
        let granted_ms = answer.get(4..8).context("the reply is shorter than 8 bytes")?;
        ensure!(i32::from_be_bytes(granted_ms.try_into()?) > 0, "the session was refused");
        Ok(Self(stream))
    }
}

#[tonic::async_trait]
impl Lease for RawSession {
    async fn renew(&mut self) -> Result<()> {
        const PING: [i32; 3] = [8, -2, 11]; // length, xid and opcode of a ping
        self.0.write_all(&PING.map(i32::to_be_bytes).concat()).await?;
        let length = self.0.read_i32().await?;
        let mut answer = vec![0; length.try_into()?];
        self.0.read_exact(&mut answer).await?;
        Ok(())
    }
}
