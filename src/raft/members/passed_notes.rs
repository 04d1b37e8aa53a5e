//! Followers tell the leader what operators have done at them: the leader does not see the request for a backup.
//!
//! The audit trail is the log, which only the leader writes. A note that finds no leader for five seconds, or a leader of a version from
//! before this, is counted in the next note of its node, and stands in that node's own log.
//!
//! A note is told once. It is not told again without an answer: a line of the trail would then stand there twice.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{Instant, sleep};

use crate::{
    network::{Prober, SnapshotSource},
    replica::Replica,
};
use lockkeeper_machine::Note;
use lockkeeper_planted::Planted;
use lockkeeper_table::MemberNode;
use lockkeeper_transport::Connector;

/// How long a note waits for a leader, and how long that is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks for a leader.
const PAUSE: Duration = Duration::from_millis(50);

/// Tells the leader this node's notes as they come. Ends at once if somebody does so already.
pub async fn pass_on<C: Connector, D: SnapshotSource>(replica: Replica, prober: Prober<C, D>) {
    let Some(mut notes) = replica.notes_for_leader() else { return };
    while let Some(note) = notes.recv().await {
        if !is_told(&replica, &prober, &note).await {
            tracing::debug!(act = note.act, "the leader was not told an act for the audit trail");
            replica.leave_note_out(&note);
        }
    }
}

async fn is_told<C: Connector, D: SnapshotSource>(replica: &Replica, prober: &Prober<C, D>, note: &Note) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        // This node may lead by now.
        if replica.take_note(note.clone()) {
            return true;
        }

        if let Some((leader, node)) = leading_member(replica) {
            return prober.tell_note(leader, &node, note.clone(), PATIENCE).await.is_ok();
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(PAUSE).await;
    }
}

/// The leader, unless it is this node, as the log names it: a call needs its incarnation, which a configured address lacks.
fn leading_member(replica: &Replica) -> Option<(u64, MemberNode)> {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    let leader = metrics.current_leader.filter(|leader| *leader != metrics.id)?;
    let mut node = metrics.membership_config.get_node(&leader)?.clone();
    if Planted::NoteToAnyIncarnation.is_on() {
        node.incarnation = None;
    }
    Some((leader, node))
}
