//! Unmodified lock clients of DynamoDB on a real cluster.
//!
//! The endpoint by itself, with a store in memory, is tested in its own crate (`src/dynamodb/tests`); here are the parts between it and
//! the cluster: leases that are sessions, tokens that are revisions, and a leader that dies meanwhile. The Python packages are installed
//! once into the build directory, in versions that do not change. Where that is not possible the test is skipped and says so.

mod packages;

use std::{
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use lockkeeper::local::{LocalCluster, Options, Signal};
use tokio::time::{Instant, sleep, timeout};

use packages::{PATIENCE, command, python};

/// A bound on failures.
const LONG: Duration = Duration::from_secs(60);

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dynamodb")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

async fn leader(cluster: &LocalCluster) -> u64 {
    let deadline = Instant::now() + LONG;
    loop {
        let statuses = cluster.statuses().await;
        if let Some(leader) =
            statuses.values().filter(|status| status.serving).map(|status| status.leader_id).find(|id| *id != 0)
        {
            return leader;
        }
        assert!(Instant::now() < deadline, "no leader: {statuses:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Two processes contend for a lock, others renew, release and die, and the leader is killed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_dynamodb_lock_works_unmodified_while_a_leader_dies() {
    let python = match python().await {
        Ok(python) => python,
        Err(problem) => {
            eprintln!("!!! SKIPPED: the Python packages cannot be installed: {problem}");
            return;
        }
    };
    let options = Options { dynamodb: true, timeout: LONG, ..Options::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let leads = leader(&cluster).await;
    let other = (1..=3).find(|node| *node != leads).expect("three nodes");
    // A follower's endpoint: its requests are forwarded, and it outlives the leader.
    let endpoint = cluster.node(other).dynamodb_endpoint().expect("it is on");
    let script = scripts().join("lock_client.py").display().to_string();
    let mut client = command(&python, &[&script, &endpoint, "10"]).spawn().expect("Python starts");
    let victim = async {
        let items = |status: &lockkeeper::proto::v1::StatusResponse| status.sessions > 0;
        let deadline = Instant::now() + LONG;
        while !cluster.statuses().await.values().any(items) {
            assert!(Instant::now() < deadline, "no lease was taken");
            sleep(Duration::from_millis(50)).await;
        }
        cluster.node(leads).signal(Signal::KILL);
    };
    victim.await;
    let ended = timeout(PATIENCE, client.wait()).await;
    let output = client.wait_with_output().await.expect("its output");
    println!("{}", text(&output));
    assert!(matches!(ended, Ok(Ok(status)) if status.success()), "{ended:?}: {}", text(&output));
    assert_ne!(leader(&cluster).await, leads, "the leader was to die");
    cluster.stop().await;
}
