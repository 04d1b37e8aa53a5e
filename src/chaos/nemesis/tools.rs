//! Programs of the machine that some faults need, and what to do without them: say so.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{Fault, Group};

/// Names the library where it is somewhere else.
const LIBFAKETIME: &str = "LOCKKEEPER_LIBFAKETIME";
const LIBFAKETIME_PLACES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
];
/// An strace that may not attach ends sooner than this.
const ATTACHED: Duration = Duration::from_millis(400);
const DETACHED: Duration = Duration::from_secs(5);

/// What is there. Dropped once all nodes are dead, it removes what they left behind.
#[derive(Debug, Default)]
pub(in crate::chaos) struct Tools {
    strace: Option<PathBuf>,
    libfaketime: Option<PathBuf>,
    faked: Vec<u32>,
}

impl Tools {
    pub(in crate::chaos) fn find() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let strace = env::split_paths(&path).map(|folder| folder.join("strace")).find(|file| file.is_file());
        let named = env::var_os(LIBFAKETIME).map(PathBuf::from);
        let usual = LIBFAKETIME_PLACES.iter().map(PathBuf::from);
        let libfaketime = named.into_iter().chain(usual).find(|file| file.is_file());
        Self { strace, libfaketime, faked: Vec::new() }
    }

    /// Forgets strace if it may not attach to this process: where that is forbidden, it is forbidden for all.
    pub(in crate::chaos) async fn try_on(&mut self, pid: u32) {
        match Trace::attach(self, pid, &["-e", "trace=none"]).await {
            Ok(trace) => trace.detach().await,
            Err(_) => self.strace = None,
        }
    }

    /// Why a fault cannot be. `None`: it can.
    pub(in crate::chaos) fn missing(&self, fault: Fault) -> Option<&'static str> {
        match fault.group() {
            Group::Clock if self.libfaketime.is_none() => Some("libfaketime is not installed"),
            Group::Disk if self.strace.is_none() => {
                Some("strace is not installed, or may not attach to other processes")
            }
            Group::Partition | Group::Network | Group::Pause | Group::Kill | Group::Clock | Group::Disk => None,
        }
    }

    pub(in crate::chaos) fn libfaketime(&self) -> Option<&Path> {
        self.libfaketime.as_deref()
    }

    /// To be told of each process that it is loaded into.
    pub(in crate::chaos) fn is_loaded_into(&mut self, pid: u32) {
        self.faked.push(pid);
    }
}

impl Drop for Tools {
    /// libfaketime makes a shared memory and a semaphore for each process. One that ends removes them; one that is killed does not.
    fn drop(&mut self) {
        for pid in &self.faked {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                // Not there, most often: the process ended by itself.
                let _ = fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

/// An strace that meddles with a process. Dropped, it is killed, and lets go of the process.
#[derive(Debug)]
pub(in crate::chaos) struct Trace {
    child: Child,
}

impl Trace {
    /// With all threads of the process. Fails if it may not.
    pub(in crate::chaos) async fn attach(tools: &Tools, pid: u32, arguments: &[&str]) -> io::Result<Self> {
        let strace = tools.strace.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(strace);
        command.args(["-f", "-qq", "-o", "/dev/null"]).args(arguments).args(["-p", &pid.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        match timeout(ATTACHED, child.wait()).await {
            Err(_) => Ok(Self { child }),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Ends it, and waits until it has.
    pub(in crate::chaos) async fn detach(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
        // One that does not listen is killed by the drop.
        let _ = timeout(DETACHED, self.child.wait()).await;
    }
}
