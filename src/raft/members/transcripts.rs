//! Changes of the membership as transcripts: `tests/consensus/members`.
//!
//! ```text
//! cluster voters="1,2,3" [then="1,2,4"] [learners=5] [removed=9]: the members; `then`: the voters are being exchanged for these
//! silent [ID ...]: the members that do not answer; all others do
//! add ID [stays] [directory=ID] [peers=ADDRESS] [clients=ADDRESS]: a node asks to join, or a member has other addresses
//! promote ID                 a learner that stays one is to become a voter
//! replace ID [with=ID]       a voter is to leave, once another one takes its place
//! keep ID                    it is not to leave after all
//! remove ID                  a member leaves for good
//! step                       what the leader does next by itself; `step caught_up`: the learner has caught up, so it is done
//! ```
//!
//! Each change that is allowed is carried out, without the joint membership in between, and the members are shown.

use std::collections::{BTreeMap, BTreeSet};

use goldenscript::{ArgumentConsumer, Command, Context};

use super::{
    Candidate, MemberError,
    rules::{self, CandidateAdmission, MemberStep, MembershipChange, MembershipView},
};
use crate::{
    identity::Incarnation,
    transcripts::{Output, ids, key, list, number, run_each},
    types::Membership,
};
use lockkeeper_table::MemberNode;

#[test]
fn transcripts() {
    run_each::<Cluster>("members", 8);
}

#[derive(Default)]
struct Cluster {
    membership: Membership,
    silent: BTreeSet<u64>,
    /// The ids of former members.
    removed: BTreeSet<u64>,
}

impl goldenscript::Runner for Cluster {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Output {
        let mut arguments = command.consume_args();
        let output = self.decide(&command.name, &mut arguments)?;
        arguments.reject_next()?;
        Ok(output + "\n")
    }
}

impl Cluster {
    fn decide(&mut self, name: &str, arguments: &mut ArgumentConsumer<'_>) -> Output {
        match name {
            "cluster" => self.begin(arguments),
            "silent" => {
                self.silent.clear();
                while let Some(id) = arguments.next_pos() {
                    self.silent.insert(id.parse()?);
                }
                Ok(format!("silent: {}", list(&self.silent)))
            }
            "step" => {
                let has_caught_up = arguments.next_pos() == Some("caught_up");
                Ok(self.step(has_caught_up))
            }
            "add" => {
                let candidate = candidate(arguments)?;
                let admission = self.judge(|view| rules::add(view, &candidate));
                Ok(match admission {
                    Ok(CandidateAdmission::IsMember) => "it is a member already".to_owned(),
                    Ok(CandidateAdmission::Change(change)) => self.change(change),
                    Err(error) => refused(&error),
                })
            }
            "replace" => {
                let old = number(arguments, "node")?;
                let with = key(arguments, "with")?;
                let change = self.judge(|view| rules::replace(view, old, with));
                Ok(self.conclude(change))
            }
            "promote" | "keep" | "remove" => {
                let node_id = number(arguments, "node")?;
                let change = self.judge(|view| match name {
                    "promote" => rules::promote(view, node_id),
                    "keep" => rules::keep(view, node_id),
                    _ => rules::remove(view, node_id).map(Some),
                });
                Ok(self.conclude(change))
            }
            other => Err(format!("no such command: {other}").into()),
        }
    }

    fn begin(&mut self, arguments: &mut ArgumentConsumer<'_>) -> Output {
        let voters = ids(arguments, "voters")?;
        let then = ids(arguments, "then")?;
        let learners = ids(arguments, "learners")?;
        self.removed = ids(arguments, "removed")?;

        let nodes: BTreeMap<u64, MemberNode> =
            voters.iter().chain(&then).chain(&learners).map(|id| (*id, node(*id))).collect();
        let configs = [voters, then].into_iter().filter(|voters| !voters.is_empty()).collect();
        self.membership = Membership::new(configs, nodes)?;
        Ok(self.show())
    }

    fn judge<T>(&self, judge: impl FnOnce(&MembershipView<'_>) -> T) -> T {
        let is_alive = |id| !self.silent.contains(&id);
        let was_removed = |id| self.removed.contains(&id);
        judge(&MembershipView { membership: &self.membership, is_alive: &is_alive, was_removed: &was_removed })
    }

    fn step(&mut self, has_caught_up: bool) -> String {
        let step = self.judge(rules::next_step);
        match step {
            MemberStep::None => "nothing is under way".to_owned(),
            MemberStep::EndExchange => self.change(rules::end_of_exchange()),
            MemberStep::Promote { learner, instead_of } if has_caught_up => {
                let change = self.judge(|view| rules::promotion(view, learner, instead_of));
                self.conclude(change.map(Some))
            }
            MemberStep::Promote { learner, instead_of: None } => {
                format!("node {learner} becomes a voter once it has caught up")
            }
            MemberStep::Promote { learner, instead_of: Some(old) } => {
                format!("node {learner} takes the place of node {old} once it has caught up")
            }
        }
    }

    fn conclude(&mut self, change: Result<Option<MembershipChange>, MemberError>) -> String {
        match change {
            Ok(Some(change)) => self.change(change),
            Ok(None) => "that is so already".to_owned(),
            Err(error) => refused(&error),
        }
    }

    /// Carries a change out, as openraft does.
    fn change(&mut self, change: MembershipChange) -> String {
        let before = self.membership.clone();
        let mut voters = before.get_joint_config().last().cloned().unwrap_or_default();
        let mut nodes: BTreeMap<u64, MemberNode> = before.nodes().map(|(id, node)| (*id, node.clone())).collect();
        // Voters that are exchanged for others leave with their voters' set.
        nodes.retain(|id, _| voters.contains(id) || before.voter_ids().all(|voter| voter != *id));

        let changes = if let MembershipChange::Batch(changes) = change { changes } else { vec![change] };
        for change in changes {
            match change {
                MembershipChange::AddVoterIds(ids) => voters.extend(ids),
                MembershipChange::RemoveVoters(ids) => {
                    voters.retain(|id| !ids.contains(id));
                    nodes.retain(|id, _| !ids.contains(id));
                }
                MembershipChange::SetNodes(new) => nodes.extend(new),
                MembershipChange::AddNodes(new) => {
                    new.into_iter().for_each(|(id, node)| _ = nodes.entry(id).or_insert(node))
                }
                MembershipChange::RemoveNodes(ids) => nodes.retain(|id, _| !ids.contains(id)),
                MembershipChange::AddVoters(_)
                | MembershipChange::ReplaceAllVoters(_)
                | MembershipChange::ReplaceAllNodes(_)
                | MembershipChange::Batch(_) => {
                    panic!("the rules make no such change")
                }
            }
        }

        self.removed.extend(before.nodes().map(|(id, _)| *id).filter(|id| !nodes.contains_key(id)));
        self.membership = Membership::new(vec![voters], nodes).expect("all voters are nodes");
        self.show()
    }

    fn show(&self) -> String {
        let sets: Vec<String> = self.membership.get_joint_config().iter().map(list).collect();
        let mut lines = vec![format!("voters {}", sets.join(", then "))];
        for (id, node) in self.membership.nodes() {
            let mut notes = Vec::new();
            if self.membership.voter_ids().all(|voter| voter != *id) {
                notes.push(if node.stays_learner { "learner that stays one".to_owned() } else { "learner".to_owned() });
            }
            if node.is_leaving {
                notes.push("leaves when another takes its place".to_owned());
            }
            if node.has_moved || node.client_address != format!("n{id}:1") {
                let place = if node.has_moved { "has moved" } else { "clients reach it elsewhere" };
                notes.push(format!("{place}: peers {}, clients {}", node.peer_address, node.client_address));
            }
            if !notes.is_empty() {
                lines.push(format!("  node {id}: {}", notes.join("; ")));
            }
        }
        lines.join("\n")
    }
}

fn refused(error: &MemberError) -> String {
    format!("refused: {error}")
}

/// The incarnation of the data directory that a node with this id has at first.
fn incarnation(id: u64) -> Incarnation {
    Incarnation::try_from([id as u8; 16].as_slice()).expect("16 bytes")
}

fn node(id: u64) -> MemberNode {
    MemberNode {
        incarnation: Some(incarnation(id)),
        peer_address: format!("n{id}:2"),
        client_address: format!("n{id}:1"),
        ..MemberNode::default()
    }
}

fn candidate(arguments: &mut ArgumentConsumer<'_>) -> Output<Candidate> {
    let node_id = number(arguments, "node")?;
    let usual = node(node_id);
    Ok(Candidate {
        node_id,
        incarnation: incarnation(key(arguments, "directory")?.unwrap_or(node_id)),
        peer_address: key(arguments, "peers")?.unwrap_or(usual.peer_address),
        client_address: key(arguments, "clients")?.unwrap_or(usual.client_address),
        stays_learner: arguments.next_pos() == Some("stays"),
    })
}
