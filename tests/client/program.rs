//! The program `lockkeeper` against scripted nodes: its exit codes, and the command that it runs.

#![expect(clippy::unwrap_used, reason = "in the helpers of tests, a panic is how they fail")]

use std::{
    process::{Output, Stdio},
    time::{Duration, SystemTime},
};

use lockkeeper::proto::v1::{Revocation, keep_alive_response::What, release_request::Target};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{io::AsyncReadExt, process::Command};
use tonic::Code;

use super::{
    fake::{Answer, Call, Node},
    soon,
};

fn lockkeeper(node: &Node, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.env("LOCKKEEPER_ENDPOINTS", &node.address).args(arguments);
    // Its own process group, never in the terminal's foreground: see `job`.
    command.process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(node: &Node, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = soon(lockkeeper(node, arguments).output()).await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
async fn a_command_runs_under_the_lock_and_its_exit_code_is_returned() {
    let node = Node::start();
    let script = r#"echo "$LOCKKEEPER_TOKEN $LOCKKEEPER_LOCK"; exit 3"#;
    let (code, stdout, stderr) = run(&node, &["lock", "b", "a c", "--", "sh", "-c", script]).await;
    assert_eq!((code, &*stdout, &*stderr), (Some(3), "7 a\\u{20}c b\n", ""));
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
    node.asked_to_close().await;
}

#[tokio::test]
async fn a_command_that_cannot_run_leaves_nothing_behind() {
    let node = Node::start();
    let (code, _, stderr) = run(&node, &["lock", "jobs", "--", "/no/such/program"]).await;
    assert_eq!(code, Some(127), "{stderr}");
    node.asked_to_release().await;
    node.asked_to_close().await;
    let (code, _, stderr) = run(&node, &["lock", "jobs", "--", "/dev/null"]).await;
    assert_eq!(code, Some(126), "{stderr}");
}

#[tokio::test]
async fn a_busy_lock_and_a_refused_lock_have_different_exit_codes() {
    let node = Node::start();
    node.answers([Answer::Busy, Answer::Refuse(Code::FailedPrecondition, "MODE_MISMATCH", "no")]);
    assert_eq!(run(&node, &["lock", "jobs", "--try", "--", "true"]).await.0, Some(10));
    assert_eq!(run(&node, &["lock", "jobs", "--", "true"]).await.0, Some(13));
    assert_eq!(run(&node, &["lock", "jobs", "--ttl", "1ms", "--", "true"]).await.0, Some(2));
}

/// Starts a command, and waits until it has printed its first byte.
async fn start(node: &Node, arguments: &[&str], script: &str) -> tokio::process::Child {
    let arguments = [&["lock", "jobs"], arguments, &["--", "sh", "-c", script]].concat();
    let mut child = lockkeeper(node, &arguments).spawn().unwrap();
    let mut line = [0];
    soon(child.stdout.as_mut().unwrap().read_exact(&mut line)).await.unwrap();
    child
}

#[tokio::test]
async fn signals_are_passed_on() {
    let node = Node::start();
    let child = start(&node, &[], "trap 'exit 42' TERM; echo; while :; do sleep 0.05; done").await;
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(soon(child.wait_with_output()).await.unwrap().status.code(), Some(42));
    node.asked_to_release().await;
}

#[tokio::test]
async fn a_command_killed_by_a_signal_has_the_exit_code_of_shells() {
    let node = Node::start();
    assert_eq!(run(&node, &["lock", "jobs", "--", "sh", "-c", "kill -9 $$"]).await.0, Some(137));
}

#[tokio::test]
async fn a_revoked_lock_stops_the_command() {
    let node = Node::start();
    let child = start(&node, &[], "echo; sleep 60").await;
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    node.says(What::Revoked(Revocation { token: 7, reason: "stuck".into(), remaining_ms: 5_000 }));
    let output = soon(child.wait_with_output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(11), "{stderr}");
    assert!(stderr.contains("revoked the grant: stuck"), "{stderr}");
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
}

#[tokio::test]
async fn out_of_contact_a_command_and_what_it_started_is_killed_before_the_deadline() {
    let mut node = Node::start();
    let directory = tempfile::tempdir().unwrap();
    let beat = directory.path().join("beat");
    // The command and its children ignore SIGTERM. Each beat is a write that the lock protects.
    let script = format!("trap '' TERM; (while touch '{}'; do :; done) & sleep 0.1; echo; wait", beat.display());
    let child = start(&node, &["--ttl", "1s"], &script).await;
    node.kill();
    let deadline = SystemTime::now() + Duration::from_secs(1);
    // Its pipes close when all its processes are dead.
    let output = soon(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(11), "{}", String::from_utf8_lossy(&output.stderr));
    let last_beat = std::fs::metadata(&beat).unwrap().modified().unwrap();
    assert!(last_beat < deadline, "{:?} late", last_beat.duration_since(deadline));
}

#[tokio::test]
async fn status_shows_the_cluster_and_no_cluster_has_an_exit_code() {
    let mut node = Node::start();
    let (code, stdout, _) = run(&node, &["status"]).await;
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("leader"), "{stdout}");
    let (_, stdout, _) = run(&node, &["get", "jobs", "-o", "json"]).await;
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&document["name"], &document["index"]), (&"jobs".into(), &42.into()));
    node.kill();
    let (code, stdout, _) = run(&node, &["status"]).await;
    assert_eq!(code, Some(12), "{stdout}");
    assert!(stdout.contains("down: "), "{stdout}");
    assert_eq!(run(&node, &["get", "jobs", "--timeout", "200ms"]).await.0, Some(12));
}

#[tokio::test]
async fn a_closed_stdout_causes_no_panic() {
    let node = Node::start();
    let mut child = lockkeeper(&node, &["get", "jobs"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = soon(child.wait_with_output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
}
