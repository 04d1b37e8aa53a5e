//! A cluster of nodes in this process, each with its own data directory, ports and program version.

use std::sync::Arc;

use lockkeeper::{
    client::{Client, SessionOptions},
    config::{Config, ConfiguredMember, RaftConfig},
    machine::{Version, Versions},
    proto::v1::{Role, StatusRequest, StatusResponse, cluster_client::ClusterClient},
    raft::{Replica, log::LogOptions},
    server::node::ServeError,
};
use openraft::async_runtime::WatchReceiver;
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::in_process::{self, NodeData, Seat};
use crate::support::{LONG, until};

const CLUSTER: &str = "versions";

struct Node {
    member: ConfiguredMember,
    /// Its open ports, until its first start: nobody else can take them meanwhile.
    seat: Option<Seat>,
    directory: TempDir,
    running: Option<Running>,
}

struct Running {
    /// `None`: it ended before it had one.
    replica: Option<Replica>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ServeError>>,
}

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    client: Client,
}

impl Cluster {
    /// Starts one node for each of these programs, and waits for a leader.
    pub(crate) async fn start(programs: &[Versions]) -> Self {
        let mut nodes = Vec::new();
        for node_id in 1..=programs.len() as u64 {
            let seat = Seat::new(node_id).await;
            let member = seat.member.clone();
            let directory = tempfile::tempdir().expect("a directory");
            nodes.push(Node { member, seat: Some(seat), directory, running: None });
        }
        let endpoints: Vec<_> = nodes.iter().map(|node| node.member.client_address.clone()).collect();
        let client = Client::builder(&endpoints.join(",")).call_limit(LONG).build().expect("addresses");
        let mut cluster = Self { nodes, client };
        for (program, node_id) in programs.iter().zip(1..) {
            cluster.spawn(node_id, *program).await;
        }
        cluster.leader().await;
        cluster
    }

    fn node(&mut self, node_id: u64) -> &mut Node {
        &mut self.nodes[node_id as usize - 1]
    }

    async fn spawn(&mut self, node_id: u64, program: Versions) {
        let members: Vec<_> = self.nodes.iter().map(|node| node.member.clone()).collect();
        let node = self.node(node_id);
        let (started, replica) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let seat = match node.seat.take() {
            Some(seat) => seat,
            None => Seat::open(node.member.clone()).await,
        };
        let config = Config {
            raft: RaftConfig { snapshot_entries: 20, keep_entries: 4, ..RaftConfig::default() },
            ..in_process::config(CLUSTER, node_id, &members)
        };

        // A test that fails removes the directory under the node.
        let on_failure = Arc::new(|_: &std::path::Path, _: &_| ());
        let data = NodeData::open(node.directory.path(), &config, LogOptions { on_failure, ..LogOptions::default() });
        let log = data.log.clone();
        let mut parts = in_process::parts(config, seat, data, log.clone());
        parts.further.versions = program;
        parts.further.replica = Some(started);
        let ended = tokio::spawn(in_process::serve(parts, log, async { stopped.await.unwrap_or(()) }));
        let replica = timeout(LONG, replica).await.expect("it starts or ends").ok();
        node.running = Some(Running { replica, stop, ended });
    }

    /// Stops a node in order.
    pub(crate) async fn stop(&mut self, node_id: u64) {
        let Running { stop, ended, .. } = self.node(node_id).running.take().expect("it runs");
        stop.send(()).expect("it still runs");
        ended.await.expect("no panic").expect("it served until it was stopped");
    }

    /// Stops a node if it runs, starts it with this program, and waits until it has caught up.
    pub(crate) async fn restart(&mut self, node_id: u64, program: Versions) {
        if self.node(node_id).running.is_some() {
            self.stop(node_id).await;
        }
        self.spawn(node_id, program).await;
        let replica = self.node(node_id).running.as_ref().and_then(|running| running.replica.clone());
        let replica = replica.expect("it goes on");
        until("the node to catch up", async || {
            let tip = self.leader().await.table().read(|applied| applied.index());
            (replica.table().read(|applied| applied.index()) >= tip && replica.leader().is_some()).then_some(())
        })
        .await;
    }

    /// Stops all nodes that run, so that none loses its directory before.
    pub(crate) async fn end(mut self) {
        for node_id in 1..=self.nodes.len() as u64 {
            if self.node(node_id).running.is_some() {
                self.stop(node_id).await;
            }
        }
    }

    /// As [`Cluster::restart`], for a node that ends by itself: its error.
    pub(crate) async fn restart_to_its_end(&mut self, node_id: u64, program: Versions) -> String {
        if self.node(node_id).running.is_some() {
            self.stop(node_id).await;
        }
        self.spawn(node_id, program).await;
        let Running { ended, stop, .. } = self.node(node_id).running.take().expect("it was started");
        let ended = timeout(LONG, ended).await.expect("it ends by itself").expect("no panic");
        drop(stop);
        ended.expect_err("it cannot go on").to_string()
    }

    /// The replicas of the nodes that run.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Replica> {
        self.nodes.iter().filter_map(|node| node.running.as_ref()?.replica.as_ref())
    }

    /// Where a node takes what its peers send.
    pub(crate) fn peer_address(&self, node_id: u64) -> &str {
        &self.nodes[node_id as usize - 1].member.peer_address
    }

    /// The replica that leads.
    pub(crate) async fn leader(&self) -> Replica {
        let leads = |replica: &&Replica| replica.leads() && !replica.cut_off();
        until("a leader", async || self.replicas().find(leads).cloned()).await
    }

    pub(crate) async fn leader_status(&self) -> StatusResponse {
        until("the leader's status", async || {
            for node in &self.nodes {
                let Ok(mut stub) = ClusterClient::connect(format!("http://{}", node.member.client_address)).await
                else {
                    continue;
                };
                let Ok(status) = stub.status(StatusRequest::default()).await else { continue };
                let status = status.into_inner();
                if status.role() == Role::Leader {
                    return Some(status);
                }
            }
            None
        })
        .await
    }

    /// The cluster version, as of what the leader has applied.
    pub(crate) async fn version(&self) -> Version {
        self.leader().await.table().read(|applied| applied.machine.version())
    }

    /// Waits until all nodes that run have applied this cluster version.
    pub(crate) async fn reaches(&self, version: Version) {
        let has = |replica: &Replica| replica.table().read(|applied| applied.machine.version()) == version;
        until("the cluster version", async || self.replicas().all(has).then_some(())).await;
    }

    /// Acquires a lock by a client. Returns its token.
    pub(crate) async fn acquire(&self, name: &str) -> u64 {
        let options = SessionOptions { ttl: LONG, label: "test".to_owned() };
        let session = self.client.open(options).await.expect("a session");
        let guard = session.acquire(name).await.expect("nobody else wants it");
        guard.token().0
    }

    /// Waits until a node has replaced the start of its log by a snapshot.
    pub(crate) async fn has_purged(&self, node_id: u64) {
        let replica = self.nodes[node_id as usize - 1].running.as_ref().and_then(|running| running.replica.as_ref());
        let metrics = replica.expect("it runs").raft().metrics();
        let purged = || metrics.borrow_watched().purged.is_some_and(|purged| purged.index > 10);
        until("a purged log", async || purged().then_some(())).await;
    }

    /// Waits until the tables of all nodes are the same.
    pub(crate) async fn agree(&self) {
        until("equal tables", async || {
            let look = |replica: &Replica| replica.table().read(|applied| (applied.index(), applied.machine.hash()));
            let tables: Vec<_> = self.replicas().map(look).collect();
            (tables.len() == self.nodes.len() && tables.windows(2).all(|pair| pair[0] == pair[1])).then_some(())
        })
        .await;
    }
}
