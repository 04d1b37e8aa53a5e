//! The counts of a run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    faults,
    leases::{self, LeaseEnd},
    tenures::{self, Tenure},
};
use crate::history::{Answer, Ended, Fact, Function, History, Operation, ReadError, What, operations};

/// Counts over a whole history.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// The time from the first to the last line, in milliseconds.
    pub duration_ms: u64,
    /// Number of lines with an event.
    pub events: usize,
    /// Whether the run is complete.
    pub ended: bool,
    /// Number of processes with operations.
    pub clients: usize,
    /// Number of locks that occur in the history.
    pub locks: usize,
    /// Number of sessions with an answered open.
    pub sessions: usize,
    /// Counts of operations by function.
    pub operations: Vec<OperationCount>,
    /// Number of answered grants, each counted once.
    pub grants: usize,
    /// Number of grants of a lock whose holder before was another session.
    pub hand_overs: usize,
    /// Number of sessions that ended without a close: their deadline passed, or their client noticed the loss.
    pub expiries: usize,
    /// Number of losses that holders noticed, by reason.
    pub losses: BTreeMap<String, usize>,
    /// Number of grants that an operator revoked.
    pub forced_releases: usize,
    /// Number of writes that a resource refused because of an old token.
    pub refused_writes: usize,
    /// Number of clients that were killed.
    pub clients_killed: usize,
    /// Number of elections that a node won.
    pub elections: usize,
    /// Number of nodes that were killed.
    pub nodes_killed: usize,
    /// Number of starts of nodes.
    pub nodes_started: usize,
    /// Number of nodes that were stopped gracefully.
    pub nodes_stopped: usize,
    /// Number of nodes that joined and became voters.
    pub nodes_joined: usize,
    /// Number of members that were removed.
    pub nodes_removed: usize,
    /// Number of leaderships that were handed over on request.
    pub transfers: usize,
    /// Number of snapshots that a node installed from its leader.
    pub snapshots_installed: usize,
    /// Number of injected faults. Kills that are part of a fault are counted separately.
    pub faults_injected: usize,
    /// Counts of faults by name.
    pub faults: Vec<FaultCount>,
}

/// The outcomes of the operations of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OperationCount {
    /// The value of `f` in a history.
    pub f: &'static str,
    /// Number of starts.
    pub invoked: usize,
    /// Number of successes.
    pub ok: usize,
    /// Number of failures, by reason.
    pub failed: BTreeMap<String, usize>,
    /// Number of unknown outcomes.
    pub unknown: usize,
}

/// The injections of one fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FaultCount {
    /// Its name.
    pub name: String,
    /// Number of injections.
    pub times: usize,
    /// The total duration in milliseconds.
    pub lasted_ms: u64,
}

impl Summary {
    /// Counts a history. Fails as [`operations`] does.
    pub fn from_history(history: &History) -> Result<Self, ReadError> {
        let operations = operations(history)?;
        let first_ns = history.events.first().map_or(0, |(_, event)| event.time_ns);
        let last_ns = history.events.last().map_or(0, |(_, event)| event.time_ns);
        let leases = leases::leases(history, &operations);
        let tenures = tenures::tenures(history, &operations, &leases);

        let mut summary = Self {
            duration_ms: (last_ns - first_ns) / 1_000_000,
            events: history.events.len(),
            clients: distinct(operations.iter().map(|operation| operation.process)),
            locks: distinct(history.events.iter().flat_map(|(_, event)| &event.locks)),
            sessions: leases.len(),
            operations: by_function(&operations),
            grants: distinct(tenures.iter().map(|tenure| (tenure.session, tenure.token))),
            hand_overs: hand_overs(&tenures),
            forced_releases: operations.iter().map(revoked).sum(),
            refused_writes: operations.iter().filter(|operation| is_refused_write(operation)).count(),
            faults: fault_counts(history),
            ..Self::default()
        };

        summary.faults_injected = summary.faults.iter().map(|fault| fault.times).sum();
        summary.expiries = leases
            .values()
            .filter(|lease| matches!(lease.until(last_ns).1, LeaseEnd::Expired | LeaseEnd::Lost))
            .count();

        for (_, event) in &history.events {
            if let What::Fact(fact) = &event.what {
                summary.count(fact);
            }
        }
        Ok(summary)
    }

    fn count(&mut self, fact: &Fact) {
        match fact {
            Fact::Lost { why, .. } => *self.losses.entry(why.clone()).or_default() += 1,
            Fact::Died { .. } => self.clients_killed += 1,
            Fact::Killed { .. } => self.nodes_killed += 1,
            Fact::Started { .. } => self.nodes_started += 1,
            Fact::Stopped { .. } => self.nodes_stopped += 1,
            Fact::Joined { .. } => self.nodes_joined += 1,
            Fact::Removed { .. } => self.nodes_removed += 1,
            Fact::Transferred { .. } => self.transfers += 1,
            Fact::Elected { .. } => self.elections += 1,
            Fact::SnapshotInstalled { .. } => self.snapshots_installed += 1,
            Fact::End => self.ended = true,
            Fact::Meta(_)
            | Fact::Renewed { .. }
            | Fact::Bystander { .. }
            | Fact::Fault { .. }
            | Fact::Heal { .. }
            | Fact::Table { .. }
            | Fact::Speaks { .. }
            | Fact::Watching { .. }
            | Fact::Watched { .. }
            | Fact::WatchProgress { .. }
            | Fact::WatchEnded { .. }
            | Fact::RefusedEntry { .. }
            | Fact::LongestTurn { .. }
            | Fact::LongestApply { .. }
            | Fact::Restored
            | Fact::Other { .. } => {}
        }
    }
}

fn distinct<T: Ord>(of: impl Iterator<Item = T>) -> usize {
    of.collect::<BTreeSet<_>>().len()
}

fn by_function(operations: &[Operation<'_>]) -> Vec<OperationCount> {
    let mut counts: BTreeMap<&'static str, OperationCount> = BTreeMap::new();
    for operation in operations {
        let f = operation.call.function().name();
        let none = OperationCount { f, invoked: 0, ok: 0, failed: BTreeMap::new(), unknown: 0 };
        let count = counts.entry(f).or_insert(none);

        count.invoked += 1;
        match operation.ended {
            Ended::Ok(_) => count.ok += 1,
            Ended::Fail(reason) => *count.failed.entry(reason.to_owned()).or_default() += 1,
            Ended::Info | Ended::Open => count.unknown += 1,
        }
    }
    counts.into_values().collect()
}

/// Concurrent shared holders do not count: a hand-over needs a tenure that ended.
fn hand_overs(tenures: &[Tenure<'_>]) -> usize {
    let mut last: BTreeMap<&str, &Tenure<'_>> = BTreeMap::new();
    let mut count = 0;
    for tenure in tenures {
        let before = last.insert(tenure.lock, tenure);
        count += usize::from(
            before.is_some_and(|before| before.session != tenure.session && before.until_ns <= tenure.from_ns),
        );
    }
    count
}

fn revoked(operation: &Operation<'_>) -> usize {
    match operation.ended {
        Ended::Ok(Answer::ForceRelease { revoked }) => revoked.len(),
        Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => 0,
    }
}

pub(super) fn is_refused_write(operation: &Operation<'_>) -> bool {
    operation.call.function() == Function::Write && matches!(operation.ended, Ended::Fail("refused_token"))
}

fn fault_counts(history: &History) -> Vec<FaultCount> {
    let count = |(name, spans): (&str, Vec<faults::InjectedFault>)| FaultCount {
        name: name.to_owned(),
        times: spans.len(),
        lasted_ms: spans.iter().map(|one| one.span.to_ns - one.span.from_ns).sum::<u64>() / 1_000_000,
    };
    faults::faults(history).into_iter().map(count).collect()
}
