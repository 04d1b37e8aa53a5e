//! Bystander: no request of one client ends another client's session.
//!
//! A bystander opens a session, acquires a lock, and from then on does nothing but renew the session (`bystander` in the history). It keeps
//! both unless the run took away what a lease rests on. Three things are violations:
//!
//! * The cluster says that the session is over before its lease is, although the holder did not ask for that.
//! * The session ends later, and since the sending of its last acknowledged renewal the faults left a quorum (see [`super::contact`])
//!   without an interruption for longer than `renewal_bound_ms` of the meta.
//! * The grant ends although no operator revoked it.
//!
//! What this cannot see:
//!
//! * It does not see which request was to blame, or whether one was: a cluster that loses renewals by itself is convicted too.
//! * It does not see a renewal that came late and still saved the session.
//! * It ignores a loss while the faults left no quorum, or not for long enough: the run itself may be the reason.
//! * It does not know why renewals were not sent. The process of a bystander must not be stopped, and the process of a bystander that died
//!   proves nothing.
//!
//! A lock that others hold or read as free meanwhile is reported by mutual exclusion and durability.

use std::fmt;

use super::{
    contact::Contact,
    grants::{Grant, Grants},
    run::{MS, Mark, Run},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::Fact;

enum Harmed<'r> {
    Session { session: &'r str, why: &'r str, lost: Mark, renewed: Renewed, quorum: Option<(u64, u64)> },
    Grant { grant: &'r Grant<'r>, lost: Mark },
}

/// The last acknowledged open or renewal before a loss.
#[derive(Clone, Copy)]
struct Renewed {
    sent_ns: u64,
    until_ns: u64,
    line: usize,
}

impl fmt::Display for Harmed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session { session, why, lost, renewed, quorum } => {
                write!(f, "session {session:?} of a bystander was lost at {} ({why})", Ms(lost.0))?;
                let Some((from, until)) = quorum else {
                    return write!(f, ", before its lease was over at {}", Ms(renewed.until_ns));
                };

                let sent = Ms(renewed.sent_ns);
                let from = Ms(*from);
                let until = Ms(*until);
                write!(
                    f,
                    ": its last acknowledged renewal was sent at {sent}, although the faults left a quorum from {from} to {until}"
                )
            }
            Self::Grant { grant, lost } => {
                write!(f, "{grant}, of a bystander, was lost at {}, and no operator revoked it", Ms(lost.0))
            }
        }
    }
}

impl Evidence for Harmed<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Session { lost, renewed, .. } => vec![renewed.line, lost.1],
            Self::Grant { grant, lost } => vec![grant.answered_line, lost.1],
        }
    }
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Bystander);
    investigation.count("renewals of bystanders", 0);
    let contact = Contact::from_facts(run.facts.iter().map(|told| (told.time_ns, told.fact)));

    for told in &run.facts {
        let Fact::Bystander { session } = told.fact else { continue };
        let leases = run.session(session).map_or(&[][..], |record| &record.leases);
        let renewals = leases.iter().filter(|lease| lease.acked_ns > told.time_ns).count();
        investigation.count("renewals of bystanders", renewals as u64);
        investigation.count("bystanders", 1);
        grant_lost(run, grants, session, &mut investigation);
        session_lost(run, &contact, session, &mut investigation);
    }

    investigation.close()
}

fn grant_lost<'r>(run: &Run<'r>, grants: &'r Grants<'r>, session: &str, investigation: &mut Investigation) {
    for told in &run.facts {
        let Fact::Lost { session: loser, token: Some(token), .. } = told.fact else { continue };
        let of_bystander = |grant: &&Grant<'_>| grant.token == *token && grant.session == session;
        let grant = grants.by_token.iter().find(of_bystander).filter(|_| loser == session);
        if let Some(grant) = grant.filter(|grant| grant.revoked_ns.is_none()) {
            investigation.report(&Harmed::Grant { grant, lost: (told.time_ns, told.line) });
        }
    }
}

fn session_lost(run: &Run<'_>, contact: &Contact, session: &str, investigation: &mut Investigation) {
    let Some(record) = run.session(session) else { return };
    let Some((lost, why)) = first_loss(run, session) else { return };
    let ended_by_itself = record.closing.into_iter().chain(record.died).any(|end| end < lost);
    let before = record.leases.iter().filter(|lease| lease.acked_ns <= lost.0);
    let Some(last) = before.max_by_key(|lease| lease.until_ns).filter(|_| !ended_by_itself) else { return };
    let renewed = Renewed { sent_ns: last.sent_ns, until_ns: last.until_ns, line: last.line };
    if lost.0 < renewed.until_ns && why != "out_of_contact" {
        return investigation.report(&Harmed::Session { session, why, lost, renewed, quorum: None });
    }
    let Some(bound_ms) = run.meta.renewal_bound_ms else {
        return investigation.undecided("the meta promises no renewal_bound_ms");
    };

    match contact.longest(renewed.sent_ns, lost.0) {
        Some(quorum) if quorum.1 - quorum.0 > bound_ms.saturating_mul(MS) => {
            let quorum = Some(quorum);
            investigation.report(&Harmed::Session { session, why, lost, renewed, quorum });
        }
        Some(_) | None => investigation.count("losses that faults explain", 1),
    }
}

/// The time at which a session was known to be lost, and the reason: the first of what its holder noticed and what the cluster answered.
fn first_loss<'r>(run: &Run<'r>, session: &str) -> Option<(Mark, &'r str)> {
    let noticed = run.facts.iter().find_map(|told| {
        let Fact::Lost { session: loser, why, token: None } = told.fact else { return None };
        (loser == session).then_some(((told.time_ns, told.line), why.as_str()))
    });
    let answered = run.session(session).and_then(|record| record.over);
    noticed.into_iter().chain(answered).min_by_key(|(mark, _)| *mark)
}
