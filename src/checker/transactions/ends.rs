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
        self.may_end_from(put).is_some_and(|from_ns| from_ns <= by_ns)
    }

    /// The moment from which on a register may have ended with the lease of its put. None: it cannot.
    pub(super) fn may_end_from(&self, put: &TxnPut) -> Option<u64> {
        if put.outlives_lease {
            return None;
        }

        let forced_ns = put.claims.as_deref().and_then(|lock| self.forced.get(lock)).copied();
        let lease_ns = match &put.lease {
            Some(session) => Some(self.session_may_end_from(session)),
            // The lease that it keeps is not known.
            None => put.keeps_lease.then_some(0),
        };
        forced_ns.into_iter().chain(lease_ns).min()
    }

    fn session_may_end_from(&self, session: &str) -> u64 {
        let Some(record) = self.run.session(session) else { return 0 };
        let closing_ns = record.closing.map(|(closing_ns, _)| closing_ns);
        let expires_ns = record.trusted.map_or(0, |lease| lease.until_ns);
        closing_ns.map_or(expires_ns, |closing_ns| closing_ns.min(expires_ns))
    }
}
