//! A leader whose process has ended need not be waited for.
//!
//! Followers give a leader that falls silent a lease and an election timeout: it may be slow, or paused, or out of reach for a moment.
//! One that was killed is none of these, and the system says so at once: its connections break, and its port refuses new ones. Then
//! its followers forget its lease and one of them stands for election, within milliseconds.
//!
//! Elections are always safe in Raft, and reads here ask a quorum rather than trust a lease; what must be avoided is to disturb a
//! leader that is there. A port also refuses when a firewall says so, or when a proxy in between starts anew; and a lease that was
//! forgotten once does not come back in this term. So more is asked for: that *none* of the leader's connections to this node is left,
//! for a moment in which a living one would have opened another; or else that nothing was heard of it for two heartbeats. The first of
//! them is what the end of a process looks like, and costs next to no time.
//!
//! And a follower asks the others first, by Raft's pre-vote (§9.6 of Ongaro's thesis): each refuses as long as it trusts the leader's
//! lease itself, and so each has to have seen for itself that the leader is gone. Without a majority nothing happens, and the timeouts
//! decide as ever.
//!
//! Deliberately absent: machines that vanish. They refuse nothing, and look like a network that is cut.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    presence::Presence,
    replica::Replica,
    types::{TransferLeaderRequest, Vote},
};
use crate::transport::Connect;

/// A port on a machine that is there answers sooner, one way or the other.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(250);
/// Pauses before each time that it is asked: a process that ends closes one thing after the other, and a busy machine gives it no hurry.
const PORT_CLOSES_MS: [u64; 6] = [0, 5, 20, 80, 200, 400];
/// A leader that lives and whose connections all broke has opened another one by then.
const COMES_BACK: Duration = Duration::from_millis(10);
/// Heartbeats without a word, of one that is gone.
const SILENT_HEARTBEATS: u32 = 2;
/// Heartbeats after which one that was not silent for so long lives.
const DOUBTFUL_HEARTBEATS: u32 = 6;
/// How often a peer is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long the others leave it to the first of them, and so on.
const TURN: Duration = Duration::from_millis(100);
/// Pauses after each time that the others are asked: they may notice it a little later.
const ROUNDS_MS: [u64; 10] = [20, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280];

/// Peers whose streams broke off, by their ids.
pub type Departures = mpsc::Receiver<u64>;

/// Watches out for the end of the leader's process. `heartbeat`: how often it calls at the least. Ends when `departures` does.
pub async fn watch(
    replica: Replica,
    connector: impl Connect,
    mut departures: Departures,
    presence: Arc<Presence>,
    heartbeat: Duration,
) {
    while let Some(id) = departures.recv().await {
        let Some(vacancy) = Vacancy::left_by(id, &replica) else { continue };
        if !refuses(&connector, &vacancy.address).await {
            continue;
        }
        if !is_gone(id, &presence, heartbeat).await {
            tracing::info!(leader = id, "the leader's port refuses connections, but the leader is heard");
            continue;
        }
        tracing::info!(leader = id, "the leader's process has ended");
        vacancy.forget_the_lease(&replica).await;
        vacancy.stand(&replica).await;
    }
}

/// Whether nobody listens there: the machine is up, and says so.
async fn refuses<C: Connect>(connector: &C, address: &str) -> bool {
    for pause_ms in PORT_CLOSES_MS {
        sleep(Duration::from_millis(pause_ms)).await;
        match timeout(REFUSAL_PATIENCE, connector.connect(address)).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return true,
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    false
}

/// Whether nothing is left of a peer: see the [module](self).
async fn is_gone(peer: u64, presence: &Presence, heartbeat: Duration) -> bool {
    let began = Instant::now();
    let mut connected = began;
    while began.elapsed() < DOUBTFUL_HEARTBEATS * heartbeat {
        if presence.is_connected(peer) {
            connected = Instant::now();
        }
        let is_silent = presence.silence(peer).is_none_or(|silence| silence >= SILENT_HEARTBEATS * heartbeat);
        if is_silent || connected.elapsed() >= COMES_BACK {
            return true;
        }
        sleep(LOOK).await;
    }
    false
}

/// What a leader leaves behind.
struct Vacancy {
    leader: u64,
    /// By which it led.
    vote: Vote,
    address: String,
    /// The others who can lead, this node among them.
    heirs: BTreeSet<u64>,
}

impl Vacancy {
    /// `None`: it did not lead, as far as this node knows, or this node cannot.
    fn left_by(id: u64, replica: &Replica) -> Option<Self> {
        let metrics = replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let (vote, membership) = (metrics.vote, &metrics.membership_config);
        if metrics.current_leader != Some(id) || metrics.id == id || !vote.committed {
            return None;
        }
        let address = replica.whereabouts(id, membership.get_node(&id)?).peer_address.clone();
        let heirs: BTreeSet<u64> = membership.voter_ids().filter(|voter| *voter != id).collect();
        heirs.contains(&metrics.id).then_some(Self { leader: id, vote, address, heirs })
    }

    /// Somebody else leads. A candidate may fail, and two may take each other's votes: then it goes on.
    fn is_over(&self, replica: &Replica) -> bool {
        replica.raft().metrics().borrow_watched().current_leader.is_some_and(|leader| leader != self.leader)
    }

    /// As if the leader had handed over to somebody else: this node then votes for whoever asks.
    async fn forget_the_lease(&self, replica: &Replica) {
        let handed_over = TransferLeaderRequest::new(self.vote, self.leader, None);
        if let Err(fatal) = replica.raft().handle_transfer_leader(handed_over).await {
            tracing::debug!(%fatal, "raft has stopped");
        }
    }

    /// Stands for election when it is this node's turn, as soon as a majority would vote for it.
    async fn stand(&self, replica: &Replica) {
        let id = *replica.raft().node_id();
        let turn = self.heirs.iter().take_while(|heir| **heir != id).count();
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        sleep(TURN * turn).await;
        for pause_ms in ROUNDS_MS {
            if self.is_over(replica) || replica.raft().trigger().elect(true).await.is_err() {
                return;
            }
            // Not the same pause for all, so that those who stood together do not stand together again.
            sleep(Duration::from_millis(pause_ms) + TURN / 4 * turn).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::transport::Connection;

    const HEARTBEAT: Duration = Duration::from_millis(75);
    const LEADER: u64 = 1;

    async fn verdict(presence: &Presence) -> (bool, Duration) {
        let began = Instant::now();
        (is_gone(LEADER, presence, HEARTBEAT).await, began.elapsed())
    }

    fn call(presence: &Presence) -> Connection<DuplexStream> {
        let connection = Connection::for_test(duplex(64).0);
        presence.called(LEADER, Some(&connection.remote()));
        connection
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_heard_is_there_though_its_port_refuses() {
        let presence = Arc::new(Presence::default());
        let (broken, _left) = (call(&presence), call(&presence));
        drop(broken);
        let heard = Arc::clone(&presence);
        let heartbeats = tokio::spawn(async move {
            loop {
                sleep(HEARTBEAT).await;
                heard.spoke(LEADER);
            }
        });
        assert_eq!(verdict(&presence).await, (false, DOUBTFUL_HEARTBEATS * HEARTBEAT));
        heartbeats.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn one_without_a_connection_is_gone_at_once_and_one_that_is_silent_after_two_heartbeats() {
        let presence = Presence::default();
        let connection = call(&presence);
        assert_eq!(verdict(&presence).await, (true, SILENT_HEARTBEATS * HEARTBEAT));
        presence.spoke(LEADER);
        drop(connection);
        assert_eq!(verdict(&presence).await, (true, COMES_BACK));
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_connections_all_broke_is_there_if_it_comes_back_soon() {
        let presence = Arc::new(Presence::default());
        drop(call(&presence));
        let again = Arc::clone(&presence);
        let living = tokio::spawn(async move {
            sleep(COMES_BACK / 2).await;
            let _connection = call(&again);
            loop {
                sleep(HEARTBEAT).await;
                again.spoke(LEADER);
            }
        });
        assert!(!verdict(&presence).await.0);
        living.abort();
    }
}
