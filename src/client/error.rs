//! The errors of the client. Each says what happened to the state of the cluster.

use std::{collections::BTreeMap, fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{Busy, Refusal};
use lockkeeper_transport::{SPEAKS_TLS, never_sent};
use lockkeeper_types::Invalid;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An argument is out of range. The request was not sent; nothing happened.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// An endpoint is not `host:port`. Nothing was sent.
    #[error("endpoint {0:?} is not of the form host:port, with a port of at most 65535: correct it")]
    Endpoint(String),
    /// An endpoint is to be reached by TLS, and the client was given no authorities to trust. Nothing was sent.
    #[error("endpoint {0:?} asks for TLS: name the authorities to trust, or leave out https://")]
    NoAuthorities(String),
    /// The bearer token cannot be sent. Nothing was sent.
    #[error(
        "the bearer token is empty, or has a blank or a character that is not printable ASCII: give it as it was made"
    )]
    BearerToken,
    /// The file with the bearer token cannot be read. Nothing was sent.
    #[error("cannot read {file}: {why}")]
    TokenFile {
        /// Its path.
        file: String,
        /// The error of the operating system.
        why: String,
    },
    /// The cluster refused the request. It changed nothing.
    #[error("{0}")]
    Refused(Refused),
    /// The locks are not available, or not in time. Nothing is held and nothing is queued.
    #[error("{0}")]
    NotAcquired(Box<NotAcquired>),
    /// The session, or the grant, is over.
    #[error("{0}")]
    Lost(Loss),
    /// The grant is held, but may not be trusted for the requested time: the session's TTL is too short.
    #[error("the lock may be trusted for another {left:?}, not for {min_left:?}: open the session with a longer TTL")]
    NotEnsured {
        /// How long the grant may be trusted.
        left: Duration,
        /// The requested time.
        min_left: Duration,
    },
    /// No node answered before the deadline of the call: none could be reached, or none knew a leader. The request was
    /// not executed, or it only reads.
    #[error(
        "no node of the cluster answered before the deadline of the call (last: {why}); nothing was changed: try again later"
    )]
    NoCluster {
        /// The error of the last attempt.
        why: String,
    },
    /// No answer before the deadline. The request may have taken effect, or may still take effect.
    #[error("no answer in time (last: {why}); the request may still take effect: look before trying again")]
    Unknown {
        /// The error of the last attempt.
        why: String,
    },
    /// The cluster answered, but the reply has a value that this client does not understand. The request was executed.
    #[error(
        "the request was executed, but this client does not understand the reply: {field} is {value:?}: use a client of the nodes' version"
    )]
    Malformed {
        /// The field of the reply, such as `holder.session_id`.
        field: &'static str,
        /// Its value, cut to 64 characters; empty if the field is missing.
        value: String,
    },
}

/// Longest value in an [`Error::Malformed`], characters.
const VALUE_MAX: usize = 64;

impl Error {
    pub(crate) fn malformed(field: &'static str, value: &str) -> Self {
        Self::Malformed { field, value: value.chars().take(VALUE_MAX).collect() }
    }
}

/// A refusal by the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The reason, for programs.
    pub reason: Refusal,
    /// The reason, for people.
    pub message: String,
    /// The values concerned, by name: `lock`, `token`, `session_id`, `limit`.
    pub details: BTreeMap<String, String>,
}

/// [`Refusal::Revoked`] is a loss rather than a refusal: the grant concerned is over.
impl From<Refused> for Error {
    fn from(mut refused: Refused) -> Self {
        if refused.reason != Refusal::Revoked {
            return Self::Refused(refused);
        }
        Self::Lost(Loss::Revoked { reason: refused.details.remove("revoked_reason").unwrap_or_default() })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() { self.reason.fmt(f) } else { f.write_str(&self.message) }
    }
}

/// Why an acquire did not get its locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotAcquired {
    /// Whether its wait reached its limit. Otherwise it was not to wait.
    pub waited: bool,
    /// As [`super::Guard::place_lost`].
    pub place_lost: bool,
    /// The first of the requested locks that was not available, one of its holders, and the length of its queue.
    pub busy: Busy,
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Busy { name, holder, queue_length, delay_remaining } = &self.busy;
        write!(f, "lock {name:?} was not acquired{}: ", if self.waited { " in time" } else { "" })?;
        match (holder, delay_remaining) {
            (Some(holder), _) => write!(f, "held by {:?} with token {}", holder.label, holder.token.0)?,
            (None, Some(left)) => write!(f, "closed for another {} ms by its lock-delay", left.as_millis())?,
            (None, None) => write!(f, "others wait for it")?,
        }
        match queue_length {
            0 => Ok(()),
            length => write!(f, ", {length} in the queue"),
        }
    }
}

/// How a session or a grant was lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Loss {
    /// The session was closed, by this process or another one. All its grants were released.
    #[error("the session was closed")]
    Closed,
    /// The cluster received no renewal in time. The locks are open to others.
    #[error("the session expired: the cluster heard no renewal within the TTL")]
    Expired,
    /// The cluster does not know the session: it ended so long ago that its record was dropped.
    #[error("the cluster does not know the session: it ended long ago")]
    Unknown,
    /// No renewal was acknowledged before the deadline. The cluster may release the locks at any time, or has done so.
    #[error("no contact with the cluster until the deadline: no renewal was acknowledged")]
    OutOfContact,
    /// An operator revoked the grant. Its locks open when the holder releases it, at the deadline that the session had
    /// at that moment, or have been opened already.
    #[error("an operator revoked the grant: {reason}")]
    Revoked {
        /// The operator's reason.
        reason: String,
    },
    /// The holder released the grant. [`super::Guard::release`] says whether the cluster has confirmed it.
    #[error("the grant was released")]
    Released,
}

/// An attempt without a result.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// The cluster refused the request.
    Refused(Refused),
    /// Not executed, for a cause that seldom goes away before the deadline of a call.
    NotNow(Refused),
    /// Another attempt may succeed.
    Again {
        /// Whether the request may have taken effect.
        unknown: bool,
        /// The node answered: there is no leader, or the server is busy.
        node_answers: bool,
        why: String,
    },
}

const DOMAIN: &str = "lockkeeper.v1";
const DISK_SPACE_LOW: &str = "DISK_SPACE_LOW";

impl AttemptFailure {
    pub(crate) fn timed_out() -> Self {
        Self::Again { unknown: true, node_answers: false, why: "it did not answer in time".into() }
    }

    pub(crate) fn leader_moved() -> Self {
        Self::Again { unknown: true, node_answers: true, why: "another node leads now".into() }
    }
}

impl From<Status> for AttemptFailure {
    fn from(status: Status) -> Self {
        let Some(info) = status.get_details_error_info().filter(|info| info.domain == DOMAIN) else {
            return without_details(&status);
        };

        let why = status.message().to_owned();
        let refused = |info: tonic_types::ErrorInfo, message| Refused {
            reason: Refusal::from_name(&info.reason),
            message,
            details: info.metadata.into_iter().filter(|(key, _)| key != "retry").collect(),
        };

        match info.metadata.get("retry").map(String::as_str) {
            Some("safe") if info.reason == DISK_SPACE_LOW => Self::NotNow(refused(info, why)),
            Some("safe") => Self::Again { unknown: false, node_answers: true, why },
            Some("same-id") => Self::Again { unknown: true, node_answers: true, why },
            _ => Self::Refused(refused(info, why)),
        }
    }
}

/// An error without our details: from the transport, or from a proxy between client and server.
fn without_details(status: &Status) -> AttemptFailure {
    // An error with a cause was made on this side when the connection failed, whatever its code; another connection may
    // work.
    if let Some(cause) = std::error::Error::source(status) {
        let why = innermost(cause);
        // A port that speaks TLS reads the first bytes of plain text and refuses the connection: no request arrived.
        let is_unread = why == SPEAKS_TLS || never_sent(status);
        return AttemptFailure::Again { unknown: !is_unread, node_answers: false, why };
    }

    let why = status.message().to_owned();
    match status.code() {
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal => AttemptFailure::Again { unknown: true, node_answers: false, why },
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => {
            AttemptFailure::Refused(Refused { reason: Refusal::unspecified(), message: why, details: BTreeMap::new() })
        }
    }
}

/// The innermost cause is the most specific: "connection refused" rather than "transport error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    let text = error.to_string();
    // Leave out HTTP/2's words around it.
    if text.contains(SPEAKS_TLS) { SPEAKS_TLS.to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use lockkeeper_types::{LockName, SessionId, Token};
    use tonic_types::ErrorDetails;

    use super::{super::Holder, *};

    fn status(code: Code, reason: &str, retry: &str) -> Status {
        let metadata = HashMap::from([("retry".to_owned(), retry.to_owned()), ("lock".to_owned(), "jobs".to_owned())]);
        Status::with_error_details(code, "because", ErrorDetails::with_error_info(reason, DOMAIN, metadata))
    }

    #[test]
    fn a_refusal_keeps_its_reason_and_names_the_things_concerned() {
        let AttemptFailure::Refused(refused) = status(Code::FailedPrecondition, "NOT_HELD", "no").into() else {
            panic!("it may not be repeated");
        };
        assert_eq!(refused.reason, Refusal::NotHeld);
        assert_eq!(refused.message, "because");
        assert_eq!(refused.details, BTreeMap::from([("lock".to_owned(), "jobs".to_owned())]));
    }

    #[test]
    fn what_the_server_calls_safe_did_not_happen() {
        let safe = status(Code::Unavailable, "NO_LEADER", "safe").into();
        assert!(matches!(safe, AttemptFailure::Again { unknown: false, node_answers: true, .. }));
        let same_id = status(Code::DeadlineExceeded, "OUTCOME_UNKNOWN", "same-id").into();
        assert!(matches!(same_id, AttemptFailure::Again { unknown: true, .. }));
    }

    #[test]
    fn a_cluster_without_disk_space_is_not_asked_until_the_deadline() {
        let AttemptFailure::NotNow(refused) = status(Code::ResourceExhausted, "DISK_SPACE_LOW", "safe").into() else {
            panic!("space does not come back within a call");
        };
        assert_eq!((refused.reason, refused.message.as_str()), (Refusal::DiskSpaceLow, "because"));
    }

    #[test]
    fn a_reason_from_the_future_is_a_refusal_all_the_same() {
        let AttemptFailure::Refused(refused) = status(Code::FailedPrecondition, "MOON_PHASE", "no").into() else {
            panic!("it may not be repeated");
        };
        assert_eq!(refused.reason, Refusal::Other("MOON_PHASE".to_owned()));
    }

    #[test]
    fn a_refusal_without_a_message_is_displayed_by_the_name_of_its_reason() {
        let reason = Refusal::NotHeld;
        let refused = Refused { reason, message: String::new(), details: BTreeMap::new() };
        assert_eq!(refused.to_string(), "REASON_NOT_HELD");
        let refused = Refused { message: "because".to_owned(), ..refused };
        assert_eq!(refused.to_string(), "because");
    }

    #[test]
    fn an_acquire_that_failed_names_the_obstacle_in_whole_milliseconds() {
        let name = LockName::new("jobs").unwrap();
        let busy = Busy { name, holder: None, queue_length: 0, delay_remaining: Some(Duration::from_micros(7_900)) };
        let failed = NotAcquired { waited: true, place_lost: false, busy };
        let said = "lock \"jobs\" was not acquired in time: closed for another 7 ms by its lock-delay";
        assert_eq!(failed.to_string(), said);
        let holder = Holder { token: Token(7), session_id: SessionId(1), label: "ann".to_owned(), ..Holder::default() };
        let busy = Busy { holder: Some(holder), queue_length: 2, ..failed.busy.clone() };
        let failed = NotAcquired { waited: false, busy, ..failed };
        let said = "lock \"jobs\" was not acquired: held by \"ann\" with token 7, 2 in the queue";
        assert_eq!(failed.to_string(), said);
        let busy = Busy { holder: None, delay_remaining: None, ..failed.busy.clone() };
        let said = "lock \"jobs\" was not acquired: others wait for it, 2 in the queue";
        assert_eq!(NotAcquired { busy, ..failed }.to_string(), said);
    }

    #[test]
    fn a_malformed_value_is_cut() {
        let error = Error::malformed("holder.session_id", &"é".repeat(1_000));
        let said = format!("holder.session_id is \"{}\": use", "é".repeat(64));
        assert!(error.to_string().contains(&said), "{error}");
    }

    #[test]
    fn a_port_that_speaks_tls_has_done_nothing() {
        let mut status = Status::unavailable("h2 protocol error");
        let goaway = std::io::Error::other(format!("http2 error: connection error received: {SPEAKS_TLS}"));
        status.set_source(std::sync::Arc::new(goaway));
        let AttemptFailure::Again { unknown, why, .. } = status.into() else { panic!("another node may answer") };
        assert!(!unknown && why == SPEAKS_TLS, "{why}");
    }

    #[test]
    fn a_broken_connection_says_nothing_about_the_outcome() {
        let broken = Status::unavailable("broken pipe").into();
        assert!(matches!(broken, AttemptFailure::Again { unknown: true, node_answers: false, .. }));
    }
}
