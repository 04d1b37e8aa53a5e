//! The command that runs while the lock is held.
//!
//! It gets a process group of its own, so that all that it started can be stopped with it. Not so where this process is in the
//! foreground of a terminal: a new group would be in the background there, and stopped at the first look at the keyboard. Then the
//! command stays in our group, the terminal's Ctrl-C reaches it without our help, and what it started is not stopped with it.
//!
//! Left out: a parent-death signal, by which the command would end with us when we are killed. It must be asked for between `fork` and
//! `exec`, which safe Rust does not allow.

use std::{ffi::OsString, fs::File, io, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process, kill_process_group, waitid},
    termios::tcgetpgrp,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::sleep,
};

use super::{Exit, Failure};

/// How often it is looked whether a command that was told to stop has done so.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    pid: Pid,
    own_group: bool,
}

impl Job {
    /// Starts the command with these variables in its environment.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> Result<Self, Failure> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| Failure::new(Exit::Usage, "no command given"))?;
        let own_group = !in_foreground();
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        if own_group {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| cannot_run(program, &error))?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let pid = pid.expect("a child that nobody waited for has a process id");
        Ok(Self { child, pid, own_group })
    }

    /// Waits for its end.
    pub(super) async fn wait(&mut self) -> io::Result<Exit> {
        self.child.wait().await.map(exit)
    }

    /// Passes on a signal that this process received.
    pub(super) fn forward(&self, signal: Signal) {
        // In the foreground, these two come from the terminal, which sends them to the whole group.
        if self.own_group || (signal != Signal::INT && signal != Signal::QUIT) {
            self.send(signal);
        }
    }

    /// Stops it: asks first, and after `grace`, or when `out_of_time` says so, does not ask. The process is not reaped before the last
    /// signal is sent, or that could hit a stranger of the same number.
    pub(super) async fn stop(&mut self, grace: Duration, out_of_time: impl Fn() -> bool) -> io::Result<Exit> {
        self.send(Signal::TERM);
        tokio::select! {
            () = self.ended() => {}
            () = sleep(grace) => {}
            () = until(out_of_time) => {}
        }
        self.send(Signal::KILL);
        self.wait().await
    }

    async fn ended(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) | Err(Errno::INTR) = waitid(WaitId::Pid(self.pid), options) {
            sleep(LOOK).await;
        }
    }

    /// It may have ended just now: then there is nobody to send it to.
    fn send(&self, signal: Signal) {
        if self.child.id().is_none() {
            return;
        }
        let _ = match self.own_group {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }
}

async fn until(out_of_time: impl Fn() -> bool) {
    while !out_of_time() {
        sleep(LOOK).await;
    }
}

/// This process is in the foreground of its terminal.
fn in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

fn cannot_run(program: &OsString, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
    Failure::new(exit, format!("cannot run {program:?}: {error}"))
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).map_or(Exit::Error, Exit::Code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Error,
    }
}

/// The signals that are passed on.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hang_up: unix::Signal,
    quit: unix::Signal,
}

impl Signals {
    /// From now on they no longer end this process.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: unix::signal(SignalKind::hangup())?,
            quit: unix::signal(SignalKind::quit())?,
        })
    }

    /// The next one to arrive.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }
}
