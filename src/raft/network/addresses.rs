//! Where the members are reached.
//!
//! There are two sources. The *configuration* of this node names the founders, and may name other addresses for them than they have given
//! themselves: after a move of the whole cluster, or behind address translation. The *log* names every member; a member that restarts with
//! other addresses has them written there ([`MemberNode::has_moved`](lockkeeper_table::MemberNode::has_moved)).
//!
//! The configuration decides, unless the member has moved. One that has is looked for where the log says; when that address does not
//! answer, or another node answers there, where the configuration says, and so on in turn: all of them may have moved together since. An
//! address does not prove an identity: every call names the incarnation that it is for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use openraft::async_runtime::WatchReceiver;

use crate::Raft;
use lockkeeper_table::MemberNode;

/// The addresses of all members, as this node knows them. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    configured: Arc<BTreeMap<u64, MemberNode>>,
    known: Arc<RwLock<KnownAddresses>>,
}

#[derive(Debug, Default)]
struct KnownAddresses {
    in_log: BTreeMap<u64, MemberNode>,
    /// Members that have moved, and are looked for where the configuration says at present.
    uses_configured: BTreeSet<u64>,
}

impl Addresses {
    /// Makes the addresses with the members that the configuration names.
    pub fn new(configured: BTreeMap<u64, MemberNode>) -> Self {
        Self { configured: Arc::new(configured), known: Arc::default() }
    }

    /// Follows the log's membership until Raft stops.
    pub async fn follow(self, raft: Raft) {
        let mut metrics = raft.server_metrics();
        loop {
            let members: BTreeMap<u64, MemberNode> = {
                let metrics = metrics.borrow_watched();
                let members = metrics.membership_config.membership();
                members.nodes().map(|(id, node)| (*id, node.clone())).collect()
            };
            self.replace(members);
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    fn replace(&self, members: BTreeMap<u64, MemberNode>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let KnownAddresses { in_log, uses_configured } = &mut *known;
        uses_configured.retain(|id| in_log.get(id) == members.get(id));
        *in_log = members;
    }

    /// Looks at the addresses of a member to use now; `in_log` is the member as the caller found it in the log. Only the addresses of what
    /// `look` sees are of use.
    pub fn look<T>(&self, node_id: u64, in_log: &MemberNode, look: impl FnOnce(&MemberNode) -> T) -> T {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let in_log = known.in_log.get(&node_id).unwrap_or(in_log);
        let Some(configured) = self.configured.get(&node_id) else { return look(in_log) };
        look(if in_log.has_moved && !known.uses_configured.contains(&node_id) { in_log } else { configured })
    }

    /// The peer address of a member to use now.
    pub fn peer_address(&self, node_id: u64, in_log: &MemberNode) -> String {
        self.look(node_id, in_log, |node| node.peer_address.clone())
    }

    /// A call to this peer address of a member did not reach the member: the other one is used next, if there is another.
    pub fn failed(&self, node_id: u64, in_log: &MemberNode, peer_address: &str) {
        if self.look(node_id, in_log, |node| node.peer_address == peer_address) {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if !known.uses_configured.remove(&node_id) {
                known.uses_configured.insert(node_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> MemberNode {
        MemberNode {
            peer_address: address.to_owned(),
            client_address: format!("{address}/clients"),
            ..MemberNode::default()
        }
    }

    #[test]
    fn the_configuration_decides_for_a_member_that_has_not_moved() {
        let addresses = Addresses::new(BTreeMap::from([(1, at("configured"))]));
        let in_log = at("log");
        assert_eq!(addresses.peer_address(1, &in_log), "configured");
        addresses.failed(1, &in_log, "configured");
        assert_eq!(addresses.look(1, &in_log, |node| node.client_address.clone()), "configured/clients");
    }

    #[test]
    fn a_member_that_moved_is_looked_for_where_it_says_and_then_where_the_configuration_says() {
        let addresses = Addresses::new(BTreeMap::from([(1, at("configured"))]));
        let moved = MemberNode { has_moved: true, ..at("moved") };
        assert_eq!(addresses.peer_address(1, &moved), "moved");
        addresses.failed(1, &moved, "moved");
        addresses.failed(1, &moved, "moved");
        assert_eq!(addresses.peer_address(1, &moved), "configured", "the second report is of an older call");
        addresses.replace(BTreeMap::from([(1, MemberNode { has_moved: true, ..at("moved again") })]));
        assert_eq!(addresses.peer_address(1, &moved), "moved again");
    }

    #[test]
    fn a_member_that_no_configuration_names_has_one_address() {
        let addresses = Addresses::default();
        addresses.failed(4, &at("log"), "log");
        assert_eq!(addresses.peer_address(4, &at("log")), "log");
    }
}
