//! Grants, and the time for which each was certainly held.
//!
//! A grant is told by the answer of its acquire or, if that told none, of a retry: also after an attempt that failed, since the holder
//! trusts what the retry says. (Whether a retry may still be granted after a final answer is for `exactly_once`.)
//!
//! A tenure certainly begins when its grant is answered, or when a *higher* token is answered for any lock, since
//! tokens are given in the order of grants. It certainly lasts until the earliest of:
//!
//! * the start of its release, of the cancel of its acquire, or of the close of its session;
//! * the deadline of its session, which is the sending of the last acknowledged open or renewal plus the TTL;
//! * the deadline that the session had when an operator revoked the grant, or that very moment if the operator said `now`.
//!
//! Only certain tenures are evidence of a violation.

use std::collections::HashMap;

use super::run::{Mark, Run};
use crate::history::{Acquire, Answer, Call, Ended, Mode, Operation};

/// An acquire that was granted.
#[derive(Clone, Debug)]
pub(super) struct Grant<'a> {
    pub(super) token: u64,
    pub(super) session: &'a str,
    /// The index of the acquire among the operations.
    pub(super) operation: usize,
    pub(super) locks: &'a [String],
    pub(super) acquire: &'a Acquire,
    pub(super) invoked_ns: u64,
    pub(super) answered_ns: u64,
    pub(super) answered_line: usize,
    /// The moment from which it was certainly held.
    pub(super) from_ns: u64,
    /// The moment until which it was certainly held. If it is not after `from_ns`, the grant was not certainly held at all.
    pub(super) until_ns: u64,
    /// The line of `until_ns`, which is an end or the acknowledgement of the last renewal.
    pub(super) until_line: usize,
    /// The moment from which the lock may be open because an operator may have revoked the grant, if one may have.
    pub(super) revoked_ns: Option<u64>,
    /// The moment at which its holder began to give it back, or an operator may have taken it.
    pub(super) ended_ns: Option<u64>,
    /// A moment at which the cluster certainly still had this grant or its session.
    pub(super) alive_ns: u64,
}

impl Grant<'_> {
    /// The mode of the grant on this lock.
    pub(super) fn mode(&self, lock: &str) -> Mode {
        let place = self.locks.iter().position(|name| name == lock).unwrap_or_default();
        self.acquire.mode.mode_at(place).unwrap_or_default()
    }

    pub(super) fn is_certain(&self) -> bool {
        self.from_ns < self.until_ns
    }
}

/// The grants, by token.
#[derive(Debug)]
pub(super) struct Grants<'a> {
    pub(super) by_token: Vec<Grant<'a>>,
}

impl<'a> Grants<'a> {
    pub(super) fn from_run(run: &Run<'a>) -> Self {
        let ends = Ends::from_run(run);
        let mut by_token = granted(run);
        by_token.sort_by_key(|grant| (grant.token, grant.answered_ns));
        let mut higher_ns = u64::MAX;
        for grant in by_token.iter_mut().rev() {
            higher_ns = higher_ns.min(grant.answered_ns);
            grant.from_ns = higher_ns.max(grant.invoked_ns);
            ends.close(run, grant);
        }
        Self { by_token }
    }

    pub(super) fn by_lock(&self) -> HashMap<&'a str, Vec<&Grant<'a>>> {
        let mut locks: HashMap<&str, Vec<&Grant<'_>>> = HashMap::new();
        for grant in &self.by_token {
            for lock in grant.locks {
                locks.entry(lock).or_default().push(grant);
            }
        }
        locks
    }
}

/// The grants, from the answer of the acquire or, if that told none, from that of a retry.
fn granted<'a>(run: &Run<'a>) -> Vec<Grant<'a>> {
    let mut untold = HashMap::new();
    let mut grants = Vec::new();

    for (place, operation, acquire) in run.acquires() {
        if let Ended::Ok(Answer::Acquire { token, .. }) = operation.ended {
            grants.push(grant(place, operation, acquire, *token, (operation.ended_ns, operation.ended_line)));
        } else if let Some(request) = acquire.request {
            untold.insert((&*acquire.session, request), (place, operation, acquire));
        }
    }

    for operation in &run.operations {
        let Call::Retry { session, request } = operation.call else { continue };
        let Ended::Ok(Answer::Retry { token }) = operation.ended else { continue };
        if let Some((place, first, acquire)) = untold.remove(&(&**session, *request)) {
            grants.push(grant(place, first, acquire, *token, (operation.ended_ns, operation.ended_line)));
        }
    }

    grants
}

fn grant<'a>(place: usize, operation: &Operation<'a>, acquire: &'a Acquire, token: u64, answered: Mark) -> Grant<'a> {
    Grant {
        token,
        session: &acquire.session,
        operation: place,
        locks: operation.locks,
        acquire,
        invoked_ns: operation.invoked_ns,
        answered_ns: answered.0,
        answered_line: answered.1,
        from_ns: answered.0,
        until_ns: 0,
        until_line: answered.1,
        revoked_ns: None,
        ended_ns: None,
        alive_ns: 0,
    }
}

/// The operations that end grants, by token, session or lock.
struct Ends<'r> {
    releases: HashMap<(&'r str, u64), Vec<&'r Operation<'r>>>,
    uses: HashMap<u64, u64>,
    forced: HashMap<&'r str, Vec<&'r Operation<'r>>>,
    cancels: Cancels<'r>,
}

/// The cancels, by the acquire that they abandon.
pub(super) struct Cancels<'r> {
    by_request: HashMap<(&'r str, u64), &'r Operation<'r>>,
    by_op: HashMap<(&'r str, u64), &'r Operation<'r>>,
}

impl<'r> Cancels<'r> {
    pub(super) fn from_run<'a: 'r>(run: &'r Run<'a>) -> Self {
        let mut cancels = Self { by_request: HashMap::new(), by_op: HashMap::new() };
        for operation in &run.operations {
            let Call::Cancel { session, request, op } = operation.call else { continue };
            if matches!(operation.ended, Ended::Fail(_)) {
                continue;
            }

            if let Some(request) = request {
                cancels.by_request.entry((session, *request)).or_insert(operation);
            }
            if let Some(op) = op {
                cancels.by_op.entry((operation.process, *op)).or_insert(operation);
            }
        }

        cancels
    }

    /// The first cancel of this acquire that did not certainly fail.
    pub(super) fn cancel(&self, operation: &Operation<'_>, acquire: &Acquire) -> Option<&'r Operation<'r>> {
        let by_request = acquire.request.and_then(|request| self.by_request.get(&(&*acquire.session, request)));
        by_request.or_else(|| self.by_op.get(&(operation.process, operation.op?))).copied()
    }
}

impl<'r> Ends<'r> {
    fn from_run<'a: 'r>(run: &'r Run<'a>) -> Self {
        let mut releases = HashMap::<_, Vec<_>>::new();
        let mut forced = HashMap::<_, Vec<_>>::new();
        let mut uses = HashMap::new();
        let mut used = |token: u64, at: u64| {
            let last = uses.entry(token).or_insert(at);
            *last = (*last).max(at);
        };

        for operation in &run.operations {
            match (operation.call, operation.ended) {
                (Call::Release { session, token }, ended) => {
                    releases.entry((&**session, *token)).or_default().push(operation);
                    if let Ended::Ok(_) = ended {
                        used(*token, operation.invoked_ns);
                    }
                }
                (Call::Update { token, .. }, Ended::Ok(_))
                | (Call::Check { token }, Ended::Ok(Answer::Check { held: true })) => {
                    used(*token, operation.invoked_ns);
                }
                (Call::Get {}, Ended::Ok(Answer::Get(view))) => {
                    view.holders.iter().for_each(|holder| used(holder.token, operation.invoked_ns));
                }
                (Call::ForceRelease { .. }, ended) if !matches!(ended, Ended::Fail(_)) => {
                    forced.entry(&*operation.locks[0]).or_default().push(operation);
                }
                _ => {}
            }
        }

        Self { releases, uses, forced, cancels: Cancels::from_run(run) }
    }

    fn close(&self, run: &Run<'_>, grant: &mut Grant<'_>) {
        let Some(session) = run.session(grant.session) else { return };
        let used_ns = self.uses.get(&grant.token).copied().unwrap_or_default();
        grant.alive_ns = session.alive_ns.max(used_ns);

        let operation = &run.operations[grant.operation];
        let releases = self.releases.get(&(grant.session, grant.token)).and_then(|releases| releases.first());
        let cancel = self.cancels.cancel(operation, grant.acquire);
        let ended = releases.into_iter().copied().chain(cancel);
        let ended = ended.map(|operation| (operation.invoked_ns, operation.invoked_line));

        let deadline = session.trusted.map_or((0, grant.answered_line), |lease| (lease.until_ns, lease.line));

        let forced = grant.locks.iter().filter_map(|lock| self.forced.get(&**lock)).flatten();
        let forced = forced.filter_map(|force| revoked(run, grant, force)).min();
        grant.revoked_ns = forced.map(|(ns, _)| ns);

        let first = ended.chain(session.closing).chain(forced).min();
        grant.ended_ns = first.map(|(ns, _)| ns);
        let (until_ns, until_line) = first.into_iter().chain([deadline]).min().unwrap_or(deadline);
        grant.until_ns = until_ns;
        grant.until_line = until_line;
    }
}

/// The moment until which a grant lasts that an operator may have revoked.
fn revoked(run: &Run<'_>, grant: &Grant<'_>, force: &Operation<'_>) -> Option<Mark> {
    let Call::ForceRelease { token, now } = force.call else { return None };
    let spared = match force.ended {
        // A forced release that names the grant and revoked nothing found it over: its own earlier attempt, whose
        // answer was lost, may have ended it.
        Ended::Ok(Answer::ForceRelease { revoked }) => *token != Some(grant.token) && !revoked.contains(&grant.token),
        Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => token.is_some_and(|token| token != grant.token),
    };

    if spared || force.ended_ns < grant.invoked_ns {
        return None;
    }

    let had = run.session(grant.session).and_then(|session| session.deadline_at(force.invoked_ns));
    match had {
        Some(lease) if !now => Some((lease.until_ns, force.invoked_line)),
        _ => Some((force.invoked_ns, force.invoked_line)),
    }
}
