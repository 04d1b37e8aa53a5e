//! Exactly once: a retried request has the same answer.
//!
//! A request is an id in a session. However often it is sent, it is granted one token or none. After a cancel that
//! found it waiting or unknown, it is never granted.

use std::{collections::HashMap, fmt};

use super::{
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, CancelFound, Ended, Operation};

#[derive(Clone, Copy)]
struct FinalReply<'r> {
    /// The token, unless the request was not granted and never will be.
    token: Option<u64>,
    operation: &'r Operation<'r>,
}

enum Differs<'r> {
    Answers { session: &'r str, request: u64, first: FinalReply<'r>, then: FinalReply<'r> },
    Cancelled { session: &'r str, request: u64, cancel: &'r Operation<'r>, granted: FinalReply<'r> },
}

impl fmt::Display for Differs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = |reply: &FinalReply<'_>| {
            reply.token.map_or("not granted".to_owned(), |token| format!("granted token {token}"))
        };

        match self {
            Self::Answers { session, request, first, then } => {
                let first = answer(first);
                let then = answer(then);
                write!(f, "request {request} of session {session:?} was {first}, and a retry was {then}")
            }
            Self::Cancelled { session, request, granted, .. } => {
                let granted = answer(granted);
                write!(f, "request {request} of session {session:?} was cancelled before any grant, and was {granted}")
            }
        }
    }
}

impl Evidence for Differs<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Answers { first, then, .. } => vec![first.operation.ended_line, then.operation.ended_line],
            Self::Cancelled { cancel, granted, .. } => vec![cancel.ended_line, granted.operation.ended_line],
        }
    }
}

pub(super) fn check(run: &Run<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::ExactlyOnce);
    investigation.count("requests retried or cancelled", 0);
    let mut replies: HashMap<(&str, u64), FinalReply<'_>> = HashMap::new();

    let mut answered: Vec<_> = run.operations.iter().filter_map(reply).collect();
    answered.sort_unstable_by_key(|(_, then)| then.operation.ended_line);
    for ((session, request), then) in answered {
        match replies.get(&(session, request)) {
            None => {
                replies.insert((session, request), then);
            }
            Some(first) => {
                investigation.count("requests retried or cancelled", 1);
                if first.token != then.token {
                    investigation.report(&Differs::Answers { session, request, first: *first, then });
                }
            }
        }
    }

    // A cancel that found the acquire waiting, or not yet there, ends it for ever.
    for cancel in &run.operations {
        let Call::Cancel { session, request: Some(request), .. } = cancel.call else { continue };
        let Ended::Ok(Answer::Cancel { found }) = cancel.ended else { continue };

        investigation.count("requests retried or cancelled", 1);
        let Some(granted) = replies.get(&(&**session, *request)).filter(|reply| reply.token.is_some()) else {
            continue;
        };

        let never = match found {
            CancelFound::Wait => true,
            CancelFound::Nothing => granted.operation.invoked_ns > cancel.ended_ns,
            CancelFound::Grant => false,
        };
        if never {
            investigation.report(&Differs::Cancelled { session, request: *request, cancel, granted: *granted });
        }
    }

    investigation.close()
}

/// The definite answer to a request with an id.
fn reply<'r>(operation: &'r Operation<'_>) -> Option<((&'r str, u64), FinalReply<'r>)> {
    let request = if let Call::Acquire(acquire) = operation.call {
        (&*acquire.session, acquire.request?)
    } else if let Call::Retry { session, request } = operation.call {
        (&**session, *request)
    } else {
        return None;
    };

    let token = match operation.ended {
        Ended::Ok(Answer::Acquire { token, .. } | Answer::Retry { token }) => Some(*token),
        Ended::Fail("busy" | "timed_out") => None,
        Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => return None,
    };

    Some((request, FinalReply { token, operation }))
}
