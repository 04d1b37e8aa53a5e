//! A budget of work for each request.
//!
//! The bytes of a request are bounded, and still a few of them can ask for much: a condition is evaluated for each item of a page, and
//! each of its functions may search all of an item. So whatever a request visits, compares, searches or copies costs *units* here. What a
//! request does before its caller's rights are known is linear in its bytes, and has limits of its own: expressions in
//! [`expression`](crate::expression), parameters of before expressions in [`legacy`](crate::legacy).
//!
//! A query or a scan whose budget is used up ends its page early, as DynamoDB may at any time, and the next request goes on behind it.
//! Other requests fail, with an error that names the budget.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;

/// Units of a request.
pub(crate) const WORK_UNITS_MAX: usize = 2 << 20;
/// Bytes that are compared, searched or copied for a unit.
const UNIT_BYTES: usize = 32;
/// Bytes of an entry of the store that are read for a unit. A value takes two bytes at least.
const UNIT_STORED_BYTES: usize = 8;

/// What is left of a request's budget.
#[derive(Debug)]
pub(crate) struct Work(AtomicUsize);

/// A budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Default for Work {
    fn default() -> Self {
        Self::new(WORK_UNITS_MAX)
    }
}

impl Work {
    pub(crate) fn new(units: usize) -> Self {
        Self(AtomicUsize::new(units))
    }

    /// For `units` values that are visited.
    pub(crate) fn spend(&self, units: usize) -> Result<(), Exhausted> {
        let left = self.0.load(Ordering::Relaxed);
        let after = left.checked_sub(units);
        self.0.store(after.unwrap_or(0), Ordering::Relaxed);
        after.map(drop).ok_or(Exhausted)
    }

    /// For a value of so many bytes that is compared, searched or copied.
    pub(crate) fn spend_bytes(&self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(1 + bytes / UNIT_BYTES)
    }

    /// For an entry of the store that is read.
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
        let work = Work::new(3);
        assert_eq!(work.spend_bytes(UNIT_BYTES), Ok(()));
        assert!(!work.is_exhausted());
        assert_eq!(work.spend(2), Err(Exhausted));
        assert!(work.is_exhausted());
        assert_eq!(work.spend(1), Err(Exhausted));
    }
}
