//! Registers that are read, and that are set if they have an expected value. A search checks the linearizability of each.
//!
//! A register stands for an item of DynamoDB with a condition, or for a key in a transaction of etcd. The same rules hold as for locks in
//! `linearizable`. The first [`OPERATIONS_MAX`] operations of each register are searched, and an unknown outcome may take effect at any
//! later time, or never.

use std::collections::BTreeMap;

use super::{
    run::Run,
    wgl::{Model, OPERATIONS_MAX, Timed},
};
use crate::history::{Answer, Call, Ended, Operation};

/// A register, which starts without a value.
#[derive(Debug)]
pub(super) struct Register;

/// An observation of a register, or an action on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RegisterStep {
    /// It was read.
    Read(Option<u64>),
    /// It was set, from this value to that one.
    Set(Option<u64>, Option<u64>),
    /// It was not set, because it had another value than this one.
    Refused(Option<u64>),
}

impl Model for Register {
    type Step = RegisterStep;
    type State = Option<u64>;

    fn apply(&self, state: &Self::State, step: &RegisterStep) -> Option<Self::State> {
        match step {
            RegisterStep::Read(value) => (state == value).then_some(*state),
            RegisterStep::Set(from, to) => (state == from).then_some(*to),
            RegisterStep::Refused(from) => (state != from).then_some(*state),
        }
    }

    fn reads(step: &RegisterStep) -> bool {
        matches!(step, RegisterStep::Read(_) | RegisterStep::Refused(_))
    }

    fn rank(&self, _: &RegisterStep) -> Option<u64> {
        None
    }
}

/// The steps of one register, and the lines of each.
pub(super) type Steps = (Vec<Timed<RegisterStep>>, Vec<[usize; 2]>);

/// The steps of each register, by its name.
pub(super) fn steps<'r>(run: &'r Run<'_>) -> BTreeMap<&'r str, Steps> {
    let mut registers: BTreeMap<&str, Steps> = BTreeMap::new();
    let mut horizons: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in &run.operations {
        let (Some(step), [name]) = (step(operation), operation.locks) else { continue };
        let (timed, lines) = registers.entry(name).or_default();

        if timed.len() == OPERATIONS_MAX {
            horizons.entry(name).or_insert(operation.invoked_ns);
            continue;
        }

        timed.push(Timed { step, begin_ns: operation.invoked_ns, end_ns: operation.ended_ns });
        lines.push([operation.invoked_line, operation.ended_line]);
    }

    for (name, horizon_ns) in horizons {
        let steps = registers.get_mut(name).into_iter().flat_map(|(timed, _)| timed);
        steps.filter(|step| step.end_ns >= horizon_ns).for_each(|step| step.end_ns = u64::MAX);
    }

    registers
}

fn step(operation: &Operation<'_>) -> Option<RegisterStep> {
    match (operation.call, operation.ended) {
        (Call::Read {}, Ended::Ok(Answer::Read { value })) => Some(RegisterStep::Read(*value)),
        (Call::Set { from, to }, Ended::Ok(_) | Ended::Info | Ended::Open) => Some(RegisterStep::Set(*from, *to)),
        (Call::Set { from, .. }, Ended::Fail("not_equal")) => Some(RegisterStep::Refused(*from)),
        _ => None,
    }
}
