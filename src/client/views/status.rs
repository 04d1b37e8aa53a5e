//! The status of a node.

use std::time::Duration;

use super::{given, set};
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1;
use lockkeeper_types::{Token, WallTime};

/// The status of one node and its view of the cluster: the answer of [`Client::status`](crate::Client::status).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeStatus {
    /// The configured name of the cluster: 1 to 64 of a-z, 0-9 and -.
    pub cluster_id: String,
    /// The id of the node that answers: 1 or more.
    pub node_id: u64,
    /// The version of its program.
    pub version: String,
    /// Its role in Raft.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::role"))]
    pub role: Role,
    /// The Raft term: rises by one or more with each election.
    pub term: u64,
    /// The leader that this node knows.
    pub leader_id: Option<u64>,
    /// The last index of its log; 0: the log is empty.
    pub last_log_index: u64,
    /// The highest index that it knows to be committed.
    pub committed_index: u64,
    /// The highest index that it has applied to its table.
    pub applied_index: u64,
    /// The last index in its newest snapshot; 0: there is none.
    pub snapshot_index: u64,
    /// The last purged index of its log; 0: none.
    pub purged_index: u64,
    /// It can serve: it is in contact with a leader, or is a leader with a quorum.
    pub serving: bool,
    /// Why it does not serve, for people.
    pub trouble: Option<String>,
    /// The members of the cluster, sorted by id.
    pub members: Vec<Member>,
    /// Sessions in its table.
    pub sessions: u64,
    /// Locks that are held, awaited, delayed or carry data.
    pub locks: u64,
    /// Waiting acquires.
    pub waiters: u64,
    /// The highest granted token, if any was granted.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::token_or_zero"))]
    pub last_token: Option<Token>,
    /// With [`Client::status_with_hash`](crate::Client::status_with_hash): a hash of its table at `applied_index`. Equal on all nodes at
    /// the same index.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_hash"))]
    pub table_hash: Option<u64>,
    /// The longest scheduling delay of a task of Raft's runtime, such as a heartbeat, in the last minute. A delay beyond the election
    /// timeout causes elections: the node or its machine is overloaded. Up to 2 ms are due to the timer's resolution.
    #[cfg_attr(feature = "serde", serde(rename = "turn_delay_us_max", serialize_with = "json::micros"))]
    pub turn_delay_max: Duration,
    /// Requests that this node has refused since its start for want of an identity, a right or the ownership of a session.
    pub denied_requests: u64,
    /// Requests that this node has refused since its start by a limit of the caller's identity.
    pub limited_requests: u64,
    /// Approximate size of its table, bytes.
    pub table_bytes: u64,
    /// The limit above which the cluster refuses requests that add to the table, bytes. Unset if no limit is known.
    pub table_bytes_max: Option<u64>,
    /// Bytes that it can still write to the disk of its data directory, if known.
    pub disk_free_bytes: Option<u64>,
    /// Size of that disk, bytes, if known.
    pub disk_total_bytes: Option<u64>,
    /// Below this it is short of space, bytes. Unset if it does not watch the space.
    pub disk_reserve_bytes: Option<u64>,
    /// It is short of space.
    pub disk_low: bool,
    /// For people: it is short of space, or its disk cannot be looked at; on the leader also: the cluster refuses what adds to the table.
    pub disk_trouble: Option<String>,
    /// Seconds until its certificate expires, by its clock, if it has a certificate. Negative once it has expired.
    pub certificate_seconds_left: Option<i64>,
    /// The cluster before a restore, if this node is configured to accept the certificates of its clients.
    pub earlier_cluster: Option<EarlierCluster>,
    /// The cluster version, from the last entry that it applied: which commands the members may write into the log. A program from
    /// before versions has none.
    pub cluster_version: Option<u32>,
    /// The lowest and the highest cluster version that its program supports. A program from before versions has none.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::cluster_versions"))]
    pub cluster_versions: Option<(u32, u32)>,
    /// On the leader: why the cluster version is lower than its program supports, if it is. A text for people.
    pub cluster_version_waits: Option<String>,
    /// The start of its process: 16 hexadecimal digits, drawn anew at each start. A program from before versions has none.
    pub start: Option<String>,
    /// Lines of the audit trail up to the last entry that it applied; 0: none.
    pub audit_lines: u64,
    /// The hash of the last of them, as text: what `lockkeeper audit verify --head` compares.
    pub audit_head: Option<String>,
    /// Its wall clock as it answered, for people. A program from before this field says none.
    #[cfg_attr(feature = "serde", serde(rename = "wall_unix_ms", serialize_with = "json::some_unix_millis"))]
    pub wall_clock: Option<WallTime>,
}

/// A cluster whose clients' certificates a node accepts for a time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EarlierCluster {
    /// Its id.
    pub cluster_id: String,
    /// Seconds until they are refused, by the node's clock; negative: since they are.
    pub seconds_left: i64,
    /// The identities that came with one of these certificates since the start of the node; 1,024 at most.
    pub clients: u64,
}

/// A member of the cluster, as a node knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Member {
    /// Its id: 1 or more.
    pub node_id: u64,
    /// The address for clients: host:port.
    pub client_address: String,
    /// The address for peers: host:port.
    pub peer_address: String,
    /// It has a vote.
    pub voter: bool,
    /// On the leader: the highest index at which its log is known to match the leader's; 0 elsewhere.
    pub matched_index: u64,
    /// On the leader: why it does not replicate now, for people. Unset if it is in sync, or has lagged only for a short time.
    pub trouble: Option<String>,
    /// A learner that becomes a voter only by [`Client::promote_member`](crate::Client::promote_member).
    pub stays_learner: bool,
    /// A voter whose place the next promoted learner takes.
    pub is_leaving: bool,
    /// On the leader: the time since it last answered. `None` elsewhere, for the leader itself, and if it has not answered in this
    /// leader's term.
    #[cfg_attr(feature = "serde", serde(rename = "silent_ms", serialize_with = "json::some_millis"))]
    pub silent_for: Option<Duration>,
    /// On the leader: it may be taken down now; or why not, for people. `None` elsewhere.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::may_stop"))]
    pub may_stop: Option<Result<(), String>>,
    /// On the leader: bytes that it can still write to its disk, as it said last, if it did.
    pub disk_free_bytes: Option<u64>,
    /// On the leader: it is short of space.
    pub disk_low: bool,
    /// The version of its program, as it said itself. Unset if it was not heard since this node started, or is from before versions.
    pub version: Option<String>,
    /// The lowest and the highest cluster version that its program supports, if it was heard.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::cluster_versions"))]
    pub cluster_versions: Option<(u32, u32)>,
}

/// The role of a node in Raft.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows.
    Follower,
    /// The node stands for election.
    Candidate,
    /// It follows and has no vote.
    Learner,
    /// A role that this version does not know, by its number in the protocol; 0: none was given.
    Other(i32),
}

impl Default for Role {
    fn default() -> Self {
        Self::Other(0)
    }
}

impl NodeStatus {
    /// The hash of the table is shown only if it was requested, as `with_hash` says.
    pub(crate) fn from_wire(wire: v1::StatusResponse, with_hash: bool) -> Self {
        let leads = wire.role() == v1::Role::Leader && wire.serving;
        Self {
            role: Role::from_wire(wire.role),
            cluster_id: wire.cluster_id,
            node_id: wire.node_id,
            version: wire.version,
            term: wire.term,
            leader_id: set(wire.leader_id),
            last_log_index: wire.last_log_index,
            committed_index: wire.committed_index,
            applied_index: wire.applied_index,
            snapshot_index: wire.snapshot_index,
            purged_index: wire.purged_index,
            serving: wire.serving,
            trouble: given(wire.trouble),
            members: wire.members.into_iter().map(|member| Member::from_wire(member, leads)).collect(),
            sessions: wire.sessions,
            locks: wire.locks,
            waiters: wire.waiters,
            last_token: set(wire.last_token).map(Token),
            table_hash: with_hash.then_some(wire.table_hash),
            turn_delay_max: Duration::from_micros(wire.turn_delay_us_max),
            denied_requests: wire.denied_requests,
            limited_requests: wire.limited_requests,
            table_bytes: wire.table_bytes,
            table_bytes_max: set(wire.table_bytes_max),
            disk_free_bytes: (wire.disk_total_bytes != 0).then_some(wire.disk_free_bytes),
            disk_total_bytes: set(wire.disk_total_bytes),
            disk_reserve_bytes: set(wire.disk_reserve_bytes),
            disk_low: wire.disk_low,
            disk_trouble: given(wire.disk_trouble),
            certificate_seconds_left: wire.certificate_seconds_left,
            earlier_cluster: wire.earlier_cluster.map(|earlier| EarlierCluster {
                cluster_id: earlier.cluster_id,
                seconds_left: earlier.seconds_left,
                clients: earlier.clients,
            }),
            cluster_version: (wire.cluster_version != 0).then_some(wire.cluster_version),
            cluster_versions: range(wire.cluster_version_min, wire.cluster_version_max),
            cluster_version_waits: given(wire.cluster_version_waits),
            start: given(wire.start),
            audit_lines: wire.audit_lines,
            audit_head: given(wire.audit_head),
            wall_clock: set(wire.wall_unix_ms).map(WallTime),
        }
    }
}

impl Member {
    /// Only the leader knows whether a member may stop. What another node says of that is left out, unless `by_leader`.
    fn from_wire(wire: v1::Member, by_leader: bool) -> Self {
        let may_stop = if wire.safe_to_stop { Ok(()) } else { Err(wire.unsafe_reason) };
        Self {
            node_id: wire.node_id,
            client_address: wire.client_address,
            peer_address: wire.peer_address,
            voter: wire.voter,
            matched_index: wire.matched_index,
            trouble: given(wire.trouble),
            stays_learner: wire.stays_learner,
            is_leaving: wire.is_leaving,
            silent_for: wire.silent_ms.map(Duration::from_millis),
            may_stop: by_leader.then_some(may_stop),
            disk_free_bytes: (wire.disk_total_bytes != 0).then_some(wire.disk_free_bytes),
            disk_low: wire.disk_low,
            version: given(wire.version),
            cluster_versions: range(wire.cluster_version_min, wire.cluster_version_max),
        }
    }
}

/// 0: not given.
fn range(lowest: u32, highest: u32) -> Option<(u32, u32)> {
    (highest != 0).then_some((lowest, highest))
}

impl Role {
    /// Its name: that of the protocol in lower case, or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Other(_) => "unknown",
        }
    }

    fn from_wire(number: i32) -> Self {
        match v1::Role::try_from(number) {
            Ok(v1::Role::Leader) => Self::Leader,
            Ok(v1::Role::Follower) => Self::Follower,
            Ok(v1::Role::Candidate) => Self::Candidate,
            Ok(v1::Role::Learner) => Self::Learner,
            Ok(v1::Role::Unspecified) | Err(_) => Self::Other(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_every_value() {
        let member = v1::Member {
            node_id: 2,
            client_address: "b:1".to_owned(),
            peer_address: "b:2".to_owned(),
            voter: true,
            matched_index: 13,
            trouble: "lags".to_owned(),
            stays_learner: true,
            is_leaving: true,
            silent_ms: Some(70),
            safe_to_stop: false,
            unsafe_reason: "needed".to_owned(),
            version: "0.2.0".to_owned(),
            cluster_version_min: 1,
            cluster_version_max: 3,
            disk_free_bytes: 21,
            disk_total_bytes: 22,
            disk_reserve_bytes: 23,
            disk_low: true,
        };
        let wire = v1::StatusResponse {
            cluster_id: "c".to_owned(),
            node_id: 1,
            version: "0.1.0".to_owned(),
            role: v1::Role::Leader.into(),
            term: 3,
            leader_id: 1,
            last_log_index: 15,
            committed_index: 14,
            applied_index: 12,
            snapshot_index: 11,
            purged_index: 10,
            serving: true,
            trouble: "no quorum".to_owned(),
            members: vec![member],
            sessions: 4,
            locks: 5,
            waiters: 6,
            last_token: 7,
            table_hash: 0,
            turn_delay_us_max: 1_500,
            denied_requests: 5,
            limited_requests: 6,
            table_bytes: 8,
            table_bytes_max: 9,
            cluster_version: 2,
            cluster_version_min: 1,
            cluster_version_max: 2,
            cluster_version_waits: "waits".to_owned(),
            start: "0123456789abcdef".to_owned(),
            disk_free_bytes: 31,
            disk_total_bytes: 32,
            disk_reserve_bytes: 33,
            disk_low: true,
            disk_trouble: "nearly full".to_owned(),
            certificate_seconds_left: Some(-34),
            earlier_cluster: Some(v1::EarlierCluster { cluster_id: "b".to_owned(), seconds_left: -3, clients: 2 }),
            audit_lines: 41,
            audit_head: "abc".to_owned(),
            wall_unix_ms: 1_764_100_000_000,
        };
        let member = Member {
            node_id: 2,
            client_address: "b:1".to_owned(),
            peer_address: "b:2".to_owned(),
            voter: true,
            matched_index: 13,
            trouble: Some("lags".to_owned()),
            stays_learner: true,
            is_leaving: true,
            silent_for: Some(Duration::from_millis(70)),
            may_stop: Some(Err("needed".to_owned())),
            version: Some("0.2.0".to_owned()),
            cluster_versions: Some((1, 3)),
            disk_free_bytes: Some(21),
            disk_low: true,
        };
        let expected = NodeStatus {
            cluster_id: "c".to_owned(),
            node_id: 1,
            version: "0.1.0".to_owned(),
            role: Role::Leader,
            term: 3,
            leader_id: Some(1),
            last_log_index: 15,
            committed_index: 14,
            applied_index: 12,
            snapshot_index: 11,
            purged_index: 10,
            serving: true,
            trouble: Some("no quorum".to_owned()),
            members: vec![member],
            sessions: 4,
            locks: 5,
            waiters: 6,
            last_token: Some(Token(7)),
            // A hash of 0 is a hash, if one was requested.
            table_hash: Some(0),
            turn_delay_max: Duration::from_micros(1_500),
            denied_requests: 5,
            limited_requests: 6,
            table_bytes: 8,
            table_bytes_max: Some(9),
            cluster_version: Some(2),
            cluster_versions: Some((1, 2)),
            cluster_version_waits: Some("waits".to_owned()),
            start: Some("0123456789abcdef".to_owned()),
            audit_lines: 41,
            audit_head: Some("abc".to_owned()),
            wall_clock: Some(WallTime(1_764_100_000_000)),
            disk_free_bytes: Some(31),
            disk_total_bytes: Some(32),
            disk_reserve_bytes: Some(33),
            disk_low: true,
            disk_trouble: Some("nearly full".to_owned()),
            certificate_seconds_left: Some(-34),
            earlier_cluster: Some(EarlierCluster { cluster_id: "b".to_owned(), seconds_left: -3, clients: 2 }),
        };
        assert_eq!(NodeStatus::from_wire(wire.clone(), true), expected);
        assert_eq!(NodeStatus::from_wire(wire, false), NodeStatus { table_hash: None, ..expected });
        assert_eq!(NodeStatus::from_wire(v1::StatusResponse::default(), false), NodeStatus::default());
    }

    #[test]
    fn every_role_is_known_and_a_later_one_keeps_its_number() {
        for number in 1..100 {
            match v1::Role::try_from(number) {
                // The names agree.
                Ok(wire) => assert_eq!(format!("{:?}", Role::from_wire(number)), format!("{wire:?}")),
                Err(_) => assert_eq!(Role::from_wire(number), Role::Other(number)),
            }
        }
    }
}
