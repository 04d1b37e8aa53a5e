//! Helpers for tests with real processes: the program, clusters, and waits for a condition.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use lockkeeper::{
    client::{Client, Session, SessionOptions, Tls},
    config::RaftConfig,
    local::{ClusterOptions, LocalCluster},
    proto::v1::Role,
};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
};

/// Longer than any step on a busy machine: a test that waits for this time has failed.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// The program under test.
pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_lockkeeper").into()
}

/// The program under test with these arguments; stdout and stderr are piped.
pub(crate) fn lockkeeper(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Makes child processes react to SIGINT and SIGHUP. An ignored signal stays ignored in child processes (as with `nohup` and a script's
/// `&`), and the program respects that. A caught signal has its default action in child processes, so the tests catch ignored signals.
fn heed_signals() {
    const IGNORED: &str = "SigIgn:";
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix(IGNORED)).unwrap_or_default();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap_or_default();
    for kind in [SignalKind::interrupt(), SignalKind::hangup()] {
        if ignored & (1 << (kind.as_raw_value() - 1)) != 0 {
            // The handler stays installed after this drop.
            drop(signal(kind).expect("a signal that can be caught"));
        }
    }
}

/// Runs a command to its end.
pub(crate) async fn output(command: &mut Command) -> Output {
    let child = command.spawn().expect("the program runs");
    timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output")
}

/// The exit code, stdout and stderr. The code is -1 if a signal ended the process.
pub(crate) fn text(output: &Output) -> (i32, String, String) {
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), string(&output.stdout), string(&output.stderr))
}

/// Options for this number of nodes of the program under test, in a temporary directory. On a busy machine a leader gets no processor for
/// longer than the program's own election timeouts: with these, that is no election.
pub(crate) fn options(nodes: usize) -> ClusterOptions {
    let mut options = ClusterOptions { nodes: Some(nodes), timeout: LONG, ..ClusterOptions::new(program()) };
    options.raft.election_timeout_ms_min = 1_500;
    options.raft.election_timeout_ms_max = 3_000;
    options
}

/// Starts a cluster of this number of nodes, and waits until it serves.
pub(crate) async fn cluster_of(nodes: usize) -> LocalCluster {
    cluster_with(|options| options.nodes = Some(nodes)).await
}

/// Starts a cluster of three nodes, and waits until it serves.
pub(crate) async fn cluster() -> LocalCluster {
    cluster_with(|_| {}).await
}

/// The same with changed options.
pub(crate) async fn cluster_with(change: impl FnOnce(&mut ClusterOptions)) -> LocalCluster {
    heed_signals();
    let mut options = options(3);
    change(&mut options);
    LocalCluster::start(options).await.expect("three nodes come up")
}

/// The same with the election timeouts that the program has by default, and whatever depends on them: when a member counts as silent.
pub(crate) async fn prompt_cluster() -> LocalCluster {
    cluster_with(|options| options.raft = RaftConfig::default()).await
}

/// A cluster with long election timeouts, so that a busy machine causes no election: during one, answers would differ.
pub(crate) async fn steady_cluster() -> LocalCluster {
    cluster_with(|options| {
        options.raft.election_timeout_ms_min = 10_000;
        options.raft.election_timeout_ms_max = 20_000;
    })
    .await
}

/// A client of all nodes, with a certificate if the cluster has them.
pub(crate) fn client(cluster: &LocalCluster) -> Client {
    let builder = Client::builder(&cluster.endpoints().join(",")).call_limit(LONG);
    let builder = match cluster.client_files() {
        Some(files) => builder.tls(&Tls::load(files).expect("files in order")),
        None => builder,
    };
    builder.build().expect("the endpoints are valid")
}

/// A session with a TTL longer than any test.
pub(crate) async fn long_session(client: &Client) -> Session {
    let options = SessionOptions { ttl: Duration::from_secs(600), label: "test".to_string() };
    client.open(options).await.expect("a session")
}

/// The id of the node that leads.
pub(crate) async fn leader(cluster: &LocalCluster) -> u64 {
    until("a leader", async || {
        let statuses = cluster.statuses().await;
        statuses.values().find(|status| status.role() == Role::Leader && status.serving).map(|status| status.node_id)
    })
    .await
}

/// Waits until `condition` returns a value. Panics after [`LONG`].
pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {LONG:?} in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
