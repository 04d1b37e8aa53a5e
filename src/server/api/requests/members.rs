//! The membership, and the leadership.

use lockkeeper_raft::identity::Incarnation;

/// Makes a node a member, or changes the addresses of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AddMember {
    pub(crate) node_id: u64,
    pub(crate) client_address: String,
    pub(crate) peer_address: String,
    /// The node's incarnation. Without it, the leader asks the node.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) stays_learner: bool,
}

/// Makes a learner a voter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PromoteMember {
    pub(crate) node_id: u64,
}

/// Removes a member for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveMember {
    pub(crate) node_id: u64,
}

/// Replaces a voter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplaceMember {
    pub(crate) node_id: u64,
    /// The member that takes its place. Without one, it is the next learner that is promoted.
    pub(crate) with: Option<u64>,
    /// Whether the voter is not to be replaced after all.
    pub(crate) keep: bool,
}

/// The change is committed. The leader does by itself what follows from it, such as a promotion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MembersChanged;

/// Hands the leadership to another member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TransferLeader {
    /// The new leader. Without one, it is the voter whose log is furthest.
    pub(crate) to: Option<u64>,
}

/// Another node leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaderTransferred {
    pub(crate) leader_id: u64,
}
