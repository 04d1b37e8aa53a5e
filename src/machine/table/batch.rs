//! The limits of the batch that is being applied, and what is left of them. Not part of a record: the next batch brings its own.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::types::*;

/// What the current batch may do.
#[derive(Clone, Default)]
pub(crate) struct BatchBudget {
    limits: Limits,
    /// Units of work that the current part of the batch may still do.
    units: usize,
    /// The sessions that the transaction in progress opens for temporary entries.
    opening_temporaries: BTreeSet<SessionId>,
    done: WorkDone,
}

/// Units of work that were done, also by what only reads the table. Nothing is decided by it.
#[derive(Default)]
struct WorkDone(AtomicUsize);

impl Clone for WorkDone {
    fn clone(&self) -> Self {
        Self(AtomicUsize::new(self.units()))
    }
}

impl WorkDone {
    fn units(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl BatchBudget {
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Begins to count the work that is done.
    pub(crate) fn begin_work(&mut self) {
        self.done = WorkDone::default();
    }

    /// Counts work that charges no budget.
    pub(crate) fn note_work(&self, units: usize) {
        self.done.0.fetch_add(units, Ordering::Relaxed);
    }

    /// Units of work that were done since it began to count.
    pub(crate) fn work_done(&self) -> usize {
        self.done.units()
    }

    /// Begins a part of the batch, with a budget of its own in units of work.
    pub(crate) fn allow(&mut self, units: usize) {
        self.units = units;
    }

    /// Units that the current part may still do.
    pub(crate) fn left(&self) -> usize {
        self.units
    }

    pub(crate) fn spend(&mut self, units: usize) {
        self.note_work(units);
        self.units = self.units.saturating_sub(units);
    }

    /// Whether the budget is used up, so that the rest goes to the backlog.
    pub(crate) fn is_spent(&self) -> bool {
        self.units == 0
    }

    /// Begins a transaction that opens these sessions for temporary entries, which have `bytes` of the table beyond its limit.
    pub(crate) fn begin_temporaries(&mut self, sessions: BTreeSet<SessionId>, bytes: usize) {
        self.opening_temporaries = sessions;
        self.limits.table_bytes = self.limits.table_bytes.saturating_add(bytes);
    }

    /// Ends the transaction; `limits` are those from before it.
    pub(crate) fn end_temporaries(&mut self, limits: Limits) {
        self.opening_temporaries.clear();
        self.limits = limits;
    }

    /// Whether the transaction in progress opens this session for a temporary entry.
    pub(crate) fn opens_temporary(&self, session: SessionId) -> bool {
        self.opening_temporaries.contains(&session)
    }
}
