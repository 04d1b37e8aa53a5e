//! ZooKeeper's protocol on this node: its store is the cluster's keyspace.
//!
//! `lockkeeper-zookeeper` speaks the protocol. Here is what lies between it and the cluster:
//!
//! | file | what it has |
//! |---|---|
//! | `copy` | this node's states of the table, one after the other, which its clients read, and the steps between |
//! | `leases` | the sessions of its connections: renewals, and whether this node may vouch for them |
//! | `names` | keys, session ids and names of locks |
//! | `store` | the store: reads from the copy, requests to the leader |
//!
//! **A session is one of the table**, opened by a connect, and may be attached at any node. Its id is the number that the client sees, in a
//! range of this protocol's own. Who may attach it is proven by its password, so the node asks in its own name; what the connection then
//! writes is asked for in the name of its client.
//!
//! **A node with a session is an entry with a lease**, and claims a lock (see `lockkeeper_machine`'s keyspace): a numbered one is a place
//! in the queue of `zookeeper/PATH/OF/PARENT`, any other holds `zookeeper/PATH`. Operators list, watch and take these back.

mod copy;
mod leases;
mod names;
mod store;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use lockkeeper_config::ZookeeperConfig;
use lockkeeper_environment::Environment;
use lockkeeper_transport::{Listen, tls::Acceptor};
use lockkeeper_zookeeper::{Zookeeper, ZookeeperIdentity, ZookeeperLimits, ZookeeperListener, ZookeeperOptions};

use self::{
    copy::NodeCopy,
    leases::{DueRenewals, SessionLeases},
    store::ZookeeperKeyspace,
};
use super::{certified_port::CertifiedPort, keyspace_client::KeyspaceClient};
use crate::service::Service;

/// Time between two sweeps of the nodes that end by themselves: ZooKeeper's own.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);

/// The door: what serves the port, and what goes on beside it.
pub(crate) struct ZookeeperDoor {
    zookeeper: Zookeeper<ZookeeperKeyspace>,
    store: ZookeeperKeyspace,
    due: DueRenewals,
}

impl ZookeeperDoor {
    pub(crate) fn new(
        service: Service,
        config: &ZookeeperConfig,
        connections_max: usize,
        limits: ZookeeperLimits,
        environment: &Environment,
    ) -> Self {
        let clock = Arc::clone(&environment.clock);
        let wall_ms = move || i64::try_from(clock.wall_ms()).unwrap_or(i64::MAX);
        let random = Arc::clone(&environment.random);
        #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
        let draw = move || random.bits() as u64;

        let options = ZookeeperOptions {
            connections_max,
            session_timeout_ms_min: config.session_timeout_ms_min.into(),
            session_timeout_ms_max: config.session_timeout_ms_max.into(),
            closed_socket_grace: (config.closed_socket_grace_ms > 0)
                .then(|| Duration::from_millis(config.closed_socket_grace_ms.into())),
            ..ZookeeperOptions::new(wall_ms, draw).with_limits(limits)
        };

        let (leases, due) = SessionLeases::new();
        let copy = NodeCopy::new(Arc::clone(service.replica().table()), leases.clone());
        let store = ZookeeperKeyspace {
            client: KeyspaceClient::new(service),
            copy,
            leases,
            random: Arc::clone(&environment.random),
            secret: Arc::default(),
        };
        Self { zookeeper: Zookeeper::new(store.clone(), options), store, due }
    }

    /// Serves the port until `stopping` is cancelled.
    pub(crate) fn serve<L: Listen>(
        self,
        listener: L,
        acceptor: Option<Acceptor>,
        stopping: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<L> {
        let Self { zookeeper, store, due } = self;
        let service = store.client.service().clone();
        let listener = CertifiedPort { listener, acceptor, access: Arc::clone(service.access()) };

        // These tasks run until the port ends.
        let following = store.copy.clone().follow();
        let renewing = store.leases.clone().renew(due, service.clone());
        let sweeping = sweep(zookeeper.clone(), service);
        async move {
            tokio::select! {
                () = zookeeper.serve(listener, stopping) => {}
                () = following => {}
                () = renewing => {}
                () = sweeping => {}
            }
        }
    }
}

impl<L: Listen> ZookeeperListener for CertifiedPort<L> {
    fn identity(stream: &Self::Stream) -> Option<ZookeeperIdentity> {
        stream.proven().map(|(name, withdrawn)| ZookeeperIdentity { name, withdrawn })
    }
}

/// Removes containers that are empty and nodes whose time to live has passed, while this node leads. Does not return.
async fn sweep(zookeeper: Zookeeper<ZookeeperKeyspace>, service: Service) {
    loop {
        sleep(SWEEP_PAUSE).await;
        if service.replica().leads()
            && let Err(failure) = zookeeper.sweep().await
        {
            tracing::debug!(%failure, "nodes that are due are removed at the next sweep");
        }
    }
}
