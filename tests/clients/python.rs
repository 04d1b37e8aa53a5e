//! The Python client, as its package is installed.
//!
//! `scripts/python-client.sh` runs its own tests, and lints and types. Under faults it is judged here, nightly.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lockkeeper::chaos::history::Function;
use tempfile::TempDir;

use crate::{
    skipped::skipped,
    support::{client, cluster_of},
    turns,
    unmodified::{
        judged,
        packages::{self, command, run},
        program::Program,
    },
};

/// The client's directory.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clients/python")
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// A Python with the packages that the client needs, and a new directory with the client. The packages are kept, the client is built anew.
async fn installed() -> Result<(PathBuf, TempDir), String> {
    let wanted = fs::read_to_string(sources().join("requirements.txt")).expect("the client's requirements");
    let python = packages::python("client-python", &wanted).await?;
    let place = tempfile::tempdir().expect("a directory");
    let options =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"];
    let destination = ["--target".to_owned(), text(place.path()), text(&sources())];
    let destination: Vec<&str> = destination.iter().map(String::as_str).collect();
    run(command(&python, &[&options[..], &destination].concat())).await?;
    Ok((python, place))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_acquires_hears_of_a_loss_and_releases() {
    let (python, place) = match installed().await {
        Ok(installed) => installed,
        Err(why) => return skipped(format_args!("the Python client cannot be installed: {why}")),
    };
    let cluster = cluster_of(1).await;
    let watcher = client(&cluster);
    let mut smoke = command(&python, &[]);
    smoke.env("PYTHONPATH", place.path()).env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
    let script = text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/smoke.py"));
    let mut smoke = Program::start("smoke.py", smoke, &[&script]);

    let said = smoke.line().await.expect("it says what it holds");
    let lock = watcher.get("jobs/nightly").await.expect("an answer").lock;
    let holder = lock.holders.first().expect("it is held");
    assert_eq!(said, format!("held by token {}", holder.token.0));
    assert_eq!(lock.data.as_deref(), Some(&b"from Python"[..]));

    watcher.force_release("jobs/nightly", "maintenance at 9").await.expect("revoked");
    smoke.says("lost: an operator revoked the lock: maintenance at 9").await;
    smoke.says("held again by a higher token").await;
    smoke.end().await;
    let left = watcher.get("jobs/nightly").await.expect("an answer").lock;
    assert_eq!((left.holder_count, left.queue_length), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a run of chaos"]
async fn the_history_of_the_package_under_faults_is_judged() {
    let _turn = turns::whole_machine().await;
    let (python, place) = match installed().await {
        Ok(installed) => installed,
        Err(why) => return skipped(format_args!("the Python client cannot be installed: {why}")),
    };
    let faults = std::env::var("LOCKKEEPER_CLIENTS_FAULTS").unwrap_or_else(|_| "all".to_owned());
    let duration = std::env::var("LOCKKEEPER_CLIENTS_CHAOS").unwrap_or_else(|_| "60s".to_owned());
    let directory = text(place.path());
    let script = text(&sources().join("chaos.py"));
    let program = format!("PYTHONPATH='{directory}' exec '{}' '{script}'", python.display());
    let done = [("python-threads", Function::Acquire), ("python-asyncio", Function::Acquire)];
    judged::run(&duration, &faults, &[program], &done).await;
}
