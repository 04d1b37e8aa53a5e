//! Transactions of a store without revisions: their dependencies, from values that are put once.
//!
//! A value tells which transaction put it. The order of two values of a register is known if a transaction read the one and put the other,
//! or if the put of the one was answered before that of the other began. From both follow the dependencies of Adya: `ww`, `wr` and `rw`;
//! `rt` is the order in time. A circle of them has no order, by [`super::cycles`].
//!
//! An absent register counts as its first value where it is read before anything can have deleted it or ended its lease. Of later absences
//! only those are judged between which a register was created: two transactions that each found it absent and put it are a lost update,
//! unless something may have ended it from the start of the one to the answer of the other. A value that several transactions put tells
//! nothing: where it was read, serializability is undecided.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    anomaly::{AnomalyKind, TxnAnomaly},
    cycles::{DependencyCycle, DependencyGraph, DependencyKind},
    ends::RegisterEnds,
    timeline::final_writes,
};
use crate::{
    history::{
        Answer, Call, CompareRelation, CompareTarget, Ended, Operation, StepResult, Transaction, TxnAnswer, TxnStep,
    },
    run::Run,
    verdict::Investigation,
};

/// Up to this number of writers of a register, all come after a read that found it absent. Of more, only the first to be answered does.
const WRITERS_MAX: usize = 8;

/// A transaction that took effect, or may have.
struct TxnNode<'r> {
    operation: &'r Operation<'r>,
    answer: Option<&'r TxnAnswer>,
    /// What it read of registers that it had not written: none if they were absent.
    reads: Vec<(&'r str, Option<&'r str>)>,
    /// The values that it left.
    writes: Vec<(&'r str, &'r str)>,
}

/// The writers of one register.
#[derive(Default)]
struct RegisterWriters<'r> {
    /// The writer of each value, or none if it has several.
    by_value: HashMap<&'r str, Option<usize>>,
    /// All of them.
    nodes: Vec<usize>,
    /// The transactions that read each value.
    readers: HashMap<Option<&'r str>, Vec<usize>>,
    ends: PossibleEnds,
}

/// The times at which something may have ended a register after a write: each with its earliest moment, and the last one at which it can
/// matter.
#[derive(Default)]
struct PossibleEnds(Vec<(u64, u64)>);

impl PossibleEnds {
    /// Prepares the questions.
    fn sort(&mut self) {
        self.0.sort_unstable();
        // Of all that begin by a moment, the latest end counts.
        for place in 1..self.0.len() {
            self.0[place].1 = self.0[place].1.max(self.0[place - 1].1);
        }
    }

    /// Whether nothing can have ended the register by this moment.
    fn are_after(&self, by_ns: u64) -> bool {
        self.0.first().is_none_or(|(from_ns, _)| *from_ns > by_ns)
    }

    /// Whether something may have ended the register between two moments.
    fn may_be_between(&self, from_ns: u64, to_ns: u64) -> bool {
        let begun = self.0.partition_point(|(begin_ns, _)| *begin_ns <= to_ns);
        begun.checked_sub(1).is_some_and(|last| self.0[last].1 >= from_ns)
    }
}

pub(super) fn check(run: &Run<'_>, ends: &RegisterEnds<'_>, investigation: &mut Investigation) {
    let keys = keys(run);
    let nodes = nodes(run, &keys);
    let registers = registers(run, ends, &nodes);
    investigation.count("transactions", nodes.iter().filter(|node| node.lacks_revision()).count() as u64);
    report_reads(run, &nodes, &registers, investigation);
    for (key, register) in &registers {
        report_creations(key, register, &nodes, investigation);
        note_ambiguous(key, register, &nodes, investigation);
    }

    let mut graph = DependencyGraph::new(nodes.len());
    for (key, writers) in &registers {
        add_register(&mut graph, key, writers, &nodes);
    }
    let times: Vec<_> = nodes.iter().map(|node| (node.operation.invoked_ns, node.operation.ended_ns)).collect();
    graph.add_real_time(&times);

    for DependencyCycle { kind, steps } in graph.cycles() {
        let way = steps.iter().map(|(node, kind, key)| {
            let line = nodes[*node].operation.invoked_line;
            let step = DependencyCycle::step_name(*kind);
            if key.is_empty() { format!("line {line} -{step}-> ") } else { format!("line {line} -{step} {key:?}-> ") }
        });
        let first = steps.first().map_or(0, |(node, ..)| nodes[*node].operation.invoked_line);
        let says = format!("{}line {first}", way.collect::<String>());
        let lines = steps.iter().flat_map(|(node, ..)| {
            let operation = nodes[*node].operation;
            [operation.invoked_line, operation.ended_line]
        });
        investigation.report(&TxnAnomaly::new(kind, says, lines));
    }
}

impl TxnNode<'_> {
    fn lacks_revision(&self) -> bool {
        self.answer.is_some_and(|answer| answer.revision.is_none())
    }
}

fn keys<'r>(run: &'r Run<'_>) -> BTreeSet<&'r str> {
    let transactions = run.operations.iter().filter_map(|operation| {
        let Call::Txn(transaction) = operation.call else { return None };
        Some(transaction)
    });
    let steps = transactions.flat_map(|transaction| transaction.then.iter().chain(&transaction.otherwise));
    steps.filter_map(|step| if let TxnStep::Put(put) = step { Some(&*put.key) } else { None }).collect()
}

fn nodes<'r>(run: &'r Run<'_>, keys: &BTreeSet<&'r str>) -> Vec<TxnNode<'r>> {
    let mut nodes = Vec::new();
    for operation in &run.operations {
        let Call::Txn(transaction) = operation.call else { continue };
        // Reads of the past may come before what they follow in time, and so have no place in this order.
        if transaction.at.is_some() || transaction.stale {
            continue;
        }

        let mut node = TxnNode { operation, answer: None, reads: Vec::new(), writes: Vec::new() };
        match operation.ended {
            Ended::Ok(Answer::Txn(answer)) => {
                node.answer = Some(answer);
                node.reads = reads(transaction, answer, keys);
                node.add_writes(transaction.branch(answer.succeeded), keys);
            }
            // Which branch ran is not known: a value that is read tells it.
            Ended::Ok(_) | Ended::Info | Ended::Open => {
                node.add_writes(&transaction.then, keys);
                node.add_writes(&transaction.otherwise, keys);
            }
            Ended::Fail(_) => continue,
        }
        nodes.push(node);
    }
    nodes
}

impl<'r> TxnNode<'r> {
    fn add_writes(&mut self, steps: &'r [TxnStep], keys: &BTreeSet<&'r str>) {
        let writes = final_writes(steps, None, keys).into_iter();
        self.writes.extend(writes.filter_map(|(key, (put, _))| Some((key, &*put?.value))));
    }
}

/// What a transaction read before it wrote it itself.
fn reads<'r>(
    transaction: &'r Transaction,
    answer: &'r TxnAnswer,
    keys: &BTreeSet<&'r str>,
) -> Vec<(&'r str, Option<&'r str>)> {
    let mut reads = Vec::new();
    let mut own: HashSet<&str> = HashSet::new();
    if answer.succeeded {
        for compare in transaction.compares.iter().filter(|compare| compare.up_to.is_none()) {
            match (compare.target, compare.is, compare.number) {
                (CompareTarget::Value, CompareRelation::Equal, _) => {
                    reads.push((&*compare.key, compare.text.as_deref()))
                }
                // The way in which etcd's recipes ask whether a key is absent.
                (CompareTarget::Created | CompareTarget::Version, CompareRelation::Equal, Some(0)) => {
                    reads.push((&compare.key, None));
                }
                _ => {}
            }
        }
    }

    for (step, result) in transaction.branch(answer.succeeded).iter().zip(&answer.results) {
        match (step, result) {
            (TxnStep::Get { key }, StepResult::Got(seen)) if !own.contains(&**key) => {
                let value = seen.as_ref().map(|seen| seen.value.as_deref());
                // A value that is not shown tells nothing.
                if value != Some(None) {
                    reads.push((key, value.flatten()));
                }
            }
            (TxnStep::Range(range), StepResult::Ranged(seen)) => {
                let shown: HashMap<&str, _> =
                    seen.registers.iter().map(|(key, seen)| (&**key, seen.value.as_deref())).collect();
                let from = range.from.as_deref().unwrap_or_default();
                let of_range = keys.range(from..).copied().take_while(|key| range.contains(key));
                for key in of_range.filter(|key| !own.contains(key)) {
                    match shown.get(key) {
                        Some(value) => reads.extend(value.map(|value| (key, Some(value)))),
                        // Beyond the end of the page, or behind a filter: not shown is not absent.
                        None if seen.more || seen.partial => {}
                        None => reads.push((key, None)),
                    }
                }
            }
            (TxnStep::Put(put), _) => {
                own.insert(&put.key);
            }
            (TxnStep::Delete { key }, _) => {
                own.insert(key);
            }
            (TxnStep::DeleteRange(range), _) => own.extend(keys.iter().copied().filter(|key| range.contains(key))),
            _ => {}
        }
    }
    reads
}

fn registers<'r>(
    run: &'r Run<'_>,
    ends: &RegisterEnds<'_>,
    nodes: &[TxnNode<'r>],
) -> BTreeMap<&'r str, RegisterWriters<'r>> {
    let mut registers: BTreeMap<&str, RegisterWriters<'_>> = BTreeMap::new();
    for (node, txn) in nodes.iter().enumerate() {
        for (key, value) in &txn.writes {
            let register = registers.entry(key).or_default();
            register.nodes.push(node);
            // A value of two writers does not say whose it was. One transaction may put it in both of its branches.
            let writer = register.by_value.entry(value).or_insert(Some(node));
            if *writer != Some(node) {
                *writer = None;
            }
        }

        for (key, value) in &txn.reads {
            let readers = registers.entry(key).or_default().readers.entry(*value).or_default();
            // A transaction that sees the same twice, by a condition and a step or by two steps, is one reader: its pair with itself would
            // look like two creations.
            if readers.last() != Some(&node) {
                readers.push(node);
            }
        }
    }

    for operation in &run.operations {
        let Call::Txn(transaction) = operation.call else { continue };
        for step in effective_steps(operation, transaction) {
            add_ends(operation, step, ends, &mut registers);
        }
    }
    registers.values_mut().for_each(|register| register.ends.sort());
    registers
}

/// The steps of a transaction that may have taken effect.
fn effective_steps<'r>(operation: &Operation<'_>, transaction: &'r Transaction) -> impl Iterator<Item = &'r TxnStep> {
    let (then, otherwise) = match operation.ended {
        Ended::Ok(Answer::Txn(answer)) => (answer.succeeded, !answer.succeeded),
        Ended::Fail(_) => (false, false),
        // Which branch ran is not known.
        Ended::Ok(_) | Ended::Info | Ended::Open => (true, true),
    };
    let then = transaction.then.iter().filter(move |_| then);
    then.chain(transaction.otherwise.iter().filter(move |_| otherwise))
}

/// Adds when a step may have ended registers.
fn add_ends<'r>(
    operation: &Operation<'_>,
    step: &'r TxnStep,
    ends: &RegisterEnds<'_>,
    registers: &mut BTreeMap<&'r str, RegisterWriters<'r>>,
) {
    let Operation { invoked_ns, ended_ns, .. } = *operation;
    match step {
        TxnStep::Put(put) => {
            // What somebody found absent has ended. So the end of a lease matters until the put that has the lease was answered, at the
            // latest: a transaction that begins later and finds the register absent comes after that end.
            let from_ns = ends.may_end_from(put).map(|from_ns| from_ns.max(invoked_ns));
            registers.entry(&put.key).or_default().ends.0.extend(from_ns.map(|from_ns| (from_ns, ended_ns)));
        }
        TxnStep::Delete { key } => registers.entry(key).or_default().ends.0.push((invoked_ns, ended_ns)),
        TxnStep::DeleteRange(range) => {
            let of_range = registers.iter_mut().filter(|(key, _)| range.contains(key));
            of_range.for_each(|(_, register)| register.ends.0.push((invoked_ns, ended_ns)));
        }
        TxnStep::Get { .. } | TxnStep::Range(_) => {}
    }
}

/// Reports reads of values that had no effect, that their transaction replaced, or that nobody put.
fn report_reads(
    run: &Run<'_>,
    nodes: &[TxnNode<'_>],
    registers: &BTreeMap<&str, RegisterWriters<'_>>,
    investigation: &mut Investigation,
) {
    let mut others: HashMap<(&str, &str), (AnomalyKind, usize)> = HashMap::new();
    for operation in &run.operations {
        let Call::Txn(transaction) = operation.call else { continue };
        let kind = if matches!(operation.ended, Ended::Ok(_)) { AnomalyKind::G1b } else { AnomalyKind::G1a };
        for step in transaction.then.iter().chain(&transaction.otherwise) {
            if let TxnStep::Put(put) = step {
                others.insert((&put.key, &put.value), (kind, operation.ended_line));
            }
        }
    }

    for node in nodes.iter().filter(|node| node.lacks_revision()) {
        for (key, value) in &node.reads {
            let Some(value) = value else { continue };
            if registers.get(key).is_some_and(|register| register.by_value.contains_key(value)) {
                continue;
            }

            let other = others.get(&(*key, *value)).copied();
            let kind = other.map_or(AnomalyKind::GarbageRead, |(kind, _)| kind);
            let line = other.map(|(_, line)| line);
            let says = format!("register {key:?} was read {value:?}, which no transaction left there");
            let lines = line.into_iter().chain([node.operation.ended_line]);
            investigation.report(&TxnAnomaly::new(kind, says, lines));
        }
    }
}

/// Reports pairs of transactions that found a register absent and put it, where nothing can have ended it between them.
fn report_creations(
    key: &str,
    register: &RegisterWriters<'_>,
    nodes: &[TxnNode<'_>],
    investigation: &mut Investigation,
) {
    let absent = register.readers.get(&None).into_iter().flatten();
    let mut creations: Vec<_> = absent.map(|node| &nodes[*node]).filter(|node| writes(node, key)).collect();
    creations.sort_unstable_by_key(|node| (node.operation.invoked_ns, node.operation.invoked_line));

    for pair in creations.windows(2) {
        let [first, second] = [pair[0].operation, pair[1].operation];
        let from_ns = first.invoked_ns;
        let to_ns = first.ended_ns.max(second.ended_ns);
        // Two first values are a circle of dependencies, which is reported as one.
        if register.ends.are_after(to_ns) || register.ends.may_be_between(from_ns, to_ns) {
            continue;
        }

        let says = format!("register {key:?} was created twice, and nothing can have ended it between");
        let lines = [first.invoked_line, first.ended_line, second.invoked_line, second.ended_line];
        investigation.report(&TxnAnomaly::new(AnomalyKind::LostUpdate, says, lines));
    }
}

/// Notes a read of which it cannot be told whose value it saw.
fn note_ambiguous(key: &str, register: &RegisterWriters<'_>, nodes: &[TxnNode<'_>], investigation: &mut Investigation) {
    let is_ambiguous = |value: &&str| {
        let readers = register.readers.get(&Some(*value)).into_iter().flatten();
        let has_several = register.by_value.get(*value).is_some_and(Option::is_none);
        has_several && readers.into_iter().any(|reader| nodes[*reader].lacks_revision())
    };
    // The least one: a map has no order.
    if let Some(value) = register.by_value.keys().copied().filter(is_ambiguous).min() {
        investigation.undecided(format!(
            "register {key:?} was read {value:?}, which several transactions put: without revisions each puts another value"
        ));
    }
}

fn add_register<'r>(
    graph: &mut DependencyGraph<'r>,
    key: &'r str,
    register: &RegisterWriters<'r>,
    nodes: &[TxnNode<'r>],
) {
    let next_answered = NextAnswered::from_nodes(register, nodes);
    for (value, readers) in &register.readers {
        let writer = match value {
            Some(value) => match register.by_value.get(value) {
                Some(Some(writer)) => Some(*writer),
                Some(None) | None => continue,
            },
            None => None,
        };
        // An absence is the first value only before the first end.
        let is_known = |reader: &usize| value.is_some() || register.ends.are_after(nodes[*reader].operation.ended_ns);
        let readers: Vec<usize> = readers.iter().copied().filter(is_known).collect();

        let mut later: Vec<usize> = readers.iter().copied().filter(|reader| writes(&nodes[*reader], key)).collect();
        match writer {
            Some(writer) => later.extend(next_answered.after(nodes[writer].operation.ended_ns)),
            None if register.nodes.len() <= WRITERS_MAX => later.extend(&register.nodes),
            None => later.extend(next_answered.after(0)),
        }

        for reader in readers {
            if let Some(writer) = writer {
                graph.add(writer, reader, DependencyKind::Read, key);
            }
            later.iter().for_each(|next| graph.add(reader, *next, DependencyKind::Anti, key));
        }
        if let Some(writer) = writer {
            later.iter().for_each(|next| graph.add(writer, *next, DependencyKind::Write, key));
        }
    }

    // The order of revisions, where a store tells it of some transactions.
    let revision = |node: &usize| Some((nodes[*node].answer?.revision?, *node));
    let mut ordered: Vec<_> = register.nodes.iter().filter_map(revision).collect();
    ordered.sort_unstable();
    for pair in ordered.windows(2) {
        graph.add(pair[0].1, pair[1].1, DependencyKind::Write, key);
    }
}

fn writes(node: &TxnNode<'_>, key: &str) -> bool {
    node.answer.is_some() && node.writes.iter().any(|(written, _)| *written == key)
}

/// The writers of a register by their starts, to find the first to be answered of those that began after a moment.
struct NextAnswered(Vec<(u64, u64, usize)>);

impl NextAnswered {
    fn from_nodes(register: &RegisterWriters<'_>, nodes: &[TxnNode<'_>]) -> Self {
        let answered = register.nodes.iter().filter(|node| nodes[**node].answer.is_some());
        let mut by_start: Vec<_> = answered
            .map(|node| {
                let operation = nodes[*node].operation;
                (operation.invoked_ns, operation.ended_ns, *node)
            })
            .collect();
        by_start.sort_unstable();

        // The first to be answered among this one and the later ones.
        for place in (1..by_start.len()).rev() {
            let (_, ended_ns, node) = by_start[place];
            if ended_ns < by_start[place - 1].1 {
                by_start[place - 1].1 = ended_ns;
                by_start[place - 1].2 = node;
            }
        }
        Self(by_start)
    }

    fn after(&self, at_ns: u64) -> Option<usize> {
        let first = self.0.partition_point(|(invoked_ns, ..)| *invoked_ns <= at_ns);
        self.0.get(first).map(|(_, _, node)| *node)
    }
}
