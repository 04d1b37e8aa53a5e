//! Mutual exclusion: no conflicting grants of a lock at the same time.
//!
//! Exclusive grants conflict with all others, shared ones with exclusive ones, and permits when their number is exceeded: the number that
//! the acquires name, since no run resizes a semaphore (the model of `tests/machine_model` does). Two tenures that certainly overlap are
//! two grants of one lock if there is evidence of the earlier one after the later: it was renewed, used or released. Otherwise its session
//! was ended too early, which [`super::early`] reports, and which leaves this property undecided.
//!
//! A request that is sent again after its lease is over must not be confirmed. A retry that began after another grant of the lock was
//! answered does not get the token of the earlier one, unless its holder had given that back or an operator had taken it: then the answer
//! is the earlier one, for which the holder has no use.

use std::{collections::HashMap, fmt};

use super::{
    grants::{Grant, Grants},
    run::Run,
    show::Ms,
    tenures::Overlap,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended, Mode, Operation};

struct HeldTwice<'g>(&'g Overlap<'g>);

impl fmt::Display for HeldTwice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overlap { lock, held, next } = self.0;
        let first = held.first().copied().unwrap_or(next);
        match held.len() {
            0 | 1 => write!(f, "lock {lock:?}: {first} held it until {}", Ms(first.until_ns))?,
            n => write!(f, "lock {lock:?}: all {n} permits were held, the first by {first}")?,
        }
        write!(f, ", and {next} held it too, from {}", Ms(self.0.begin_ns()))
    }
}

impl Evidence for HeldTwice<'_> {
    fn lines(&self) -> Vec<usize> {
        let held = self.0.held.iter().flat_map(|grant| [grant.answered_line, grant.until_line]);
        held.chain([self.0.next.answered_line]).collect()
    }
}

struct Confirmed<'g> {
    lock: &'g str,
    grant: &'g Grant<'g>,
    next: &'g Grant<'g>,
    retry: &'g Operation<'g>,
}

impl fmt::Display for Confirmed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, grant, next, retry } = self;
        let asked = Ms(retry.invoked_ns);
        let answered = Ms(next.answered_ns);
        write!(
            f,
            "lock {lock:?}: it was granted as {next} by {answered}, and a retry that began at {asked} confirmed {grant}"
        )
    }
}

impl Evidence for Confirmed<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.next.answered_line, self.retry.invoked_line, self.retry.ended_line]
    }
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>, overlaps: &[Overlap<'_>]) -> Finding {
    let mut investigation = Investigation::new(Property::MutualExclusion);
    let certain = grants.by_token.iter().filter(|grant| grant.is_certain()).count();
    investigation.count("tenures", certain as u64);
    let of_lock = grants.by_lock();

    for overlap in overlaps {
        match overlap.silent() {
            None => investigation.report(&HeldTwice(overlap)),
            Some(_) => investigation.undecided("two held a lock at a time after an early expiry: see no early expiry"),
        }
    }

    investigation.count("retries after another's grant", retries_after_another(run, &of_lock));
    for retry in &run.operations {
        if let (Call::Retry { session, .. }, Ended::Ok(Answer::Retry { token })) = (retry.call, retry.ended) {
            confirmed(retry, session, *token, grants, &of_lock, &mut investigation);
        }
    }

    investigation.close()
}

/// Number of answered retries before which another session was granted the lock, and whose request had been sent before that.
fn retries_after_another(run: &Run<'_>, of_lock: &HashMap<&str, Vec<&Grant<'_>>>) -> u64 {
    let mut sent = HashMap::new();
    for (_, operation, acquire) in run.acquires() {
        sent.extend(acquire.request.map(|request| ((&*acquire.session, request), operation)));
    }

    let is_late = |retry: &&Operation<'_>| {
        let Call::Retry { session, request } = retry.call else { return false };

        let Some(first) = sent.get(&(&**session, *request)).filter(|_| !retry.is_unknown()) else { return false };
        let others = first.locks.iter().filter_map(|lock| of_lock.get(&**lock)).flatten();
        let between = first.invoked_ns..retry.invoked_ns;
        others.into_iter().any(|grant| grant.session != session && between.contains(&grant.answered_ns))
    };

    run.operations.iter().filter(is_late).count() as u64
}

/// Whether a retry confirmed a grant that was over.
fn confirmed(
    retry: &Operation<'_>,
    session: &str,
    token: u64,
    grants: &Grants<'_>,
    of_lock: &HashMap<&str, Vec<&Grant<'_>>>,
    investigation: &mut Investigation,
) {
    let first = grants.by_token.partition_point(|grant| grant.token < token);
    let of_token = grants.by_token[first..].iter().take_while(|grant| grant.token == token);
    let is_kept = |grant: &&Grant<'_>| {
        grant.revoked_ns.is_none() && grant.ended_ns.is_none_or(|ended_ns| ended_ns > retry.ended_ns)
    };
    let Some(grant) = of_token.filter(is_kept).find(|grant| grant.session == session) else { return };

    for lock in grant.locks {
        let excludes = |next: &&Grant<'_>| {
            let modes = [grant.mode(lock), next.mode(lock)];
            next.token > token && next.answered_ns < retry.invoked_ns && modes.contains(&Mode::Exclusive)
        };
        let others = of_lock.get(&**lock).into_iter().flatten().copied();
        if let Some(next) = others.filter(excludes).min_by_key(|next| next.token) {
            investigation.report(&Confirmed { lock, grant, next, retry });
        }
    }
}
