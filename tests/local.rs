//! Nodes as processes: start, end, and that no node outlives its parent process.

#![expect(clippy::unwrap_used, reason = "a test fails by it, helpers included")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use crate::support::{LONG, cluster_of, leader, options, program, until};
use lockkeeper::local::{ClusterOptions, EXIT_ADDRESS_IN_USE, LocalCluster, LocalError, Signal};
use rustix::process::{Pid, kill_process, test_kill_process};
use tempfile::TempDir;

fn pid(number: u64) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

/// Whether the process runs. A zombie does not.
fn runs(number: u64) -> bool {
    let zombie = fs::read_to_string(format!("/proc/{number}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    !zombie && test_kill_process(pid(number)).is_ok()
}

fn dev(arguments: &[&str]) -> Output {
    Command::new(program()).arg("dev").args(arguments).output().unwrap()
}

fn serve(arguments: &[&str]) -> Output {
    Command::new(program()).arg("serve").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A running `lockkeeper dev` without a command, whose cluster serves.
struct RunningDev {
    process: std::process::Child,
    report: serde_json::Value,
    /// Parent of its temporary directory, which it cannot remove when it is killed.
    _temporary: TempDir,
}

impl RunningDev {
    fn start() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut process = Command::new(program())
            .args(["dev", "--nodes", "2", "-o", "json"])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { process, report, _temporary: temporary }
    }

    fn node_pids(&self) -> Vec<u64> {
        self.report["nodes"].as_array().unwrap().iter().map(|node| node["pid"].as_u64().unwrap()).collect()
    }

    fn directory(&self) -> PathBuf {
        self.report["directory"].as_str().unwrap().into()
    }

    fn end_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(pid(self.process.id().into()), signal).unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for RunningDev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The nodes then end by themselves, unless that is the bug.
        for node in self.node_pids().into_iter().filter(|node| runs(*node)) {
            let _ = kill_process(pid(node), Signal::KILL);
        }
    }
}

#[tokio::test]
async fn a_node_that_is_killed_is_missed_and_can_be_started_again() {
    let mut cluster = cluster_of(3).await;
    let leading = leader(&cluster).await;
    let other = leading % 3 + 1;

    assert_eq!(cluster.node_mut(other).kill().await.unwrap().code(), None);
    assert!(!cluster.node(other).is_running());
    assert!(!cluster.statuses().await.contains_key(&other));

    cluster.node_mut(other).spawn().unwrap();
    cluster.ready(LONG).await.unwrap();
    leader(&cluster).await;
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_ends_well() {
    let mut cluster = cluster_of(1).await;
    assert_eq!(cluster.node_mut(1).stop().await.unwrap().code(), Some(0));
    assert!(cluster.node(1).log_tail().contains("SIGTERM received: stopping"), "{}", cluster.node(1).log_tail());
}

#[tokio::test]
async fn a_death_is_noticed() {
    let mut cluster = cluster_of(2).await;
    cluster.node(2).signal(Signal::KILL);
    let (node_id, status) = cluster.next_death().await;
    assert_eq!((node_id, status.code()), (2, None));
}

#[tokio::test]
async fn nothing_is_left_of_a_cluster_that_is_dropped() {
    let cluster = cluster_of(2).await;
    let pids: Vec<_> = cluster.nodes().map(|node| node.pid().unwrap()).collect();
    let path = cluster.path().to_owned();
    drop(cluster);
    assert!(pids.into_iter().all(|pid| !runs(pid.into())));
    assert!(!path.exists());
}

/// Starts a cluster whose directory was in use a moment ago. A program that another test starts in that moment has a copy of its lock until
/// it runs.
async fn start_again(options: impl Fn() -> ClusterOptions) -> Result<LocalCluster, LocalError> {
    let free = until("the directory is free", async || {
        let started = LocalCluster::start(options()).await;
        (!matches!(started, Err(LocalError::InUse(_)))).then_some(started)
    });
    free.await
}

#[tokio::test]
async fn a_kept_cluster_goes_on_where_it_was_and_moves_if_its_ports_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let kept = |nodes| ClusterOptions { nodes, directory: Some(directory.path().into()), ..options(1) };
    let endpoints = |cluster: &LocalCluster| cluster.endpoints();

    let mut first = LocalCluster::start(kept(Some(2))).await.unwrap();
    assert!(matches!(LocalCluster::start(kept(None)).await, Err(LocalError::InUse(_))));
    let before = endpoints(&first);
    let cluster_id = first.node(1).config().cluster_id.clone();
    first.stop().await;
    drop(first);

    let other_size = start_again(|| kept(Some(3))).await;
    assert!(matches!(other_size, Err(LocalError::OtherSize { has: 2, asked: 3, .. })), "{:?}", other_size.err());

    let mut second = start_again(|| kept(None)).await.unwrap();
    assert_eq!((endpoints(&second), &second.node(1).config().cluster_id), (before.clone(), &cluster_id));
    second.stop().await;
    drop(second);

    let _taken = TcpListener::bind(before[0].strip_prefix("http://").unwrap()).unwrap();
    let third = start_again(|| kept(None)).await.unwrap();
    assert_ne!(endpoints(&third)[0], before[0]);
    assert_eq!(third.node(1).config().cluster_id, cluster_id);
}

#[tokio::test]
async fn a_node_that_ends_at_once_is_shown_by_the_end_of_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("broken");
    fs::write(&program, "#!/bin/sh\necho the first line >&2\necho no luck today >&2\nexit 3\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();

    let options = ClusterOptions { directory: Some(directory.path().join("cluster")), ..ClusterOptions::new(program) };
    let message = LocalCluster::start(options).await.unwrap_err().to_string();
    assert!(message.contains("exited (exit status: 3)"), "{message}");
    assert!(message.contains("node.log:\n"), "{message}");
    assert!(message.ends_with("  the first line\n  no luck today"), "{message}");
}

#[tokio::test]
async fn a_cluster_that_does_not_serve_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("silent");
    fs::write(&program, "#!/bin/sh\nexec cat\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();

    let nodes = Some(1);
    let path = directory.path().join("cluster");
    let timeout = Duration::from_millis(100);
    let options = ClusterOptions { nodes, directory: Some(path.clone()), timeout, ..ClusterOptions::new(program) };
    let message = LocalCluster::start(options).await.unwrap_err().to_string();
    assert!(message.contains("node 1 does not answer; there is no leader"), "{message}");
    assert!(message.contains("node1/node.log"), "{message}");
}

#[test]
fn dev_gives_the_command_its_endpoints_and_this_program_and_ends_as_it_does() {
    let script = "echo $LOCKKEEPER_ENDPOINTS; command -v lockkeeper; exit 7";
    let output = dev(&["--nodes", "1", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let [endpoints, found] = text(&output.stdout).lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(endpoints.starts_with("http://127.0.0.1:"), "{endpoints}");
    assert_eq!(Path::new(found), program());
    assert!(text(&output.stderr).contains(endpoints), "{}", text(&output.stderr));
}

#[test]
fn dev_ends_with_the_signal_of_its_command() {
    assert_eq!(dev(&["--nodes", "1", "--", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(dev(&["--nodes", "1", "--", "there-is-no-such-program"]).status.code(), Some(127));
}

#[tokio::test]
async fn dev_that_is_told_to_stop_takes_all_with_it() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut dev = RunningDev::start();
        assert!(dev.node_pids().into_iter().all(runs));
        assert_eq!(dev.end_by(signal).code(), Some(0));
        assert!(!dev.node_pids().into_iter().any(runs));
        assert!(!dev.directory().exists());
    }
}

#[tokio::test]
async fn nodes_do_not_outlive_a_dev_that_is_killed() {
    let mut dev = RunningDev::start();
    dev.end_by(Signal::KILL);
    until("the nodes to end", async || (!dev.node_pids().into_iter().any(runs)).then_some(())).await;
}

#[test]
fn dev_says_when_a_node_dies() {
    let mut dev = RunningDev::start();
    let stderr = BufReader::new(dev.process.stderr.take().unwrap());
    kill_process(pid(dev.node_pids()[1]), Signal::KILL).unwrap();
    let lines: Vec<_> = stderr.lines().map(Result::unwrap).take(2).collect();
    assert!(lines[0].starts_with("node 2 exited: signal: 9"), "{lines:?}");
    assert!(lines[1].contains(" serve --config ") && lines[1].ends_with("/node2/node.toml"), "{lines:?}");
}

#[test]
fn a_configuration_that_cannot_be_used_ends_with_2() {
    let output = serve(&["--config", "/nowhere/node.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(
        message.starts_with("lockkeeper: the configuration /nowhere/node.toml cannot be used\n- cannot read it"),
        "{message}"
    );
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let cluster = cluster_of(1).await;
    let taken = &cluster.node(1).config().client_listen;
    let data = tempfile::tempdir().unwrap();
    let config = cluster.node(1).config_file().to_str().unwrap();
    let output = serve(&["--config", config, "--data-dir", data.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(EXIT_ADDRESS_IN_USE.into()), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(taken), "{}", text(&output.stderr));
}
