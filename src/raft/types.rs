//! The types with which openraft is configured: log entries, replies and nodes.

use std::fmt;

use bytes::Bytes;
use openraft::{impls::leader_id_std, raft, type_config::alias};

use lockkeeper_table::{AppliedMembership, Deliveries, EntryId, MemberNode};

/// The source of openraft's tasks, timers and random numbers.
pub type Runtime = openraft_rt_tokio::TokioRuntime;

openraft::declare_raft_types!(
    /// Standard Raft: one leader in each term, so a log id is a term and an index.
    pub TypeConfig:
        D = Payload,
        R = Deliveries,
        NodeId = u64,
        Node = MemberNode,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = Runtime,
);

/// A log entry.
pub type LogEntry = alias::EntryOf<TypeConfig>;
/// The payload of a log entry: none, a [`Payload`], or a membership.
pub type EntryPayload = alias::EntryPayloadOf<TypeConfig>;
/// A leader's id in log ids: its term.
pub type CommittedLeaderId = alias::CommittedLeaderIdOf<TypeConfig>;
/// A term and an index.
pub type LogId = alias::LogIdOf<TypeConfig>;
/// A term, and the node that was voted for in it.
pub type Vote = alias::VoteOf<TypeConfig>;
/// The voters and learners.
pub type Membership = openraft::Membership<u64, MemberNode>;
/// A membership, and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
/// The last entry and the membership that a snapshot covers.
pub type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;

/// A leader's request to append entries; without entries, a heartbeat.
pub type AppendRequest = raft::AppendEntriesRequest<TypeConfig>;
/// The answer to an append in a stream: up to where the logs agree.
pub type StreamAppendResult = raft::StreamAppendResult<TypeConfig>;
/// Why an append was refused.
pub type StreamAppendError = raft::StreamAppendError<TypeConfig>;
/// A candidate's request for a vote.
pub type VoteRequest = raft::VoteRequest<TypeConfig>;
/// The answer to a request for a vote.
pub type VoteResponse = raft::VoteResponse<TypeConfig>;
/// A leader's request to take over the leadership.
pub type TransferLeaderRequest = raft::TransferLeaderRequest<TypeConfig>;
/// The answer to a transfer.
pub type TransferLeaderResponse = raft::TransferLeaderResponse<TypeConfig>;
/// Why a transfer was refused.
pub type TransferLeaderError = raft::TransferLeaderError<TypeConfig>;

/// An encoded batch of commands. Opaque to Raft; shared without a copy between the log, its cache and the peers.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}

/// The id of an entry, as the table knows it.
pub fn entry_id(log_id: LogId) -> EntryId {
    EntryId { term: log_id.leader_id.term, index: log_id.index }
}

/// The id of an entry that the table has applied, as openraft knows it.
pub fn log_id(entry: EntryId) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(entry.term), index: entry.index }
}

/// A membership as the table knows it, with the entry that set it.
pub fn to_applied(membership: &StoredMembership) -> AppliedMembership {
    let entry = membership.log_id().map(entry_id);
    let voters = membership.membership().get_joint_config().clone();
    let nodes = membership.nodes().map(|(id, node)| (*id, node.clone())).collect();
    AppliedMembership { entry, voters, nodes }
}

/// A membership that the table has applied, as openraft knows it.
pub fn to_stored(applied: &AppliedMembership) -> StoredMembership {
    let membership = Membership::new(applied.voters.clone(), applied.nodes.clone());
    let membership = membership.expect("the table's membership was one of openraft's before");
    StoredMembership::new(applied.entry.map(log_id), membership)
}
