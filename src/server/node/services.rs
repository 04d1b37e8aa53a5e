//! The services of a node at its ports, with the layers around them.

use std::{convert::Infallible, sync::Arc};

use tokio_util::sync::CancellationToken;
use tonic::{body::Body, codegen::http, service::Routes};
use tower::{Layer as _, Service, util::MapResponse};

use super::{Config, NodeLimits, ServeError};
use crate::{
    MESSAGE_BYTES_MAX,
    cluster::Cluster,
    pulse::Pulse,
    service::{Local, Service as LockService, destination::Destination, forward::DialPeer},
    unread::UnreadLayer,
    v1::{
        Adapter, Backend, PipelineLimits,
        addressed::Addressed,
        cluster::ClusterService,
        deadlines::{Deadlines, TimedService},
        forwarded::Forwarded,
        request_sizes::SHORT_BYTES_MAX,
        unreadable::explaining,
    },
};
use lockkeeper_environment::{Environment, Tasks};
use lockkeeper_proto::v1::{cluster_server::ClusterServer, locks_server::LocksServer, sessions_server::SessionsServer};
use lockkeeper_raft::messages::keyspace_server::KeyspaceServer;
use lockkeeper_transport::{Connector, Listen, Settings, tls::Acceptor};

/// Services, with the layers around them.
type Around = MapResponse<TimedService<Routes>, fn(http::Response<Body>) -> http::Response<Body>>;

/// The services of a node.
pub(super) struct Services {
    /// Serves the peers' port.
    pub(super) local: Local,
    /// Serves the clients' port.
    pub(super) service: LockService,
    /// Serves the ports of other protocols. It has connections of its own to the leader, because the runtime that opens a connection also
    /// serves it.
    pub(super) adapters_service: LockService,
    pub(super) cluster: Cluster,
    /// Limits the unread answers at the clients' port.
    pub(super) unread: UnreadLayer,
    /// Limits the unread answers at the ports of other protocols.
    pub(super) adapters_unread: UnreadLayer,
    pipelines: PipelineLimits,
    clients: Tasks,
    adapters: Tasks,
}

impl Services {
    pub(super) fn new<C: Connector>(
        config: &Config,
        limits: NodeLimits,
        local: Local,
        environment: &Environment,
        connector: C,
        stopping: CancellationToken,
    ) -> Self {
        let replica = local.replica.clone();
        let dial: DialPeer = Arc::new(move |id, address, windows| {
            lockkeeper_transport::channel_with(connector.to_node(id), address, windows)
        });
        let cluster_id: Arc<str> = config.cluster_id.as_str().into();
        let service = LockService::new(local.clone(), dial, Arc::clone(&cluster_id), stopping, limits.waits);

        let cluster = Cluster {
            cluster_id,
            start: Arc::default(),
            replica,
            tls: None,
            clock: Arc::clone(&environment.clock),
            blocking: environment.blocking,
            progress: Arc::default(),
            applying: Arc::default(),
            members: Arc::default(),
            comparison: None,
            hashing: Arc::default(),
            pulse: Pulse::default(),
            clients_pulse: Pulse::default(),
            adapters_pulse: Pulse::default(),
        };

        let adapters_service = service.with_own_connections();
        let [unread, adapters_unread] = [(); 2].map(|()| UnreadLayer::new(limits.unread));
        let Environment { clients, adapters, .. } = environment.clone();
        let pipelines = limits.pipelines;
        Self { local, service, adapters_service, cluster, unread, adapters_unread, pipelines, clients, adapters }
    }

    /// The routes for requests that followers forward to this node. They are executed here, or refused. All requests for the keyspace come
    /// from adapters.
    pub(super) fn for_peers(&self) -> Routes {
        let (sessions, locks) = sessions_and_locks(self.local.clone(), self.pipelines);
        let keyspace = KeyspaceServer::new(Adapter::new(self.local.clone()));
        let keyspace = keyspace.max_decoding_message_size(MESSAGE_BYTES_MAX);
        let cluster = ClusterServer::new(ClusterService::new(self.cluster.clone(), self.local.clone()));

        let here = || Destination::new(&self.cluster.cluster_id, self.local.replica.node_id());
        Routes::default()
            .add_service(Addressed {
                here: here(),
                service: Forwarded { service: sessions, tasks: self.clients.clone() },
            })
            .add_service(Addressed { here: here(), service: Forwarded { service: locks, tasks: self.clients.clone() } })
            .add_service(Addressed {
                here: here(),
                service: Forwarded { service: keyspace, tasks: self.adapters.clone() },
            })
            .add_service(Addressed { here: here(), service: cluster })
    }

    /// The layers around all services: messages that cannot be decoded, and deadlines.
    pub(super) fn around(&self, routes: Routes) -> Around {
        let service = self.service.clone();
        let deadlines = Deadlines::new(move || service.leader());
        explaining().layer(deadlines.layer(routes.prepare()))
    }

    /// The routes for requests of clients. They are executed here, or forwarded.
    pub(super) fn for_clients(&self) -> Routes {
        let (sessions, locks) = sessions_and_locks(self.service.clone(), self.pipelines);
        Routes::default()
            .add_service(sessions)
            .add_service(locks)
            .add_service(ClusterServer::new(ClusterService::new(self.cluster.clone(), self.service.clone())))
            .add_service(reflection().build_v1().expect(OWN_DESCRIPTORS).max_decoding_message_size(SHORT_BYTES_MAX))
            // Older clients, and Python's, use this version.
            .add_service(
                reflection().build_v1alpha().expect(OWN_DESCRIPTORS).max_decoding_message_size(SHORT_BYTES_MAX),
            )
    }
}

/// Serves `lockkeeper.v1` on a backend.
fn sessions_and_locks<B: Backend + Clone>(
    backend: B,
    pipelines: PipelineLimits,
) -> (SessionsServer<Adapter<B>>, LocksServer<Adapter<B>>) {
    let adapter = Adapter::with_limits(backend, pipelines);
    // Renewals are a stream, whose messages the port does not limit.
    let sessions = SessionsServer::new(adapter.clone()).max_decoding_message_size(SHORT_BYTES_MAX);
    (sessions, LocksServer::new(adapter).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

const OWN_DESCRIPTORS: &str = "the descriptors are those of this build";

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(lockkeeper_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Serves one port until `stopping` is cancelled.
pub(super) async fn listen_to<L, V>(
    listener: L,
    acceptor: Option<Acceptor>,
    settings: Settings,
    service: V,
    stopping: CancellationToken,
) -> Result<(), ServeError>
where
    L: Listen,
    V: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    lockkeeper_transport::serve(listener, acceptor, settings, service, stopping).await;
    Ok(())
}
