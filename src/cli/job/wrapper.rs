//! The wrapper: starts the keeper, communicates with it, and takes over its work if the keeper is dead or late.

use std::{ffi::OsString, io, os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::process::{Pid, Signal, getpgrp};
use tokio::time::sleep;

use super::{
    KILLING_MAX,
    descendants::{self, adopt_orphans, kill_descendants},
    link::{KeeperLink, Message},
    start_keeper,
};
use crate::{
    cli::{Exit, Failure, complain, terminal},
    client::Moment,
};

/// Interval at which the end of the time is checked.
const LOOK: Duration = Duration::from_millis(10);

/// Smallest change of the deadline that is sent to the keeper.
const NEWS_MIN: Duration = Duration::from_millis(1);

/// A command and all its descendants. On drop, the keeper kills them.
#[derive(Debug)]
pub(super) struct Job {
    link: KeeperLink,
    /// The outer one and, once that has told it, the inner one.
    keepers: Vec<Pid>,
    /// The deadline sent to the keeper last.
    kill_at: Moment,
    end: Option<JobEnd>,
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JobEnd {
    /// The command ended by itself.
    Exit(Exit),
    /// The keeper killed it when its time was over.
    Expired,
    /// The keeper was killed, and so was the command.
    KeeperKilled,
}

impl Job {
    /// Starts the command with these environment variables; it is killed at `kill_at` unless that is extended.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
        kill_at: Moment,
    ) -> Result<Self, Failure> {
        // If the keeper is killed, its descendants become ours.
        adopt_orphans()?;

        let group = if terminal::is_there() { getpgrp().as_raw_pid() } else { 0 };
        let mut arguments = vec!["keep".to_owned(), "--group".to_owned(), group.to_string()];
        // Where a keeper does not find descendants, an outer one could kill only the inner one.
        if descendants::KNOWN {
            arguments.push("--outer".to_owned());
        }

        let (keeper, link) = start_keeper(kill_at, io::stdin(), &arguments, command, environment)?;
        Ok(Self { link, keepers: vec![keeper], kill_at, end: None })
    }

    /// Sets the moment at which the command is killed.
    pub(super) fn kill_at(&mut self, moment: Moment) {
        let difference = moment.since(self.kill_at).max(self.kill_at.since(moment));
        if difference >= NEWS_MIN && self.link.tell(Message::KillAt(moment)) {
            self.kill_at = moment;
        }
    }

    /// Waits for the end of the command and of all its descendants. Cancel safe.
    pub(super) async fn wait(&mut self) -> JobEnd {
        while let Some(message) = self.link.next().await {
            match message {
                Message::Ended(status) => self.end = Some(JobEnd::Exit(exit(status))),
                Message::Expired => self.end = Some(JobEnd::Expired),
                Message::Keeper(inner) => self.keepers.push(inner),
                // Messages of the wrapper itself.
                Message::KillAt(_) | Message::Signal(_) | Message::Terminate => {}
            }
        }
        self.kill_all().await;
        self.end.unwrap_or(JobEnd::KeeperKilled)
    }

    /// Forwards a signal that this process received.
    pub(super) fn forward(&self, signal: Signal) {
        // In the foreground, the terminal sends these two to the command as well.
        if !((signal == Signal::INT || signal == Signal::QUIT) && terminal::in_foreground()) {
            self.link.tell(Message::Signal(signal));
        }
    }

    /// Stops the command and its descendants: SIGTERM, then SIGKILL after `grace` or as soon as `out_of_time` returns
    /// true.
    pub(super) async fn stop(&mut self, grace: Duration, out_of_time: impl Fn() -> bool) {
        if !grace.is_zero() && self.link.tell(Message::Terminate) {
            tokio::select! {
                _ = self.wait() => return,
                () = sleep(grace) => {}
                () = until(out_of_time) => {}
            }
        }
        self.kill_all().await;
    }

    /// Includes the keepers, which could be stopped.
    async fn kill_all(&self) {
        let left: Vec<String> = kill_descendants(KILLING_MAX, &self.keepers).await.iter().map(Pid::to_string).collect();
        if !left.is_empty() {
            complain(&format!("these processes could not be killed and outlive the lock: {}", left.join(" ")));
        }
    }
}

async fn until(out_of_time: impl Fn() -> bool) {
    while !out_of_time() {
        sleep(LOOK).await;
    }
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).map_or(Exit::Error, Exit::Code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Error,
    }
}
