//! Why a cluster on this machine does not run.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use super::EXIT_ADDRESS_IN_USE;
use crate::server::config::ConfigError;

/// Why a cluster on this machine does not run. After any of them, none of its nodes does.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Nothing was started.
    #[error("cannot use {}: {source}: name a directory that this user can write", path.display())]
    Directory {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing was started.
    #[error("{} belongs to a cluster that runs: stop that first, or name another directory", .0.display())]
    InUse(PathBuf),
    /// Nothing was started, and nothing changed.
    #[error(
        "{} has a file of another kind, {file:?}: name an empty or a new directory, or one that a cluster was kept in before",
        path.display()
    )]
    Foreign {
        /// Where.
        path: PathBuf,
        /// The first of what no cluster has put there.
        file: String,
    },
    /// Nothing was started, and nothing changed.
    #[error("{} holds a cluster of {has}, not of {asked}: leave the number out, or name another directory", path.display())]
    OtherSize {
        /// Where.
        path: PathBuf,
        /// Its nodes.
        has: usize,
        /// The nodes that were asked for.
        asked: usize,
    },
    /// Nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nothing was started.
    #[error("cannot find free ports on 127.0.0.1: {0}")]
    NoPorts(io::Error),
    /// The program is not there, or cannot be run.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A node ended by itself.
    #[error("node {node_id} ended ({status}); its log {} ends with\n{}", log.display(), indented(tail))]
    Died {
        /// Which.
        node_id: u64,
        /// How.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of that.
        tail: String,
    },
    /// It did not serve in time.
    #[error("the cluster does not serve after {:.1} s: {}; see {}", after.as_secs_f64(), missing.join("; "), listed(logs))]
    NotReady {
        /// How long it was waited for.
        after: Duration,
        /// What was missing at the end.
        missing: Vec<String>,
        /// The logs of its nodes.
        logs: Vec<PathBuf>,
    },
}

impl LocalError {
    /// A node found one of its ports taken.
    pub(super) fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Died { status, .. } if status.code() == Some(EXIT_ADDRESS_IN_USE.into()))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
