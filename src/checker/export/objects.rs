//! Locks and registers as registers with compare-and-set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    grants::Grants,
    history::{Answer, Call, Ended, Mode, Operation},
    run::Run,
};

/// An operation on a register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExportedOperation {
    pub(crate) step: ExportedStep,
    pub(crate) begin_ns: u64,
    /// The time of its answer. Without one, its outcome is unknown.
    pub(crate) end_ns: Option<u64>,
}

/// What an operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExportedStep {
    /// It read this value.
    Read(Option<i128>),
    /// It set the register from one value to another.
    Set(Option<i128>, Option<i128>),
    /// It did not set the register, since that did not have the first value.
    Refused(Option<i128>, Option<i128>),
}

/// A lock or a register.
pub(super) struct ExportedObject {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) operations: Vec<ExportedOperation>,
}

/// All locks that are exclusive, and all registers, with their operations in the order of their starts.
pub(super) fn objects(run: &Run<'_>, grants: &Grants<'_>) -> Vec<ExportedObject> {
    let locks = locks(run, grants).into_iter().map(|(name, operations)| ("lock", name, operations));
    let registers = registers(run).into_iter().map(|(name, operations)| ("register", name, operations));
    let object = |(kind, name, mut operations): (&'static str, &str, Vec<ExportedOperation>)| {
        operations.sort_by_key(|operation| operation.begin_ns);
        ExportedObject { kind, name: name.to_owned(), operations }
    };
    locks.chain(registers).map(object).collect()
}

fn registers<'r>(run: &'r Run<'_>) -> BTreeMap<&'r str, Vec<ExportedOperation>> {
    let mut registers: BTreeMap<&str, Vec<ExportedOperation>> = BTreeMap::new();
    for operation in &run.operations {
        let [name] = operation.locks else { continue };
        let number = |value: &Option<u64>| value.map(i128::from);

        let step = match (operation.call, operation.ended) {
            (Call::Read {}, Ended::Ok(Answer::Read { value })) => ExportedStep::Read(number(value)),
            (Call::Set { from, to }, Ended::Fail("not_equal")) => ExportedStep::Refused(number(from), number(to)),
            (Call::Set { .. }, Ended::Fail(_)) => continue,
            (Call::Set { from, to }, _) => ExportedStep::Set(number(from), number(to)),
            _ => continue,
        };

        registers.entry(name).or_default().push(exported(operation, step));
    }
    registers
}

fn exported(operation: &Operation<'_>, step: ExportedStep) -> ExportedOperation {
    let end_ns = Some(operation.ended_ns).filter(|_| !operation.is_unknown());
    ExportedOperation { step, begin_ns: operation.invoked_ns, end_ns }
}

fn locks<'r>(run: &'r Run<'_>, grants: &'r Grants<'_>) -> BTreeMap<&'r str, Vec<ExportedOperation>> {
    let mut others = BTreeSet::new();
    for (_, operation, acquire) in run.acquires() {
        for (place, lock) in operation.locks.iter().enumerate() {
            if acquire.mode.mode_at(place).unwrap_or_default() != Mode::Exclusive {
                others.insert(&**lock);
            }
        }
    }

    let mut locks: BTreeMap<&str, Vec<ExportedOperation>> = BTreeMap::new();
    let mut granted = HashSet::new();
    let mut of_token: HashMap<(&str, u64), &[String]> = HashMap::new();
    for grant in &grants.by_token {
        granted.insert(grant.operation);
        of_token.insert((grant.session, grant.token), grant.locks);
        let token = Some(i128::from(grant.token));
        for lock in grant.locks {
            let operations = locks.entry(lock).or_default();
            let step = ExportedStep::Set(None, token);
            operations.push(ExportedOperation { step, begin_ns: grant.invoked_ns, end_ns: Some(grant.answered_ns) });
            // From then on, the grant may end by itself, or be ended by an operation that does not name it.
            let step = ExportedStep::Set(token, None);
            let begin_ns = grant.until_ns.max(grant.invoked_ns);
            operations.push(ExportedOperation { step, begin_ns, end_ns: None });
        }
    }

    for (place, operation, _) in run.acquires() {
        if !operation.is_unknown() || granted.contains(&place) {
            continue;
        }
        // Its token is not known: a negative number is none of a grant.
        let token = Some(-1 - i128::try_from(place).unwrap_or_default());
        for lock in operation.locks {
            let operations = locks.entry(lock).or_default();
            for step in [ExportedStep::Set(None, token), ExportedStep::Set(token, None)] {
                operations.push(ExportedOperation { step, begin_ns: operation.invoked_ns, end_ns: None });
            }
        }
    }

    add_uses(run, &of_token, &mut locks);
    locks.retain(|lock, _| !others.contains(lock));
    locks
}

/// Adds releases and reads.
fn add_uses<'r>(
    run: &'r Run<'_>,
    of_token: &HashMap<(&str, u64), &'r [String]>,
    locks: &mut BTreeMap<&'r str, Vec<ExportedOperation>>,
) {
    let known: HashSet<u64> = of_token.keys().map(|(_, token)| *token).collect();

    for operation in &run.operations {
        match (operation.call, operation.ended) {
            (Call::Release { session, token }, Ended::Ok(_)) => {
                let step = ExportedStep::Set(Some(i128::from(*token)), None);
                for lock in of_token.get(&(&**session, *token)).copied().unwrap_or_default() {
                    locks.entry(lock).or_default().push(exported(operation, step));
                }
            }
            (Call::Get {}, Ended::Ok(Answer::Get(view))) => {
                let [lock] = operation.locks else { continue };
                let tokens: Vec<_> = view.holders.iter().map(|holder| holder.token).collect();
                // A token that no answer told may be that of an acquire without an answer.
                let value = match *tokens {
                    [] => None,
                    [token] if known.contains(&token) => Some(i128::from(token)),
                    _ => continue,
                };
                locks.entry(lock).or_default().push(exported(operation, ExportedStep::Read(value)));
            }
            _ => {}
        }
    }
}
