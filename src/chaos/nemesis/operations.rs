//! The acts of operators while the cluster serves: hand the leadership over, add, remove and replace nodes.
//!
//! An operation is a fault that takes its time. [`World::begin`] asks for it, other faults may strike meanwhile, and [`World::settle`]
//! waits, after their end, until it has taken effect. An operation that does not take effect is an error of the run. The requests are
//! repeated until they are answered, as an operator does.
//!
//! A new node gets an id and addresses that were set aside at the start of the run, so that all traffic to and from it goes through links
//! of its own ([`Links::with_spares`](crate::links::Links::with_spares)). The one exception is the leader's first question to it,
//! which goes to the address that the node announces.

use std::{collections::BTreeSet, io, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep, timeout_at};

use lockkeeper_client::Error;
use lockkeeper_local::{EXIT_REMOVED, LocalError, LocalNode};

use super::{Fault, aim::Aim, inject::World, roster::OpenOperation};
use crate::{history::Fact, parties::observe::Observations, parties::operator::RunOperator, workload};

/// Time limit of an operation after the other faults are over.
const SETTLE_BOUND: Duration = Duration::from_secs(30);
/// Time for which an operator repeats a request: through all faults, and after them.
const ASK_BOUND: Duration = Duration::from_secs(60);
/// Pause between two requests, and between two looks.
const PAUSE: Duration = Duration::from_millis(150);
/// Number of transfers of one fault.
const TRANSFERS: std::ops::RangeInclusive<u32> = 2..=4;
const BETWEEN_TRANSFERS_MS: std::ops::Range<u64> = 200..900;
/// Maximum number of nodes above the initial number.
const GROWTH_MAX: usize = 2;

impl World {
    /// Returns the operation that must come first, because there are too few or too many nodes for this one.
    pub(crate) fn first(&self, fault: Fault) -> Option<Fault> {
        first(fault, self.cluster.nodes().count(), self.roster.initial)
    }

    /// Begins an operation. Returns `false` if no id is left for a new node.
    pub(super) async fn begin(&mut self, fault: Fault, aim: &Aim) -> io::Result<bool> {
        let needs_node = matches!(fault, Fault::Add | Fault::Replace);
        let spare = if needs_node { self.roster.spares.pop() } else { None };
        if needs_node && spare.is_none() {
            return Ok(false);
        }

        let joins = spare.as_ref().map(|spare| spare.node_id);
        let leaves = aim.nodes.first().copied().filter(|_| matches!(fault, Fault::Remove | Fault::Replace));
        let nodes = leaves.into_iter().chain(joins).collect();
        self.recorder.fact(Fact::Fault { name: fault.name().to_owned(), nodes, silent: Vec::new() });

        if let (Fault::Replace, Some(old)) = (fault, leaves) {
            self.lose_machine(old).await?;
        }

        let operator = self.operator.clone();
        let seen = self.observer.observations();
        let request = match (fault, leaves) {
            (Fault::Transfer, _) => Some(tokio::spawn(operator.transfer(seen, self.random.random()))),
            (Fault::Remove, Some(node)) => Some(tokio::spawn(operator.remove(node, seen))),
            (Fault::Replace, Some(node)) => Some(tokio::spawn(operator.replace(node))),
            _ => None,
        };

        let mut operation = OpenOperation { fault, request, starts: spare, joins, leaves };
        if fault == Fault::Add {
            self.start_new(&mut operation)?;
        } else if fault == Fault::Replace && self.random.random() {
            // Faults from now on strike while the new node joins, otherwise while the cluster is asked.
            let ended = self.asked(&mut operation, Instant::now() + SETTLE_BOUND).await;
            ended.map_err(io::Error::other)?;
            self.start_new(&mut operation)?;
        }

        self.operation = Some(operation);
        Ok(true)
    }

    /// Destroys the node's machine, with all its data. Its log stays for people.
    async fn lose_machine(&mut self, node: u64) -> io::Result<()> {
        let data = self.cluster.node(node).config().data_dir.clone();
        self.kill(node).await;
        self.forget(node).await;
        std::fs::remove_dir_all(data)
    }

    async fn forget(&mut self, node: u64) {
        self.observer.forget(node);
        self.operator.nodes.remove(node);
        self.cluster.forget(node).await;
        // Clients that start from now on do not try the node. Those that run have to find the others by themselves.
        self.clients.set_endpoints(self.client_addresses().join(","));
    }

    /// The addresses at which clients reach the present nodes.
    fn client_addresses(&self) -> Vec<String> {
        self.cluster.nodes().map(|node| self.links.client_address(node.id())).collect()
    }

    /// Starts the new node. It asks the cluster to be added.
    fn start_new(&mut self, operation: &mut OpenOperation) -> io::Result<()> {
        let Some(member) = operation.starts.take() else { return Ok(()) };
        let id = member.node_id;

        let join = self.client_addresses();
        let members = self.roster.all.iter().map(|to| self.links.member(id, to)).collect();
        self.links.release(id);

        self.cluster.add_at(&member, members, join).map_err(io::Error::other)?;
        self.tools.fake_clock(&mut self.cluster, id)?;
        self.start_node(id)?;

        self.observer.add(self.cluster.node(id));
        let address = self.links.client_address(id);
        self.operator.nodes.insert(id, self.dial.channel(&address, workload::ATTEMPT_LIMIT));
        self.clients.set_endpoints(self.client_addresses().join(","));
        Ok(())
    }

    async fn asked(&self, operation: &mut OpenOperation, by: Instant) -> Result<(), String> {
        let Some(mut request) = operation.request.take() else { return Ok(()) };
        match timeout_at(by, &mut request).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                request.abort();
                Err(format!("the cluster did not do it within {} s", SETTLE_BOUND.as_secs()))
            }
        }
    }

    /// Waits until the operation in flight has taken effect. Call it when all other faults are over.
    pub(crate) async fn settle(&mut self) -> Result<(), String> {
        let Some(mut operation) = self.operation.take() else { return Ok(()) };
        let by = Instant::now() + SETTLE_BOUND;
        self.asked(&mut operation, by).await?;

        self.start_new(&mut operation).map_err(|error| error.to_string())?;
        if operation.joins.or(operation.leaves).is_some() {
            self.has_members(operation.leaves, by).await?;
        }

        if let Some(node) = operation.joins {
            self.recorder.fact(Fact::Joined { node });
        }
        if let Some(node) = operation.leaves {
            if operation.fault == Fault::Remove {
                self.ends_by_itself(node, by).await?;
                self.forget(node).await;
            }
            self.recorder.fact(Fact::Removed { node });
        }
        Ok(())
    }

    /// Waits until all nodes but this one are voters, and no other node is a member.
    async fn has_members(&mut self, leaves: Option<u64>, by: Instant) -> Result<(), String> {
        let expected: BTreeSet<u64> =
            self.cluster.nodes().map(LocalNode::id).filter(|id| Some(*id) != leaves).collect();
        let seen = self.observer.observations();
        loop {
            let members = seen.members();
            if members.as_ref().is_some_and(|(voters, all)| *voters == expected && *all == expected) {
                return Ok(());
            }

            if Instant::now() >= by {
                let bound = SETTLE_BOUND.as_secs();
                return Err(format!(
                    "within {bound} s the voters were not {expected:?} alone, but (voters, members) {members:?}"
                ));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until the process of a node that was removed ends, as it must.
    async fn ends_by_itself(&mut self, node: u64, by: Instant) -> Result<(), String> {
        loop {
            match self.cluster.node_mut(node).has_died() {
                Some(LocalError::Died { status, .. }) if status.code() == Some(EXIT_REMOVED.into()) => return Ok(()),
                Some(error) => {
                    return Err(format!(
                        "node {node} was removed, but it ended in another way than it should: {error}"
                    ));
                }
                None if Instant::now() >= by => {
                    let log = self.cluster.node(node).log_tail();
                    return Err(format!(
                        "node {node} was removed, but it did not end by itself; its log ends with:\n{log}"
                    ));
                }
                None => sleep(PAUSE).await,
            }
        }
    }
}

/// Decides [`World::first`] by the numbers of nodes.
fn first(fault: Fault, nodes: usize, initial: usize) -> Option<Fault> {
    let is_full = nodes >= initial + GROWTH_MAX;
    if fault == Fault::Add && is_full {
        return Some(Fault::Remove);
    }
    (fault == Fault::Remove && nodes <= initial).then_some(Fault::Add)
}

impl RunOperator {
    /// Hands the leadership to random voters, several times.
    async fn transfer(self, seen: Observations, seed: u64) -> Result<(), String> {
        let mut random = StdRng::seed_from_u64(seed);
        let by = Instant::now() + ASK_BOUND;
        for _ in 0..random.random_range(TRANSFERS) {
            self.transfer_once(&seen, &mut random, by).await?;
            sleep(Duration::from_millis(random.random_range(BETWEEN_TRANSFERS_MS))).await;
        }
        Ok(())
    }

    async fn transfer_once(&self, seen: &Observations, random: &mut StdRng, by: Instant) -> Result<(), String> {
        let mut problem = "there is no leader".to_owned();
        while Instant::now() < by {
            let leader = seen.leader();
            let voters = seen.members().map(|(voters, _)| voters).unwrap_or_default();
            let others: Vec<u64> = voters.into_iter().filter(|voter| Some(*voter) != leader).collect();

            if let Some(to) = others.choose(random) {
                match self.client.transfer_leader(Some(*to)).await {
                    Ok(node) if node == *to => {
                        self.recorder.fact(Fact::Transferred { node });
                        return Ok(());
                    }
                    Ok(other) => problem = format!("node {to} was to lead, and node {other} does"),
                    Err(error) => problem = error.to_string(),
                }
            }

            sleep(PAUSE).await;
        }
        Err(format!("the leadership could not be handed over; at last: {problem}"))
    }

    async fn remove(self, node: u64, seen: Observations) -> Result<(), String> {
        // The answer to an earlier request may have been lost.
        let is_gone = || seen.members().is_some_and(|(_, all)| !all.contains(&node));
        let by = Instant::now() + ASK_BOUND;
        loop {
            let answer = self.client.remove_member(node).await;
            if answer.is_ok() || is_gone() {
                return Ok(());
            }
            wait_to_repeat(answer, by).await?;
        }
    }

    async fn replace(self, node: u64) -> Result<(), String> {
        let by = Instant::now() + ASK_BOUND;
        loop {
            match self.client.replace_member(node, None).await {
                Ok(()) => return Ok(()),
                refused => wait_to_repeat(refused, by).await?,
            }
        }
    }
}

/// Fails once a request was repeated for long enough.
async fn wait_to_repeat(last: Result<(), Error>, by: Instant) -> Result<(), String> {
    match last {
        Err(error) if Instant::now() >= by => Err(error.to_string()),
        Ok(()) | Err(_) => {
            sleep(PAUSE).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_nodes_stays_between_the_initial_one_and_two_more() {
        for initial in [3, 5] {
            for fault in [Fault::Add, Fault::Remove, Fault::Replace, Fault::Transfer] {
                for nodes in initial..=initial + GROWTH_MAX {
                    let change = |fault| i32::from(fault == Fault::Add) - i32::from(fault == Fault::Remove);
                    let mut count = nodes as i32;
                    for step in first(fault, nodes, initial).into_iter().chain([fault]) {
                        count += change(step);
                        assert!(
                            (initial as i32..=(initial + GROWTH_MAX) as i32).contains(&count),
                            "{fault} of {nodes}"
                        );
                    }
                }
            }
        }
        assert_eq!(first(Fault::Remove, 4, 3), None);
        assert_eq!(first(Fault::Add, 4, 3), None);
    }
}
