//! The wrapper at a terminal. `script` (util-linux) provides the terminal, and keys arrive through a pipe.

use std::{fs, process::Stdio};

use lockkeeper::local::LocalCluster;
use rustix::process::Pid;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{Next, one_node, work::Work};
use crate::support::{LONG, client, long_session, program, until};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

struct Terminal {
    screen: String,
    output: ChildStdout,
    keyboard: ChildStdin,
    child: Child,
}

impl Terminal {
    /// Runs this shell script, which finds the program as `$LOCKKEEPER`, in a terminal. `None`, with a message, if a tool is missing here.
    async fn open(cluster: &LocalCluster, script: &str) -> Option<Self> {
        for needed in [&["script", "--version"][..], &["bash", "--version"], &["env", "--default-signal", "true"]] {
            if !Command::new(needed[0]).args(&needed[1..]).output().await.is_ok_and(|output| output.status.success()) {
                eprintln!("!!! SKIPPED: this does not work here: {}", needed.join(" "));
                return None;
            }
        }
        // Tests in the background may ignore SIGINT, and child processes would inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal", "script", "--quiet", "--return", "--command", script, "/dev/null"]);
        command.env("SHELL", "/bin/bash").env("TERM", "xterm").env("LOCKKEEPER", program());
        command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("`env` ran before");
        let (output, keyboard) = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
        Some(Self { screen: String::new(), output, keyboard, child })
    }

    async fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).await.expect("it reads");
    }

    /// Waits until this text is on the screen, and discards the output up to its end.
    async fn shows(&mut self, text: &str) {
        let shown = timeout(LONG, self.read_until(text)).await;
        assert_eq!(shown, Ok(true), "waited for {text:?} in vain: {:?}", self.screen);
        let end = self.screen.find(text).expect("it is there") + text.len();
        self.screen.drain(..end);
    }

    async fn read_until(&mut self, text: &str) -> bool {
        let mut bytes = [0; 1_024];
        while !self.screen.contains(text) {
            match self.output.read(&mut bytes).await.expect("a pipe") {
                0 => return false,
                read => self.screen += &String::from_utf8_lossy(&bytes[..read]),
            }
        }
        true
    }

    async fn ends_with(mut self, code: i32) {
        let status = timeout(LONG, self.child.wait()).await.expect("it ends").expect("its status");
        assert_eq!(status.code(), Some(code), "{:?}", self.screen);
    }
}

/// A shell with job control, as at a prompt: it continues when its job is stopped, and resumes the job when a line is typed.
fn job_of(work: &Work, ttl: &str) -> String {
    let quoted = work.script().replace('\'', r"'\''");
    format!(
        "set -m\n$LOCKKEEPER lock seat --ttl {ttl} -- sh -c '{quoted}'\necho \"stopped: $?\"; read line; fg; exit $?"
    )
}

fn is_stopped(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_reads_the_keyboard_and_gets_ctrl_c() {
    let cluster = one_node().await;
    let script = r#"$LOCKKEEPER lock seat -- sh -c 'trap "exit 42" INT; read line; echo "read: $line"; while :; do sleep 0.05; done'"#;
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.types("some words\n").await;
    terminal.shows("read: some words").await;
    terminal.types(CTRL_C).await;
    terminal.ends_with(42).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_stops_wrapper_and_command_and_fg_resumes_them() {
    let cluster = one_node().await;
    let work = Work::of(r#"echo begun; read line; echo "read: $line"; exit 7"#);
    let Some(mut terminal) = Terminal::open(&cluster, &job_of(&work, "600s")).await else { return };
    terminal.shows("begun").await;
    terminal.types(CTRL_Z).await;
    terminal.shows("stopped: 148").await;
    // The shell may see the stopped wrapper before the command is stopped: the command could still read keys that are for the shell.
    until("a stopped command", async || work.pids().iter().all(|&pid| is_stopped(pid)).then_some(())).await;
    terminal.types("\n").await;
    terminal.shows("lock seat").await;
    terminal.types("some words\n").await;
    terminal.shows("read: some words").await;
    terminal.ends_with(7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_stopped_past_its_deadline_is_killed() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let Some(mut terminal) = Terminal::open(&cluster, &job_of(&work, "2s")).await else { return };
    work.begun().await;
    let next = Next::waits(&cluster).await;
    terminal.types(CTRL_Z).await;
    terminal.shows("stopped: 148").await;
    next.enters_alone(&work).await;
    terminal.types("\n").await;
    terminal.shows("the lock is lost").await;
    terminal.ends_with(11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_wrapper_in_a_shell_pipeline() {
    let cluster = one_node().await;
    let script = r#"set -m; $LOCKKEEPER lock seat -- sh -c 'echo begun; exec sleep 1000' | sed s/begun/through/"#;
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.shows("through").await;
    terminal.types(CTRL_C).await;
    timeout(LONG, terminal.child.wait()).await.expect("it ends").expect("its status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_shows_the_holder_and_its_line_is_erased_at_the_grant() {
    let cluster = one_node().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat").await.expect("free");
    let script = "stty cols 120; $LOCKKEEPER lock seat -- echo mine";
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    for _ in 0..2 {
        terminal.shows("lockkeeper: waiting for ").await;
        terminal.shows("seat is held by test; place 1 of 1").await;
    }
    held.release().await.expect("it was held");
    terminal.shows("\r\x1b[2Kmine").await;
    terminal.ends_with(0).await;
}
