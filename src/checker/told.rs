//! Told: a client whose grant ended knows it, or has passed its deadline, within one renewal.
//!
//! A client that renews its session continues to trust its grants. So the answer to a renewal that was sent after a confirmed forced
//! release must report the loss, and a session that was confirmed closed must not be renewed. (The client of an expired session has passed
//! its deadline.)
//!
//! A renewal that is an operation is certain evidence, because the losses in its answer are recorded before its end. Another task records a
//! background renewal than the one that records the losses: it is evidence only once a later renewal, sent after it was acknowledged, is
//! acknowledged too.

use std::{collections::HashMap, fmt};

use super::{
    grants::{Grant, Grants},
    run::{Mark, Run, SessionRecord},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended, Fact, Operation};

enum NotTold<'r> {
    Forced { grant: &'r Grant<'r>, forced: Mark, renewal: Renewal },
    Closed { session: &'r str, closed: Mark, renewal: Renewal },
}

impl fmt::Display for NotTold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced { grant, forced, renewal } => {
                let forced = Ms(forced.0);
                let acked = Ms(renewal.acked_ns);
                write!(f, "{grant} was forced by {forced}, and its holder, renewed at {acked}, was not told")
            }
            Self::Closed { session, closed, renewal } => {
                let closed = Ms(closed.0);
                let acked = Ms(renewal.acked_ns);
                write!(f, "session {session:?} was closed at {closed}, and renewed at {acked} nevertheless")
            }
        }
    }
}

impl Evidence for NotTold<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Forced { grant, forced, renewal } => vec![grant.answered_line, forced.1, renewal.line],
            Self::Closed { closed, renewal, .. } => vec![closed.1, renewal.line],
        }
    }
}

/// An acknowledged renewal.
#[derive(Clone, Copy)]
struct Renewal {
    sent_ns: u64,
    acked_ns: u64,
    line: usize,
    /// Whether it was a background renewal, whose record has no order with that of the losses it reported.
    in_background: bool,
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Told);
    investigation.count("forced grants of holders that renewed later", 0);
    let renewals = renewals(run);
    let heard = HeardLosses::from_run(run);
    let by_token: HashMap<u64, &Grant<'_>> = grants.by_token.iter().map(|grant| (grant.token, grant)).collect();

    for force in &run.operations {
        let (Call::ForceRelease { .. }, Ended::Ok(Answer::ForceRelease { revoked })) = (force.call, force.ended) else {
            continue;
        };
        for grant in revoked.iter().filter_map(|token| by_token.get(token)) {
            let Some(of_session) = renewals.get(grant.session) else { continue };
            // The holder did not trust the grant before it was answered.
            let from_ns = force.ended_ns.max(grant.answered_ns);
            let Some(renewal) = first_certain(of_session, from_ns) else { continue };
            investigation.count("forced grants of holders that renewed later", 1);

            if heard.by(run, grant).is_none_or(|heard_ns| heard_ns > renewal.acked_ns) {
                let forced = (force.ended_ns, force.ended_line);
                investigation.report(&NotTold::Forced { grant, forced, renewal });
            }
        }
    }

    closed(run, &renewals, &mut investigation);
    investigation.close()
}

fn closed(run: &Run<'_>, renewals: &HashMap<&str, Vec<Renewal>>, investigation: &mut Investigation) {
    for close in &run.operations {
        let (Call::Close { session }, Ended::Ok(_)) = (close.call, close.ended) else { continue };
        let after = renewals
            .get(&**session)
            .and_then(|renewals| renewals.iter().copied().find(|renewal| renewal.sent_ns > close.ended_ns));
        if let Some(renewal) = after {
            investigation.report(&NotTold::Closed { session, closed: (close.ended_ns, close.ended_line), renewal });
        }
    }
}

/// The first renewal whose answer certainly reported an event of this moment.
fn first_certain(renewals: &[Renewal], since_ns: u64) -> Option<Renewal> {
    let mut told = renewals.iter().copied().filter(|renewal| renewal.sent_ns > since_ns);
    let first = told.next()?;
    if first.in_background {
        told.find(|renewal| renewal.sent_ns > first.acked_ns || !renewal.in_background)
    } else {
        Some(first)
    }
}

/// The renewals of each session, in the order of their acknowledgements.
fn renewals<'r>(run: &'r Run<'_>) -> HashMap<&'r str, Vec<Renewal>> {
    let mut renewals: HashMap<&str, Vec<Renewal>> = HashMap::new();
    for operation in &run.operations {
        let (Call::Renew { session }, Ended::Ok(Answer::Renew(lease))) = (operation.call, operation.ended) else {
            continue;
        };
        renewals.entry(session).or_default().push(Renewal {
            sent_ns: lease.sent_ns.unwrap_or(operation.invoked_ns),
            acked_ns: operation.ended_ns,
            line: operation.ended_line,
            in_background: false,
        });
    }

    for told in &run.facts {
        if let Fact::Renewed { session, sent_ns, .. } = told.fact {
            let sent_ns = *sent_ns;
            let acked_ns = told.time_ns;
            let line = told.line;
            renewals.entry(session).or_default().push(Renewal { sent_ns, acked_ns, line, in_background: true });
        }
    }

    renewals.values_mut().for_each(|all| all.sort_by_key(|renewal| (renewal.acked_ns, renewal.line)));
    renewals
}

/// The moments at which holders learned that a grant or a session was over.
struct HeardLosses<'r> {
    /// The moments for single grants, by session and token.
    of_grants: HashMap<(&'r str, u64), u64>,
    /// The moments for whole sessions.
    of_sessions: HashMap<&'r str, u64>,
}

impl<'r> HeardLosses<'r> {
    fn from_run(run: &'r Run<'_>) -> Self {
        let mut heard = Self { of_grants: HashMap::new(), of_sessions: HashMap::new() };
        for told in &run.facts {
            if let Fact::Lost { session, token, .. } = told.fact {
                heard.note(session, *token, told.time_ns);
            }
        }
        for operation in &run.operations {
            heard.ended_by_itself(operation);
        }
        heard
    }

    /// Notes the release of a grant: its holder no longer trusts it.
    fn ended_by_itself(&mut self, operation: &'r Operation<'_>) {
        // The grant of a cancel is not looked up, because a doubt counts for the cluster.
        if let Call::Release { session, token } = operation.call {
            self.note(session, Some(*token), operation.invoked_ns);
        } else if let Call::Close { session } | Call::Cancel { session, .. } = operation.call {
            self.note(session, None, operation.invoked_ns);
        }
    }

    fn note(&mut self, session: &'r str, token: Option<u64>, at_ns: u64) {
        let known_ns = match token {
            Some(token) => self.of_grants.entry((session, token)).or_insert(at_ns),
            None => self.of_sessions.entry(session).or_insert(at_ns),
        };
        *known_ns = at_ns.min(*known_ns);
    }

    fn by(&self, run: &Run<'_>, grant: &Grant<'_>) -> Option<u64> {
        let of_grant = self.of_grants.get(&(grant.session, grant.token)).copied();
        let of_session = self.of_sessions.get(grant.session).copied();
        let over = |record: &SessionRecord<'_>| [record.died, record.over.map(|(mark, _)| mark)];
        let over = run.session(grant.session).into_iter().flat_map(over).flatten().map(|(ns, _)| ns);
        of_grant.into_iter().chain(of_session).chain(over).min()
    }
}
