//! `lockkeeper snapshot` makes backups of a cluster, and new clusters from them.

pub(super) mod founding;
pub(super) mod inspect;
mod restore;
mod save;

use clap::{Args, Subcommand};

use super::{Exit, Failure};
use crate::raft::backup::BackupError;

/// Saves a backup of the cluster, inspects backups, and makes a new cluster from one.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct SnapshotTool {
    #[command(subcommand)]
    command: SnapshotCommand,
}

const EXAMPLE: &str = "\
Example: a backup, and a new cluster of three nodes made from it:
    lockkeeper snapshot save backup.lks
    lockkeeper snapshot inspect backup.lks
    lockkeeper snapshot restore backup.lks --cluster-id locks-2 --data-dir restored --member 1 --member 2 --member 3
Each directory restored/node-N then goes to its host, as data_dir of a node with the new cluster_id. With TLS, the nodes need certificates
of the new cluster, by `lockkeeper certs successor locks-2`.";

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
    Save(save::Save),
    Inspect(inspect::InspectBackup),
    Restore(restore::RestoreBackup),
}

impl SnapshotTool {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            SnapshotCommand::Save(save) => save.run().await,
            SnapshotCommand::Inspect(inspect) => inspect.run(),
            SnapshotCommand::Restore(restore) => restore.run().await,
        }
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        let exit = match &error {
            BackupError::Io { source, .. } => Exit::for_path(source),
            BackupError::Foreign { .. } => Exit::Usage,
            BackupError::Damaged { .. } | BackupError::Newer { .. } => Exit::Error,
        };
        Self::new(exit, error)
    }
}
