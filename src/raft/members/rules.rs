//! Which change of the membership is allowed now. Pure: a membership, what is known of its members, and the request.

use openraft::ChangeMembers;

use super::{Candidate, MEMBERS_MAX, MemberError};
use crate::types::Membership;
use lockkeeper_planted::Planted;
use lockkeeper_table::MemberNode;

/// A change, as openraft takes it. Voters that it removes leave the membership altogether.
pub(super) type MembershipChange = ChangeMembers<u64, MemberNode>;

/// What the leader knows of its cluster.
pub(super) struct MembershipView<'a> {
    /// The latest membership in its log.
    pub(super) membership: &'a Membership,
    /// Whether a member, or this node, has answered lately.
    pub(super) is_alive: &'a dyn Fn(u64) -> bool,
    /// Whether an id is that of a former member.
    pub(super) was_removed: &'a dyn Fn(u64) -> bool,
}

impl MembershipView<'_> {
    fn node(&self, node_id: u64) -> Result<&MemberNode, MemberError> {
        let members = || self.membership.nodes().map(|(id, _)| *id).collect();
        self.membership.get_node(&node_id).ok_or_else(|| MemberError::Unknown { node_id, members: members() })
    }

    fn is_voter(&self, node_id: u64) -> bool {
        self.membership.voter_ids().any(|voter| voter == node_id)
    }

    fn voters(&self) -> Vec<u64> {
        self.membership.voter_ids().collect()
    }

    /// The learners that are on their way to become voters.
    fn candidates(&self) -> impl Iterator<Item = u64> {
        self.membership.nodes().filter(|(id, node)| !self.is_voter(**id) && !node.stays_learner).map(|(id, _)| *id)
    }

    fn leaving(&self) -> Option<u64> {
        self.membership.nodes().find(|(_, node)| node.is_leaving).map(|(id, _)| *id)
    }

    /// Only one change at a time: each is checked for its effect on the present members.
    fn settled(&self) -> Result<(), MemberError> {
        match self.membership.get_joint_config().len() {
            0 | 1 => Ok(()),
            _ => Err(MemberError::under_way("the voters are being exchanged")),
        }
    }

    fn no_candidate_but(&self, subject: Option<u64>) -> Result<(), MemberError> {
        match self.candidates().find(|candidate| Some(*candidate) != subject) {
            Some(_) if Planted::SeveralLearnersAtOnce.is_on() => Ok(()),
            None => Ok(()),
            Some(candidate) => {
                Err(MemberError::under_way(format!("node {candidate} is catching up, to become a voter")))
            }
        }
    }

    fn nobody_leaves(&self) -> Result<(), MemberError> {
        match self.leaving() {
            None => Ok(()),
            Some(old) => {
                Err(MemberError::under_way(format!("node {old} is being replaced by the next node that joins")))
            }
        }
    }

    /// Refuses a set of voters of which no majority answers: the cluster would stop.
    fn serves(&self, voters: &[u64]) -> Result<(), MemberError> {
        let silent: Vec<u64> = voters.iter().copied().filter(|voter| !(self.is_alive)(*voter)).collect();
        if voters.len() - silent.len() > voters.len() / 2 || Planted::RemovalLosesQuorum.is_on() {
            Ok(())
        } else {
            Err(MemberError::LosesQuorum { voters: voters.len(), silent })
        }
    }
}

/// What an accepted candidate leads to.
#[derive(Debug)]
pub(super) enum CandidateAdmission {
    /// It is a member already, with these addresses.
    IsMember,
    Change(MembershipChange),
}

/// A node becomes a learner; or a member has new addresses.
pub(super) fn add(view: &MembershipView<'_>, candidate: &Candidate) -> Result<CandidateAdmission, MemberError> {
    let Candidate { node_id, incarnation, ref peer_address, ref client_address, stays_learner } = *candidate;

    // A member that asks again has new addresses, or did not get the first answer.
    if let Some(known) = view.membership.get_node(&node_id) {
        if known.incarnation != Some(incarnation) {
            return Err(MemberError::IdInUse { node_id });
        }
        if known.peer_address == *peer_address && known.client_address == *client_address {
            return Ok(CandidateAdmission::IsMember);
        }
        view.settled()?;
        let peer_address = peer_address.clone();
        let client_address = client_address.clone();
        // The configurations of the others may name another way to the same address for peers: that goes on.
        let has_moved = known.has_moved || known.peer_address != peer_address;
        let moved = MemberNode { peer_address, client_address, has_moved, ..known.clone() };
        return Ok(CandidateAdmission::Change(MembershipChange::SetNodes([(node_id, moved)].into())));
    }

    if (view.was_removed)(node_id) && !Planted::RemovedIdComesBack.is_on() {
        return Err(MemberError::IdUsedBefore { node_id });
    }

    view.settled()?;
    view.no_candidate_but(None)?;
    if view.membership.nodes().count() >= MEMBERS_MAX {
        return Err(MemberError::TooMany);
    }

    let peer_address = peer_address.clone();
    let client_address = client_address.clone();
    let node = MemberNode {
        incarnation: Some(incarnation),
        peer_address,
        client_address,
        stays_learner,
        ..MemberNode::default()
    };
    Ok(CandidateAdmission::Change(MembershipChange::AddNodes([(node_id, node)].into())))
}

/// Marks a permanent learner for promotion to a voter, once it has caught up. Returns `None` if it is marked already, or votes.
pub(super) fn promote(view: &MembershipView<'_>, node_id: u64) -> Result<Option<MembershipChange>, MemberError> {
    let node = view.node(node_id)?;
    if view.is_voter(node_id) || !node.stays_learner {
        return Ok(None);
    }
    view.settled()?;
    view.no_candidate_but(None)?;
    Ok(Some(MembershipChange::SetNodes([(node_id, MemberNode { stays_learner: false, ..node.clone() })].into())))
}

/// A voter is to be replaced by the next learner that is promoted. The member `with` takes its place; if it is a voter already, the
/// old one is only removed. Returns `None` if that is so already.
pub(super) fn replace(
    view: &MembershipView<'_>,
    old: u64,
    with: Option<u64>,
) -> Result<Option<MembershipChange>, MemberError> {
    let node = view.node(old)?;
    if with == Some(old) {
        return Err(MemberError::Itself { node_id: old });
    }
    if !view.is_voter(old) {
        return Err(MemberError::NotVoter { node_id: old });
    }

    if let Some(new) = with {
        view.node(new)?;
        if view.is_voter(new) {
            return remove(view, old).map(Some);
        }
    }

    if node.is_leaving {
        return Ok(None);
    }

    // A leader that is replaced hands its leadership over first: the only voter could not.
    if view.voters().len() == 1 {
        return Err(MemberError::LastVoter { node_id: old });
    }

    view.nobody_leaves()?;
    view.settled()?;
    // A learner that is on its way already may be the one that takes the place.
    view.no_candidate_but(with.or_else(|| view.candidates().next()))?;

    let mut nodes = vec![(old, MemberNode { is_leaving: true, ..node.clone() })];
    if let Some(new) = with {
        nodes.push((new, MemberNode { stays_learner: false, ..view.node(new)?.clone() }));
    }
    Ok(Some(MembershipChange::SetNodes(nodes.into_iter().collect())))
}

/// A voter is not to be replaced after all. Returns `None` if it was not to be.
pub(super) fn keep(view: &MembershipView<'_>, old: u64) -> Result<Option<MembershipChange>, MemberError> {
    let node = view.node(old)?;
    if !node.is_leaving {
        return Ok(None);
    }
    view.settled()?;
    Ok(Some(MembershipChange::SetNodes([(old, MemberNode { is_leaving: false, ..node.clone() })].into())))
}

/// A member leaves for good.
pub(super) fn remove(view: &MembershipView<'_>, node_id: u64) -> Result<MembershipChange, MemberError> {
    view.node(node_id)?;
    view.settled()?;

    // No quorum has learners in it, so none can be lost with one.
    if !view.is_voter(node_id) {
        return Ok(MembershipChange::RemoveNodes([node_id].into()));
    }

    view.no_candidate_but(None)?;
    let rest: Vec<u64> = view.voters().into_iter().filter(|voter| *voter != node_id).collect();
    if rest.is_empty() {
        return Err(MemberError::LastVoter { node_id });
    }

    // As the only voter, the one that is being replaced could not hand its leadership over.
    if view.leaving().is_some_and(|leaving| rest == [leaving]) {
        view.nobody_leaves()?;
    }

    view.serves(&rest)?;
    Ok(MembershipChange::RemoveVoters([node_id].into()))
}

/// The next step that the leader takes by itself.
#[derive(Debug)]
pub(super) enum MemberStep {
    /// Nothing is under way.
    None,
    /// Ends the exchange of voters that this or an earlier leader began.
    EndExchange,
    /// Once this learner has caught up: it becomes a voter, instead of the other one if there is one.
    Promote { learner: u64, instead_of: Option<u64> },
}

pub(super) fn next_step(view: &MembershipView<'_>) -> MemberStep {
    if view.settled().is_err() {
        return MemberStep::EndExchange;
    }
    match view.candidates().next() {
        Some(learner) => MemberStep::Promote { learner, instead_of: view.leaving().filter(|old| view.is_voter(*old)) },
        None => MemberStep::None,
    }
}

/// A learner that has caught up becomes a voter.
pub(super) fn promotion(
    view: &MembershipView<'_>,
    learner: u64,
    instead_of: Option<u64>,
) -> Result<MembershipChange, MemberError> {
    let voters: Vec<u64> =
        view.voters().into_iter().filter(|voter| Some(*voter) != instead_of).chain([learner]).collect();
    // Check again: minutes have passed since the learner was added, and a voter may have fallen silent.
    view.serves(&voters)?;

    Ok(match instead_of {
        None => MembershipChange::AddVoterIds([learner].into()),
        // One joint change (§4.3 of Ongaro's thesis). Between two single ones there would be one voter more, and no failure more would be
        // tolerated.
        Some(old) => MembershipChange::Batch(vec![
            MembershipChange::AddVoterIds([learner].into()),
            MembershipChange::RemoveVoters([old].into()),
        ]),
    })
}

/// Ends an exchange of voters.
pub(super) fn end_of_exchange() -> MembershipChange {
    MembershipChange::AddVoterIds(Default::default())
}
