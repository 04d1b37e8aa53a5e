//! The ports of a node, and their connections.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A port of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeteredPort {
    /// The port serves `lockkeeper.v1`.
    Clients,
    /// The port serves the other members.
    Peers,
    /// The port serves probes, metrics and the console.
    Http,
    /// The port serves etcd's API.
    Etcd,
    /// The port serves DynamoDB's API.
    DynamoDb,
    /// The port serves Redis' protocol.
    Redis,
    /// The port serves ZooKeeper's protocol.
    Zookeeper,
}

impl MeteredPort {
    pub(crate) const ALL: [Self; 7] =
        [Self::Clients, Self::Peers, Self::Http, Self::Etcd, Self::DynamoDb, Self::Redis, Self::Zookeeper];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Peers => "peers",
            Self::Http => "http",
            Self::Etcd => "etcd",
            Self::DynamoDb => "dynamodb",
            Self::Redis => "redis",
            Self::Zookeeper => "zookeeper",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

/// The connections of a port.
pub(crate) struct PortConnections {
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
}

impl PortConnections {
    pub(crate) fn register(registry: &mut Registry) -> Vec<Self> {
        let open = Family::<PortLabel, Gauge>::default();
        let accepted = Family::<PortLabel, Counter>::default();
        let refused = Family::<PortLabel, Counter>::default();

        let help = "Open connections, by port; also those that have made no call yet";
        registry.register("lockkeeper_connections", help, open.clone());

        let help = "Connections that were accepted, by port";
        registry.register("lockkeeper_connections_accepted", help, accepted.clone());

        let help = "Connections that were refused because all slots of their port had connections in use";
        registry.register("lockkeeper_connections_refused", help, refused.clone());

        let of = |port: MeteredPort| {
            let port = PortLabel { port: port.name() };
            let open = open.get_or_create(&port).clone();
            let accepted = accepted.get_or_create(&port).clone();
            Self { open, accepted, refused: refused.get_or_create(&port).clone() }
        };
        MeteredPort::ALL.map(of).into()
    }
}

/// A connection that counts as open until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(pub(crate) Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
