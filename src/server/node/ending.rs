//! How a node ends in order: it stops to accept, hands over leadership, and answers the requests in flight.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use super::NodeTasks;
use crate::health;
use lockkeeper_audit::Sink;
use lockkeeper_environment::Blocking;
use lockkeeper_raft::{
    Replica,
    elections::handover::{self, TransferError},
};
use lockkeeper_traces::Traces;

/// How long a node that ends waits for the requests in flight, and before that for another leader.
const DRAIN: Duration = Duration::from_secs(2);
/// How often a node that waits for another leader looks whether there can be one.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What a node needs to end in order.
pub(super) struct NodeEnding {
    pub(super) reporter: HealthReporter,
    pub(super) stopping: CancellationToken,
    pub(super) replica: Replica,
    pub(super) audit: Option<Sink>,
    pub(super) blocking: Blocking,
    pub(super) traces: Traces,
}

impl NodeEnding {
    /// Ends the node: takes about twice [`DRAIN`] at the most.
    pub(super) async fn drain(self, mut tasks: NodeTasks) {
        tracing::info!("stopping");
        // Among these tasks is the report of health, which would say again that this node serves.
        tasks.background.abort_all();
        health::retire(&self.reporter).await;
        self.stopping.cancel();

        hand_over(&self.replica).await;
        if let Err(broken) = self.replica.raft().shutdown().await {
            tracing::error!(%broken, "raft did not stop in order");
        }
        if let Some(audit) = self.audit {
            close(audit, self.blocking).await;
        }

        // Streams that a client holds open at a follower do not end by themselves: requests that are not answered by now are cut off. So
        // are the streams of peers, which stay open for as long as possible.
        let _ = timeout(DRAIN, async { while tasks.clients.join_next().await.is_some() {} }).await;
        self.traces.close().await;
    }
}

/// If this node leads, hands leadership to the best successor, and waits at most [`DRAIN`] for that to happen.
async fn hand_over(replica: &Replica) {
    if !replica.leads() {
        return;
    }

    tokio::select! {
        transferred = handover::transfer(replica, None, DRAIN) => if let Err(error) = transferred {
            tracing::info!(%error, "leadership was not handed over; the other members elect a leader");
        },
        // All nodes of a cluster are often ended together.
        error = no_voter_answers(replica) => {
            tracing::info!(%error, "leadership was not handed over, since no other voter answers");
        }
    }
}

/// Returns once no other voter answers, with the reason why none can lead.
async fn no_voter_answers(replica: &Replica) -> TransferError {
    loop {
        sleep(LOOK_INTERVAL).await;
        if let Err(error @ TransferError::Unreachable { .. }) = handover::successor(replica, None) {
            return error;
        }
    }
}

/// Writes the last lines of the audit files.
async fn close(audit: Sink, blocking: Blocking) {
    let closing = blocking.run(move || {
        audit.close();
        Ok(())
    });
    if let Err(broken) = closing.await {
        tracing::error!(%broken, "the audit files were not closed in order; the next start completes them");
    }
}
