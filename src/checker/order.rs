//! Token order: tokens rise in the order of the grants.
//!
//! The token of an acquire is higher than every token that was known before the acquire started, across all locks and for ever. Of two
//! concurrent acquires, either may have the higher token.

use std::fmt;

use super::{
    grants::{Grant, Grants},
    run::Run,
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Ended};

/// A token, and when it became known.
#[derive(Clone, Copy)]
struct KnownToken {
    time_ns: u64,
    token: u64,
    line: usize,
}

struct OutOfOrder<'g> {
    known: KnownToken,
    grant: &'g Grant<'g>,
    invoked_line: usize,
}

impl fmt::Display for OutOfOrder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.known.token;
        let time = Ms(self.known.time_ns);
        write!(f, "{} was requested after token {token} was known at {time}, and is lower", self.grant)
    }
}

impl Evidence for OutOfOrder<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.known.line, self.invoked_line, self.grant.answered_line]
    }
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::TokenOrder);
    investigation.count("grants", grants.by_token.len() as u64);
    let mut known = known(run, grants);
    known.sort_unstable_by_key(|known| known.time_ns);
    let mut by_invoke: Vec<_> = grants.by_token.iter().collect();
    by_invoke.sort_unstable_by_key(|grant| grant.invoked_ns);

    let mut known = known.into_iter().peekable();
    let mut highest = None::<KnownToken>;
    for grant in by_invoke {
        while let Some(next) = known.next_if(|known| known.time_ns < grant.invoked_ns) {
            if highest.is_none_or(|highest| highest.token < next.token) {
                highest = Some(next);
            }
        }
        if let Some(known) = highest.filter(|highest| highest.token > grant.token) {
            let invoked_line = run.operations[grant.operation].invoked_line;
            investigation.report(&OutOfOrder { known, grant, invoked_line });
        }
    }
    investigation.close()
}

/// Tokens known from answers to acquires and from reads.
fn known(run: &Run<'_>, grants: &Grants<'_>) -> Vec<KnownToken> {
    let answered =
        |grant: &Grant<'_>| KnownToken { time_ns: grant.answered_ns, token: grant.token, line: grant.answered_line };
    let mut known: Vec<_> = grants.by_token.iter().map(answered).collect();

    for operation in &run.operations {
        if let Ended::Ok(Answer::Get(view)) = operation.ended {
            let highest = view.holders.iter().map(|holder| holder.token).chain(view.last_token).max();
            let time_ns = operation.ended_ns;
            let line = operation.ended_line;
            known.extend(highest.map(|token| KnownToken { time_ns, token, line }));
        }
    }

    known
}
