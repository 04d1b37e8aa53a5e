//! When this node's table may answer a linearizable read: the read index of Raft (§6.4 of Ongaro's thesis).
//!
//! Three steps, in this order: the leader's commit index is noted; a quorum acknowledges requests that were sent after the read began,
//! which shows that there was no later leader then; the table has applied all entries up to the index. openraft does all three, but its
//! confirmation is necessary here, not sufficient: see [`Acknowledgements`].

use std::sync::Arc;

use openraft::{
    Raft, ServerState,
    async_runtime::WatchReceiver,
    errors::{Fatal, LinearizableReadError, RaftError},
    raft::ReadPolicy,
    storage::RaftStateMachine,
};

use crate::{
    network::Acknowledgements,
    types::{StoredMembership, TypeConfig},
};
use lockkeeper_planted::Planted;

/// Why a read cannot be answered here and now. A read changes nothing: it is safe to retry, here or elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum ReadIndexError {
    /// This node does not lead, or no quorum confirmed its leadership in time.
    #[error("leadership is not confirmed: {0}")]
    Unconfirmed(#[from] Box<RaftError<TypeConfig, LinearizableReadError<TypeConfig>>>),
    /// The node led when the read began, but lost its leadership before a quorum had confirmed it.
    #[error("this node no longer leads term {term}")]
    Deposed {
        /// The term in which it led.
        term: u64,
    },
    /// Raft has stopped.
    #[error("raft has stopped: {0}")]
    Stopped(#[from] Fatal<TypeConfig>),
}

/// Returns once this node's table shows everything that was acknowledged to any client before this call.
///
/// One round of heartbeats serves all reads that wait for one. Has no deadline: a leader that is cut off waits until it hears of another
/// term. Cancel safe.
pub async fn read_index<M>(
    raft: &Raft<TypeConfig, M>,
    acknowledgements: &Acknowledgements,
) -> Result<(), ReadIndexError>
where
    M: RaftStateMachine<TypeConfig>,
{
    // Drawn first: requests with higher numbers were sent after the read began.
    let begun = acknowledgements.draw();
    let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(Box::new)?;

    if !Planted::LateAnswersConfirm.is_on() {
        let membership =
            || -> Arc<StoredMembership> { Arc::clone(&raft.server_metrics().borrow_watched().membership_config) };
        // The read index belongs to its leader's term: acknowledgements from another term of this node do not confirm it.
        let term = linearizer.read_log_id().committed_leader_id().term;
        tokio::select! {
            () = acknowledgements.confirmed(*raft.node_id(), membership, term, begun) => {}
            () = no_longer_leads(raft, term) => return Err(ReadIndexError::Deposed { term }),
        }
    }

    if !Planted::ReadWithoutApply.is_on() {
        linearizer.await_ready(raft).await?;
    }
    Ok(())
}

async fn no_longer_leads<M: RaftStateMachine<TypeConfig>>(raft: &Raft<TypeConfig, M>, term: u64) {
    let mut metrics = raft.server_metrics();
    loop {
        let leads = {
            let metrics = metrics.borrow_watched();
            metrics.state == ServerState::Leader && metrics.vote.leader_id.term == term
        };
        // An error means that raft has stopped.
        if !leads || metrics.changed().await.is_err() {
            return;
        }
    }
}
