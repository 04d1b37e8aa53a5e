//! Backups, for operators.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;

use super::{
    Client, Error,
    call::{RetryPolicy, with},
    error::AttemptFailure,
};
use lockkeeper_proto::v1::{SaveSnapshotRequest, SaveSnapshotResponse, maintenance_client::MaintenanceClient};

/// How long a node may take to begin: a follower first catches up with the leader.
const BEGIN_MAX: Duration = Duration::from_secs(15);
/// How long the next piece may take. A node ends a backup before that.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A backup that arrives.
#[derive(Debug)]
pub struct Backup {
    pieces: Streaming<SaveSnapshotResponse>,
}

impl Client {
    /// Asks a node for a backup of the cluster: a file, in pieces. It contains all that was acknowledged before the call. With `stale`, it
    /// is the table of the node that answers, which may lag behind, but needs no quorum.
    ///
    /// Read-only: a dropped future, and a dropped backup, leave nothing behind.
    pub async fn backup(&self, stale: bool) -> Result<Backup, Error> {
        let request = SaveSnapshotRequest { stale };
        let policy = RetryPolicy { attempt_limit: Some(BEGIN_MAX), ..self.caller.read_policy() };
        let pieces = self.caller.call(policy, |node| with!(MaintenanceClient, node, save_snapshot, request)).await?;
        Ok(Backup { pieces })
    }
}

impl Backup {
    /// The next bytes of the file, until it is complete. After an error, the bytes that arrived are of no use.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let failure = match timeout(SILENCE_MAX, self.pieces.message()).await {
            Ok(Ok(piece)) => return Ok(piece.map(|piece| piece.data)),
            Ok(Err(status)) => AttemptFailure::from(status),
            Err(_) => AttemptFailure::timed_out(),
        };
        Err(match failure {
            AttemptFailure::Refused(refused) | AttemptFailure::NotNow(refused) => Error::Refused(refused),
            AttemptFailure::Again { why, .. } => Error::NoCluster { why },
        })
    }
}
