//! At a terminal. `script` (util-linux) gives the program one, and what is typed comes along a pipe.

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
    /// With this shell script in it, which finds the program as `$LOCKKEEPER`. `None`, and said so: that cannot be had here.
    async fn open(cluster: &LocalCluster, script: &str) -> Option<Self> {
        for needed in [&["script", "--version"][..], &["bash", "--version"], &["env", "--default-signal", "true"]] {
            if !Command::new(needed[0]).args(&needed[1..]).output().await.is_ok_and(|output| output.status.success()) {
                eprintln!("!!! SKIPPED: this does not work here: {}", needed.join(" "));
                return None;
            }
        }
        // Tests in the background may have been started to ignore Ctrl-C, which would be passed on.
        let mut command = Command::new("env");
        command.args(["--default-signal", "script", "--quiet", "--return", "--command", script, "/dev/null"]);
        command.env("SHELL", "/bin/bash").env("TERM", "xterm").env("LOCKKEEPER", program());
        command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it was there before");
        let (output, keyboard) = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
        Some(Self { screen: String::new(), output, keyboard, child })
    }

    async fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).await.expect("it reads");
    }

    /// Waits until this is on the screen, and forgets all before it.
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

/// A shell with job control, as at a prompt: it goes on when its job is stopped, and with the job when a line is typed.
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
async fn the_command_reads_the_keyboard_and_hears_ctrl_c() {
    let cluster = one_node().await;
    let script = r#"$LOCKKEEPER lock seat -- sh -c 'trap "exit 42" INT; read line; echo "read: $line"; while :; do sleep 0.05; done'"#;
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.types("some words\n").await;
    terminal.shows("read: some words").await;
    terminal.types(CTRL_C).await;
    terminal.ends_with(42).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_stops_it_all_and_fg_goes_on() {
    let cluster = one_node().await;
    let work = Work::of(r#"echo begun; read line; echo "read: $line"; exit 7"#);
    let Some(mut terminal) = Terminal::open(&cluster, &job_of(&work, "600s")).await else { return };
    terminal.shows("begun").await;
    terminal.types(CTRL_Z).await;
    terminal.shows("stopped: 148").await;
    // The shell sees that the wrapper is stopped, perhaps before the command is: that could still read what we type for the shell.
    until("a stopped command", async || work.pids().iter().all(|&pid| is_stopped(pid)).then_some(())).await;
    terminal.types("\n").await;
    terminal.shows("lock seat").await;
    terminal.types("some words\n").await;
    terminal.shows("read: some words").await;
    terminal.ends_with(7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_stopped_for_too_long_is_killed_in_its_stop() {
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
async fn in_a_pipeline_all_share_the_foreground() {
    let cluster = one_node().await;
    let script = r#"set -m; $LOCKKEEPER lock seat -- sh -c 'echo begun; exec sleep 1000' | sed s/begun/through/"#;
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.shows("through").await;
    terminal.types(CTRL_C).await;
    timeout(LONG, terminal.child.wait()).await.expect("it ends").expect("its status");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_sees_for_whom_and_the_line_goes_with_the_wait() {
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
