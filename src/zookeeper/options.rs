//! The settings of the port.

use std::{fmt, sync::Arc, time::Duration};

/// Settings, limits, and the inputs from outside: the time, and random numbers.
#[derive(Clone)]
pub struct ZookeeperOptions {
    /// Returns milliseconds since 1970, for the times that nodes show and for nodes with a time to live.
    pub wall_ms: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// Returns random numbers that nobody can guess, for the ids of sessions.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The least time that a session lives without a sign of its client, in milliseconds: at least 500. A client that asks for less gets
    /// this.
    pub session_timeout_ms_min: u64,
    /// The longest such time, in milliseconds. A client that asks for more gets this.
    pub session_timeout_ms_max: u64,
    /// Time after which the session of a client ends that has closed its connection without an end of its session, and has not come back.
    /// `None`, as ZooKeeper has it, lets the session live for its timeout: a client whose connection was cut by somebody between still
    /// believes in its session.
    pub closed_socket_grace: Option<Duration>,
    /// Maximum length of a request, in bytes.
    pub frame_bytes_max: usize,
    /// Maximum number of bytes of all requests that are not answered, beyond the first 4 KiB of each connection.
    pub requests_bytes_max: usize,
    /// Maximum number of bytes of all replies that are made and not read, beyond the first 4 KiB of each connection.
    pub replies_bytes_max: usize,
    /// Maximum number of bytes of the replies of one connection that are not read. Its requests wait meanwhile.
    pub connection_replies_bytes_max: usize,
    /// Maximum number of bytes of the events of one connection that are not read. Beyond it, the connection is closed.
    pub connection_events_bytes_max: usize,
    /// Maximum number of bytes of the events of all connections that are not read, beyond the first 4 KiB of each: one address may have
    /// half of what others leave free. Where there is no room, the connection from that address ends whose events take the most.
    pub events_bytes_max: usize,
    /// Maximum number of watches of one connection.
    pub connection_watches_max: usize,
    /// Maximum number of bytes of all watches, about: one address may have half of what others leave free, and one connection half of what
    /// the others of its address leave of that.
    pub watches_bytes_max: usize,
    /// Time limit of a TLS handshake, and of the first frame.
    pub arrival_timeout: Duration,
    /// Time limit of a request at the store. The timeout of the client's session, if that is shorter, takes its place.
    pub request_timeout: Duration,
    /// Maximum number of connections at a time.
    pub connections_max: usize,
    /// The words of four letters that are answered.
    pub words: Vec<String>,
}

/// The limits that a simulation draws. A real node has [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZookeeperLimits {
    /// See [`ZookeeperOptions::requests_bytes_max`].
    pub requests_bytes: usize,
    /// See [`ZookeeperOptions::replies_bytes_max`].
    pub replies_bytes: usize,
    /// See [`ZookeeperOptions::connection_replies_bytes_max`].
    pub connection_replies_bytes: usize,
    /// See [`ZookeeperOptions::connection_watches_max`].
    pub connection_watches: usize,
    /// See [`ZookeeperOptions::watches_bytes_max`].
    pub watches_bytes: usize,
}

impl ZookeeperLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        requests_bytes: 48 << 20,
        replies_bytes: 48 << 20,
        connection_replies_bytes: 4 << 20,
        connection_watches: 1 << 17,
        watches_bytes: 256 << 20,
    };
}

impl Default for ZookeeperLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// The least timeout of a session that can be configured, in milliseconds. A client that hears nothing for two thirds of it goes elsewhere.
pub(crate) const SESSION_TIMEOUT_MS_MIN: u64 = 500;

impl ZookeeperOptions {
    /// Makes options with the usual limits: those of ZooKeeper, where it has them.
    pub fn new(
        wall_ms: impl Fn() -> i64 + Send + Sync + 'static,
        random: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let words = ["conf", "cons", "dump", "envi", "isro", "mntr", "ruok", "srvr", "stat", "wchs"];
        Self {
            wall_ms: Arc::new(wall_ms),
            random: Arc::new(random),
            session_timeout_ms_min: 4_000,
            session_timeout_ms_max: 40_000,
            closed_socket_grace: None,
            frame_bytes_max: 1_048_575,

            requests_bytes_max: ZookeeperLimits::REAL.requests_bytes,
            replies_bytes_max: ZookeeperLimits::REAL.replies_bytes,
            connection_replies_bytes_max: ZookeeperLimits::REAL.connection_replies_bytes,
            connection_events_bytes_max: 4 << 20,
            events_bytes_max: 48 << 20,
            connection_watches_max: ZookeeperLimits::REAL.connection_watches,
            watches_bytes_max: ZookeeperLimits::REAL.watches_bytes,
            arrival_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            connections_max: 16_384,
            words: words.map(str::to_owned).to_vec(),
        }
    }

    /// The same with these limits.
    pub fn with_limits(self, limits: ZookeeperLimits) -> Self {
        let ZookeeperLimits { requests_bytes, replies_bytes, .. } = limits;
        let ZookeeperLimits { connection_replies_bytes, connection_watches, watches_bytes, .. } = limits;
        Self {
            requests_bytes_max: requests_bytes,
            replies_bytes_max: replies_bytes,
            connection_replies_bytes_max: connection_replies_bytes,
            connection_watches_max: connection_watches,
            watches_bytes_max: watches_bytes,
            ..self
        }
    }

    /// The timeout that a client gets who asks for this one, in milliseconds.
    pub(crate) fn granted_ms(&self, asked_ms: i32) -> u64 {
        let least = self.session_timeout_ms_min.max(SESSION_TIMEOUT_MS_MIN);
        let asked = u64::try_from(asked_ms).unwrap_or_default();
        asked.clamp(least, self.session_timeout_ms_max.max(least))
    }
}

impl fmt::Debug for ZookeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperOptions")
            .field("session_timeout_ms_min", &self.session_timeout_ms_min)
            .field("session_timeout_ms_max", &self.session_timeout_ms_max)
            .field("closed_socket_grace", &self.closed_socket_grace)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}
