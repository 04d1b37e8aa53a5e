//! Limits of connections, from the limit of file descriptors.
//!
//! Each connection takes a descriptor, and so does each file. A process starts with a soft limit, 1,024 on most systems, which it may raise
//! to the hard limit. The program does that when it starts ([`raise`]). A node accepts as many connections as there are descriptors beside
//! those that it reserves for itself ([`Places`]): clients cannot take the descriptors that the log, a snapshot or the peers need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for the log, snapshots, the identity file, connections to peers, the runtime, and one operator.
const RESERVED: u64 = 128;
/// One in this many of the remaining descriptors is for connections of peers.
const PEERS_PART: u64 = 4;
/// Connections of clients, and of peers, at the most.
const CLIENTS_MAX: usize = 10_000;
const PEERS_MAX: usize = 1_000;
/// Connections of clients, and of peers, at the least.
const LEAST: u64 = 16;

/// How many connections a node accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Of clients.
    pub clients: usize,
    /// Of peers.
    pub peers: usize,
}

impl Default for Places {
    /// As many as a node accepts if descriptors do not limit it.
    fn default() -> Self {
        Self { clients: CLIENTS_MAX, peers: PEERS_MAX }
    }
}

impl Places {
    /// As many as the descriptors of this process allow.
    pub fn of_this_process() -> Self {
        let places = getrlimit(Resource::Nofile).current.map_or_else(Self::default, Self::within);
        if places != Self::default() {
            let Self { clients, peers } = places;
            tracing::warn!(
                clients,
                peers,
                "fewer connections than usual: the hard limit of file descriptors is low (ulimit -Hn)"
            );
        }
        places
    }

    /// As many as this number of descriptors allows.
    fn within(descriptors: u64) -> Self {
        let left = descriptors.saturating_sub(RESERVED);
        let peers = (left / PEERS_PART).clamp(LEAST, PEERS_MAX as u64);
        let clients = left.saturating_sub(peers).clamp(LEAST, CLIENTS_MAX as u64);
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self { clients: count(clients), peers: count(peers) }
    }
}

/// Raises the soft limit of this process to its hard limit. Best effort: a node that cannot accepts fewer connections.
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

    #[test]
    fn connections_leave_room_for_files() {
        assert_eq!(Places::within(1 << 20), Places::default());
        for descriptors in [256, 1_024, 4_096, 11_000] {
            let Places { clients, peers } = Places::within(descriptors);
            assert!((clients + peers) as u64 + RESERVED <= descriptors, "{clients} and {peers} of {descriptors}");
            assert!(clients >= 3 * peers - 3);
        }
        assert_eq!(Places::within(1_024), Places { clients: 672, peers: 224 });
        assert_eq!(Places::within(0), Places { clients: 16, peers: 16 });
    }
}
