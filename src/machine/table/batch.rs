//! The limits of the batch that is being applied, and what is left of them. Not part of a record: the next batch brings its own.

use std::collections::BTreeSet;

use crate::types::*;

/// What the current batch may do.
#[derive(Clone, Default)]
pub(crate) struct BatchBudget {
    limits: Limits,
    /// Units of work that the current part of the batch may still do.
    units: usize,
    /// The sessions that the transaction in progress opens for temporary entries.
    opening_temporaries: BTreeSet<SessionId>,
}

impl BatchBudget {
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
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
