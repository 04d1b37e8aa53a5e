//! A node, from its configuration to its end.
//!
//! [`serve`] runs a node on a real machine: TCP, the system's clock, the log in sled. [`run`] takes these as parameters, so that a
//! simulation can replace them. `services`: what is served at which port; `duties`: what it does besides.

mod duties;
mod services;

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use openraft::{RaftLogReader, SnapshotPolicy, storage::RaftLogStorage};
use tokio::{net::TcpListener, runtime::Handle, sync::oneshot, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::Layer as _;

use self::{
    duties::DRAIN,
    services::{Services, listen_to},
};
use super::{
    access::{Access, earlier::EarlierCluster},
    cluster::Cluster,
    config::{AuditConfig, Config, Member, RaftConfig, TlsConfig, TracesConfig},
    connections::{Counted, CountedPort},
    console::Console,
    descriptors::{FurtherPorts, Places},
    dynamodb as dynamodb_endpoint, etcd as etcd_endpoint,
    gate::{Gated, Hosts},
    health,
    joining::{self, NotAdmitted},
    node_calls::{self, NodeCalls},
    service::{self, Local, waiting},
    v1::maintenance::Maintenance,
    web::{self, Web},
};
use lockkeeper_audit::{FileError, Rotation, Sink, SinkError};
use lockkeeper_environment::{Blocking, Environment, Tasks};
use lockkeeper_machine::Versions;
use lockkeeper_planted::VERSION;
use lockkeeper_proto::v1::maintenance_server::MaintenanceServer;
use lockkeeper_raft::{
    Raft, Replica,
    addresses::Addresses,
    compared_starts, compared_tables,
    disk::Disks,
    disk_watch, fast_election,
    forming::{FormingConfig, FormingError},
    identity::{ClusterId, Identity, IdentityError},
    log::{self, LogStore, OpenError},
    members::Members,
    network::{Network, PeerService, hello},
    silent_leader, slow_disk, slow_followers,
    snapshot::{SnapshotError, SnapshotFile, SnapshotStore},
    state_machine::StateMachine,
    table::{Inspect, Table},
    table_comparison::TableComparison,
    trail::Audit,
    types::{Node, TypeConfig},
    versions::PeerVersions,
};
use lockkeeper_storage::{
    database::{LockFile, NotLocked},
    files,
    space::{FreeSpace, OfDirectory},
};
use lockkeeper_traces::{Settings as TraceSettings, Traces};
use lockkeeper_transport::{
    Connect, Listen, Settings, TcpConnector,
    tls::{Acceptor, Port, Subject, Tls, TlsConnector, TlsError, TlsFiles},
};

/// openraft's deadline for installing a snapshot. The transfer has deadlines of its own, which grow with its size.
const INSTALL_SNAPSHOT_MS: u64 = 10 * 60 * 1000;
/// Entries in one append, at the most. The network splits appends that have too many bytes.
const APPEND_ENTRIES: u64 = 64;

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nothing was started.
    #[error("cannot listen on {address} ({key}): {source}")]
    Listen {
        /// The key in the configuration.
        key: &'static str,
        /// Its value.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The data directory cannot be used. Nothing was started, nothing was changed.
    #[error("cannot use the data directory {}: {source}; give this node one that it may write to", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The certificates cannot be used. Nothing was started.
    #[error("cannot use the certificates under [tls]: {0}")]
    Tls(#[from] TlsError),
    /// The data directory is another node's, or damaged. Nothing was started.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log cannot be used. Nothing was started.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The snapshots cannot be used. Nothing was started.
    #[error(transparent)]
    Snapshots(#[from] SnapshotError),
    /// The newest snapshot cannot be read. Nothing was started.
    #[error("cannot read the newest snapshot: {0}; replace this node with `lockkeeper member replace`")]
    Restore(io::Error),
    /// The cluster, or this node's data, has a version that this program does not support.
    #[error("{0}")]
    Version(String),
    /// This node cannot take part in its cluster.
    #[error(transparent)]
    Forming(#[from] FormingError),
    /// The cluster refuses this node as a member, for good.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The audit files cannot be opened. Nothing was started.
    #[error(transparent)]
    Audit(#[from] FileError),
    /// The audit files cannot be written any more. Nothing is lost: the lines are written when the node starts again.
    #[error(
        "the audit trail cannot be written: {0}; see that the directory under [audit] has space and can be written, and start the node again"
    )]
    AuditStopped(SinkError),
    /// An entry of the log cannot be applied. The node stopped before it.
    #[error("{0}")]
    Unapplied(String),
    /// Raft stopped: its storage failed, or there is a bug.
    #[error("raft has stopped: {0}")]
    Raft(String),
}

/// The parts of a node.
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
    /// The listener for DynamoDB's API. `None`: it is not served.
    pub dynamodb: Option<L>,
    /// The listener for etcd's API. `None`: it is not served.
    pub etcd: Option<L>,
    /// The listener for probes and metrics. `None`: they are not served.
    pub http: Option<L>,
    /// Its certificates. `None`: its ports take plain text.
    pub tls: Option<Tls>,
    /// Its clock, random numbers, and runtimes.
    pub environment: Environment,
    /// Its identity.
    pub identity: Arc<Identity>,
    /// Its log.
    pub log: S,
    /// Its snapshots.
    pub snapshots: SnapshotStore,
    /// The space for its data.
    pub disk: Arc<dyn FreeSpace>,
    /// How many connections it accepts.
    pub places: Places,
    /// Inspects its table after each change.
    pub inspector: Option<Arc<dyn Inspect>>,
    /// The cluster versions that its program supports: [`Versions::OWN`], except in tests of an upgrade.
    pub versions: Versions,
    /// Gets its replica as soon as it runs: for tests that propose commands which no service has.
    pub replica: Option<oneshot::Sender<Replica>>,
}

/// Where the tasks of a node run that others cause. Both must outlive the node.
#[derive(Clone, Debug)]
pub struct Runtimes {
    /// Those of clients.
    pub clients: Handle,
    /// Those of clients of other protocols (etcd's, DynamoDB's, HTTP): apart, so that whatever they cause costs their ports alone.
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
    let tls = match config.tls.clone() {
        Some(files) => {
            let earlier = config.earlier_cluster.as_ref().map(|earlier| earlier.cluster_id.clone());
            let loaded = tokio::task::spawn_blocking(move || load(&files, earlier)).await;
            Some(loaded.map_err(|stopped| ServeError::Raft(stopped.to_string()))??)
        }
        None => None,
    };
    let connector = TlsConnector::for_node(TcpConnector, tls.clone());
    if config.cluster_id.is_empty() {
        config.cluster_id = match Identity::recorded_cluster(&config.data_dir)? {
            Some(cluster_id) => cluster_id.to_string(),
            None => tokio::select! {
                cluster_id = joining::cluster_id(&config.join, &connector) => cluster_id,
                () = shutdown.clone() => return Ok(()),
            },
        };
    }
    if let Some(tls) = &tls {
        check_subject(&config, tls)?;
    }
    let clients = listen("client_listen", &config.client_listen).await?;
    let peers = listen("peer_listen", &config.peer_listen).await?;
    let dynamodb = listen_if("dynamodb.listen", &config.dynamodb.listen).await?;
    let etcd = listen_if("etcd.listen", &config.etcd.listen).await?;
    let http = listen_if("http.listen", &config.http.listen).await?;
    let (clients_runtime, adapters) = (Tasks::On(runtimes.clients), Tasks::On(runtimes.adapters));
    let environment = Environment { clients: clients_runtime, adapters, ..Environment::system() };
    let ports = FurtherPorts { etcd: etcd.is_some(), dynamodb: dynamodb.is_some(), http: http.is_some() };
    let opening = (config.clone(), environment.clone());
    let opened = tokio::task::spawn_blocking(move || open(&opening.0, &opening.1)).await;
    // The lock keeps other processes out of the data directory until the log is closed.
    let (_lock, identity, log, snapshots) = opened.map_err(|stopped| ServeError::Raft(stopped.to_string()))??;
    let disk = Arc::new(OfDirectory(config.data_dir.clone()));
    let parts = Parts {
        config,
        clients,
        peers,
        connector,
        dynamodb,
        etcd,
        http,
        tls,
        environment,
        identity,
        log: log.clone(),
        snapshots,
        disk,
        places: Places::of_this_process(ports),
        inspector: None,
        versions: Versions::OWN,
        replica: None,
    };
    let ended = run(parts, shutdown).await;
    if let Err(error) = log.close().await {
        tracing::warn!(%error, "the log was not closed in order; nothing that was acknowledged is lost");
    }
    ended
}

/// Reads the certificates. `earlier`: a cluster whose clients are served for a time. Blocks.
fn load(files: &TlsConfig, earlier: Option<String>) -> Result<Tls, TlsError> {
    let TlsConfig { ca, certificate, key } = files.clone();
    let files = TlsFiles { ca, own: Some((certificate, key)) };
    if let Some(warning) = files.warning() {
        tracing::warn!("{warning}");
    }
    Tls::load_accepting(files, earlier)
}

/// Refuses the certificate of another node.
fn check_subject(config: &Config, tls: &Tls) -> Result<(), ServeError> {
    let own = Subject::Node { cluster: config.cluster_id.clone(), id: config.node_id };
    match tls.subject() {
        Some(subject) if subject == own => Ok(()),
        Some(Subject::Node { cluster, id }) if id == config.node_id => Err(ServeError::Config(format!(
            "tls.certificate is of cluster {cluster}, and this node is of cluster {own}: name its certificate of {own}; if {own} was \
             restored from {cluster}, `lockkeeper certs successor {own}` makes it, on the machine that holds the authority",
            own = config.cluster_id
        ))),
        Some(subject) => Err(ServeError::Config(format!(
            "tls.certificate names {subject}, and this node is {own}: name its own certificate; \
             `lockkeeper certs node` makes one"
        ))),
        None => Err(ServeError::Config("tls.certificate is missing: name this node's certificate".to_owned())),
    }
}

async fn listen(key: &'static str, address: &str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { key, address: address.to_owned(), source })
}

/// The names by which browsers, and clients of etcd's JSON, reach this node.
fn hosts(config: &Config) -> Hosts {
    let member = config.this_member().into_iter().flat_map(|member| [&member.client_address, &member.peer_address]);
    let etcd = [&config.etcd.listen, &config.etcd.advertise];
    let addresses =
        [&config.http.listen, &config.client_address, &config.peer_address].into_iter().chain(etcd).chain(member);
    Hosts::new(addresses.chain(&config.http.hosts).map(String::as_str))
}

/// `None`: no address is configured.
async fn listen_if(key: &'static str, address: &str) -> Result<Option<TcpListener>, ServeError> {
    match address {
        "" => Ok(None),
        address => listen(key, address).await.map(Some),
    }
}

/// Opens the data directory: its lock, the identity, the log and the snapshots. Blocks.
fn open(
    config: &Config,
    environment: &Environment,
) -> Result<(LockFile, Arc<Identity>, LogStore, SnapshotStore), ServeError> {
    let directory: &Path = &config.data_dir;
    let refused = |source| ServeError::Directory { directory: directory.to_owned(), source };
    files::create_directory(directory).map_err(refused)?;
    let files = [&config.dynamodb.secrets, &config.auth.tokens, &config.audit.directory];
    let named = files.into_iter().map(PathBuf::as_path).filter(|path| !path.as_os_str().is_empty());
    for warning in [directory].into_iter().chain(named).filter_map(files::warn_of_others) {
        tracing::warn!("{warning}");
    }
    // Before anything in it is read, or deleted as unfinished: another process may use it.
    let lock = LockFile::take_directory(directory).map_err(|not_locked| match not_locked {
        NotLocked::InUse => ServeError::Log(OpenError::Locked { directory: directory.to_owned() }),
        NotLocked::Io(source) => refused(source),
    })?;
    let cluster_id: ClusterId =
        config.cluster_id.parse().map_err(|invalid| ServeError::Config(format!("{invalid}")))?;
    let identity = Identity::open_or_create(directory, &cluster_id, config.node_id, &mut environment.generator())?;
    let snapshots = SnapshotStore::open(&directory.join("snapshots"))?;
    let newest = snapshots.latest().and_then(|file| file.meta().last_log_id);
    let (owner, metrics) = (Some(identity.log_owner()), environment.metrics.clone());
    let options = log::Options { snapshot: newest, owner, metrics, ..log::Options::default() };
    let log = LogStore::open(&directory.join("log"), options)?;
    identity.started()?;
    Ok((lock, Arc::new(identity), log, snapshots))
}

/// Runs a node from its parts until `shutdown` completes, as [`serve`] does.
pub async fn run<L, C, S>(parts: Parts<L, C, S>, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError>
where
    L: Listen,
    C: Connect,
    S: RaftLogStorage<TypeConfig>,
{
    let Parts { config, clients, peers, connector, environment, identity, mut log, snapshots, places, .. } = parts;
    let acceptor = |port| parts.tls.clone().map(|tls| Acceptor::new(tls, port)).transpose();
    let (mut peers_acceptor, clients_acceptor) = (acceptor(Port::Peers)?, acceptor(Port::Clients)?);
    let (etcd_acceptor, http_acceptor) = (acceptor(Port::EitherHttp)?, acceptor(Port::Http)?);
    let console_acceptor = acceptor(Port::Console)?;
    if let Tasks::On(runtime) = &environment.clients {
        // A flood of handshakes must not delay heartbeats.
        peers_acceptor = peers_acceptor.map(|acceptor| acceptor.on(runtime.clone()));
    }
    let Parts { tls, inspector, versions, replica: replica_wanted, disk: space, dynamodb, etcd, http, .. } = parts;
    let access = Access::open(&config.auth, tls.is_some()).map_err(ServeError::Config)?;
    let earlier = config.earlier_cluster.as_ref();
    let earlier =
        earlier.map(|earlier| EarlierCluster::new(earlier, &config.cluster_id, Arc::clone(&environment.clock)));
    let access = Arc::new(access.with_earlier(earlier.transpose().map_err(ServeError::Config)?));
    check_log(&identity, &mut log, &snapshots).await?;
    let plan = plan(&config);
    let sink = open_audit(&config, identity.cluster_id(), environment.blocking).await?;
    let versions = Arc::new(PeerVersions::new(versions).with_audit(sink.is_some()));
    let audit = Audit::new(identity.cluster_id().as_str(), sink.clone());
    let table = Arc::new(
        Table::new(inspector)
            .with_versions(Arc::clone(&versions))
            .with_audit(audit)
            .with_metrics(environment.metrics.clone()),
    );
    let peer_service = PeerService::new(Arc::clone(&identity), &plan.members, snapshots.clone());
    let peer_service = peer_service.with_versions(Arc::clone(&versions));
    let (node_id, snapshot_entries) = (config.node_id, config.raft.snapshot_entries);
    let disks = Disks::default();
    peer_service.report_disk(disks.clone());
    let comparison = Arc::new(TableComparison::new(Arc::clone(&table), Arc::clone(&identity), environment.blocking));
    peer_service.compare_table(Arc::clone(&comparison));
    let (restoring, for_space) = ((Arc::clone(&table), snapshots.clone()), snapshots);
    let open = move || StateMachine::open(restoring.0, restoring.1, node_id, snapshot_entries);
    let machine = environment.blocking.run(open).await;
    let machine = machine.map_err(|error| match error.kind() == io::ErrorKind::Unsupported {
        true => ServeError::Version(error.to_string()),
        false => ServeError::Restore(error),
    })?;
    let (snapshot_due, log_bytes) = (machine.snapshot_due(), machine.log_bytes());
    let addresses = Addresses::new(plan.members.clone());
    let network =
        Network::<C, SnapshotFile>::new(connector.clone(), Arc::clone(&identity)).with_addresses(addresses.clone());
    let network = network
        .with_versions(Arc::clone(&versions))
        .with_disks(disks.clone())
        .with_metrics(environment.metrics.clone());
    let (acknowledgements, cuts, prober) = (network.acknowledgements(), network.cuts(), network.prober());
    let (teller, comparer) = (network.prober(), network.prober());
    let raft_config = Arc::new(raft_config(&config)?);
    let raft = Raft::new(config.node_id, raft_config, network, log, machine).await;
    // It applies the entries that it knows to be committed.
    let raft = raft.map_err(|error| unapplied(&table).unwrap_or_else(|| stopped(error)))?;
    let applied = Arc::clone(&table);
    peer_service.attach(raft.clone(), move |node_id| applied.has_removed(node_id));
    let broken_streams = peer_service.broken_streams();
    let shorter_logs = peer_service.shorter_logs();
    let liveness = peer_service.liveness();
    let silence_max = 2 * Duration::from_millis(config.raft.election_timeout_ms_max);
    let limits = (&config.limits).into();
    let replica = Replica::start(raft, table, &environment, acknowledgements.clone(), addresses, silence_max, limits);
    let heartbeat = Duration::from_millis(config.raft.heartbeat_ms);
    let beat = silent_leader::beat(heartbeat, Duration::from_millis(config.raft.election_timeout_ms_min));
    let silent = beat * silent_leader::SILENT_HEARTBEATS;
    let replica = replica.with_disks(disks.clone()).with_liveness(Arc::clone(&liveness), silent);
    let members = members(&config, &replica, &identity, connector.clone());

    if let Some(wanted) = replica_wanted {
        // An error means that the test is over.
        let _ = wanted.send(replica.clone());
    }
    let stopping = CancellationToken::new();
    let traces = start_traces(&config, &environment)?;
    let local = Local {
        replica: replica.clone(),
        members: members.clone(),
        random: Arc::clone(&environment.random),
        access,
        metrics: environment.metrics.clone(),
        limits_reached: Arc::default(),
        long_reads: Arc::default(),
        traces: traces.clone(),
        span: None,
    };
    let mut services = Services::new(&config, local, &environment, connector.clone(), stopping.clone());
    services.cluster.start = identity.start().to_string().into();
    services.cluster.tls = tls.clone();
    services.cluster.comparison = Some(Arc::clone(&comparison));
    let cluster_id = identity.cluster_id().clone();
    let maintenance = Maintenance::new(services.service.clone(), replica.clone(), environment.clone(), cluster_id);
    let metrics = &environment.metrics;
    // All tasks end with this function, however it ends.
    let (mut tasks, mut client_server) = (JoinSet::new(), JoinSet::new());
    let peer_routes = services.for_peers().add_service(peer_service.server());
    let peer_settings = Settings::PEERS.with_connections_max(places.peers);
    tasks.spawn(listen_to(
        Counted::new(peers, CountedPort::Peers, metrics),
        peers_acceptor,
        peer_settings,
        NodeCalls { port: node_calls::Port::Peers(Box::new(replica.clone())), service: services.around(peer_routes) },
        CancellationToken::new(),
    ));
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let client_routes =
        services.for_clients().add_service(health_service).add_service(MaintenanceServer::new(maintenance));
    let client_settings = Settings::CLIENTS.with_connections_max(places.clients);
    let service = NodeCalls { port: node_calls::Port::Clients, service: services.around(client_routes) };
    let clients_service = services.unread.layer(service);
    let clients = Counted::new(clients, CountedPort::Clients, metrics);
    let serving = listen_to(clients, clients_acceptor, client_settings, clients_service, stopping.clone());
    environment.clients.spawn(&mut client_server, serving);
    let hosts = Arc::new(hosts(&config));
    if let Some(listener) = dynamodb {
        let (settings, service) = (&config.dynamodb, services.adapters_service.clone());
        let serving = dynamodb_endpoint::serve(
            settings,
            Counted::new(listener, CountedPort::DynamoDb, metrics),
            http_acceptor.clone(),
            places.dynamodb,
            service,
            &environment,
            stopping.clone(),
        );
        let serving = serving.map_err(ServeError::Config)?;
        environment.adapters.spawn(&mut client_server, async move {
            serving.await;
            Ok(())
        });
    }
    if let Some(listener) = etcd {
        let (random, service) = (Arc::clone(&environment.random), services.adapters_service.clone());
        let url = etcd_endpoint::url(&config, tls.is_some());
        let store = etcd_endpoint::Keyspace::new(service, &services.cluster.cluster_id, random, &url);
        let announcing = store.clone().announce(stopping.clone());
        environment.adapters.spawn(&mut client_server, async move {
            announcing.await;
            Ok(())
        });
        let settings = Settings::CLIENTS.with_connections_max(places.etcd).with_http1();
        let service = NodeCalls { port: node_calls::Port::Clients, service: lockkeeper_etcd::services(store) };
        let service = services.adapters_unread.layer(Gated { hosts: Arc::clone(&hosts), service });
        let listener = Counted::new(listener, CountedPort::Etcd, metrics);
        let serving = listen_to(listener, etcd_acceptor, settings, service, stopping.clone());
        environment.adapters.spawn(&mut client_server, serving);
    }
    if let Some(listener) = http {
        let (cluster, service) = (services.cluster.clone(), services.adapters_service.clone());
        let console = Console::new(cluster.clone(), service.clone(), Arc::clone(&environment.clock), hosts);
        let data = config.data_dir.as_path().into();
        let (metrics_counted, page) = (environment.metrics.clone(), Default::default());
        let web = Web { cluster, service, metrics: metrics_counted, console, data, page };
        let listener = Counted::new(listener, CountedPort::Http, metrics);
        let unread = services.adapters_unread.clone();
        let serving = web::serve(listener, console_acceptor, places.http, web, unread, stopping.clone());
        environment.adapters.spawn(&mut client_server, async move {
            serving.await;
            Ok(())
        });
    }
    tasks.spawn(duties::take_part(Arc::clone(&identity), replica.clone(), plan, connector.clone()));
    tasks.spawn(duties::outdated(Arc::clone(&identity)));
    tasks.spawn(duties::removed(Arc::clone(&identity)));
    if let Some(own) = config.this_member().cloned() {
        let (identity, replica, join) = (Arc::clone(&identity), replica.clone(), config.join.clone());
        let joins = joining::join(identity, replica, own, join, connector.clone());
        tasks.spawn(async move { Err(joins.await.into()) });
    }
    tasks.spawn(duties::outgrown(versions));
    tasks.spawn(duties::raft_stops(replica.clone()));
    if let Some(sink) = sink.clone() {
        tasks.spawn(duties::audit_stops(sink));
    }
    tasks.spawn(duties::take_snapshots(replica.clone(), snapshot_due));
    let mut background = JoinSet::new();
    background.spawn(members.run());
    if let Some(tls) = tls {
        background.spawn(tls.follow_files());
    }
    background.spawn(joining::notice_removal(Arc::clone(&identity), replica.clone(), connector.clone()));
    background.spawn(duties::note_progress(identity, replica.clone(), acknowledgements));
    environment.clients.spawn(&mut background, waiting::give_up_places(replica.clone()));
    environment.clients.spawn(&mut background, waiting::sweep(replica.clone()));
    environment.clients.spawn(&mut background, service::dispatch_watches(replica.clone()));
    environment.adapters.spawn(&mut background, service::dispatch_entry_watches(replica.clone()));
    environment.clients.spawn(&mut background, waiting::break_off_when_cut_off(replica.clone()));
    let RaftConfig { keep_entries, backlog_bytes_max, .. } = config.raft;
    background.spawn(slow_followers::limit(replica.raft().metrics(), log_bytes, cuts, keep_entries, backlog_bytes_max));
    let reserve_bytes = config.disk.reserve_bytes;
    background.spawn(disk_watch::watch(disks, replica.clone(), environment.blocking, space, reserve_bytes, for_space));
    background.spawn(slow_disk::watch(replica.clone()));
    // In a simulation, time stands still while the thread computes.
    if environment.blocking == Blocking::OnThreads {
        let Cluster { pulse, clients_pulse, adapters_pulse, .. } = services.cluster.clone();
        background.spawn(pulse.beat("Raft"));
        environment.clients.spawn(&mut background, clients_pulse.beat("clients"));
        environment.adapters.spawn(&mut background, adapters_pulse.beat("adapters"));
    }
    background.spawn(silent_leader::watch(replica.clone(), prober, Arc::clone(&liveness), beat));
    if config.raft.compare_tables_ms > 0 {
        let interval = Duration::from_millis(config.raft.compare_tables_ms);
        background.spawn(compared_tables::watch(replica.clone(), comparison, comparer, interval));
    }
    let interval = compared_starts::INTERVAL;
    background.spawn(compared_starts::tell(replica.clone(), teller, Arc::clone(&liveness), interval));
    if let Some(broken_streams) = broken_streams {
        let watching =
            fast_election::watch(replica.clone(), connector, broken_streams, shorter_logs, liveness, heartbeat);
        background.spawn(watching);
    }
    environment.clients.spawn(&mut background, Arc::clone(&services.local.access).watch_files());
    environment.clients.spawn(&mut background, services.unread.clone().watch_over());
    environment.adapters.spawn(&mut background, services.adapters_unread.clone().watch_over());
    environment.clients.spawn(&mut background, health::report(services.cluster.clone(), reporter.clone()));

    let ended = tokio::select! {
        Some(ended) = tasks.join_next() => ended.unwrap_or_else(|broken| Err(stopped(broken))),
        Some(ended) = client_server.join_next() => ended.unwrap_or_else(|broken| Err(stopped(broken))),
        () = shutdown => Ok(()),
    };
    tracing::info!("stopping");
    background.abort_all();
    health::retire(&reporter).await;
    stopping.cancel();
    duties::hand_over(&replica).await;
    if let Err(broken) = replica.raft().shutdown().await {
        tracing::error!(%broken, "raft did not stop in order");
    }
    if let Some(sink) = sink {
        let closing = environment.blocking.run(move || {
            sink.close();
            Ok(())
        });
        if let Err(broken) = closing.await {
            tracing::error!(%broken, "the audit files were not closed in order; the next start completes them");
        }
    }
    // Streams that a client holds open at a follower do not end by themselves: requests that are not answered by now are cut off. So are
    // the streams of peers, which stay open for as long as possible.
    let _ = timeout(DRAIN, async { while client_server.join_next().await.is_some() {} }).await;
    traces.close().await;
    ended
}

/// Traces, if they have an endpoint. Their task runs on the clients' runtime: a slow collector delays no heartbeat.
fn start_traces(config: &Config, environment: &Environment) -> Result<Traces, ServeError> {
    let TracesConfig { endpoint, sample_ratio } = config.traces.clone();
    // A simulation has no collector.
    let Tasks::On(runtime) = &environment.clients else { return Ok(Traces::default()) };
    if endpoint.is_empty() {
        return Ok(Traces::default());
    }
    let attributes = vec![
        ("service.instance.id", config.node_id.to_string()),
        ("service.version", VERSION.to_owned()),
        ("lockkeeper.cluster_id", config.cluster_id.clone()),
    ];
    let settings = TraceSettings { endpoint, sample_ratio, service: "lockkeeper", attributes };
    let metrics = environment.metrics.clone();
    let started = Traces::start(settings, runtime, move |count| metrics.dropped_spans(count));
    started.map_err(|error| ServeError::Config(format!("traces.endpoint: {error}")))
}

/// Opens the audit files, if this node writes any.
async fn open_audit(config: &Config, cluster: &ClusterId, blocking: Blocking) -> Result<Option<Sink>, ServeError> {
    let AuditConfig { directory, file_bytes, files_kept } = config.audit.clone();
    if directory.as_os_str().is_empty() {
        return Ok(None);
    }
    let (cluster, rotation) = (cluster.clone(), Rotation { file_bytes, files_kept });
    let opened = blocking.run(move || Ok(Sink::open(&directory, cluster.as_str(), rotation))).await;
    Ok(Some(opened.map_err(stopped)??))
}

/// Refuses a log that ends before an entry that this node is known to have had.
async fn check_log<S: RaftLogStorage<TypeConfig>>(
    identity: &Identity,
    log: &mut S,
    snapshots: &SnapshotStore,
) -> Result<(), ServeError> {
    let state = log.get_log_state().await.map_err(stopped)?;
    let snapshot = snapshots.latest().and_then(|file| file.meta().last_log_id);
    let last = [state.last_log_id, state.last_purged_log_id, snapshot].into_iter().flatten().map(|id| id.index).max();
    let vote = log.get_log_reader().await.read_vote().await.map_err(stopped)?;
    Ok(identity.check_log(last, vote.is_some())?)
}

/// The means to change the membership.
fn members<C: Connect>(config: &Config, replica: &Replica, identity: &Arc<Identity>, connector: C) -> Members {
    let identity = Arc::clone(identity);
    let greet = Arc::new(move |address: String| -> BoxFuture<'static, _> {
        let (identity, connector) = (Arc::clone(&identity), connector.clone());
        Box::pin(async move { hello(&connector, &address, &identity, Vec::new()).await })
    });
    let round_max = Duration::from_millis(config.raft.election_timeout_ms_min);
    Members::new(replica.clone(), greet, &config.cluster_id, round_max)
}

/// The members of the cluster, as the configuration names them.
fn plan(config: &Config) -> FormingConfig {
    let node = |member: &Member| {
        let (peer_address, client_address) = (member.peer_address.clone(), member.client_address.clone());
        (member.node_id, Node { peer_address, client_address, ..Node::default() })
    };
    FormingConfig { bootstrap: config.bootstrap, members: config.members.iter().map(node).collect() }
}

/// openraft's configuration.
fn raft_config(config: &Config) -> Result<openraft::Config, ServeError> {
    let RaftConfig { heartbeat_ms, election_timeout_ms_min, election_timeout_ms_max, keep_entries, .. } = config.raft;
    let raft = openraft::Config {
        cluster_name: config.cluster_id.clone(),
        heartbeat_interval: heartbeat_ms,
        election_timeout_min: election_timeout_ms_min,
        election_timeout_max: election_timeout_ms_max,
        // A leader that restarts must be elected again; otherwise its reads may be stale (openraft #1511).
        enable_leader_restore: Some(false),
        // Pre-vote: a node that was cut off or restarted does not disturb a leader that the others hear.
        enable_pre_vote: Some(true),
        // A leader without a quorum pauses its heartbeats, so that the members that hear it can elect another one.
        quorum_loss_probe_interval: Some(2 * election_timeout_ms_max),
        install_snapshot_timeout: INSTALL_SNAPSHOT_MS,
        max_payload_entries: APPEND_ENTRIES,
        // See `take_snapshots`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: keep_entries,
        ..openraft::Config::default()
    };
    raft.validate().map_err(|invalid| ServeError::Config(format!("the timing under [raft] does not fit: {invalid}")))
}

/// Why the node ends, if it is an entry of the log.
fn unapplied(table: &Table) -> Option<ServeError> {
    table.unapplied().map(|why| ServeError::Unapplied(why.to_owned()))
}

fn stopped(why: impl std::fmt::Display) -> ServeError {
    ServeError::Raft(why.to_string())
}
