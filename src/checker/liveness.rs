//! Liveness: after the faults, the cluster serves again.
//!
//! After a `heal` that ends all faults, each acquire that does not wait has a definite answer (granted or busy) within `liveness_bound_ms`
//! of the meta, counted from its start or from the heal, unless another fault starts before. Waiting acquires are checked by the
//! properties of waiters.

use std::fmt;

use super::{
    run::{MS, Run},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Acquire, Ended, Operation, Wait};

struct NotServed<'r> {
    operation: &'r Operation<'r>,
    due_ns: u64,
}

impl fmt::Display for NotServed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.operation.process;
        let due = Ms(self.due_ns);
        write!(f, "all faults were over, but the acquire of {process:?} had no answer by {due}")
    }
}

impl Evidence for NotServed<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.operation.invoked_line, self.operation.ended_line]
    }
}

pub(super) fn check(run: &Run<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Liveness);
    investigation.count("acquires served after a heal", 0);
    let served = served(run);
    let tries: Vec<_> = run.acquires().filter(|(_, _, acquire)| acquire.wait == Wait::None).collect();

    for (heal_ns, next_ns) in run.calm.heals() {
        let Some(bound_ms) = run.meta.liveness_bound_ms else {
            investigation.undecided("the meta promises no liveness_bound_ms");
            break;
        };
        investigation.count("heals", 1);

        let until_ns = next_ns.min(run.last_ns);
        let first = tries.partition_point(|(_, operation, _)| operation.invoked_ns < heal_ns);
        let fresh = tries[first..].iter().take_while(|(_, operation, _)| operation.invoked_ns < until_ns);

        for (_, operation, acquire) in fresh {
            let served_by = |from_ns: u64| from_ns.saturating_add(bound_ms.saturating_mul(MS));
            let due_ns = served_by(operation.invoked_ns.max(heal_ns));

            match operation.ended {
                // During its recovery time the cluster may answer that it cannot serve.
                Ended::Fail("unavailable") if operation.ended_ns <= served_by(heal_ns) => {}
                Ended::Ok(_) | Ended::Fail(_)
                    if operation.ended_ns <= due_ns && !matches!(operation.ended, Ended::Fail("unavailable")) =>
                {
                    investigation.count("acquires served after a heal", 1);
                }
                Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => {
                    if due_ns <= until_ns && !gone(run, acquire) && !gave_up(operation, due_ns, &served) {
                        investigation.report(&NotServed { operation, due_ns });
                    }
                }
            }
        }
    }

    investigation.close()
}

/// The times at which any acquire was answered.
fn served(run: &Run<'_>) -> Vec<u64> {
    let answered = |operation: &Operation<'_>| match operation.ended {
        Ended::Ok(_) => true,
        Ended::Fail(reason) => reason != "unavailable",
        Ended::Info | Ended::Open => false,
    };
    let mut served: Vec<_> =
        run.acquires().filter(|(_, operation, _)| answered(operation)).map(|(_, it, _)| it.ended_ns).collect();
    served.sort_unstable();
    served
}

/// Whether the client waited shorter than the bound, and others got answers in that time: then its own answer was lost on the network.
fn gave_up(operation: &Operation<'_>, due_ns: u64, served: &[u64]) -> bool {
    let next = served.partition_point(|served_ns| *served_ns <= operation.invoked_ns);
    operation.listened_ns < due_ns && served.get(next).is_some_and(|served_ns| *served_ns <= due_ns)
}

/// Whether the session is over, so that the client no longer waits.
fn gone(run: &Run<'_>, acquire: &Acquire) -> bool {
    run.session(&acquire.session).is_some_and(|it| it.died.is_some() || it.over.is_some() || it.closing.is_some())
}
