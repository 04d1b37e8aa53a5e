//! What a caller is told when a call fails: a gRPC code, a message that names the thing and what to do, and a typed detail.
//!
//! The table of reasons, with their codes and whether a retry is safe, is `proto/lockkeeper/v1/errors.proto`.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{BadRequest, ErrorDetail, ErrorInfo, StatusExt};

use crate::{
    machine::{Invalid, Limit, Refusal, Reply, SessionEnd},
    proto::v1::Reason,
    raft::NoReply,
};

/// The `domain` of every [`ErrorInfo`].
pub const DOMAIN: &str = "lockkeeper.v1";

/// What the caller may do.
#[derive(Clone, Copy)]
enum Retry {
    Safe,
    SameId,
    No,
}

/// A field that cannot be what it is.
pub(super) fn invalid(field: &str, why: impl Into<String>) -> Status {
    let why = why.into();
    let info = info(Reason::InvalidArgument, Retry::No, [("field", field.to_string())]);
    let details = [info, BadRequest::with_violation(field, why.clone()).into()];
    Status::with_error_details_vec(Code::InvalidArgument, format!("{field}: {why}"), details)
}

/// As [`invalid`], from the type that refused the value.
pub(super) fn invalid_value(field: &str) -> impl FnOnce(Invalid) -> Status {
    move |why| invalid(field, why.to_string())
}

/// A message has more bytes than any may have.
pub(super) fn too_large(said: &str) -> Status {
    let message = format!("{said}: send fewer locks, or less data, in one request");
    status(Code::ResourceExhausted, Reason::LimitReached, Retry::No, &message, [("limit", "message_bytes".to_string())])
}

/// The table refused a command.
pub(super) fn refused(refusal: Refusal) -> Status {
    use Refusal::*;
    let failed = |reason, message: &str, about: Vec<(&'static str, String)>| {
        status(Code::FailedPrecondition, reason, Retry::No, message, about)
    };
    match refusal {
        SessionEnded(end) => session_ended(end),
        SessionExists => status(
            Code::AlreadyExists,
            Reason::SessionExists,
            Retry::No,
            "another session lives under this id: draw 128 random bits for each session",
            [],
        ),
        NotHeld => failed(
            Reason::NotHeld,
            "the token names no grant of this session that is held now: it was released or lost before, or is another session's",
            vec![],
        ),
        Revoked { token, reason } => {
            let message = format!(
                "an operator took the grant with token {} from this session: {}; it holds nothing any more",
                token.0,
                reason.as_str()
            );
            let about = vec![("token", token.0.to_string()), ("revoked_reason", reason.as_str().to_string())];
            failed(Reason::Revoked, &message, about)
        }
        ModeMismatch { name, in_use } => {
            let (limit, how) = match in_use {
                Some(permits) => (permits.get(), format!("as a semaphore of {}", permits.get())),
                None => (0, "as a lock".to_string()),
            };
            let message = format!("the lock {:?} is in use {how}: ask for it in the same way", name.as_str());
            failed(Reason::ModeMismatch, &message, vec![("lock", name.to_string()), ("limit", limit.to_string())])
        }
        LockUnknown { name } => {
            let message = format!(
                "there is no lock {:?}, and it was to exist: nobody holds or awaits it, and it carries no data",
                name.as_str()
            );
            status(Code::NotFound, Reason::LockUnknown, Retry::No, &message, [("lock", name.to_string())])
        }
        NotSemaphore { name } => {
            let message = format!(
                "{:?} is no semaphore in use: only one that is held or awaited with a number of permits can be resized",
                name.as_str()
            );
            failed(Reason::NotSemaphore, &message, vec![("lock", name.to_string())])
        }
        Abandoned => failed(
            Reason::Abandoned,
            "this acquire was released by its request id before it arrived: use a new request id",
            vec![],
        ),
        RequestStale { lowest } => {
            let message = format!(
                "this client cares no longer about the request id: it is below {lowest}, and not among those kept; use a new one"
            );
            failed(Reason::RequestStale, &message, vec![("lowest", lowest.to_string())])
        }
        RequestReused => failed(
            Reason::RequestReused,
            "the request id was used before, for another request of this session: use a new one for each",
            vec![],
        ),
        Limit(limit) => limit_reached(limit),
    }
}

/// The session is over.
pub(super) fn session_ended(end: SessionEnd) -> Status {
    let (reason, message) = match end {
        SessionEnd::Closed => (Reason::SessionClosed, "the session was closed: open a new one"),
        SessionEnd::Expired => (
            Reason::SessionExpired,
            "the session was not renewed within its TTL, and what it held is lost: open a new one",
        ),
        SessionEnd::Unknown => {
            (Reason::SessionUnknown, "no such session: it was never opened, or ended long ago; open a new one")
        }
    };
    status(Code::NotFound, reason, Retry::No, message, [])
}

/// A wait was cancelled because its call had broken off.
pub(super) fn wait_cancelled() -> Status {
    let message = "the wait was cancelled: its call broke off and was not repeated in time; acquire again";
    status(Code::Cancelled, Reason::WaitCancelled, Retry::No, message, [])
}

/// A wait was ended by a release that named its request.
pub(super) fn wait_abandoned() -> Status {
    let message = "this acquire was released by its request id while it waited: use a new request id";
    status(Code::FailedPrecondition, Reason::Abandoned, Retry::No, message, [])
}

/// A wait was ended by an operator.
pub(super) fn wait_removed() -> Status {
    let message = "an operator removed this acquire from the queue: ask the operators before you acquire again";
    status(Code::FailedPrecondition, Reason::WaitRemoved, Retry::No, message, [])
}

/// A command or a read got no reply.
pub(super) fn no_reply(why: NoReply) -> Status {
    match why {
        NoReply::NotLeader => no_leader(),
        NoReply::NoQuorum => status(Code::Unavailable, Reason::NoLeader, Retry::Safe, &why.to_string(), []),
        NoReply::Overloaded => status(Code::ResourceExhausted, Reason::Overloaded, Retry::Safe, &why.to_string(), []),
        NoReply::Unknown => unknown(Code::DeadlineExceeded, &why.to_string()),
    }
}

/// There is no leader to be found.
pub(super) fn no_leader() -> Status {
    let message = "no leader is known right now: try again in a moment, here or at another node";
    status(Code::Unavailable, Reason::NoLeader, Retry::Safe, message, [])
}

/// The leader was not reached, or broke off before it answered a request that changes nothing.
pub(super) fn leader_not_reached() -> Status {
    let message =
        "the leader could not be reached, or broke off; nothing was changed: try again, here or at another node";
    status(Code::Unavailable, Reason::NoLeader, Retry::Safe, message, [])
}

/// The call's own deadline has passed. `reads`: the call changes nothing.
pub(super) fn deadline_passed(reads: bool) -> Status {
    match reads {
        true => {
            let message = "the call's own deadline passed before there was an answer: try again, with more time";
            status(Code::DeadlineExceeded, Reason::DeadlineExceeded, Retry::Safe, message, [])
        }
        false => unknown(
            Code::DeadlineExceeded,
            "the call's own deadline passed before there was an answer; the request may still take effect",
        ),
    }
}

/// A stream was closed because there was more to tell than it had room for.
pub(super) fn lags_behind() -> Status {
    let message = "this stream lags behind what is to be told: open another one, which is told all that counts";
    status(Code::ResourceExhausted, Reason::Overloaded, Retry::Safe, message, [])
}

/// A follower passes on as many acquires that wait as it may.
pub(super) fn too_many_waits(limit: usize) -> Status {
    let message = format!(
        "this node does not lead, and passes on {limit} acquires that wait, the limit: send acquires that wait to the leader, which this \
         answer names"
    );
    let about = [("limit", "waits_passed_on".to_string())];
    status(Code::ResourceExhausted, Reason::Overloaded, Retry::Safe, &message, about)
}

/// The client does not read what it asked for: `what` waits, and the limit.
pub(super) fn unread(what: &str) -> Status {
    let message = format!("{what}: read answers as they come, and ask for less at a time");
    let about = [("limit", "unread_answers".to_string())];
    status(Code::ResourceExhausted, Reason::LimitReached, Retry::Safe, &message, about)
}

/// It is not known whether the request took effect.
pub(super) fn unknown(code: Code, why: &str) -> Status {
    status(code, Reason::OutcomeUnknown, Retry::SameId, why, [])
}

/// This node ends.
pub(super) fn shutting_down() -> Status {
    status(Code::Unavailable, Reason::ShuttingDown, Retry::Safe, "this node is shutting down: ask another one", [])
}

/// Our own mistake.
pub(super) fn internal(what: &str) -> Status {
    tracing::error!(what, "broken state");
    status(Code::Internal, Reason::Internal, Retry::No, what, [])
}

/// A refusal, or an answer to another question: that would be our mistake.
pub(super) fn unexpected(reply: Reply) -> Status {
    let Reply::Refused(refusal) = reply else { return internal("the table gave an answer to another question") };
    refused(refusal)
}

/// Whether a status says why, in our terms: one that does not comes from the transport.
pub(super) fn has_reason(status: &Status) -> bool {
    status.get_details_error_info().is_some_and(|info| info.domain == DOMAIN)
}

fn limit_reached(limit: Limit) -> Status {
    let (name, message) = match limit {
        Limit::Sessions => ("sessions", "the cluster has as many sessions as it may have: close some"),
        Limit::Waiters => ("waiters", "as many acquires wait as may wait: try again when some are done"),
        Limit::Locks => {
            ("locks", "the cluster has as many locks as it may have: release some, or drop data that is kept")
        }
        Limit::RepliesPerSession => (
            "replies_per_session",
            "the session has as many requests in memory as it may have: raise `lowest`, naming in `kept` what is still open below it, or use several sessions",
        ),
        Limit::WaitsPerSession => (
            "waits_per_session",
            "as many acquires of this session wait as may wait: try again when some are done, or use several sessions",
        ),
        Limit::GrantsPerSession => (
            "grants_per_session",
            "the session holds and awaits as many grants as it may have: release some, or use several sessions",
        ),
        Limit::TableBytes => (
            "table_bytes",
            "the cluster's table has as many bytes as it may have: release locks, close sessions, or drop data that is kept",
        ),
        Limit::SessionBytes => (
            "session_bytes",
            "the session takes as many bytes as it may: release some of its locks, wait for fewer, or use several sessions",
        ),
        Limit::TakenPerSession => (
            "taken_per_session",
            "operators took so many grants from the session that it has not released: release those that its renewals name",
        ),
    };
    status(Code::ResourceExhausted, Reason::LimitReached, Retry::No, message, [("limit", name.to_string())])
}

fn status(
    code: Code,
    reason: Reason,
    retry: Retry,
    message: &str,
    about: impl IntoIterator<Item = (&'static str, String)>,
) -> Status {
    Status::with_error_details_vec(code, message, [info(reason, retry, about)])
}

fn info(reason: Reason, retry: Retry, about: impl IntoIterator<Item = (&'static str, String)>) -> ErrorDetail {
    let retry = match retry {
        Retry::Safe => "safe",
        Retry::SameId => "same-id",
        Retry::No => "no",
    };
    let about = about.into_iter().chain([("retry", retry.to_string())]);
    let about: HashMap<String, String> = about.map(|(key, value)| (key.to_string(), value)).collect();
    let name = reason.as_str_name().trim_start_matches("REASON_");
    ErrorInfo::new(name, DOMAIN, about).into()
}
