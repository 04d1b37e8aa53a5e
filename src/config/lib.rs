//! The configuration of a node.
//!
//! One TOML file configures a node. Every key has an effect, an unknown key is an error, and all problems are reported at once. Flags take
//! precedence over environment variables, these over the file, and the file over the defaults. `cluster-configs/node1.toml` explains each
//! key.
//!
//! Deliberately absent: most limits of the table ([`lockkeeper_machine`]). They are part of the meaning of the log, so they are constants,
//! the same on all nodes. The leader writes the limits of the file into the log. Also absent: settings with no reason to differ; each
//! key multiplies the untested configurations.

mod file;
#[cfg(test)]
mod tests;
mod validate;

pub use validate::{check_reachable, is_cluster_id};

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use time::{Date, Month, PrimitiveDateTime, Time};

use lockkeeper_machine::Limits;

/// The configuration of one node. A key that a file leaves out has the value of [`Config::default`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The cluster's name. A node communicates with its own cluster only. It has 1 to 64 of `a-z`, `0-9` and `-`.
    pub cluster_id: String,
    /// This node's id in the cluster, 1 or more. It must not be reused with another data directory.
    pub node_id: u64,
    /// The directory of the log, the snapshots and the node's identity.
    pub data_dir: PathBuf,
    /// The address on which the node listens for clients, host:port. If a file leaves it empty, it is this node's client address among the
    /// members.
    pub client_listen: String,
    /// The address on which the node listens for peers, host:port. If a file leaves it empty, it is this node's peer address among the
    /// members.
    pub peer_listen: String,
    /// Whether this node may form the cluster, with all members, where none exists yet.
    pub bootstrap: bool,
    /// Nodes of an existing cluster, host:port for clients, which this node asks to be added to it. If there are any, the node needs no
    /// members in its configuration, and no cluster id.
    pub join: Vec<String>,
    /// The address at which clients reach a node that is not among the members of its configuration. Empty means `client_listen`.
    pub client_address: String,
    /// The address at which peers reach that node. Empty means `peer_listen`.
    pub peer_address: String,
    /// Whether this node may listen beyond this machine without TLS. Anyone who reaches it may then do anything, so each start logs it.
    pub insecure: bool,
    /// The log filter, in the syntax of the crate `tracing-subscriber`.
    pub log: String,
    /// The rules of who may call, and do what.
    pub auth: AuthConfig,
    /// The certificates. Without them, the node speaks plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// The cluster that this one was restored from, whose clients are served for a time, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_cluster: Option<EarlierClusterConfig>,
    /// Replication.
    pub raft: RaftConfig,
    /// Limits of the table.
    pub limits: LimitsConfig,
    /// The disk of the data directory.
    pub disk: DiskConfig,
    /// The audit files.
    pub audit: AuditConfig,
    /// DynamoDB's API.
    pub dynamodb: DynamodbConfig,
    /// Redis' protocol.
    pub redis: RedisConfig,
    /// ZooKeeper's protocol.
    pub zookeeper: ZookeeperConfig,
    /// etcd's API.
    pub etcd: EtcdConfig,
    /// The port for people and for what watches the node.
    pub http: HttpConfig,
    /// Traces of requests.
    pub traces: TracesConfig,
    /// The members that form the cluster, this node among them.
    pub members: Vec<ConfiguredMember>,
}

/// A member: its id, and its addresses for clients and peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredMember {
    /// Its id in the cluster.
    pub node_id: u64,
    /// The address at which clients reach it, host:port.
    pub client_address: String,
    /// The address at which its peers reach it, host:port.
    pub peer_address: String,
}

/// The certificates of a node, in PEM. They are read again when the files change. A relative path is relative to the working directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The file of the authorities that certificates of nodes and clients are signed by.
    pub ca: PathBuf,
    /// The file of this node's certificate.
    pub certificate: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
}

/// The cluster that this one was restored from. Until the end, this node serves clients with certificates of that cluster as its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierClusterConfig {
    /// The name of that cluster.
    pub cluster_id: String,
    /// The end: a date with a time and an offset, such as `2026-12-24T12:00:00Z`, or a date alone, whose beginning in UTC counts.
    pub until: toml::value::Datetime,
}

/// The rules of who may call, and do what. Both files are read again when they change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// The file of tokens: a hash and an identity on each line. If it is empty, no token is known.
    pub tokens: PathBuf,
    /// The policy file. Without one, every caller that is served may do everything.
    pub policy: PathBuf,
    /// Whether callers without an identity are served.
    pub anonymous: bool,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self { tokens: PathBuf::new(), policy: PathBuf::new(), anonymous: true }
    }
}

/// Raft's timing and log retention. It must be the same on all nodes.
///
/// The timing must agree: a node that hears a leader grants no other candidate its vote for an election timeout. The leader's lease relies
/// on that. A node with a shorter timeout would vote for a second leader while the first still holds its lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// The time between two heartbeats of the leader, in milliseconds. Three quarters of it must exceed p99.9 of one fsync plus one round
    /// trip.
    pub heartbeat_ms: u64,
    /// A follower starts an election when it hears no leader for a random time between this and `election_timeout_ms_max`, in milliseconds.
    pub election_timeout_ms_min: u64,
    /// The other end of that range, in milliseconds.
    pub election_timeout_ms_max: u64,
    /// Minimum number of log entries between two snapshots; 128 MiB of entries count as that many. After a large snapshot, their bytes must
    /// also reach half of its size.
    pub snapshot_entries: u64,
    /// Number of log entries before a snapshot that are kept, at most 64 MiB of them, so that a follower that lags by fewer needs no
    /// snapshot.
    pub keep_entries: u64,
    /// Maximum number of bytes of the log that a leader keeps for a slow follower. A follower that lags by more gets a snapshot.
    pub backlog_bytes_max: u64,
    /// Interval at which the leader compares the tables of the members, in milliseconds. 0 means never.
    pub compare_tables_ms: u64,
}

/// The limits of the table while this node leads. They should be the same on all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum number of bytes of the whole table, by its own count: within a factor of two of its memory on each node.
    pub table_bytes: usize,
    /// Maximum number of bytes of one session: its grants, waits and replies with their names and data.
    pub session_bytes: usize,
}

/// The disk of the data directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskConfig {
    /// Number of bytes that must be free, beside room for two snapshots. Below that, the node is short of space; while too few voters have
    /// space, the cluster takes no new sessions, acquires and updates. 0 means that the space is not watched.
    pub reserve_bytes: u64,
}

/// The audit files of this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The directory of the files. Only this node may write there. If it is empty, this node writes none.
    pub directory: PathBuf,
    /// A file that has reached this number of bytes is followed by another one.
    pub file_bytes: u64,
    /// Number of files that stay, including the newest. Older ones are deleted. 0 means that all stay.
    pub files_kept: usize,
}

/// DynamoDB's API on a port of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamodbConfig {
    /// The address on which the node listens for it, host:port. Empty means that the API is not served.
    pub listen: String,
    /// The file of access keys and their secrets. Without one, signatures are not checked, and an access key does not give an identity.
    pub secrets: PathBuf,
}

/// Redis' protocol on a port of its own. With `[tls]` it speaks TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// The address on which the node listens for it, host:port. Empty means that the protocol is not served.
    pub listen: String,
    /// The address at which clients reach it, host:port, which the nodes tell to clients of Sentinel. Empty means `listen`.
    pub advertise: String,
}

/// ZooKeeper's protocol on a port of its own. With `[tls]` it speaks TLS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZookeeperConfig {
    /// The address on which the node listens for it, host:port. Empty means that the protocol is not served.
    pub listen: String,
    /// The shortest session timeout that a client is granted, in milliseconds. One that asks for less is granted this.
    pub session_timeout_ms_min: u32,
    /// The longest one. A client that asks for more is granted this.
    pub session_timeout_ms_max: u32,
    /// For how long a session lives whose client closed the socket without closing the session, in milliseconds. 0 means until its
    /// timeout, as ZooKeeper has it: a client that a middlebox cut off counts on that.
    pub closed_socket_grace_ms: u32,
}

/// etcd's API on a port of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdConfig {
    /// The address on which the node listens for it, host:port. Empty means that the API is not served.
    pub listen: String,
    /// The address at which clients reach it, host:port, which the members tell to clients that ask. Empty means `listen`.
    pub advertise: String,
}

/// The port of probes, metrics and the console. With `[tls]` it speaks TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// The address on which the node listens for it, host:port. Empty means that it is not served.
    pub listen: String,
    /// Further names under which browsers open the console, and clients call etcd's JSON: that of a proxy, for example. IP addresses,
    /// `localhost` and the names in this node's addresses need not be listed.
    pub hosts: Vec<String>,
}

/// Traces of requests, which are sent to a collector by OTLP over gRPC.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector, `http://host:port`. Empty means that of the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT`; without either, there
    /// are no traces.
    pub endpoint: String,
    /// The share of requests that begin a new trace, 0 to 1. A request whose caller sent `traceparent` is traced as its caller decided.
    pub sample_ratio: f64,
}

/// Values from flags and environment variables, which take precedence over the file.
#[derive(Clone, Default, Debug)]
#[expect(missing_docs, reason = "the fields of `Config`, each of them optional")]
pub struct Overrides {
    pub cluster_id: Option<String>,
    pub node_id: Option<u64>,
    pub data_dir: Option<PathBuf>,
    pub client_listen: Option<String>,
    pub peer_listen: Option<String>,
    pub bootstrap: Option<bool>,
    pub insecure: Option<bool>,
    /// A directory with `ca.pem`, `node-ID.pem` and `node-ID-key.pem`. It overrides `tls`.
    pub certs: Option<PathBuf>,
    pub join: Option<Vec<String>>,
    pub client_address: Option<String>,
    pub peer_address: Option<String>,
    pub log: Option<String>,
    /// A value from the environment. Unlike the others it counts only if the file has none, because it is there for all programs of a
    /// machine.
    pub traces_endpoint: Option<String>,
}

/// The reasons why a node cannot start with its configuration: all problems, not only the first. Nothing was started.
#[derive(Debug)]
pub struct ConfigError {
    /// The configuration file.
    pub file: PathBuf,
    /// One or more, each with the key, the problem, and the remedy.
    pub problems: Vec<String>,
}

impl Config {
    /// Reads a file, applies the overrides, and validates the result.
    pub fn load(file: &Path, overrides: Overrides) -> Result<Self, ConfigError> {
        let fail = |problems| ConfigError { file: file.to_owned(), problems };
        let text = fs::read_to_string(file)
            .map_err(|error| fail(vec![format!("cannot read it: {error}: name a file that this user can read")]))?;
        let config = file::parse(&text).map_err(fail)?.overridden(&overrides);

        let problems = validate::problems(&config);
        if !problems.is_empty() {
            return Err(fail(problems.into_iter().map(|problem| problem.described(&overrides)).collect()));
        }
        Ok(config)
    }

    /// Returns settings that are allowed and probably a mistake.
    pub fn warnings(&self) -> Vec<String> {
        validate::warnings(self)
    }

    /// Returns this node among the members. Every configuration that was loaded has it.
    pub fn this_member(&self) -> Option<&ConfiguredMember> {
        self.members.iter().find(|member| member.node_id == self.node_id)
    }

    fn overridden(mut self, overrides: &Overrides) -> Self {
        fn put<T: Clone>(value: &mut T, with: &Option<T>) {
            if let Some(with) = with {
                value.clone_from(with);
            }
        }

        put(&mut self.cluster_id, &overrides.cluster_id);
        put(&mut self.node_id, &overrides.node_id);
        put(&mut self.data_dir, &overrides.data_dir);
        put(&mut self.client_listen, &overrides.client_listen);
        put(&mut self.peer_listen, &overrides.peer_listen);
        put(&mut self.bootstrap, &overrides.bootstrap);
        put(&mut self.insecure, &overrides.insecure);

        if let Some(certs) = &overrides.certs {
            let own = |suffix: &str| certs.join(format!("node-{}{suffix}.pem", self.node_id));
            self.tls = Some(TlsConfig { ca: certs.join("ca.pem"), certificate: own(""), key: own("-key") });
        }

        put(&mut self.join, &overrides.join);
        put(&mut self.client_address, &overrides.client_address);
        put(&mut self.peer_address, &overrides.peer_address);
        put(&mut self.log, &overrides.log);

        if self.traces.endpoint.is_empty() {
            put(&mut self.traces.endpoint, &overrides.traces_endpoint);
        }

        self.joining().listening()
    }

    /// Adds this node to the members, if it joins a cluster and is not among them yet.
    fn joining(mut self) -> Self {
        for endpoint in &mut self.join {
            // Clients write endpoints as URLs.
            *endpoint = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        }

        if self.join.is_empty() || self.node_id == 0 || self.this_member().is_some() {
            return self;
        }

        let address = |address: &String, listen: &String| if address.is_empty() { listen } else { address }.clone();
        self.members.push(ConfiguredMember {
            node_id: self.node_id,
            client_address: address(&self.client_address, &self.client_listen),
            peer_address: address(&self.peer_address, &self.peer_listen),
        });
        self
    }

    /// Fills empty listen addresses from this node's member.
    fn listening(mut self) -> Self {
        let Some(member) = self.this_member().cloned() else { return self };
        if self.client_listen.is_empty() {
            self.client_listen = member.client_address;
        }
        if self.peer_listen.is_empty() {
            self.peer_listen = member.peer_address;
        }
        self
    }
}

impl Overrides {
    /// Whether the value of this key comes from a flag or an environment variable.
    fn names(&self, key: &str) -> bool {
        match key {
            "cluster_id" => self.cluster_id.is_some(),
            "node_id" => self.node_id.is_some(),
            "data_dir" => self.data_dir.is_some(),
            "client_listen" => self.client_listen.is_some(),
            "peer_listen" => self.peer_listen.is_some(),
            "bootstrap" => self.bootstrap.is_some(),
            "insecure" => self.insecure.is_some(),
            "join" => self.join.is_some(),
            "client_address" => self.client_address.is_some(),
            "peer_address" => self.peer_address.is_some(),
            "log" => self.log.is_some(),
            _ => false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_id: String::new(),
            node_id: 0,
            data_dir: PathBuf::new(),
            client_listen: String::new(),
            peer_listen: String::new(),
            bootstrap: false,
            join: Vec::new(),
            client_address: String::new(),
            peer_address: String::new(),
            insecure: false,
            log: "info,openraft=error".to_owned(),
            tls: None,
            earlier_cluster: None,
            auth: AuthConfig::default(),
            raft: RaftConfig::default(),
            limits: LimitsConfig::default(),
            disk: DiskConfig::default(),
            audit: AuditConfig::default(),
            dynamodb: DynamodbConfig::default(),
            redis: RedisConfig::default(),
            zookeeper: ZookeeperConfig::default(),
            etcd: EtcdConfig::default(),
            http: HttpConfig::default(),
            traces: TracesConfig::default(),
            members: Vec::new(),
        }
    }
}

impl Default for ZookeeperConfig {
    /// The bounds of ZooKeeper's own default configuration: 2 and 20 ticks of 2 s.
    fn default() -> Self {
        Self {
            listen: String::new(),
            session_timeout_ms_min: 4_000,
            session_timeout_ms_max: 40_000,
            closed_socket_grace_ms: 0,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let Limits { table_bytes, session_bytes, .. } = Limits::default();
        Self { table_bytes, session_bytes }
    }
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self { reserve_bytes: 512 << 20 }
    }
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { directory: PathBuf::new(), file_bytes: 64 << 20, files_kept: 0 }
    }
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self { endpoint: String::new(), sample_ratio: 0.01 }
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        let LimitsConfig { table_bytes, session_bytes } = *config;
        Self { table_bytes, session_bytes, ..Self::default() }
    }
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 75,
            election_timeout_ms_min: 300,
            election_timeout_ms_max: 600,
            snapshot_entries: 10_000,
            keep_entries: 1_000,
            backlog_bytes_max: 256 << 20,
            compare_tables_ms: 30_000,
        }
    }
}

impl EarlierClusterConfig {
    /// The end in milliseconds since 1970, or `None` if the value is not a moment.
    pub fn until_ms(&self) -> Option<u64> {
        let toml::value::Datetime { date, time, offset } = self.until;
        let date = date?;
        let month = Month::try_from(date.month).ok()?;
        let date = Date::from_calendar_date(date.year.into(), month, date.day).ok()?;
        let time = match time {
            Some(time) => Time::from_hms(time.hour, time.minute, time.second.unwrap_or_default()).ok()?,
            None => Time::MIDNIGHT,
        };

        let offset_minutes = match offset {
            // A time without an offset does not say which clock it is for.
            None if self.until.time.is_some() => return None,
            None | Some(toml::value::Offset::Z) => 0,
            Some(toml::value::Offset::Custom { minutes }) => i64::from(minutes),
        };
        let seconds = PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp() - offset_minutes * 60;
        u64::try_from(seconds * 1000).ok()
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration {} cannot be used", self.file.display())?;
        for problem in &self.problems {
            write!(f, "\n- {}", problem.trim_end().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}
