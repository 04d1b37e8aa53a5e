//! Runs a command while a lock is held, and never longer.
//!
//! ```text
//! lockkeeper lock        the wrapper: holds the lock, forwards signals; subreaper
//!   │ link               (a socket: deadline and exit status; closed when the wrapper is gone)
//!   └ lockkeeper keep    the outer keeper, in its own process group: a dead-man's switch; subreaper
//!       │ link           (the same)
//!       └ lockkeeper keep  the inner keeper, likewise
//!           └ COMMAND    killed by the kernel when its parent dies
//!               └ …      its descendants
//! ```
//!
//! Any two of the first three processes can be killed or stopped at any moment, one after the other or together; all processes of the
//! command still end in time:
//!
//! * Without contact to the cluster, the *wrapper* sends SIGTERM to the command a little before the deadline, and
//!   SIGKILL just before it. It uses a local timer and needs no server.
//! * Each *keeper* knows the deadline too. It kills when the deadline is near (the process above it is stopped) or its link
//!   to that one closes (it is dead).
//! * A process that kills spares the keepers below it until the command's processes are dead: if it is stopped before that, the keepers go
//!   on.
//! * When the inner keeper is dead, the kernel kills the command. The command's descendants are adopted by the next process
//!   above that lives. That one, and each further one above, sees its link downwards close, and kills them.
//!
//! With one keeper, two faults left the command alive: wrapper and keeper both stopped, or one stopped and the other one killed. Three
//! faults at once still can.
//!
//! A process that was stopped together with the others reads the clock first when it continues. The clock counts
//! suspension: see [`crate::client::Clock`].
//!
//! A kill covers all descendants in any process group and session: see `descendants`. When the command ends by itself, the
//! processes that it left behind get SIGTERM, and SIGKILL one second later; the lock is released after that.
//!
//! **Terminals.** Without a terminal, the command has its own process group. With one, it stays in the wrapper's group
//! and is in the foreground or background together with the wrapper: Ctrl-C reaches it, it can read from the terminal,
//! and `fg`, `bg` and pipelines work. Ctrl-Z stops it and the wrapper; the keepers are in groups of their own, continue to
//! count, and kill the command if it is stopped for too long.
//!
//! Not covered: processes that do not belong to this user any more (`sudo`) or never were descendants (a container that a daemon started
//! for the command); and three faults at once. Descendants that cannot be killed are named after [`KILLING_MAX`], as far as this process
//! may see them. The lock is then not given back: it opens when the session expires, so that they have at least this time to end. Platforms
//! other than Linux have no subreaper and no parent-death signal: there is one keeper, only the command and its process group are killed,
//! and processes that it left behind stay.

mod descendants;
mod keeper;
mod launch;
mod link;
mod signals;
mod wrapper;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::AsFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use rustix::process::Pid;
use tokio::time::sleep;

use super::{Exit, Failure, complain, show};
use crate::client::{BootClock, Clock as _, Guard, Moment};

use self::{
    descendants::LeftAlive,
    link::KeeperLink,
    wrapper::{EndedJob, Job, JobEnd},
};
pub(super) use self::{keeper::Keep, launch::Launch, signals::JobSignals};

/// Longest timer. Timers stop while the machine is suspended; the deadline does not.
const TIMER_MAX: Duration = Duration::from_millis(250);

/// How long to keep trying to kill processes that do not die.
const KILLING_MAX: Duration = Duration::from_secs(5);

/// How a command ended that ran while a lock was held.
pub(super) struct EndedCommand {
    pub(super) exit: Exit,
    /// Whether each of its processes has ended. If not, the lock must not be given back.
    pub(super) is_over: bool,
}

/// Runs a command with these environment variables, and ends it in time if the lock is lost: the result is then
/// [`Exit::Lost`].
///
/// When this returns, none of its processes runs any more, except those that cannot be killed. If the future is dropped, the keeper kills
/// them.
pub(super) async fn run_while_held(
    held: &Guard,
    signals: &mut JobSignals,
    command: &[OsString],
    environment: &[(&str, String)],
) -> Result<EndedCommand, Failure> {
    let ttl = held.session().ttl();

    let mut job = Job::start(command, environment, kill_at(held))?;
    loop {
        job.kill_at(kill_at(held));

        tokio::select! {
            EndedJob { end, left } = job.wait() => {
                return Ok(EndedCommand { exit: exit(end), is_over: are_over(&left) });
            }
            signal = signals.next() => job.forward(signal),
            why = endangered(held, grace(ttl)) => {
                let left = stop(&mut job, held, &why).await;
                return Ok(EndedCommand { exit: Exit::Lost, is_over: are_over(&left) });
            }
            // Tells the keeper of renewals well before its deadline.
            () = sleep((ttl / 20).min(TIMER_MAX)) => {}
        }
    }
}

/// Starts a keeper, in its own process group, with this program's arguments before the `--`. Returns its pid, and this end of the link to
/// it. `stdin` is the command's.
fn start_keeper(
    kill_at: Moment,
    stdin: impl AsFd,
    arguments: &[impl AsRef<OsStr>],
    command: &[OsString],
    environment: &[(&str, String)],
) -> io::Result<(Pid, KeeperLink)> {
    let (link, theirs) = KeeperLink::new(kill_at, stdin)?;
    let mut keeper = Command::new(this_program()?);
    keeper.arg0("lockkeeper").args(arguments).arg("--").args(command);
    keeper.envs(environment.iter().map(|(name, value)| (name, value))).stdin(theirs).process_group(0);
    let keeper = keeper.spawn()?;
    Ok((pid_of(&keeper), link))
}

/// The pid of a child that was started just now.
fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).expect("a process id is positive")
}

/// The running program, even if its file was replaced: all its processes must be of one version.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        Ok("/proc/self/exe".into())
    } else {
        std::env::current_exe()
    }
}

/// Whether no process is left. Complains of those that are.
fn are_over(left: &LeftAlive) -> bool {
    if left.all_ended {
        return true;
    }

    if left.known.is_empty() {
        complain("a process of the command that cannot be named could not be killed, and may outlive the lock");
    } else {
        let pids: Vec<String> = left.known.iter().map(Pid::to_string).collect();
        complain(&format!(
            "these processes of the command could not be killed, and may outlive the lock: {}",
            pids.join(" ")
        ));
    }
    false
}

/// The exit code of the program.
fn exit(end: JobEnd) -> Exit {
    match end {
        JobEnd::Exit(exit) => exit,
        JobEnd::Expired => {
            complain("the lock is lost: this process was stopped until its deadline; the command was killed");
            Exit::Lost
        }
        JobEnd::KeeperKilled => {
            complain("a keeper process of the command was killed, and the command with it");
            Exit::Signal(rustix::process::Signal::KILL.as_raw())
        }
    }
}

/// Stops the command by the deadline. Returns what could not be killed.
async fn stop(job: &mut Job, held: &Guard, why: &str) -> LeftAlive {
    let left = held.remaining();
    let margin = kill_margin(held.session().ttl());
    job.kill_at(kill_at(held));
    complain(&format!("the lock is lost: {why}; stopping the command"));
    // If contact returns, the command was told to stop all the same, so `left` limits the wait. If the machine is
    // suspended, the timer stops, so the deadline limits it too.
    job.stop(left.saturating_sub(margin), || held.remaining() <= margin).await
}

/// Waits until the lock is lost or nearly lost; returns the reason.
async fn endangered(held: &Guard, grace: Duration) -> String {
    loop {
        if let Some(loss) = held.loss() {
            return loss.to_string();
        }

        let left = held.remaining();
        if left <= grace {
            return format!("no contact with the cluster, and {} before the deadline", show::duration(left));
        }

        tokio::select! {
            _ = held.lost() => {}
            () = sleep((left - grace).min(TIMER_MAX)) => {}
        }
    }
}

/// When the command must be dead, as far as is known now.
fn kill_at(held: &Guard) -> Moment {
    // The clock is read first: if this process is stopped in between, the moment is too early rather than too late.
    let now = BootClock.now();
    now.after(held.remaining().saturating_sub(kill_margin(held.session().ttl())))
}

/// Time between SIGTERM and the deadline.
fn grace(ttl: Duration) -> Duration {
    (ttl / 5).min(Duration::from_secs(5))
}

/// Time between SIGKILL and the deadline: for all processes to be found, and to get a processor to die on. On a busy virtual machine, one
/// that was killed has once got none for 250 ms.
fn kill_margin(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_told_before_it_is_killed_and_killed_before_the_deadline() {
        for ttl_ms in [100, 1_000, 10_000, 86_400_000] {
            let ttl = Duration::from_millis(ttl_ms);
            assert!(grace(ttl) > kill_margin(ttl), "{ttl:?}");
            assert!(kill_margin(ttl) >= Duration::from_millis(10));
        }
    }

    #[test]
    fn a_process_that_cannot_be_named_is_not_over() {
        let left = |known: &[Pid], all_ended| LeftAlive { known: known.to_vec(), all_ended };
        assert!(are_over(&left(&[], true)));
        assert!(!are_over(&left(&[], false)), "the kernel says that it is there");
        assert!(!are_over(&left(&[Pid::INIT], false)));
    }
}
