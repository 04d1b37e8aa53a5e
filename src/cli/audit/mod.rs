//! `lockkeeper audit` checks audit files, and tells the story of a lock.

mod show;
mod verify;

use std::{fs, path::PathBuf};

use clap::{Args, Subcommand};

use super::{Exit, Failure};
use lockkeeper_audit::{FileError, VerifyError, files_in};

/// Checks audit files, and shows what happened to a lock.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct AuditTool {
    #[command(subcommand)]
    command: AuditCommand,
}

const EXAMPLE: &str = "\
Example: a node with [audit] directory = \"audit\":
    lockkeeper audit verify audit
    lockkeeper audit show --lock invoices audit";

#[derive(Subcommand, Debug)]
enum AuditCommand {
    Verify(verify::Verify),
    Show(show::Show),
}

impl AuditTool {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        match self.command {
            AuditCommand::Verify(verify) => verify.run(),
            AuditCommand::Show(show) => show.run(),
        }
    }
}

/// The files of the directories among these, and the files.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        let failed = |error: std::io::Error| {
            let exit = Exit::for_path(&error);
            Failure::new(exit, format_args!("cannot read {}: {error}", path.display()))
        };

        if fs::metadata(path).map_err(failed)?.is_dir() {
            files.extend(files_in(path).map_err(failed)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        let exit = match &error {
            VerifyError::Broken(_) => Exit::Error,
            VerifyError::File(FileError::Io { source, .. }) => Exit::for_path(source),
            VerifyError::File(FileError::Foreign { .. } | FileError::OtherCluster { .. } | FileError::InUse(_))
            | VerifyError::None => Exit::Usage,
        };
        Self::new(exit, error)
    }
}
