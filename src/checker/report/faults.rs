//! Faults, and the history of each node.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::history::{Fact, History, What};

/// A span of time with the lines of its start and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Span {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// The second line equals the first if the span had not ended at the end of the history.
    pub(super) lines: (usize, usize),
}

/// An injected fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct InjectedFault {
    #[serde(flatten)]
    pub(super) span: Span,
    /// Its targets, as a text for people.
    pub(super) hit: String,
    #[serde(skip)]
    nodes: Vec<u64>,
}

/// The history of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeHistory {
    /// The leaderships by term. Each lasts until the node was killed or another was elected.
    pub(super) led: Vec<(u64, Span)>,
    /// Times between kill and restart.
    pub(super) down: Vec<Span>,
    /// Times before the start of a node that joins, and after its removal.
    pub(super) absent: Vec<Span>,
    /// Faults that hit the node.
    pub(super) faulty: Vec<(String, InjectedFault)>,
    /// Snapshots and tables.
    pub(super) moments: Vec<(MomentKind, u64, usize)>,
}

/// A kind of point event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MomentKind {
    Snapshot,
    Table,
}

/// All injected faults, by name and in order.
pub(super) fn faults(history: &History) -> BTreeMap<&str, Vec<InjectedFault>> {
    let mut faults: BTreeMap<&str, Vec<InjectedFault>> = BTreeMap::new();
    let mut open: BTreeMap<&str, (u64, usize, Vec<u64>, String)> = BTreeMap::new();
    let mut end = |name, (from_ns, begun, nodes, hit): (u64, usize, Vec<u64>, String), to_ns, line: Option<usize>| {
        let span = Span { from_ns, to_ns, lines: (begun, line.unwrap_or(begun)) };
        faults.entry(name).or_default().push(InjectedFault { span, hit, nodes });
    };

    for (line, event) in &history.events {
        let What::Fact(fact) = &event.what else { continue };
        if let Fact::Fault { name, nodes, silent } = fact {
            let hit = || (event.time_ns, *line, all_hit(nodes, silent), description(nodes, silent));
            open.entry(name).or_insert_with(hit);
        } else if let Fact::Heal { name } = fact {
            let healed: Vec<&str> =
                open.keys().copied().filter(|fault| name.as_ref().is_none_or(|name| name == fault)).collect();
            for fault in healed {
                if let Some(begun) = open.remove(fault) {
                    end(fault, begun, event.time_ns, Some(*line));
                }
            }
        }
    }

    for (fault, begun) in open {
        end(fault, begun, last_ns(history), None);
    }
    faults
}

/// The nodes that are named, and those whose data were held.
fn all_hit(nodes: &[u64], silent: &[(u64, u64)]) -> Vec<u64> {
    let all: BTreeSet<u64> = nodes.iter().copied().chain(silent.iter().map(|(from, _)| *from)).collect();
    all.into_iter().collect()
}

/// Describes the targets, like `node 2; cut 1–2, 3→2`.
fn description(nodes: &[u64], silent: &[(u64, u64)]) -> String {
    let names: Vec<_> = nodes.iter().map(u64::to_string).collect();
    let word = |(from, to): &(u64, u64)| match (silent.contains(&(*to, *from)), from < to) {
        (true, true) => Some(format!("{from}–{to}")),
        (true, false) => None,
        (false, _) => Some(format!("{from}→{to}")),
    };
    let cuts: Vec<_> = silent.iter().filter_map(word).collect();

    let mut parts = Vec::new();
    match nodes.len() {
        0 => {}
        1 => parts.push(format!("node {}", names[0])),
        _ => parts.push(format!("nodes {}", names.join(", "))),
    }

    if !cuts.is_empty() {
        parts.push(format!("cut {}", cuts.join(", ")));
    }
    parts.join("; ")
}

/// All nodes in the history.
pub(super) fn nodes(history: &History) -> BTreeMap<u64, NodeHistory> {
    let mut nodes: BTreeMap<u64, NodeHistory> = BTreeMap::new();
    let mut leader: Option<(u64, u64, u64, usize)> = None;
    let mut down: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut started: BTreeMap<u64, (u64, usize)> = BTreeMap::new();

    for (line, event) in &history.events {
        let at_ns = event.time_ns;
        let line = *line;
        let What::Fact(fact) = &event.what else { continue };
        if let Fact::Elected { node, term } = fact {
            nodes.entry(*node).or_default();
            deposed(&mut nodes, leader.replace((*node, *term, at_ns, line)), at_ns, line);
        } else if let Fact::Killed { node } | Fact::Stopped { node } = fact {
            nodes.entry(*node).or_default();
            down.entry(*node).or_insert((at_ns, line));
            deposed(&mut nodes, leader.take_if(|(leading, ..)| leading == node), at_ns, line);
        } else if let Fact::Started { node } = fact {
            let known = nodes.entry(*node).or_default();
            started.entry(*node).or_insert((at_ns, line));
            if let Some((from_ns, begun)) = down.remove(node) {
                known.down.push(Span { from_ns, to_ns: at_ns, lines: (begun, line) });
            }
        } else if let Fact::Joined { node } = fact {
            let (to_ns, begun) = started.get(node).copied().unwrap_or((at_ns, line));
            let before = Span { from_ns: first_ns(history), to_ns, lines: (begun, line) };
            nodes.entry(*node).or_default().absent.push(before);
        } else if let Fact::Removed { node } = fact {
            let known = nodes.entry(*node).or_default();
            if let Some((from_ns, begun)) = down.remove(node) {
                known.down.push(Span { from_ns, to_ns: at_ns, lines: (begun, line) });
            }
            known.absent.push(Span { from_ns: at_ns, to_ns: last_ns(history), lines: (line, line) });
            deposed(&mut nodes, leader.take_if(|(leading, ..)| leading == node), at_ns, line);
        } else if let Fact::SnapshotInstalled { node, .. } = fact {
            nodes.entry(*node).or_default().moments.push((MomentKind::Snapshot, at_ns, line));
        } else if let Fact::Table { node, .. } = fact {
            nodes.entry(*node).or_default().moments.push((MomentKind::Table, at_ns, line));
        }
    }

    let to_ns = last_ns(history);
    if let Some((_, _, _, line)) = leader {
        deposed(&mut nodes, leader, to_ns, line);
    }
    for (node, (from_ns, line)) in down {
        nodes.entry(node).or_default().down.push(Span { from_ns, to_ns, lines: (line, line) });
    }

    mark_faulty(&mut nodes, history);
    nodes
}

fn deposed(nodes: &mut BTreeMap<u64, NodeHistory>, leader: Option<(u64, u64, u64, usize)>, to_ns: u64, ended: usize) {
    if let Some((node, term, from_ns, line)) = leader {
        nodes.entry(node).or_default().led.push((term, Span { from_ns, to_ns, lines: (line, ended) }));
    }
}

fn mark_faulty(nodes: &mut BTreeMap<u64, NodeHistory>, history: &History) {
    for (name, injected) in faults(history) {
        for one in injected {
            for node in &one.nodes {
                if let Some(known) = nodes.get_mut(node) {
                    known.faulty.push((name.to_owned(), one.clone()));
                }
            }
        }
    }
}

fn first_ns(history: &History) -> u64 {
    history.events.first().map_or(0, |(_, event)| event.time_ns)
}

fn last_ns(history: &History) -> u64 {
    history.events.last().map_or(0, |(_, event)| event.time_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(facts: &[&str]) -> History {
        let mut text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#.to_owned();
        for (place, fact) in facts.iter().enumerate() {
            text.push_str(&format!(
                "\n{{\"time_ns\":{}0,\"process\":\"nemesis\",\"type\":\"info\",{fact}}}",
                place + 1
            ));
        }
        History::read(text.as_bytes()).expect("it is a history")
    }

    fn span(from_ns: u64, to_ns: u64, lines: (usize, usize)) -> Span {
        Span { from_ns, to_ns, lines }
    }

    #[test]
    fn a_heal_without_a_name_ends_all_faults_and_one_that_is_not_healed_lasts() {
        let history = history(&[
            r#""f":"fault","value":{"name":"a"}"#,
            r#""f":"fault","value":{"name":"b"}"#,
            r#""f":"heal","value":{"name":"a"}"#,
            r#""f":"fault","value":{"name":"a"}"#,
            r#""f":"heal","value":{}"#,
            r#""f":"fault","value":{"name":"c"}"#,
            r#""f":"end""#,
        ]);
        let expected = [
            ("a", vec![span(10, 30, (2, 4)), span(40, 50, (5, 6))]),
            ("b", vec![span(20, 50, (3, 6))]),
            ("c", vec![span(60, 70, (7, 7))]),
        ];
        let spans = |injected: Vec<InjectedFault>| injected.into_iter().map(|one| one.span).collect::<Vec<_>>();
        let found: BTreeMap<_, _> = faults(&history).into_iter().map(|(name, all)| (name, spans(all))).collect();
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn a_leader_leads_until_it_is_killed_or_another_is_elected() {
        let history = history(&[
            r#""f":"elected","value":{"node":1,"term":1}"#,
            r#""f":"elected","value":{"node":2,"term":2}"#,
            r#""f":"fault","value":{"name":"slow-sync","nodes":[1]}"#,
            r#""f":"killed","value":{"node":1}"#,
            r#""f":"killed","value":{"node":2}"#,
            r#""f":"started","value":{"node":2}"#,
            r#""f":"end""#,
        ]);
        let nodes = nodes(&history);
        assert_eq!(nodes[&1].led, [(1, span(10, 20, (2, 3)))]);
        assert_eq!(nodes[&2].led, [(2, span(20, 50, (3, 6)))]);
        assert_eq!(nodes[&1].down, [span(40, 70, (5, 5))]);
        assert_eq!(nodes[&2].down, [span(50, 60, (6, 7))]);
        let (name, slow) = &nodes[&1].faulty[0];
        assert_eq!((&**name, slow.span, &*slow.hit), ("slow-sync", span(30, 70, (4, 4)), "node 1"));
        assert!(nodes[&2].faulty.is_empty());
    }

    #[test]
    fn a_node_is_absent_until_it_joins_and_after_it_is_removed() {
        let history = history(&[
            r#""f":"started","value":{"node":1}"#,
            r#""f":"stopped","value":{"node":1}"#,
            r#""f":"started","value":{"node":4}"#,
            r#""f":"joined","value":{"node":4}"#,
            r#""f":"removed","value":{"node":1}"#,
            r#""f":"elected","value":{"node":4,"term":3}"#,
            r#""f":"removed","value":{"node":4}"#,
            r#""f":"end""#,
        ]);
        let nodes = nodes(&history);
        assert_eq!(nodes[&1].down, [span(20, 50, (3, 6))]);
        assert_eq!(nodes[&1].absent, [span(50, 80, (6, 6))]);
        assert_eq!(nodes[&4].absent, [span(0, 30, (4, 5)), span(70, 80, (8, 8))]);
        assert_eq!(nodes[&4].led, [(3, span(60, 70, (7, 8)))]);
        assert_eq!(nodes[&4].down, []);
    }

    #[test]
    fn what_is_cut_is_said_once_for_both_ways() {
        assert_eq!(description(&[2], &[(1, 2), (2, 1), (2, 3)]), "node 2; cut 1–2, 2→3");
        assert_eq!(description(&[3, 1], &[]), "nodes 3, 1");
        assert_eq!(description(&[], &[]), "");
        assert_eq!(all_hit(&[3], &[(1, 2), (2, 1), (1, 3)]), [1, 2, 3]);
    }
}
