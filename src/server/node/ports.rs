//! The ports of a node: one listener for each protocol, and the service behind it.
//!
//! Ports of clients stop to accept when the node starts to end ([`RunningNode::stopping`]); that of the peers serves until the end, because
//! the last requests need the peers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;
use tower::Layer as _;

use lockkeeper_config::Config;
use lockkeeper_environment::{Environment, Tasks};
use lockkeeper_proto::v1::maintenance_server::MaintenanceServer;
use lockkeeper_transport::{
    Connector, Listen, Settings,
    tls::{Acceptor, Port, Tls, TlsError},
};

use super::{NodeTasks, RunningNode, ServeError, services::listen_to};
use crate::{
    adapters,
    connections::{Counted, CountedPort},
    console::Console,
    gate::{Gated, Hosts},
    http_port::HttpPort,
    node_calls::{self, NodeCalls},
    v1::{identified::Identified, maintenance::Maintenance, request_sizes::request_bytes_max},
    web::{self, Web},
};

/// The listeners of a node. An optional port without a listener is not served.
pub(super) struct Listeners<L> {
    pub(super) clients: L,
    pub(super) peers: L,
    pub(super) dynamodb: Option<L>,
    pub(super) etcd: Option<L>,
    pub(super) redis: Option<L>,
    pub(super) zookeeper: Option<L>,
    pub(super) http: Option<L>,
}

/// What accepts TLS at each port. Without certificates, all ports take plain text.
pub(super) struct Acceptors {
    clients: Option<Acceptor>,
    peers: Option<Acceptor>,
    dynamodb: Option<Acceptor>,
    etcd: Option<Acceptor>,
    redis: Option<Acceptor>,
    zookeeper: Option<Acceptor>,
    console: Option<Acceptor>,
}

impl Acceptors {
    pub(super) fn new(tls: Option<&Tls>, environment: &Environment) -> Result<Self, TlsError> {
        let acceptor = |port| tls.cloned().map(|tls| Acceptor::new(tls, port)).transpose();
        let mut peers = acceptor(Port::Peers)?;
        if let Tasks::On(runtime) = &environment.clients {
            // A flood of handshakes must not delay heartbeats.
            peers = peers.map(|acceptor| acceptor.on(runtime.clone()));
        }

        Ok(Self {
            clients: acceptor(Port::Clients)?,
            peers,
            dynamodb: acceptor(Port::Http)?,
            etcd: acceptor(Port::EitherHttp)?,
            // Like browsers, these clients show a certificate or a password.
            redis: acceptor(Port::Console)?,
            zookeeper: acceptor(Port::Console)?,
            console: acceptor(Port::Console)?,
        })
    }
}

impl<C: Connector> RunningNode<C> {
    /// Serves all ports, by tasks of this set. The reporter says at the clients' port whether this node can serve.
    pub(super) fn serve<L: Listen>(
        &self,
        listeners: Listeners<L>,
        acceptors: Acceptors,
        tasks: &mut NodeTasks,
    ) -> Result<HealthReporter, ServeError> {
        let hosts = Arc::new(hosts(&self.base.config));
        self.serve_peers(listeners.peers, acceptors.peers, tasks);
        let reporter = self.serve_clients(listeners.clients, acceptors.clients, tasks);

        if let Some(listener) = listeners.dynamodb {
            self.serve_dynamodb(listener, acceptors.dynamodb, tasks)?;
        }
        if let Some(listener) = listeners.etcd {
            self.serve_etcd(listener, acceptors.etcd, Arc::clone(&hosts), tasks);
        }
        if let Some(listener) = listeners.redis {
            self.serve_redis(listener, acceptors.redis, tasks);
        }
        if let Some(listener) = listeners.zookeeper {
            self.serve_zookeeper(listener, acceptors.zookeeper, tasks);
        }
        if let Some(listener) = listeners.http {
            self.serve_http(listener, acceptors.console, hosts, tasks);
        }
        Ok(reporter)
    }

    fn counted<L>(&self, listener: L, port: CountedPort) -> Counted<L> {
        Counted::new(listener, port, &self.base.environment.metrics)
    }

    fn serve_peers<L: Listen>(&self, listener: L, acceptor: Option<Acceptor>, tasks: &mut NodeTasks) {
        let Self { base, replication, services, .. } = self;
        let routes = services.for_peers().add_service(replication.peer_service.server());
        let port = node_calls::CallPort::Peers(Box::new(replication.replica.clone()));
        let service = NodeCalls { port, service: services.around(routes) };

        let listener = self.counted(listener, CountedPort::Peers);
        let settings = Settings::PEERS.with_connections_max(base.places.peers);
        // Never cancelled: Raft needs its peers while the leadership is handed over. The task ends with the node's.
        tasks.duties.spawn(listen_to(listener, acceptor, settings, service, CancellationToken::new()));
    }

    fn serve_clients<L: Listen>(
        &self,
        listener: L,
        acceptor: Option<Acceptor>,
        tasks: &mut NodeTasks,
    ) -> HealthReporter {
        let Self { base, replication, services, .. } = self;
        let environment = &base.environment;
        let cluster_id = base.identity.cluster_id().clone();
        let replica = replication.replica.clone();
        let maintenance = Maintenance::new(services.service.clone(), replica, environment.clone(), cluster_id);

        let (reporter, health_service) = tonic_health::server::health_reporter();
        let routes =
            services.for_clients().add_service(health_service).add_service(MaintenanceServer::new(maintenance));
        let service = Identified { callers: Arc::new(services.service.clone()), service: services.around(routes) };
        let service = NodeCalls { port: node_calls::CallPort::Clients, service };
        let service = services.unread.layer(service);

        let listener = self.counted(listener, CountedPort::Clients);
        let settings = Settings::CLIENTS.with_connections_max(base.places.clients).with_requests(request_bytes_max);
        let serving = listen_to(listener, acceptor, settings, service, self.stopping.clone());
        environment.clients.spawn(&mut tasks.clients, serving);
        reporter
    }

    fn serve_dynamodb<L: Listen>(
        &self,
        listener: L,
        acceptor: Option<Acceptor>,
        tasks: &mut NodeTasks,
    ) -> Result<(), ServeError> {
        let Self { base, services, .. } = self;
        let serving = adapters::dynamodb::serve(
            &base.config.dynamodb,
            HttpPort { listener: self.counted(listener, CountedPort::DynamoDb), acceptor },
            base.places.dynamodb,
            base.node_limits.dynamodb,
            services.adapters_service.clone(),
            &base.environment,
            self.stopping.clone(),
        );
        let serving = serving.map_err(ServeError::Config)?;

        base.environment.adapters.spawn(&mut tasks.clients, async move {
            serving.await;
            Ok(())
        });
        Ok(())
    }

    fn serve_etcd<L: Listen>(&self, listener: L, acceptor: Option<Acceptor>, hosts: Arc<Hosts>, tasks: &mut NodeTasks) {
        let Self { base, services, .. } = self;
        let random = Arc::clone(&base.environment.random);
        let url = adapters::etcd::url(&base.config, base.tls.is_some());
        let service = services.adapters_service.clone();
        let store = adapters::etcd::EtcdKeyspace::new(service, &services.cluster.cluster_id, random, &url);

        let announcing = store.clone().announce(self.stopping.clone());
        base.environment.adapters.spawn(&mut tasks.clients, async move {
            announcing.await;
            Ok(())
        });

        let service = NodeCalls { port: node_calls::CallPort::Clients, service: lockkeeper_etcd::services(store) };
        let service = services.adapters_unread.layer(Gated { hosts, service });
        let listener = self.counted(listener, CountedPort::Etcd);
        let settings = Settings::CLIENTS.with_connections_max(base.places.etcd).with_http1();
        let settings = settings.with_requests(lockkeeper_etcd::request_bytes_max);
        let serving = listen_to(listener, acceptor, settings, service, self.stopping.clone());
        base.environment.adapters.spawn(&mut tasks.clients, serving);
    }

    fn serve_redis<L: Listen>(&self, listener: L, acceptor: Option<Acceptor>, tasks: &mut NodeTasks) {
        let Self { base, services, .. } = self;
        let address = adapters::redis::address(&base.config);
        let service = services.adapters_service.clone();
        let limits = base.node_limits.redis;
        let door = adapters::redis::RedisDoor::new(service, address, base.places.redis, limits, &base.environment);
        services.adapters_service.run_units(door.runner());

        let listener = self.counted(listener, CountedPort::Redis);
        let serving = door.serve(listener, acceptor, self.stopping.clone());
        base.environment.adapters.spawn(&mut tasks.clients, async move {
            serving.await;
            Ok(())
        });
    }

    fn serve_zookeeper<L: Listen>(&self, listener: L, acceptor: Option<Acceptor>, tasks: &mut NodeTasks) {
        let Self { base, services, .. } = self;
        let service = services.adapters_service.clone();
        let config = &base.config.zookeeper;
        let limits = base.node_limits.zookeeper;
        let door =
            adapters::zookeeper::ZookeeperDoor::new(service, config, base.places.zookeeper, limits, &base.environment);

        let listener = self.counted(listener, CountedPort::Zookeeper);
        let serving = door.serve(listener, acceptor, self.stopping.clone());
        base.environment.adapters.spawn(&mut tasks.clients, async move {
            serving.await;
            Ok(())
        });
    }

    fn serve_http<L: Listen>(&self, listener: L, acceptor: Option<Acceptor>, hosts: Arc<Hosts>, tasks: &mut NodeTasks) {
        let Self { base, services, .. } = self;
        let environment = &base.environment;
        let cluster = services.cluster.clone();
        let service = services.adapters_service.clone();
        let console = Console::new(cluster.clone(), service.clone(), Arc::clone(&environment.clock), hosts);

        let metrics = environment.metrics.clone();
        environment.adapters.spawn(&mut tasks.background, console.clone().record(metrics.clone()));
        let data = base.config.data_dir.as_path().into();
        let web = Web { cluster, service, metrics, console, data, page: Default::default() };
        let listener = self.counted(listener, CountedPort::Http);
        let unread = services.adapters_unread.clone();
        let serving = web::serve(listener, acceptor, base.places.http, web, unread, self.stopping.clone());
        environment.adapters.spawn(&mut tasks.clients, async move {
            serving.await;
            Ok(())
        });
    }
}

/// The names by which browsers, and clients of etcd's JSON, reach this node.
fn hosts(config: &Config) -> Hosts {
    let member = config.this_member().into_iter().flat_map(|member| [&member.client_address, &member.peer_address]);
    let own = [&config.http.listen, &config.client_address, &config.peer_address];
    let etcd = [&config.etcd.listen, &config.etcd.advertise];
    let addresses = own.into_iter().chain(etcd).chain(member).chain(&config.http.hosts);
    Hosts::new(addresses.map(String::as_str))
}
