//! The descendants of this process, and how they are ended.
//!
//! On Linux, a *subreaper* adopts the orphans among its descendants, so no process leaves its tree by a double fork, a
//! new session or a new process group: without children it has no descendants. The kernel guarantees this. The scan of
//! `/proc` only finds the processes to signal; a process that starts during one scan is found by the next.
//!
//! A scan reads a file of each process of the machine. Before a kill, which must not be late, the kernel's lists of children are followed
//! first: they name this family alone. They may lack a process while others end, and a kernel may be built without them, so that a scan
//! comes after them.
//!
//! Processes are signalled through pidfds: a pid may be reused between the scan and the signal.

use std::{io, os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, wait},
};
use tokio::time::{Instant, sleep};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::linux::{adopt_orphans, descendants, die_with_parent, kill_listed, signal_all, signal_others};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use self::other::{adopt_orphans, descendants, die_with_parent, kill_listed, signal_all, signal_others};

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

/// What a kill of all descendants has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LeftAlive {
    /// The processes that a scan finds.
    pub(super) known: Vec<Pid>,
    /// Whether the kernel says that none is left. A scan may find none although some are there: `/proc` may hide those of other users, or
    /// this process may have no file left to read it by.
    pub(super) all_ended: bool,
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

/// Kills all descendants until there are none. Returns what is left at the end of the time: this process may not signal
/// them, or they hang in a system call and die when it returns.
///
/// The keepers among them come last: if this process is stopped meanwhile, one of them is there to go on.
pub(super) async fn kill_descendants(until: Instant, keepers: &[Pid]) -> LeftAlive {
    let mut keepers = keepers.to_vec();
    loop {
        kill_listed(&keepers);
        if signal_others(Signal::KILL, &keepers).is_empty() {
            signal_all(Signal::KILL);
        }

        let reaped = reap();
        if reaped.none_left {
            return LeftAlive { known: Vec::new(), all_ended: true };
        }
        // From now on another process can have its pid.
        keepers.retain(|keeper| reaped.ended.iter().all(|(pid, _)| pid != keeper));

        if Instant::now() >= until {
            let known = descendants();
            // The last one may have ended before the scan.
            let all_ended = known.is_empty() && reap().none_left;
            return LeftAlive { known, all_ended };
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

    /// From now on, also after an `exec`, the kernel kills this process when its parent dies. Returns `false` if the
    /// parent is no longer `parent`.
    pub(in super::super) fn die_with_parent(parent: Pid) -> io::Result<bool> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died just before; then no signal comes.
        Ok(getppid() == Some(parent))
    }

    /// All descendants of this process that live.
    pub(in super::super) fn descendants() -> Vec<Pid> {
        let mut children = HashMap::<Pid, Vec<Pid>>::new();
        // A process that ends meanwhile is left out.
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            if let Some((pid, parent)) = pid.and_then(|pid| Some((pid, living(pid)?))) {
                children.entry(parent).or_default().push(pid);
            }
        }

        family(|pid| children.remove(&pid).unwrap_or_default())
    }

    /// All descendants of this process, by the children of each.
    fn family(mut children: impl FnMut(Pid) -> Vec<Pid>) -> Vec<Pid> {
        let mut found = children(getpid());
        let mut next = 0;
        while let Some(pid) = found.get(next).copied() {
            found.extend(children(pid));
            next += 1;
        }
        found
    }

    /// The parent of a process that lives, or `None`.
    fn living(pid: Pid) -> Option<Pid> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        parent_if_living(&stat)
    }

    /// Reads `/proc/PID/stat` (proc_pid_stat(5)).
    pub(super) fn parent_if_living(stat: &[u8]) -> Option<Pid> {
        // "17 (name) S 1 …"; the name may contain any bytes.
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields: Vec<&str> = str::from_utf8(&stat[name_end + 1..]).ok()?.split_whitespace().collect();
        let state = fields.first()?;
        let parent = fields.get(1)?;
        let threads = fields.get(17)?;

        // A zombie has no children and runs nothing, unless its first thread alone has ended.
        let is_dead = *state == "X" || *state == "Z" && matches!(*threads, "0" | "1");
        if is_dead { None } else { Pid::from_raw(parent.parse().ok()?) }
    }

    /// Sends a signal to all descendants that a scan finds.
    pub(in super::super) fn signal_all(signal: Signal) {
        signal_others(signal, &[]);
    }

    /// The same, without these. Returns whom it found.
    pub(in super::super) fn signal_others(signal: Signal, spared: &[Pid]) -> Vec<Pid> {
        signal_found(descendants(), signal, spared)
    }

    /// Sends SIGKILL to the descendants that the kernel lists, without these: at once, but perhaps not to all.
    pub(in super::super) fn kill_listed(spared: &[Pid]) {
        signal_found(family(listed_children), Signal::KILL, spared);
    }

    /// The children of a process, from `/proc/PID/task/TID/children` (proc_pid_task(5)).
    pub(super) fn listed_children(pid: Pid) -> Vec<Pid> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| pids(&list)).collect()
    }

    /// Reads a list of children: "17 18 ".
    fn pids(list: &str) -> Vec<Pid> {
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Sends a signal to those of these that are still descendants, without the spared ones. Returns the others.
    fn signal_found(found: Vec<Pid>, signal: Signal, spared: &[Pid]) -> Vec<Pid> {
        let family: HashSet<Pid> = found.iter().copied().chain([getpid()]).collect();
        let others: Vec<Pid> = found.into_iter().filter(|pid| !spared.contains(pid)).collect();

        for &pid in &others {
            // The process may be gone, or may not be signalled: nothing can be done here.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                // The pid could be reused before `pidfd_open`, but not after it.
                Ok(process) if living(pid).is_some_and(|parent| family.contains(&parent)) => {
                    pidfd_send_signal(process, signal)
                }
                // Linux before 5.3.
                Err(Errno::NOSYS) => kill_process(pid, signal),
                Ok(_) | Err(_) => Ok(()),
            };
        }
        others
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

    pub(in super::super) fn kill_listed(_spared: &[Pid]) {}

    pub(in super::super) fn signal_others(_signal: Signal, _spared: &[Pid]) -> Vec<Pid> {
        Vec::new()
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::{process::Command, thread};

    use rustix::process::{Pid, Signal, getpid, kill_process};

    use super::linux::{descendants, listed_children, parent_if_living};

    /// A line of `/proc/PID/stat` up to the count of threads.
    fn parent(name: &str, state: char, threads: u32) -> Option<i32> {
        let stat = format!("17 ({name}) {state} 5 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 99\n");
        parent_if_living(stat.as_bytes()).map(|parent| parent.as_raw_pid())
    }

    #[test]
    fn a_process_lives_while_one_of_its_threads_does() {
        for state in ['R', 'S', 'D', 'T', 't'] {
            assert_eq!(parent("sh", state, 1), Some(5), "{state}");
        }
        assert_eq!(parent("sh", 'Z', 2), Some(5), "its first thread has ended");
        assert_eq!(parent("sh", 'Z', 1), None);
        assert_eq!(parent("sh", 'X', 0), None);
    }

    #[test]
    fn the_kernel_lists_a_child_of_any_thread() {
        let start = || Command::new("sleep").arg("1000").spawn().expect("sleep");
        let mut children = [start(), thread::spawn(start).join().expect("no panic")];
        for child in &mut children {
            let pid = Pid::from_raw(child.id().cast_signed()).expect("positive");
            let listed = listed_children(getpid());
            let scanned = descendants();
            kill_process(pid, Signal::KILL).expect("it is ours");
            child.wait().expect("it ends");
            assert!(listed.contains(&pid), "{pid} is not among {listed:?}");
            assert!(scanned.contains(&pid), "{pid} is not among {scanned:?}");
        }
    }

    #[test]
    fn a_name_is_not_taken_for_a_state() {
        assert_eq!(parent(") Z 1 (", 'S', 1), Some(5));
    }
}
