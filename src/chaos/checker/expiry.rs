//! Eventual expiry: a dead holder's lock passes on.
//!
//! A process that `died` renews nothing any more. After its TTL, plus the `expiry_bound_ms` of the meta, its locks are granted to those
//! who wait. Both count calm time only: while there is no leader, the cluster's time stands still, and no session expires.

use std::{collections::BTreeMap, fmt};

use super::{
    occupancy::{Gap, Gone, Left, Lock, Waiting},
    run::{MS, Run},
    show::Ms,
    verdict::{Conviction, Finding, Inquiry, Property},
};

struct NotPassedOn<'r> {
    lock: &'r str,
    holder: Gone,
    free_ns: u64,
    waiter: &'r str,
    lines: [usize; 2],
}

impl fmt::Display for NotPassedOn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, holder, free_ns, waiter, .. } = self;
        let (expired, free) = (Ms(holder.ns), Ms(*free_ns));
        write!(
            f,
            "lock {lock:?}: its holder died and was to expire at {expired}, and {waiter:?} waited {free} more for it"
        )
    }
}

impl Conviction for NotPassedOn<'_> {
    fn lines(&self) -> Vec<usize> {
        [&[self.holder.line][..], &self.lines].concat()
    }
}

pub(super) fn judge(run: &Run<'_>, locks: &BTreeMap<&str, Lock>) -> Finding {
    let mut inquiry = Inquiry::into(Property::EventualExpiry);
    inquiry.saw("waits for a dead holder's lock", 0);
    for (name, lock) in locks {
        for (wait, gap) in lock.starved() {
            let Some(holder @ Gone { left: Left::Died, .. }) = gap.after else { continue };
            inquiry.saw("waits for a dead holder's lock", 1);
            let Some(bound_ms) = run.meta.expiry_bound_ms else {
                inquiry.undecided("the meta promises no expiry_bound_ms");
                continue;
            };
            let free_ns = free_ns(run, wait, gap);
            if free_ns > bound_ms.saturating_mul(MS) {
                let operation = &run.operations[wait.operation];
                let lines = [operation.invoked_line, operation.ended_line];
                inquiry.convict(&NotPassedOn { lock: name, holder, free_ns, waiter: operation.process, lines });
            }
        }
    }
    inquiry.close()
}

/// How much calm time of a wait was in a gap.
pub(super) fn free_ns(run: &Run<'_>, wait: Waiting, gap: Gap) -> u64 {
    run.calm.between(gap.from_ns.max(wait.from_ns), gap.until_ns.min(wait.until_ns))
}
