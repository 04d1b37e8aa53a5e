//! Times at which the faults of a run left a quorum.
//!
//! There is a quorum while a majority of the nodes runs, is the target of no fault, and all its nodes reach each other in both directions.
//! The facts show this, and a doubt counts against a quorum: the targets of a fault count as down for as long as it lasts, and a fault that
//! names neither nodes nor pairs may concern all of them. If no node was started at all, there is a quorum while there is no fault.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::Fact;

/// The times with a quorum, disjoint and in order, each with its start and its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Contact {
    times: Vec<(u64, u64)>,
}

/// The nodes and the faults that concern them.
#[derive(Debug, Default)]
struct Nodes<'a> {
    /// Whether each runs.
    running: BTreeMap<u64, bool>,
    faults: BTreeMap<&'a str, FaultTargets<'a>>,
}

#[derive(Debug)]
struct FaultTargets<'a> {
    nodes: &'a [u64],
    silent: &'a [(u64, u64)],
}

impl Contact {
    pub(super) fn from_facts<'a>(facts: impl Iterator<Item = (u64, &'a Fact)>) -> Self {
        let mut nodes = Nodes::default();
        let mut contact = Self::default();
        let mut since = Some(0);

        for (time_ns, fact) in facts {
            nodes.note(fact);
            match (since, nodes.have_quorum()) {
                (Some(from), false) => {
                    contact.times.push((from, time_ns));
                    since = None;
                }
                (None, true) => since = Some(time_ns),
                (Some(_), true) | (None, false) => {}
            }
        }

        contact.times.extend(since.map(|from| (from, u64::MAX)));
        contact
    }

    /// The longest time between two moments during which there was a quorum without an interruption, by its start and its end.
    pub(super) fn longest(&self, from: u64, until: u64) -> Option<(u64, u64)> {
        let within = self.times.iter().map(|(begin, end)| (from.max(*begin), until.min(*end)));
        within.filter(|(begin, end)| begin < end).max_by_key(|(begin, end)| end - begin)
    }
}

impl<'a> Nodes<'a> {
    fn note(&mut self, fact: &'a Fact) {
        if let Fact::Started { node } = fact {
            self.running.insert(*node, true);
        } else if let Fact::Killed { node } | Fact::Stopped { node } = fact {
            self.running.insert(*node, false);
        } else if let Fact::Removed { node } = fact {
            self.running.remove(node);
        } else if let Fact::Fault { name, nodes, silent } = fact {
            self.faults.insert(name, FaultTargets { nodes, silent });
        } else if let Fact::Heal { name } = fact {
            self.faults.retain(|known, _| name.as_ref().is_some_and(|name| *known != name.as_str()));
        }
    }

    fn have_quorum(&self) -> bool {
        if self.running.is_empty() || self.faults.values().any(FaultTargets::is_unnamed) {
            return self.faults.is_empty();
        }
        let majority = self.running.len() / 2 + 1;
        let groups: Vec<_> = self.fit().map(|node| self.reached_from(node)).collect();
        // Nodes that all reach the same nodes reach each other.
        groups.iter().any(|group| {
            let alike = groups.iter().filter(|other| *other == group).count();
            group.len() >= majority && alike == group.len()
        })
    }

    /// The nodes that run and are not targets of a fault.
    fn fit(&self) -> impl Iterator<Item = u64> {
        let is_target = |node: u64| self.faults.values().any(|fault| fault.nodes.contains(&node));
        self.running.iter().filter(move |(node, runs)| **runs && !is_target(**node)).map(|(node, _)| *node)
    }

    /// The nodes that a node reaches in both directions, and itself.
    fn reached_from(&self, node: u64) -> BTreeSet<u64> {
        let is_silent = |from: u64, to: u64| self.faults.values().any(|fault| fault.silent.contains(&(from, to)));
        self.fit().filter(|other| !is_silent(node, *other) && !is_silent(*other, node)).collect()
    }
}

impl FaultTargets<'_> {
    fn is_unnamed(&self) -> bool {
        self.nodes.is_empty() && self.silent.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, nodes: &[u64], silent: &[(u64, u64)]) -> Fact {
        Fact::Fault { name: name.to_owned(), nodes: nodes.to_vec(), silent: silent.to_vec() }
    }

    fn heal(name: &str) -> Fact {
        Fact::Heal { name: Some(name.to_owned()) }
    }

    fn times(facts: &[(u64, Fact)]) -> Vec<(u64, u64)> {
        let started = [1, 2, 3].map(|node| (0, Fact::Started { node }));
        Contact::from_facts(started.iter().chain(facts).map(|(at, fact)| (*at, fact))).times
    }

    #[test]
    fn two_of_three_that_run_and_reach_each_other_are_a_quorum() {
        let killed = |at, node| (at, Fact::Killed { node });
        assert_eq!(times(&[killed(1, 1)]), [(0, u64::MAX)]);
        assert_eq!(times(&[killed(1, 1), killed(2, 2), (5, Fact::Started { node: 2 })]), [(0, 2), (5, u64::MAX)]);
        let cut = fault("partition", &[], &[(1, 2), (2, 1), (1, 3), (3, 1)]);
        assert_eq!(times(&[(1, cut.clone())]), [(0, u64::MAX)]);
        assert_eq!(times(&[(1, cut), killed(4, 3), (6, Fact::Heal { name: None })]), [(0, 4), (6, u64::MAX)]);
        let bridge = fault("bridge", &[], &[(1, 3), (3, 1)]);
        assert_eq!(times(&[(1, bridge), (6, heal("bridge"))]), [(0, 1), (6, u64::MAX)], "not all reach all");
    }

    #[test]
    fn targets_are_down_and_a_fault_that_names_nothing_may_concern_all() {
        let target = fault("slow-sync", &[2], &[]);
        assert_eq!(times(&[(1, target.clone()), (9, heal("slow-sync"))]), [(0, u64::MAX)]);
        let both = [(1, target), (3, fault("pause", &[3], &[])), (5, heal("pause"))];
        assert_eq!(times(&both), [(0, 3), (5, u64::MAX)]);
        assert_eq!(times(&[(1, fault("delay", &[], &[])), (4, heal("delay"))]), [(0, 1), (4, u64::MAX)]);
        let one_way = fault("one-way", &[1], &[(1, 2), (1, 3)]);
        assert_eq!(times(&[(1, one_way)]), [(0, u64::MAX)]);
    }

    #[test]
    fn nodes_that_join_count_and_removed_ones_do_not() {
        let joined = [(1, Fact::Started { node: 4 }), (2, Fact::Killed { node: 1 }), (3, Fact::Killed { node: 2 })];
        assert_eq!(times(&joined), [(0, 3)], "two of four");
        let removed = [joined.as_slice(), &[(7, Fact::Removed { node: 1 })]].concat();
        assert_eq!(times(&removed), [(0, 3), (7, u64::MAX)]);
    }

    #[test]
    fn the_longest_time_lies_between_the_moments() {
        let contact = Contact { times: vec![(0, 10), (12, 30), (35, u64::MAX)] };
        assert_eq!(contact.longest(4, 20), Some((12, 20)));
        assert_eq!(contact.longest(10, 12), None);
        assert_eq!(contact.longest(0, 100), Some((35, 100)));
    }
}
