//! Locks of clients from PyPI and npm, as they are: eight contenders exclude each other while the leader of the cluster is killed, and a
//! holder loses the lock with its lease, revoked or not kept alive. The programs are in `clients/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use lockkeeper::local::{LocalCluster, Signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::{
    cluster,
    packages::{PATIENCE, command, directory, is_installed, run, set_installed},
};

/// A Python that has the packages.
async fn python() -> Result<PathBuf, String> {
    let wanted = include_str!("clients/requirements.txt");
    let (directory, _lock) = directory("etcd-python").await.map_err(|error| error.to_string())?;
    let python = directory.join("bin/python");
    if !is_installed(&directory, wanted) {
        run(command(Path::new("python3"), &["-m", "venv", "--clear", &directory.display().to_string()])).await?;
        let requirements = directory.join("requirements.txt");
        fs::write(&requirements, wanted).map_err(|error| error.to_string())?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(command(&python, &[&pip[..], &[&requirements.display().to_string()]].concat())).await?;
        set_installed(&directory, wanted)?;
    }
    Ok(python)
}

/// The directory that `NODE_PATH` is to name.
async fn modules() -> Result<PathBuf, String> {
    let (package, lock) = (include_str!("clients/package.json"), include_str!("clients/package-lock.json"));
    let (directory, _lock) = directory("etcd-npm").await.map_err(|error| error.to_string())?;
    run(command(Path::new("node"), &["--version"])).await?;
    if !is_installed(&directory, lock) {
        for (name, text) in [("package.json", package), ("package-lock.json", lock)] {
            fs::write(directory.join(name), text).map_err(|error| error.to_string())?;
        }
        let mut npm = command(Path::new("npm"), &["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        npm.current_dir(&directory);
        run(npm).await?;
        set_installed(&directory, lock)?;
    }
    Ok(directory.join("node_modules"))
}

/// Where this program is.
fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/clients").join(name).display().to_string()
}

/// The leader, and another node's endpoint.
async fn leader_and_other(cluster: &LocalCluster) -> (u64, String) {
    let statuses = cluster.statuses().await;
    let leader = statuses.values().map(|status| status.leader_id).find(|id| *id != 0).expect("a leader");
    let other = cluster.nodes().find(|node| node.id() != leader).expect("three nodes");
    (leader, other.etcd_endpoint().expect("it serves the API"))
}

/// Runs contenders at a node that is not the leader, and kills the leader while they contend.
async fn contend(contenders: impl FnOnce(&str) -> Command) {
    let mut cluster = cluster().await;
    let (leader, endpoint) = leader_and_other(&cluster).await;
    let mut command = contenders(&endpoint);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut next = async || timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a text");
    assert_eq!(next().await.as_deref(), Some("contending"));
    cluster.node(leader).signal(Signal::KILL);
    input.write_all(b"\n").await.expect("it reads");
    let seen: serde_json::Value = serde_json::from_str(&next().await.expect("what it saw")).expect("JSON");
    let status = timeout(PATIENCE, child.wait()).await.expect("in time").expect("it ends");
    assert!(status.success(), "{status}");
    eprintln!("{command:?}: {seen}");
    assert_eq!(seen["overlaps"], 0, "{seen}");
    assert!(seen["before"].as_u64() >= Some(8) && seen["after"].as_u64() >= Some(8), "{seen}");
    cluster.stop().await;
}

async fn python_contends(client: &str) {
    match python().await {
        Ok(python) => {
            contend(|endpoint| command(&python, &[&program("contenders.py"), client, endpoint])).await;
        }
        Err(problem) => eprintln!("!!! SKIPPED: etcd's clients from PyPI cannot be had: {problem}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_with_pythons_etcd3_exclude_each_other() {
    python_contends("etcd3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_with_etcd3gw_exclude_each_other() {
    python_contends("etcd3gw").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_with_tooz_exclude_each_other() {
    python_contends("tooz").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_with_npms_etcd3_exclude_each_other() {
    match modules().await {
        Ok(modules) => {
            contend(|endpoint| {
                let mut node = command(Path::new("node"), &[&program("contenders.js"), endpoint]);
                node.env("NODE_PATH", modules);
                node
            })
            .await;
        }
        Err(problem) => eprintln!("!!! SKIPPED: etcd's clients from npm cannot be had: {problem}"),
    }
}
