//! Times at which a lock is free although it has waiters.
//!
//! For each lock, this computes the times at which a process *may* hold it, or may be ahead of others in its queue. Outside these times the
//! lock is certainly free, and its waiter must be granted. A process may hold the lock
//!
//! * from the answer to its acquire, or from the start of an acquire with an unknown outcome, or of one that failed and was granted by a
//!   retry,
//! * until a confirmed end (an acknowledged release, cancel or close, a forced release, or the cluster's report that it is over), or until
//!   its process is dead and its TTL has passed without faults; and for its lock-delay, if it was lost.
//!
//! An acquire of several locks may be first in this queue and wait for another lock. While it is pending, no grant is required.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    grants::Cancels,
    run::{MS, Mark, Run},
};
use crate::history::{Acquire, Answer, Call, Ended, Operation, Wait};

/// The kind of a grant's end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EndKind {
    /// It was released, or ended by the cluster.
    LetGo,
    /// Its process died.
    Died,
}

/// The end of a grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct GrantEnd {
    pub(super) ns: u64,
    pub(super) line: usize,
    pub(super) left: EndKind,
}

/// A wait for one lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) operation: usize,
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
}

/// A time in which a lock was certainly free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// The end of the last holder before it, if there was one.
    pub(super) after: Option<GrantEnd>,
}

#[derive(Debug, Default)]
pub(super) struct LockOccupancy {
    pub(super) gaps: Vec<Gap>,
    pub(super) waits: Vec<Waiting>,
    occupied: Vec<(u64, GrantEnd)>,
    /// Times at which holders died.
    deaths: Vec<u64>,
}

/// All locks by name.
pub(super) fn locks<'r>(run: &'r Run<'_>) -> BTreeMap<&'r str, LockOccupancy> {
    let leavings = Leavings::from_run(run);
    let seen = seen(run);
    let mut locks: BTreeMap<&str, LockOccupancy> = BTreeMap::new();

    for (place, operation, acquire) in run.acquires() {
        let gone = leavings.gone(run, operation, acquire);
        let several = operation.locks.len() > 1;
        let is_granted_later = leavings.retried(acquire).is_some();

        for name in operation.locks {
            let lock = locks.entry(name).or_default();
            let held = matches!(operation.ended, Ended::Ok(_)) || seen.contains(&(&**name, &*acquire.session));
            if held && gone.left == EndKind::Died {
                let session = run.session(&acquire.session);
                lock.deaths.extend(session.and_then(|session| session.died).map(|(died_ns, _)| died_ns));
            }

            match operation.ended {
                Ended::Ok(_) if !several => lock.occupied.push((operation.ended_ns, gone)),
                Ended::Ok(_) | Ended::Info | Ended::Open => lock.occupied.push((operation.invoked_ns, gone)),
                Ended::Fail(_) if is_granted_later => lock.occupied.push((operation.invoked_ns, gone)),
                Ended::Fail(_) if several => {
                    let gone = GrantEnd { ns: operation.ended_ns, line: operation.ended_line, left: EndKind::LetGo };
                    lock.occupied.push((operation.invoked_ns, gone));
                }
                Ended::Fail(_) => {}
            }

            if !several && acquire.wait != Wait::None {
                let until_ns = leavings.waits_until(run, operation, acquire);
                lock.waits.push(Waiting { operation: place, from_ns: operation.invoked_ns, until_ns });
            }
        }
    }

    for lock in locks.values_mut() {
        lock.find_gaps(run.last_ns);
    }
    locks
}

/// A retry that was told that its request is granted.
#[derive(Clone, Copy)]
struct RetriedGrant {
    token: u64,
    told_ns: u64,
}

/// The grants that retries were told, by session and id of the request. Of several retries the first counts, as everywhere.
fn granted_by_retries<'r>(run: &'r Run<'_>) -> HashMap<(&'r str, u64), RetriedGrant> {
    let mut granted = HashMap::new();
    for retry in &run.operations {
        let Call::Retry { session, request } = retry.call else { continue };
        if let Ended::Ok(Answer::Retry { token }) = retry.ended {
            let grant = RetriedGrant { token: *token, told_ns: retry.ended_ns };
            granted.entry((&**session, *request)).or_insert(grant);
        }
    }
    granted
}

/// The pairs of lock and session that a read showed as holding.
fn seen<'r>(run: &'r Run<'_>) -> HashSet<(&'r str, &'r str)> {
    let mut seen = HashSet::new();
    for read in &run.operations {
        if let Ended::Ok(Answer::Get(view)) = read.ended {
            seen.extend(view.holders.iter().map(|holder| (&*read.locks[0], &*holder.session)));
        }
    }
    seen
}

impl LockOccupancy {
    fn find_gaps(&mut self, last_ns: u64) {
        self.occupied.sort_unstable();
        let mut after: Option<GrantEnd> = None;
        let end = (last_ns, GrantEnd { ns: last_ns, line: 0, left: EndKind::LetGo });
        for (from_ns, gone) in self.occupied.drain(..).chain([end]) {
            let free_ns = after.map_or(0, |gone| gone.ns);
            if free_ns < from_ns {
                self.gaps.push(Gap { from_ns: free_ns, until_ns: from_ns, after });
            }
            after = after.max(Some(gone));
        }
    }

    /// Number of deaths of holders after which others waited for the lock.
    pub(super) fn left_behind(&self) -> u64 {
        let wanted = |died_ns: &&u64| self.waits.iter().any(|wait| wait.until_ns > **died_ns);
        self.deaths.iter().filter(wanted).count() as u64
    }

    /// Each wait with the gaps within it.
    pub(super) fn starved(&self) -> impl Iterator<Item = (Waiting, Gap)> {
        self.waits.iter().flat_map(|wait| {
            let first = self.gaps.partition_point(|gap| gap.until_ns <= wait.from_ns);
            let gaps = self.gaps[first..].iter().take_while(|gap| gap.from_ns < wait.until_ns);
            gaps.map(|gap| (*wait, *gap))
        })
    }
}

/// The operations that end grants.
pub(super) struct Leavings<'r> {
    /// The grants that retries were told: their releases name these tokens, and the answers of their acquires may tell none.
    retried: HashMap<(&'r str, u64), RetriedGrant>,
    released: HashMap<(&'r str, u64), Mark>,
    forced: HashMap<u64, GrantEnd>,
    cancels: Cancels<'r>,
}

impl<'r> Leavings<'r> {
    pub(super) fn from_run<'a: 'r>(run: &'r Run<'a>) -> Self {
        let mut released = HashMap::new();
        let mut forced = HashMap::new();

        for operation in &run.operations {
            let mark = (operation.ended_ns, operation.ended_line);
            match (operation.call, operation.ended) {
                (Call::Release { session, token }, Ended::Ok(_) | Ended::Fail("not_held")) => {
                    released.entry((&**session, *token)).or_insert(mark);
                }
                (Call::ForceRelease { now: true, .. }, Ended::Ok(Answer::ForceRelease { revoked })) => {
                    let gone = GrantEnd { ns: mark.0, line: mark.1, left: EndKind::LetGo };
                    forced.extend(revoked.iter().map(|token| (*token, gone)));
                }
                _ => {}
            }
        }

        Self { retried: granted_by_retries(run), released, forced, cancels: Cancels::from_run(run) }
    }

    /// What a retry of this acquire was told, if one was granted.
    fn retried(&self, acquire: &Acquire) -> Option<RetriedGrant> {
        self.retried.get(&(&*acquire.session, acquire.request?)).copied()
    }

    /// The moment at which an acquire that was granted, or may have been, certainly holds nothing any more.
    pub(super) fn gone(&self, run: &Run<'_>, operation: &Operation<'_>, acquire: &Acquire) -> GrantEnd {
        let let_go = |(ns, line): Mark| GrantEnd { ns, line, left: EndKind::LetGo };
        let delay_ns = acquire.lock_delay_ms.saturating_mul(MS);
        let delayed = |gone: GrantEnd| GrantEnd { ns: gone.ns.saturating_add(delay_ns), ..gone };

        let token = match operation.ended {
            Ended::Ok(Answer::Acquire { token, .. }) => Some(*token),
            Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => self.retried(acquire).map(|grant| grant.token),
        };

        let released = token.and_then(|token| self.released.get(&(&*acquire.session, token)));
        let forced = token.and_then(|token| self.forced.get(&token)).copied().map(delayed);
        let cancel = self.cancels.cancel(operation, acquire).filter(|cancel| matches!(cancel.ended, Ended::Ok(_)));
        let cancelled = cancel.map(|cancel| (cancel.ended_ns, cancel.ended_line));

        let session = run.session(&acquire.session);
        let closed = session.and_then(|session| Some((session.closed_ns?, session.closing?.1)));
        let over = session.and_then(|session| session.over).map(|(mark, _)| delayed(let_go(mark)));
        let died = session.and_then(|session| {
            let (died_ns, line) = session.died?;
            let ns = run.calm.after(died_ns, session.ttl_ns);
            Some(delayed(GrantEnd { ns, line, left: EndKind::Died }))
        });
        let by_itself = released.copied().into_iter().chain(cancelled).chain(closed).map(let_go);
        let first = by_itself.chain(forced).chain(over).chain(died).min();
        first.unwrap_or(GrantEnd { ns: u64::MAX, line: operation.invoked_line, left: EndKind::LetGo })
    }

    /// Until when an acquire certainly still waits.
    fn waits_until(&self, run: &Run<'_>, operation: &Operation<'_>, acquire: &Acquire) -> u64 {
        let session = run.session(&acquire.session);
        let ends = session.into_iter().flat_map(|session| {
            [session.closing, session.died, session.over.map(|(mark, _)| mark)].into_iter().flatten()
        });
        let cancel = self.cancels.cancel(operation, acquire).map(|cancel| cancel.invoked_ns);
        let limit = match acquire.wait {
            Wait::AtMostMs(ms) => Some(operation.invoked_ns.saturating_add(ms.saturating_mul(MS))),
            Wait::None | Wait::Forever => None,
        };
        let retried = self.retried(acquire).map(|grant| grant.told_ns);
        let first = ends.map(|(ns, _)| ns).chain(cancel).chain(limit).chain(retried).min().unwrap_or(u64::MAX);
        first.min(operation.ended_ns).min(run.last_ns)
    }
}
