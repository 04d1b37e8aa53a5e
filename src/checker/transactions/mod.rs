//! Serializability: transactions over registers take effect in one order, which agrees with real time.
//!
//! Anomalies have the names of Adya and of Elle (<https://github.com/jepsen-io/elle>):
//!
//! * A store with revisions tells the order. [`timeline`] collects the changes of each register, and [`revisions`] checks in one pass that
//!   each transaction saw the state of its revision.
//! * A store without revisions tells nothing. [`dependencies`] infers the order from values that are put once, and [`cycles`] finds circles
//!   of transactions that depend on each other.
//!
//! [`watches`] checks what watches reported of the same changes.
//!
//! Deliberately absent: a search for an order of transactions without revisions whose values are not unique. It takes exponential time.

mod anomaly;
mod cycles;
mod dependencies;
mod ends;
#[cfg(test)]
mod random_tests;
mod revisions;
#[cfg(test)]
mod tests;
mod timeline;
mod watches;

pub(super) use self::revisions::EndedEarly;
use self::{ends::RegisterEnds, timeline::Timelines};
use super::{
    run::Run,
    verdict::{Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended, Fact};

/// What the transactions and watches of a run show.
#[derive(Default)]
pub(super) struct ExaminedTxns {
    /// The finding about serializability, if the history has transactions.
    pub(super) serializability: Option<Finding>,
    /// The finding about watches, if the history has any.
    pub(super) watches: Option<Finding>,
    /// The registers that ended before their leases.
    pub(super) ended_early: Vec<EndedEarly>,
}

/// Checks all transactions and watches.
pub(super) fn examine(run: &Run<'_>) -> ExaminedTxns {
    let has_transactions = run.operations.iter().any(|operation| matches!(operation.call, Call::Txn(_)));
    let has_watches = run.facts.iter().any(|told| matches!(told.fact, Fact::Watching { .. }));
    if !has_transactions && !has_watches {
        return ExaminedTxns::default();
    }

    let mut investigation = Investigation::new(Property::Serializability);
    investigation.count("transactions", 0);
    let timelines = Timelines::from_run(run, &mut investigation);
    let ends = RegisterEnds::from_run(run);
    let mut ended_early = revisions::check(run, &timelines, &ends, &mut investigation);

    let lacks_revision =
        |ended: Ended<'_>| matches!(ended, Ended::Ok(Answer::Txn(answer)) if answer.revision.is_none());
    if run.operations.iter().any(|operation| lacks_revision(operation.ended)) {
        dependencies::check(run, &ends, &mut investigation);
    }

    let mut watches = None;
    if has_watches {
        let (finding, of_watches) = watches::check(run, &timelines, &ends);
        watches = Some(finding);
        ended_early.extend(of_watches);
    }

    // A register that ended too early is one violation, whoever saw it first.
    ended_early.sort_unstable_by_key(|early| (early.put_line, early.key.clone(), early.told));
    ended_early.dedup_by(|later, first| (later.put_line, &later.key) == (first.put_line, &first.key));
    let serializability = has_transactions.then(|| investigation.close());
    ExaminedTxns { serializability, watches, ended_early }
}
