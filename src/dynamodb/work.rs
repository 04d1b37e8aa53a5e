//! A budget of work for each request.
//!
//! The bytes of a request are bounded, and still a few of them can cause much work: a condition is evaluated for each item of a page, and
//! each of its functions may search a whole item. So everything that a request visits, compares, searches or copies costs *units* here. The
//! work that comes before its caller's rights are known is linear in its bytes, and has limits of its own: expressions in
//! [`expression`](crate::expression), the parameters that came before expressions in [`legacy`](crate::legacy).
//!
//! A query or a scan whose budget is used up ends its page early, as DynamoDB may at any time, and the next request goes on after it.
//! Other requests fail, with an error that names the budget.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use lockkeeper_planted::Planted;

/// Number of units of a request.
pub(crate) const WORK_UNITS_MAX: usize = 2 << 20;
/// Number of bytes that are compared, searched or copied for one unit.
const UNIT_BYTES: usize = 32;
/// Number of bytes of the store's entry that are read for one unit. A value takes at least two bytes.
const UNIT_STORED_BYTES: usize = 8;

/// The rest of a request's budget.
#[derive(Debug)]
pub(crate) struct WorkBudget(AtomicUsize);

/// The budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Default for WorkBudget {
    fn default() -> Self {
        Self::new(WORK_UNITS_MAX)
    }
}

impl WorkBudget {
    pub(crate) fn new(units: usize) -> Self {
        Self(AtomicUsize::new(units))
    }

    /// Spends a unit for each value that is visited.
    pub(crate) fn spend(&self, units: usize) -> Result<(), Exhausted> {
        if Planted::WorkWithoutBound.is_on() {
            return Ok(());
        }
        // Not one atomic step: a request has a budget of its own, and evaluates one thing after the other.
        let left = self.0.load(Ordering::Relaxed);
        let after = left.checked_sub(units);
        self.0.store(after.unwrap_or(0), Ordering::Relaxed);
        after.map(drop).ok_or(Exhausted)
    }

    /// Spends units for a value of this size that is compared, searched or copied.
    pub(crate) fn spend_bytes(&self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(1 + bytes / UNIT_BYTES)
    }

    /// Spends units for an entry of the store that is read.
    pub(crate) fn spend_stored(&self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(1 + bytes / UNIT_STORED_BYTES)
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl From<Exhausted> for Error {
    fn from(_: Exhausted) -> Self {
        Self::validation(format!(
            "the request needs more than {WORK_UNITS_MAX} units of work, the limit (a unit: a value visited, {UNIT_BYTES} bytes compared \
             or copied, or {UNIT_STORED_BYTES} bytes read): name fewer items, or use fewer and simpler conditions"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_once() {
        let work = WorkBudget::new(3);
        assert_eq!(work.spend_bytes(UNIT_BYTES), Ok(()));
        assert!(!work.is_exhausted());
        assert_eq!(work.spend(2), Err(Exhausted));
        assert!(work.is_exhausted());
        assert_eq!(work.spend(1), Err(Exhausted));
    }
}
