//! Hand-over of leadership: the choice of a successor, and the transfer to it.
//!
//! openraft's leader refuses new entries from the moment at which a transfer begins, and for the rest of its term: also if the successor
//! never takes over. So a successor must be a voter that answers and has almost the whole log, and a transfer that fails is followed by a
//! pause of the heartbeats (`HEARTBEATS_PAUSED_MAX`): the other members then elect a leader. This goes on when the caller no longer
//! waits.

use std::{collections::BTreeSet, fmt, time::Duration};

use openraft::{ServerState, async_runtime::WatchReceiver};
use tokio::time::{Instant, timeout};

use crate::{proposals::leadership::ServerMetrics, replica::Replica};
use lockkeeper_planted::Planted;

/// Entries that a successor may lack when the transfer begins: those of one append. It receives them before it stands for election.
pub const LAG_MAX: u64 = 64;
/// How long the heartbeats pause after a transfer that failed, in election timeouts, at the most.
const HEARTBEATS_PAUSED_MAX: u32 = 4;

/// Why leadership was not transferred.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    /// Nothing was done.
    #[error("this node does not lead; {}", ask(.leader))]
    NotLeader {
        /// The leader, if this node knows it.
        leader: Option<u64>,
    },
    /// Nothing was done.
    #[error("node {node} is not a voter; choose one of the voters {voters}, or promote it first")]
    NotVoter {
        /// The node that was asked for.
        node: u64,
        /// The voters.
        voters: Voters,
    },
    /// Nothing was done.
    #[error("this node is the only voter; add another voter first")]
    Alone,
    /// Nothing was done.
    #[error("node {node} has not answered {}; choose another voter, or see that it runs and is reachable", silent(.silence))]
    Unreachable {
        /// The successor.
        node: u64,
        /// The age of the last request that it answered. It is `None` if it answered none in this term.
        silence: Option<Duration>,
    },
    /// Nothing was done.
    #[error(
        "node {node} lacks {entries} entries, more than the maximum of {LAG_MAX}; repeat this when it has caught up"
    )]
    Behind {
        /// The successor.
        node: u64,
        /// The entries that it lacks.
        entries: u64,
    },
    /// The transfer began, but another member was elected. The cluster serves.
    #[error("node {leader} was elected instead of node {node}; repeat the transfer at node {leader}")]
    Other {
        /// The successor.
        node: u64,
        /// The leader.
        leader: u64,
    },
    /// The transfer began, and did not end in time. It may still succeed; if not, the members elect a leader.
    #[error("node {node} did not take over within {} ms; ask for the cluster's status before you repeat this", .patience.as_millis())]
    Unfinished {
        /// The successor.
        node: u64,
        /// The time limit.
        patience: Duration,
    },
    /// Nothing was done.
    #[error("this node's replica has stopped; ask another node")]
    Stopped,
}

/// Ids of voters, for people to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Voters(pub BTreeSet<u64>);

impl fmt::Display for Voters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "{}", ids.join(", "))
    }
}

fn ask(leader: &Option<u64>) -> String {
    match leader {
        Some(leader) => format!("ask the leader, node {leader}"),
        None => "no leader is known; repeat this when there is one".to_owned(),
    }
}

fn silent(silence: &Option<Duration>) -> String {
    match silence {
        Some(silence) => format!("for {} ms", silence.as_millis()),
        None => "since this node leads".to_owned(),
    }
}

/// Transfers leadership to this voter, or without one to the best [`successor`], and waits for at most `patience` until that node leads.
/// Returns its id; that of this node at once if it is `to` and leads.
///
/// Dropping the future does not stop the transfer.
pub async fn transfer(replica: &Replica, to: Option<u64>, patience: Duration) -> Result<u64, TransferError> {
    let own = *replica.raft().node_id();
    if to == Some(own) && term_led(replica).is_some() {
        return Ok(own);
    }
    let successor = successor(replica, to)?;
    tracing::info!(successor, "handing over leadership");
    replica.raft().trigger().transfer_leader(successor).await.map_err(|_| TransferError::Stopped)?;
    // A task of its own, so that a transfer that fails is made good when the caller waits no longer.
    let finishing = tokio::spawn(finish(replica.clone(), successor, patience));
    finishing.await.unwrap_or(Err(TransferError::Stopped))
}

/// The best successor: of the voters that answer, the one with the longest log; or the node `to`, if it is fit. An error: there is none.
pub fn successor(replica: &Replica, to: Option<u64>) -> Result<u64, TransferError> {
    let metrics = replica.raft().metrics();
    let metrics = metrics.borrow_watched();
    let replication = metrics.replication.as_ref().filter(|_| metrics.state == ServerState::Leader);
    let Some(replication) = replication else {
        return Err(TransferError::NotLeader { leader: metrics.current_leader.filter(|leader| *leader != metrics.id) });
    };

    let term = metrics.vote.leader_id.term;
    let last = metrics.last_log_index.map_or(0, |last| last + 1);

    let voters = metrics.membership_config.voter_ids().filter(|voter| *voter != metrics.id);
    let candidates = voters.map(|node| {
        let matched = replication.get(&node).and_then(Option::as_ref).map_or(0, |matched| matched.index + 1);
        Successor { node, silence: replica.silence_of(node, term), lag: last.saturating_sub(matched) }
    });

    // A follower that answers at all answers each heartbeat. `silence_max` is two election timeouts.
    choose(candidates.collect(), to, replica.silence_max() / 4)
}

/// A voter that could lead.
#[derive(Clone, Debug)]
pub(super) struct Successor {
    pub(super) node: u64,
    /// The age of the last request that it acknowledged in this term.
    pub(super) silence: Option<Duration>,
    /// The entries that it lacks.
    pub(super) lag: u64,
}

/// The node `to`, if it is fit to lead, or the best of these voters. A voter that has been silent for longer than `silence_max` is not fit.
pub(super) fn choose(voters: Vec<Successor>, to: Option<u64>, silence_max: Duration) -> Result<u64, TransferError> {
    let answers = |voter: &&Successor| voter.silence.is_some_and(|silence| silence <= silence_max);

    let chosen = match to {
        Some(node) => voters.iter().find(|voter| voter.node == node).ok_or_else(|| {
            let voters = voters.iter().map(|voter| voter.node).collect();
            TransferError::NotVoter { node, voters: Voters(voters) }
        })?,
        None => {
            let best = voters.iter().filter(answers).min_by_key(|voter| voter.lag);
            // If none answers, the error names the one that did last.
            let heard_last = || voters.iter().min_by_key(|voter| voter.silence.unwrap_or(Duration::MAX));
            best.or_else(heard_last).ok_or(TransferError::Alone)?
        }
    };

    let Successor { node, silence, lag } = *chosen;
    if !answers(&chosen) && !Planted::HandoverToSilent.is_on() {
        return Err(TransferError::Unreachable { node, silence });
    }
    if lag > LAG_MAX && !Planted::HandoverToLaggard.is_on() {
        return Err(TransferError::Behind { node, entries: lag });
    }
    Ok(node)
}

/// Waits until another node leads; if none does in time, sees that the members elect one.
async fn finish(replica: Replica, successor: u64, patience: Duration) -> Result<u64, TransferError> {
    match timeout(patience, another_leads(&replica)).await {
        Ok(Some(leader)) if leader == successor => Ok(leader),
        Ok(Some(leader)) => Err(TransferError::Other { node: successor, leader }),
        Ok(None) => Err(TransferError::Stopped),
        Err(_) => {
            tokio::spawn(abdicate(replica, successor));
            Err(TransferError::Unfinished { node: successor, patience })
        }
    }
}

/// Pauses the heartbeats until this term ends, for at most [`HEARTBEATS_PAUSED_MAX`] election timeouts.
async fn abdicate(replica: Replica, successor: u64) {
    let Some(term) = term_led(&replica) else { return };
    tracing::warn!(successor, "the successor did not take over; heartbeats pause, so that the members elect a leader");
    let began = Instant::now();
    replica.raft().runtime_config().heartbeat(false);
    let ends = async {
        let mut metrics: ServerMetrics = replica.raft().server_metrics();
        while term_led(&replica) == Some(term) && metrics.changed().await.is_ok() {}
    };
    let ended = timeout(replica.silence_max() / 2 * HEARTBEATS_PAUSED_MAX, ends).await;
    replica.raft().runtime_config().heartbeat(true);
    tracing::info!(term, ended = ended.is_ok(), paused_ms = began.elapsed().as_millis() as u64, "heartbeats go on");
}

/// The term in which this node leads, as far as it knows.
fn term_led(replica: &Replica) -> Option<u64> {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    (metrics.state == ServerState::Leader).then_some(metrics.vote.leader_id.term)
}

/// Returns once another node leads, with its id; `None` if Raft stops.
async fn another_leads(replica: &Replica) -> Option<u64> {
    let own = *replica.raft().node_id();
    let mut metrics: ServerMetrics = replica.raft().server_metrics();
    loop {
        let leader = metrics.borrow_watched().current_leader;
        if let Some(leader) = leader.filter(|leader| *leader != own) {
            return Some(leader);
        }
        metrics.changed().await.ok()?;
    }
}
