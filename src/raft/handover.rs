//! Handing the leadership over.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::timeout;

use crate::Replica;

/// A successor may lack this many entries: it gets them within the time of a transfer.
const LAG_MAX: u64 = 1_000;

/// Why the leadership was not handed over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader,
    /// The node has no vote.
    #[error("node {to} is not a voter, so it cannot lead: name a voter, or none")]
    NotVoter {
        /// The node.
        to: u64,
    },
    /// The node does not answer.
    #[error("node {to} does not answer: bring it back first, or name another voter")]
    Silent {
        /// The node.
        to: u64,
    },
    /// The node lacks entries.
    #[error(
        "node {to} is not caught up: its log lacks {lacks} entries, {LAG_MAX} are allowed; wait until it has them, or name another voter"
    )]
    Behind {
        /// The node.
        to: u64,
        /// The number of entries.
        lacks: u64,
    },
    /// No voter can take over.
    #[error("no other voter answers and is caught up: this node goes on leading")]
    Nobody,
    /// The node was asked, and another one did not lead in time.
    #[error("node {to} did not take over within {} ms: look who leads before you repeat it", patience.as_millis())]
    NotTaken {
        /// The node.
        to: u64,
        /// The time.
        patience: Duration,
    },
}

/// The voter that answers and whose log matches furthest; `None`: there is none that could take over.
pub fn successor(replica: &Replica) -> Option<u64> {
    candidates(replica)
        .into_iter()
        .filter(|found| found.check().is_ok())
        .max_by_key(|found| found.matched)
        .map(|found| found.id)
}

/// Hands the leadership to a voter that answers and is caught up: to this one, or else to the one whose log matches furthest. Returns the
/// new leader once this node knows it, within `patience`.
pub async fn transfer(replica: &Replica, to: Option<u64>, patience: Duration) -> Result<u64, TransferError> {
    if !replica.leads() {
        return Err(TransferError::NotLeader);
    }
    let to = match to {
        None => successor(replica).ok_or(TransferError::Nobody)?,
        Some(to) => {
            let found = candidates(replica).into_iter().find(|found| found.id == to);
            found.ok_or(TransferError::NotVoter { to })?.check()?;
            to
        }
    };
    tracing::info!(successor = to, "handing over leadership");
    replica.raft().trigger().transfer_leader(to).await.map_err(|_| TransferError::NotLeader)?;
    let own = replica.node_id();
    let mut metrics = replica.raft().server_metrics();
    let taken = async {
        loop {
            if let Some(leader) = metrics.borrow_watched().current_leader.filter(|leader| *leader != own) {
                return Some(leader);
            }
            metrics.changed().await.ok()?;
        }
    };
    timeout(patience, taken).await.ok().flatten().ok_or(TransferError::NotTaken { to, patience })
}

/// Another voter.
struct Found {
    id: u64,
    answers: bool,
    matched: Option<u64>,
    last: u64,
}

impl Found {
    fn check(&self) -> Result<(), TransferError> {
        let lacks = self.last.saturating_sub(self.matched.unwrap_or_default());
        match (self.answers, lacks) {
            (false, _) => Err(TransferError::Silent { to: self.id }),
            (true, lacks) if lacks > LAG_MAX => Err(TransferError::Behind { to: self.id, lacks }),
            (true, _) => Ok(()),
        }
    }
}

fn candidates(replica: &Replica) -> Vec<Found> {
    let metrics = replica.raft().metrics();
    let metrics = metrics.borrow_watched();
    let matched = |id| metrics.replication.as_ref()?.get(&id)?.as_ref().map(|matched| matched.index);
    let others = metrics.membership_config.membership().voter_ids().filter(|voter| *voter != metrics.id);
    let last = metrics.last_log_index.unwrap_or_default();
    others.map(|id| Found { id, answers: replica.hears(id), matched: matched(id), last }).collect()
}
