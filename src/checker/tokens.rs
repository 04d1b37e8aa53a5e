//! No token twice: a token has one owner for ever, even after a restart of the whole cluster.
//!
//! Its owner is one request of one session. A retry of that request gets the same token again.

use std::{collections::HashMap, fmt};

use super::{
    grants::Grants,
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended};

/// The owner of a token, from an answer or a read.
#[derive(Clone, Copy)]
struct TokenOwner<'r> {
    session: &'r str,
    /// The request, unless only the session is known.
    request: Option<OwnerRequest>,
    line: usize,
}

/// The request that a token was granted to. Acquires without an id are identified by their index in the history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerRequest {
    Id(u64),
    Place(usize),
}

struct Twice<'r> {
    token: u64,
    first: TokenOwner<'r>,
    second: TokenOwner<'r>,
}

impl fmt::Display for Twice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, first, second } = self;
        if first.session == second.session {
            write!(f, "token {token} was granted to two requests of session {:?}", first.session)
        } else {
            write!(f, "token {token} belongs to session {:?} and to session {:?}", first.session, second.session)
        }
    }
}

impl Evidence for Twice<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.first.line, self.second.line]
    }
}

impl TokenOwner<'_> {
    fn is(&self, other: &Self) -> bool {
        let same = match (self.request, other.request) {
            (Some(request), Some(other)) => request == other,
            (None, _) | (_, None) => true,
        };
        self.session == other.session && same
    }
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::NoTokenTwice);
    investigation.count("tokens", 0);
    let mut owners: HashMap<u64, TokenOwner<'_>> = HashMap::new();

    for (token, owner) in told(run, grants) {
        match owners.get(&token) {
            Some(first) if !first.is(&owner) => investigation.report(&Twice { token, first: *first, second: owner }),
            Some(_) => investigation.count("repeated observations", 1),
            None => {
                owners.insert(token, owner);
                investigation.count("tokens", 1);
            }
        }
    }

    investigation.close()
}

fn told<'r>(run: &'r Run<'_>, grants: &'r Grants<'_>) -> Vec<(u64, TokenOwner<'r>)> {
    let mut told = Vec::new();
    for grant in &grants.by_token {
        let request = grant.acquire.request.map_or(OwnerRequest::Place(grant.operation), OwnerRequest::Id);
        told.push((
            grant.token,
            TokenOwner { session: grant.session, request: Some(request), line: grant.answered_line },
        ));
    }

    for operation in &run.operations {
        let line = operation.ended_line;
        match (operation.call, operation.ended) {
            (Call::Retry { session, request }, Ended::Ok(Answer::Retry { token })) => {
                told.push((*token, TokenOwner { session, request: Some(OwnerRequest::Id(*request)), line }));
            }
            (Call::Get {}, Ended::Ok(Answer::Get(view))) => {
                let seen = |holder: &'r crate::history::Holder| {
                    (holder.token, TokenOwner { session: &holder.session, request: None, line })
                };
                told.extend(view.holders.iter().map(seen));
            }
            _ => {}
        }
    }

    told
}
