//! A node in the process of a test: the real server, on a directory and on ports of the loopback interface, in plain text.
//!
//! A test opens a [`Seat`] and the [`NodeData`], makes [`parts`] of them, changes the parts that it is about, and gives them to [`serve`].
//! The simulation has neither TCP nor a log on disk, and makes its parts by itself.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use lockkeeper::{
    config::{Config, ConfiguredMember},
    environment::Environment,
    raft::{
        disk::Space,
        identity::NodeIdentity,
        log::{LogOptions, LogStore},
        snapshot::SnapshotStore,
        types::TypeConfig,
    },
    server::node::{FurtherParts, Parts, ServeError, run},
    transport::TcpConnector,
};
use openraft::storage::RaftLogStorage;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

/// Longer than an address stays taken after its node has ended.
const LONG: Duration = Duration::from_secs(60);

/// The ports of a node, open.
pub(crate) struct Seat {
    pub(crate) member: ConfiguredMember,
    clients: TcpListener,
    peers: TcpListener,
}

impl Seat {
    /// A seat with ports that the system chooses.
    pub(crate) async fn new(node_id: u64) -> Self {
        let any = "127.0.0.1:0".to_owned();
        Self::open(ConfiguredMember { node_id, client_address: any.clone(), peer_address: any }).await
    }

    /// The seat of a member, at its addresses.
    pub(crate) async fn open(mut member: ConfiguredMember) -> Self {
        let clients = listen(&mut member.client_address).await;
        let peers = listen(&mut member.peer_address).await;
        Self { member, clients, peers }
    }
}

/// Listens at an address, and completes it by the port that the system chose.
pub(crate) async fn listen(address: &mut String) -> TcpListener {
    let deadline = Instant::now() + LONG;
    loop {
        match TcpListener::bind(address.as_str()).await {
            Ok(listener) => {
                *address = listener.local_addr().expect("it is bound").to_string();
                return listener;
            }
            // The last connections of a node that was stopped may still be closing.
            Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The configuration of a member of a new cluster.
pub(crate) fn config(cluster_id: &str, node_id: u64, members: &[ConfiguredMember]) -> Config {
    Config {
        cluster_id: cluster_id.to_owned(),
        node_id,
        bootstrap: true,
        members: members.to_vec(),
        ..Config::default()
    }
}

/// The data of a node, open.
pub(crate) struct NodeData {
    identity: Arc<NodeIdentity>,
    pub(crate) log: LogStore,
    snapshots: SnapshotStore,
}

impl NodeData {
    /// Opens the directory of a node, or creates it, in the order in which a server does.
    pub(crate) fn open(directory: &Path, config: &Config, options: LogOptions) -> Self {
        let cluster_id = config.cluster_id.parse().expect("a cluster id");
        let mut generator = Environment::system().generator();
        let identity = NodeIdentity::open_or_create(directory, &cluster_id, config.node_id, &mut generator);
        let identity = Arc::new(identity.expect("the directory is this node's"));

        let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("its snapshots are whole");
        let snapshot = snapshots.latest().and_then(|file| file.meta().last_log_id);
        let options = LogOptions { snapshot, owner: Some(identity.log_owner()), ..options };
        let log = LogStore::open(&directory.join("log"), options).expect("its log is whole");
        identity.started().expect("written");
        Self { identity, log, snapshots }
    }
}

/// The parts of a node on this seat and these data. Its log is `log`: the one of the data, or what a test has put around it.
pub(crate) fn parts<S>(config: Config, seat: Seat, data: NodeData, log: S) -> Parts<TcpListener, TcpConnector, S> {
    Parts {
        config,
        clients: seat.clients,
        peers: seat.peers,
        connector: TcpConnector,
        environment: Environment::system(),
        identity: data.identity,
        log,
        snapshots: data.snapshots,
        // The space of the real disk would let a full machine decide about the test.
        disk: Arc::new(Space { free: u64::MAX, total: u64::MAX }),
        further: FurtherParts::default(),
    }
}

/// Runs a node until `shutdown` completes or it ends by itself, and closes its log in both cases: its directory can be opened again.
pub(crate) async fn serve<S: RaftLogStorage<TypeConfig>>(
    parts: Parts<TcpListener, TcpConnector, S>,
    log: LogStore,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let ended = run(parts, shutdown).await;
    log.close().await.expect("closed");
    ended
}
