//! The keeper: runs the command, and kills it when the wrapper does not say any more that it may live.
//!
//! It speaks to the link alone, never to the terminal: it is in the background there, and could be stopped for it.

use std::{
    ffi::OsString,
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
    family::{self, adopt_orphans, extinguish, reap, signal_all},
    link::{Link, Message},
    signals::Signals,
    this_program,
};
use crate::{
    cli::{Exit, Failure},
    client::{BootClock, Clock as _, Moment},
};

/// What the command left behind has so long to end after it was told to.
const LEFT_BEHIND_GRACE: Duration = Duration::from_secs(1);

/// Runs a command until it ends, or it is time. For `lockkeeper lock` to call.
#[derive(Args, Debug)]
pub(in crate::cli) struct Keep {
    /// The process group to run it in; 0: one of its own.
    #[arg(long)]
    group: i32,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Keep {
    pub(in crate::cli) async fn run(self) -> Result<Exit, Failure> {
        adopt_orphans()?;
        // Whoever sends such a signal to all processes of a service means the command, not the one who watches over it.
        let _held_off = Signals::new()?;
        let mut child_ended = unix::signal(SignalKind::child())?;
        let (link, kill_at, stdin) = Link::inherited()?;
        let pid = match self.launch(stdin) {
            Ok(pid) => pid,
            Err(failure) => {
                link.tell(Message::Ended(ExitStatus::from_raw(i32::from(failure.exit.code()) << 8)));
                return Err(failure);
            }
        };
        let mut watch = Watch { link, kill_at, pid, own_group: self.group == 0, ended: None };
        if watch.until_all_ended(&mut child_ended).await == Verdict::Kill {
            watch.kill_all().await;
        }
        Ok(Exit::Success)
    }

    fn launch(&self, stdin: OwnedFd) -> Result<Pid, Failure> {
        let mut command = Command::new(this_program()?);
        command.arg0("lockkeeper").args(["launch", "--keeper", &getpid().to_string(), "--"]).args(&self.command);
        let child = command.process_group(self.group).stdin(stdin).spawn()?;
        Ok(Pid::from_raw(child.id().cast_signed()).expect("a process id is positive"))
    }
}

/// What the keeper watches.
struct Watch {
    link: Link,
    kill_at: Moment,
    /// Of the command. Not another's before it has ended, for nobody else reaps it.
    pid: Pid,
    own_group: bool,
    /// When it did, if it has.
    ended: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    AllEnded,
    Kill,
}

impl Watch {
    async fn until_all_ended(&mut self, child_ended: &mut unix::Signal) -> Verdict {
        loop {
            let left = self.left();
            tokio::select! {
                biased;
                message = self.link.next() => match message {
                    Some(message) => self.hear(message),
                    None => return Verdict::Kill,
                },
                _ = child_ended.recv() => if self.all_ended() { return Verdict::AllEnded },
                () = sleep(left.min(TIMER_MAX)) => {}
            }
            if self.left_behind_too_long() {
                return Verdict::Kill;
            }
            if self.is_time().await {
                self.link.tell(Message::Expired);
                return Verdict::Kill;
            }
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::KillAt(moment) => self.kill_at = moment,
            Message::Signal(signal) => self.signal(signal),
            Message::Terminate if family::KNOWN => signal_all(Signal::TERM),
            Message::Terminate => self.signal(Signal::TERM),
            // These are said by us.
            Message::Ended(_) | Message::Expired => {}
        }
    }

    /// How long it may all go on, as far as is known.
    fn left(&self) -> Duration {
        let left = self.kill_at.since(BootClock.now());
        self.ended.map_or(left, |ended| left.min(LEFT_BEHIND_GRACE.saturating_sub(ended.elapsed())))
    }

    /// It is time to kill. If we were stopped, a later moment may lie in the socket: it counts.
    async fn is_time(&mut self) -> bool {
        if self.kill_at > BootClock.now() {
            return false;
        }
        // Lets tokio look at the socket.
        yield_now().await;
        while let Some(Some(message)) = self.link.next().now_or_never() {
            self.hear(message);
        }
        self.kill_at <= BootClock.now()
    }

    fn left_behind_too_long(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() >= LEFT_BEHIND_GRACE)
    }

    /// Takes note of those that ended. When the command has, what it left behind is told to stop.
    fn all_ended(&mut self) -> bool {
        let reaped = reap();
        if let Some((_, status)) = reaped.ended.iter().find(|(pid, _)| self.ended.is_none() && *pid == self.pid) {
            self.ended = Some(Instant::now());
            self.link.tell(Message::Ended(*status));
            signal_all(Signal::TERM);
        }
        reaped.none_left
    }

    /// To the command, and to what it started and left in its process group.
    fn signal(&self, signal: Signal) {
        if self.ended.is_some() {
            return;
        }
        // It may have ended just now, unreaped: no error.
        let _ = match self.own_group {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }

    /// The group first, at one blow; then whoever is not in it.
    async fn kill_all(&self) {
        self.signal(Signal::KILL);
        extinguish(KILLING_MAX).await;
    }
}
