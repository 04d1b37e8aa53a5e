//! Why a node ends, or never started.

use std::{io, path::PathBuf};

use crate::joining::NotAdmitted;
use lockkeeper_audit::{FileError, SinkError};
use lockkeeper_raft::{forming::FormingError, identity::IdentityError, log::OpenError, snapshot::SnapshotError};
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
    Log(#[from] OpenError),
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
