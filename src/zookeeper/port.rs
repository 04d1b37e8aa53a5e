//! The port: accepts connections and serves them.

use std::{fmt, sync::Arc};

use lockkeeper_accept::{AcceptLimits, AcceptedConnection, ArrivingBytes, serve_connections};
use tokio::{sync::Mutex, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    ZookeeperListener, ZookeeperOptions, ZookeeperStats, ZookeeperStore, ZookeeperStoreError,
    connection::{ByteBudgets, ZookeeperConnection},
    node::ZookeeperNode,
    sweep::{DueZnodes, sweep},
};

/// ZooKeeper's protocol over a store.
pub struct Zookeeper<S> {
    node: Arc<ZookeeperNode<S>>,
    /// Nodes that were due at the last sweep.
    due: Arc<Mutex<DueZnodes>>,
}

impl<S> Clone for Zookeeper<S> {
    fn clone(&self) -> Self {
        Self { node: Arc::clone(&self.node), due: Arc::clone(&self.due) }
    }
}

impl<S> fmt::Debug for Zookeeper<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zookeeper").finish_non_exhaustive()
    }
}

impl<S: ZookeeperStore> Zookeeper<S> {
    /// Makes the state of a node: its watches, and what it counts.
    pub fn new(store: S, options: ZookeeperOptions) -> Self {
        Self { node: Arc::new(ZookeeperNode::new(store, options)), due: Arc::default() }
    }

    /// What this node has done and has now, for metrics.
    pub fn stats(&self) -> ZookeeperStats {
        self.node.stats()
    }

    /// Removes containers that have had children and have none, and nodes whose time to live has passed. Returns the number of nodes that
    /// were removed. The node that leads calls this once a minute or so: what was due at one call and is unchanged at the next is
    /// removed, so a node lives on for up to two intervals. Reads all nodes, a thousand at a time.
    ///
    /// Fails as the store does; what was removed before that stays removed. Dropping the future is like a failure.
    pub async fn sweep(&self) -> Result<usize, ZookeeperStoreError> {
        let mut due = self.due.lock().await;
        let (found, removed) = sweep(&self.node, &due).await?;
        *due = found;
        Ok(removed)
    }

    /// Serves connections until `stopping` is cancelled, and then the requests in flight for some seconds. Never fails: an error of one
    /// connection does not affect others. Dropping the future closes all connections. Called once.
    pub async fn serve<L: ZookeeperListener>(&self, listener: L, stopping: CancellationToken) {
        let options = &self.node.options;
        let budgets = ByteBudgets {
            requests: ArrivingBytes::new(options.requests_bytes_max),
            replies: ArrivingBytes::new(options.replies_bytes_max),
        };
        let limits = AcceptLimits {
            connections_max: options.connections_max,
            handshake_timeout: options.arrival_timeout,
            refuses: true,
            settles_arrivals: true,
        };
        // The tasks end with this future.
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&self.node).follow_feed());
        tasks.spawn(Arc::clone(&self.node).sweep_sessions());
        tasks.spawn(Arc::clone(&self.node).clear_watches());

        let node = Arc::clone(&self.node);
        let serve = move |accepted: AcceptedConnection<L::Stream>| {
            let AcceptedConnection { stream, client, slot, stopping } = accepted;
            let identity = L::identity(&stream);
            ZookeeperConnection::new(stream, Arc::clone(&node), client, identity, &budgets).serve(slot, stopping)
        };
        serve_connections(listener, limits, stopping, serve).await;
    }
}
