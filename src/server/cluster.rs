//! How a node sees itself, and whether it can serve.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{Instant, ServerState, async_runtime::WatchReceiver, metrics::RaftMetrics};
use tonic::{Request, Response, Status};

use super::{errors::internal, progress::Progress, pulse::Pulse};
use crate::{
    environment::Blocking,
    planted::VERSION,
    proto::v1::{self, cluster_server},
    raft::{
        Replica,
        types::{LogId, Node, TypeConfig},
    },
};

/// Answers from what this node knows, at once.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) cluster_id: Arc<str>,
    pub(super) replica: Replica,
    pub(super) blocking: Blocking,
    /// Of this node's log, while it lacks entries that are committed; as the leader, of its commit index, while there is more to commit.
    pub(super) progress: Arc<Progress>,
    /// As the leader: of each member's log, while it lacks entries.
    pub(super) members: Arc<Mutex<BTreeMap<u64, Progress>>>,
    /// Of the runtime of Raft.
    pub(super) pulse: Pulse,
}

/// A member that has stood still for so long, although it lacks entries, does not catch up. Longer than any pause of a busy disk.
const CATCH_UP: Duration = Duration::from_secs(5);

#[tonic::async_trait]
impl cluster_server::Cluster for Cluster {
    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let trouble = self.trouble().await;
        let metrics = self.replica.raft().metrics().borrow_watched().clone();
        let table_hash = match request.into_inner().table_hash {
            true => Some(self.table_hash().await?),
            false => None,
        };
        let mut status = show(&metrics, &self.replica);
        for (member, trouble) in self.laggards() {
            if let Some(member) = status.members.iter_mut().find(|known| known.node_id == member) {
                member.trouble = trouble;
            }
        }
        status.cluster_id = self.cluster_id.to_string();
        status.version = VERSION.to_owned();
        status.serving = trouble.is_none();
        status.trouble = trouble.unwrap_or_default().to_string();
        status.turn_delay_us_max = self.pulse.delay_max().as_micros() as u64;
        self.replica.table().read(|applied| {
            let counts = applied.machine.counts();
            status.sessions = counts.sessions as u64;
            status.locks = counts.locks as u64;
            status.waiters = counts.waiters as u64;
            status.last_token = applied.machine.last_token().0;
            status.table_bytes = applied.machine.bytes();
            let most = applied.machine.limits().table_bytes;
            status.table_bytes_max = if most == usize::MAX { 0 } else { most as u64 };
            status.applied_index = applied.index();
        });
        if let Some((index, hash)) = table_hash {
            status.applied_index = index;
            status.table_hash = hash;
        }
        Ok(Response::new(status))
    }
}

impl Cluster {
    /// Why this node cannot serve; `None`: it can.
    pub(super) async fn trouble(&self) -> Option<&'static str> {
        let (leads, leader, uncommitted) = {
            let metrics = self.replica.raft().metrics();
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return Some("raft has stopped: see the log");
            }
            let committed = metrics.local_committed.map(|id| id.index);
            let uncommitted = (metrics.last_log_index > committed).then(|| committed.unwrap_or_default());
            (metrics.state == ServerState::Leader, metrics.current_leader, uncommitted)
        };
        if leads {
            let stands_for = self.progress.stands_for(uncommitted);
            return match self.replica.leads() {
                false => Some("elected, and catching up with what its predecessors left"),
                true if self.replica.cut_off() => Some("leader without a quorum: most members cannot be reached"),
                true if stands_for > CATCH_UP => Some("leader that cannot commit: too few members take its entries"),
                true => None,
            };
        }
        if leader.is_none() {
            return Some("no leader is known");
        }
        // Each append and each heartbeat of the leader renews this node's trust in it, and says how far the log is committed.
        let state = self.replica.raft().with_raft_state(|state| {
            let last = state.log_ids.last().map(|id| id.index);
            let lacks = state.cluster_committed().map(|id| id.index) > last;
            (state.vote_last_modified(), lacks.then(|| last.unwrap_or_default()))
        });
        match state.await {
            Ok((Some(heard), lacking)) if heard.elapsed() <= self.replica.silence_max() => {
                let stands_for = self.progress.stands_for(lacking);
                (stands_for > CATCH_UP).then_some("it lacks entries that are committed, and does not catch up")
            }
            Ok(_) => Some("the leader is not heard from"),
            Err(_) => Some("raft has stopped: see the log"),
        }
    }

    /// As the leader: the members that lack entries and do not catch up, and what is to be said of each. To be asked now and then.
    pub(super) fn laggards(&self) -> Vec<(u64, String)> {
        let metrics = self.replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(replication) = metrics.replication.as_ref() else {
            members.clear();
            return Vec::new();
        };
        let tip = metrics.local_committed.map_or(0, |id| id.index);
        let others = replication.iter().filter(|(id, _)| **id != metrics.id);
        let laggard = |(id, matched): (&u64, &Option<LogId>)| {
            let at = matched.as_ref().map_or(0, |id| id.index);
            let stands_for = members.entry(*id).or_default().stands_for((at < tip).then_some(at));
            (stands_for > CATCH_UP).then(|| (*id, format!("does not catch up: it is at entry {at} of {tip}")))
        };
        others.filter_map(laggard).collect()
    }

    async fn table_hash(&self) -> Result<(u64, u64), Status> {
        let applied = self.replica.table().read(Clone::clone);
        let hashed = self.blocking.run(move || Ok((applied.index(), applied.machine.hash()))).await;
        hashed.map_err(|_| internal("the hash of the table could not be computed"))
    }
}

fn show(metrics: &RaftMetrics<TypeConfig>, replica: &Replica) -> v1::StatusResponse {
    let role = match metrics.state {
        ServerState::Leader => v1::Role::Leader,
        ServerState::Follower => v1::Role::Follower,
        ServerState::Candidate => v1::Role::Candidate,
        ServerState::Learner => v1::Role::Learner,
        ServerState::Shutdown => v1::Role::Unspecified,
    };
    let index = |id: &Option<LogId>| id.map_or(0, |id| id.index);
    v1::StatusResponse {
        node_id: metrics.id,
        role: role.into(),
        term: metrics.current_term,
        leader_id: metrics.current_leader.unwrap_or_default(),
        last_log_index: metrics.last_log_index.unwrap_or_default(),
        committed_index: index(&metrics.local_committed),
        snapshot_index: index(&metrics.snapshot),
        purged_index: index(&metrics.purged),
        members: members(metrics, replica),
        ..v1::StatusResponse::default()
    }
}

fn members(metrics: &RaftMetrics<TypeConfig>, replica: &Replica) -> Vec<v1::Member> {
    let membership = metrics.membership_config.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let matched = |id: &u64| metrics.replication.as_ref()?.get(id)?.as_ref().map(|matched| matched.index);
    let member = |(id, in_log): (&u64, &Node)| {
        let node = replica.whereabouts(*id, in_log);
        v1::Member {
            node_id: *id,
            client_address: node.client_address.clone(),
            peer_address: node.peer_address.clone(),
            voter: voters.contains(id),
            matched_index: matched(id).unwrap_or_default(),
            trouble: String::new(),
        }
    };
    membership.nodes().map(member).collect()
}
