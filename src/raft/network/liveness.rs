//! The *liveness* of peers: the connections that their processes opened to this node, and when it last heard from each.
//!
//! When a process ends, its operating system closes all of its connections. So a peer with an open connection runs, even if its other
//! connections broke.
//!
//! There are two measures of a silence. [`PeerLiveness::silence`] is the plain time. [`PeerLiveness::counted_silence`] leaves out the
//! stalls of this node: while its process is paused or starved of CPU, messages wait in its sockets, and their sender is not silent. The
//! time is counted in steps of [`STEP`], at most [`STEP_MAX`] each, so a node on a busy machine needs more time to suspect a peer.
//!
//! A peer on a busy machine speaks irregularly. [`PeerLiveness::tolerated`] adapts to the longest gap between two of its messages in the
//! last minute (`SPAN`, `SPANS`).
//!
//! Nodes that are no members, as far as this node's log reaches, are known too: the leader may be one. Without certificates anybody may
//! call under any id, so only the last few are kept (`OTHERS_MAX`).

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

/// The longest gap is kept for each [`SPAN`] of the last [`SPANS`].
const SPAN: Duration = Duration::from_secs(20);
const SPANS: usize = 3;
/// How many times as long as its longest gap a peer may be silent.
const GAPS_TOLERATED: u32 = 2;
/// Longer gaps are not counted: the peer had no reason to speak, since it did not lead, or it was replaced as the leader.
const GAP_MAX: Duration = Duration::from_secs(1);

/// Number of nodes that are no members of which the liveness is known.
const OTHERS_MAX: usize = 16;

/// The liveness of each peer, by its id.
#[derive(Debug, Default)]
pub struct PeerLiveness {
    peers: Mutex<HashMap<u64, HeardPeer>>,
    counted: Mutex<CountedTime>,
}

/// The time of this node without its stalls.
#[derive(Debug, Default)]
struct CountedTime {
    time: Duration,
    /// `None` until it is counted for the first time.
    at: Option<Instant>,
}

/// The liveness of one peer.
#[derive(Debug)]
struct HeardPeer {
    heard: Instant,
    /// The counted time at that moment.
    heard_counted: Duration,
    /// The longest gap between two messages of each span of counted time, by the span's number; the latest span is last.
    gaps: [(u128, Duration); SPANS],
    /// The connections of its calls. Some may be closed.
    connections: Vec<Remote>,
    /// Whether it was a member when it called.
    is_member: bool,
}

impl PeerLiveness {
    /// Records a call by a member, on this connection if it is known.
    pub fn called(&self, peer: u64, connection: Option<&Remote>) {
        self.record_call(peer, connection, true);
    }

    /// Records a call by a node that is not a member, as far as this node knows.
    pub fn called_by_other(&self, node: u64, connection: Option<&Remote>) {
        self.record_call(node, connection, false);
    }

    fn record_call(&self, peer: u64, connection: Option<&Remote>, is_member: bool) {
        let now = (Instant::now(), self.counted());
        let mut peers = self.peers();
        if !is_member && !peers.contains_key(&peer) {
            make_room(&mut peers);
        }

        let seen = peers.entry(peer).or_insert_with(|| HeardPeer::new(now));
        seen.is_member = is_member;
        seen.hear(now);
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
            seen.hear(now);
        }
    }

    /// Counts this node's time on the runtime on which it is polled: the one that serves the peers. Does not end.
    pub async fn count(&self) {
        loop {
            self.step(Instant::now());
            sleep(STEP).await;
        }
    }

    /// This node's time goes on to `now`. What is beyond [`STEP_MAX`] was a stall.
    pub(crate) fn step(&self, now: Instant) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = counted.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        *counted = CountedTime { time: counted.time + passed.min(STEP_MAX), at: Some(now) };
    }

    fn counted(&self) -> Duration {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).time
    }

    /// The time since the peer was last heard from, in whole steps and without this node's stalls. If it never called: all counted time.
    pub fn counted_silence(&self, peer: u64) -> Duration {
        let heard = self.peers().get(&peer).map(|seen| seen.heard_counted);
        self.counted().saturating_sub(heard.unwrap_or_default())
    }

    /// The time since the peer was last heard from. It is `None` if the peer never called.
    pub fn silence(&self, peer: u64) -> Option<Duration> {
        self.peers().get(&peer).map(|seen| seen.heard.elapsed())
    }

    /// The counted silence that is usual for this peer, and at least `least`: `GAPS_TOLERATED` times its longest gap in the last minute.
    pub fn tolerated(&self, peer: u64, least: Duration) -> Duration {
        let now = span(self.counted());
        let longest = self.peers().get(&peer).and_then(|seen| {
            let recent = seen.gaps.iter().filter(|(span, _)| now.saturating_sub(*span) < SPANS as u128);
            recent.map(|(_, gap)| *gap).max()
        });
        least.max(GAPS_TOLERATED * longest.unwrap_or_default())
    }

    /// Whether one of the connections by which it called is still open.
    pub fn is_connected(&self, peer: u64) -> bool {
        self.peers().get(&peer).is_some_and(|seen| seen.connections.iter().any(Remote::is_connected))
    }

    /// No code panics while it holds this lock.
    fn peers(&self) -> MutexGuard<'_, HashMap<u64, HeardPeer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the one that was heard the longest time ago of the nodes that are no members, if there is no room for another one.
fn make_room(peers: &mut HashMap<u64, HeardPeer>) {
    let others = || peers.iter().filter(|(_, seen)| !seen.is_member);
    if others().count() < OTHERS_MAX {
        return;
    }
    if let Some(oldest) = others().min_by_key(|(_, seen)| seen.heard).map(|(id, _)| *id) {
        peers.remove(&oldest);
    }
}

impl HeardPeer {
    fn new((heard, heard_counted): (Instant, Duration)) -> Self {
        Self { heard, heard_counted, gaps: Default::default(), connections: Vec::new(), is_member: false }
    }

    /// Records a message at this time, plain and counted.
    fn hear(&mut self, (now, counted): (Instant, Duration)) {
        let gap = counted.saturating_sub(self.heard_counted);
        (self.heard, self.heard_counted) = (now, counted);
        if gap > GAP_MAX {
            return;
        }
        let span = span(counted);
        if self.gaps[SPANS - 1].0 < span {
            self.gaps.rotate_left(1);
            self.gaps[SPANS - 1] = (span, Duration::ZERO);
        }
        let latest = &mut self.gaps[SPANS - 1].1;
        *latest = gap.max(*latest);
    }
}

/// The number of the span of counted time.
fn span(counted: Duration) -> u128 {
    counted.as_millis() / SPAN.as_millis()
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
    fn strangers_take_no_place_of_members_and_only_the_last_few_are_known() {
        let liveness = PeerLiveness::default();
        let known = || (1..=1_000).filter(|id| liveness.silence(*id).is_some()).collect::<Vec<u64>>();
        liveness.called(PEER, None);
        (100..200).for_each(|id| liveness.called_by_other(id, None));
        assert_eq!(known().len(), 1 + OTHERS_MAX);
        assert!(known().contains(&PEER) && known().contains(&199));

        // One of them was the leader, whose entry this node has now.
        liveness.called(199, None);
        (200..300).for_each(|id| liveness.called_by_other(id, None));
        assert_eq!(known().len(), 2 + OTHERS_MAX);
        assert!(known().contains(&PEER) && known().contains(&199) && known().contains(&299));
    }

    #[test]
    fn a_peer_that_never_called_is_silent_since_the_start() {
        let (liveness, start) = (PeerLiveness::default(), Instant::now());
        liveness.step(start);
        assert_eq!(liveness.counted_silence(PEER), Duration::ZERO, "the time before the first step is unknown");
        liveness.step(start + STEP);
        assert_eq!(liveness.counted_silence(PEER), STEP);
    }

    #[test]
    fn a_peer_that_speaks_irregularly_is_tolerated_for_a_minute() {
        let (liveness, mut now) = (PeerLiveness::default(), Instant::now());
        let mut pass = |steps: u32| {
            for _ in 0..steps {
                now += STEP;
                liveness.step(now);
            }
        };
        pass(1);
        liveness.called(PEER, None);
        let least = 15 * STEP;
        assert_eq!(liveness.tolerated(PEER, least), least);
        pass(20);
        liveness.spoke(PEER);
        assert_eq!(liveness.tolerated(PEER, least), 40 * STEP);
        assert_eq!(liveness.tolerated(3, least), least, "another peer");
        // It does not lead for a while.
        pass(100);
        liveness.spoke(PEER);
        assert_eq!(liveness.tolerated(PEER, least), 40 * STEP);
        pass(u32::try_from(60_000 / STEP.as_millis()).expect("a minute"));
        assert_eq!(liveness.tolerated(PEER, least), least);
    }
}
