//! The types with which openraft is configured: log entries, replies and nodes.

use std::fmt;

use bytes::Bytes;
use openraft::{impls::leader_id_std, raft, type_config::alias};
use tokio::time::Instant;

use super::{calls::WaitingCall, ids::Incarnation};
use lockkeeper_machine::Reply;

/// The source of openraft's tasks, timers and random numbers.
pub type Runtime = openraft_rt_tokio::TokioRuntime;

openraft::declare_raft_types!(
    /// Standard Raft: one leader in each term, so a log id is a term and an index.
    pub TypeConfig:
        D = Payload,
        R = Deliveries,
        NodeId = u64,
        Node = Node,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = Runtime,
);

/// A log entry.
pub type Entry = alias::EntryOf<TypeConfig>;
/// The payload of a log entry: none, a [`Payload`], or a membership.
pub type EntryPayload = alias::EntryPayloadOf<TypeConfig>;
/// A leader's id in log ids: its term.
pub type CommittedLeaderId = alias::CommittedLeaderIdOf<TypeConfig>;
/// A term and an index.
pub type LogId = alias::LogIdOf<TypeConfig>;
/// A term, and the node that was voted for in it.
pub type Vote = alias::VoteOf<TypeConfig>;
/// The voters and learners.
pub type Membership = openraft::Membership<u64, Node>;
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

/// The replies to the commands of one batch, in order.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// One for each command; none, if nobody waits for them.
    pub replies: Vec<Delivery>,
    /// When the table was about to apply the batch, and when it had. `None`: not known.
    pub applied: Option<(Instant, Instant)>,
}

/// The reply to one command.
#[derive(Debug)]
pub struct Delivery {
    /// The machine's reply.
    pub reply: Reply,
    /// For [`Reply::Queued`]: the call that waits now.
    pub wait: Option<WaitingCall>,
    /// When the command passed the stages before its reply. `None`: not known.
    pub times: Option<Times>,
}

/// When a command passed each stage, at the leader, and its log entry: for traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// It came into the proposer's queue.
    pub queued: Instant,
    /// Its batch was given to Raft.
    pub proposed: Instant,
    /// Its entry was committed, and the table about to apply it.
    pub committed: Instant,
    /// The table had applied it.
    pub applied: Instant,
    /// The index of its entry.
    pub log_index: u64,
}

/// A member: its addresses, and its data directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// The incarnation of its data directory. In the log it is set from the first entry on, so that every member knows every other's
    /// before anything is acknowledged to a client. `None` in a node's configuration.
    pub incarnation: Option<Incarnation>,
    /// The address for peers: host:port.
    pub peer_address: String,
    /// The address for clients: host:port.
    pub client_address: String,
    /// As a learner: it is promoted only when an operator says so. Other learners are promoted as soon as they have caught up.
    pub stays_learner: bool,
    /// As a voter: the next learner that is promoted takes its place.
    pub is_leaving: bool,
    /// The node gave new addresses after it had become a member: these count before those in the configuration of other nodes.
    pub has_moved: bool,
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

impl fmt::Display for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replies", self.replies.len())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.peer_address)
    }
}
