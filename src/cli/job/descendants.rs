//! The descendants of this process, and how they are ended.
//!
//! On Linux, a *subreaper* adopts the orphans among its descendants, so no process leaves its tree by a double fork, a
//! new session or a new process group: without children it has no descendants. The kernel guarantees this. The scan of
//! `/proc` only finds the processes to signal; a process that starts during one scan is found by the next.
//!
//! Processes are signalled through pidfds: a pid may be reused between the scan and the signal.

use std::{io, os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, wait},
};
use tokio::time::{Instant, sleep};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::linux::{adopt_orphans, descendants, die_with_parent, signal_all};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use self::other::{adopt_orphans, descendants, die_with_parent, signal_all};

/// Whether descendants can be found on this platform.
pub(super) const KNOWN: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Delay between two scans after a SIGKILL: processes need a moment to die.
const LOOK: Duration = Duration::from_millis(2);

/// The result of waiting for children.
pub(super) struct Reaped {
    pub(super) ended: Vec<(Pid, ExitStatus)>,
    /// No children are left, and so no descendants.
    pub(super) none_left: bool,
}

/// Reaps the children that have ended.
pub(super) fn reap() -> Reaped {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended.push((pid, ExitStatus::from_raw(status.as_raw()))),
            Err(Errno::INTR) => {}
            Ok(None) => return Reaped { ended, none_left: false },
            Err(_) => return Reaped { ended, none_left: true },
        }
    }
}

/// Kills all descendants until there are none. Returns those that are left after `limit`: this process may not signal
/// them, or they hang in a system call and die when it returns.
pub(super) async fn kill_descendants(limit: Duration) -> Vec<Pid> {
    let until = Instant::now() + limit;
    loop {
        signal_all(Signal::KILL);
        if reap().none_left {
            return Vec::new();
        }
        if Instant::now() >= until {
            return descendants();
        }
        sleep(LOOK).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::{
        collections::{HashMap, HashSet},
        fs,
    };

    use rustix::process::{
        PidfdFlags, getpid, getppid, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper,
        set_parent_process_death_signal,
    };

    use super::*;

    /// From now on, orphans among the descendants become children of this process.
    pub(in super::super) fn adopt_orphans() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// From now on, also after an `exec`, the kernel kills this process when its parent dies. `false`: the parent is no
    /// longer `parent`.
    pub(in super::super) fn die_with_parent(parent: Pid) -> io::Result<bool> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died just before; then no signal comes.
        Ok(getppid() == Some(parent))
    }

    /// All descendants of this process.
    pub(in super::super) fn descendants() -> Vec<Pid> {
        let mut children = HashMap::<Pid, Vec<Pid>>::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            if let Some((pid, parent)) = pid.and_then(|pid| Some((pid, parent(pid)?))) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = children.remove(&getpid()).unwrap_or_default();
        let mut next = 0;
        while let Some(pid) = found.get(next) {
            found.extend(children.remove(pid).unwrap_or_default());
            next += 1;
        }
        found
    }

    fn parent(pid: Pid) -> Option<Pid> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // "17 (name) S 1 …"; the name may contain any bytes.
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
        Pid::from_raw(fields.split_whitespace().nth(1)?.parse().ok()?)
    }

    /// Sends a signal to all descendants that a scan finds.
    pub(in super::super) fn signal_all(signal: Signal) {
        let found = descendants();
        let family: HashSet<Pid> = found.iter().copied().chain([getpid()]).collect();
        for pid in found {
            // The process may be gone, or may not be signalled: nothing can be done here.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                // The pid could be reused before `pidfd_open`, but not after it.
                Ok(process) if parent(pid).is_some_and(|parent| family.contains(&parent)) => {
                    pidfd_send_signal(process, signal)
                }
                // Linux before 5.3.
                Err(Errno::NOSYS) => kill_process(pid, signal),
                Ok(_) | Err(_) => Ok(()),
            };
        }
    }
}

/// Platforms without a subreaper: the keeper controls only the command's process group.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use super::*;

    pub(in super::super) fn adopt_orphans() -> io::Result<()> {
        Ok(())
    }

    pub(in super::super) fn die_with_parent(_parent: Pid) -> io::Result<bool> {
        Ok(true)
    }

    pub(in super::super) fn descendants() -> Vec<Pid> {
        Vec::new()
    }

    pub(in super::super) fn signal_all(_signal: Signal) {}
}
