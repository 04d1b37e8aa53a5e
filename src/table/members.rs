//! The members of the cluster, as the last applied entry that changed them names them.
//!
//! The table knows members for three reasons: their changes have lines in the audit trail, a snapshot names them, and an id that was a
//! member's is never given to another node. Who may vote for whom, and when a change is safe, is decided elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{EntryId, Incarnation};

/// A membership, and the entry that set it. Each voter is one of the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AppliedMembership {
    /// The entry. `None` before the first membership.
    pub entry: Option<EntryId>,
    /// The ids of the voters: one set, or two while the cluster passes from one to the other.
    pub voters: Vec<BTreeSet<u64>>,
    /// All members by their ids, learners included.
    pub nodes: BTreeMap<u64, MemberNode>,
}

/// A member: its addresses, and its data directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberNode {
    /// The incarnation of its data directory. In the log it is set from the first entry on, so that every member knows every other's
    /// before anything is acknowledged to a client. `None` in a node's configuration.
    pub incarnation: Option<Incarnation>,
    /// The address for peers: host:port.
    pub peer_address: String,
    /// The address for clients: host:port.
    pub client_address: String,
    /// Whether a learner is promoted only by an operator. Other learners are promoted as soon as they have caught up.
    pub stays_learner: bool,
    /// Whether the next learner that is promoted takes the place of this voter.
    pub is_leaving: bool,
    /// The node gave new addresses after it had become a member: these count before those in the configuration of other nodes.
    pub has_moved: bool,
}

impl AppliedMembership {
    /// Whether this node votes, in one of the sets at least.
    pub fn is_voter(&self, node_id: u64) -> bool {
        self.voters.iter().any(|voters| voters.contains(&node_id))
    }
}

impl fmt::Display for MemberNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.peer_address)
    }
}
