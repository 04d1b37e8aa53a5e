//! openraft's types as our messages, and back.
//!
//! Its structs change between versions, and what lies on disk or comes from a peer of a neighbouring version must still be read:
//! so they never leave this process but as these messages.

use std::collections::{BTreeMap, BTreeSet};

use super::types::*;
use crate::proto::internal as pb;

/// A message that lacks what it must have, or says what cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);

impl From<&LogId> for pb::LogId {
    fn from(id: &LogId) -> Self {
        Self { term: id.leader_id.term, index: id.index }
    }
}

impl From<pb::LogId> for LogId {
    fn from(id: pb::LogId) -> Self {
        Self { leader_id: CommittedLeaderId::new(id.term), index: id.index }
    }
}

impl From<&Vote> for pb::Vote {
    fn from(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term, node_id: vote.leader_id.voted_for, committed: vote.committed }
    }
}

impl From<pb::Vote> for Vote {
    fn from(vote: pb::Vote) -> Self {
        match vote.committed {
            true => Self::new_committed(vote.term, vote.node_id),
            false => Self::new(vote.term, vote.node_id),
        }
    }
}

impl From<&Membership> for pb::Membership {
    fn from(membership: &Membership) -> Self {
        let voters = |ids: &BTreeSet<u64>| pb::membership::Voters { node_ids: ids.iter().copied().collect() };
        let node = |(id, node): (&u64, &Node)| pb::Node {
            node_id: *id,
            peer_address: node.peer_address.clone(),
            client_address: node.client_address.clone(),
        };
        Self {
            configs: membership.get_joint_config().iter().map(voters).collect(),
            nodes: membership.nodes().map(node).collect(),
        }
    }
}

impl TryFrom<pb::Membership> for Membership {
    type Error = Malformed;

    fn try_from(membership: pb::Membership) -> Result<Self, Malformed> {
        let configs = membership.configs.into_iter().map(|voters| voters.node_ids.into_iter().collect()).collect();
        let node = |node: pb::Node| {
            (node.node_id, Node { peer_address: node.peer_address, client_address: node.client_address })
        };
        let nodes: BTreeMap<u64, Node> = membership.nodes.into_iter().map(node).collect();
        Self::new(configs, nodes).map_err(|_| Malformed("a membership with a voter that is not among its nodes"))
    }
}

impl From<&StoredMembership> for pb::StoredMembership {
    fn from(stored: &StoredMembership) -> Self {
        Self { log_id: stored.log_id().as_ref().map(Into::into), membership: Some(stored.membership().into()) }
    }
}

impl TryFrom<pb::StoredMembership> for StoredMembership {
    type Error = Malformed;

    fn try_from(stored: pb::StoredMembership) -> Result<Self, Malformed> {
        let membership = stored.membership.ok_or(Malformed("a stored membership without one"))?;
        Ok(Self::new(stored.log_id.map(Into::into), membership.try_into()?))
    }
}

impl From<&Entry> for pb::Entry {
    fn from(entry: &Entry) -> Self {
        let payload = match &entry.payload {
            EntryPayload::Blank => pb::entry::Payload::Blank(true),
            EntryPayload::Normal(payload) => pb::entry::Payload::Batch(payload.0.clone()),
            EntryPayload::Membership(membership) => pb::entry::Payload::Membership(membership.into()),
        };
        Self { log_id: Some((&entry.log_id).into()), payload: Some(payload) }
    }
}

impl pb::Entry {
    /// Not a `TryFrom`: openraft's entry has a blanket conversion that stands in its way.
    pub fn into_entry(self) -> Result<Entry, Malformed> {
        let payload = match self.payload.ok_or(Malformed("an entry without a payload"))? {
            pb::entry::Payload::Blank(_) => EntryPayload::Blank,
            pb::entry::Payload::Batch(bytes) => EntryPayload::Normal(Payload(bytes)),
            pb::entry::Payload::Membership(membership) => EntryPayload::Membership(membership.try_into()?),
        };
        Ok(Entry { log_id: self.log_id.ok_or(Malformed("an entry without a log id"))?.into(), payload })
    }
}
