//! etcd's errors: clients tell them apart by their texts, which are therefore exactly etcd's.

use thiserror::Error;
use tonic::{Code, Status};

use crate::EtcdStoreError;

/// An error of etcd's, with its text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum Error {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    Future,
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
    #[error("etcdserver: request is too large")]
    TooLarge,
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    #[error("etcdserver: permission denied")]
    Denied,
    #[error("etcdserver: no leader")]
    NoLeader,
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    #[error("etcdserver: request timed out")]
    TimedOut,
    #[error("etcdserver: server stopped")]
    Stopped,
    #[error("election: no leader")]
    NobodyLeads,
    #[error("election: not leader")]
    NotLeader,
    #[error("\"leader\" field must be provided")]
    LeaderMissing,
    /// etcd does not have this error: it deletes any key.
    #[error("etcdserver: {key:?} is not the key of a lock: unlock with the key that the lock was answered with")]
    NotLocked { key: String },
    /// etcd does not have this error: it continues to wait.
    #[error("etcdserver: the key of this request was deleted while it waited, and its lease lives: ask again")]
    PlaceLost,
    /// etcd does not have this error: it sends answers of any size.
    #[error("etcdserver: the answer has more than {bytes_max} bytes: ask for fewer keys, with a limit")]
    AnswerTooLarge { bytes_max: usize },
    /// etcd does not have this error: it lists all.
    #[error(
        "etcdserver: there are more than {most} leases, which is what one answer shows: look at single ones by LeaseTimeToLive"
    )]
    TooManyLeases { most: usize },
    /// etcd does not have this error.
    #[error("etcdserver: {0}")]
    Other(String),
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOperations
            | Self::DuplicateKey
            | Self::InvalidSortOption
            | Self::TooLarge
            | Self::UserEmpty
            | Self::LeaderMissing
            | Self::AuthFailed => Code::InvalidArgument,
            Self::Compacted | Self::Future | Self::TtlTooLarge => Code::OutOfRange,
            Self::NoSpace | Self::TooManyRequests | Self::AnswerTooLarge { .. } | Self::TooManyLeases { .. } => {
                Code::ResourceExhausted
            }
            Self::LeaseNotFound | Self::NobodyLeads | Self::NotLocked { .. } => Code::NotFound,
            Self::LeaseExists | Self::AuthNotEnabled | Self::NotLeader => Code::FailedPrecondition,
            Self::PlaceLost => Code::Aborted,
            Self::InvalidToken => Code::Unauthenticated,
            Self::Denied => Code::PermissionDenied,
            Self::NoLeader | Self::LeaderChanged | Self::TimedOut | Self::Stopped => Code::Unavailable,
            Self::Other(_) => Code::Internal,
        }
    }
}

impl Error {
    /// Whether a change that failed so may have taken effect.
    pub(crate) fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::LeaderChanged | Self::TimedOut)
    }

    /// Whether it says that the caller may not ask.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Denied | Self::InvalidToken | Self::UserEmpty)
    }
}

/// Whether an error says nothing of the request, so that it may be repeated if it may take effect twice.
pub(crate) fn passes(error: &Error) -> bool {
    matches!(error, Error::NoLeader | Error::LeaderChanged | Error::TimedOut | Error::TooManyRequests)
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<EtcdStoreError> for Error {
    fn from(error: EtcdStoreError) -> Self {
        match error {
            EtcdStoreError::NoLeader => Self::NoLeader,
            EtcdStoreError::LeaderChanged => Self::LeaderChanged,
            EtcdStoreError::TimedOut => Self::TimedOut,
            EtcdStoreError::Stopping => Self::Stopped,
            EtcdStoreError::Overloaded => Self::TooManyRequests,
            // What etcd says to a request without a token.
            EtcdStoreError::Anonymous => Self::UserEmpty,
            EtcdStoreError::UnknownToken => Self::InvalidToken,
            EtcdStoreError::Denied(_) => Self::Denied,
            EtcdStoreError::TooLarge(_) => Self::TooLarge,
            EtcdStoreError::Full(_) => Self::NoSpace,
            EtcdStoreError::SessionEnded => Self::LeaseNotFound,
            EtcdStoreError::SessionExists => Self::LeaseExists,
            EtcdStoreError::Compacted { .. } => Self::Compacted,
            EtcdStoreError::Future => Self::Future,
            EtcdStoreError::Other(what) => Self::Other(what),
        }
    }
}

impl From<EtcdStoreError> for Status {
    fn from(error: EtcdStoreError) -> Self {
        Error::from(error).into()
    }
}
