//! A node, from its configuration to its end.
//!
//! [`serve`] runs a node on a real machine: TCP, the system's clock, the log in sled. [`run`] takes these as parameters, so that a
//! simulation can replace them. Both end in order when they are told to: see `ending`.
//!
//! | file | what it has |
//! |---|---|
//! | `opening` | what `serve` opens on the machine: certificates, sockets, the data directory |
//! | `prepared` | what must be ready before the first request: access rules, Raft, the services |
//! | `replication` | Raft, the network to the peers, and the table |
//! | `services` | what is served, with the layers around it |
//! | `ports` | at which port it is served |
//! | `supported` | which cluster versions the program supports |
//! | `limits` | the limits of what clients may have under way |
//! | `duties` | what a node does besides serving |
//! | `ending` | how it ends in order |

mod duties;
mod ending;
mod limits;
mod opening;
mod ports;
mod prepared;
mod replication;
mod serve_error;
mod services;
mod supported;

use std::{future::Future, sync::Arc};

use futures::FutureExt as _;
use openraft::storage::RaftLogStorage;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinError, JoinSet, spawn_blocking},
};
use tokio_util::sync::CancellationToken;

use lockkeeper_audit::Sink;
use lockkeeper_config::Config;
use lockkeeper_environment::{Environment, Tasks};
use lockkeeper_machine::{Limits, Versions};
use lockkeeper_raft::{
    Replica,
    identity::NodeIdentity,
    members::{Members, forming::FormingConfig},
    snapshot::SnapshotStore,
    types::TypeConfig,
};
use lockkeeper_storage::space::{FreeSpace, NodeDirectories, OfDirectory};
use lockkeeper_table::{Inspect, Table};
use lockkeeper_traces::Traces;
use lockkeeper_transport::{
    Connector, Listen, TcpConnector,
    tls::{Tls, TlsConnector},
};

pub use self::{
    limits::NodeLimits,
    serve_error::{Remedy, ServeError},
    supported::supported_versions,
};
use self::{opening::DataDirectory, replication::Replication, services::Services};
use super::{
    descriptors::{FurtherPorts, Places},
    joining,
};
pub use super::{
    service::{LongReadLimits, WaitLimits},
    unread::UnreadAnswerLimits,
    v1::PipelineLimits,
};
pub use lockkeeper_dynamodb::DynamoLimits;
pub use lockkeeper_redis::{ConnectionLimits, RedisLimits};
pub use lockkeeper_zookeeper::ZookeeperLimits;

/// The parts that every node has. A simulation replaces most of them.
#[derive(Debug)]
pub struct Parts<L, C, S> {
    /// Its configuration.
    pub config: Config,
    /// The listener for clients.
    pub clients: L,
    /// The listener for peers.
    pub peers: L,
    /// How it reaches its peers: with the same certificates.
    pub connector: C,
    /// Its clock, random numbers, and runtimes.
    pub environment: Environment,
    /// Its identity.
    pub identity: Arc<NodeIdentity>,
    /// Its log.
    pub log: S,
    /// Its snapshots.
    pub snapshots: SnapshotStore,
    /// The space for its data.
    pub disk: Arc<dyn FreeSpace>,
    /// The parts that a node may go without.
    pub further: FurtherParts<L>,
}

/// The parts that a node may go without. Their default is a node that serves the native API alone, in plain text.
///
/// A new part belongs here if it has a default, so that callers need not name it.
#[derive(Debug)]
pub struct FurtherParts<L> {
    /// The limits of the table while it leads, in place of those of the configuration: for a simulation that reaches them.
    pub limits: Option<Limits>,
    /// The limits of what its clients may have under way: the default, except in a simulation that reaches them.
    pub node_limits: NodeLimits,
    /// The listener for DynamoDB's API, if it is served.
    pub dynamodb: Option<L>,
    /// The listener for etcd's API, if it is served.
    pub etcd: Option<L>,
    /// The listener for Redis' protocol, if it is served.
    pub redis: Option<L>,
    /// The listener for ZooKeeper's protocol, if it is served.
    pub zookeeper: Option<L>,
    /// The listener for probes, metrics and the console, if they are served.
    pub http: Option<L>,
    /// Its certificates. Without them, its ports take plain text.
    pub tls: Option<Tls>,
    /// How many connections it accepts.
    pub places: Places,
    /// Inspects its table after each change.
    pub inspector: Option<Arc<dyn Inspect>>,
    /// The cluster versions that its program supports: [`supported_versions`], except in tests of an upgrade.
    pub versions: Versions,
    /// Receives the node's replica as soon as Raft runs. It is for tests that propose commands which no service has.
    pub replica: Option<oneshot::Sender<Replica>>,
}

impl<L> Default for FurtherParts<L> {
    fn default() -> Self {
        Self {
            limits: None,
            node_limits: NodeLimits::default(),
            dynamodb: None,
            etcd: None,
            redis: None,
            zookeeper: None,
            http: None,
            tls: None,
            places: Places::default(),
            inspector: None,
            versions: Versions::OWN,
            replica: None,
        }
    }
}

/// The runtimes for tasks that others cause. Both must outlive the node.
#[derive(Clone, Debug)]
pub struct Runtimes {
    /// The runtime for requests of clients.
    pub clients: Handle,
    /// The runtime for requests by other protocols (etcd's, DynamoDB's, HTTP). It is separate, so that a costly request slows down these
    /// ports alone.
    pub adapters: Handle,
}

/// Runs a node on this machine until `shutdown` completes, and then for about 4 s at the most, until the requests in flight are answered.
///
/// Dropping the future ends the node at once, as a crash would.
pub async fn serve(
    mut config: Config,
    runtimes: Runtimes,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let shutdown = shutdown.shared();
    let tls = opening::load_certificates(&config).await?;
    let connector = TlsConnector::for_node(TcpConnector, tls.clone());
    if config.cluster_id.is_empty() {
        config.cluster_id = match NodeIdentity::recorded_cluster(&config.data_dir)? {
            Some(cluster_id) => cluster_id.to_string(),
            None => tokio::select! {
                cluster_id = joining::cluster_id(&config.join, &connector) => cluster_id,
                () = shutdown.clone() => return Ok(()),
            },
        };
    }
    if let Some(tls) = &tls {
        opening::check_subject(&config, tls)?;
    }

    let clients = opening::listen("client_listen", &config.client_listen).await?;
    let peers = opening::listen("peer_listen", &config.peer_listen).await?;
    let dynamodb = opening::listen_if_set("dynamodb.listen", &config.dynamodb.listen).await?;
    let etcd = opening::listen_if_set("etcd.listen", &config.etcd.listen).await?;
    let redis = opening::listen_if_set("redis.listen", &config.redis.listen).await?;
    let zookeeper = opening::listen_if_set("zookeeper.listen", &config.zookeeper.listen).await?;
    let http = opening::listen_if_set("http.listen", &config.http.listen).await?;
    let ports = FurtherPorts {
        etcd: etcd.is_some(),
        dynamodb: dynamodb.is_some(),
        redis: redis.is_some(),
        zookeeper: zookeeper.is_some(),
        http: http.is_some(),
    };

    let on_clients = Tasks::On(runtimes.clients);
    let on_adapters = Tasks::On(runtimes.adapters);
    let environment = Environment { clients: on_clients, adapters: on_adapters, ..Environment::system() };
    let opened = {
        let config = config.clone();
        let environment = environment.clone();
        spawn_blocking(move || DataDirectory::open(&config, &environment)).await
    };
    let DataDirectory { lock: _lock, identity, log, snapshots } = opened.map_err(stopped)??;

    let places = Places::for_this_process(ports);
    let versions = supported_versions();
    let further =
        FurtherParts { dynamodb, etcd, redis, zookeeper, http, tls, places, versions, ..FurtherParts::default() };
    let parts = Parts {
        disk: Arc::new(disks(&config)),
        config,
        clients,
        peers,
        connector,
        environment,
        identity,
        log: log.clone(),
        snapshots,
        further,
    };
    let ended = run(parts, shutdown).await;
    if let Err(error) = log.close().await {
        tracing::warn!(%error, "the log was not closed in order; nothing that was acknowledged is lost");
    }
    ended
}

/// The file systems that end the node when they are full.
fn disks(config: &Config) -> NodeDirectories {
    let audit = &config.audit.directory;
    let audit = (!audit.as_os_str().is_empty()).then(|| OfDirectory(audit.clone()));
    NodeDirectories { data: OfDirectory(config.data_dir.clone()), audit }
}

/// Runs a node from its parts until `shutdown` completes, as [`serve`] does.
pub async fn run<L, C, S>(parts: Parts<L, C, S>, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError>
where
    L: Listen,
    C: Connector,
    S: RaftLogStorage<TypeConfig>,
{
    let (node, listeners, acceptors) = RunningNode::prepare(parts).await?;

    // Dropping them ends all tasks, so they end with this function, however it ends.
    let mut tasks = NodeTasks::default();
    let reporter = node.serve(listeners, acceptors, &mut tasks)?;
    let ending = node.start_duties(reporter, &mut tasks);

    let ended = tokio::select! {
        ended = tasks.first_end() => ended,
        () = shutdown => Ok(()),
    };
    ending.drain(tasks).await;
    ended
}

/// A node whose Raft runs.
struct RunningNode<C> {
    base: Foundation<C>,
    replication: Replication<C>,
    members: Members,
    services: Services,
    traces: Traces,
    /// Cancelled when the node starts to end: the ports of clients accept no further connection.
    stopping: CancellationToken,
}

/// The parts that a node is made of, and the files that it reads before Raft starts.
struct Foundation<C> {
    config: Config,
    /// Written into the log while this node leads.
    limits: Limits,
    node_limits: NodeLimits,
    connector: C,
    tls: Option<Tls>,
    environment: Environment,
    identity: Arc<NodeIdentity>,
    disk: Arc<dyn FreeSpace>,
    places: Places,
    /// The members of the cluster, as the configuration names them.
    plan: FormingConfig,
    /// The audit files, if this node writes any.
    audit: Option<Sink>,
}

/// The tasks of a node. They end when this is dropped.
#[derive(Default)]
struct NodeTasks {
    /// The node ends with the first of these that ends.
    duties: JoinSet<Result<(), ServeError>>,
    /// The ports of clients. The node ends with the first of these too; when it ends, it waits for the others.
    clients: JoinSet<Result<(), ServeError>>,
    /// Aborted when the node starts to end.
    background: JoinSet<()>,
}

impl NodeTasks {
    /// Returns the outcome of the first task with which the node must end. Cancel safe.
    async fn first_end(&mut self) -> Result<(), ServeError> {
        let flat = |ended: Result<_, JoinError>| ended.unwrap_or_else(|broken| Err(stopped(broken)));
        tokio::select! {
            Some(ended) = self.duties.join_next() => flat(ended),
            Some(ended) = self.clients.join_next() => flat(ended),
            else => Ok(()),
        }
    }
}

/// Why the node ends, if it is an entry of the log.
fn unapplied(table: &Table) -> Option<ServeError> {
    table.unapplied().map(|why| ServeError::Unapplied(why.to_owned()))
}

fn stopped(why: impl std::fmt::Display) -> ServeError {
    ServeError::Raft(why.to_string())
}
