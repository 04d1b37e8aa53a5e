//! The document of `status -o json`. Its fields are stable: fields may be added, but keep their names and meanings.

use serde::Serialize;

use super::super::{
    nodes::{AskedNode, role, trouble},
    show,
};
use crate::client::NodeStatus;

#[derive(Serialize)]
pub(super) struct StatusReport {
    nodes: Vec<NodeReport>,
}

/// For a node that did not answer: its address, its problem, and its id if another node knows it.
#[derive(Serialize)]
struct NodeReport {
    node_id: Option<u64>,
    address: String,
    health: &'static str,
    trouble: Option<String>,
    #[serde(flatten)]
    status: Option<StatusDocument>,
}

#[derive(Serialize)]
pub(super) struct StatusDocument {
    cluster_id: String,
    version: String,
    role: &'static str,
    term: u64,
    leader_id: Option<u64>,
    last_log_index: u64,
    committed_index: u64,
    applied_index: u64,
    snapshot_index: u64,
    purged_index: u64,
    lag: u64,
    sessions: u64,
    locks: u64,
    waiters: u64,
    table_bytes: u64,
    table_bytes_max: Option<u64>,
    last_token: u64,
    turn_delay_us_max: u64,
    denied_requests: u64,
    limited_requests: u64,
    disk_free_bytes: Option<u64>,
    disk_total_bytes: Option<u64>,
    disk_reserve_bytes: Option<u64>,
    disk_low: bool,
    disk_trouble: Option<String>,
    certificate_seconds_left: Option<i64>,
    earlier_cluster: Option<EarlierClusterDocument>,
    table_hash: Option<String>,
    audit_lines: u64,
    audit_head: Option<String>,
    cluster_version: Option<u32>,
    cluster_version_min: Option<u32>,
    cluster_version_max: Option<u32>,
    cluster_version_waits: Option<String>,
    start: Option<String>,
    members: Vec<MemberStatusReport>,
}

/// The cluster before a restore, whose clients the node accepts.
#[derive(Serialize)]
struct EarlierClusterDocument {
    cluster_id: String,
    seconds_left: i64,
    clients: u64,
}

#[derive(Serialize)]
struct MemberStatusReport {
    node_id: u64,
    client_address: String,
    peer_address: String,
    voter: bool,
    matched_index: u64,
    disk_free_bytes: Option<u64>,
    disk_low: bool,
    trouble: Option<String>,
    stays_learner: bool,
    is_leaving: bool,
    /// On the leader: since its last answer.
    silent_ms: Option<u64>,
    /// On the leader: whether it may be taken down now, and if not, why.
    safe_to_stop: Option<bool>,
    unsafe_reason: Option<String>,
    version: Option<String>,
    cluster_version_min: Option<u32>,
    cluster_version_max: Option<u32>,
}

impl StatusReport {
    pub(super) fn new(nodes: &[AskedNode], tip: u64) -> Self {
        let node = |node: &AskedNode| NodeReport {
            node_id: node.node_id,
            address: node.address.clone(),
            health: match &node.answer {
                Ok(status) if status.serving => "ok",
                Ok(_) => "not_serving",
                Err(_) => "down",
            },
            trouble: Some(trouble(node)).filter(|trouble| !trouble.is_empty()),
            status: node.answer.as_ref().ok().map(|status| StatusDocument::new(status, tip)),
        };
        Self { nodes: nodes.iter().map(node).collect() }
    }
}

impl StatusDocument {
    pub(super) fn new(status: &NodeStatus, tip: u64) -> Self {
        let members = status.members.iter().map(|member| MemberStatusReport {
            node_id: member.node_id,
            client_address: member.client_address.clone(),
            peer_address: member.peer_address.clone(),
            voter: member.voter,
            matched_index: member.matched_index,
            trouble: member.trouble.clone(),
            stays_learner: member.stays_learner,
            is_leaving: member.is_leaving,
            silent_ms: member.silent_for.map(show::millis),
            safe_to_stop: member.may_stop.as_ref().map(Result::is_ok),
            unsafe_reason: member.may_stop.clone().and_then(Result::err),
            version: member.version.clone(),
            cluster_version_min: member.cluster_versions.map(|(lowest, _)| lowest),
            cluster_version_max: member.cluster_versions.map(|(_, highest)| highest),
            disk_free_bytes: member.disk_free_bytes,
            disk_low: member.disk_low,
        });

        Self {
            cluster_id: status.cluster_id.clone(),
            version: status.version.clone(),
            role: role(status),
            term: status.term,
            leader_id: status.leader_id,
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            purged_index: status.purged_index,
            lag: tip.saturating_sub(status.applied_index),
            sessions: status.sessions,
            locks: status.locks,
            waiters: status.waiters,
            table_bytes: status.table_bytes,
            table_bytes_max: status.table_bytes_max,
            last_token: status.last_token.map_or(0, |token| token.0),
            turn_delay_us_max: u64::try_from(status.turn_delay_max.as_micros()).unwrap_or(u64::MAX),
            denied_requests: status.denied_requests,
            limited_requests: status.limited_requests,
            disk_free_bytes: status.disk_free_bytes,
            disk_total_bytes: status.disk_total_bytes,
            disk_reserve_bytes: status.disk_reserve_bytes,
            disk_low: status.disk_low,
            disk_trouble: status.disk_trouble.clone(),
            certificate_seconds_left: status.certificate_seconds_left,
            earlier_cluster: status.earlier_cluster.as_ref().map(|earlier| EarlierClusterDocument {
                cluster_id: earlier.cluster_id.clone(),
                seconds_left: earlier.seconds_left,
                clients: earlier.clients,
            }),
            // As text: JSON numbers are not exact beyond 2^53.
            table_hash: status.table_hash.map(|hash| format!("{hash:016x}")),
            audit_lines: status.audit_lines,
            audit_head: status.audit_head.clone(),
            cluster_version: status.cluster_version,
            cluster_version_min: status.cluster_versions.map(|(lowest, _)| lowest),
            cluster_version_max: status.cluster_versions.map(|(_, highest)| highest),
            cluster_version_waits: status.cluster_version_waits.clone(),
            start: status.start.clone(),
            members: members.collect(),
        }
    }
}
