//! File descriptors: every connection takes one, and so does every file.
//!
//! A process starts with a soft limit, 1,024 on most systems, which it may raise to the hard limit by itself. The program does so at its
//! start ([`raise`]), and a node takes as many connections as are left beside what it needs for itself ([`Places`]): clients cannot
//! use up what the log, a snapshot or the peers need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The log, snapshots, the identity's file, connections to peers, the runtime; and one operator's.
const RESERVED: u64 = 128;
/// Of what is left, this part is for connections of peers.
const PEERS_PART: u64 = 4;
/// Connections of clients, and of peers, where descriptors are no matter.
const CLIENTS_MAX: usize = 10_000;
const PEERS_MAX: usize = 1_000;
/// Less would be no service.
const LEAST: u64 = 16;

/// How many connections a node takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Of clients.
    pub clients: usize,
    /// Of peers.
    pub peers: usize,
}

impl Default for Places {
    /// Where descriptors are no matter.
    fn default() -> Self {
        Self { clients: CLIENTS_MAX, peers: PEERS_MAX }
    }
}

impl Places {
    /// What this process has descriptors for.
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

    /// What so many descriptors are enough for.
    fn within(descriptors: u64) -> Self {
        let left = descriptors.saturating_sub(RESERVED);
        let peers = (left / PEERS_PART).clamp(LEAST, PEERS_MAX as u64);
        let clients = left.saturating_sub(peers).clamp(LEAST, CLIENTS_MAX as u64);
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self { clients: count(clients), peers: count(peers) }
    }
}

/// Raises this process's soft limit of descriptors to its hard limit. Best effort: a node that may not do so takes fewer connections.
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
