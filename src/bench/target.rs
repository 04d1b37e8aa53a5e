//! The measured cluster: a running one, or one that the benchmark starts and stops.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{sleep, timeout};

use lockkeeper_client::{Builder, Client, Session, SessionOptions, Tls};
use lockkeeper_local::{self, LocalCluster};
use lockkeeper_proto::v1::Role;

use super::BenchError;

/// The maximum number of connections. Workers share them, as tasks of an application do.
const CONNECTIONS_MAX: usize = 16;
/// The number of sessions that are opened or closed concurrently.
const AT_A_TIME: usize = 64;
/// The TTL of the workers' sessions. It is longer than any election, so expiry has no influence.
const SESSION_TTL: Duration = Duration::from_secs(30);
/// How long closing the sessions may take. The rest of them expires.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long a cluster may take to elect a leader.
const LEADER_LIMIT: Duration = Duration::from_secs(60);

/// The cluster to measure.
#[derive(Clone, Debug)]
pub enum Where {
    /// A new cluster on this machine, in a temporary directory.
    Own {
        /// The program `lockkeeper` that the nodes run.
        program: PathBuf,
        /// The number of nodes.
        nodes: usize,
        /// Whether all connections use TLS.
        tls: bool,
    },
    /// A running cluster, by its endpoints and with the credentials that it asks for.
    Running(Builder),
}

/// The measured cluster.
#[derive(Debug)]
pub(super) struct MeasuredCluster {
    client: Builder,
    /// The prefix of all lock names of this run. No other client uses it.
    pub(super) prefix: Arc<str>,
    /// The benchmark's own cluster. Its nodes are killed on drop.
    own: Option<LocalCluster>,
}

impl MeasuredCluster {
    pub(super) async fn start(place: &Where) -> Result<Self, BenchError> {
        let prefix = format!("bench/{:08x}/", rand::random::<u32>()).into();

        let (client, own) = match place {
            Where::Running(client) => (client.clone(), None),
            Where::Own { program, nodes, tls } => {
                let options = lockkeeper_local::ClusterOptions {
                    nodes: Some(*nodes),
                    tls: *tls,
                    ..lockkeeper_local::ClusterOptions::new(program)
                };
                let cluster = LocalCluster::start(options).await?;
                let client = Client::builder(&cluster.endpoints().join(","));
                let client = match cluster.client_files() {
                    Some(files) => client.tls(&Tls::load(files)?),
                    None => client,
                };
                (client, Some(cluster))
            }
        };

        Ok(Self { client, prefix, own })
    }

    /// A client builder, for callers that need options of their own.
    pub(super) fn client(&self) -> Builder {
        self.client.clone()
    }

    /// The processes of the cluster's nodes, or `None` if they are unknown.
    pub(super) fn servers(&self) -> Option<Vec<u32>> {
        Some(self.own.as_ref()?.nodes().filter_map(lockkeeper_local::LocalNode::pid).collect())
    }

    /// The highest term of the cluster, if the benchmark started it.
    pub(super) async fn terms(&self) -> Option<u64> {
        self.own.as_ref()?.statuses().await.values().map(|status| status.term).max()
    }

    /// The cluster, if the benchmark started it.
    pub(super) fn own(&mut self) -> Option<&mut LocalCluster> {
        self.own.as_mut()
    }

    /// Clients for this number of workers, each with its own connection.
    pub(super) fn clients(&self, workers: usize) -> Result<Vec<Client>, BenchError> {
        let clients = (0..workers.clamp(1, CONNECTIONS_MAX)).map(|_| Ok(self.client().build()?));
        clients.collect()
    }

    /// One session per worker, spread over the connections.
    pub(super) async fn sessions(&self, workers: usize) -> Result<Vec<Session>, BenchError> {
        let clients = self.clients(workers)?;
        let open = |worker: usize| {
            let client = clients[worker % clients.len()].clone();
            let options = SessionOptions { ttl: SESSION_TTL, ..SessionOptions::default() };
            async move { client.open(options).await }
        };
        Ok(stream::iter(0..workers).map(open).buffered(AT_A_TIME).try_collect().await?)
    }
}

/// Closes the sessions and releases all their grants. A session that cannot be closed expires.
pub(super) async fn close(sessions: Vec<Session>) {
    let closing = stream::iter(sessions).for_each_concurrent(AT_A_TIME, |session| async move {
        let _ = session.close().await;
    });
    let _ = timeout(CLOSE_LIMIT, closing).await;
}

/// The leader. Waits until there is one.
pub(super) async fn leader(cluster: &LocalCluster) -> Result<u64, BenchError> {
    let began = Instant::now();
    loop {
        let statuses = cluster.statuses().await;
        let leader = statuses.iter().find(|(_, status)| status.role() == Role::Leader && status.serving);
        match leader {
            Some((&id, _)) => return Ok(id),
            None if began.elapsed() > LEADER_LIMIT => return Err(BenchError::NoFailover(LEADER_LIMIT)),
            None => sleep(Duration::from_millis(20)).await,
        }
    }
}
