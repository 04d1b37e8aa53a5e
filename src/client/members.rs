//! Operators' calls about the members of the cluster.

use super::{
    Client, Error,
    call::{RetryPolicy, with},
};
use lockkeeper_proto::v1::{self, cluster_client::ClusterClient};

/// A node that is to become a member, or a member with new addresses: [`Client::add_member`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMember {
    /// An id that no member has ever had, 1 or more.
    pub node_id: u64,
    /// Where clients reach it: host:port.
    pub client_address: String,
    /// Where its peers reach it: host:port.
    pub peer_address: String,
    /// It becomes a voter only by [`Client::promote_member`]. Other learners do as soon as they have caught up.
    pub stays_learner: bool,
}

impl Client {
    /// Adds a node to the cluster, as a learner, or gives a member new addresses. The node must run, without data of another cluster; the
    /// leader asks it who it is. A node that is started with `--join` does this by itself.
    ///
    /// Returns once the change is committed; the node catches up after that. Fails with [`Error::Refused`] if the change is not allowed
    /// now, and the text says why; and else as the calls of [`Client`] do. Safe to repeat. If the future is dropped before it completes,
    /// the request may have taken effect.
    pub async fn add_member(&self, member: &NewMember) -> Result<(), Error> {
        let NewMember { node_id, client_address, peer_address, stays_learner } = member.clone();
        let incarnation = Default::default();
        let request = v1::AddMemberRequest { node_id, client_address, peer_address, incarnation, stays_learner };
        let call = self.caller.call(self.caller.policy(), |node| with!(ClusterClient, node, add_member, request));
        call.await.map(drop)
    }

    /// Lets a learner that was added with `stays_learner` become a voter, once it has caught up. Fails and is repeated as
    /// [`add_member`](Self::add_member).
    pub async fn promote_member(&self, node_id: u64) -> Result<(), Error> {
        let request = v1::PromoteMemberRequest { node_id };
        let call = self.caller.call(self.caller.policy(), |node| with!(ClusterClient, node, promote_member, request));
        call.await.map(drop)
    }

    /// Removes a member for good: its id is never used again, and the node ends. Refused if the remaining voters that answer are no
    /// majority.
    ///
    /// Fails as [`add_member`](Self::add_member). It is not repeated once its outcome is unknown: a member that is gone already is an
    /// error. If the future is dropped before it completes, the request may have taken effect.
    pub async fn remove_member(&self, node_id: u64) -> Result<(), Error> {
        let request = v1::RemoveMemberRequest { node_id };
        let policy = self.caller.once_policy();
        self.caller.call(policy, |node| with!(ClusterClient, node, remove_member, request)).await.map(drop)
    }

    /// Marks a voter, such as one on a dead machine: the next learner that has caught up takes its place, in one change. If `with` names a
    /// member, that one does; if it is a voter already, the old one is only removed. Fails and is repeated as
    /// [`add_member`](Self::add_member).
    pub async fn replace_member(&self, node_id: u64, with: Option<u64>) -> Result<(), Error> {
        let request = v1::ReplaceMemberRequest { node_id, with_node_id: with.unwrap_or_default(), keep: false };
        let call = self.caller.call(self.caller.policy(), |node| with!(ClusterClient, node, replace_member, request));
        call.await.map(drop)
    }

    /// Takes the mark of [`replace_member`](Self::replace_member) back. Fails and is repeated as [`add_member`](Self::add_member).
    pub async fn keep_member(&self, node_id: u64) -> Result<(), Error> {
        let request = v1::ReplaceMemberRequest { node_id, with_node_id: 0, keep: true };
        let call = self.caller.call(self.caller.policy(), |node| with!(ClusterClient, node, replace_member, request));
        call.await.map(drop)
    }

    /// Hands the leadership to a voter that answers and is caught up: to this one, or to the one whose log is furthest. Returns the new
    /// leader.
    ///
    /// Fails with [`Error::Refused`] if that voter, or every other voter, cannot take over, and else as the calls of [`Client`] do. Once
    /// its outcome is unknown, it is repeated only with a node that is named: that one may lead already. If the future is dropped before
    /// it completes, the request may have taken effect.
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<u64, Error> {
        let request = v1::TransferLeaderRequest { to_node_id: to.unwrap_or_default() };
        let policy = RetryPolicy { repeat_unknown: to.is_some(), ..self.caller.once_policy() };
        let answer = self.caller.call(policy, |node| with!(ClusterClient, node, transfer_leader, request));
        Ok(answer.await?.leader_id)
    }
}
