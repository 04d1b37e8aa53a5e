//! What openraft is told about us: the types of a log entry, of its answer and of a node.

use std::fmt;

use bytes::Bytes;
use openraft::{impls::leader_id_std, raft, type_config::alias};

use super::{calls::Call, ids::Incarnation};
use crate::machine::Reply;

/// Where openraft's tasks, timers and random numbers come from.
pub type Runtime = openraft_rt_tokio::TokioRuntime;

openraft::declare_raft_types!(
    /// Standard Raft: one leader a term, so a log id is a term and an index.
    pub TypeConfig:
        D = Payload,
        R = Applied,
        NodeId = u64,
        Node = Node,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = Runtime,
);

/// A log entry.
pub type Entry = alias::EntryOf<TypeConfig>;
/// What a log entry carries: nothing, a [`Payload`], or a membership.
pub type EntryPayload = alias::EntryPayloadOf<TypeConfig>;
/// A leader, as log ids name it.
pub type CommittedLeaderId = alias::CommittedLeaderIdOf<TypeConfig>;
/// A term and an index.
pub type LogId = alias::LogIdOf<TypeConfig>;
/// A term, and who was voted for in it.
pub type Vote = alias::VoteOf<TypeConfig>;
/// Who votes and who listens.
pub type Membership = openraft::Membership<u64, Node>;
/// A membership, and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot stands for.
pub type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;

/// A leader's call to append entries, or none: a heartbeat.
pub type AppendRequest = raft::AppendEntriesRequest<TypeConfig>;
/// The answer to an append in a stream of them: up to where the logs agree.
pub type StreamAppendResult = raft::StreamAppendResult<TypeConfig>;
/// Why an append was refused.
pub type StreamAppendError = raft::StreamAppendError<TypeConfig>;
/// A candidate's call for a vote.
pub type VoteRequest = raft::VoteRequest<TypeConfig>;
/// The answer to it.
pub type VoteResponse = raft::VoteResponse<TypeConfig>;
/// A leader's call to take over.
pub type TransferLeaderRequest = raft::TransferLeaderRequest<TypeConfig>;
/// The answer to it.
pub type TransferLeaderResponse = raft::TransferLeaderResponse<TypeConfig>;
/// Why it was refused.
pub type TransferLeaderError = raft::TransferLeaderError<TypeConfig>;

/// An encoded batch of commands. Opaque to Raft; shared without a copy between the log, its cache and the peers.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub Bytes);

/// The answers to the commands of one batch, in their order.
#[derive(Debug, Default)]
pub struct Applied(pub Vec<Delivery>);

/// The answer to one command.
#[derive(Debug)]
pub struct Delivery {
    /// The machine's reply.
    pub reply: Reply,
    /// For [`Reply::Queued`]: the call that waits now.
    pub wait: Option<Call>,
}

/// A member: where it is reached, and which data it has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Its data directory. In the log it is set from the first entry on, so that every member knows every other by it before anything is
    /// acknowledged to a client. `None` where only a configuration speaks.
    pub incarnation: Option<Incarnation>,
    /// By its peers: host:port.
    pub peer_address: String,
    /// By clients: host:port.
    pub client_address: String,
}

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

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replies", self.0.len())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.peer_address)
    }
}
