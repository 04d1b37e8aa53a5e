//! What whoever serves the endpoint decides.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Secrets,
    recipes::Rules,
    schema::{Table, TableUse},
};

/// Settings, limits, and what comes from outside: time and a seed.
#[derive(Clone)]
pub struct Options {
    /// Whether locks are recognized, and have leases and tokens.
    pub recipes: bool,
    /// Leases longer than this many milliseconds are not asked of the store.
    pub lease_ms_max: u64,
    /// What ARNs of tables say.
    pub region: String,
    /// Access keys and their secrets. `None`: signatures are not checked.
    pub secrets: Option<Secrets>,
    /// Milliseconds since 1970, for the dates of tables and signatures, and for leases whose client says when they end.
    pub wall_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Makes the ids of requests differ from those of other nodes and runs.
    pub seed: u64,
    /// Maximum bytes of a body.
    pub body_bytes_max: usize,
    /// Maximum bytes of all bodies under way, beyond the first 16 KiB of each.
    pub all_bodies_bytes_max: usize,
    /// The same, of the bodies from one address.
    pub address_bodies_bytes_max: usize,
    /// Answers that clients do not read.
    pub unread: UnreadLimits,
    /// Time for the headers of a request, from the one before; also for a handshake.
    pub header_timeout: Duration,
    /// Time for the body.
    pub body_timeout: Duration,
    /// Time for the operation.
    pub operation_timeout: Duration,
    /// Maximum connections at one time.
    pub connections_max: usize,
}

/// How many bytes of answers may wait to be read, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct UnreadLimits {
    /// Bytes of one connection.
    pub connection: usize,
    /// Bytes of all connections from one address.
    pub address: usize,
    /// Bytes of all connections.
    pub node: usize,
    /// How long an answer may wait without being read.
    pub patience: Duration,
}

impl Default for UnreadLimits {
    /// Those of the node's own ports.
    fn default() -> Self {
        Self { connection: 4 << 20, address: 16 << 20, node: 32 << 20, patience: Duration::from_secs(10) }
    }
}

impl Options {
    /// With usual limits.
    pub fn new(wall_ms: impl Fn() -> u64 + Send + Sync + 'static, seed: u64) -> Self {
        Self {
            recipes: true,
            lease_ms_max: 24 * 60 * 60 * 1000,
            region: "us-east-1".to_owned(),
            secrets: None,
            wall_ms: Arc::new(wall_ms),
            seed,
            body_bytes_max: 16 << 20,
            // With the beginnings of 1,024 bodies it is 64 MiB.
            all_bodies_bytes_max: 48 << 20,
            address_bodies_bytes_max: 16 << 20,
            unread: UnreadLimits::default(),
            // Pools of SDKs keep connections for as long as a minute.
            header_timeout: Duration::from_secs(90),
            body_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(10),
            connections_max: 1024,
        }
    }

    /// What makes an item of this table a lock.
    pub(crate) fn rules<'a>(&self, table: &'a Table) -> Rules<'a> {
        Rules {
            table,
            knows_locks: self.recipes && table.used_for != Some(TableUse::Plain),
            lease_ms_max: self.lease_ms_max,
            wall_ms: (self.wall_ms)(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipes, region, secrets, .. } = self;
        write!(f, "Options {{ recipes: {recipes}, region: {region:?}, secrets: {secrets:?}, .. }}")
    }
}
