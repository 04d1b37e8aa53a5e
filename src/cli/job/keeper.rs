//! The keepers: the inner one runs the command, and kills it when the wrapper does not extend its time; the outer one runs the inner one,
//! passes on what the two say, and kills for the same reasons.
//!
//! A keeper uses only its links, never the terminal: it is in a background process group, where terminal output could stop it.

use std::{
    ffi::OsString,
    iter,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Command, ExitStatus},
    time::Duration,
};

use clap::Args;
use futures::FutureExt as _;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use tokio::{
    signal::unix::{self, SignalKind},
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    KILLING_MAX, TIMER_MAX,
    descendants::{self, adopt_orphans, kill_descendants, reap, signal_all},
    link::{KeeperLink, Message},
    pid_of,
    signals::JobSignals,
    start_keeper, this_program,
};
use crate::{
    cli::{Exit, Failure},
    client::{BootClock, Clock as _, Moment},
};

/// How long processes that the command left behind have after SIGTERM.
const LEFT_BEHIND_GRACE: Duration = Duration::from_secs(1);

/// Runs a command until it ends or its time is over. Called by `lockkeeper lock`
#[derive(Args, Debug)]
pub(in crate::cli) struct Keep {
    /// Process group for the command; 0: a new one
    #[arg(long)]
    group: i32,
    /// Be the outer keeper: run another one, which runs the command
    #[arg(long)]
    outer: bool,
    /// The command, after `--`
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Keep {
    pub(in crate::cli) async fn run(self) -> Result<Exit, Failure> {
        adopt_orphans()?;
        // A signal to all processes of a service is meant for the command, not for its keeper.
        let _held_off = JobSignals::new()?;

        let (link, kill_at, stdin) = KeeperLink::inherited()?;

        if self.outer {
            let arguments = ["keep", "--group", &self.group.to_string()];
            let (keeper, inner) = start_keeper(kill_at, stdin, &arguments, &self.command, &[])?;
            link.tell(Message::Keeper(keeper));
            let mut relay = Relay { wrapper: link, inner, kill_at };
            relay.until_all_ended().await;
            kill_descendants(Instant::now() + KILLING_MAX, &[keeper]).await;
            return Ok(Exit::Success);
        }

        let mut child_ended = unix::signal(SignalKind::child())?;
        let pid = match self.launch(stdin) {
            Ok(pid) => pid,
            Err(failure) => {
                // The status of wait(2) has the code of an exit in its second byte.
                link.tell(Message::Ended(ExitStatus::from_raw(i32::from(failure.exit.code()) << 8)));
                return Err(failure);
            }
        };

        let mut watch = KeeperState { link, kill_at, pid, own_group: self.group == 0, ended: None };
        if watch.until_all_ended(&mut child_ended).await == Decision::Kill {
            watch.kill_all().await;
        }
        Ok(Exit::Success)
    }

    fn launch(&self, stdin: OwnedFd) -> Result<Pid, Failure> {
        let mut command = Command::new(this_program()?);
        command.arg0("lockkeeper").args(["launch", "--keeper", &getpid().to_string(), "--"]).args(&self.command);
        let child = command.process_group(self.group).stdin(stdin).spawn()?;
        Ok(pid_of(&child))
    }
}

/// The messages that have arrived. After a stop of this process, one of them may extend the time.
async fn arrived(link: &mut KeeperLink) -> Vec<Message> {
    // Lets tokio poll the socket.
    yield_now().await;
    iter::from_fn(|| link.next().now_or_never().flatten()).collect()
}

/// The state of the outer keeper.
struct Relay {
    wrapper: KeeperLink,
    inner: KeeperLink,
    kill_at: Moment,
}

impl Relay {
    /// Returns when the inner keeper has ended, or all must be killed: the wrapper is gone, or the time is over.
    async fn until_all_ended(&mut self) {
        loop {
            let left = self.kill_at.since(BootClock.now());
            tokio::select! {
                biased;
                message = self.wrapper.next() => match message {
                    Some(message) => self.pass_on(message),
                    None => return,
                },
                message = self.inner.next() => match message {
                    Some(message) => {
                        // A wrapper that is gone shows as the end of its messages, above.
                        self.wrapper.tell(message);
                    }
                    None => return,
                },
                () = sleep(left.min(TIMER_MAX)) => {}
            }

            if self.is_time().await {
                self.wrapper.tell(Message::Expired);
                return;
            }
        }
    }

    fn pass_on(&mut self, message: Message) {
        if let Message::KillAt(moment) = message {
            self.kill_at = moment;
        }
        self.inner.tell(message);
    }

    async fn is_time(&mut self) -> bool {
        if self.kill_at > BootClock.now() {
            return false;
        }
        for message in arrived(&mut self.wrapper).await {
            self.pass_on(message);
        }
        self.kill_at <= BootClock.now()
    }
}

/// The state of the inner keeper.
struct KeeperState {
    link: KeeperLink,
    kill_at: Moment,
    /// The command's pid. It is not reused before the command is reaped, which only this process does.
    pid: Pid,
    own_group: bool,
    /// When the command ended.
    ended: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    AllEnded,
    Kill,
}

impl KeeperState {
    async fn until_all_ended(&mut self, child_ended: &mut unix::Signal) -> Decision {
        loop {
            let left = self.left();
            tokio::select! {
                biased;
                message = self.link.next() => match message {
                    Some(message) => self.hear(message),
                    None => return Decision::Kill,
                },
                _ = child_ended.recv() => if self.all_ended() { return Decision::AllEnded },
                () = sleep(left.min(TIMER_MAX)) => {}
            }

            if self.left_behind_too_long() {
                return Decision::Kill;
            }
            if self.is_time().await {
                self.link.tell(Message::Expired);
                return Decision::Kill;
            }
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::KillAt(moment) => self.kill_at = moment,
            Message::Signal(signal) => self.signal(signal),
            Message::Terminate if descendants::KNOWN => signal_all(Signal::TERM),
            Message::Terminate => self.signal(Signal::TERM),
            // Messages of the keeper itself.
            Message::Ended(_) | Message::Expired | Message::Keeper(_) => {}
        }
    }

    /// How long the processes may run, as far as is known.
    fn left(&self) -> Duration {
        let left = self.kill_at.since(BootClock.now());
        self.ended.map_or(left, |ended| left.min(LEFT_BEHIND_GRACE.saturating_sub(ended.elapsed())))
    }

    async fn is_time(&mut self) -> bool {
        if self.kill_at > BootClock.now() {
            return false;
        }
        for message in arrived(&mut self.link).await {
            self.hear(message);
        }
        self.kill_at <= BootClock.now()
    }

    fn left_behind_too_long(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() >= LEFT_BEHIND_GRACE)
    }

    /// Reaps ended children. When the command has ended, its remaining processes get SIGTERM.
    fn all_ended(&mut self) -> bool {
        let reaped = reap();
        if let Some((_, status)) = reaped.ended.iter().find(|(pid, _)| self.ended.is_none() && *pid == self.pid) {
            self.ended = Some(Instant::now());
            self.link.tell(Message::Ended(*status));
            signal_all(Signal::TERM);
        }
        reaped.none_left
    }

    /// Signals the command and the processes in its process group.
    fn signal(&self, signal: Signal) {
        if self.ended.is_some() {
            return;
        }
        // The command may have ended just now, unreaped: no error.
        let _ = if self.own_group { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }

    /// First the group, atomically; then all other descendants.
    async fn kill_all(&self) {
        self.signal(Signal::KILL);
        kill_descendants(Instant::now() + KILLING_MAX, &[]).await;
    }
}
