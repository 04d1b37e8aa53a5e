//! `lockkeeper snapshot restore` makes a new cluster from a backup, or an empty one whose tokens begin above those of an earlier one.

use std::{fs, path::PathBuf};

use clap::Args;

use super::{
    super::{
        Exit, Failure,
        output::Output,
        progress::{Unit, WorkUnderWay},
    },
    founding::{self, FoundedCluster, FoundingMember},
};
use crate::{raft::backup::BackupFile, table::Applied};

/// Makes the data of a new cluster from a backup. Nothing that exists is changed.
///
/// Tokens go on far above any that the old cluster can have issued. No client keeps its session: it is told that the session is unknown,
/// and has lost its locks. A lock that was granted after the backup is free in it, and its holder trusts it until its deadline: so no lock
/// is granted before --closed-for has passed, from the first leader on. Locks that were held stay closed for the full TTL of their
/// session. Waiting acquires are dropped. Data that clients kept on locks, and lock-delays, stay.
#[derive(Args, Debug)]
pub(super) struct RestoreBackup {
    /// The backup, or a snapshot from a data directory
    #[arg(required_unless_present = "empty", conflicts_with = "empty")]
    file: Option<PathBuf>,
    /// Make an empty cluster, for resources that remember tokens of an earlier one: --first-token must be above these
    #[arg(long, requires = "first_token")]
    empty: bool,
    /// A member of the new cluster; repeat it for each. Without addresses: those of the member with this id in the backup
    #[arg(long = "member", required = true, value_name = "ID[=PEER,CLIENT]", value_parser = founding::member)]
    members: Vec<FoundingMember>,
    /// The data directory to make. With several members, they get DIR/node-ID each
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    #[command(flatten)]
    target: FoundedCluster,
    #[command(flatten)]
    output: Output,
}

impl RestoreBackup {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let (applied, header) = match &self.file {
            Some(file) => {
                let bytes = fs::metadata(file).ok().map(|data| data.len());
                let progress = WorkUnderWay::begin(&format!("reading {}", file.display()), Unit::Bytes, bytes);
                let BackupFile { applied, header, .. } = BackupFile::read_counting(file, progress.count())?;
                (applied, header)
            }
            None => (Applied::default(), None),
        };
        let copied = header.map(|header| header.cluster_id);
        let format = self.output.output;
        founding::found(self.target, &self.members, &self.data_dir, copied.as_ref(), &applied, format).await
    }
}
