//! Eventual expiry: a dead holder's lock is granted to the next waiter.
//!
//! A process that `died` renews nothing. After its TTL plus `expiry_bound_ms` of the meta, its locks are granted to
//! waiters, and no read shows it as a holder. Time under faults does not count: without a leader, the cluster's clock
//! stops and no session expires.

use std::{collections::BTreeMap, fmt};

use super::{
    occupancy::{EndKind, Gap, GrantEnd, LockOccupancy, Waiting},
    run::{MS, Run},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Ended, Operation};

enum NotPassedOn<'r> {
    Awaited { lock: &'r str, holder: GrantEnd, free_ns: u64, waiter: &'r Operation<'r> },
    Seen { session: &'r str, died_line: usize, due_ns: u64, read: &'r Operation<'r> },
}

impl fmt::Display for NotPassedOn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Awaited { lock, holder, free_ns, waiter } => {
                let expired = Ms(holder.ns);
                let free = Ms(*free_ns);
                let waiter = waiter.process;
                write!(
                    f,
                    "lock {lock:?}: its holder died and had to expire by {expired}, but {waiter:?} waited for another {free}"
                )
            }
            Self::Seen { session, due_ns, read, .. } => {
                let lock = read.locks.first().map_or("", String::as_str);
                let due = Ms(*due_ns);
                let read = Ms(read.ended_ns);
                write!(
                    f,
                    "session {session:?} died and had to end by {due}, but a read at {read} shows it holding {lock:?}"
                )
            }
        }
    }
}

impl Evidence for NotPassedOn<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Awaited { holder, waiter, .. } => vec![holder.line, waiter.invoked_line, waiter.ended_line],
            Self::Seen { died_line, read, .. } => vec![*died_line, read.ended_line],
        }
    }
}

pub(super) fn check<'r>(run: &'r Run<'_>, locks: &BTreeMap<&'r str, LockOccupancy>) -> Finding {
    let mut investigation = Investigation::new(Property::EventualExpiry);
    investigation.count("contested locks of dead holders", 0);
    for (name, lock) in locks {
        investigation.count("contested locks of dead holders", lock.left_behind());
        awaited(run, name, lock, &mut investigation);
    }
    seen(run, &mut investigation);
    investigation.close()
}

fn awaited<'r>(run: &'r Run<'_>, name: &'r str, lock: &LockOccupancy, investigation: &mut Investigation) {
    for (wait, gap) in lock.starved() {
        let Some(holder @ GrantEnd { left: EndKind::Died, .. }) = gap.after else { continue };

        investigation.count("waits for an overdue lock", 1);
        let Some(bound_ms) = run.meta.expiry_bound_ms else {
            investigation.undecided("the meta promises no expiry_bound_ms");
            continue;
        };

        let free_ns = free_ns(run, wait, gap);

        if free_ns > bound_ms.saturating_mul(MS) {
            let waiter = &run.operations[wait.operation];
            investigation.report(&NotPassedOn::Awaited { lock: name, holder, free_ns, waiter });
        }
    }
}

fn seen(run: &Run<'_>, investigation: &mut Investigation) {
    let Some(bound_ms) = run.meta.expiry_bound_ms else { return };
    for read in &run.operations {
        let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
        for holder in &view.holders {
            let Some(record) = run.session(&holder.session) else { continue };
            let Some((died_ns, died_line)) = record.died else { continue };

            let due_ns = run.calm.after(died_ns, record.ttl_ns.saturating_add(bound_ms.saturating_mul(MS)));
            if read.invoked_ns > due_ns {
                investigation.report(&NotPassedOn::Seen { session: &holder.session, died_line, due_ns, read });
            }
        }
    }
}

/// The part of a wait that falls into a gap, without time under faults.
pub(super) fn free_ns(run: &Run<'_>, wait: Waiting, gap: Gap) -> u64 {
    run.calm.between(gap.from_ns.max(wait.from_ns), gap.until_ns.min(wait.until_ns))
}
