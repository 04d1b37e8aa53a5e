//! Writes that have arrived together: each is a transaction of its own, and all of them are under way at the same time.
//!
//! Threads of a program share a session, and send writes for many locks behind each other. If each waited for the one before, a session
//! would be as slow as the log is for one write.
//!
//! A client's writes take effect in the order in which it sent them. One that read what others have written meanwhile must be planned
//! anew, and none that follows it may have had an effect by then. So each transaction has the conditions of all that precede it, too
//! ([`HeldConditions`]): where one of them fails by a condition, those that follow fail with it. A write whose effect on later conditions
//! cannot be told in advance, since it gives an entry a new revision, is the last one.

use std::{collections::HashMap, mem::take};

use lockkeeper_planted::Planted;

use super::{
    execute::{PlanJudgement, WriteContext, WriteOutcome, execute, judge},
    plan::WritePlan,
};
use crate::{
    ZookeeperCommitted, ZookeeperCondition, ZookeeperEntry, ZookeeperStore, ZookeeperStoreError, ZookeeperTxn,
    ZookeeperWrite,
    wire::{ErrorCode, WriteOperation},
};

/// Writes that are under way together at most. Each has the conditions of those before it.
pub(crate) const TOGETHER_MAX: usize = 16;

/// Does the first of these requests, or as many of the first ones as can be under way together. Returns what became of them; there is at
/// least one. Each fails as in [`execute`], and dropping the future abandons them as there.
pub(crate) async fn execute_each<S: ZookeeperStore>(
    context: &WriteContext<'_, S>,
    requests: &[WriteOperation],
) -> Vec<Result<WriteOutcome, ZookeeperStoreError>> {
    let mut plans = plan_together(context, requests);
    if plans.len() > 1 {
        let txns = plans.iter_mut().map(|plan| take(&mut plan.txn)).collect::<Vec<_>>();
        let keys = txns.iter().map(|txn| txn.otherwise_get.clone()).collect::<Vec<_>>();
        let verdicts = context.store.commit_each(context.caller, context.attached, txns).await;
        let outcomes = judge_each(context, requests, plans, &keys, verdicts);
        if !outcomes.is_empty() {
            return outcomes;
        }
    }

    let first = requests.get(..1).unwrap_or_default();
    vec![execute(context, first).await]
}

/// Plans the first of these requests, as many as can be under way together, all in the state that this node has applied.
fn plan_together<S: ZookeeperStore>(context: &WriteContext<'_, S>, requests: &[WriteOperation]) -> Vec<WritePlan> {
    let planner = context.planner();
    let mut held = HeldConditions::default();

    context.store.applied(|applied| {
        let get = |key: &[u8]| applied.get(key);
        let mut plans = Vec::new();
        for request in requests.iter().take(TOGETHER_MAX) {
            let mut plan = WritePlan::make(&planner, std::slice::from_ref(request), &get);
            // An operation that fails in this state may succeed after the ones before it.
            if plan.failure.is_some() || !held.admit(&mut plan.txn) {
                break;
            }
            plans.push(plan);
        }
        plans
    })
}

/// What became of plans, up to the first one that must be made anew.
fn judge_each<S: ZookeeperStore>(
    context: &WriteContext<'_, S>,
    requests: &[WriteOperation],
    plans: Vec<WritePlan>,
    keys: &[Vec<Vec<u8>>],
    verdicts: Vec<Result<ZookeeperCommitted, ZookeeperStoreError>>,
) -> Vec<Result<WriteOutcome, ZookeeperStoreError>> {
    let has_effect = |verdict: &Result<ZookeeperCommitted, _>| verdict.as_ref().is_ok_and(|it| it.refusal.is_none());
    let last_effect = verdicts.iter().rposition(has_effect);

    let mut outcomes = Vec::new();
    for (place, (plan, verdict)) in plans.into_iter().zip(verdicts).enumerate() {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(failure) => {
                outcomes.push(Err(failure));
                continue;
            }
        };
        let revision = verdict.revision;
        match judge(plan, verdict) {
            PlanJudgement::Ended(outcome) => outcomes.push(Ok(outcome)),
            PlanJudgement::Again(found) => {
                let shown = keys[place].iter().map(Vec::as_slice).zip(found).collect();
                if let Some(code) = failure_in(context, &requests[place], &shown) {
                    outcomes.push(Ok(WriteOutcome::Failed { revision, operation: 0, code }));
                } else if last_effect.is_some_and(|last| last > place) {
                    // Other clients have changed and then removed the nodes that it read, between the two requests. It can no longer be
                    // placed after those changes.
                    let why = "others have written the same nodes between two requests that were sent together";
                    outcomes.push(Err(ZookeeperStoreError::Unknown(why.to_owned())));
                } else {
                    break;
                }
            }
        }
    }
    outcomes
}

/// Why a request fails in the state that its verdict has shown, if it does and nothing else was read.
fn failure_in<S: ZookeeperStore>(
    context: &WriteContext<'_, S>,
    request: &WriteOperation,
    shown: &HashMap<&[u8], Option<ZookeeperEntry>>,
) -> Option<ErrorCode> {
    let is_all_shown = std::cell::Cell::new(true);
    let get = |key: &[u8]| {
        let found = shown.get(key);
        is_all_shown.set(is_all_shown.get() && found.is_some());
        found.cloned().flatten()
    };
    let plan = WritePlan::make(&context.planner(), std::slice::from_ref(request), &get);
    plan.failure.filter(|_| is_all_shown.get()).map(|(_, code)| code)
}

/// The conditions of the transactions that are under way, as they are once all of these have had their effect.
#[derive(Default)]
struct HeldConditions {
    conditions: Vec<ZookeeperCondition>,
    /// Whether an entry has got a revision that nobody knows yet.
    is_closed: bool,
}

impl HeldConditions {
    /// Adds a transaction, which gets the conditions of those before it. Returns `false` if it cannot be under way beside them.
    fn admit(&mut self, txn: &mut ZookeeperTxn) -> bool {
        let contradicts = |condition: &ZookeeperCondition| {
            self.modified(&condition.key).is_some_and(|modified| modified != condition.modified)
        };
        let writes_again = |write: &ZookeeperWrite| match write {
            // What is read and created, or was deleted before, would have an unknown revision for those that follow.
            ZookeeperWrite::CreateChild { key, .. } => self.modified(key).is_some(),
            ZookeeperWrite::Put { .. } | ZookeeperWrite::Delete { .. } => false,
        };
        if self.is_closed || txn.conditions.iter().any(contradicts) || txn.writes.iter().any(writes_again) {
            return false;
        }

        let is_own = |held: &ZookeeperCondition| txn.conditions.iter().any(|own| own.key == held.key);
        let before: Vec<_> = self.conditions.iter().filter(|held| !is_own(held)).cloned().collect();
        for own in &txn.conditions {
            self.hold(own.key.clone(), own.modified);
        }
        if !Planted::WriteOvertakesFailed.is_on() {
            txn.conditions.extend(before);
        }

        for write in &txn.writes {
            match write {
                ZookeeperWrite::Delete { key } => self.hold(key.clone(), 0),
                ZookeeperWrite::Put { .. } => self.is_closed = true,
                // The entry of the parent keeps its revision.
                ZookeeperWrite::CreateChild { .. } => {}
            }
        }
        true
    }

    fn modified(&self, key: &[u8]) -> Option<u64> {
        self.conditions.iter().find(|held| held.key == key).map(|held| held.modified)
    }

    fn hold(&mut self, key: Vec<u8>, modified: u64) {
        match self.conditions.iter_mut().find(|held| held.key == key) {
            Some(held) => held.modified = modified,
            None => self.conditions.push(ZookeeperCondition { key, modified }),
        }
    }
}
