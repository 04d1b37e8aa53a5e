//! What a node does besides serving: each returns when the node must end, or is dropped with it.

use std::{sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::sync::Notify;

use super::{ServeError, stopped, unapplied};
use lockkeeper_audit::Sink;
use lockkeeper_raft::{
    Replica,
    forming::{self, FormingConfig},
    handover,
    identity::Identity,
    network::Acknowledgements,
    versions::PeerVersions,
};
use lockkeeper_transport::Connect;

/// How long a node that ends waits for the requests under way.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// How often a node records, outside of its log, how far its log and those of its peers are; and after what time first.
const NOTE_PROGRESS: Duration = Duration::from_secs(10);
const NOTE_FIRST: Duration = Duration::from_millis(250);
/// Of consecutive failures to write that record, one in this many is logged.
const NOTE_FAILURES_SILENT: u32 = 6;
/// Time between two looks at the audit files' writer.
const AUDIT_LOOK: Duration = Duration::from_millis(250);

/// Returns once the audit files cannot be written: a node that goes on would leave lines out.
pub(super) async fn audit_stops(sink: Sink) -> Result<(), ServeError> {
    loop {
        if let Some(failure) = sink.failure() {
            return Err(ServeError::AuditStopped(failure));
        }
        tokio::time::sleep(AUDIT_LOOK).await;
    }
}

/// Joins this node to its cluster, and forms the cluster if that is due. Returns only with an error.
pub(super) async fn take_part<C: Connect>(
    identity: Arc<Identity>,
    replica: Replica,
    plan: FormingConfig,
    connector: C,
) -> Result<(), ServeError> {
    forming::form(&identity, &plan, &connector).await?;
    forming::initialize(&identity, replica.raft()).await?;
    forming::check(&identity, &plan, &connector).await?;
    std::future::pending().await
}

/// Returns once another node remembers a start or entries that this node's data lack.
pub(super) async fn outdated(identity: Arc<Identity>) -> Result<(), ServeError> {
    Err(identity.outdated().await.into())
}

/// Returns once the cluster has removed this node.
pub(super) async fn removed(identity: Arc<Identity>) -> Result<(), ServeError> {
    Err(identity.removed().await.into())
}

/// Returns once the cluster has a version that this program does not support.
pub(super) async fn outgrown(versions: Arc<PeerVersions>) -> Result<(), ServeError> {
    Err(ServeError::Version(versions.outgrown().await))
}

/// Records every [`NOTE_PROGRESS`] how far this node's log is committed, so that the loss of the whole log is noticed; and what peers
/// acknowledged, so that they are asked for it. Does not return: nothing relies on a record before it is written, so one that cannot be
/// written now (no file descriptor is left, or the disk is full) is written later. Until then the older record holds; it says less, and is
/// true.
pub(super) async fn note_progress(identity: Arc<Identity>, replica: Replica, acknowledgements: Acknowledgements) {
    let mut noted = 0;
    let mut failures: u32 = 0;
    loop {
        tokio::time::sleep(if noted == 0 { NOTE_FIRST } else { NOTE_PROGRESS }).await;
        let certain = replica.applied_and_durable();
        if certain <= noted {
            continue;
        }
        match identity.record_progress(certain, acknowledgements.of_all()).await {
            Ok(()) => (noted, failures) = (certain, 0),
            Err(error) => {
                // The first failure, and one in NOTE_FAILURES_SILENT after it: about one line a minute.
                if failures.is_multiple_of(NOTE_FAILURES_SILENT) {
                    tracing::warn!(%error, "cannot note how far the log is committed; goes on, and tries again");
                }
                failures = failures.saturating_add(1);
                tokio::time::sleep(NOTE_PROGRESS).await;
            }
        }
    }
}

/// Triggers a snapshot whenever one is due. Returns when Raft stops.
pub(super) async fn take_snapshots(replica: Replica, due: Arc<Notify>) -> Result<(), ServeError> {
    loop {
        due.notified().await;
        // Does nothing if a snapshot is being built.
        replica.raft().trigger().snapshot().await.map_err(stopped)?;
    }
}

/// Returns when Raft stops, which it does by itself only when it cannot go on.
pub(super) async fn raft_stops(replica: Replica) -> Result<(), ServeError> {
    // Of Raft's two metrics channels this one seldom changes. Both are closed when Raft stops; the other one has the cause.
    let mut changes = replica.raft().server_metrics();
    while changes.changed().await.is_ok() {}
    if let Some(unapplied) = unapplied(replica.table()) {
        return Err(unapplied);
    }
    replica.raft().metrics().borrow_watched().running_state.as_ref().map_err(stopped).copied()
}

/// If this node leads, hands leadership to the best successor, and waits at most [`DRAIN`] for that to happen.
pub(super) async fn hand_over(replica: &Replica) {
    if !replica.leads() {
        return;
    }
    if let Err(error) = handover::transfer(replica, None, DRAIN).await {
        tracing::info!(%error, "leadership was not handed over; the other members elect a leader");
    }
}
