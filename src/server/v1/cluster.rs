//! The gRPC service `lockkeeper.v1.Cluster`: this node's condition, as a message. It is not forwarded.

use openraft::{ServerState, async_runtime::WatchReceiver, metrics::RaftMetrics};
use tonic::{Request, Response, Status};

use crate::cluster::Cluster;
use lockkeeper_planted::VERSION;
use lockkeeper_proto::v1::{self, cluster_server};
use lockkeeper_raft::{
    Replica,
    types::{LogId, Node, TypeConfig},
};

#[tonic::async_trait]
impl cluster_server::Cluster for Cluster {
    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let trouble = self.trouble().await;
        let metrics = self.replica.raft().metrics().borrow_watched().clone();
        let table_hash = match request.into_inner().table_hash {
            true => Some(self.table_hash().await.map_err(Status::from)?),
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
        let node = replica.configured_or(*id, in_log);
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
