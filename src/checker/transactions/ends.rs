//! Whether a register may have ended by itself.

use std::collections::HashMap;

use crate::{
    history::{Call, Ended, TxnPut},
    run::Run,
};

/// What ends registers that have leases.
pub(super) struct RegisterEnds<'r> {
    run: &'r Run<'r>,
    /// The moment at which an operator first revoked grants of a lock.
    forced: HashMap<&'r str, u64>,
}

impl<'r> RegisterEnds<'r> {
    pub(super) fn from_run(run: &'r Run<'_>) -> Self {
        let mut forced: HashMap<&str, u64> = HashMap::new();
        for operation in &run.operations {
            let Call::ForceRelease { .. } = operation.call else { continue };
            if !matches!(operation.ended, Ended::Fail(_)) {
                for lock in operation.locks {
                    forced.entry(lock).or_insert(operation.invoked_ns);
                }
            }
        }
        Self { run, forced }
    }

    /// Whether a register may have ended with its lease by a moment. If its put is not known, it may.
    pub(super) fn may_have_ended(&self, put: Option<&TxnPut>, by_ns: u64) -> bool {
        let Some(put) = put else { return true };
        if put.outlives_lease {
            return false;
        }

        let forced_ns = put.claims.as_deref().and_then(|lock| self.forced.get(lock));
        if forced_ns.is_some_and(|forced_ns| *forced_ns <= by_ns) {
            return true;
        }

        let Some(session) = &put.lease else { return put.keeps_lease };
        let Some(record) = self.run.session(session) else { return true };
        let is_closing = record.closing.is_some_and(|(closing_ns, _)| closing_ns <= by_ns);
        is_closing || record.trusted.is_none_or(|lease| lease.until_ns <= by_ns)
    }
}
