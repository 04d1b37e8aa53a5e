//! Test nodes with a real network; the log, table and snapshots are in memory.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use lockkeeper::{
    raft::{
        identity::{ClusterId, FILE_NAME, NodeIdentity},
        log::slow_followers::StreamCuts,
        members::forming::{self, FormingConfig, FormingError},
        network::{Acknowledgements, Network, PeerService, liveness::PeerLiveness},
        types::{LogId, Payload, TypeConfig},
    },
    table::MemberNode,
    transport,
};
use openraft::{
    Config, Raft, RaftMetrics, SnapshotPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::{
    log::MemoryLog,
    table::{MemorySink, MemorySnapshot, SnapshotShelf, Table},
    wires::{End, Wires},
};

/// Deadline of each wait: longer than any step takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) type TestRaft = Raft<TypeConfig, Table>;

/// The state that survives a restart of a node.
pub(crate) struct Disk {
    pub(crate) directory: TempDir,
    pub(crate) log: MemoryLog,
    pub(crate) snapshot: SnapshotShelf,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, log: MemoryLog::new(), snapshot: SnapshotShelf::default() }
    }

    /// A copy of the current state.
    pub(crate) fn copy(&self) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |directory: &TempDir| directory.path().join(FILE_NAME);
        std::fs::copy(file(&self.directory), file(&directory)).expect("copied");
        Self { directory, log: self.log.copy(), snapshot: self.snapshot.copy() }
    }
}

/// A running node.
pub(crate) struct TestNode {
    pub(crate) id: u64,
    pub(crate) identity: Arc<NodeIdentity>,
    pub(crate) raft: TestRaft,
    pub(crate) acknowledgements: Acknowledgements,
    pub(crate) cuts: StreamCuts,
    pub(crate) liveness: Arc<PeerLiveness>,
    pub(crate) table: Table,
    pub(crate) sink: MemorySink,
    pub(crate) address: SocketAddr,
    pub(crate) plan: FormingConfig,
    pub(crate) connector: End,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

/// The network on which nodes are started.
#[derive(Clone, Default)]
pub(crate) struct Lab {
    pub(crate) wires: Wires,
}

pub(crate) fn cluster_id() -> ClusterId {
    "test".parse().expect("a cluster id")
}

pub(crate) fn identity(directory: &Path, node_id: u64) -> Arc<NodeIdentity> {
    let identity = NodeIdentity::open_or_create(directory, &cluster_id(), node_id, &mut rand::rng());
    let identity = identity.expect("an unused directory");
    identity.started().expect("written");
    Arc::new(identity)
}

pub(crate) fn members(ids: impl IntoIterator<Item = u64>) -> BTreeMap<u64, MemberNode> {
    let node = |id| MemberNode {
        peer_address: Wires::name(id),
        client_address: format!("node{id}:client"),
        ..MemberNode::default()
    };
    ids.into_iter().map(|id| (id, node(id))).collect()
}

pub(crate) fn config() -> Arc<Config> {
    let config = Config {
        heartbeat_interval: 200,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        install_snapshot_timeout: 10_000,
        max_in_snapshot_log_to_keep: 0,
        snapshot_policy: SnapshotPolicy::Never,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(4000),
        ..Config::default()
    };
    Arc::new(config.validate().expect("a valid configuration"))
}

impl Lab {
    /// Starts a node that answers its peers. It has not joined a cluster yet.
    pub(crate) async fn start(&self, node_id: u64, disk: &Disk, plan: FormingConfig) -> TestNode {
        let identity = identity(disk.directory.path(), node_id);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        self.wires.plug(node_id, address);
        let sink = MemorySink::default();
        let table = Table::restore(disk.snapshot.clone());
        let connector = self.wires.end(node_id);

        let service = PeerService::<Table, _>::new(identity.clone(), &plan.members, sink.clone());
        let liveness = service.liveness();
        let (stop, stopped) = oneshot::channel();
        let routes = Routes::new(service.server());
        let server = tokio::spawn(async move {
            let stopping = CancellationToken::new();
            let serving = transport::serve(listener, None, transport::Settings::PEERS, routes, stopping.clone());
            let told = async {
                stopped.await.unwrap_or(());
                stopping.cancel();
            };
            tokio::join!(serving, told);
        });

        let network = Network::<_, MemorySnapshot>::new(connector.clone(), identity.clone());
        let acknowledgements = network.acknowledgements();
        let cuts = network.cuts();
        let raft = Raft::new(node_id, config(), network, disk.log.clone(), table.clone()).await.expect("it starts");
        service.attach(raft.clone(), |_| false);
        TestNode {
            id: node_id,
            identity,
            raft,
            acknowledgements,
            cuts,
            liveness,
            table,
            sink,
            address,
            plan,
            connector,
            stop,
            server,
        }
    }

    /// Starts nodes 1 to `size`, which found a cluster.
    pub(crate) async fn cluster(&self, size: u64) -> (Vec<TestNode>, Vec<Disk>) {
        let plan = FormingConfig { bootstrap: true, members: members(1..=size) };
        let mut nodes = Vec::new();
        let mut disks = Vec::new();
        for node_id in 1..=size {
            let disk = Disk::new();
            nodes.push(self.start(node_id, &disk, plan.clone()).await);
            disks.push(disk);
        }
        let formed = futures::future::join_all(nodes.iter().map(TestNode::form)).await;
        formed.into_iter().for_each(|formed| formed.expect("all members agree"));
        (nodes, disks)
    }

    /// Ends a node as a power failure does: its peers are not notified.
    pub(crate) async fn kill(&self, node: TestNode) {
        self.wires.isolate(node.id);
        node.end().await;
    }
}

impl TestNode {
    /// Finds or founds the cluster.
    pub(crate) async fn form(&self) -> Result<(), FormingError> {
        let formed = timeout(SOON, forming::form(&self.identity, &self.plan, &self.connector));
        formed.await.expect("in time")?;
        forming::initialize(&self.identity, &self.raft).await
    }

    /// Waits until this node knows a leader other than `other`; returns its id.
    pub(crate) async fn leader_other_than(&self, other: Option<u64>) -> u64 {
        let new = |leader: Option<u64>| leader.is_some() && leader != other;
        let wait = self.raft.wait(Some(SOON));
        let metrics = wait.metrics(|metrics| new(metrics.current_leader), "a leader").await;
        metrics.expect("in time").current_leader.expect("the wait ended with a leader")
    }

    /// Writes through the leader. Retries until its first heartbeats are answered.
    pub(crate) async fn write(&self, line: Vec<u8>) {
        let payload = Payload(line.into());
        let written = async {
            loop {
                match self.raft.client_write(payload.clone()).await {
                    Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                        sleep(Duration::from_millis(20)).await;
                    }
                    written => break written.map(drop),
                }
            }
        };
        timeout(SOON, written).await.expect("in time").expect("written");
    }

    /// Waits until this node has applied the same entries as `other`. Compares tables, since metrics lag behind.
    pub(crate) async fn catch_up_with(&self, other: &TestNode) {
        let caught_up = async {
            while self.table.lines() != other.table.lines() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, caught_up).await.expect("in time");
    }

    /// Waits until all of the log is applied; returns its last entry. The metrics lag behind the answers.
    pub(crate) async fn last_applied(&self) -> LogId {
        let is_applied =
            |metrics: &RaftMetrics<TypeConfig>| metrics.last_applied.map(|id| id.index) == metrics.last_log_index;
        let metrics = self.raft.wait(Some(SOON)).metrics(is_applied, "all applied").await;
        metrics.expect("in time").last_applied.expect("it has entries")
    }

    /// Takes a snapshot of all that is in the log, and purges it.
    pub(crate) async fn purge(&self) {
        let last = self.last_applied().await;
        self.raft.trigger().snapshot().await.expect("it runs");
        self.raft.wait(Some(SOON)).snapshot(last, "a snapshot").await.expect("in time");
        self.raft.trigger().purge_log(last.index).await.expect("it runs");
        self.raft.wait(Some(SOON)).purged(Some(last), "purged").await.expect("in time");
    }

    pub(crate) fn metrics(&self) -> RaftMetrics<TypeConfig> {
        self.raft.metrics().borrow_watched().clone()
    }

    pub(crate) fn term(&self) -> u64 {
        self.metrics().current_term
    }

    pub(crate) async fn end(self) {
        let _ = self.stop.send(());
        self.raft.shutdown().await.expect("it ends");
        self.server.abort();
    }
}

/// The node with this id, and the other nodes.
pub(crate) fn split(nodes: &[TestNode], id: u64) -> (&TestNode, Vec<&TestNode>) {
    let node = nodes.iter().find(|node| node.id == id).expect("there is one");
    (node, nodes.iter().filter(|node| node.id != id).collect())
}

pub(crate) async fn end_all(nodes: Vec<TestNode>) {
    futures::future::join_all(nodes.into_iter().map(TestNode::end)).await;
}
