//! What other members know that this directory lacks or contradicts: the node ends, and says why.
//!
//! A call of a peer meets the contradiction, on a task of its own; [`NodeIdentity::outdated`] tells the node, whose end it is.

use super::{IdentityError, NodeIdentity};
use crate::types::LogId;

/// Why a directory must no longer be used.
#[derive(Clone, Debug)]
pub(super) enum Doubt {
    /// The witness, and what it remembers that the directory lacks.
    Outdated(u64, String),
    /// The hashes of this node's table and of the majority's, after an entry; and the members that have the latter.
    OtherTable { index: u64, own: u64, other: u64, agreeing: Vec<u64> },
    /// The leader, and the two entries. This node's own may be a later one, where the entry itself was purged.
    Disagreement { witness: u64, committed: u64, own: LogId, other: LogId },
}

impl NodeIdentity {
    /// Records that this directory lacks a promise that a peer remembers: the node must end.
    pub fn mark_outdated(&self, witness: u64, what: String) -> IdentityError {
        self.doubt(Doubt::Outdated(witness, what))
    }

    /// Records that the leader has another entry, `other`, in the place of one that this node knows to be committed: the node must end. Up
    /// to `committed` it has all entries; `own` is the one in that place, or the last one that was purged, if that is behind it.
    pub fn mark_disagreeing(&self, witness: u64, committed: u64, own: LogId, other: LogId) -> IdentityError {
        self.doubt(Doubt::Disagreement { witness, committed, own, other })
    }

    /// Records that a majority of the voters, `agreeing`, has another table after the same entry: the node must end.
    pub fn mark_other_table(&self, index: u64, own: u64, other: u64, agreeing: &[u64]) -> IdentityError {
        self.doubt(Doubt::OtherTable { index, own, other, agreeing: agreeing.to_vec() })
    }

    fn doubt(&self, doubt: Doubt) -> IdentityError {
        let error = self.explain(doubt.clone());
        self.outdated.send_replace(Some(doubt));
        error
    }

    fn explain(&self, doubt: Doubt) -> IdentityError {
        let node_id = self.node_id;

        match doubt {
            Doubt::Outdated(witness, what) => IdentityError::Outdated { node_id, witness, what },
            Doubt::OtherTable { index, own, other, agreeing } => {
                let agreeing: Vec<_> = agreeing.iter().map(u64::to_string).collect();
                IdentityError::OtherTable { node_id, index, own, other, agreeing: agreeing.join(" and ") }
            }
            Doubt::Disagreement { witness, committed, own, other } => IdentityError::Disagreement {
                node_id,
                witness,
                index: other.index,
                term: own.leader_id.term,
                is_purged: own.index != other.index,
                other_term: other.leader_id.term,
                committed,
                start: self.start,
            },
        }
    }

    /// Returns the reason once it is known that this directory must no longer be used.
    pub async fn outdated(&self) -> IdentityError {
        let mut outdated = self.outdated.subscribe();
        let why = outdated.wait_for(Option::is_some).await.expect("the sender is in self");
        let doubt = why.clone().expect("it was waited for");
        self.explain(doubt)
    }
}
