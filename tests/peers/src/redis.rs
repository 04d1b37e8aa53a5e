//! Redis: one node, `SET NX`, and a compare-and-delete script. Neither replicated nor fair: an upper bound, not an equivalent.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use redis::{Client, Script, aio::MultiplexedConnection};
use tokio::{
    sync::OnceCell,
    time::{sleep, timeout},
};

use crate::{
    CONNECTIONS,
    peer::{Hand, Lease, Peer, Servers},
};

const DELETE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const EXTEND: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
const LONG_MS: u64 = 3_600_000;

pub(crate) struct Redis {
    servers: Servers,
    pool: OnceCell<Vec<MultiplexedConnection>>,
}

impl Redis {
    pub(crate) fn new(servers: Servers) -> Self {
        Self { servers, pool: OnceCell::new() }
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let client = Client::open(format!("redis://{}/", self.servers.endpoints[0]))?;
        Ok(client.get_multiplexed_async_connection().await?)
    }

    async fn connection(&self, worker: usize) -> Result<MultiplexedConnection> {
        let connect = || async {
            let mut pool = Vec::new();
            for _ in 0..CONNECTIONS {
                pool.push(self.connect().await?);
            }
            Ok::<_, anyhow::Error>(pool)
        };
        Ok(self.pool.get_or_try_init(connect).await?[worker % CONNECTIONS].clone())
    }
}

async fn set_if_absent(connection: &mut MultiplexedConnection, name: &str, value: &str, ms: u64) -> Result<bool> {
    let mut command = redis::cmd("SET");
    command.arg(name).arg(value).arg("NX").arg("PX").arg(ms);
    let set: Option<String> = command.query_async(connection).await?;
    Ok(set.is_some())
}

struct RedisHand {
    connection: MultiplexedConnection,
    delete: Arc<Script>,
}

#[tonic::async_trait]
impl Hand for RedisHand {
    async fn acquire(&mut self, name: &str) -> Result<Vec<u8>> {
        let value = format!("{:032x}", rand::random::<u128>());
        while !set_if_absent(&mut self.connection, name, &value, LONG_MS).await? {
            sleep(Duration::from_millis(rand::random_range(1..=10))).await;
        }
        Ok(value.into())
    }

    async fn release(&mut self, name: &str, grant: Vec<u8>) -> Result<()> {
        let deleted: i64 = self.delete.key(name).arg(grant).invoke_async(&mut self.connection).await?;
        ensure!(deleted == 1, "{name} is not held by this worker");
        Ok(())
    }

    async fn is_held(&mut self, name: &str) -> Result<bool> {
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(name).query_async(&mut self.connection).await?;
        Ok(value.is_some())
    }
}

struct RedisLease {
    connection: MultiplexedConnection,
    extend: Arc<Script>,
    name: String,
    ttl_ms: u64,
}

#[tonic::async_trait]
impl Lease for RedisLease {
    async fn renew(&mut self) -> Result<()> {
        let mut call = self.extend.key(&self.name);
        let extended: i64 = call.arg("me").arg(self.ttl_ms).invoke_async(&mut self.connection).await?;
        ensure!(extended == 1, "key {} has expired", self.name);
        Ok(())
    }
}

#[tonic::async_trait]
impl Peer for Redis {
    async fn hand(&self, worker: usize) -> Result<Box<dyn Hand>> {
        Ok(Box::new(RedisHand { connection: self.connection(worker).await?, delete: Arc::new(Script::new(DELETE)) }))
    }

    async fn hand_at(&self, _node: usize) -> Result<Box<dyn Hand>> {
        bail!("failover is not measured: this Redis has one node")
    }

    async fn leases(&self, count: usize, ttl: Duration, _spread: bool) -> Result<Vec<Box<dyn Lease>>> {
        let (extend, ttl_ms) = (Arc::new(Script::new(EXTEND)), ttl.as_millis().try_into()?);
        let mut leases: Vec<Box<dyn Lease>> = Vec::new();
        for place in 0..count {
            let (mut connection, name) = (self.connection(place).await?, format!("/lease/{place}"));
            set_if_absent(&mut connection, &name, "me", ttl_ms).await?;
            leases.push(Box::new(RedisLease { connection, extend: extend.clone(), name, ttl_ms }));
        }
        Ok(leases)
    }

    async fn leader(&self) -> Result<usize> {
        Ok(0)
    }

    async fn is_ready(&self, _node: usize) -> bool {
        let ping = async {
            redis::cmd("GET")
                .arg("ready")
                .query_async::<Option<String>>(&mut self.connect().await?)
                .await
                .map_err(anyhow::Error::from)
        };
        matches!(timeout(Duration::from_millis(500), ping).await, Ok(Ok(_)))
    }
}
