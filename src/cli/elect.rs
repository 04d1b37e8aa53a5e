//! `lockkeeper elect` runs a command as the leader of an election, or prints the leader.
//!
//! An election is a lock, so the first is `lock` with one name and a value; see there for how the command is stopped
//! before another leader is possible.

use std::{ffi::OsString, io, time::Duration};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure, complain,
    lock::RunLocked,
    output::{Format, Output, deliver, deliver_line},
    show,
    signals::Signals,
    wanted::{WaitOptions, WantedLocks},
};
use crate::client::{Error, Leader};

/// Runs a command as the leader of an election, or prints the leader.
///
/// Stands for election, waits, and runs the command as the leader. The command finds the epoch, to be sent with every
/// write, in LOCKKEEPER_TOKEN, and the name in LOCKKEEPER_LOCK. The exit code is that of the command; 11: the
/// leadership is lost, or may be, and the command was stopped; 10: it was not won in time.
///
/// With --observe, it prints the current leader and then every change, one line each, until it is stopped.
#[derive(Args, Debug)]
#[command(
    override_usage = "lockkeeper elect [OPTIONS] <NAME> -- <COMMAND>...\n       lockkeeper elect --observe [OPTIONS] <NAME>"
)]
pub(super) struct Elect {
    /// Name of the election, which is the name of its lock
    name: String,
    /// Print the leader, without standing for election
    #[arg(long, conflicts_with_all = ["value", "wait", "no_wait", "ttl", "label", "command"])]
    observe: bool,
    /// Value to publish as the leader, such as an address
    #[arg(long, default_value = "", hide_default_value = true)]
    value: String,
    #[command(flatten)]
    waiting: WaitOptions,
    /// Session TTL: how soon another leader is possible when this process dies, and how long an outage the leadership
    /// survives
    #[arg(long, value_parser = super::arguments::duration, default_value = "10s", value_name = "TIME")]
    ttl: Duration,
    /// Label of the session, for people [default: host, process id, command]
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
    /// The command, after `--`
    #[arg(last = true, required_unless_present = "observe", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Elect {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match (self.observe, self.output.output) {
            (true, _) => self.observe().await,
            (false, Format::Text) => self.lead().await,
            (false, Format::Json) => {
                Err(Failure::new(Exit::Usage, "-o json needs --observe: add it, or leave out -o json"))
            }
        }
    }

    async fn lead(self) -> Result<Exit, Failure> {
        let Self { name, value, waiting, ttl, label, cluster, command, observe: _, output: _ } = self;
        let lock = RunLocked::new(WantedLocks::with_data(name, value, waiting), ttl, label, cluster, command);
        lock.run().await
    }

    async fn observe(self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let election = self.cluster.client()?.election(&self.name)?;
        let mut leaders = election.observe();

        let mut began = false;
        loop {
            let next = tokio::select! {
                next = leaders.next() => next,
                _ = signals.next() => return Ok(Exit::Success),
            };

            match next {
                Ok(leader) => {
                    began = true;
                    self.show(leader).map_err(Failure::for_stream)?;
                }
                // After a first answer, the cluster is expected to come back. Without one, the endpoints are probably
                // wrong.
                Err(error) if began && !matches!(error, Error::Refused(_)) => complain(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn show(&self, leader: Option<Leader>) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "shown to people; nothing is decided by it")]
        let now = Timestamp::now();
        match self.output.output {
            Format::Text => deliver(&format!("{}  {}\n", show::time(now), text(leader.as_ref()))),
            Format::Json => deliver_line(&ElectionReport {
                name: &self.name,
                seen_unix_ms: now.as_millisecond(),
                leader: leader.map(LeaderReport::from),
            }),
        }
    }
}

fn text(leader: Option<&Leader>) -> String {
    match leader {
        None => "no leader".to_owned(),
        Some(leader) => {
            let line =
                format!("epoch {}  {}  {}", leader.epoch.0, show::cell(&leader.label), show::data(&leader.value));
            line.trim_end().to_owned()
        }
    }
}

/// A line of the output.
#[derive(Serialize, Debug)]
struct ElectionReport<'a> {
    name: &'a str,
    /// When it was received, which is later than when it happened.
    seen_unix_ms: i64,
    /// `null` if there is no leader.
    leader: Option<LeaderReport>,
}

#[derive(Serialize, Debug)]
struct LeaderReport {
    epoch: u64,
    session_id: String,
    label: String,
    value_hex: String,
    value_text: Option<String>,
}

impl From<Leader> for LeaderReport {
    fn from(leader: Leader) -> Self {
        Self {
            epoch: leader.epoch.0,
            session_id: leader.session_id.to_string(),
            label: leader.label,
            value_hex: show::hex(&leader.value),
            value_text: String::from_utf8(leader.value).ok(),
        }
    }
}
