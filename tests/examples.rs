//! Runs each example in its own cluster, as its readers do. Each example checks its own results: exit code 0 means that they were correct.
//!
//! To add an example: an entry in `Cargo.toml` and a test below.

use std::{
    env,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Command, time::timeout};

/// Longer than any example takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

#[tokio::test]
async fn ticket_booking() {
    shows("ticket_booking", "Every seat is sold, and none twice.").await;
}

#[tokio::test]
async fn blocking() {
    shows("blocking", "4 threads counted to 40").await;
}

#[tokio::test]
async fn job_scheduler() {
    shows("job_scheduler", "Every job was recorded once in every night.").await;
}

#[tokio::test]
async fn leader_election() {
    shows("leader_election", "nobody leads").await;
}

#[tokio::test]
async fn why_tokens_matter() {
    shows("why_tokens_matter", "The seat says \"sold by Bob\", as Bob left it.").await;
}

async fn shows(example: &str, words: &str) {
    let output = run(example).await;
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains(words), "it does not say {words:?}:\n{out}");
}

async fn run(example: &str) -> Output {
    let mut dev = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    dev.args(["dev", "--"]).arg(path(example)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = dev.kill_on_drop(true).spawn().expect("the program runs");
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it was not waited for");
    let mut output = std::pin::pin!(child.wait_with_output());
    if let Ok(output) = timeout(LIMIT, &mut output).await {
        return output.expect("its output");
    }
    // On SIGTERM, it ends its cluster and the example; SIGKILL would leave them running.
    kill_process(pid, Signal::TERM).expect("it runs");
    let output = timeout(LIMIT, output).await.expect("it ends when it is asked to").expect("its output");
    panic!("{example} was not over after {LIMIT:?}: {output:?}");
}

/// The built example: `target/debug/examples`, next to this test's `target/debug/deps`. A test cannot build it.
fn path(example: &str) -> PathBuf {
    let test = env::current_exe().expect("this test has a path");
    let built = test.parent().and_then(|deps| deps.parent()).expect("it is in target/…/deps");
    let path = built.join("examples").join(example);
    assert!(
        path.exists(),
        "{} is not built: `cargo build --examples`, or `cargo test` as a whole, builds it",
        path.display()
    );
    path
}
