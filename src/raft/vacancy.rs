//! A leader whose process has ended need not be waited for.
//!
//! Followers give a leader that falls silent a lease and an election timeout: it may be slow, or paused, or out of reach for a moment.
//! One that was killed is none of these, and the system says so at once: its connections break, and its port refuses new ones. Then
//! its followers forget its lease and one of them stands for election, within milliseconds.
//!
//! Elections are always safe in Raft, and reads here ask a quorum rather than trust a lease; what must be avoided is to disturb a
//! leader that others hear. A port also refuses when a firewall says so. Therefore a follower asks the others first, by Raft's
//! pre-vote (§9.6 of Ongaro's thesis): each refuses as long as it trusts the leader's lease itself, and so each has to have seen for
//! itself that the leader is gone. Without a majority nothing happens, and the timeouts decide as ever.
//!
//! Deliberately absent: machines that vanish. They refuse nothing, and look like a network that is cut.

use std::{collections::BTreeSet, io, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    replica::Replica,
    types::{TransferLeaderRequest, Vote},
};
use crate::transport::Connect;

/// A port on a machine that is there answers sooner, one way or the other.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(250);
/// Pauses before each time that it is asked: a process that ends closes one thing after the other, and a busy machine gives it no hurry.
const PORT_CLOSES_MS: [u64; 6] = [0, 5, 20, 80, 200, 400];
/// How long the others leave it to the first of them, and so on.
const TURN: Duration = Duration::from_millis(100);
/// Pauses after each time that the others are asked: they may notice it a little later.
const ROUNDS_MS: [u64; 10] = [20, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280];

/// Peers whose streams broke off, by their ids.
pub type Departures = mpsc::Receiver<u64>;

/// Watches out for the end of the leader's process. Ends when `departures` does.
pub async fn watch(replica: Replica, connector: impl Connect, mut departures: Departures) {
    while let Some(id) = departures.recv().await {
        let Some(vacancy) = Vacancy::left_by(id, &replica) else { continue };
        if !refuses(&connector, &vacancy.address).await {
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
