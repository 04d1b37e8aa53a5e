//! Followers tell each other their starts.
//!
//! A leader remembers the start of each member that acknowledged entries, and each node that of a member for which it voted, or from which
//! it took entries ([`crate::identity`]). So of two followers, neither knew the other's start. If the leader was then down, an older copy
//! of one follower's data and the other follower were a majority that lacked what was acknowledged. So each follower asks the other members
//! every [`INTERVAL`] by the question of [`crate::elections::silent_leader`], whose metadata name both starts as those of every call; and a
//! member that follows the same leader remembers the start of the one that asks. The first round comes soon after a start: until then a
//! vote between two followers waits for the voter's disk to remember the candidate.
//!
//! **Only of one that follows the same leader**, by the same vote, and has heard it since its start: that leader compared the start with
//! the one that it remembers. A member that remembered every caller would take in the start of an older copy before anybody who knows
//! better has refused it, and would then refuse the directory itself when it is put back.
//!
//! *What still cannot be seen:* a copy that was made since the last start, and one whose latest start no member that is up has heard of.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::{
    network::{Prober, SnapshotSource, liveness::PeerLiveness},
    replica::Replica,
    types::{StoredMembership, Vote},
};
use lockkeeper_transport::Connector;

/// Time between two rounds of questions. Each costs a connection and a small message for each other member.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// The part of the interval after which a node that has started asks for the first time.
const FIRST: u32 = 10;
/// How long one member is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells the other members this node's start while it follows a leader. Does not end.
pub async fn tell<C: Connector, D: SnapshotSource>(
    replica: Replica,
    prober: Prober<C, D>,
    liveness: Arc<PeerLiveness>,
    interval: Duration,
) {
    let mut pause = interval / FIRST;
    loop {
        sleep(pause).await;
        let Some((own, leader, vote, membership)) = followed(&replica) else { continue };
        // The leader's call was admitted, so the leader knows of no later start than this process's.
        if liveness.silence(leader).is_none_or(|silence| silence > interval) {
            continue;
        }

        let others = membership.membership().nodes().filter(|(id, _)| ![own, leader].contains(id));
        join_all(others.map(async |(id, node)| {
            // A member that is down gets the question in a later round.
            let _ = prober.ask(*id, node, (leader, vote), PATIENCE).await;
        }))
        .await;
        pause = interval;
    }
}

/// This node's id, the leader that it follows, the vote by which it leads, and the members. Returns `None` if it follows none.
fn followed(replica: &Replica) -> Option<(u64, u64, Vote, Arc<StoredMembership>)> {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    let own = metrics.id;
    let leader = metrics.current_leader?;
    let vote = metrics.vote;
    let follows = leader != own && vote.committed;
    follows.then(|| (own, leader, vote, Arc::clone(&metrics.membership_config)))
}
