//! Circles of transactions that depend on each other.
//!
//! A transaction depends on another if it came after it in every order that explains both. So a circle has no order. The circle that is
//! reported is the least excusable one of each strongly connected component (Tarjan): the fewest kinds of dependency, and among these a
//! short one.

use std::collections::{HashMap, HashSet, VecDeque};

use super::anomaly::AnomalyKind;

/// Why a transaction came after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DependencyKind {
    /// It replaced a value of the other.
    Write,
    /// It read a value of the other.
    Read,
    /// It replaced a value that the other had read.
    Anti,
    /// It began after the other was answered.
    Time,
}

impl DependencyKind {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "ww",
            Self::Read => "wr",
            Self::Anti => "rw",
            Self::Time => "rt",
        }
    }
}

/// An edge to a later node.
#[derive(Clone, Copy, Debug)]
pub(super) struct DependencyEdge<'r> {
    to: usize,
    kind: DependencyKind,
    key: &'r str,
}

/// Transactions and their dependencies. The nodes from `transactions` on are moments.
pub(super) struct DependencyGraph<'r> {
    transactions: usize,
    edges: Vec<Vec<DependencyEdge<'r>>>,
}

/// A circle: each transaction with its dependency to the next one.
pub(super) struct DependencyCycle<'r> {
    pub(super) kind: AnomalyKind,
    pub(super) steps: Vec<(usize, DependencyKind, &'r str)>,
}

impl DependencyCycle<'_> {
    /// The name of a step's dependency.
    pub(super) fn step_name(kind: DependencyKind) -> &'static str {
        kind.name()
    }
}

/// The dependencies that a circle may have.
#[derive(Clone, Copy)]
struct AllowedKinds {
    reads: bool,
    anti: bool,
    time: bool,
}

impl AllowedKinds {
    fn has(self, kind: DependencyKind) -> bool {
        match kind {
            DependencyKind::Write => true,
            DependencyKind::Read => self.reads,
            DependencyKind::Anti => self.anti,
            DependencyKind::Time => self.time,
        }
    }
}

/// Nodes of a component from which a short circle is searched.
const STARTS_MAX: usize = 50;
/// Anti-dependencies of a component that are tried as the only one of a circle.
const ANTI_MAX: usize = 2_000;

impl<'r> DependencyGraph<'r> {
    pub(super) fn new(transactions: usize) -> Self {
        Self { transactions, edges: vec![Vec::new(); transactions] }
    }

    pub(super) fn add(&mut self, from: usize, to: usize, kind: DependencyKind, key: &'r str) {
        if from != to {
            self.edges[from].push(DependencyEdge { to, kind, key });
        }
    }

    /// Adds the order in time of transactions, each with the times of its start and its answer. Moments in a row stand for all pairs.
    pub(super) fn add_real_time(&mut self, times: &[(u64, u64)]) {
        let mut ends: Vec<_> = times.iter().zip(0..).filter(|((_, end_ns), _)| *end_ns != u64::MAX).collect();
        ends.sort_unstable_by_key(|((_, end_ns), node)| (*end_ns, *node));

        // Each answer is a moment, and the moments are a chain. A transaction that begins after n answers needs one edge, from the last of
        // them, and not n: otherwise a history of 10,000 transactions had fifty million edges.
        for (place, (_, node)) in ends.iter().enumerate() {
            let moment = self.transactions + place;
            self.edges.push(Vec::new());
            self.edges[*node].push(DependencyEdge { to: moment, kind: DependencyKind::Time, key: "" });
            if place > 0 {
                self.edges[moment - 1].push(DependencyEdge { to: moment, kind: DependencyKind::Time, key: "" });
            }
        }

        for (node, (begin_ns, _)) in times.iter().enumerate() {
            let before = ends.partition_point(|((_, end_ns), _)| end_ns < begin_ns);
            if let Some(last) = before.checked_sub(1) {
                let to_begin = DependencyEdge { to: node, kind: DependencyKind::Time, key: "" };
                self.edges[self.transactions + last].push(to_begin);
            }
        }
    }

    /// The least excusable circle of each component that has one.
    pub(super) fn cycles(&self) -> Vec<DependencyCycle<'r>> {
        let all = AllowedKinds { reads: true, anti: true, time: true };
        let nodes: Vec<_> = (0..self.edges.len()).collect();
        let components = self.components(&nodes, None, all);
        components.iter().filter_map(|component| self.least_excusable(component)).collect()
    }

    fn least_excusable(&self, component: &[usize]) -> Option<DependencyCycle<'r>> {
        let within: HashSet<usize> = component.iter().copied().collect();
        // Without time first, and without reads: a circle of writes alone violates every level of isolation (Adya, 1999), one that needs
        // the order in time only strict serializability. The weaker the demand that is violated, the worse the anomaly.
        for time in [false, true] {
            for reads in [false, true] {
                let allowed = AllowedKinds { reads, anti: false, time };
                if let Some(steps) = self.shortest(&within, component, allowed) {
                    let kind = if reads { AnomalyKind::G1c } else { AnomalyKind::G0 };
                    return Some(self.named(if time { AnomalyKind::Realtime } else { kind }, steps));
                }
            }

            let others = AllowedKinds { reads: true, anti: false, time };
            if let Some(steps) = self.with_one_anti(&within, component, others) {
                return Some(self.named(if time { AnomalyKind::StaleRead } else { AnomalyKind::GSingle }, steps));
            }

            let all = AllowedKinds { reads: true, anti: true, time };
            if let Some(steps) = self.shortest(&within, component, all) {
                let is_of_one_key = steps.len() == 2 && steps[0].2 == steps[1].2;
                let kind = if is_of_one_key { AnomalyKind::LostUpdate } else { AnomalyKind::G2 };
                return Some(self.named(if time { AnomalyKind::Realtime } else { kind }, steps));
            }
        }
        None
    }

    /// Leaves out the moments.
    fn named(&self, kind: AnomalyKind, steps: Vec<(usize, DependencyKind, &'r str)>) -> DependencyCycle<'r> {
        let transactions = self.transactions;
        DependencyCycle { kind, steps: steps.into_iter().filter(|(node, ..)| *node < transactions).collect() }
    }

    fn shortest(
        &self,
        within: &HashSet<usize>,
        component: &[usize],
        allowed: AllowedKinds,
    ) -> Option<Vec<(usize, DependencyKind, &'r str)>> {
        let inner = self.components(component, Some(within), allowed);
        let first: HashSet<usize> = inner.first()?.iter().copied().collect();
        // A circle always passes a transaction, since moments only lead to later ones.
        let starts = inner.first()?.iter().copied().filter(|node| *node < self.transactions).take(STARTS_MAX);
        starts.filter_map(|start| self.path(start, start, &first, allowed)).min_by_key(Vec::len)
    }

    fn with_one_anti(
        &self,
        within: &HashSet<usize>,
        component: &[usize],
        others: AllowedKinds,
    ) -> Option<Vec<(usize, DependencyKind, &'r str)>> {
        let edges_from = |node: &usize| self.edges[*node].iter().map(move |edge| (*node, edge)).collect::<Vec<_>>();
        let anti = component.iter().flat_map(edges_from);
        let anti = anti.filter(|(_, edge)| edge.kind == DependencyKind::Anti && within.contains(&edge.to));

        let circles = anti.take(ANTI_MAX).filter_map(|(from, edge)| {
            let mut steps = vec![(from, edge.kind, edge.key)];
            // Back to where the anti-dependency began, without a second one.
            steps.extend(self.path(edge.to, from, within, others)?);
            Some(steps)
        });

        circles.take(STARTS_MAX).min_by_key(Vec::len)
    }

    /// The shortest way from a node to another one (or around to itself), as its nodes, each with the edge that it leaves by.
    fn path(
        &self,
        from: usize,
        to: usize,
        within: &HashSet<usize>,
        allowed: AllowedKinds,
    ) -> Option<Vec<(usize, DependencyKind, &'r str)>> {
        let mut came: HashMap<usize, (usize, DependencyEdge<'r>)> = HashMap::new();
        let mut queue = VecDeque::from([from]);

        while let Some(node) = queue.pop_front() {
            for edge in &self.edges[node] {
                if !allowed.has(edge.kind) || !within.contains(&edge.to) || came.contains_key(&edge.to) {
                    continue;
                }

                came.insert(edge.to, (node, *edge));
                if edge.to == to {
                    return Some(way_back(&came, from, to));
                }
                queue.push_back(edge.to);
            }
        }
        None
    }

    /// The strongly connected components of more than one node, by Tarjan's algorithm without recursion.
    fn components(&self, nodes: &[usize], within: Option<&HashSet<usize>>, allowed: AllowedKinds) -> Vec<Vec<usize>> {
        let mut search = ComponentSearch::new(self.edges.len());
        let next = |node: usize, place: usize| self.edges[node].get(place).copied();
        let is_allowed =
            |edge: &DependencyEdge<'_>| allowed.has(edge.kind) && within.is_none_or(|within| within.contains(&edge.to));

        for root in nodes {
            if search.index[*root].is_some() {
                continue;
            }
            search.enter(*root);
            let mut open = vec![(*root, 0)];
            while let Some((node, place)) = open.pop() {
                let Some(edge) = next(node, place) else {
                    search.leave(node, open.last().map(|(parent, _)| *parent));
                    continue;
                };
                open.push((node, place + 1));
                if !is_allowed(&edge) {
                    continue;
                }

                if let Some(index) = search.index[edge.to] {
                    // A node that has left the stack belongs to a component that is complete: an edge to it closes no circle.
                    if search.is_on_stack[edge.to] {
                        search.low[node] = search.low[node].min(index);
                    }
                } else {
                    search.enter(edge.to);
                    open.push((edge.to, 0));
                }
            }
        }
        search.found
    }
}

fn way_back<'r>(
    came: &HashMap<usize, (usize, DependencyEdge<'r>)>,
    from: usize,
    to: usize,
) -> Vec<(usize, DependencyKind, &'r str)> {
    let mut steps = Vec::new();
    let mut at = to;
    while let Some((node, edge)) = came.get(&at) {
        steps.push((*node, edge.kind, edge.key));
        at = *node;
        if at == from {
            break;
        }
    }

    steps.reverse();
    steps
}

/// The state of Tarjan's algorithm.
struct ComponentSearch {
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    is_on_stack: Vec<bool>,
    stack: Vec<usize>,
    count: usize,
    found: Vec<Vec<usize>>,
}

impl ComponentSearch {
    fn new(nodes: usize) -> Self {
        Self {
            index: vec![None; nodes],
            low: vec![0; nodes],
            is_on_stack: vec![false; nodes],
            stack: Vec::new(),
            count: 0,
            found: Vec::new(),
        }
    }

    fn enter(&mut self, node: usize) {
        self.index[node] = Some(self.count);
        self.low[node] = self.count;
        self.count += 1;
        self.is_on_stack[node] = true;
        self.stack.push(node);
    }

    fn leave(&mut self, node: usize, parent: Option<usize>) {
        if let Some(parent) = parent {
            self.low[parent] = self.low[parent].min(self.low[node]);
        }
        if self.index[node] != Some(self.low[node]) {
            return;
        }

        let start = self.stack.iter().rposition(|other| *other == node).unwrap_or_default();
        let component = self.stack.split_off(start);
        component.iter().for_each(|member| self.is_on_stack[*member] = false);
        if component.len() > 1 {
            self.found.push(component);
        }
    }
}
