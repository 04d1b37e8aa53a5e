//! What an error of the service means to the clients of other products, of which each has its own words for it.
//!
//! The distinction that counts is whether a request may have taken effect: a client that repeats one of [`FailureClass::Unknown`] as if it
//! had not may find its own lock in its way, or take it for somebody else's.

use crate::api::{Error, FailureReason, Retry};

/// What became of a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FailureClass {
    /// Nothing happened: the caller may not do this.
    Denied,
    /// Nothing happened, and no repetition helps: a key, a value or the transaction is too large.
    TooLarge,
    /// Nothing happened: the table is full, or the part of it that the caller may have.
    Full,
    /// Nothing happened: there is too much to do, or too little space for what adds.
    Overloaded,
    /// Nothing happened: there is no leader, no quorum, or not every member knows the request.
    Unavailable,
    /// It may have taken effect, or still do.
    Unknown,
}

impl From<&Error> for FailureClass {
    fn from(error: &Error) -> Self {
        let is = |reasons: &[FailureReason]| reasons.contains(&error.reason);

        if is(&[FailureReason::Unauthenticated, FailureReason::PermissionDenied, FailureReason::NotOwner]) {
            Self::Denied
        } else if is(&[FailureReason::LimitReached]) && error.retry != Retry::Safe {
            match error.about("limit") {
                Some("txn_writes" | "txn_reads" | "txn_bytes" | "message_bytes") => Self::TooLarge,
                _ => Self::Full,
            }
        } else if is(&[FailureReason::LimitReached, FailureReason::Overloaded, FailureReason::DiskSpaceLow]) {
            Self::Overloaded
        } else if is(&[FailureReason::InvalidArgument]) {
            Self::TooLarge
        } else if error.retry == Retry::Safe || is(&[FailureReason::ClusterVersion]) {
            // A request that changes nothing and was not answered in time is one of these, too.
            Self::Unavailable
        } else {
            Self::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use lockkeeper_machine::{Identity, Limit, Refusal, Version};

    /// A client that hears of a bad request gives up. So only what no repetition helps is one: neither a full table nor a missing quorum.
    #[test]
    fn a_full_table_and_a_missing_quorum_are_no_bad_requests() {
        let class = |error: Error| FailureClass::from(&error);
        let limit = |limit| class(Error::refused(Refusal::Limit(limit)));
        for full in [Limit::Sessions, Limit::Locks, Limit::TableBytes, Limit::Entries] {
            assert_eq!(limit(full), FailureClass::Full, "{full:?}");
        }
        assert_eq!(limit(Limit::TxnWrites), FailureClass::TooLarge);

        assert_eq!(class(Error::no_leader()), FailureClass::Unavailable);
        assert_eq!(class(Error::deadline_passed(false)), FailureClass::Unavailable, "a request that changes nothing");
        assert_eq!(class(Error::deadline_passed(true)), FailureClass::Unknown);

        let who = Identity::new("ann").expect("a name");
        let over = |is_passing| class(Error::over_limit(&who, "sessions", 1, 1, is_passing));
        assert_eq!(over(false), FailureClass::Full);
        assert_eq!(over(true), FailureClass::Overloaded);
    }

    #[test]
    fn a_caller_without_rights_is_told_from_members_that_are_too_old() {
        let class = |error: Error| FailureClass::from(&error);
        let who = Identity::new("ann").expect("a name");
        for denied in [Error::unauthenticated("no token"), Error::not_owner(Some(&who)), Error::not_owner(None)] {
            assert_eq!(FailureClass::from(&denied), FailureClass::Denied, "{denied:?}");
        }
        assert_eq!(class(Error::invalid("ttl_ms", "is 0")), FailureClass::TooLarge);
        let lags = Error::version_too_low(Version::CHILDREN, Version::FIRST, &BTreeMap::new());
        for too_old in [Error::leader_lacks(Version::CHILDREN), lags] {
            assert_eq!(FailureClass::from(&too_old), FailureClass::Unavailable, "{too_old:?}");
        }
    }
}
