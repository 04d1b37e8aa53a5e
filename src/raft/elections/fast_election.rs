//! Fast election after the leader's process was killed.
//!
//! Normally followers grant a silent leader a lease and an election timeout: it may be slow, paused, or unreachable for a moment. A
//! killed process is none of these, and its operating system shows it at once: its connections break, and its port refuses new ones. Then
//! its followers drop the lease and one of them stands for election, within milliseconds.
//!
//! Elections are always safe in Raft, and reads here ask a quorum rather than trust a lease; but a living leader must not be disturbed. A
//! port also refuses behind a firewall, or while a proxy restarts; and a lease that was dropped does not return in this term. So a second
//! condition is required: *none* of the leader's connections to this node has been open for `RECONNECT_TIME`, in which a living leader
//! would have opened another; or else nothing was heard of it for `SILENT_HEARTBEATS`. The first is how the end of a process looks, and
//! takes almost no time.
//!
//! A follower also asks the others first, by Raft's pre-vote (§9.6 of Ongaro's thesis): each refuses as long as it trusts the leader's
//! lease, so each must have detected the end of the leader itself. Without a majority nothing happens, and the usual timeouts decide.
//!
//! The candidates take turns, the lowest id first, so that they do not split the votes. A candidate with a shorter log cannot win: the node
//! that refuses it for that reason stands at once, without waiting for its turn. Who has given its vote to another one holds back for a
//! turn, and a campaign ends only when some leader has been there for as long: on a busy machine a candidate may win just when the next
//! one, which has voted for it, begins. That one deposes it, and cannot win without the entry that the winner has written.
//!
//! Deliberately absent: detection of machines that vanish. They refuse no connections: see [`crate::elections::silent_leader`].

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use futures::FutureExt as _;
use openraft::async_runtime::WatchReceiver;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};

use crate::{
    network::liveness::PeerLiveness,
    replica::Replica,
    types::{TransferLeaderRequest, Vote},
};
use lockkeeper_transport::Connector;

/// Time limit for a connection attempt: a reachable machine accepts or refuses sooner.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(250);
/// Pauses before each connection attempt: an ending process closes its sockets one after the other, which takes time on a busy machine.
const CONNECT_PAUSES_MS: [u64; 6] = [0, 5, 20, 80, 200, 400];
/// Time in which a living leader whose connections all broke has opened another one.
const RECONNECT_TIME: Duration = Duration::from_millis(10);
/// Heartbeat intervals without a message after which a leader counts as gone.
const SILENT_HEARTBEATS: u32 = 2;
/// Heartbeat intervals after which a leader that was heard since counts as alive.
const ALIVE_AFTER_HEARTBEATS: u32 = 6;
/// Time between two checks of a peer.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Delay of each further candidate, so that candidates take turns.
const TURN: Duration = Duration::from_millis(100);
/// Pauses after each pre-vote round: the others may detect the end of the leader a little later, most of them within milliseconds.
const ROUNDS_MS: [u64; 13] = [3, 3, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280];

/// What a candidacy takes, in addition to a pause: votes are given when they are on a disk.
const CANDIDACY: Duration = Duration::from_millis(50);

/// The ids of peers whose streams broke off.
pub type BrokenStreams = mpsc::Receiver<u64>;

/// Watches for the end of the leader's process. `heartbeat` is the longest time between two of its calls. `shorter_logs` is notified when
/// this node refuses a candidate for its log. Returns when `broken_streams` ends.
pub async fn watch(
    replica: Replica,
    connector: impl Connector,
    mut broken_streams: BrokenStreams,
    shorter_logs: Arc<Notify>,
    liveness: Arc<PeerLiveness>,
    heartbeat: Duration,
) {
    while let Some(id) = broken_streams.recv().await {
        let Some(lost) = LostLeader::find(id, &replica) else { continue };

        // What an earlier election left there.
        let _ = shorter_logs.notified().now_or_never();
        if !refuses(&connector, &lost.address).await {
            continue;
        }
        if !is_gone(id, &liveness, heartbeat).await {
            tracing::info!(leader = id, "the leader's port refuses connections, but the leader still sends messages");
            continue;
        }

        tracing::info!(leader = id, "the leader's process has ended");
        lost.drop_lease(&replica).await;
        lost.campaign(&replica, &shorter_logs).await;
    }
}

/// Whether the machine at this address is up, and refuses connections to the port.
async fn refuses<C: Connector>(connector: &C, address: &str) -> bool {
    for pause_ms in CONNECT_PAUSES_MS {
        sleep(Duration::from_millis(pause_ms)).await;
        match timeout(CONNECT_TIME_MAX, connector.connect(address)).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return true,
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    false
}

/// Waits while `turn` others may stand before this node, or until one of them is known to have a shorter log.
async fn wait_for_turn(turn: u32, shorter_logs: &Notify) {
    tokio::select! {
        () = sleep(TURN * turn) => {}
        () = shorter_logs.notified() => {}
    }
}

/// Whether another node leads, and still leads after a turn: a candidate that was on its way may depose the present leader.
async fn lasts(another_leads: impl Fn() -> bool) -> bool {
    if !another_leads() {
        return false;
    }
    sleep(TURN).await;
    another_leads()
}

/// Whether a peer's process has ended: see the [module](self).
async fn is_gone(peer: u64, liveness: &PeerLiveness, heartbeat: Duration) -> bool {
    let began = Instant::now();
    let mut connected = began;

    while began.elapsed() < ALIVE_AFTER_HEARTBEATS * heartbeat {
        if liveness.is_connected(peer) {
            connected = Instant::now();
        }
        let is_silent = liveness.silence(peer).is_none_or(|silence| silence >= SILENT_HEARTBEATS * heartbeat);
        if is_silent || connected.elapsed() >= RECONNECT_TIME {
            return true;
        }

        sleep(CHECK_INTERVAL).await;
    }
    false
}

/// A leadership whose leader's process has ended.
struct LostLeader {
    leader: u64,
    /// The vote by which it led.
    vote: Vote,
    address: String,
    /// The remaining voters, including this node.
    candidates: BTreeSet<u64>,
}

impl LostLeader {
    /// Returns `None` if the peer did not lead, as far as this node knows, or if this node is not a voter.
    fn find(id: u64, replica: &Replica) -> Option<Self> {
        let metrics = replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let vote = metrics.vote;
        let membership = &metrics.membership_config;
        if metrics.current_leader != Some(id) || metrics.id == id || !vote.committed {
            return None;
        }
        let address = replica.addresses().peer_address(id, membership.get_node(&id)?);
        let candidates: BTreeSet<u64> = membership.voter_ids().filter(|voter| *voter != id).collect();
        candidates.contains(&metrics.id).then_some(Self { leader: id, vote, address, candidates })
    }

    /// Whether another node leads. While none does, elections are repeated: a candidate may fail, and two may split the votes.
    fn is_over(&self, replica: &Replica) -> bool {
        replica.raft().metrics().borrow_watched().current_leader.is_some_and(|leader| leader != self.leader)
    }

    /// Whether this node asks for votes, after a majority promised theirs.
    fn is_candidate(&self, replica: &Replica) -> bool {
        let metrics = replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let vote = metrics.vote;
        !vote.committed && vote.leader_id.voted_for == metrics.id && vote.leader_id.term > self.vote.leader_id.term
    }

    /// Drops the lease, as if the leader had transferred the leadership: this node then votes for any candidate.
    async fn drop_lease(&self, replica: &Replica) {
        let handed_over = TransferLeaderRequest::new(self.vote, self.leader, None);
        if let Err(fatal) = replica.raft().handle_transfer_leader(handed_over).await {
            tracing::debug!(%fatal, "raft has stopped");
        }
    }

    /// Stands for election when it is this node's turn, as soon as a majority would vote for it.
    async fn campaign(&self, replica: &Replica, shorter_logs: &Notify) {
        let id = *replica.raft().node_id();
        let turn = self.candidates.iter().take_while(|candidate| **candidate != id).count();
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        wait_for_turn(turn, shorter_logs).await;

        let mut given_vote = GivenVote::default();
        for pause_ms in ROUNDS_MS {
            if lasts(|| self.is_over(replica)).await {
                return;
            }
            let vote = replica.raft().metrics().borrow_watched().vote;
            if !given_vote.holds_back(id, vote) && replica.raft().trigger().elect(true).await.is_err() {
                return;
            }

            // A different pause on each node, so that two candidates do not collide again.
            sleep(Duration::from_millis(pause_ms) + TURN / 4 * turn).await;
            // Another round would end this candidacy, and its votes, which have to reach two disks, would be for nothing.
            if self.is_candidate(replica) {
                sleep(CANDIDACY).await;
            }
        }
    }
}

/// The vote that a node has given to another candidate, which has a turn to win by it.
#[derive(Default)]
struct GivenVote(Option<(Vote, Instant)>);

impl GivenVote {
    /// Whether this node does not stand yet, now that its vote is this one.
    fn holds_back(&mut self, own_id: u64, vote: Vote) -> bool {
        if vote.committed || vote.leader_id.voted_for == own_id {
            return false;
        }

        let since = match self.0 {
            Some((given, since)) if given == vote => since,
            Some(_) | None => Instant::now(),
        };
        self.0 = Some((vote, since));
        since.elapsed() < TURN
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use lockkeeper_transport::Connection;

    const HEARTBEAT: Duration = Duration::from_millis(75);
    const LEADER: u64 = 1;

    async fn verdict(liveness: &PeerLiveness) -> (bool, Duration) {
        let began = Instant::now();
        (is_gone(LEADER, liveness, HEARTBEAT).await, began.elapsed())
    }

    fn call(liveness: &PeerLiveness) -> Connection<DuplexStream> {
        let connection = Connection::for_test(duplex(64).0);
        liveness.called(LEADER, Some(&connection.remote()));
        connection
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_sends_messages_is_alive_though_its_port_refuses() {
        let liveness = Arc::new(PeerLiveness::default());
        let (broken, _left) = (call(&liveness), call(&liveness));
        drop(broken);
        let heard = Arc::clone(&liveness);
        let heartbeats = tokio::spawn(async move {
            loop {
                sleep(HEARTBEAT).await;
                heard.spoke(LEADER);
            }
        });
        assert_eq!(verdict(&liveness).await, (false, ALIVE_AFTER_HEARTBEATS * HEARTBEAT));
        heartbeats.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_is_gone_without_connections_or_after_two_silent_heartbeats() {
        let liveness = PeerLiveness::default();
        let connection = call(&liveness);
        assert_eq!(verdict(&liveness).await, (true, SILENT_HEARTBEATS * HEARTBEAT));
        liveness.spoke(LEADER);
        drop(connection);
        assert_eq!(verdict(&liveness).await, (true, RECONNECT_TIME));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_connections_broke_is_alive_if_it_reconnects_soon() {
        let liveness = Arc::new(PeerLiveness::default());
        drop(call(&liveness));
        let again = Arc::clone(&liveness);
        let living = tokio::spawn(async move {
            sleep(RECONNECT_TIME / 2).await;
            let _connection = call(&again);
            loop {
                sleep(HEARTBEAT).await;
                again.spoke(LEADER);
            }
        });
        assert!(!verdict(&liveness).await.0);
        living.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_voted_for_another_holds_back_for_a_turn() {
        const OWN: u64 = 3;
        let mut given = GivenVote::default();
        assert!(!given.holds_back(OWN, Vote::new_committed(1, LEADER)), "that of the lost leader");
        assert!(given.holds_back(OWN, Vote::new(2, 2)));
        sleep(TURN - CHECK_INTERVAL).await;
        assert!(given.holds_back(OWN, Vote::new(2, 2)));
        assert!(given.holds_back(OWN, Vote::new(3, 2)), "another candidacy");
        sleep(CHECK_INTERVAL).await;
        assert!(given.holds_back(OWN, Vote::new(3, 2)));
        sleep(TURN).await;
        assert!(!given.holds_back(OWN, Vote::new(3, 2)), "it had its turn");
        assert!(!given.holds_back(OWN, Vote::new(4, OWN)), "its own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_deposed_within_a_turn_ends_no_campaign() {
        let began = Instant::now();
        assert!(!lasts(|| false).await);
        assert_eq!(began.elapsed(), Duration::ZERO, "the next round is not held up while nobody leads");
        assert!(!lasts(|| began.elapsed() < TURN / 2).await);
        assert!(lasts(|| true).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_the_longer_log_does_not_wait_for_its_turn() {
        let shorter_logs = Notify::new();
        let began = Instant::now();
        wait_for_turn(0, &shorter_logs).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        wait_for_turn(2, &shorter_logs).await;
        assert_eq!(began.elapsed(), 2 * TURN);

        let began = Instant::now();
        shorter_logs.notify_one();
        wait_for_turn(2, &shorter_logs).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
