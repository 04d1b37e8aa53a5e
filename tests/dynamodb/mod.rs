//! Unmodified lock clients of DynamoDB on a real cluster.
//!
//! The endpoint by itself, with a store in memory, is tested in its own crate (`src/dynamodb/tests`); here are the parts between it and
//! the cluster: leases that are sessions, tokens that are revisions, and a leader that dies meanwhile. The programs in `clients` use one
//! client each, all at the same time: each contends for a lock with two processes, while the leader is killed, and then renews, releases,
//! lists and dies, as far as its client can (`README.md` beside this file). The packages are installed once into the build directory, in
//! versions that do not change. Where that is not possible, their clients are skipped, and the test says so.

mod chaos;
mod deleted_tables;
mod lost_answers;
pub(crate) mod operators;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use lockkeeper::local::{ClusterOptions, LocalCluster, Signal};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use crate::unmodified::{
    npm,
    packages::{self, command},
    program::Program,
};

/// A bound on failures.
const LONG: Duration = crate::support::LONG;
/// For how long clients contend after the leader has died, seconds.
const SECONDS: &str = "LOCKKEEPER_DYNAMODB_SECONDS";
/// The program of `clients/rust`, which `scripts/dynamodb-clients.sh` builds.
const RUST: &str = "LOCKKEEPER_DYNAMODB_RUST";

const OF_PYPI: [&str; 4] = ["pypi_python_dynamodb_lock", "pypi_powertools", "pypi_deltalake", "pypi_boto3"];
const OF_NPM: [&str; 2] = ["npm_dynamodb_lock_client", "npm_deliveryhero"];

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dynamodb/clients").join(name).display().to_string()
}

/// A Python that has the packages.
async fn python() -> Result<PathBuf, String> {
    packages::python("dynamodb-python", include_str!("requirements.txt")).await
}

/// The packages from npm.
async fn modules() -> Result<PathBuf, String> {
    npm::modules("dynamodb-npm", include_str!("package.json"), include_str!("package-lock.json")).await
}

/// The programs of all clients that can be had here, without their arguments; and why others cannot.
async fn programs() -> (Vec<(&'static str, Command)>, Vec<String>) {
    let mut programs = Vec::new();
    let mut problems = Vec::new();
    match python().await {
        Ok(python) => {
            programs.extend(OF_PYPI.map(|name| (name, command(&python, &[&script(&format!("{name}.py"))]))));
        }
        Err(problem) => problems.push(format!("the Python packages cannot be installed: {problem}")),
    }
    match modules().await {
        Ok(modules) => {
            programs.extend(OF_NPM.map(|name| {
                let mut node = command(Path::new("node"), &[&script(&format!("{name}.cjs"))]);
                node.env("NODE_PATH", &modules).env("NODE_NO_WARNINGS", "1");
                (name, node)
            }));
        }
        Err(problem) => problems.push(format!("the packages from npm cannot be installed: {problem}")),
    }
    if let Some(rust) = env::var_os(RUST) {
        programs.push(("rust", command(Path::new(&rust), &[])));
    }
    (programs, problems)
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

/// All clients at the same time: the leader is killed when all of them contend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: packages of others"]
async fn unmodified_clients_work_while_a_leader_dies() {
    let (programs, problems) = programs().await;
    for problem in problems {
        crate::skipped::skipped(&problem);
    }
    if programs.is_empty() {
        return;
    }
    let options =
        ClusterOptions { dynamodb: true, timeout: LONG, ..ClusterOptions::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let leads = leader(&cluster).await;
    let other = (1..=3).find(|node| *node != leads).expect("three nodes");
    // A follower's endpoint: its requests are forwarded, and it outlives the leader.
    let endpoint = cluster.node(other).dynamodb_endpoint().expect("it is on");
    let seconds = env::var(SECONDS).unwrap_or_else(|_| "3".to_owned());
    let mut clients: Vec<_> =
        programs.into_iter().map(|(name, program)| Program::start(name, program, &[&endpoint, &seconds])).collect();
    for client in &mut clients {
        client.until(Some("contending")).await;
    }
    cluster.node(leads).signal(Signal::KILL);
    for client in &mut clients {
        client.tell().await;
        client.close();
    }
    for client in &mut clients {
        client.until(None).await;
        println!("{}", client.end().await);
    }
    assert_ne!(leader(&cluster).await, leads, "the leader was to die");
    cluster.stop().await;
}

/// The same programs on moto, one after the other: what a dead holder costs without a lease. Figures, run by
/// `scripts/dynamodb-clients.sh`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "shows figures of moto; of the endpoint it proves nothing"]
async fn the_same_clients_on_moto() {
    let Ok(python) = python().await else { return };
    for (name, program) in programs().await.0 {
        let mut moto = Program::start("moto", command(&python, &[&script("moto_server.py")]), &[]);
        let endpoint = moto.line().await.expect("an endpoint");
        let seconds = env::var(SECONDS).unwrap_or_else(|_| "3".to_owned());
        let mut client = Program::start(name, program, &[&endpoint, &seconds, "plain"]);
        client.until(Some("contending")).await;
        client.tell().await;
        client.close();
        client.until(None).await;
        println!("{}", client.end().await);
        moto.close();
        moto.until(None).await;
        moto.end().await;
    }
}
