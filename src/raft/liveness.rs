//! The *liveness* of peers: the connections that their processes opened to this node, and when it last heard from each.
//!
//! When a process ends, its operating system closes all of its connections. So a peer with an open connection runs, whatever happened to
//! its other connections.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use lockkeeper_transport::Remote;

/// The liveness of each peer, by its id.
#[derive(Debug, Default)]
pub struct PeerLiveness {
    peers: Mutex<HashMap<u64, Seen>>,
}

/// The liveness of one peer.
#[derive(Debug)]
struct Seen {
    heard: Instant,
    /// The connections of its calls. Some may be closed.
    connections: Vec<Remote>,
}

impl PeerLiveness {
    /// Records a call by a peer on this connection. `None`: the connection is unknown.
    pub fn called(&self, peer: u64, connection: Option<&Remote>) {
        let mut peers = self.peers();
        let seen = peers.entry(peer).or_insert_with(|| Seen { heard: Instant::now(), connections: Vec::new() });
        seen.heard = Instant::now();
        if let Some(connection) = connection
            && !seen.connections.iter().any(|known| known.is_same(connection))
        {
            seen.connections.retain(Remote::is_connected);
            seen.connections.push(connection.clone());
        }
    }

    /// Records a further message of a peer on a call.
    pub fn spoke(&self, peer: u64) {
        if let Some(seen) = self.peers().get_mut(&peer) {
            seen.heard = Instant::now();
        }
    }

    /// The time since the peer was last heard from. `None`: it never called.
    pub fn silence(&self, peer: u64) -> Option<Duration> {
        self.peers().get(&peer).map(|seen| seen.heard.elapsed())
    }

    /// Whether one of the connections by which it called is still open.
    pub fn is_connected(&self, peer: u64) -> bool {
        self.peers().get(&peer).is_some_and(|seen| seen.connections.iter().any(Remote::is_connected))
    }

    /// No code panics while it holds this lock.
    fn peers(&self) -> MutexGuard<'_, HashMap<u64, Seen>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
