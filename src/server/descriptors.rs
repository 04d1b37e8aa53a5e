//! Limits of connections, from the limit of file descriptors.
//!
//! Each connection takes a descriptor, and so does each file. A process starts with a soft limit, 1,024 on most systems, which it may raise
//! to the hard limit. The program does that when it starts ([`raise`]). A node accepts as many connections as there are descriptors beside
//! those that it reserves for itself ([`Places`]): clients cannot take the descriptors that the log, a snapshot or the peers need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for the log, snapshots, the identity file, connections to peers, the runtime, and one operator.
const RESERVED: u64 = 128;
/// Peers get one in this number of the remaining descriptors.
const PEERS_PART: u64 = 4;
/// The port of probes and metrics, if there is one, gets one in this number. The ports of clients share the rest.
const HTTP_PART: u64 = 16;
/// Maximum number of connections at each port.
const CLIENTS_MAX: usize = 10_000;
const PEERS_MAX: usize = 1_000;
const ETCD_MAX: usize = 10_000;
const DYNAMODB_MAX: usize = 1_280;
const REDIS_MAX: usize = 10_000;
const ZOOKEEPER_MAX: usize = 10_500;
const HTTP_MAX: usize = 512;
/// Minimum number of connections at each port.
const LEAST: u64 = 16;

/// How many connections a node accepts at each port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Connections of clients.
    pub clients: usize,
    /// Connections of peers.
    pub peers: usize,
    /// Connections of etcd's clients.
    pub etcd: usize,
    /// Connections of DynamoDB's clients.
    pub dynamodb: usize,
    /// Connections of Redis' clients.
    pub redis: usize,
    /// Connections of ZooKeeper's clients.
    pub zookeeper: usize,
    /// Connections of probes, scrapers and browsers.
    pub http: usize,
}

/// The ports that a node has beside those of clients and peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FurtherPorts {
    /// Whether it serves etcd's API.
    pub etcd: bool,
    /// Whether it serves DynamoDB's API.
    pub dynamodb: bool,
    /// Whether it serves Redis' protocol.
    pub redis: bool,
    /// Whether it serves ZooKeeper's protocol.
    pub zookeeper: bool,
    /// Whether it serves probes, metrics and the console.
    pub http: bool,
}

impl Default for Places {
    /// The numbers of a node that descriptors do not limit.
    fn default() -> Self {
        Self {
            clients: CLIENTS_MAX,
            peers: PEERS_MAX,
            etcd: ETCD_MAX,
            dynamodb: DYNAMODB_MAX,
            redis: REDIS_MAX,
            zookeeper: ZOOKEEPER_MAX,
            http: HTTP_MAX,
        }
    }
}

impl Places {
    /// The numbers that the descriptors of this process allow.
    pub fn for_this_process(ports: FurtherPorts) -> Self {
        let usual = Self::within(u64::MAX, ports);
        let places = getrlimit(Resource::Nofile).current.map_or(usual, |descriptors| Self::within(descriptors, ports));

        if places != usual {
            let Self { clients, peers, etcd, dynamodb, redis, zookeeper, http } = places;
            tracing::warn!(
                clients,
                peers,
                etcd,
                dynamodb,
                redis,
                zookeeper,
                http,
                "fewer connections than usual: the hard limit of file descriptors is low (ulimit -Hn)"
            );
        }
        places
    }

    /// The numbers that this number of descriptors allows.
    fn within(descriptors: u64, ports: FurtherPorts) -> Self {
        let left = descriptors.saturating_sub(RESERVED);
        let count = |descriptors: u64, most: usize| {
            let descriptors = descriptors.clamp(LEAST, most as u64);
            usize::try_from(descriptors).unwrap_or(most)
        };
        let count_if = |is_there: bool, descriptors, most| if is_there { count(descriptors, most) } else { 0 };
        let peers = count(left / PEERS_PART, PEERS_MAX);
        let http = count_if(ports.http, left / HTTP_PART, HTTP_MAX);

        let for_clients = left.saturating_sub((peers + http) as u64);
        let further = [ports.etcd, ports.dynamodb, ports.redis, ports.zookeeper];
        let share = for_clients / (1 + further.map(u64::from).iter().sum::<u64>());
        Self {
            clients: count(share, CLIENTS_MAX),
            peers,
            etcd: count_if(ports.etcd, share, ETCD_MAX),
            dynamodb: count_if(ports.dynamodb, share, DYNAMODB_MAX),
            redis: count_if(ports.redis, share, REDIS_MAX),
            zookeeper: count_if(ports.zookeeper, share, ZOOKEEPER_MAX),
            http,
        }
    }
}

/// Raises the soft limit of this process to its hard limit. A node that cannot do so accepts fewer connections.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(?current, ?maximum, "raised the limit of file descriptors"),
        Err(error) => tracing::warn!(?current, ?maximum, %error, "cannot raise the limit of file descriptors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: FurtherPorts = FurtherPorts { etcd: true, dynamodb: true, redis: true, zookeeper: true, http: true };

    #[test]
    fn connections_leave_room_for_files() {
        assert_eq!(Places::within(1 << 20, ALL), Places::default());
        for descriptors in [256, 1_024, 4_096, 11_000, 30_000] {
            for ports in [ALL, FurtherPorts::default()] {
                let places = Places::within(descriptors, ports);
                let Places { clients, peers, etcd, dynamodb, redis, zookeeper, http } = places;
                let all = clients + peers + etcd + dynamodb + redis + zookeeper + http;
                assert!(all as u64 + RESERVED <= descriptors, "{places:?} of {descriptors}");
            }
        }
        let none = Places { clients: 672, peers: 224, etcd: 0, dynamodb: 0, redis: 0, zookeeper: 0, http: 0 };
        assert_eq!(Places::within(1_024, FurtherPorts::default()), none);
        let least = Places { clients: 16, peers: 16, etcd: 16, dynamodb: 16, redis: 16, zookeeper: 16, http: 16 };
        assert_eq!(Places::within(0, ALL), least);
    }
}
