//! Waiting for the end of a process that is not our child.

use std::{future::pending, io, thread};

use rustix::{io::Errno, process::Pid};
use tokio::sync::oneshot;

/// Waits until the process is gone; for ever, if there is none to wait for. Whether it is there is looked at now, not later: its id may
/// be given to a stranger meanwhile.
pub(super) fn gone(process: Option<Pid>) -> io::Result<impl Future<Output = io::Result<()>>> {
    let (tell, told) = oneshot::channel();
    match process.map(Process::find).transpose()? {
        // A thread of its own: nobody waits for it when we are told to stop.
        Some(Some(process)) => drop(thread::Builder::new().spawn(move || tell.send(process.wait_until_gone()))?),
        Some(None) => drop(tell.send(Ok(()))),
        None => drop(tell),
    }
    Ok(async {
        match told.await {
            Ok(gone) => gone,
            Err(_) => pending().await,
        }
    })
}

/// By a file descriptor that means this very process, and is readable when it has ended.
#[cfg(target_os = "linux")]
struct Process(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Process {
    /// `None`: there is no such process.
    fn find(pid: Pid) -> io::Result<Option<Self>> {
        use rustix::process::{PidfdFlags, pidfd_open};
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self(process))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn wait_until_gone(self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// By its id alone: elsewhere there is no better way.
#[cfg(not(target_os = "linux"))]
struct Process(Pid);

#[cfg(not(target_os = "linux"))]
impl Process {
    fn find(pid: Pid) -> io::Result<Option<Self>> {
        Ok(is_there(pid).then_some(Self(pid)))
    }

    /// Looks ten times a second.
    fn wait_until_gone(self) -> io::Result<()> {
        while is_there(self.0) {
            thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Also one that we may not send signals to.
#[cfg(not(target_os = "linux"))]
fn is_there(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}
