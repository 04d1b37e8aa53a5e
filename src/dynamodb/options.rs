//! The settings of the endpoint.

use std::{fmt, sync::Arc, thread, time::Duration};

use crate::{
    Secrets,
    recipes::Rules,
    schema::{TableProperties, TableUse},
};

/// Settings, limits, and the inputs from outside: the time and a seed.
#[derive(Clone)]
pub struct DynamoOptions {
    /// Whether locks are recognized, and have leases and tokens.
    pub recipes: bool,
    /// Maximum length in milliseconds of the leases that are requested from the store.
    pub lease_ms_max: u64,
    /// The region in the ARNs of tables.
    pub region: String,
    /// The access keys and their secrets. Without them, signatures are not checked.
    pub secrets: Option<Secrets>,
    /// Returns milliseconds since 1970, for the dates of tables and signatures, and for leases whose client says when they end.
    pub wall_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// A seed that makes the ids of requests differ from those of other nodes and runs.
    pub seed: u64,
    /// Maximum number of bytes of a body.
    pub body_bytes_max: usize,
    /// Maximum number of bytes of all bodies in flight, beyond the first 16 KiB of each.
    pub all_bodies_bytes_max: usize,
    /// Maximum number of bytes of the bodies in flight from one address, beyond the first 16 KiB of each.
    pub address_bodies_bytes_max: usize,
    /// Maximum number of bytes, about, that the values of all requests in flight take in memory, and the items that these read, beyond the
    /// first 64 KiB of each.
    pub all_decoded_bytes_max: usize,
    /// The same for the requests in flight from one address.
    pub address_decoded_bytes_max: usize,
    /// Number of requests that decode large bodies or items at one time.
    pub large_at_once: usize,
    /// The limits of answers that clients do not read.
    pub unread: UnreadLimits,
    /// Time limit of the headers of a request, counted from the request before, and of a handshake.
    pub header_timeout: Duration,
    /// Time limit of the body.
    pub body_timeout: Duration,
    /// Time limit of the operation.
    pub operation_timeout: Duration,
    /// Maximum number of connections at a time.
    pub connections_max: usize,
}

/// The limits of the bytes of answers that wait to be read, and of the time that they wait.
#[derive(Clone, Copy, Debug)]
pub struct UnreadLimits {
    /// Maximum number of bytes of one connection.
    pub connection: usize,
    /// Maximum number of bytes of all connections from one address.
    pub address: usize,
    /// Maximum number of bytes of all connections.
    pub node: usize,
    /// Maximum time that an answer waits without being read.
    pub patience: Duration,
}

impl Default for UnreadLimits {
    /// The limits of the node's own ports.
    fn default() -> Self {
        Self { connection: 4 << 20, address: 16 << 20, node: 32 << 20, patience: Duration::from_secs(10) }
    }
}

/// The limits that a simulation draws. A real node has [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DynamoLimits {
    /// See [`DynamoOptions::all_bodies_bytes_max`].
    pub all_bodies_bytes: usize,
    /// See [`DynamoOptions::address_bodies_bytes_max`].
    pub address_bodies_bytes: usize,
    /// See [`DynamoOptions::all_decoded_bytes_max`].
    pub all_decoded_bytes: usize,
    /// See [`DynamoOptions::address_decoded_bytes_max`].
    pub address_decoded_bytes: usize,
}

impl DynamoLimits {
    /// The limits of every real node. With the first bytes of 1,024 requests, the bodies take 64 MiB, and their values 256 MiB. The largest
    /// body has room, if its attributes are not all tiny.
    pub const REAL: Self = Self {
        all_bodies_bytes: 48 << 20,
        address_bodies_bytes: 16 << 20,
        all_decoded_bytes: 192 << 20,
        address_decoded_bytes: 96 << 20,
    };
}

impl Default for DynamoLimits {
    fn default() -> Self {
        Self::REAL
    }
}

impl DynamoOptions {
    /// The same with these limits.
    pub fn with_limits(self, limits: DynamoLimits) -> Self {
        let DynamoLimits { all_bodies_bytes, address_bodies_bytes, all_decoded_bytes, address_decoded_bytes } = limits;
        Self {
            all_bodies_bytes_max: all_bodies_bytes,
            address_bodies_bytes_max: address_bodies_bytes,
            all_decoded_bytes_max: all_decoded_bytes,
            address_decoded_bytes_max: address_decoded_bytes,
            ..self
        }
    }

    /// Makes options with the usual limits.
    pub fn new(wall_ms: impl Fn() -> u64 + Send + Sync + 'static, seed: u64) -> Self {
        Self {
            recipes: true,
            lease_ms_max: 24 * 60 * 60 * 1000,
            region: "us-east-1".to_owned(),
            secrets: None,
            wall_ms: Arc::new(wall_ms),
            seed,
            body_bytes_max: 16 << 20,
            all_bodies_bytes_max: DynamoLimits::REAL.all_bodies_bytes,
            address_bodies_bytes_max: DynamoLimits::REAL.address_bodies_bytes,
            all_decoded_bytes_max: DynamoLimits::REAL.all_decoded_bytes,
            address_decoded_bytes_max: DynamoLimits::REAL.address_decoded_bytes,
            // The ports share half of the processors, and half of these are left to small requests.
            large_at_once: thread::available_parallelism().map_or(1, |processors| processors.get() / 4).max(1),
            unread: UnreadLimits::default(),
            // Pools of SDKs keep connections for as long as a minute.
            header_timeout: Duration::from_secs(90),
            body_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(10),
            connections_max: 1024,
        }
    }

    /// The rules that make an item of this table a lock.
    pub(crate) fn rules<'a>(&self, table: &'a TableProperties) -> Rules<'a> {
        Rules {
            table,
            knows_locks: self.recipes && table.used_for != Some(TableUse::Plain),
            lease_ms_max: self.lease_ms_max,
            wall_ms: (self.wall_ms)(),
        }
    }
}

impl fmt::Debug for DynamoOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipes, region, secrets, .. } = self;
        write!(f, "Options {{ recipes: {recipes}, region: {region:?}, secrets: {secrets:?}, .. }}")
    }
}
