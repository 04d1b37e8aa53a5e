//! The *liveness* of peers: the connections that their processes opened to this node, and when it last heard from each.
//!
//! When a process ends, its operating system closes all of its connections. So a peer with an open connection runs, whatever happened to
//! its other connections.
//!
//! There are two measures of a silence. [`PeerLiveness::silence`] is the plain time. [`PeerLiveness::counted_silence`] leaves out the stalls
//! of this node: while its process is paused or starved of CPU, messages wait in its sockets, and their sender is not silent. The time is
//! counted in steps of [`STEP`], at most [`STEP_MAX`] each, so a node on a busy machine needs more time to suspect a peer.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use lockkeeper_transport::Remote;

/// The interval at which this node's time is counted.
pub const STEP: Duration = Duration::from_millis(15);
/// The most that counts of the time between two steps; the rest is a stall.
pub const STEP_MAX: Duration = Duration::from_millis(40);

/// The liveness of each peer, by its id.
#[derive(Debug, Default)]
pub struct PeerLiveness {
    peers: Mutex<HashMap<u64, Seen>>,
    counted: Mutex<Counted>,
}

/// The time of this node without its stalls.
#[derive(Debug, Default)]
struct Counted {
    time: Duration,
    /// `None`: it is not counted yet.
    at: Option<Instant>,
}

/// The liveness of one peer.
#[derive(Debug)]
struct Seen {
    heard: Instant,
    /// The counted time at that moment.
    heard_counted: Duration,
    /// The connections of its calls. Some may be closed.
    connections: Vec<Remote>,
}

impl PeerLiveness {
    /// Records a call by a peer on this connection. `None`: the connection is unknown.
    pub fn called(&self, peer: u64, connection: Option<&Remote>) {
        let (heard, heard_counted) = (Instant::now(), self.counted());
        let mut peers = self.peers();
        let seen = peers.entry(peer).or_insert_with(|| Seen { heard, heard_counted, connections: Vec::new() });
        (seen.heard, seen.heard_counted) = (heard, heard_counted);
        if let Some(connection) = connection
            && !seen.connections.iter().any(|known| known.is_same(connection))
        {
            seen.connections.retain(Remote::is_connected);
            seen.connections.push(connection.clone());
        }
    }

    /// Records a further message of a peer on a call.
    pub fn spoke(&self, peer: u64) {
        let now = (Instant::now(), self.counted());
        if let Some(seen) = self.peers().get_mut(&peer) {
            (seen.heard, seen.heard_counted) = now;
        }
    }

    /// Counts this node's time on the runtime on which it is polled: the one that serves the peers. Does not end.
    pub async fn count(&self) {
        loop {
            self.step(Instant::now());
            sleep(STEP).await;
        }
    }

    fn step(&self, now: Instant) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = counted.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        *counted = Counted { time: counted.time + passed.min(STEP_MAX), at: Some(now) };
    }

    fn counted(&self) -> Duration {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).time
    }

    /// The time since the peer was last heard from, in whole steps and without this node's stalls. If it never called: all counted time.
    pub fn counted_silence(&self, peer: u64) -> Duration {
        let heard = self.peers().get(&peer).map(|seen| seen.heard_counted);
        self.counted().saturating_sub(heard.unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: u64 = 2;

    #[test]
    fn a_stall_of_this_node_is_not_the_silence_of_a_peer() {
        let (liveness, start) = (PeerLiveness::default(), Instant::now());
        liveness.step(start);
        liveness.called(PEER, None);
        liveness.step(start + STEP);
        assert_eq!(liveness.counted_silence(PEER), STEP);
        liveness.step(start + STEP + Duration::from_secs(60));
        assert_eq!(liveness.counted_silence(PEER), STEP + STEP_MAX);
        liveness.spoke(PEER);
        assert_eq!(liveness.counted_silence(PEER), Duration::ZERO);
    }

    #[test]
    fn a_peer_that_never_called_is_silent_since_the_start() {
        let (liveness, start) = (PeerLiveness::default(), Instant::now());
        liveness.step(start);
        assert_eq!(liveness.counted_silence(PEER), Duration::ZERO, "the time before the first step is unknown");
        liveness.step(start + STEP);
        assert_eq!(liveness.counted_silence(PEER), STEP);
    }
}
