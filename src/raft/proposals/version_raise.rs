//! The leader raises the cluster version when all members support the next one, and begins the audit trail when one of them writes it: see
//! [`crate::network::versions`] and [`lockkeeper_table::trail`].
//!
//! All members means voters and learners: a learner applies the same entries. A member that is down keeps the version where it is, since
//! nobody knows which program it starts with next.

use std::{sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::{
    Raft,
    network::versions::PeerVersions,
    proposals::{leadership::Led, proposer::Proposer},
};
use lockkeeper_machine::{Command, Version};
use lockkeeper_table::Table;

/// Time between two looks, unless a member says something new.
const LOOK: Duration = Duration::from_secs(1);
/// Time limit for applying the command before it is proposed again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ids of the members other than this node.
pub(crate) fn others(raft: &Raft) -> Vec<u64> {
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    let members = metrics.membership_config.membership().nodes().map(|(id, _)| *id);
    members.filter(|id| *id != metrics.id).collect()
}

/// Proposes higher versions. Returns with [`crate::proposals::leadership`].
pub(crate) async fn raise(
    raft: Raft,
    mut led: Led,
    table: Arc<Table>,
    versions: Arc<PeerVersions>,
    proposer: Proposer,
) {
    loop {
        let leads = led.borrow_and_update().is_some();
        if let Some(to) = versions.next(&others(&raft)).filter(|_| leads) {
            tracing::info!(version = %to, "all members support it: raising the cluster version");
            if let Err(no_reply) = proposer.propose(Command::RaiseVersion { to }, PATIENCE).await {
                tracing::info!(%no_reply, "the cluster version is not raised yet");
            }
        }

        if leads && is_audit_due(&table, &versions) {
            tracing::info!("a member writes audit files: beginning the audit trail");
            if let Err(no_reply) = proposer.propose(Command::BeginAudit, PATIENCE).await {
                tracing::info!(%no_reply, "the audit trail has not begun yet");
            }
        }

        tokio::select! {
            () = sleep(LOOK), if leads => {}
            () = versions.changed(), if leads => {}
            changed = led.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether a member writes an audit trail that has not begun.
fn is_audit_due(table: &Table, versions: &PeerVersions) -> bool {
    let can_begin = versions.cluster() >= Version::AUDIT_ASKED_FOR && versions.is_audit_written();
    can_begin && !table.read(|applied| applied.trail.has_begun())
}
