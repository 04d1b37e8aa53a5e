//! The gRPC service `lockkeeper.v1.Cluster`: this node's condition, which is not forwarded, and requests about the members.

use openraft::{ServerState, async_runtime::WatchReceiver, metrics::RaftMetrics};
use tonic::{Request, Response, Status};

use super::{Adapter, Backend, caller};
use crate::{
    api::{Error, requests::*},
    cluster::Cluster,
    node_calls, safety,
};
use lockkeeper_planted::VERSION;
use lockkeeper_proto::v1::{self, cluster_server};
use lockkeeper_raft::{
    DiskReport, Replica,
    types::{LogId, TypeConfig},
};
use lockkeeper_table::{MemberNode, TableSummary};
use lockkeeper_transport::tls::Tls;

/// Serves `lockkeeper.v1.Cluster`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterService<B> {
    cluster: Cluster,
    adapter: Adapter<B>,
}

impl<B: Backend> ClusterService<B> {
    pub(crate) fn new(cluster: Cluster, backend: B) -> Self {
        Self { cluster, adapter: Adapter::new(backend) }
    }
}

#[tonic::async_trait]
impl<B: Backend> cluster_server::Cluster for ClusterService<B> {
    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let caller = caller(&self.adapter.backend, &request)?;
        self.adapter.backend.admit(&caller)?;

        // It is answered here and does not reach the service, which counts other calls. The hash of a table costs more than any of them.
        let access = self.adapter.backend.access();
        access.count_call(&caller)?;
        let (denied, limited) = access.refused();
        let earlier_cluster = access.earlier().map(|earlier| v1::EarlierCluster {
            cluster_id: earlier.id().to_owned(),
            seconds_left: earlier.seconds_left(),
            clients: earlier.clients(),
        });

        let mut status = self.cluster.condition(request.into_inner().table_hash).await.map_err(Status::from)?;
        status.denied_requests = denied;
        status.limited_requests = limited;
        status.earlier_cluster = earlier_cluster;
        Ok(Response::new(status))
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::MembershipResponse>, Status> {
        node_calls::may_add(&self.cluster.replica, &request, request.get_ref().node_id)?;
        self.adapter.call::<AddMember>(request).await
    }

    async fn promote_member(
        &self,
        request: Request<v1::PromoteMemberRequest>,
    ) -> Result<Response<v1::MembershipResponse>, Status> {
        self.adapter.call::<PromoteMember>(request).await
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::MembershipResponse>, Status> {
        self.adapter.call::<RemoveMember>(request).await
    }

    async fn replace_member(
        &self,
        request: Request<v1::ReplaceMemberRequest>,
    ) -> Result<Response<v1::MembershipResponse>, Status> {
        self.adapter.call::<ReplaceMember>(request).await
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        self.adapter.call::<TransferLeader>(request).await
    }
}

impl Cluster {
    /// Returns this node's condition, as far as it knows. Only the hash of the table, if it is asked for, may fail; it takes time in
    /// proportion to the table.
    pub(crate) async fn condition(&self, table_hash: bool) -> Result<v1::StatusResponse, Error> {
        let trouble = self.trouble().await;
        let metrics = self.replica.raft().metrics().borrow_watched().clone();
        let table_hash = if table_hash { Some(self.table_hash().await?) } else { None };

        let mut status = show(&metrics, &self.replica);
        if self.replica.leads() {
            self.judge_stops(&mut status);
        }

        show_versions(&mut status, &self.replica);
        status.start = self.start.to_string();
        status.wall_unix_ms = self.clock.wall_ms();

        for (member, trouble) in self.members_with_other_tables().into_iter().chain(self.laggards()) {
            if let Some(member) = status.members.iter_mut().find(|known| known.node_id == member) {
                member.trouble = trouble;
            }
        }

        status.cluster_id = self.cluster_id.to_string();
        status.version = VERSION.to_owned();
        status.certificate_seconds_left = self.tls.as_ref().and_then(Tls::seconds_left);
        status.serving = trouble.is_none();
        status.trouble = trouble.unwrap_or_default().to_string();
        status.turn_delay_us_max = self.pulse.delay_max().as_micros() as u64;

        show_table(&mut status, &self.replica.table().summary());

        self.show_disks(&mut status);

        if let Some((index, hash)) = table_hash {
            status.applied_index = index;
            status.table_hash = hash;
        }
        Ok(status)
    }
}

impl Cluster {
    /// For each member, says whether it may be taken down now. Only a leader knows.
    fn judge_stops(&self, status: &mut v1::StatusResponse) {
        let joint = self.replica.raft().metrics().borrow_watched().membership_config.get_joint_config().len() > 1;
        let own = status.node_id;
        let last = status.last_log_index;

        let reasons: Vec<String> = status
            .members
            .iter()
            .map(|member| {
                let hears = |id| self.replica.hears(id);
                safety::reason_not_to_stop(member.node_id, &status.members, last, own, joint, hears)
            })
            .collect();

        for (member, reason) in status.members.iter_mut().zip(reasons) {
            let silence = self.replica.silence_of(member.node_id, status.term);
            member.silent_ms = silence.map(|silence| u64::try_from(silence.as_millis()).unwrap_or(u64::MAX));
            member.safe_to_stop = reason.is_empty();
            member.unsafe_reason = reason;
        }
    }

    /// Shows the disk of this node and, on the leader, those of the others.
    fn show_disks(&self, status: &mut v1::StatusResponse) {
        let disks = self.replica.disks();
        let own = disks.own();
        if let Some(DiskReport { space, reserve, is_low }) = own {
            status.disk_free_bytes = space.free;
            status.disk_total_bytes = space.total;
            status.disk_reserve_bytes = reserve;
            status.disk_low = is_low;
        }

        let shortage = disks.shortage().map(|shortage| shortage.to_string());
        let low = own.filter(|own| own.is_low).map(|own| format!("its disk is nearly full: {own}"));
        status.disk_trouble = shortage.or(disks.failure()).or(low).unwrap_or_default();

        for member in &mut status.members {
            let report = if member.node_id == status.node_id { own } else { disks.peer_report(member.node_id) };
            let Some(DiskReport { space, reserve, is_low }) = report.filter(|_| self.replica.leads()) else { continue };
            member.disk_free_bytes = space.free;
            member.disk_total_bytes = space.total;
            member.disk_reserve_bytes = reserve;
            member.disk_low = is_low;
        }
    }
}

/// The part of a node's condition that Raft's metrics show.
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

fn show_table(status: &mut v1::StatusResponse, table: &TableSummary) {
    let TableSummary { index, counts, last_token, bytes, limits, trail } = table;
    status.applied_index = *index;
    status.sessions = counts.sessions as u64;
    status.locks = counts.locks as u64;
    status.waiters = counts.waiters as u64;
    status.last_token = last_token.0;

    status.table_bytes = *bytes;
    // Unlimited.
    status.table_bytes_max = if limits.table_bytes == usize::MAX { 0 } else { limits.table_bytes as u64 };

    if trail.lines > 0 {
        status.audit_lines = trail.lines;
        status.audit_head = trail.hash.to_string();
    }
}

fn show_versions(status: &mut v1::StatusResponse, replica: &Replica) {
    let versions = replica.versions();
    let own = versions.own();
    let cluster = versions.cluster();
    status.cluster_version = cluster.0;
    status.cluster_version_min = own.lowest.0;
    status.cluster_version_max = own.highest.0;

    for member in &mut status.members {
        let said = if member.node_id == status.node_id {
            Some((own, VERSION.to_owned()))
        } else {
            versions.said_by(member.node_id).map(|said| (said.versions, said.program))
        };
        let Some((versions, program)) = said else { continue };
        member.version = program;
        member.cluster_version_min = versions.lowest.0;
        member.cluster_version_max = versions.highest.0;
    }

    // The leader raises the version of the cluster once all members support it.
    if replica.leads() && cluster < own.highest {
        let without = replica.members_without(own.highest);
        let without: Vec<_> = without.iter().map(|(id, why)| format!("node {id} ({why})")).collect();
        let without = if without.is_empty() { "the next look of the leader".to_owned() } else { without.join(", ") };
        status.cluster_version_waits = format!("version {} waits for {without}", own.highest);
    }
}

fn members(metrics: &RaftMetrics<TypeConfig>, replica: &Replica) -> Vec<v1::Member> {
    let membership = metrics.membership_config.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();

    let matched = |id: &u64| metrics.replication.as_ref()?.get(id)?.as_ref().map(|matched| matched.index);
    let member = |(id, in_log): (&u64, &MemberNode)| {
        let addresses = |node: &MemberNode| (node.client_address.clone(), node.peer_address.clone());
        let (client_address, peer_address) = replica.addresses().look(*id, in_log, addresses);
        v1::Member {
            node_id: *id,
            client_address,
            peer_address,
            stays_learner: in_log.stays_learner,
            is_leaving: in_log.is_leaving,
            voter: voters.contains(id),
            matched_index: matched(id).unwrap_or_default(),
            ..v1::Member::default()
        }
    };

    membership.nodes().map(member).collect()
}
