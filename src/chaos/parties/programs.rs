//! Programs of the user's own, which use the cluster during a run and write their part of the history themselves.
//!
//! The run starts each by `sh -c`, with its settings in its environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `LOCKKEEPER_ENDPOINTS` | the nodes for Lockkeeper's own clients, through the links whose faults concern clients |
//! | `LOCKKEEPER_DYNAMODB_ENDPOINTS` | endpoints for DynamoDB's clients, through links for the fault `answers-lost` |
//! | `LOCKKEEPER_ETCD_ENDPOINTS` | the same for etcd's clients, `host:port` |
//! | `LOCKKEEPER_REDIS_ENDPOINTS` | the same for Redis' clients, `host:port` |
//! | `LOCKKEEPER_HISTORY` | the file for its events, one line each, as `lockkeeper::chaos::history` says; a program need not write any |
//! | `LOCKKEEPER_HISTORY_BASE_NS` | the reading of `CLOCK_MONOTONIC` at time 0 of the history, nanoseconds |
//!
//! A program works until its standard input ends, and then exits with 0 within [`FINISH`](super::clients::FINISH). It chooses the process
//! names and the locks in its events, which must differ from those of other programs.

use std::{
    fs::OpenOptions,
    io,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout_at},
};

use super::clients::part;
use crate::record::HistoryClock;

/// The first part of the names of their histories. A number follows.
pub(crate) const PROGRAM: &str = "program";

/// The settings of all programs of a run.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) endpoints: String,
    pub(crate) dynamodb_endpoints: String,
    pub(crate) etcd_endpoints: String,
    pub(crate) redis_endpoints: String,
    /// The directory of their parts of the history.
    pub(crate) parts: PathBuf,
    /// The file for their stdout and stderr.
    pub(crate) log: PathBuf,
    pub(crate) timeline: HistoryClock,
}

/// The programs in a run. They end with the run.
#[derive(Debug)]
pub(crate) struct Programs(Vec<(String, Child)>);

impl Programs {
    pub(crate) fn start(commands: &[String], surroundings: &Surroundings) -> io::Result<Self> {
        let start = |(number, command): (usize, &String)| Ok((command.clone(), spawn(number, command, surroundings)?));
        (1..).zip(commands).map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Tells all programs to finish, and waits for them. Returns the errors of those that did not, or that ended by themselves before.
    pub(crate) async fn finish(&mut self, by: Instant) -> Vec<String> {
        let mut troubles = Vec::new();
        self.0.retain_mut(|(command, child)| {
            let exited = child.try_wait().ok().flatten();
            troubles
                .extend(exited.map(|how| format!("the program {command:?} ended by itself: {how}; see programs.log")));
            child.stdin = None;
            exited.is_none()
        });

        for (command, mut child) in self.0.drain(..) {
            match timeout_at(by, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => troubles.push(format!("the program {command:?} failed: {status}; see programs.log")),
                Ok(Err(error)) => troubles.push(format!("the program {command:?} cannot be waited for: {error}")),
                Err(_) => {
                    troubles.push(format!("the program {command:?} did not finish in time"));
                    let _ = child.kill().await;
                }
            }
        }
        troubles
    }
}

fn spawn(number: usize, command: &str, surroundings: &Surroundings) -> io::Result<Child> {
    let Surroundings { endpoints, dynamodb_endpoints, etcd_endpoints, redis_endpoints, parts, log, timeline } =
        surroundings;
    let log = OpenOptions::new().create(true).append(true).open(log)?;

    Command::new("sh")
        .args(["-c", command])
        .env("LOCKKEEPER_ENDPOINTS", endpoints)
        .env("LOCKKEEPER_DYNAMODB_ENDPOINTS", dynamodb_endpoints)
        .env("LOCKKEEPER_ETCD_ENDPOINTS", etcd_endpoints)
        .env("LOCKKEEPER_REDIS_ENDPOINTS", redis_endpoints)
        .env("LOCKKEEPER_HISTORY", history(parts, number)?)
        .env("LOCKKEEPER_HISTORY_BASE_NS", base_ns(*timeline).to_string())
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        // Ctrl-C of the terminal must not reach the program: the run tells it to finish.
        .process_group(0)
        .spawn()
}

/// The file of a program's part of the history, as an absolute path: the directory may be relative to this process.
fn history(parts: &Path, number: usize) -> io::Result<PathBuf> {
    Ok(part(&parts.canonicalize()?, &format!("{PROGRAM}{number}")))
}

#[expect(clippy::disallowed_methods, reason = "every language has this clock; the history's own counts suspension too")]
fn base_ns(timeline: HistoryClock) -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    now_ns.saturating_sub(timeline.now_ns())
}
