//! The settings of the port.

use std::{fmt, sync::Arc, thread, time::Duration};

use tokio::task::spawn_blocking;

use crate::{ConnectionLimits, RequestLimits, ScriptLimits};

/// Settings, limits, and the inputs from outside: the time and a seed.
#[derive(Clone)]
pub struct RedisOptions {
    /// Returns microseconds since 1970, for TIME and for deadlines that clients give as times.
    pub wall_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// A seed that makes the ids of this node, and its random numbers, differ from those of other nodes and runs.
    pub seed: u64,
    /// The names under which clients of Sentinel ask for the master. Any other name is answered, too, but not listed.
    pub master_names: Vec<String>,
    /// The limits of a request.
    pub request_limits: RequestLimits,
    /// The limits of a script.
    pub script_limits: ScriptLimits,
    /// The limits of what one connection has the node keep.
    pub connection_limits: ConnectionLimits,
    /// Maximum number of bytes of all requests that have not arrived completely or are not answered, with what connections have the node
    /// keep (queued commands, watched keys, subscriptions), beyond the first 4 KiB of each connection.
    pub requests_bytes_max: usize,
    /// Maximum number of bytes of all replies that are not read, or wait for a commit, beyond the first 4 KiB of each connection.
    pub replies_bytes_max: usize,
    /// Maximum number of bytes of the replies of one connection that are not read. Its requests wait meanwhile.
    pub connection_replies_bytes_max: usize,
    /// Time limit of a handshake, and of the first request.
    pub arrival_timeout: Duration,
    /// Time limit of the rest of a request that has begun to arrive.
    pub request_timeout: Duration,
    /// Time limit of a command.
    pub command_timeout: Duration,
    /// Maximum number of connections at a time.
    pub connections_max: usize,
    /// Bytes of the scripts that this node remembers.
    pub script_cache_bytes_max: usize,
    /// Number of scripts that run at the same time, and of long ones beside them.
    pub scripts_max: usize,
    /// Runs work on a thread that may be busy for long. At a low priority, so that long scripts take no processor from what is urgent.
    pub run_apart: RunApart,
    /// Runs scripts on the thread of the connection instead of their own thread: a simulation has only one thread.
    pub scripts_in_place: bool,
}

/// The limits that a simulation draws. A real node has [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedisLimits {
    /// See [`RedisOptions::requests_bytes_max`].
    pub requests_bytes: usize,
    /// See [`RedisOptions::replies_bytes_max`].
    pub replies_bytes: usize,
    /// See [`RedisOptions::connection_replies_bytes_max`].
    pub connection_replies_bytes: usize,
    /// See [`RedisOptions::connection_limits`].
    pub connection: ConnectionLimits,
}

impl RedisLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        requests_bytes: 48 << 20,
        replies_bytes: 48 << 20,
        connection_replies_bytes: 1 << 20,
        connection: ConnectionLimits::REAL,
    };
}

impl Default for RedisLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// Runs work on another thread. Work that is dropped is noticed.
pub type RunApart = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

impl RedisOptions {
    /// Makes options with the usual limits.
    pub fn new(wall_us: impl Fn() -> u64 + Send + Sync + 'static, seed: u64) -> Self {
        Self {
            wall_us: Arc::new(wall_us),
            seed,
            master_names: vec!["mymaster".to_owned(), "lockkeeper".to_owned()],
            request_limits: RequestLimits::default(),
            script_limits: ScriptLimits::default(),
            connection_limits: RedisLimits::REAL.connection,

            requests_bytes_max: RedisLimits::REAL.requests_bytes,
            replies_bytes_max: RedisLimits::REAL.replies_bytes,
            connection_replies_bytes_max: RedisLimits::REAL.connection_replies_bytes,
            arrival_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            // Clients wait for as long as 5 s, and an answer that comes with their timeout is none.
            command_timeout: Duration::from_secs(4),
            connections_max: 1024,
            script_cache_bytes_max: 4 << 20,
            // More scripts at a time would only take the processors from each other, and from the rest of the node.
            scripts_max: thread::available_parallelism().map_or(2, usize::from).clamp(2, 16),
            run_apart: Arc::new(|work| drop(spawn_blocking(work))),
            scripts_in_place: false,
        }
    }

    /// The same with these limits.
    pub fn with_limits(self, limits: RedisLimits) -> Self {
        let RedisLimits { requests_bytes, replies_bytes, connection_replies_bytes, connection } = limits;
        Self {
            requests_bytes_max: requests_bytes,
            replies_bytes_max: replies_bytes,
            connection_replies_bytes_max: connection_replies_bytes,
            connection_limits: connection,
            ..self
        }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("master_names", &self.master_names)
            .field("request_limits", &self.request_limits)
            .field("script_limits", &self.script_limits)
            .field("command_timeout", &self.command_timeout)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}
