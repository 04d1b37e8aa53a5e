//! Errors of a cluster on this machine.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use lockkeeper_certs::CertsError;
use lockkeeper_config::ConfigError;

use super::EXIT_ADDRESS_IN_USE;

/// Why a cluster on this machine does not run. After any of these errors none of its nodes runs.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A file or directory cannot be used. Nothing was started.
    #[error("cannot use {}: {source}: choose a directory that this user can write", path.display())]
    Directory {
        /// The path that could not be used.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another cluster runs in the directory. Nothing was started.
    #[error("{} belongs to a running cluster: stop that cluster first, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// The directory contains files of something else. Nothing was started, and nothing changed.
    #[error(
        "{} contains a file that is not part of a cluster, {file:?}: choose an empty or new directory, or one with a cluster",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The first foreign file.
        file: String,
    },
    /// The directory has a cluster of another size. Nothing was started, and nothing changed.
    #[error("{} has a cluster of {has} nodes, not of {asked}: leave out --nodes, or choose another directory", path.display())]
    OtherSize {
        /// The directory.
        path: PathBuf,
        /// The number of nodes that it has.
        has: usize,
        /// The number of nodes that was asked for.
        asked: usize,
    },
    /// A node's configuration is invalid. Nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate cannot be made. Nothing was started.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// No port is free. Nothing was started.
    #[error("cannot find free ports on 127.0.0.1: {0}")]
    NoPorts(io::Error),
    /// The program does not exist or cannot be run.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A node exited by itself.
    #[error("node {node_id} exited ({status}); the end of its log {}:\n{}", log.display(), indented(tail))]
    Died {
        /// The node.
        node_id: u64,
        /// Its exit status.
        status: ExitStatus,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The cluster did not serve in time.
    #[error("the cluster does not serve after {:.1} s: {}; see {}", after.as_secs_f64(), missing.join("; "), listed(logs))]
    NotReady {
        /// How long this was waited for.
        after: Duration,
        /// Conditions that were not met at the end.
        missing: Vec<String>,
        /// The logs of its nodes.
        logs: Vec<PathBuf>,
    },
}

impl LocalError {
    /// Whether a node exited because one of its ports was in use.
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
