//! Faults and nodes: what was done to the cluster, and who led it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::chaos::history::{Fact, History, What};

/// A span of time, and the lines that tell of its begin and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Span {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// The second is the first where the history ends before the span does.
    pub(super) lines: (usize, usize),
}

/// What happened to a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Node {
    /// As leader of a term: until it was killed, or until another was elected.
    pub(super) led: Vec<(u64, Span)>,
    /// Killed, and not started yet.
    pub(super) down: Vec<Span>,
    /// Under a fault that names it.
    pub(super) faulty: Vec<(String, Span)>,
    /// Moments: snapshots and tables.
    pub(super) moments: Vec<(Moment, u64, usize)>,
}

/// A moment in a node's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    Snapshot,
    Table,
}

/// All that was injected, by name, each in order.
pub(super) fn faults(history: &History) -> BTreeMap<&str, Vec<Span>> {
    let mut faults: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    let mut open: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for (line, event) in &history.events {
        let What::Fact(fact) = &event.what else { continue };
        if let Fact::Fault { name } = fact {
            open.entry(name).or_insert((event.time_ns, *line));
        } else if let Fact::Heal { name } = fact {
            let healed = |fault: &&str| name.as_ref().is_none_or(|name| name == fault);
            let ended: Vec<_> =
                open.iter().filter(|(fault, _)| healed(fault)).map(|(fault, from)| (*fault, *from)).collect();
            for (fault, (from_ns, begun)) in ended {
                open.remove(fault);
                faults.entry(fault).or_default().push(Span { from_ns, to_ns: event.time_ns, lines: (begun, *line) });
            }
        }
    }
    for (fault, (from_ns, line)) in open {
        let to_ns = last_ns(history);
        faults.entry(fault).or_default().push(Span { from_ns, to_ns, lines: (line, line) });
    }
    faults
}

/// All nodes that the history names.
pub(super) fn nodes(history: &History) -> BTreeMap<u64, Node> {
    let mut nodes: BTreeMap<u64, Node> = BTreeMap::new();
    let mut leader: Option<(u64, u64, u64, usize)> = None;
    let mut down: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (line, event) in &history.events {
        let (at_ns, line) = (event.time_ns, *line);
        let What::Fact(fact) = &event.what else { continue };
        if let Fact::Elected { node, term } = fact {
            nodes.entry(*node).or_default();
            deposed(&mut nodes, leader.replace((*node, *term, at_ns, line)), at_ns, line);
        } else if let Fact::Killed { node } = fact {
            nodes.entry(*node).or_default();
            down.entry(*node).or_insert((at_ns, line));
            deposed(&mut nodes, leader.take_if(|(leading, ..)| leading == node), at_ns, line);
        } else if let Fact::Started { node } = fact {
            let known = nodes.entry(*node).or_default();
            if let Some((from_ns, begun)) = down.remove(node) {
                known.down.push(Span { from_ns, to_ns: at_ns, lines: (begun, line) });
            }
        } else if let Fact::SnapshotInstalled { node, .. } = fact {
            nodes.entry(*node).or_default().moments.push((Moment::Snapshot, at_ns, line));
        } else if let Fact::Table { node, .. } = fact {
            nodes.entry(*node).or_default().moments.push((Moment::Table, at_ns, line));
        }
    }
    let to_ns = last_ns(history);
    if let Some((_, _, _, line)) = leader {
        deposed(&mut nodes, leader, to_ns, line);
    }
    for (node, (from_ns, line)) in down {
        nodes.entry(node).or_default().down.push(Span { from_ns, to_ns, lines: (line, line) });
    }
    name_faults(&mut nodes, history);
    nodes
}

fn deposed(nodes: &mut BTreeMap<u64, Node>, leader: Option<(u64, u64, u64, usize)>, to_ns: u64, ended: usize) {
    if let Some((node, term, from_ns, line)) = leader {
        nodes.entry(node).or_default().led.push((term, Span { from_ns, to_ns, lines: (line, ended) }));
    }
}

/// A fault's name is for people: `pause node 2`. Where it says which nodes, it shows on them.
fn name_faults(nodes: &mut BTreeMap<u64, Node>, history: &History) {
    for (name, spans) in faults(history) {
        for node in named(name) {
            if let Some(known) = nodes.get_mut(&node) {
                known.faulty.extend(spans.iter().map(|span| (name.to_owned(), *span)));
            }
        }
    }
}

/// The numbers that follow the word `node`, apart from it or not.
fn named(fault: &str) -> Vec<u64> {
    let words: Vec<_> = fault.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let joined = words.iter().filter_map(|word| word.strip_prefix("node")?.parse().ok());
    let apart = words.windows(2).filter(|pair| pair[0] == "node").filter_map(|pair| pair[1].parse().ok());
    joined.chain(apart).collect()
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
        assert_eq!(faults(&history), BTreeMap::from(expected));
    }

    #[test]
    fn a_leader_leads_until_it_is_killed_or_another_is_elected() {
        let history = history(&[
            r#""f":"elected","value":{"node":1,"term":1}"#,
            r#""f":"elected","value":{"node":2,"term":2}"#,
            r#""f":"fault","value":{"name":"slow disk of node 1"}"#,
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
        assert_eq!(nodes[&1].faulty, [("slow disk of node 1".to_owned(), span(30, 70, (4, 4)))]);
    }

    #[test]
    fn a_fault_may_name_nodes() {
        assert_eq!(named("pause node 2"), [2]);
        assert_eq!(named("cut node1-node3"), [1, 3]);
        assert!(named("disk full").is_empty());
        assert!(named("node").is_empty());
    }
}
