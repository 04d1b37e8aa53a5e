//! Transactions as reads and writes of registers. Keys and values are numbers, in the order in which the history names them.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{
    history::{Answer, Call, CompareRelation, CompareTarget, Ended, StepResult, Transaction, TxnAnswer, TxnStep},
    run::Run,
};

/// A transaction.
pub(crate) struct ExportedTxn {
    pub(crate) operations: Vec<MicroOperation>,
    pub(crate) begin_ns: u64,
    /// The time of its answer. Without one, its outcome is unknown.
    pub(crate) end_ns: Option<u64>,
    pub(crate) has_failed: bool,
}

/// A read or a write of one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MicroOperation {
    Read { key: usize, value: Option<usize> },
    Write { key: usize, value: usize },
}

/// The numbers of the keys and values.
#[derive(Default)]
struct Numbers<'r> {
    keys: HashMap<&'r str, usize>,
    values: HashMap<(usize, &'r str), usize>,
}

impl<'r> Numbers<'r> {
    fn key(&mut self, key: &'r str) -> usize {
        let next = self.keys.len();
        *self.keys.entry(key).or_insert(next)
    }

    fn value(&mut self, key: usize, value: &'r str) -> usize {
        let next = self.values.len() + 1;
        *self.values.entry((key, value)).or_insert(next)
    }
}

/// The registers that are written, and never absent after that.
fn lasting<'r>(run: &'r Run<'_>) -> BTreeSet<&'r str> {
    let mut written = BTreeSet::new();
    let mut ending = HashSet::new();
    let mut ranges = Vec::new();

    for operation in &run.operations {
        let Call::Txn(transaction) = operation.call else { continue };
        for step in transaction.then.iter().chain(&transaction.otherwise) {
            match step {
                TxnStep::Put(put) => {
                    written.insert(&*put.key);
                    if put.lease.is_some() || put.keeps_lease {
                        ending.insert(&*put.key);
                    }
                }
                TxnStep::Delete { key } => {
                    ending.insert(key);
                }
                TxnStep::DeleteRange(range) => ranges.push(range),
                TxnStep::Get { .. } | TxnStep::Range(_) => {}
            }
        }
    }

    written.retain(|key| !ending.contains(key) && ranges.iter().all(|range| !range.contains(key)));
    written
}

/// All transactions that read or write such registers, in the order of their starts.
pub(super) fn transactions(run: &Run<'_>) -> Vec<ExportedTxn> {
    let keys = lasting(run);
    let mut numbers = Numbers::default();
    let mut exported = Vec::new();
    for operation in &run.operations {
        let Call::Txn(transaction) = operation.call else { continue };
        if transaction.at.is_some() || transaction.stale {
            continue;
        }

        let mut operations = Vec::new();
        let mut has_failed = false;
        match operation.ended {
            Ended::Ok(Answer::Txn(answer)) => add_steps(transaction, answer, &keys, &mut numbers, &mut operations),
            Ended::Fail(_) => {
                has_failed = true;
                add_writes(&transaction.then, &keys, &mut numbers, &mut operations);
                add_writes(&transaction.otherwise, &keys, &mut numbers, &mut operations);
            }
            Ended::Ok(_) | Ended::Info | Ended::Open => {
                add_writes(&transaction.then, &keys, &mut numbers, &mut operations);
                add_writes(&transaction.otherwise, &keys, &mut numbers, &mut operations);
            }
        }

        if !operations.is_empty() {
            let end_ns = Some(operation.ended_ns).filter(|_| !operation.is_unknown());
            exported.push(ExportedTxn { operations, begin_ns: operation.invoked_ns, end_ns, has_failed });
        }
    }
    exported
}

fn add_writes<'r>(
    steps: &'r [TxnStep],
    keys: &BTreeSet<&'r str>,
    numbers: &mut Numbers<'r>,
    operations: &mut Vec<MicroOperation>,
) {
    for step in steps {
        if let TxnStep::Put(put) = step
            && keys.contains(&*put.key)
        {
            let key = numbers.key(&put.key);
            let value = numbers.value(key, &put.value);
            operations.push(MicroOperation::Write { key, value });
        }
    }
}

fn add_steps<'r>(
    transaction: &'r Transaction,
    answer: &'r TxnAnswer,
    keys: &BTreeSet<&'r str>,
    numbers: &mut Numbers<'r>,
    operations: &mut Vec<MicroOperation>,
) {
    let mut read = |numbers: &mut Numbers<'r>, key: &'r str, value: Option<&'r str>| {
        if keys.contains(key) {
            let key = numbers.key(key);
            let value = value.map(|value| numbers.value(key, value));
            operations.push(MicroOperation::Read { key, value });
        }
    };

    let is_seen = |compare: &&crate::history::TxnCompare| {
        let is_value = compare.target == CompareTarget::Value && compare.is == CompareRelation::Equal;
        is_value && compare.up_to.is_none() && answer.succeeded
    };
    for compare in transaction.compares.iter().filter(is_seen) {
        read(numbers, &compare.key, compare.text.as_deref());
    }

    let steps = transaction.branch(answer.succeeded);
    for (step, result) in steps.iter().zip(&answer.results) {
        match (step, result) {
            (TxnStep::Get { key }, StepResult::Got(seen)) => match seen.as_ref().map(|seen| seen.value.as_deref()) {
                // A value that is not shown tells nothing.
                Some(None) => {}
                Some(Some(value)) => read(numbers, key, Some(value)),
                None => read(numbers, key, None),
            },
            (TxnStep::Range(range), StepResult::Ranged(seen)) if !seen.more && !seen.partial => {
                let shown: HashMap<&str, _> =
                    seen.registers.iter().map(|(key, seen)| (&**key, seen.value.as_deref())).collect();
                for key in keys.iter().filter(|key| range.contains(key)) {
                    match shown.get(key) {
                        Some(None) => {}
                        Some(Some(value)) => read(numbers, key, Some(value)),
                        None => read(numbers, key, None),
                    }
                }
            }
            _ => {}
        }
    }
    add_writes(steps, keys, numbers, operations);
}
