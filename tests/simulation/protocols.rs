//! The protocols of others by which clients contend for locks in a simulated run. Each has a client process, and a port at every node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::LocalBoxFuture, future::join_all};
use lockkeeper::machine::NAME_BYTES_MAX;
use rand::{SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio_util::sync::CancellationToken;

use crate::{
    contenders::{Contender, Contention, TTL},
    dynamodb, etcd, redis, zookeeper,
};

/// How often contenders are late, of whom each draws one of these.
const LATE_PERCENT: [u32; 3] = [0, 10, 50];

/// A protocol by which contenders take locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContendedProtocol {
    Etcd,
    Redis,
    DynamoDb,
    Zookeeper,
}

/// The last part of the key that clients of a protocol contend for under this number. Every second one is too long for the name of a lock,
/// so the entry claims one whose name is made from the key.
pub(crate) fn contended_key(number: u32) -> String {
    let key = number.to_string();
    if number.is_multiple_of(2) { key } else { key.repeat(NAME_BYTES_MAX) }
}

impl ContendedProtocol {
    pub(crate) const ALL: [Self; 4] = [Self::Etcd, Self::Redis, Self::DynamoDb, Self::Zookeeper];

    /// Its name in histories, and that of the host of its client process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Redis => "redis",
            Self::DynamoDb => "dynamodb",
            Self::Zookeeper => "zookeeper",
        }
    }

    /// The port on which nodes listen for it.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Etcd => 7301,
            Self::Redis => 7401,
            Self::DynamoDb => 7501,
            Self::Zookeeper => 7601,
        }
    }

    /// The address behind which there is a member, as with names in DNS.
    pub(crate) fn seat_address(self, seat: u64) -> String {
        format!("seat{seat}:{}", self.port())
    }

    fn contenders(self) -> u64 {
        match self {
            Self::Etcd | Self::DynamoDb => 3,
            Self::Redis | Self::Zookeeper => 4,
        }
    }

    /// For how long its clients trust a lease, from the sending of the last answered request on.
    fn trust(self) -> Duration {
        match self {
            Self::Etcd | Self::Redis | Self::DynamoDb => TTL,
            Self::Zookeeper => zookeeper::TRUST,
        }
    }

    /// Contends until the run is over.
    fn contend(self, parts: ContenderParts) -> LocalBoxFuture<'static, ()> {
        match self {
            Self::Etcd => etcd::contend(parts).boxed_local(),
            Self::Redis => redis::contend(parts).boxed_local(),
            Self::DynamoDb => dynamodb::contend(parts).boxed_local(),
            Self::Zookeeper => zookeeper::contend(parts).boxed_local(),
        }
    }
}

/// What a contender has.
pub(crate) struct ContenderParts {
    /// The number of endpoints.
    pub(crate) seats: u64,
    pub(crate) contender: Contender,
    pub(crate) random: StdRng,
    /// Tells it to end.
    pub(crate) finish: CancellationToken,
}

/// The client process of a protocol, and its successors.
pub(crate) struct ContendingProcess {
    pub(crate) protocol: ContendedProtocol,
    /// The number of endpoints.
    pub(crate) seats: u64,
    pub(crate) seed: u64,
    pub(crate) contention: Arc<Contention>,
    pub(crate) finish: CancellationToken,
    /// The number of its starts.
    pub(crate) generation: AtomicU32,
}

impl ContendingProcess {
    /// Contends until the run is over. A successor that is started after that contends until it is killed: it lives through the restores.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let finish = if self.finish.is_cancelled() { CancellationToken::new() } else { self.finish.clone() };
        join_all((0..self.protocol.contenders()).map(|number| self.contend(generation, number, finish.clone()))).await;
        Ok(())
    }

    async fn contend(&self, generation: u32, number: u64, finish: CancellationToken) {
        let name = self.protocol.name();
        let salt = (self.protocol as u64 + 1) << 40;
        let mut random = StdRng::seed_from_u64(self.seed ^ salt ^ (u64::from(generation) << 20) ^ number);
        let late_percent = *LATE_PERCENT.choose(&mut random).expect("it is not empty");
        let process = format!("{name}-{number}.{generation}");
        let contender = self.contention.contender((name, self.protocol.trust()), &process, late_percent);
        let parts = ContenderParts { seats: self.seats, contender, random, finish };
        self.protocol.contend(parts).await;
    }
}
