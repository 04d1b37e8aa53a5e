//! `lockkeeper rolling-restart` on a cluster under load.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper::{
    client::{Client, Error, SessionOptions},
    local::LocalCluster,
};
use tokio::{task::JoinSet, time::sleep};

use crate::support::{LONG, client, cluster_with, leader, lockkeeper, text, until};

const WORKERS: usize = 16;
/// The longest a call may take while nodes are restarted: far above a hand-over, far below the client's own limit.
const STALL_MAX: Duration = Duration::from_secs(5);

/// A cluster whose leader changes only by a hand-over, also on a busy machine. A hand-over that fails stalls the calls for longer than
/// [`STALL_MAX`].
async fn cluster() -> LocalCluster {
    cluster_with(|options| {
        options.raft.election_timeout_ms_min = 6_000;
        options.raft.election_timeout_ms_max = 12_000;
    })
    .await
}

/// The calls of all workers.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    calls: AtomicU64,
    failed: Mutex<Vec<String>>,
    stalls: Mutex<Vec<Duration>>,
}

impl Tally {
    async fn count<T>(&self, what: &str, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let began = Instant::now();
        let answer = call.await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.stalls.lock().expect("no panic").push(began.elapsed());
        answer.inspect_err(|error| self.failed.lock().expect("no panic").push(format!("{what}: {error}"))).ok()
    }
}

/// Acquires and releases one lock after the other, each worker its own, on a session that it keeps.
async fn work(client: Client, tally: Arc<Tally>, worker: usize) {
    let options = SessionOptions { ttl: Duration::from_secs(30), label: format!("worker {worker}") };
    let session = client.open(options).await.expect("a session");
    while !tally.stop.load(Ordering::Relaxed) {
        let acquired = tally.count("acquire", session.acquire(&format!("rolling/{worker}")).into_future()).await;
        if let Some(guard) = acquired {
            tally.count("release", guard.release()).await;
        }
    }
}

/// Restarts the nodes for which a file lies in `wanted`, and removes it: the other side of `--with`.
async fn restart_wanted(cluster: &mut LocalCluster, wanted: &Path) -> Vec<u64> {
    let mut restarted = Vec::new();
    for id in 1..=3 {
        let file = wanted.join(id.to_string());
        if file.exists() {
            let node = cluster.node_mut(id);
            assert!(node.stop().await.expect("it runs").success(), "node {id} stops in order");
            node.spawn().expect("it starts again");
            std::fs::remove_file(&file).expect("it is there");
            restarted.push(id);
        }
    }
    restarted
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_are_restarted_and_no_call_fails() {
    let mut cluster = cluster().await;
    let led = leader(&cluster).await;
    let tally = Arc::new(Tally::default());
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        workers.spawn(work(client(&cluster), Arc::clone(&tally), worker));
    }
    let progress = async |calls: u64| {
        let target = tally.calls.load(Ordering::Relaxed) + calls;
        until("calls", async || (tally.calls.load(Ordering::Relaxed) >= target).then_some(())).await;
    };
    progress(200).await;

    let wanted = tempfile::tempdir().expect("a directory");
    let with =
        format!("touch {0}/{{node_id}}; while [ -e {0}/{{node_id}} ]; do sleep 0.05; done", wanted.path().display());
    let endpoints = cluster.endpoints().join(",").replace("http://", "");
    let before: Vec<_> = cluster.statuses().await.into_values().map(|status| status.start).collect();
    let mut command = lockkeeper(&["rolling-restart", "--with", &with, "--limit", "60s", "--endpoints", &endpoints]);
    let mut running = tokio::spawn(async move { command.output().await.expect("it runs") });
    let mut order = Vec::new();
    let output = loop {
        tokio::select! {
            output = &mut running => break output.expect("no panic"),
            () = sleep(Duration::from_millis(20)) => order.extend(restart_wanted(&mut cluster, wanted.path()).await),
        }
    };
    let (code, stdout, stderr) = text(&output);
    assert_eq!(code, 0, "{stdout}{stderr}");
    progress(200).await;
    tally.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended.expect("no worker panicked");
    }

    assert_eq!((order.len(), order.last()), (3, Some(&led)), "{order:?}: each once, the leader last");
    let after: Vec<_> = cluster.statuses().await.into_values().map(|status| status.start).collect();
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{before:?} {after:?}");
    assert!(stdout.contains(&format!("node {led} handed the leadership over to node ")), "{stdout}");
    let mut stalls = std::mem::take(&mut *tally.stalls.lock().expect("no panic"));
    stalls.sort();
    let slow = stalls.iter().filter(|stall| **stall > Duration::from_millis(250)).count();
    let failed = tally.failed.lock().expect("no panic").clone();
    let longest = *stalls.last().expect("some calls");
    println!(
        "{} calls, {} failed, longest {longest:?}, median {:?}, {slow} above 250 ms",
        stalls.len(),
        failed.len(),
        stalls[stalls.len() / 2]
    );
    assert!(failed.is_empty(), "{failed:?}");
    assert!(longest < STALL_MAX, "{longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stops_at_the_first_doubt() {
    let mut cluster = cluster().await;
    let endpoints = cluster.endpoints().join(",").replace("http://", "");
    let run = async |arguments: &[&str]| {
        let arguments = [&["rolling-restart", "--endpoints", &endpoints], arguments].concat();
        let output = tokio::time::timeout(LONG, lockkeeper(&arguments).output()).await;
        text(&output.expect("it ends").expect("it runs"))
    };

    let (code, stdout, _) = run(&["--dry-run", "--with", "restart {node_id}"]).await;
    let led = leader(&cluster).await;
    assert_eq!((code, stdout.lines().count()), (0, 3), "{stdout}");
    assert!(stdout.lines().last().expect("three").ends_with(&format!("restart {led}")), "{stdout}");

    let (code, _, stderr) = run(&["--with", "restart {node}"]).await;
    assert!(code == 2 && stderr.contains("unknown placeholder {node}"), "{code} {stderr}");
    let (code, _, stderr) = run(&["--only", "7", "--with", "true"]).await;
    assert!(code == 2 && stderr.contains("the members are 1, 2, 3"), "{code} {stderr}");

    // A command that fails, and one that does not restart the node.
    let (code, _, stderr) = run(&["--with", "exit 3"]).await;
    assert!(code == 1 && stderr.contains("ended with exit status: 3"), "{code} {stderr}");
    let (code, stdout, stderr) = run(&["--with", "true", "--limit", "2s"]).await;
    assert!(code == 1 && stderr.contains("is still the process from before"), "{code} {stdout} {stderr}");
    assert_eq!(stdout.matches(": true\n").count(), 1, "one node, and no further one: {stdout}");

    let down = led % 3 + 1;
    cluster.node_mut(down).kill().await;
    let (code, stdout, stderr) = run(&["--with", "true"]).await;
    assert!(code == 1 && stderr.contains(&format!("nothing was restarted: node {down} (")), "{code} {stderr}");
    assert_eq!(stdout, "");
}
