//! The cluster that is measured: one that runs somewhere, or one of its own, which ends with the measurement.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{sleep, timeout};

use super::BenchError;
use crate::{
    client::{Client, Session, SessionOptions},
    local::{self, LocalCluster},
    proto::v1::Role,
};

/// Connections, at the most: workers share them, as an application's tasks would.
const CONNECTIONS_MAX: usize = 16;
/// Sessions that are opened, or closed, at a time.
const AT_A_TIME: usize = 64;
/// Of the workers' sessions: longer than any election, so that they are not what is measured.
const SESSION_TTL: Duration = Duration::from_secs(30);
/// How long sessions may take to be closed at the end. What is left expires.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long a cluster may take to elect a leader.
const LEADER_LIMIT: Duration = Duration::from_secs(60);

/// Which cluster to measure.
#[derive(Clone, Debug)]
pub enum Where {
    /// One of its own, on this machine, in a temporary directory.
    Own {
        /// The program `lockkeeper`.
        program: PathBuf,
        /// How many nodes.
        nodes: usize,
    },
    /// One that runs: host:port, with commas between.
    Endpoints(String),
}

/// The cluster that is measured.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) endpoints: String,
    /// Under which all names are that this run uses: nobody else's.
    pub(super) prefix: Arc<str>,
    /// Dropped, its nodes are killed.
    own: Option<LocalCluster>,
}

impl Target {
    pub(super) async fn start(place: &Where) -> Result<Self, BenchError> {
        let prefix = format!("bench/{:08x}/", rand::random::<u32>()).into();
        let (endpoints, own) = match place {
            Where::Endpoints(endpoints) => (endpoints.clone(), None),
            Where::Own { program, nodes } => {
                let options = local::Options { nodes: Some(*nodes), ..local::Options::new(program) };
                let cluster = LocalCluster::start(options).await?;
                (cluster.endpoints().join(","), Some(cluster))
            }
        };
        Ok(Self { endpoints, prefix, own })
    }

    /// Its nodes' processes. `None`: they are not known.
    pub(super) fn servers(&self) -> Option<Vec<u32>> {
        Some(self.own.as_ref()?.nodes().filter_map(local::Node::pid).collect())
    }

    /// How many terms there were in its cluster, if that is our own.
    pub(super) async fn terms(&self) -> Option<u64> {
        self.own.as_ref()?.statuses().await.values().map(|status| status.term).max()
    }

    /// The cluster, if it is one of our own.
    pub(super) fn own(&mut self) -> Option<&mut LocalCluster> {
        self.own.as_mut()
    }

    /// Clients with a connection each, for so many workers.
    pub(super) fn clients(&self, workers: usize) -> Result<Vec<Client>, BenchError> {
        let clients = (0..workers.clamp(1, CONNECTIONS_MAX)).map(|_| Ok(Client::new(&self.endpoints)?));
        clients.collect()
    }

    /// A session for each worker, spread over so many connections as there may be.
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

/// Closes them, and all that they hold. What cannot be closed expires.
pub(super) async fn close(sessions: Vec<Session>) {
    let closing = stream::iter(sessions).for_each_concurrent(AT_A_TIME, |session| async move {
        let _ = session.close().await;
    });
    let _ = timeout(CLOSE_LIMIT, closing).await;
}

/// Who leads; waits until somebody does.
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
