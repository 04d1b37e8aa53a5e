//! Watches this node's disk, and as the leader those of all: see [`crate::disk`], which has the rule.

use std::{sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::time::{Instant, sleep};

use crate::{
    Replica,
    disk::{Disks, FreeSpace, Judge, PEERS_KNOWN_AFTER, read, take},
    elections::handover,
    log::slow_followers::LogBytes,
    snapshot::{SnapshotStore, is_worth},
};
use lockkeeper_environment::Blocking;

/// Time between two attempts to hand over of a leader that is short of space.
const HAND_OVERS_APART: Duration = Duration::from_secs(10);
/// How long a hand-over may take.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// A node that becomes short of space writes a snapshot if it replaces at least so much log. sled's file for a smaller one is not shorter.
const REPLACED_BYTES_MIN: u64 = 16 << 20;

/// The time in which this node leads.
#[derive(Clone, Copy)]
struct LeaderWatch {
    /// The first reading as the leader.
    since: Instant,
    /// No attempt to hand over comes earlier.
    hand_over_at: Instant,
}

impl LeaderWatch {
    fn begin() -> Self {
        let since = Instant::now();
        Self { since, hand_over_at: since + PEERS_KNOWN_AFTER }
    }
}

/// Reads this node's disk once a second, more often where it nears its reserve, and decides as the leader whether the cluster refuses
/// commands that add. When the node becomes short of space, it replaces its log by a snapshot, for which the reserve has room: then the log
/// grows within the files that it has. `snapshots` and `log_bytes` are those of the node. Does not return.
pub async fn watch(
    disks: Disks,
    replica: Replica,
    blocking: Blocking,
    disk: Arc<dyn FreeSpace>,
    reserve_bytes: u64,
    snapshots: SnapshotStore,
    log_bytes: LogBytes,
) {
    let mut as_leader = None;
    loop {
        let snapshot_bytes = snapshots.latest().map_or(0, |snapshot| snapshot.length());
        match read(blocking, &disk, &disks).await {
            Ok(reading) => {
                let is_newly_short = take(&disks, Judge { reserve_bytes, snapshot_bytes }, reading);
                if is_newly_short && replaces_enough(&snapshots, &log_bytes) {
                    // Fails only if Raft has stopped, and the node ends.
                    let _ = replica.raft().trigger().snapshot().await;
                }
            }
            Err(error) => {
                if disks.failure().is_none() {
                    tracing::warn!(%error, "cannot read the free space of the data directory; using the last value");
                }
                disks.failed(format!("its free space cannot be read: {error}"));
            }
        }

        as_leader = if replica.leads() { Some(as_leader.unwrap_or_else(LeaderWatch::begin)) } else { None };
        decide(&disks, &replica, as_leader);
        if let Some(LeaderWatch { hand_over_at, .. }) = &mut as_leader
            && *hand_over_at <= Instant::now()
        {
            hand_over_if_short(&disks, &replica).await;
            *hand_over_at = Instant::now() + HAND_OVERS_APART;
        }

        sleep(disks.until_next_reading()).await;
    }
}

/// Whether a snapshot now would replace a log that is worth it.
fn replaces_enough(snapshots: &SnapshotStore, log_bytes: &LogBytes) -> bool {
    let latest = snapshots.latest();
    let covered = latest.as_ref().and_then(|latest| latest.meta().last_log_id).map_or(0, |id| id.index);
    let replaced = log_bytes.since(covered);
    replaced >= REPLACED_BYTES_MIN && is_worth(replaced, latest.map_or(0, |latest| latest.length()))
}

fn decide(disks: &Disks, replica: &Replica, as_leader: Option<LeaderWatch>) {
    let shortage = as_leader.and_then(|LeaderWatch { since, .. }| {
        let metrics = replica.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        disks.judge(membership.get_joint_config(), metrics.id, since.elapsed())
    });

    let before = disks.decide(shortage);
    match (before, shortage) {
        (None, Some(shortage)) => tracing::warn!("{shortage}"),
        (Some(_), None) if as_leader.is_some() => {
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
