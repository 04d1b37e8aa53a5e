//! Errors as gRPC statuses: a code, the message, and a `google.rpc.ErrorInfo` with the reason, the retry rule and the values.
//!
//! `proto/lockkeeper/v1/errors.proto` is the table for clients.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{BadRequest, ErrorDetail, ErrorInfo, StatusExt};

use crate::api::{Error, FailureReason, Retry};
use lockkeeper_proto::v1;

/// The `domain` of every [`ErrorInfo`].
pub const DOMAIN: &str = "lockkeeper.v1";

/// The key of the retry rule among the values.
const RETRY: &str = "retry";

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, name) = code_and_name(&error.reason);
        let retry = match error.retry {
            Retry::Safe => "safe",
            Retry::SameId => "same-id",
            Retry::No => "no",
        };

        let mut values: HashMap<String, String> =
            error.about.iter().map(|(name, value)| (name.clone().into_owned(), value.clone())).collect();
        values.insert(RETRY.to_owned(), retry.to_owned());

        let info: ErrorDetail = ErrorInfo::new(name, DOMAIN, values).into();
        let violation = error.violation().map(|(field, why)| BadRequest::with_violation(field, why).into());
        let details: Vec<ErrorDetail> = std::iter::once(info).chain(violation).collect();
        Self::with_error_details_vec(code, error.message, details)
    }
}

/// The error in the leader's reply. `None` for a status of another domain, which comes from the transport.
pub(crate) fn error_of(status: &Status) -> Option<Error> {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN)?;
    let ErrorInfo { reason, mut metadata, .. } = info;

    let retry = match metadata.remove(RETRY).as_deref() {
        Some("safe") => Retry::Safe,
        Some("same-id") => Retry::SameId,
        // Also what a later version may say: nothing else is known to be safe to repeat.
        _ => Retry::No,
    };

    let about = metadata.into_iter().map(|(name, value)| (name.into(), value)).collect();
    let reason = reason_named(reason, status.code());
    Some(Error { reason, retry, message: status.message().to_owned().into(), about })
}

/// The name of a reason, for counting: the one of the protocol, or `other` for reasons that a later version brought.
pub(crate) fn outcome(reason: &FailureReason) -> &'static str {
    code_and_reason(reason).map_or("other", |(_, name)| name.as_str_name().trim_start_matches("REASON_"))
}

fn code_and_name(reason: &FailureReason) -> (Code, String) {
    match code_and_reason(reason) {
        Ok((code, name)) => (code, name.as_str_name().trim_start_matches("REASON_").to_owned()),
        Err((code, name)) => (code, name.to_owned()),
    }
}

/// Returns the code and the reason of the protocol or, for a reason that this version does not know, the code and the name.
fn code_and_reason(reason: &FailureReason) -> Result<(Code, v1::Reason), (Code, &str)> {
    use v1::Reason as Name;

    Ok(match reason {
        FailureReason::InvalidArgument => (Code::InvalidArgument, Name::InvalidArgument),
        FailureReason::SessionUnknown => (Code::NotFound, Name::SessionUnknown),
        FailureReason::SessionExpired => (Code::NotFound, Name::SessionExpired),
        FailureReason::SessionClosed => (Code::NotFound, Name::SessionClosed),
        FailureReason::SessionExists => (Code::AlreadyExists, Name::SessionExists),
        FailureReason::NotHeld => (Code::FailedPrecondition, Name::NotHeld),
        FailureReason::ModeMismatch => (Code::FailedPrecondition, Name::ModeMismatch),
        FailureReason::Abandoned => (Code::FailedPrecondition, Name::Abandoned),
        FailureReason::RequestStale => (Code::FailedPrecondition, Name::RequestStale),
        FailureReason::RequestReused => (Code::FailedPrecondition, Name::RequestReused),
        FailureReason::WaitCancelled => (Code::Cancelled, Name::WaitCancelled),
        FailureReason::WaitRemoved => (Code::FailedPrecondition, Name::WaitRemoved),
        FailureReason::LimitReached => (Code::ResourceExhausted, Name::LimitReached),
        FailureReason::Overloaded => (Code::ResourceExhausted, Name::Overloaded),
        FailureReason::DiskSpaceLow => (Code::ResourceExhausted, Name::DiskSpaceLow),
        FailureReason::NoLeader => (Code::Unavailable, Name::NoLeader),
        FailureReason::ShuttingDown => (Code::Unavailable, Name::ShuttingDown),
        FailureReason::OutcomeUnknown { is_late: true } => (Code::DeadlineExceeded, Name::OutcomeUnknown),
        FailureReason::OutcomeUnknown { is_late: false } => (Code::Unavailable, Name::OutcomeUnknown),
        FailureReason::DeadlineExceeded => (Code::DeadlineExceeded, Name::DeadlineExceeded),
        FailureReason::LockUnknown => (Code::NotFound, Name::LockUnknown),
        FailureReason::ClusterVersion => (Code::FailedPrecondition, Name::ClusterVersion),
        FailureReason::NotSemaphore => (Code::FailedPrecondition, Name::NotSemaphore),
        FailureReason::RevisionCompacted => (Code::OutOfRange, Name::RevisionCompacted),
        FailureReason::RevisionFuture => (Code::OutOfRange, Name::RevisionFuture),
        FailureReason::Revoked => (Code::FailedPrecondition, Name::Revoked),
        FailureReason::MembershipRefused => (Code::FailedPrecondition, Name::MembershipRefused),
        FailureReason::MembershipChanging => (Code::Aborted, Name::MembershipChanging),
        FailureReason::Unauthenticated => (Code::Unauthenticated, Name::Unauthenticated),
        FailureReason::PermissionDenied => (Code::PermissionDenied, Name::PermissionDenied),
        FailureReason::NotOwner => (Code::PermissionDenied, Name::NotOwner),
        FailureReason::Internal => (Code::Internal, Name::Internal),
        FailureReason::Newer { name, code } => return Err((Code::from_i32(*code), name)),
    })
}

fn reason_named(name: String, code: Code) -> FailureReason {
    use v1::Reason as Name;

    match Name::from_str_name(&format!("REASON_{name}")) {
        Some(Name::InvalidArgument) => FailureReason::InvalidArgument,
        Some(Name::SessionUnknown) => FailureReason::SessionUnknown,
        Some(Name::SessionExpired) => FailureReason::SessionExpired,
        Some(Name::SessionClosed) => FailureReason::SessionClosed,
        Some(Name::SessionExists) => FailureReason::SessionExists,
        Some(Name::NotHeld) => FailureReason::NotHeld,
        Some(Name::ModeMismatch) => FailureReason::ModeMismatch,
        Some(Name::Abandoned) => FailureReason::Abandoned,
        Some(Name::RequestStale) => FailureReason::RequestStale,
        Some(Name::RequestReused) => FailureReason::RequestReused,
        Some(Name::WaitCancelled) => FailureReason::WaitCancelled,
        Some(Name::WaitRemoved) => FailureReason::WaitRemoved,
        Some(Name::LimitReached) => FailureReason::LimitReached,
        Some(Name::Overloaded) => FailureReason::Overloaded,
        Some(Name::DiskSpaceLow) => FailureReason::DiskSpaceLow,
        Some(Name::NoLeader) => FailureReason::NoLeader,
        Some(Name::ShuttingDown) => FailureReason::ShuttingDown,
        Some(Name::OutcomeUnknown) => FailureReason::OutcomeUnknown { is_late: code == Code::DeadlineExceeded },
        Some(Name::DeadlineExceeded) => FailureReason::DeadlineExceeded,
        Some(Name::LockUnknown) => FailureReason::LockUnknown,
        Some(Name::ClusterVersion) => FailureReason::ClusterVersion,
        Some(Name::NotSemaphore) => FailureReason::NotSemaphore,
        Some(Name::RevisionCompacted) => FailureReason::RevisionCompacted,
        Some(Name::RevisionFuture) => FailureReason::RevisionFuture,
        Some(Name::Revoked) => FailureReason::Revoked,
        Some(Name::MembershipRefused) => FailureReason::MembershipRefused,
        Some(Name::MembershipChanging) => FailureReason::MembershipChanging,
        Some(Name::Unauthenticated) => FailureReason::Unauthenticated,
        Some(Name::PermissionDenied) => FailureReason::PermissionDenied,
        Some(Name::NotOwner) => FailureReason::NotOwner,
        Some(Name::Internal) => FailureReason::Internal,
        Some(Name::Unspecified) | None => FailureReason::Newer { name, code: code.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{
        Identity, Limit, LockName, Permits, Refusal, Revision, RevisionError, SessionEnd, Token, TxnFailureReason,
        Version,
    };
    use lockkeeper_raft::{DiskShortage, NoReply, members::MemberError};

    fn errors() -> Vec<Error> {
        let name = || LockName::new("a/b").expect("a name");
        let reason = lockkeeper_machine::Reason::new("dead: he is").expect("a reason");
        vec![
            Error::invalid("locks.mode", "is \"a: b\", or nothing"),
            Error::too_large("3 bytes"),
            Error::refused(Refusal::SessionEnded(SessionEnd::Closed)),
            Error::refused(Refusal::SessionEnded(SessionEnd::Expired)),
            Error::refused(Refusal::SessionEnded(SessionEnd::Unknown)),
            Error::refused(Refusal::SessionExists),
            Error::refused(Refusal::NotHeld),
            Error::refused(Refusal::Revoked { token: Token(7), reason }),
            Error::refused(Refusal::ModeMismatch { name: name(), in_use: Permits::new(3).ok() }),
            Error::refused(Refusal::ModeMismatch { name: name(), in_use: None }),
            Error::refused(Refusal::LockUnknown { name: name() }),
            Error::refused(Refusal::NotSemaphore { name: name() }),
            Error::refused(Refusal::RevisionFuture { present: Revision(7) }),
            Error::revision(RevisionError::Compacted { compacted: Revision(7) }),
            Error::refused(Refusal::Abandoned),
            Error::refused(Refusal::RequestStale { lowest: 9 }),
            Error::refused(Refusal::RequestReused),
            Error::refused(Refusal::SessionMoved { number: 7 }),
            Error::refused(Refusal::TxnFailed { index: 7, reason: TxnFailureReason::ChildrenLeft }),
            Error::refused(Refusal::Closed { remaining_ms: 7 }),
            Error::refused(Refusal::Limit(Limit::Waiters)),
            Error::wait_cancelled(),
            Error::wait_abandoned(),
            Error::wait_removed(),
            Error::no_reply(NoReply::NotLeader),
            Error::no_reply(NoReply::NoQuorum),
            Error::no_reply(NoReply::Overloaded),
            Error::no_reply(NoReply::DiskSpaceLow(DiskShortage { node_id: 2, free: 5, reserve: 9, low: 2, voters: 3 })),
            Error::no_reply(NoReply::Unknown),
            Error::no_reply(NoReply::VersionTooLow { needs: Version(3), has: Version(2) }),
            Error::leader_not_reached(),
            Error::deadline_passed(true),
            Error::deadline_passed(false),
            Error::stream_lags(),
            Error::too_many_waits(4),
            Error::too_many_forwarded_waits(4),
            Error::too_many_waits_at_node(4),
            Error::too_many_calls(4),
            Error::unread("5 bytes"),
            Error::unread_after_change("5 bytes"),
            Error::broken_off("the leader went"),
            Error::shutting_down(),
            Error::membership(MemberError::TooMany),
            Error::membership(MemberError::UnderWay { what: "node 4 is catching up".to_owned() }),
            Error::membership(MemberError::NotLeader),
            Error::membership(MemberError::Unconfirmed),
            Error::internal("a test"),
            Error::unauthenticated("no token"),
            Error::not_owner(None),
            Error::over_limit(&Identity::new("ann").expect("valid"), "sessions", 3, 1, false),
            Error { reason: FailureReason::Newer { name: "TOO_BLUE".into(), code: 9 }, ..Error::no_leader() },
        ]
    }

    /// A follower passes the leader's error on unchanged, as if the client had asked the leader.
    #[test]
    fn an_error_survives_the_way_through_a_follower() {
        for mut error in errors() {
            let mut read = error_of(&Status::from(error.clone())).expect("one of ours");
            error.about.sort();
            read.about.sort();
            assert_eq!(read, error);
        }
        assert_eq!(error_of(&Status::unavailable("connection refused")), None);
    }

    #[test]
    fn an_invalid_field_is_named_in_the_details() {
        let status = Status::from(Error::invalid("ttl_ms", "is 5: give it more"));
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "ttl_ms: is 5: give it more"));
        let info = status.get_details_error_info().expect("a reason");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_ARGUMENT", DOMAIN));
        assert_eq!((info.metadata["field"].as_str(), info.metadata["retry"].as_str()), ("ttl_ms", "no"));
        let violations = status.get_details_bad_request().expect("a bad request").field_violations;
        assert_eq!(
            (violations[0].field.as_str(), violations[0].description.as_str()),
            ("ttl_ms", "is 5: give it more")
        );
    }
}
