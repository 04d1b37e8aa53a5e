//! Watches this node's disk, and as the leader those of all: see [`crate::disk`], which has the rule.

use std::{sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::{
    Replica,
    disk::{Disks, FreeSpace, Judge, POLL, READINGS_UNTIL_KNOWN, read, take},
    elections::handover,
    snapshot::SnapshotStore,
};
use lockkeeper_environment::Blocking;

/// A leader that is short of space tries to hand over once in this number of readings.
const READINGS_PER_HAND_OVER: u32 = 10;
/// How long a hand-over may take.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// Reads this node's disk once a [`POLL`], and decides as the leader whether the cluster refuses commands that add. `snapshots` are those
/// of the node. Does not return.
pub async fn watch(
    disks: Disks,
    replica: Replica,
    blocking: Blocking,
    disk: Arc<dyn FreeSpace>,
    reserve_bytes: u64,
    snapshots: SnapshotStore,
) {
    let mut readings_as_leader = 0;
    loop {
        let snapshot_bytes = snapshots.latest().map_or(0, |snapshot| snapshot.length());
        match read(blocking, &disk, &disks).await {
            Ok(space) => take(&disks, Judge { reserve_bytes, snapshot_bytes }, space),
            Err(error) => {
                if disks.failure().is_none() {
                    tracing::warn!(%error, "cannot read the free space of the data directory; goes on with the last known");
                }
                disks.failed(format!("its free space cannot be read: {error}"));
            }
        }

        // Readings count from the first one as leader, since a new leader does not know its peers' disks yet.
        readings_as_leader = if replica.leads() { readings_as_leader + 1 } else { 0 };
        decide(&disks, &replica, readings_as_leader);
        if readings_as_leader % READINGS_PER_HAND_OVER == READINGS_UNTIL_KNOWN {
            hand_over_if_short(&disks, &replica).await;
        }

        sleep(POLL).await;
    }
}

fn decide(disks: &Disks, replica: &Replica, readings_as_leader: u32) {
    let shortage = match readings_as_leader {
        0 => None,
        _ => {
            let metrics = replica.raft().server_metrics();
            let metrics = metrics.borrow_watched();
            let membership = metrics.membership_config.membership();
            disks.judge(membership.get_joint_config(), metrics.id, readings_as_leader)
        }
    };

    let before = disks.decide(shortage);
    match (before, shortage) {
        (None, Some(shortage)) => tracing::warn!("{shortage}"),
        (Some(_), None) if readings_as_leader > 0 => {
            tracing::info!("the cluster takes new sessions and acquires again")
        }
        (Some(_), None | Some(_)) | (None, None) => {}
    }
}

/// If this leader is short of space and the cluster is not: hands over to a voter with space.
async fn hand_over_if_short(disks: &Disks, replica: &Replica) {
    let Some(own) = disks.own().filter(|own| own.is_low && disks.shortage().is_none()) else { return };
    let voters: Vec<u64> = {
        let metrics = replica.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.voter_ids().collect()
    };

    let has_space = |voter: &u64| disks.peer_report(*voter).is_some_and(|report| !report.is_low);
    let is_fit = |voter: &u64| handover::successor(replica, Some(*voter)).is_ok();
    let Some(successor) = voters.into_iter().filter(has_space).find(is_fit) else { return };

    tracing::warn!(successor, "this leader's disk is nearly full: {own}; it hands over to a voter whose disk is not");
    if let Err(error) = handover::transfer(replica, Some(successor), HAND_OVER_MAX).await {
        tracing::warn!(%error, successor, "the hand-over failed; another attempt follows");
    }
}
