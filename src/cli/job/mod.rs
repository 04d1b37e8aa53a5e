//! The command that runs while a lock is held, and never longer.
//!
//! ```text
//! lockkeeper lock      the wrapper: holds the lock, passes signals on; adopts orphans
//!   │ link             (a socket: until when; how it ended; closed when the wrapper is gone)
//!   └ lockkeeper keep  the keeper, in a process group of its own: a dead-man's switch; adopts orphans
//!       └ COMMAND      killed by the kernel when its parent dies
//!           └ …        whatever it starts
//! ```
//!
//! Each of them can be killed or stopped at any moment, and all that the command started ends in time nevertheless:
//!
//! * Out of contact, the *wrapper* tells the command to stop (SIGTERM) a little before the deadline, and kills it just before. That is a
//!   timer of this machine; it needs no server.
//! * The *keeper* knows the deadline too. When that comes (the wrapper is stopped) or the link closes (the wrapper is dead), it kills.
//! * When the keeper is dead, the kernel kills the command, and what the command had started falls to the wrapper, which kills it.
//!
//! Who was stopped together with the others looks at the clock first when it goes on. The clock counts suspension: see
//! [`crate::client::Clock`].
//!
//! To kill is to kill all descendants, whatever groups and sessions they moved to: see `family`. When the command ends by itself, what it
//! left behind in the background is told to stop, and killed a second later; the lock is given back after that.
//!
//! **Terminals.** Without one, the command has a process group of its own. With one, it stays in the wrapper's, so that it is in the
//! foreground and in the background together with the wrapper: Ctrl-C reaches it, it may read, `fg` and `bg` work, and so do pipelines.
//! Ctrl-Z stops it and the wrapper; the keeper is in another group, goes on counting, and kills it if it is stopped for too long.
//!
//! Out of reach: processes that do not belong to us any more (`sudo`), or that never did (a container that a daemon started for the
//! command); and, if the wrapper *and* the keeper are killed at once, what the command had started itself. On other systems than Linux
//! there is no adoption and no death signal: there, what is killed is the command and its process group, and what it leaves behind stays.

mod family;
mod keeper;
mod launch;
mod link;
mod signals;
mod wrapper;

use std::{ffi::OsString, io, path::PathBuf, time::Duration};

use tokio::time::sleep;

use super::{Exit, Failure, complain, show};
use crate::client::{BootClock, Clock as _, Guard, Moment};

use self::wrapper::{End, Job};
pub(super) use self::{keeper::Keep, launch::Launch, signals::Signals};

/// No timer runs longer than this: timers stand still while the machine is suspended, the deadline does not.
const TIMER_MAX: Duration = Duration::from_millis(250);

/// How long it is tried to kill what does not die.
const KILLING_MAX: Duration = Duration::from_secs(5);

/// Runs a command, with these variables in its environment, and ends it in time if the lock is lost: then with [`Exit::Lost`].
///
/// Nothing that it started runs any more when this returns. If it is dropped before, the keeper kills all.
pub(super) async fn run_while_held(
    held: &Guard,
    signals: &mut Signals,
    command: &[OsString],
    environment: &[(&str, String)],
) -> Result<Exit, Failure> {
    let ttl = held.session().ttl();
    let mut job = Job::start(command, environment, kill_at(held))?;
    loop {
        job.kill_at(kill_at(held));
        tokio::select! {
            end = job.wait() => return Ok(exit(end)),
            signal = signals.next() => job.forward(signal),
            why = endangered(held, grace(ttl)) => {
                stop(&mut job, held, &why).await;
                return Ok(Exit::Lost);
            }
            // To tell the keeper of renewals, long before it needs to know.
            () = sleep((ttl / 20).min(TIMER_MAX)) => {}
        }
    }
}

/// The program that runs, also when its file was replaced meanwhile: the three of them must understand each other.
fn this_program() -> io::Result<PathBuf> {
    match cfg!(any(target_os = "linux", target_os = "android")) {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

/// What the program ends with.
fn exit(end: End) -> Exit {
    match end {
        End::Exit(exit) => exit,
        End::Expired => {
            complain("the lock is lost: this process was stopped until the deadline; the command was killed");
            Exit::Lost
        }
        End::KeeperKilled => {
            complain("the keeper of the command was killed, and so was the command");
            Exit::Signal(rustix::process::Signal::KILL.as_raw())
        }
    }
}

/// Stops the command, by the deadline.
async fn stop(job: &mut Job, held: &Guard, why: &str) {
    let (left, margin) = (held.remaining(), kill_margin(held.session().ttl()));
    job.kill_at(kill_at(held));
    complain(&format!("the lock is lost: {why}; stopping the command"));
    // Should contact come back, the command was told to stop all the same: `left` counts. Should the machine be suspended, the timer
    // stands still: the deadline counts.
    job.stop(left.saturating_sub(margin), || held.remaining() <= margin).await;
}

/// Waits until the lock is lost, or about to be; returns why.
async fn endangered(held: &Guard, grace: Duration) -> String {
    loop {
        if let Some(loss) = held.loss() {
            return loss.to_string();
        }
        let left = held.remaining();
        if left <= grace {
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            return format!("no contact with the cluster, and {} before the deadline", show::duration(left));
        }
        tokio::select! {
            _ = held.lost() => {}
            () = sleep((left - grace).min(TIMER_MAX)) => {}
        }
    }
}

/// When the command is to be dead, as far as is known now.
fn kill_at(held: &Guard) -> Moment {
    // The clock is read first: should we be stopped in between, the moment is too early, and not too late.
    let now = BootClock.now();
    now.after(held.remaining().saturating_sub(kill_margin(held.session().ttl())))
}

/// How long before the deadline the command is told to stop.
fn grace(ttl: Duration) -> Duration {
    (ttl / 5).min(Duration::from_secs(5))
}

/// How long before the deadline it is killed: to find all of its processes, and for them to die. On a machine with far too much to do
/// that took more than the 40 ms that a fiftieth of 2 s is.
fn kill_margin(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(500))
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
}
