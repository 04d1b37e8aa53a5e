//! `lockkeeper snapshot save` stores a backup of the cluster in a file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process,
    sync::atomic::Ordering::Relaxed,
};

use clap::Args;
use serde::Serialize;

use super::super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
    progress::{Unit, WorkUnderWay},
    show,
};
use crate::{
    client::Backup,
    raft::backup::{self, BackupSummary},
};
use lockkeeper_storage::files;

/// Stores a backup of the cluster in a file. Works at any time and under load, from any node.
///
/// The backup is the table after one log entry, and contains everything that was acknowledged before the command began.
#[derive(Args, Debug)]
pub(super) struct Save {
    /// The file to write; - for stdout
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Save the table of the node that answers, which may lag behind: for a cluster without a quorum
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct SaveReport<'a> {
    file: &'a str,
    cluster_id: &'a str,
    node_id: u64,
    version: &'a str,
    created_unix_ms: u64,
    stale: bool,
    log_index: u64,
    log_term: u64,
    bytes: u64,
}

impl Save {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        if self.file == Path::new("-") {
            return self.to_stdout().await;
        }
        self.expect_free()?;

        let mut backup = self.cluster.client()?.backup(self.stale).await?;
        let partial = PartialBackup::create(&self.file)?;
        let progress = WorkUnderWay::begin(&format!("saving {}", self.file.display()), Unit::Bytes, None);
        receive(&mut backup, &mut &partial.file, &progress).await?;
        partial.file.sync_all().map_err(|error| Failure::for_path(&self.file, &error))?;

        // Check the bytes on the disk, so that an unreadable backup is noticed now.
        drop(progress);
        let bytes = partial.file.metadata().ok().map(|data| data.len());
        let progress = WorkUnderWay::begin(&format!("checking {}", self.file.display()), Unit::Bytes, bytes);
        let summary = backup::check(&partial.path, progress.count())?;
        drop(progress);

        // Somebody may have made the file while the backup was saved.
        self.expect_free()?;
        files::publish(&partial.path, &self.file).map_err(|error| Failure::for_path(&self.file, &error))?;

        self.report(&summary)?;
        Ok(Exit::Success)
    }

    async fn to_stdout(&self) -> Result<Exit, Failure> {
        let mut backup = self.cluster.client()?.backup(self.stale).await?;
        let mut stdout = io::stdout();
        let progress = WorkUnderWay::begin("saving", Unit::Bytes, None);
        receive(&mut backup, &mut stdout, &progress).await?;
        stdout.flush()?;
        Ok(Exit::Success)
    }

    fn expect_free(&self) -> Result<(), Failure> {
        // Not `exists`, which would overwrite a link that leads nowhere.
        if self.force || fs::symlink_metadata(&self.file).is_err() {
            return Ok(());
        }
        let message = format_args!("{} exists: name another file, or replace it with --force", self.file.display());
        Err(Failure::new(Exit::Usage, message))
    }

    fn report(&self, summary: &BackupSummary) -> io::Result<()> {
        let BackupSummary { header, log_id, bytes } = summary;
        let file = self.file.to_string_lossy();
        let log_index = log_id.map_or(0, |id| id.index);

        match self.output.output {
            Format::Json => print_document(&SaveReport {
                file: &file,
                cluster_id: header.cluster_id.as_str(),
                node_id: header.node_id,
                version: &header.version,
                created_unix_ms: header.created.0,
                stale: header.is_stale,
                log_index,
                log_term: log_id.map_or(0, |id| id.leader_id.term),
                bytes: *bytes,
            }),
            Format::Text => {
                let stale = if header.is_stale { ", which may lag behind," } else { "" };
                let bytes = show::count(*bytes, "byte", "bytes");
                let cluster = &header.cluster_id;
                print(&format!("saved cluster {cluster}{stale} up to log index {log_index} in {file}: {bytes}\n"))
            }
        }
    }
}

/// Writes all pieces.
async fn receive(backup: &mut Backup, output: &mut impl io::Write, progress: &WorkUnderWay) -> Result<(), Failure> {
    while let Some(piece) = backup.next().await? {
        output.write_all(&piece)?;
        progress.count().fetch_add(piece.len() as u64, Relaxed);
    }
    Ok(())
}

/// The file under another name, until it is complete. Deleted if it is not published.
struct PartialBackup {
    path: PathBuf,
    file: File,
}

impl PartialBackup {
    fn create(file: &Path) -> Result<Self, Failure> {
        let mut path = file.as_os_str().to_owned();
        path.push(format!(".{}{}", process::id(), files::PARTIAL_SUFFIX));
        let path = PathBuf::from(path);
        // It holds the data of all locks.
        let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path);
        let file = file.map_err(|error| Failure::for_path(&path, &error))?;
        Ok(Self { path, file })
    }
}

impl Drop for PartialBackup {
    fn drop(&mut self) {
        // After the rename the temporary file no longer exists, and this fails.
        let _ = fs::remove_file(&self.path);
    }
}
