//! Why a node ends, or never started.

use std::{io, path::PathBuf};

use crate::joining::NotAdmitted;
use lockkeeper_audit::{FileError, SinkError};
use lockkeeper_raft::{
    identity::IdentityError, log::LogOpenError, members::forming::FormingError, snapshot::SnapshotError,
};
use lockkeeper_transport::tls::TlsError;

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nothing was started.
    #[error("cannot listen on {address} ({key}): {source}")]
    Listen {
        /// The key in the configuration.
        key: &'static str,
        /// Its value.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The data directory cannot be used. Nothing was started, nothing was changed.
    #[error("cannot use the data directory {}: {source}; give this node one that it may write to", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The certificates cannot be used. Nothing was started.
    #[error("cannot use the certificates under [tls]: {0}")]
    Tls(#[from] TlsError),
    /// The data directory is another node's, or damaged. Nothing was started.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log cannot be used. Nothing was started.
    #[error(transparent)]
    Log(#[from] LogOpenError),
    /// The snapshots cannot be used. Nothing was started.
    #[error(transparent)]
    Snapshots(#[from] SnapshotError),
    /// The newest snapshot cannot be read. Nothing was started.
    #[error("cannot read the newest snapshot: {0}; replace this node with `lockkeeper member replace`")]
    Restore(io::Error),
    /// The cluster, or this node's data, has a version that this program does not support.
    #[error("{0}")]
    Version(String),
    /// This node cannot take part in its cluster.
    #[error(transparent)]
    Forming(#[from] FormingError),
    /// The cluster refuses this node as a member, for good.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The audit files cannot be opened. Nothing was started.
    #[error(transparent)]
    Audit(#[from] FileError),
    /// The audit files cannot be written any more. Nothing is lost: the lines are written when the node starts again.
    #[error(
        "the audit trail cannot be written: {0}; see that the directory under [audit] has space and can be written, and start the node again"
    )]
    AuditStopped(SinkError),
    /// An entry of the log cannot be applied. The node stopped before it.
    #[error("{0}")]
    Unapplied(String),
    /// Raft stopped: its storage failed, or there is a bug.
    #[error("raft has stopped: {0}")]
    Raft(String),
}

/// What must happen before a node that ended can start again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// No known action is needed: another start may succeed, once a disk has space again or another program has ended.
    StartAgain,
    /// The operator must correct the configuration, or a file that it names.
    Configuration,
    /// The operator must put the node's own data back, replace the node, or start a program that can read the data.
    Data,
    /// The cluster has removed this node, or does not admit it. The machine needs an id that no member has ever had.
    NewNode,
    /// An entry of the log cannot be applied, and the operator must decide where the log ends.
    Unapplied,
}

impl ServeError {
    /// What must happen before the next start. A supervisor starts a node again by itself only after [`Remedy::StartAgain`].
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Config(_) => Remedy::Configuration,
            Self::Identity(error) => after_identity(error),
            Self::Log(error) => after_log(error),
            Self::Snapshots(SnapshotError::Damaged { .. } | SnapshotError::Format { .. }) | Self::Version(_) => {
                Remedy::Data
            }
            Self::Restore(error) if is_damage(error) => Remedy::Data,
            Self::Forming(error) => after_forming(error),
            Self::NotAdmitted(_) => Remedy::NewNode,
            Self::Audit(FileError::Foreign { .. } | FileError::OtherCluster { .. }) => Remedy::Configuration,
            Self::Unapplied(_) => Remedy::Unapplied,

            // A certificate is often renewed by another program, which may be late.
            Self::Tls(_)
            | Self::Listen { .. }
            | Self::Directory { .. }
            | Self::Snapshots(SnapshotError::Io { .. })
            | Self::Restore(_)
            | Self::Audit(FileError::InUse(_) | FileError::Io { .. })
            | Self::AuditStopped(_)
            | Self::Raft(_) => Remedy::StartAgain,
        }
    }
}

fn after_identity(error: &IdentityError) -> Remedy {
    match error {
        IdentityError::Removed { .. } => Remedy::NewNode,
        IdentityError::OtherCluster { .. }
        | IdentityError::OtherNode { .. }
        | IdentityError::Foreign { .. }
        | IdentityError::Damaged { .. }
        | IdentityError::Format { .. }
        | IdentityError::LogLost { .. }
        | IdentityError::OtherIncarnation { .. }
        | IdentityError::Outdated { .. }
        | IdentityError::Disagreement { .. } => Remedy::Data,

        // The table is made anew from the files at the next start, so damaged memory heals.
        IdentityError::OtherTable { .. } | IdentityError::Io { .. } => Remedy::StartAgain,
    }
}

fn after_log(error: &LogOpenError) -> Remedy {
    match error {
        LogOpenError::Damaged { .. } | LogOpenError::NotOwn { .. } | LogOpenError::NotDurable { .. } => Remedy::Data,
        LogOpenError::Locked { .. }
        | LogOpenError::Late { .. }
        | LogOpenError::Full { .. }
        | LogOpenError::Io { .. } => Remedy::StartAgain,
    }
}

fn after_forming(error: &FormingError) -> Remedy {
    match error {
        FormingError::DataGone { .. } => Remedy::Data,
        FormingError::Removed { .. } => Remedy::NewNode,
        FormingError::NotAMember { .. } => Remedy::Configuration,
        FormingError::Identity(error) => after_identity(error),
        FormingError::Log(_) => Remedy::StartAgain,
    }
}

/// Whether a file was read and is not what was written.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_does_not_start_a_removed_node_for_ever() {
        let removed = |error: FormingError| ServeError::from(error).remedy();
        assert_eq!(removed(FormingError::Removed { asked: 1, node_id: 2 }), Remedy::NewNode);
        assert_eq!(removed(FormingError::NotAMember { node_id: 2 }), Remedy::Configuration);

        let not_admitted = NotAdmitted { endpoint: "a:1".to_owned(), reason: "its id was used".to_owned() };
        assert_eq!(ServeError::from(not_admitted).remedy(), Remedy::NewNode);
    }

    #[test]
    fn what_may_pass_is_told_from_data_that_stay_as_they_are() {
        let directory = PathBuf::from("data");
        let log = |error: LogOpenError| ServeError::from(error).remedy();
        assert_eq!(log(LogOpenError::Locked { directory: directory.clone() }), Remedy::StartAgain);
        let damaged = LogOpenError::Damaged { directory: directory.clone(), what: "a record is cut".to_owned() };
        assert_eq!(log(damaged), Remedy::Data);

        let identity = |error: IdentityError| ServeError::from(error).remedy();
        assert_eq!(identity(IdentityError::Foreign { directory: directory.clone() }), Remedy::Data);
        let source = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(identity(IdentityError::Io { action: "write", path: directory, source }), Remedy::StartAgain);

        let restore = |kind: io::ErrorKind| ServeError::Restore(kind.into()).remedy();
        assert_eq!(restore(io::ErrorKind::InvalidData), Remedy::Data);
        assert_eq!(restore(io::ErrorKind::StorageFull), Remedy::StartAgain);
    }
}
