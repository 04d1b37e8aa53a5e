//! The requests of `lockkeeper.v1.Cluster` that the leader executes.

use tonic::{Response, Status, transport::Channel};

use lockkeeper_config::check_reachable;
use lockkeeper_proto::v1::{self, cluster_client::ClusterClient};
use lockkeeper_raft::identity::Incarnation;

use super::{Encode, Forward, MESSAGE_BYTES_MAX, ReplyMessage};
use crate::api::{Error, requests::*};

impl Encode for AddMember {
    type Message = v1::AddMemberRequest;

    fn encode(self) -> Self::Message {
        let Self { node_id, client_address, peer_address, incarnation, stays_learner } = self;
        let incarnation = incarnation.map(|incarnation| incarnation.as_bytes().to_vec()).unwrap_or_default();
        v1::AddMemberRequest { node_id, client_address, peer_address, incarnation, stays_learner }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let v1::AddMemberRequest { node_id, client_address, peer_address, incarnation, stays_learner } = message;

        let incarnation = if incarnation.is_empty() {
            None
        } else {
            let incarnation = Incarnation::try_from(incarnation.as_ref());
            Some(incarnation.map_err(|why| Error::invalid("incarnation", why))?)
        };

        for (field, address) in [("client_address", &client_address), ("peer_address", &peer_address)] {
            check_reachable(address).map_err(|why| Error::invalid(field, why))?;
        }
        Ok(Self { node_id: member_id("node_id", node_id)?, client_address, peer_address, incarnation, stays_learner })
    }
}

impl Forward for AddMember {
    forwarded_by!(ClusterClient, add_member);
}

impl Encode for PromoteMember {
    type Message = v1::PromoteMemberRequest;

    fn encode(self) -> Self::Message {
        v1::PromoteMemberRequest { node_id: self.node_id }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { node_id: member_id("node_id", message.node_id)? })
    }
}

impl Forward for PromoteMember {
    forwarded_by!(ClusterClient, promote_member);
}

impl Encode for RemoveMember {
    type Message = v1::RemoveMemberRequest;

    fn encode(self) -> Self::Message {
        v1::RemoveMemberRequest { node_id: self.node_id }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { node_id: member_id("node_id", message.node_id)? })
    }
}

impl Forward for RemoveMember {
    forwarded_by!(ClusterClient, remove_member);
}

impl Encode for ReplaceMember {
    type Message = v1::ReplaceMemberRequest;

    fn encode(self) -> Self::Message {
        let Self { node_id, with, keep } = self;
        v1::ReplaceMemberRequest { node_id, with_node_id: with.unwrap_or_default(), keep }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let v1::ReplaceMemberRequest { node_id, with_node_id, keep } = message;
        if keep && with_node_id != 0 {
            return Err(Error::invalid(
                "with_node_id",
                "is set, and so is `keep`: name a new node, or keep the old one",
            ));
        }
        Ok(Self { node_id: member_id("node_id", node_id)?, with: (with_node_id != 0).then_some(with_node_id), keep })
    }
}

impl Forward for ReplaceMember {
    forwarded_by!(ClusterClient, replace_member);
}

impl Encode for MembersChanged {
    type Message = v1::MembershipResponse;

    fn encode(self) -> Self::Message {
        v1::MembershipResponse {}
    }

    fn decode(_: Self::Message) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl Encode for TransferLeader {
    type Message = v1::TransferLeaderRequest;

    fn encode(self) -> Self::Message {
        v1::TransferLeaderRequest { to_node_id: self.to.unwrap_or_default() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { to: (message.to_node_id != 0).then_some(message.to_node_id) })
    }
}

impl Encode for LeaderTransferred {
    type Message = v1::TransferLeaderResponse;

    fn encode(self) -> Self::Message {
        v1::TransferLeaderResponse { leader_id: self.leader_id }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { leader_id: member_id("leader_id", message.leader_id)? })
    }
}

impl Forward for TransferLeader {
    forwarded_by!(ClusterClient, transfer_leader);
}

fn member_id(field: &str, node_id: u64) -> Result<u64, Error> {
    match node_id {
        0 => Err(Error::invalid(field, "is 0: ids start at 1")),
        node_id => Ok(node_id),
    }
}
