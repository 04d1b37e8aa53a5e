//! Nodes of the lost cluster that come back after a recovery, on their old data and at their old addresses.
//!
//! The documentation forbids to start them (`cluster-configs/disaster.md`, "A lost majority"); in half of the recoveries an operator does
//! it all the same. Each of them looks for a former member at the address of the node that went on. What holds then:
//!
//! * none of them joins the new cluster, or is named among its members: each call between nodes, and each request that a node passes on,
//!   names its cluster, and a node of another cluster refuses it;
//! * without a majority of the old members they commit nothing, and answer no write and no linearizable read. Mostly as few of them come
//!   back as would be a majority with the node that went on, if that voted for them or took their entries;
//! * tokens, revisions and indices of the old cluster are below those that the new one begins with;
//! * meanwhile the new cluster takes in its new members and serves, as without them.
//!
//! **Not promised, and not judged:** a majority of the old members that comes back elects a leader of the old cluster. It serves whoever
//! reaches it, and grants locks that the new cluster grants to others: clients do not tell clusters apart. Only resources that check tokens
//! refuse these grants. So all clients are cut off from the old nodes here, and only the director asks them. Nor is it promised for ever
//! that the tokens of the old cluster stay below: it counts on from the moment at which it was made itself, and would reach those of the
//! new one only with 4,096 writes for each millisecond between the two. Whether the new cluster elects another leader meanwhile is not
//! judged either, since it may do so without them.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use lockkeeper::machine::Key;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tokio::time::{Instant, sleep};

use super::{BOUND, CLUSTER_ID, PAUSE, RecoveredCluster};
use crate::{
    changes::{channel, leads, status},
    director::DIRECTOR,
    faults::{Order, World},
    network::{self, node_host},
};

/// Nodes of the lost cluster that run again.
pub(super) struct ReturnedNodes {
    /// By id, the last entry that each can have as it comes back: of its log, or in a snapshot of what a node has applied.
    ends: BTreeMap<u64, u64>,
    /// They are a majority of the old members.
    is_majority: bool,
}

impl World {
    /// In half of the recoveries, starts some of these members of the lost cluster again.
    pub(super) fn return_old_nodes(&self, members: &[u64], recovered: &RecoveredCluster) -> Option<ReturnedNodes> {
        // Its own generator: what else a seed draws stays as it was.
        let mut random = StdRng::seed_from_u64(self.plan.seed ^ 0x01d0);
        let is_drawn = random.random_bool(0.5);
        let is_short = random.random_bool(0.7);
        let others = members.iter().copied().filter(|node| *node != recovered.node && self.site(*node).is_member());
        let mut nodes: Vec<u64> = others.collect();
        nodes.shuffle(&mut random);

        let quorum = members.len() / 2 + 1;
        if is_short {
            nodes.truncate(quorum - 1);
        }
        if !is_drawn || nodes.is_empty() {
            return None;
        }

        let hosts: Vec<String> = nodes.iter().copied().map(node_host).collect();
        self.between(&hosts, &self.nodes(), Order::Mend);
        self.between(&hosts, &self.clients(), Order::Cut);
        self.between(&hosts, &[DIRECTOR.to_owned()], Order::Cut);

        let end = |node: &u64| {
            let site = self.site(*node);
            let logged = site.disk().last_index().unwrap_or_default();
            (*node, logged.max(site.last_applied()))
        };
        let ends = nodes.iter().map(end).collect();
        hosts.into_iter().for_each(|host| self.order(Order::Start(host)));
        Some(ReturnedNodes { ends, is_majority: nodes.len() >= quorum })
    }

    /// Fails if the old nodes did what they must not, and ends them.
    pub(super) async fn judge_returned(
        &self,
        returned: &ReturnedNodes,
        recovered: &RecoveredCluster,
    ) -> Result<(), String> {
        let hosts: Vec<String> = returned.ends.keys().copied().map(node_host).collect();
        self.between(&hosts, &[DIRECTOR.to_owned()], Order::Mend);
        // The simulation executes the orders in its next step.
        sleep(PAUSE).await;

        let by = Instant::now() + BOUND;
        self.ensure_members(by).await?;
        self.ensure_none_serves(returned, recovered).await?;
        for (node, end) in &returned.ends {
            self.ensure_apart(*node, *end, returned.is_majority, recovered).await?;
        }

        hosts.into_iter().for_each(|host| self.order(Order::Crash(host)));
        Ok(())
    }

    /// Fails unless the members of the new cluster are those that came into it.
    async fn ensure_members(&self, by: Instant) -> Result<(), String> {
        let members: BTreeSet<u64> = self.members.iter().copied().collect();
        loop {
            for node in &self.members {
                let Some(said) = status(&channel(*node)).await.filter(leads) else { continue };
                let named: BTreeSet<u64> = said.members.iter().map(|member| member.node_id).collect();
                if named == members && said.cluster_id == CLUSTER_ID {
                    return Ok(());
                }
                let id = said.cluster_id;
                return Err(format!("beside old nodes, {id:?} has the members {named:?} in the place of {members:?}"));
            }

            if Instant::now() >= by {
                return Err("beside old nodes, the cluster that was recovered has no leader".to_owned());
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks the old nodes once for a write and a read. They may answer if they are a majority, and only by what their own cluster has.
    async fn ensure_none_serves(&self, returned: &ReturnedNodes, recovered: &RecoveredCluster) -> Result<(), String> {
        let nodes: Vec<u64> = returned.ends.keys().copied().collect();
        let address = |seat: u64| network::peer_address(nodes[seat as usize % nodes.len()]);
        let key = Key::new(b"recovered/old").expect("it is short");
        let once = Instant::now();
        let written = self.put(&address, (&key, "old"), Vec::new(), once).await.ok().map(|put| put.revision);
        let read = self.find(&address, slice::from_ref(&key), once).await.ok().map(|found| found.revision);

        let last = recovered.last_token.0;
        for (what, revision) in [("a write", written), ("a linearizable read", read)] {
            let Some(revision) = revision else { continue };
            if !returned.is_majority {
                return Err(format!("without a majority, old nodes {nodes:?} answered {what} at revision {revision}"));
            }
            if revision > last {
                return Err(format!("old nodes {nodes:?} answered {what} at revision {revision}, above {last}"));
            }
            self.site(recovered.node).count_recovered("answers of old majorities");
        }
        Ok(())
    }

    /// Fails if an old node has joined the new cluster, or goes on in the old one without a majority.
    async fn ensure_apart(
        &self,
        node: u64,
        end: u64,
        is_majority: bool,
        recovered: &RecoveredCluster,
    ) -> Result<(), String> {
        let by = Instant::now() + BOUND;
        let RecoveredCluster { lost_id, begins_after, last_token, .. } = recovered;
        let channel = channel(node);
        let said = loop {
            match status(&channel).await {
                Some(said) => break said,
                None if Instant::now() >= by => return Err(format!("old node {node} does not run")),
                None => sleep(PAUSE).await,
            }
        };

        let site = self.site(node);
        if said.cluster_id != *lost_id || site.disk().last_index() >= Some(*begins_after) {
            let id = said.cluster_id;
            return Err(format!("old node {node} came into the cluster that was recovered, as one of {id:?}"));
        }
        if said.last_token > last_token.0 {
            let last = said.last_token;
            return Err(format!(
                "old node {node} has token {last}, above {last_token:?}, where the new cluster begins"
            ));
        }
        if !is_majority && (leads(&said) || said.applied_index > end) {
            let applied = said.applied_index;
            return Err(format!("without a majority, old node {node} goes on from entry {end} to {applied}, or leads"));
        }

        site.count_recovered("old nodes that came back");
        Ok(())
    }
}
