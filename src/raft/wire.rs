//! Conversions between openraft's types and our messages.
//!
//! openraft's structs change between versions, but files and messages of neighbouring versions must stay readable: so these types leave
//! this process only as our messages.

use std::collections::{BTreeMap, BTreeSet};

use crate::messages as pb;
use crate::types::*;
use lockkeeper_audit::{Hash, Head};
use lockkeeper_table::{Malformed, MemberNode, Trail};

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
        if vote.committed { Self::new_committed(vote.term, vote.node_id) } else { Self::new(vote.term, vote.node_id) }
    }
}

/// How far the audit trail goes, in a snapshot or a backup. `None` before its first line.
pub(crate) fn write_trail(trail: Trail) -> Option<pb::AuditTrail> {
    let (Head { lines, hash }, restored) = trail.to_stored()?;
    Some(pb::AuditTrail { lines, hash: hash.0.to_vec().into(), restored })
}

/// The trail of a snapshot or a backup. A hash of another length belongs to no trail: it comes from a bug, and no line can follow it.
pub(crate) fn read_trail(trail: Option<pb::AuditTrail>) -> Trail {
    let Some(pb::AuditTrail { lines, hash, restored }) = trail else { return Trail::default() };
    let hash = Hash(<[u8; 32]>::try_from(&*hash).unwrap_or_default());
    Trail::from_stored(Head { lines, hash }, restored)
}

impl From<&Membership> for pb::Membership {
    fn from(membership: &Membership) -> Self {
        let voters = |ids: &BTreeSet<u64>| pb::membership::Voters { node_ids: ids.iter().copied().collect() };
        let node = |(id, node): (&u64, &MemberNode)| pb::Node::new(*id, node);
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
        let nodes = membership.nodes.into_iter().map(pb::Node::into_member).collect::<Result<BTreeMap<_, _>, _>>()?;
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
        let membership = stored.membership.ok_or(Malformed("a stored membership without its membership"))?;
        Ok(Self::new(stored.log_id.map(Into::into), membership.try_into()?))
    }
}

impl From<&LogEntry> for pb::Entry {
    fn from(entry: &LogEntry) -> Self {
        let payload = match &entry.payload {
            EntryPayload::Blank => pb::entry::Payload::Blank(true),
            EntryPayload::Normal(payload) => pb::entry::Payload::Batch(payload.0.clone()),
            EntryPayload::Membership(membership) => pb::entry::Payload::Membership(membership.into()),
        };
        Self { log_id: Some((&entry.log_id).into()), payload: Some(payload) }
    }
}

impl pb::Entry {
    /// Not a `TryFrom`: that would conflict with a blanket conversion of openraft's entry.
    pub fn into_entry(self) -> Result<LogEntry, Malformed> {
        let payload = match self.payload.ok_or(Malformed("an entry without a payload"))? {
            pb::entry::Payload::Blank(_) => EntryPayload::Blank,
            pb::entry::Payload::Batch(bytes) => EntryPayload::Normal(Payload(bytes)),
            pb::entry::Payload::Membership(membership) => EntryPayload::Membership(membership.try_into()?),
        };
        Ok(LogEntry { log_id: self.log_id.ok_or(Malformed("an entry without a log id"))?.into(), payload })
    }
}

impl From<&AppendRequest> for pb::AppendRequest {
    fn from(request: &AppendRequest) -> Self {
        Self {
            vote: Some((&request.vote).into()),
            previous: request.prev_log_id.as_ref().map(Into::into),
            entries: request.entries.iter().map(Into::into).collect(),
            leader_commit: request.leader_commit.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<pb::AppendRequest> for AppendRequest {
    type Error = Malformed;

    fn try_from(request: pb::AppendRequest) -> Result<Self, Malformed> {
        let vote: Vote = request.vote.ok_or(Malformed("an append without a vote"))?.into();
        // Raft would take the sender for the leader of its term: entries may come only from a node that has won its election.
        if !vote.committed {
            return Err(Malformed("an append whose sender was not elected"));
        }

        let previous: Option<LogId> = request.previous.map(Into::into);
        let entries = request.entries.into_iter().map(pb::Entry::into_entry).collect::<Result<Vec<_>, _>>()?;

        // Raft relies on the order of a leader's entries, and stops the node if it is violated.
        let mut last = previous;
        for entry in &entries {
            let follows = match &last {
                Some(last) => {
                    let index = last.index.checked_add(1);
                    index == Some(entry.log_id.index) && entry.log_id.leader_id >= last.leader_id
                }
                None => entry.log_id.index == 0,
            };
            if !follows || entry.log_id.leader_id.term > vote.leader_id.term {
                return Err(Malformed("entries that do not follow each other"));
            }
            last = Some(entry.log_id);
        }

        let leader_commit = request.leader_commit.map(Into::into);
        Ok(Self { vote, prev_log_id: previous, entries, leader_commit })
    }
}

impl From<StreamAppendResult> for pb::AppendResponse {
    fn from(result: StreamAppendResult) -> Self {
        use pb::append_response::Kind;
        let kind = match result {
            // Always the last entry of the request, which the leader knows.
            Ok(_) => Kind::Success(true),
            Err(StreamAppendError::Conflict(_)) => Kind::Conflict(true),
            Err(StreamAppendError::HigherVote(vote)) => Kind::HigherVote((&vote).into()),
        };
        Self { kind: Some(kind), disk: None }
    }
}

impl pb::AppendResponse {
    /// The result for a request whose entries come after `previous` and end with `last`.
    pub fn into_result(self, previous: Option<LogId>, last: Option<LogId>) -> Result<StreamAppendResult, Malformed> {
        use pb::append_response::Kind;
        Ok(match self.kind.ok_or(Malformed("an answer to an append without a result"))? {
            Kind::Success(_) => Ok(last),
            Kind::PartialSuccess(partial) => Ok(partial.last.map(Into::into)),
            Kind::Conflict(_) => {
                // There is no entry before the start of the log that could conflict.
                let previous = previous.ok_or(Malformed("a conflict before the first entry"))?;
                Err(StreamAppendError::Conflict(previous))
            }
            Kind::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
        })
    }
}

impl From<&VoteRequest> for pb::VoteRequest {
    fn from(request: &VoteRequest) -> Self {
        Self {
            vote: Some((&request.vote).into()),
            last_log_id: request.last_log_id.as_ref().map(Into::into),
            leadership_transfer: request.leadership_transfer,
        }
    }
}

impl TryFrom<pb::VoteRequest> for VoteRequest {
    type Error = Malformed;

    fn try_from(request: pb::VoteRequest) -> Result<Self, Malformed> {
        Ok(Self {
            vote: request.vote.ok_or(Malformed("a request for a vote without its vote"))?.into(),
            last_log_id: request.last_log_id.map(Into::into),
            leadership_transfer: request.leadership_transfer,
        })
    }
}

impl From<&VoteResponse> for pb::VoteResponse {
    fn from(response: &VoteResponse) -> Self {
        Self {
            vote: Some((&response.vote).into()),
            granted: response.vote_granted,
            last_log_id: response.last_log_id.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<pb::VoteResponse> for VoteResponse {
    type Error = Malformed;

    fn try_from(response: pb::VoteResponse) -> Result<Self, Malformed> {
        Ok(Self {
            vote: response.vote.ok_or(Malformed("an answer to a request for a vote without its vote"))?.into(),
            vote_granted: response.granted,
            last_log_id: response.last_log_id.map(Into::into),
        })
    }
}

impl From<&TransferLeaderRequest> for pb::TransferLeaderRequest {
    fn from(request: &TransferLeaderRequest) -> Self {
        Self {
            from_leader: Some(request.from_leader().into()),
            to_node_id: *request.to_node_id(),
            last_log_id: request.last_log_id().map(Into::into),
        }
    }
}

impl TryFrom<pb::TransferLeaderRequest> for TransferLeaderRequest {
    type Error = Malformed;

    fn try_from(request: pb::TransferLeaderRequest) -> Result<Self, Malformed> {
        let from = request.from_leader.ok_or(Malformed("a transfer without a leader"))?;
        Ok(Self::new(from.into(), request.to_node_id, request.last_log_id.map(Into::into)))
    }
}

impl From<TransferLeaderResponse> for pb::TransferLeaderResponse {
    fn from(response: TransferLeaderResponse) -> Self {
        let Err(error) = response else { return Self::default() };
        let refusal = error.to_string();
        match error {
            TransferLeaderError::VoteChanged { actual, .. } => {
                Self { refusal, vote: Some((&actual).into()), flushed: None }
            }
            TransferLeaderError::LogNotFlushed { actual, .. } => {
                Self { refusal, vote: None, flushed: actual.as_ref().map(Into::into) }
            }
        }
    }
}

impl pb::TransferLeaderResponse {
    /// The result for `request`.
    pub fn into_result(self, request: &TransferLeaderRequest) -> TransferLeaderResponse {
        if self.refusal.is_empty() {
            return Ok(());
        }
        Err(match self.vote {
            Some(actual) => {
                TransferLeaderError::VoteChanged { expected: *request.from_leader(), actual: actual.into() }
            }
            None => TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: self.flushed.map(Into::into),
            },
        })
    }
}

impl pb::SnapshotHeader {
    /// The header of a snapshot's transfer.
    pub fn new(vote: &Vote, meta: &SnapshotMeta, length: u64) -> Self {
        Self {
            vote: Some(vote.into()),
            last_log_id: meta.last_log_id.as_ref().map(Into::into),
            membership: Some((&meta.last_membership).into()),
            length,
        }
    }

    /// The sender's vote, the snapshot's metadata, and its length in bytes.
    pub fn into_parts(self) -> Result<(Vote, SnapshotMeta, u64), Malformed> {
        let vote: Vote = self.vote.ok_or(Malformed("a snapshot without a vote"))?.into();
        let last_log_id: Option<LogId> = self.last_log_id.map(Into::into);
        // Raft relies on a leader having no entry of a later term, and stops the node if one does.
        if !vote.committed || last_log_id.is_some_and(|last| last.leader_id.term > vote.leader_id.term) {
            return Err(Malformed("a snapshot whose sender was not elected"));
        }
        let last_membership = self.membership.ok_or(Malformed("a snapshot without a membership"))?.try_into()?;
        Ok((vote, SnapshotMeta { last_log_id, last_membership }, self.length))
    }
}

impl pb::Node {
    /// A member with its id.
    pub fn new(node_id: u64, node: &MemberNode) -> Self {
        let incarnation = node.incarnation.map(|incarnation| incarnation.as_bytes().to_vec().into());
        let peer_address = node.peer_address.clone();
        let client_address = node.client_address.clone();
        let MemberNode { stays_learner, is_leaving, has_moved, .. } = *node;
        let incarnation = incarnation.unwrap_or_default();
        Self { node_id, peer_address, client_address, incarnation, stays_learner, is_leaving, has_moved }
    }

    /// The member's id, and its addresses and incarnation.
    pub fn into_member(self) -> Result<(u64, MemberNode), Malformed> {
        let Self { node_id, peer_address, client_address, incarnation, stays_learner, is_leaving, has_moved } = self;
        let incarnation = if incarnation.is_empty() {
            None
        } else {
            Some(incarnation.as_ref().try_into().map_err(|_| Malformed("an incarnation that is not 16 bytes long"))?)
        };
        Ok((node_id, MemberNode { incarnation, peer_address, client_address, stays_learner, is_leaving, has_moved }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_must_follow_each_other_also_at_the_last_index() {
        let id = |index| pb::LogId { term: 1, index };
        let vote = pb::Vote { term: 1, node_id: 1, committed: true };
        let append = |previous, first| {
            let payload = Some(pb::entry::Payload::Blank(true));
            let entry = pb::Entry { log_id: Some(id(first)), payload };
            let request = pb::AppendRequest {
                vote: Some(vote),
                previous: Some(id(previous)),
                entries: vec![entry],
                ..pb::AppendRequest::default()
            };
            AppendRequest::try_from(request)
        };
        assert!(append(7, 8).is_ok());
        for (previous, first) in [(7, 7), (7, 9), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
            assert!(append(previous, first).is_err(), "{first} after {previous}");
        }
    }
}
