//! What this node sees of its peers' processes: the connections that they opened to it, and when it last heard from each.
//!
//! When a process ends, its system closes all of its connections. So a peer that has one left is there, whatever became of the others.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::transport::Remote;

/// Of each peer, by its id.
#[derive(Debug, Default)]
pub struct Presence {
    peers: Mutex<HashMap<u64, Seen>>,
}

/// Of one peer.
#[derive(Debug)]
struct Seen {
    heard: Instant,
    /// Those by which it called. Some may be gone.
    connections: Vec<Remote>,
}

impl Presence {
    /// A peer called, by this connection. `None`: by one that is not known.
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

    /// More came by a call of its.
    pub fn spoke(&self, peer: u64) {
        if let Some(seen) = self.peers().get_mut(&peer) {
            seen.heard = Instant::now();
        }
    }

    /// How long nothing was heard of it. `None`: it never called.
    pub fn silence(&self, peer: u64) -> Option<Duration> {
        self.peers().get(&peer).map(|seen| seen.heard.elapsed())
    }

    /// Whether one of the connections by which it called is left.
    pub fn is_connected(&self, peer: u64) -> bool {
        self.peers().get(&peer).is_some_and(|seen| seen.connections.iter().any(Remote::is_connected))
    }

    /// Nothing panics while it holds this.
    fn peers(&self) -> MutexGuard<'_, HashMap<u64, Seen>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
