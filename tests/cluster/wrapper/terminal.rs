//! The wrapper at a terminal.

use std::fs;

use rustix::process::Pid;

use super::super::terminal::Terminal;
use super::{Next, SHORT_TTL, one_node, work::Work};
use crate::support::{client, long_session, until};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

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
    let Some(mut terminal) = Terminal::open(&cluster, &job_of(&work, SHORT_TTL)).await else { return };
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
    terminal.ends().await;
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
