//! The wrapper: starts the keeper, communicates with it, and takes over its work if the keeper is dead or late.

use std::{ffi::OsString, io, os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::process::{Pid, Signal, getpgrp};
use tokio::time::{Instant, sleep};

use super::{
    KILLING_MAX,
    descendants::{self, LeftAlive, adopt_orphans, kill_descendants},
    link::{KeeperLink, Message},
    start_keeper,
};
use crate::{
    cli::{Exit, Failure, terminal},
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
    kill: KillAttempt,
}

/// A kill of all processes, which is given up at its end. It outlives the future that carries it out: that is dropped again and again while
/// the lock is renewed, and the end must come nevertheless.
#[derive(Clone, Copy, Debug, Default)]
struct KillAttempt {
    until: Option<Instant>,
}

impl KillAttempt {
    /// The moment at which the kill is given up, which begins now if it has not begun before.
    fn until(&mut self) -> Instant {
        *self.until.get_or_insert_with(|| Instant::now() + KILLING_MAX)
    }

    /// Kills until nothing is left, or the end has come. Returns what is left. Cancel safe: another call goes on.
    async fn go_on<F: Future<Output = LeftAlive>>(&mut self, kill: impl FnOnce(Instant) -> F) -> LeftAlive {
        kill(self.until()).await
    }
}

/// The end of a job, and what could not be killed of it: processes of another user, or those that hang in a system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EndedJob {
    pub(super) end: JobEnd,
    pub(super) left: LeftAlive,
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
        Ok(Self { link, keepers: vec![keeper], kill_at, end: None, kill: KillAttempt::default() })
    }

    /// Sets the moment at which the command is killed.
    pub(super) fn kill_at(&mut self, moment: Moment) {
        let difference = moment.since(self.kill_at).max(self.kill_at.since(moment));
        if difference >= NEWS_MIN && self.link.tell(Message::KillAt(moment)) {
            self.kill_at = moment;
        }
    }

    /// Waits for the end of the command and of all its descendants, or until those that are left have withstood a kill for [`KILLING_MAX`].
    /// Cancel safe.
    pub(super) async fn wait(&mut self) -> EndedJob {
        while let Some(message) = self.link.next().await {
            match message {
                Message::Ended(status) => self.end = Some(JobEnd::Exit(exit(status))),
                Message::Expired => self.end = Some(JobEnd::Expired),
                Message::Keeper(inner) => self.keepers.push(inner),
                // Messages of the wrapper itself.
                Message::KillAt(_) | Message::Signal(_) | Message::Terminate => {}
            }
        }
        let left = self.kill_all().await;
        EndedJob { end: self.end.unwrap_or(JobEnd::KeeperKilled), left }
    }

    /// Forwards a signal that this process received.
    pub(super) fn forward(&self, signal: Signal) {
        // In the foreground, the terminal sends these two to the command as well.
        if !((signal == Signal::INT || signal == Signal::QUIT) && terminal::in_foreground()) {
            self.link.tell(Message::Signal(signal));
        }
    }

    /// Stops the command and its descendants: SIGTERM, then SIGKILL after `grace` or as soon as `out_of_time` returns
    /// true. Returns what could not be killed.
    pub(super) async fn stop(&mut self, grace: Duration, out_of_time: impl Fn() -> bool) -> LeftAlive {
        if !grace.is_zero() && self.link.tell(Message::Terminate) {
            tokio::select! {
                ended = self.wait() => return ended.left,
                () = sleep(grace) => {}
                () = until(out_of_time) => {}
            }
        }
        self.kill_all().await
    }

    /// Includes the keepers, which could be stopped. Returns what could not be killed.
    async fn kill_all(&mut self) -> LeftAlive {
        let keepers: &[Pid] = &self.keepers;
        self.kill.go_on(|until| kill_descendants(until, keepers)).await
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

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A process that withstands each kill, as one of another user does.
    async fn withstands(until: Instant) -> LeftAlive {
        tokio::time::sleep_until(until).await;
        LeftAlive { known: vec![Pid::INIT], all_ended: false }
    }

    /// As the wrapper does, which looks after the lock between.
    #[tokio::test(start_paused = true)]
    async fn a_kill_that_is_dropped_again_and_again_is_given_up_all_the_same() {
        let begun = Instant::now();
        let mut kill = KillAttempt::default();
        let left = loop {
            tokio::select! {
                left = kill.go_on(withstands) => break left,
                () = sleep(Duration::from_millis(250)) => {}
            }
            assert!(begun.elapsed() < KILLING_MAX * 2, "it goes on for ever");
        };
        assert_eq!(left.known, [Pid::INIT]);
        assert!(begun.elapsed() >= KILLING_MAX, "it was given up early");

        // What is told once is not waited for again.
        assert_eq!(timeout(Duration::ZERO, kill.go_on(withstands)).await, Ok(left));
    }
}
