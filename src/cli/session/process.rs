//! Waits for the exit of a process that is not a child of this one.

use std::{future::pending, io, thread};

use rustix::{io::Errno, process::Pid};
use tokio::sync::oneshot;

/// Waits until the process has exited; without a pid it waits for ever. The process is looked up at once, since its pid may
/// be reused later.
pub(super) fn gone(process: Option<Pid>) -> io::Result<impl Future<Output = io::Result<()>>> {
    let (tell, told) = oneshot::channel();
    match process.map(Process::find).transpose()? {
        // A separate thread, which does not delay the end of the runtime.
        Some(Some(process)) => {
            thread::Builder::new().spawn(move || tell.send(process.wait_until_gone()))?;
        }
        Some(None) => {
            // Nobody can have dropped the other end yet.
            let _ = tell.send(Ok(()));
        }
        // Without a sender the future below waits for ever.
        None => drop(tell),
    }

    Ok(async {
        match told.await {
            Ok(gone) => gone,
            Err(_) => pending().await,
        }
    })
}

/// A pidfd: it refers to this process only, and is readable when the process has exited.
#[cfg(target_os = "linux")]
struct Process(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Process {
    /// Finds the process with this id. Returns `None` if there is no such process.
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

/// A process by its pid, because other platforms have no better reference.
#[cfg(not(target_os = "linux"))]
struct Process(Pid);

#[cfg(not(target_os = "linux"))]
impl Process {
    fn find(pid: Pid) -> io::Result<Option<Self>> {
        Ok(is_there(pid).then_some(Self(pid)))
    }

    /// Polls ten times a second.
    fn wait_until_gone(self) -> io::Result<()> {
        while is_there(self.0) {
            thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Finds also processes that this one may not signal.
#[cfg(not(target_os = "linux"))]
fn is_there(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}
