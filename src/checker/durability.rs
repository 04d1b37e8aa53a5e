//! Durability: acknowledged changes are not lost.
//!
//! During a certain tenure, every linearizable read (`get`, `check`, an `update`, a release) finds the grant; after an
//! acknowledged release or close of the session, none does. No read shows a last token below one that was answered
//! before. The weight of this depends on the faults between: restarts of nodes are counted.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use super::{
    grants::{Grant, Grants},
    run::{Acknowledged, Mark, Run},
    show::Ms,
    tenures::Overlap,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended, Fact, Operation};

enum Lost<'r> {
    Session { session: &'r str, told: Mark, lease: Acknowledged },
    Grant { lock: &'r str, grant: &'r Grant<'r>, read: &'r Operation<'r> },
    Release { grant: &'r Grant<'r>, released_line: usize, read: &'r Operation<'r> },
    LastToken { token: u64, known: Mark, shown: u64, read: &'r Operation<'r> },
}

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session { session, told, lease } => {
                let told = Ms(told.0);
                let until = Ms(lease.until_ns);
                write!(f, "session {session:?} has a lease until {until}, but at {told} the cluster did not know it")
            }
            Self::Grant { lock, grant, read } => {
                write!(f, "lock {lock:?}: {grant} held it, but a {} did not find it", read.call.function())
            }
            Self::Release { grant, read, .. } => {
                write!(f, "{grant} was released, but a {} found it again", read.call.function())
            }
            Self::LastToken { token, shown, .. } => {
                write!(f, "token {token} was granted, but a read showed {shown} as the last one")
            }
        }
    }
}

impl Evidence for Lost<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Session { told, lease, .. } => vec![lease.line, told.1],
            Self::Grant { grant, read, .. } => vec![grant.answered_line, grant.until_line, read.ended_line],
            Self::Release { grant, released_line, read } => vec![grant.answered_line, *released_line, read.ended_line],
            Self::LastToken { known, read, .. } => vec![known.1, read.ended_line],
        }
    }
}

/// The acknowledged ends of grants, by token.
type Released = HashMap<u64, Mark>;

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>, overlaps: &[Overlap<'_>]) -> Finding {
    let mut investigation = Investigation::new(Property::Durability);
    investigation.count("reads", 0);
    let released = released(run, grants);
    // Early expiries are reported by their own property.
    let early: HashSet<u64> = overlaps.iter().filter_map(|overlap| Some(overlap.silent()?.token)).collect();

    let expected = |grant: &Grant<'_>| {
        let over = run.session(grant.session).and_then(|session| session.over);
        !early.contains(&grant.token) && over.is_none_or(|(told, _)| told.0 >= grant.until_ns)
    };

    views(run, grants, &released, &expected, &mut investigation);
    single(run, grants, &released, &expected, &mut investigation);
    last_tokens(run, grants, &mut investigation);
    sessions(run, &mut investigation);

    let restarts = run.facts.iter().filter(|told| matches!(told.fact, Fact::Started { .. })).count();
    investigation.count("restarts", restarts as u64);
    investigation.close()
}

fn released(run: &Run<'_>, grants: &Grants<'_>) -> Released {
    let mut released = Released::new();
    let sessions = run.sessions.iter().filter_map(|(name, it)| Some((*name, (it.closed_ns?, it.closing?.1))));
    let closed: HashMap<&str, Mark> = sessions.collect();

    for grant in &grants.by_token {
        // Another property checks a grant that was answered after the close was sent.
        if let Some(closed) = closed.get(grant.session).filter(|closed| closed.0 > grant.answered_ns) {
            released.insert(grant.token, *closed);
        }
    }

    for operation in &run.operations {
        if let (Call::Release { token, .. }, Ended::Ok(_)) = (operation.call, operation.ended) {
            let mark = (operation.ended_ns, operation.ended_line);
            let first = released.entry(*token).or_insert(mark);
            *first = mark.min(*first);
        }
    }

    released
}

/// Checks the views of whole locks.
fn views(
    run: &Run<'_>,
    grants: &Grants<'_>,
    released: &Released,
    expected: &impl Fn(&Grant<'_>) -> bool,
    investigation: &mut Investigation,
) {
    let mut reads: HashMap<&str, Vec<&Operation<'_>>> = HashMap::new();
    for operation in &run.operations {
        if let Ended::Ok(Answer::Get(_)) = operation.ended {
            investigation.count("reads", 1);
            reads.entry(&operation.locks[0]).or_default().push(operation);
        }
    }

    let by_token: HashMap<u64, &Grant<'_>> = grants.by_token.iter().map(|grant| (grant.token, grant)).collect();
    let by_lock = grants.by_lock();
    let mut locks: Vec<_> = reads.into_iter().collect();
    locks.sort_unstable_by_key(|(lock, _)| *lock);

    for (lock, reads) in locks {
        let mut of_lock = by_lock.get(lock).cloned().unwrap_or_default();
        of_lock.sort_unstable_by_key(|grant| grant.from_ns);
        let mut coming = of_lock.into_iter().filter(|grant| grant.is_certain() && expected(grant)).peekable();
        let mut held: Vec<&Grant<'_>> = Vec::new();

        for read in reads {
            let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
            while let Some(grant) = coming.next_if(|grant| grant.from_ns < read.invoked_ns) {
                held.push(grant);
            }
            held.retain(|grant| grant.until_ns > read.invoked_ns);

            let shown: HashSet<u64> = view.holders.iter().map(|holder| holder.token).collect();
            for grant in held.iter().filter(|grant| grant.until_ns > read.ended_ns && !shown.contains(&grant.token)) {
                investigation.report(&Lost::Grant { lock, grant, read });
            }

            for token in shown {
                found_again(by_token.get(&token).copied(), read, released, investigation);
            }
        }
    }
}

/// Checks the answers about single tokens.
fn single(
    run: &Run<'_>,
    grants: &Grants<'_>,
    released: &Released,
    expected: &impl Fn(&Grant<'_>) -> bool,
    investigation: &mut Investigation,
) {
    let by_token: HashMap<u64, &Grant<'_>> = grants.by_token.iter().map(|grant| (grant.token, grant)).collect();

    for read in &run.operations {
        let (token, held) = match (read.call, read.ended) {
            (Call::Check { token }, Ended::Ok(Answer::Check { held })) => (token, *held),
            (Call::Update { token, .. }, Ended::Ok(_)) => (token, true),
            (Call::Update { token, .. }, Ended::Fail("not_held")) => (token, false),
            (Call::Release { token, .. }, Ended::Fail("not_held")) => (token, false),
            _ => continue,
        };

        investigation.count("reads", 1);
        let Some(grant) = by_token.get(token).copied() else { continue };
        let lock = read.locks.first().or(grant.locks.first()).map_or("", String::as_str);

        if held {
            found_again(Some(grant), read, released, investigation);
        } else if grant.locks.iter().any(|name| name == lock)
            && grant.from_ns < read.invoked_ns
            && read.ended_ns < until_without(run, grant, read)
            && expected(grant)
        {
            investigation.report(&Lost::Grant { lock, grant, read });
        }
    }
}

/// The time until which the grant was certainly held, if this release is ignored: one that finds nothing ends nothing.
fn until_without(run: &Run<'_>, grant: &Grant<'_>, read: &Operation<'_>) -> u64 {
    if grant.until_line == read.invoked_line {
        let lease = run.session(grant.session).and_then(|session| session.trusted);
        lease.map_or(0, |lease| grant.revoked_ns.unwrap_or(u64::MAX).min(lease.until_ns))
    } else {
        grant.until_ns
    }
}

fn found_again(
    grant: Option<&Grant<'_>>,
    read: &Operation<'_>,
    released: &Released,
    investigation: &mut Investigation,
) {
    let Some(grant) = grant else { return };
    if let Some((_, released_line)) = released.get(&grant.token).copied().filter(|(ns, _)| *ns < read.invoked_ns) {
        investigation.report(&Lost::Release { grant, released_line, read });
    }
}

fn sessions(run: &Run<'_>, investigation: &mut Investigation) {
    let mut sessions: Vec<_> = run.sessions.iter().collect();
    sessions.sort_unstable_by_key(|(name, _)| **name);
    for (session, record) in sessions {
        let (Some(lease), Some((told, "session_unknown"))) = (record.trusted, record.over) else { continue };
        let closed = record.closing.is_some_and(|closing| closing < told);
        if told.0 < lease.until_ns && !closed {
            investigation.report(&Lost::Session { session, told, lease });
        }
    }
}

fn last_tokens(run: &Run<'_>, grants: &Grants<'_>, investigation: &mut Investigation) {
    let mut answered: Vec<_> = grants.by_token.iter().collect();
    answered.sort_unstable_by_key(|grant| grant.answered_ns);
    let mut answered = answered.into_iter().peekable();

    let mut highest: Option<(u64, Mark)> = None;
    for read in &run.operations {
        let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
        while let Some(grant) = answered.next_if(|grant| grant.answered_ns < read.invoked_ns) {
            let known = (grant.token, (grant.answered_ns, grant.answered_line));
            highest = highest.filter(|highest| highest.0 >= known.0).or(Some(known));
        }
        if let (Some((token, known)), Some(shown)) = (highest, view.last_token)
            && shown < token
        {
            investigation.report(&Lost::LastToken { token, known, shown, read });
        }
    }
}
