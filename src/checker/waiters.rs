//! No lost waiter: each wait ends, and no lock is free while it has waiters.
//!
//! * A lock that is certainly free is granted to its waiter within `handover_bound_ms` of the meta, not counting time under faults.
//! * A wait ends at its limit, within the same bound. The same bound applies to telling a waiter whose grant a read shows.
//! * At the end of the run (`end`), no wait of a live process and session is pending.
//! * No read shows a free lock whose first waiter wants only this lock.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use super::{
    expiry::free_ns,
    occupancy::{EndKind, GrantEnd, LockOccupancy},
    run::{MS, Run},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Ended, Operation, Wait};

enum Lost<'r> {
    Free { lock: &'r str, free_ns: u64, since: Option<usize>, waiter: &'r Operation<'r> },
    Late { waiter: &'r Operation<'r>, due_ns: u64 },
    NeverEnded { waiter: &'r Operation<'r>, end: usize },
    SeenFree { read: &'r Operation<'r>, waiter: &'r Operation<'r> },
    NotTold { read: &'r Operation<'r>, waiter: &'r Operation<'r>, untold_ns: u64 },
}

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free { lock, free_ns, waiter, .. } => {
                write!(f, "lock {lock:?} was free for {} while {:?} waited for it", Ms(*free_ns), waiter.process)
            }
            Self::Late { waiter, due_ns } => {
                let due = Ms(*due_ns);
                let ended = Ms(waiter.ended_ns);
                write!(f, "the wait of {:?} had to end by {due}, and ended at {ended}", waiter.process)
            }
            Self::NeverEnded { waiter, .. } => {
                write!(f, "the run ended, and the acquire of {:?} was still pending", waiter.process)
            }
            Self::SeenFree { read, waiter } => {
                let lock = read.locks.first().map_or("", String::as_str);
                write!(f, "lock {lock:?} was read as free while {:?} waited for it", waiter.process)
            }
            Self::NotTold { read, waiter, untold_ns } => {
                let lock = read.locks.first().map_or("", String::as_str);
                let untold = Ms(*untold_ns);
                write!(
                    f,
                    "lock {lock:?} was read as granted to {:?}, which was not told for another {untold}",
                    waiter.process
                )
            }
        }
    }
}

impl Evidence for Lost<'_> {
    fn lines(&self) -> Vec<usize> {
        let of = |operation: &Operation<'_>| vec![operation.invoked_line, operation.ended_line];
        match self {
            Self::Free { since, waiter, .. } => since.iter().copied().chain(of(waiter)).collect(),
            Self::Late { waiter, .. } => of(waiter),
            Self::NeverEnded { waiter, end } => vec![waiter.invoked_line, *end],
            Self::SeenFree { read, waiter } => vec![waiter.invoked_line, read.ended_line],
            Self::NotTold { read, waiter, .. } => vec![waiter.invoked_line, read.ended_line, waiter.ended_line],
        }
    }
}

pub(super) fn check<'r>(run: &'r Run<'_>, locks: &BTreeMap<&'r str, LockOccupancy>) -> Finding {
    let mut investigation = Investigation::new(Property::NoLostWaiter);
    investigation.count("waits", 0);
    free_for_long(run, locks, &mut investigation);
    each_ends(run, &mut investigation);
    let matcher = WaitMatcher::from_run(run);
    seen_free(run, &matcher, &mut investigation);
    seen_granted(run, &matcher, &mut investigation);
    investigation.close()
}

fn free_for_long<'r>(run: &'r Run<'_>, locks: &BTreeMap<&'r str, LockOccupancy>, investigation: &mut Investigation) {
    for (lock, known) in locks {
        for (wait, gap) in known.starved() {
            if matches!(gap.after, Some(GrantEnd { left: EndKind::Died, .. })) {
                continue;
            }

            let Some(bound_ms) = run.meta.handover_bound_ms else {
                return investigation.undecided("the meta promises no handover_bound_ms");
            };

            let free_ns = free_ns(run, wait, gap);
            if free_ns > bound_ms.saturating_mul(MS) {
                let since = gap.after.map(|gone| gone.line);
                let waiter = &run.operations[wait.operation];
                investigation.report(&Lost::Free { lock, free_ns, since, waiter });
            }
        }
    }
}

fn each_ends(run: &Run<'_>, investigation: &mut Investigation) {
    for (_, waiter, acquire) in run.acquires() {
        if acquire.wait == Wait::None {
            continue;
        }

        investigation.count("waits", 1);
        match waiter.ended {
            Ended::Ok(_) => investigation.count("granted", 1),
            Ended::Fail("timed_out") => investigation.count("timed out", 1),
            Ended::Fail(_) => investigation.count("ended in another way", 1),
            Ended::Info | Ended::Open => investigation.count("unknown", 1),
        }

        let session = run.session(&acquire.session);
        let over = session.is_some_and(|it| it.died.is_some() || it.over.is_some() || it.closing.is_some());
        if let (Ended::Open, Some(end), false) = (waiter.ended, run.end_line, over) {
            investigation.report(&Lost::NeverEnded { waiter, end });
        }

        if let (Wait::AtMostMs(ms), Some(bound_ms), false) =
            (acquire.wait, run.meta.handover_bound_ms, waiter.is_unknown())
        {
            let due_ns = run.calm.after(waiter.invoked_ns, ms.saturating_add(bound_ms).saturating_mul(MS));
            if waiter.ended_ns > due_ns {
                investigation.report(&Lost::Late { waiter, due_ns });
            }
        }
    }
}

fn seen_free(run: &Run<'_>, waiting: &WaitMatcher<'_>, investigation: &mut Investigation) {
    for read in &run.operations {
        let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
        let Some(first) = view.waiters.first() else { continue };
        investigation.count("reads of a queue", 1);

        if !view.holders.is_empty() || view.delayed {
            continue;
        }

        let waiter = waiting.waiter(read, &first.session).map(|place| &run.operations[place]);
        if let Some(waiter) = waiter.filter(|waiter| waiter.locks.len() == 1) {
            investigation.report(&Lost::SeenFree { read, waiter });
        }
    }
}

/// Reports each wait once, by the first read that shows its grant.
fn seen_granted(run: &Run<'_>, waiting: &WaitMatcher<'_>, investigation: &mut Investigation) {
    let Some(bound_ms) = run.meta.handover_bound_ms else { return };
    let mut seen = HashSet::new();

    for read in &run.operations {
        let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
        for holder in &view.holders {
            let over = run.session(&holder.session).is_none_or(|it| it.died.is_some() || it.over.is_some());
            let waiter = waiting.waiter(read, &holder.session).filter(|place| !over && seen.insert(*place));
            let Some(place) = waiter else {
                continue;
            };

            let waiter = &run.operations[place];
            let untold_ns = run.calm.between(read.ended_ns, waiter.listened_ns.min(run.last_ns));
            if untold_ns > bound_ms.saturating_mul(MS) {
                investigation.report(&Lost::NotTold { read, waiter, untold_ns });
            }
        }
    }
}

/// Finds the acquire that a read shows in a queue or as granted since.
pub(super) struct WaitMatcher<'r> {
    run: &'r Run<'r>,
    /// The waiting acquires by session, in the order of their starts.
    waits: HashMap<&'r str, Vec<usize>>,
}

impl<'r> WaitMatcher<'r> {
    pub(super) fn from_run<'a>(run: &'r Run<'a>) -> Self {
        let mut waits: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, _, acquire) in run.acquires() {
            if acquire.wait != Wait::None {
                waits.entry(&acquire.session).or_default().push(place);
            }
        }
        Self { run, waits }
    }

    /// The acquire's index among the operations, unless there is none or it is ambiguous.
    pub(super) fn waiter(&self, read: &Operation<'_>, session: &str) -> Option<usize> {
        let lock = read.locks.first()?;
        let waits = self.waits.get(session)?;
        let begun = waits.partition_point(|place| self.run.operations[*place].invoked_ns < read.ended_ns);
        let mut fitting = waits[..begun].iter().copied().filter(|place| {
            let operation = &self.run.operations[*place];
            operation.ended_ns > read.invoked_ns && operation.locks.contains(lock)
        });
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }
}
