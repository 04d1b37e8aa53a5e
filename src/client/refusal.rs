//! Why the cluster refused a request.

use std::fmt;

use lockkeeper_proto::v1::Reason;

/// Why the cluster refused a request, for programs.
///
/// Displayed as the protocol names it, such as `REASON_NOT_HELD`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A value of the request is malformed or out of range.
    InvalidArgument,
    /// The cluster does not know the session: it was never opened, or ended long ago.
    SessionUnknown,
    /// The session was not renewed within its TTL; all its grants are over.
    SessionExpired,
    /// The session was closed; all its grants were released.
    SessionClosed,
    /// Another session with the same id is alive.
    SessionExists,
    /// The token does not name a grant of this session that is held now.
    NotHeld,
    /// The lock is in use in an incompatible mode: as a semaphore of another size, as a lock where a semaphore was requested, or the
    /// reverse.
    ModeMismatch,
    /// The caller abandoned this acquire.
    Abandoned,
    /// The client closed this request id before.
    RequestStale,
    /// The request id was used before for a different request.
    RequestReused,
    /// The wait was cancelled: its call broke and was not repeated in time.
    WaitCancelled,
    /// A limit of the cluster was reached; the detail `limit` names it.
    LimitReached,
    /// Load shedding.
    Overloaded,
    /// No leader is known or reachable.
    NoLeader,
    /// The node is shutting down.
    ShuttingDown,
    /// No answer in time; the request may still take effect.
    OutcomeUnknown,
    /// Corrupt state; see the node's log.
    Internal,
    /// The lock of an acquire with `must_exist` did not exist.
    LockUnknown,
    /// An operator took the grant by force.
    Revoked,
    /// The call's own deadline passed; the call was read-only.
    DeadlineExceeded,
    /// An operator removed the acquire from the queues in which it waited.
    WaitRemoved,
    /// Only a semaphore that is held or awaited can be resized, and the lock is not one now.
    NotSemaphore,
    /// The change of the membership, or the transfer of the leadership, is not allowed now.
    MembershipRefused,
    /// Another change of the membership is under way.
    MembershipChanging,
    /// The request needs a later cluster version, which waits until all members run a program that supports it.
    ClusterVersion,
    /// The disks of so many voters are nearly full that the cluster refuses what adds to the table.
    DiskSpaceLow,
    /// The client has shown no identity, and the node serves no anonymous clients; or its token is not known.
    Unauthenticated,
    /// No rule of the policy allows the request; the message says which rule would.
    PermissionDenied,
    /// The session belongs to another identity.
    NotOwner,
    /// The history of the keyspace begins after the revision.
    RevisionCompacted,
    /// The keyspace has not reached the revision.
    RevisionFuture,
    /// A reason that this version does not know, by its name in the protocol without `REASON_`; empty if none was given.
    Other(String),
}

const KNOWN: &[(Reason, Refusal)] = &[
    (Reason::InvalidArgument, Refusal::InvalidArgument),
    (Reason::SessionUnknown, Refusal::SessionUnknown),
    (Reason::SessionExpired, Refusal::SessionExpired),
    (Reason::SessionClosed, Refusal::SessionClosed),
    (Reason::SessionExists, Refusal::SessionExists),
    (Reason::NotHeld, Refusal::NotHeld),
    (Reason::ModeMismatch, Refusal::ModeMismatch),
    (Reason::Abandoned, Refusal::Abandoned),
    (Reason::RequestStale, Refusal::RequestStale),
    (Reason::RequestReused, Refusal::RequestReused),
    (Reason::WaitCancelled, Refusal::WaitCancelled),
    (Reason::LimitReached, Refusal::LimitReached),
    (Reason::Overloaded, Refusal::Overloaded),
    (Reason::NoLeader, Refusal::NoLeader),
    (Reason::ShuttingDown, Refusal::ShuttingDown),
    (Reason::OutcomeUnknown, Refusal::OutcomeUnknown),
    (Reason::Internal, Refusal::Internal),
    (Reason::LockUnknown, Refusal::LockUnknown),
    (Reason::Revoked, Refusal::Revoked),
    (Reason::DeadlineExceeded, Refusal::DeadlineExceeded),
    (Reason::WaitRemoved, Refusal::WaitRemoved),
    (Reason::NotSemaphore, Refusal::NotSemaphore),
    (Reason::MembershipRefused, Refusal::MembershipRefused),
    (Reason::MembershipChanging, Refusal::MembershipChanging),
    (Reason::DiskSpaceLow, Refusal::DiskSpaceLow),
    (Reason::ClusterVersion, Refusal::ClusterVersion),
    (Reason::Unauthenticated, Refusal::Unauthenticated),
    (Reason::PermissionDenied, Refusal::PermissionDenied),
    (Reason::NotOwner, Refusal::NotOwner),
    (Reason::RevisionCompacted, Refusal::RevisionCompacted),
    (Reason::RevisionFuture, Refusal::RevisionFuture),
];

const PREFIX: &str = "REASON_";

impl Refusal {
    /// The refusal of this name, as in an `ErrorInfo`: the name in the protocol without `REASON_`.
    pub(crate) fn from_name(name: &str) -> Self {
        let known = KNOWN.iter().find(|(reason, _)| reason.as_str_name().strip_prefix(PREFIX) == Some(name));
        known.map_or_else(|| Self::Other(name.to_owned()), |(_, refusal)| refusal.clone())
    }

    /// The reason for a refusal that names none, such as one of a proxy between client and node.
    pub(crate) fn unspecified() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = KNOWN.iter().find(|(_, refusal)| refusal == self);
        match (known, self) {
            (Some((reason, _)), _) => f.write_str(reason.as_str_name()),
            (None, Self::Other(name)) if !name.is_empty() => write!(f, "{PREFIX}{name}"),
            (None, _) => f.write_str(Reason::Unspecified.as_str_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_protocol_is_known_and_displayed_by_its_name() {
        for reason in (1..1_000).filter_map(|number| Reason::try_from(number).ok()) {
            let name = reason.as_str_name().strip_prefix(PREFIX).unwrap();
            let refusal = Refusal::from_name(name);
            // Both enumerations have the same names.
            assert_eq!(format!("{refusal:?}"), format!("{reason:?}"));
            assert_eq!(refusal.to_string(), reason.as_str_name());
        }
    }

    #[test]
    fn a_reason_of_a_later_version_keeps_its_name() {
        let later = Refusal::from_name("MOON_PHASE");
        assert_eq!(
            (&later, later.to_string()),
            (&Refusal::Other("MOON_PHASE".to_owned()), "REASON_MOON_PHASE".to_owned())
        );
        assert_eq!(Refusal::from_name(""), Refusal::unspecified());
        assert_eq!(Refusal::unspecified().to_string(), "REASON_UNSPECIFIED");
    }
}
