//! Fast election after the leader fell silent.
//!
//! A machine without power, an unplugged cable and a frozen process close no connection ([`crate::elections::fast_election`] sees nothing):
//! only time tells. openraft's followers wait for a lease and a random election timeout, 900 to 1,200 ms by default, since a follower by
//! itself cannot tell a dead leader from its own bad link. Several can: a follower that has not heard the leader for [`SILENT_HEARTBEATS`]
//! asks the other voters by a small RPC. If a majority, itself included, has heard nothing for that time, the one with the longest log
//! stands for election at once; among equal logs that with the lowest id. The others take turns after it (`TURN`).
//!
//! A living leader is not disturbed by one bad link, since the others hear it. Nor by a busy machine: stalls of a follower do not count,
//! and a leader that sent irregularly in the last minute may be silent for twice its longest gap ([`crate::network::liveness`]); after
//! `PROBED_HEARTBEATS` the follower asks the leader itself, on a new connection, and any answer ends the silence.
//!
//! The election is always safe: it needs the votes of a majority, and a vote needs a log that is not shorter. Its vote requests are marked
//! as those of a transfer, so that voters grant them within the lease. Nothing else relies on the lease: reads ask a quorum
//! ([`crate::reads::read_index`]), and of two leaders only that of the higher term can commit. No lease is dropped before: a suspicion that
//! was wrong leaves no trace. A leader that wakes finds the higher term, at its first message or earlier, and follows.
//!
//! A member that does not know the RPC (an older version) does not answer it. Without a majority the election timeouts decide, as they do
//! for a leader that answers but sends no heartbeats.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::{
    network::{
        Prober, SnapshotSource, is_quorum,
        liveness::{PeerLiveness, STEP},
    },
    replica::Replica,
    types::{LogId, Membership, StoredMembership, TransferLeaderRequest, Vote},
};
use lockkeeper_planted::Planted;
use lockkeeper_table::MemberNode;
use lockkeeper_transport::Connector;

/// Heartbeat intervals without a message after which a follower asks the leader itself for a sign of life.
const PROBED_HEARTBEATS: u32 = 2;
/// Heartbeat intervals without a message after which a leader is silent.
pub const SILENT_HEARTBEATS: u32 = 3;
/// Delay of each further candidate: longer than an election takes.
pub(super) const TURN: Duration = Duration::from_millis(150);
/// The longest pause between two rounds of questions while a majority does not agree. The first is a [`STEP`]; each doubles.
const PAUSE_MAX: Duration = Duration::from_millis(240);

/// The time that counts as one heartbeat interval here: a quarter of the shortest election timeout, which is one by default. So who raises
/// the timeout, for slow disks or busy machines, raises the silence that is tolerated as well.
pub fn beat(heartbeat: Duration, election_timeout_min: Duration) -> Duration {
    heartbeat.max(election_timeout_min / 4)
}

/// Watches for a leader that falls silent. The longest time between two of its calls is `heartbeat`. Does not end.
pub async fn watch<C: Connector, D: SnapshotSource>(
    replica: Replica,
    prober: Prober<C, D>,
    liveness: Arc<PeerLiveness>,
    heartbeat: Duration,
) {
    tokio::join!(liveness.count(), suspect(&replica, &prober, &liveness, heartbeat));
}

async fn suspect<C: Connector, D: SnapshotSource>(
    replica: &Replica,
    prober: &Prober<C, D>,
    liveness: &PeerLiveness,
    heartbeat: Duration,
) {
    let mut pause = STEP;
    loop {
        sleep(pause).await;
        let Some(followed) = FollowedLeader::find(replica, liveness, PROBED_HEARTBEATS * heartbeat) else {
            pause = STEP;
            continue;
        };

        // Asked on a new connection, it may answer although its heartbeats do not arrive: then the link is bad, and not the leader.
        let limit = liveness.tolerated(followed.leader, SILENT_HEARTBEATS * heartbeat);
        if followed.answers(prober, liveness, limit, heartbeat).await {
            liveness.spoke(followed.leader);
            tracing::debug!(leader = followed.leader, "the leader sends no heartbeats, but answers");
            pause = STEP;
            continue;
        }

        // While a majority does not agree, the questions become rarer.
        followed.consult(replica, prober, liveness, (limit, heartbeat)).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// A leader that this node follows, and has not heard for a while.
struct FollowedLeader {
    own: u64,
    leader: u64,
    /// The vote by which it leads.
    vote: Vote,
    membership: Arc<StoredMembership>,
}

/// The voters that have not heard the leader, each with the end of its log.
pub(super) type Agreeing = BTreeMap<u64, Option<LogId>>;

impl FollowedLeader {
    /// Returns `None` if this node follows no leader, heard it within `silence`, or does not vote.
    fn find(replica: &Replica, liveness: &PeerLiveness, silence: Duration) -> Option<Self> {
        let metrics = replica.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let own = metrics.id;
        let leader = metrics.current_leader?;
        let vote = metrics.vote;

        let is_silent = leader != own && vote.committed && liveness.counted_silence(leader) >= silence;
        let membership = &metrics.membership_config;
        let votes = is_silent && membership.voter_ids().any(|voter| voter == own);
        votes.then(|| Self { own, leader, vote, membership: Arc::clone(membership) })
    }

    /// Whether the leadership that fell silent is still the last one that this node knows.
    fn lasts(&self, replica: &Replica) -> bool {
        let metrics = replica.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.vote == self.vote && metrics.current_leader == Some(self.leader)
    }

    /// Whether the leader gives a sign of life before its silence has lasted for `limit`.
    async fn answers<C: Connector, D: SnapshotSource>(
        &self,
        prober: &Prober<C, D>,
        liveness: &PeerLiveness,
        limit: Duration,
        patience: Duration,
    ) -> bool {
        let answer = async {
            let node = self.membership.get_node(&self.leader)?;
            prober.ask(self.leader, node, (self.leader, self.vote), patience).await.ok()
        };

        let silence_lasts = async {
            let mut before = liveness.counted_silence(self.leader);
            loop {
                sleep(STEP).await;
                let silence = liveness.counted_silence(self.leader);
                if silence < before || silence >= limit {
                    // The silence is shorter than before, so the leader was heard.
                    return silence < before;
                }
                before = silence;
            }
        };

        tokio::pin!(silence_lasts);
        tokio::select! {
            biased;
            heard = &mut silence_lasts => heard,
            // No answer says nothing yet: a heartbeat may still come within the limit.
            answer = answer => answer.is_some() || silence_lasts.await,
        }
    }

    /// Asks the other voters, and stands for election when it is this node's turn, if a majority has not heard the leader for as long.
    async fn consult<C: Connector, D: SnapshotSource>(
        &self,
        replica: &Replica,
        prober: &Prober<C, D>,
        liveness: &PeerLiveness,
        (limit, patience): (Duration, Duration),
    ) {
        let Ok(last) = replica.raft().with_raft_state(|state| state.log_ids.last().copied()).await else { return };
        let mut agreeing = self.ask_others(prober, limit, patience).await;
        agreeing.insert(self.own, last);
        let Some(turn) = turn_to_stand(self.own, self.membership.membership(), &agreeing) else { return };

        // Nodes with a longer log stand for election first. One of them may be elected in the meantime, or the leader may be heard again.
        sleep(TURN * turn).await;
        if self.lasts(replica) && liveness.counted_silence(self.leader) >= limit {
            tracing::info!(leader = self.leader, turn, "the leader is silent; this node stands for election");
            self.stand(replica).await;
        }
    }

    /// The other voters that have not heard the leader for `limit`.
    async fn ask_others<C: Connector, D: SnapshotSource>(
        &self,
        prober: &Prober<C, D>,
        limit: Duration,
        patience: Duration,
    ) -> Agreeing {
        let others = self.membership.voter_ids().filter(|voter| ![self.own, self.leader].contains(voter));
        let others = others.filter_map(|voter| Some((voter, self.membership.get_node(&voter)?)));

        let agrees = async |(voter, node): (u64, &MemberNode)| {
            let followed = (self.leader, self.vote);
            let (mut silence, mut last) = prober.ask(voter, node, followed, patience).await.ok()?;
            // The leader's last message reached it a little later.
            if (limit.saturating_sub(patience)..limit).contains(&silence) {
                sleep(limit - silence + STEP).await;
                (silence, last) = prober.ask(voter, node, followed, patience).await.ok()?;
            }
            (silence >= limit).then_some((voter, last))
        };

        join_all(others.map(agrees)).await.into_iter().flatten().collect()
    }

    /// Stands for election as if the leader had transferred the leadership to this node.
    async fn stand(&self, replica: &Replica) {
        let transfer = TransferLeaderRequest::new(self.vote, self.own, None);
        match replica.raft().handle_transfer_leader(transfer).await {
            Ok(Ok(())) => {}
            Ok(Err(refused)) => tracing::info!(%refused, "this node does not stand for election"),
            Err(fatal) => tracing::debug!(%fatal, "raft has stopped"),
        }
    }
}

/// The number of other nodes that stand for election before this node. This node is one of those that agree.
///
/// Returns `None` if this node does not stand for election: the nodes that agree, and whose log is not longer than this node's, are not a
/// majority. This node would not be elected, and the leader may be alive.
pub(super) fn turn_to_stand(own: u64, membership: &Membership, agreeing: &Agreeing) -> Option<u32> {
    let last = agreeing.get(&own)?;
    let supports = |id: u64| agreeing.get(&id).is_some_and(|end| end <= last);
    if !is_quorum(membership, supports) && !Planted::OneFollowerDeposes.is_on() {
        return None;
    }
    turn(own, agreeing)
}

/// The place of this node in the order of the candidates: a longer log first, then a lower id. It has none if it does not agree.
fn turn(own: u64, agreeing: &Agreeing) -> Option<u32> {
    let last = agreeing.get(&own)?;
    let is_before = |(id, end): &(&u64, &Option<LogId>)| (*end, own) > (last, **id);
    u32::try_from(agreeing.iter().filter(is_before).count()).ok()
}
