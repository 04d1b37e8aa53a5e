//! Commands that try to outlive their lock, and a check that they did not.
//!
//! All processes of the tree share one open file with a lock (`flock`) on it. The kernel releases that lock when the last process is dead,
//! not before.

use std::{
    fs::{self, File},
    process::Stdio,
};

use lockkeeper::local::{LocalCluster, Signal};
use rustix::process::{Pid, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::NEVER;
use crate::support::{LONG, program, until};

/// The lock of most tests.
const SEAT: &str = "seat";

pub(super) struct Work {
    directory: TempDir,
    script: String,
    processes: usize,
}

impl Work {
    /// A tree of processes, inside and outside the command's process group, that ends on SIGTERM.
    pub(super) fn obedient() -> Self {
        let sleep = format!("exec sleep {}", NEVER.as_secs());
        let child = format!(r#"sh -c 'echo $$ >> pids; {sleep}'"#);
        // A child, a child in its own session, and an orphan in its own session.
        Self::new(4, &format!("{child} & setsid {child} & (setsid {child} &) & echo $$ >> pids; wait; wait; wait"))
    }

    /// The same, but it ignores SIGTERM.
    pub(super) fn stubborn() -> Self {
        let obedient = Self::obedient();
        Self { script: format!("trap '' TERM; {}", obedient.script), ..obedient }
    }

    /// A process that writes its token to stdout in a loop, as to a remote resource.
    pub(super) fn writing_its_token() -> Self {
        Self::new(1, r#"echo $$ >> pids; while :; do echo "$LOCKKEEPER_TOKEN"; done"#)
    }

    /// A shell that runs this script.
    pub(super) fn of(script: &str) -> Self {
        Self::new(1, &format!("echo $$ >> pids; {script}"))
    }

    fn new(processes: usize, script: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let script = format!("cd '{}'; exec 9>>alive; flock -n 9 || exit 99; {script}", directory.path().display());
        Self { directory, script, processes }
    }

    pub(super) fn script(&self) -> &str {
        &self.script
    }

    /// The processes that have recorded their ids; some of them may be dead.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.file("pids").lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
    }

    /// The contents of a file in its directory.
    pub(super) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    /// Waits until all its processes run.
    pub(super) async fn begun(&self) {
        until("the command", async || (self.pids().len() == self.processes).then_some(())).await;
        assert!(!self.is_over(), "it runs");
    }

    /// Whether all its processes are dead.
    pub(super) fn is_over(&self) -> bool {
        File::options().append(true).open(self.directory.path().join("alive")).expect("it was made").try_lock().is_ok()
    }

    pub(super) async fn over(&self) {
        until("the end of all processes", async || self.is_over().then_some(())).await;
    }
}

/// Processes that only sleep. They end when it is dropped.
pub(super) struct Crowd {
    /// Of which the others are children, in its process group.
    shell: Child,
}

impl Crowd {
    pub(super) async fn gather(count: usize) -> Self {
        let script = format!("for i in $(seq {count}); do sleep {} & done; echo all; wait", NEVER.as_secs());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).process_group(0).stdout(Stdio::piped());
        let mut crowd = Self { shell: shell.spawn().expect("sh") };
        let mut all = [0; 3];
        let stdout = crowd.shell.stdout.as_mut().expect("it is piped");
        timeout(LONG, stdout.read_exact(&mut all)).await.expect("in time").expect("there is room for so many");
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let shell = self.shell.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it was not waited for");
        kill_process_group(shell, Signal::KILL).expect("its group is there");
    }
}

/// A process of `lockkeeper lock seat`, with its command.
pub(super) struct Wrapper {
    child: Child,
}

impl Wrapper {
    /// Starts a command under the lock, and waits until it runs.
    pub(super) async fn start(cluster: &LocalCluster, ttl: &str, work: &Work) -> Self {
        Self::start_at(&cluster.endpoints().join(","), ttl, work).await
    }

    pub(super) async fn start_at(endpoints: &str, ttl: &str, work: &Work) -> Self {
        Self::start_for(SEAT, endpoints, ttl, work).await
    }

    pub(super) async fn start_for(name: &str, endpoints: &str, ttl: &str, work: &Work) -> Self {
        let arguments = ["--ttl", ttl, "--", "sh", "-c", work.script()];
        let wrapper = Self { child: lock_named(name, endpoints, &arguments).spawn().expect("the program runs") };
        work.begun().await;
        wrapper
    }

    pub(super) fn pid(&self) -> Pid {
        let pid = self.child.id().expect("it was not waited for");
        Pid::from_raw(pid.cast_signed()).expect("a process id is positive")
    }

    /// The outer one: the wrapper's only child.
    pub(super) fn keeper(&self) -> Pid {
        descendants(self.pid())[0]
    }

    /// The outer keeper's only child.
    pub(super) fn inner_keeper(&self) -> Pid {
        descendants(self.pid())[1]
    }

    pub(super) fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    pub(super) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("taken once")
    }

    /// Waits for its end. Returns its exit code and its stderr.
    pub(super) async fn ended(&mut self) -> (Option<i32>, String) {
        let status = timeout(LONG, self.child.wait()).await.expect("it ends").expect("its status");
        let mut said = Vec::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            timeout(LONG, stderr.read_to_end(&mut said)).await.expect("no other process has it").expect("a pipe");
        }
        (status.code(), String::from_utf8_lossy(&said).into_owned())
    }
}

/// `lockkeeper lock seat` with these arguments.
pub(super) fn lock(endpoints: &str, arguments: &[&str]) -> Command {
    lock_named(SEAT, endpoints, arguments)
}

fn lock_named(name: &str, endpoints: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(["lock", name]).args(arguments).env("LOCKKEEPER_ENDPOINTS", endpoints);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(super) fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("it lives");
}

/// The same to a process that may be gone.
pub(super) fn signal_if_alive(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// Lets a stopped process go on, if it still lives.
pub(super) fn resume(pid: Pid) {
    signal_if_alive(pid, Signal::CONT);
}

/// The descendants of a process, the nearest first.
pub(super) fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let children = fs::read_dir("/proc").expect("a list of processes").flatten().filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (pid, rest) = stat.split_once(' ')?;
            let ppid = rest.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (ppid == parent.to_string()).then(|| Pid::from_raw(pid.parse().ok()?))?
        });
        found.extend(children.collect::<Vec<_>>());
        next += 1;
    }
    found.split_off(1)
}
