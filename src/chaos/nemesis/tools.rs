//! Programs of the machine that some faults need. A fault whose program is missing, or can do nothing here, is skipped and reported.

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

use lockkeeper_local::LocalCluster;

use super::{Fault, Group};

/// Environment variable with the path of the library.
const LIBFAKETIME: &str = "LOCKKEEPER_LIBFAKETIME";
const LIBFAKETIME_PLACES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
];
/// An strace that may not attach exits within this time.
const ATTACHED: Duration = Duration::from_millis(400);
const DETACHED: Duration = Duration::from_secs(5);

/// The available tools. Drop, after all nodes are dead, removes files that killed processes left behind.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    strace: Option<PathBuf>,
    libfaketime: Option<PathBuf>,
    /// Whether nodes do not load the library.
    is_not_loaded: bool,
    faked: Vec<u32>,
    /// Why this run cannot restore a cluster from a backup, if it cannot.
    no_restore: Option<&'static str>,
    /// Why this run cannot change the membership, if it cannot.
    no_changes: Option<&'static str>,
    /// Why this run has no audit files, if it has none.
    no_audit: Option<&'static str>,
}

impl Tools {
    pub(crate) fn find(
        no_restore: Option<&'static str>,
        no_changes: Option<&'static str>,
        no_audit: Option<&'static str>,
    ) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let strace = env::split_paths(&path).map(|folder| folder.join("strace")).find(|file| file.is_file());
        let named = env::var_os(LIBFAKETIME).map(PathBuf::from);
        let usual = LIBFAKETIME_PLACES.iter().map(PathBuf::from);
        let libfaketime = named.into_iter().chain(usual).find(|file| file.is_file());
        Self { strace, libfaketime, is_not_loaded: false, faked: Vec::new(), no_restore, no_changes, no_audit }
    }

    /// Disables libfaketime if this process, which was started under it, has not loaded it: then none does. A program that is linked
    /// statically loads nothing, and no program loads a file that is not a library.
    pub(crate) fn check_loaded(&mut self, pid: u32) {
        let Some(library) = self.libfaketime() else { return };
        // Where the kernel does not show it, a jump without effect is noticed when it is tried.
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return };
        if !is_mapped(&maps, library) {
            self.libfaketime = None;
            self.is_not_loaded = true;
        }
    }

    /// Disables strace if it may not attach to this process, because then it may not attach to any.
    pub(crate) async fn try_on(&mut self, pid: u32) {
        match Trace::attach(self, pid, &["-e", "trace=none"]).await {
            Ok(trace) => trace.detach().await,
            Err(_) => self.strace = None,
        }
    }

    /// Returns why a fault is not possible, or `None` if it is.
    pub(crate) fn missing(&self, fault: Fault) -> Option<&'static str> {
        match fault.group() {
            Group::Operation if fault.makes_anew() => self.no_restore,
            Group::Clock if self.is_not_loaded => Some(
                "the nodes do not load libfaketime: the program may be linked statically, or the file may be no library",
            ),
            Group::Clock if self.libfaketime.is_none() => Some("libfaketime is not installed"),
            Group::Disk if self.strace.is_none() => {
                Some("strace is not installed, or may not attach to other processes")
            }
            Group::Disk if fault.is_of_audit() => self.no_audit,
            Group::Partition | Group::Network | Group::Pause | Group::Kill | Group::Clock | Group::Disk => None,
            Group::Operation => None,
            Group::Membership => self.no_changes,
        }
    }

    pub(crate) fn libfaketime(&self) -> Option<&Path> {
        self.libfaketime.as_deref()
    }

    /// Lets a node run under libfaketime from its next start on, if it is installed. It fakes the wall clock only, not the monotonic
    /// clock.
    pub(crate) fn fake_clock(&self, cluster: &mut LocalCluster, id: u64) -> io::Result<()> {
        let Some(library) = self.libfaketime() else { return Ok(()) };
        let clock = cluster.path().join(format!("node{id}")).join("clock");
        fs::write(&clock, "+0")?;

        let variables = [
            ("LD_PRELOAD", library.as_os_str()),
            ("FAKETIME_TIMESTAMP_FILE", clock.as_os_str()),
            ("FAKETIME_NO_CACHE", "1".as_ref()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
        ];

        cluster.node_mut(id).set_environment(variables.map(|(name, value)| (name.into(), value.into())));
        Ok(())
    }

    /// Notes that the library is loaded into this process. Call it for each of them.
    pub(crate) fn is_loaded_into(&mut self, pid: u32) {
        self.faked.push(pid);
    }
}

impl Drop for Tools {
    /// libfaketime creates a shared memory and a semaphore for each process. A process that exits removes them; a
    /// killed process does not.
    fn drop(&mut self) {
        for pid in &self.faked {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                // Usually absent, because the process has exited normally.
                let _ = fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

/// An strace that injects faults into a process. Drop kills it, which detaches it.
#[derive(Debug)]
pub(crate) struct Trace {
    child: Child,
}

impl Trace {
    /// Attaches to all threads of the process. Fails without permission.
    pub(crate) async fn attach(tools: &Tools, pid: u32, arguments: &[&str]) -> io::Result<Self> {
        Self::attach_with(tools, &["-f"], pid, arguments).await
    }

    /// Attaches to this thread alone. Fails without permission.
    pub(crate) async fn attach_to_thread(tools: &Tools, thread: u32, arguments: &[&str]) -> io::Result<Self> {
        Self::attach_with(tools, &[], thread, arguments).await
    }

    async fn attach_with(tools: &Tools, follow: &[&str], id: u32, arguments: &[&str]) -> io::Result<Self> {
        let strace = tools.strace.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(strace);
        command.args(follow).args(["-qq", "-o", "/dev/null"]).args(arguments).args(["-p", &id.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        match timeout(ATTACHED, child.wait()).await {
            Err(_) => Ok(Self { child }),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Ends the strace and waits for its exit.
    pub(crate) async fn detach(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
        // If it does not exit, the drop kills it.
        let _ = timeout(DETACHED, self.child.wait()).await;
    }
}

/// Whether a process has loaded a library, by its `/proc/PID/maps` (proc_pid_maps(5)), which has the paths without symbolic links.
fn is_mapped(maps: &str, library: &Path) -> bool {
    let path = fs::canonicalize(library).unwrap_or_else(|_| library.to_owned());
    let path = path.to_string_lossy();
    maps.lines().any(|line| line.split_once('/').is_some_and(|(_, rest)| path.strip_prefix('/') == Some(rest)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Why a clock cannot jump, if this process was started under this library.
    fn missing_with(library: &Path) -> Option<&'static str> {
        let mut tools = Tools {
            strace: None,
            libfaketime: Some(library.to_owned()),
            is_not_loaded: false,
            faked: Vec::new(),
            no_restore: None,
            no_changes: None,
            no_audit: None,
        };
        tools.check_loaded(std::process::id());
        tools.missing(Fault::ClockJump)
    }

    #[test]
    fn a_library_that_the_nodes_do_not_load_lets_no_clock_jump() {
        let unrelated = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let why = missing_with(&unrelated).expect("nobody loads it");
        assert!(why.starts_with("the nodes do not load libfaketime"), "{why}");
        // As a library is that is loaded, the program itself is mapped.
        assert_eq!(missing_with(&env::current_exe().unwrap()), None);
    }
}
