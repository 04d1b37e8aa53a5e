//! All that descends from this process, and how it ends.
//!
//! On Linux, a *subreaper* adopts the orphans among its descendants, so nobody leaves its tree by a double fork, a new session or a new
//! process group: as long as it has no children, it has no descendants. That is the kernel's word, not that of a look at `/proc`, which
//! only says whom to signal: whoever is born during the look is found by the next.
//!
//! Processes are named to the kernel by descriptors: a number may pass on to a stranger between the look and the signal.

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

/// Whether descendants can be found here.
pub(super) const KNOWN: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Between two looks at those who were killed: they need a moment to die.
const LOOK: Duration = Duration::from_millis(2);

/// What children left of themselves.
pub(super) struct Reaped {
    pub(super) ended: Vec<(Pid, ExitStatus)>,
    /// There are no children any more, and with them no descendants.
    pub(super) none_left: bool,
}

/// Takes note of the children that ended.
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

/// Kills all descendants until there are none. Returns those that are still there after `limit`: they are not ours to kill, or in a
/// call to the kernel that does not end; then they die when it does.
pub(super) async fn extinguish(limit: Duration) -> Vec<Pid> {
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

    /// From now on, orphans among our descendants become our children.
    pub(in super::super) fn adopt_orphans() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// From now on, also past an `exec`, the kernel kills this process when its parent dies. False: that is no longer `parent`.
    pub(in super::super) fn die_with_parent(parent: Pid) -> io::Result<bool> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died just before. Then nobody will tell us.
        Ok(getppid() == Some(parent))
    }

    /// Those that descend from this process.
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
        // "17 (name) S 1 …", where the name may be anything, also no text.
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
        Pid::from_raw(fields.split_whitespace().nth(1)?.parse().ok()?)
    }

    /// Sends a signal to all descendants that can be found now.
    pub(in super::super) fn signal_all(signal: Signal) {
        let found = descendants();
        let family: HashSet<Pid> = found.iter().copied().chain([getpid()]).collect();
        for pid in found {
            // It may be gone, or not ours to signal: nothing to be done about it here.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                // The number could have passed on to a stranger before it was opened, and not after.
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

/// Where the kernel knows no adoption: the keeper has the command's process group, and no more.
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
