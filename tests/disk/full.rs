//! Disks without a free byte: what another program can do to a node, since the watch is off here.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    client::{Client, Session, SessionOptions, types::Token},
    local::LocalCluster,
    raft::log::EXIT_FAILED,
};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    mounts::{self, Disks},
    short::cluster_on,
};
use crate::children;
use crate::support::{LONG, leader, lockkeeper, text, until};

const DATA: [u8; 16 << 10] = [5; 16 << 10];
/// Tasks that acquire.
const WORKERS: usize = 16;

/// Checks in flight.
const CHECKS: usize = 64;

/// Acquires locks with data until it is stopped, and records each acknowledged grant.
struct Load {
    going: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<(String, Token)>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(session: &Session, round: &str) -> Self {
        let going = Arc::new(AtomicBool::new(true));
        let acknowledged = Arc::<Mutex<Vec<_>>>::default();
        let worker = |worker: usize| {
            let session = session.clone();
            let going = Arc::clone(&going);
            let acknowledged = Arc::clone(&acknowledged);
            let prefix = format!("{round}/{worker}");
            tokio::spawn(async move {
                for number in 0.. {
                    if !going.load(Ordering::SeqCst) {
                        return;
                    }
                    let name = format!("{prefix}/{number}");
                    // An error leaves the outcome open: only what was acknowledged is checked.
                    if let Ok(guard) = session.acquire(&name).data(&DATA).no_wait().await {
                        acknowledged.lock().expect("no panic").push((name, guard.token()));
                        // It stays held.
                        std::mem::forget(guard);
                    }
                }
            })
        };
        let tasks = (0..WORKERS).map(worker).collect();
        Self { going, acknowledged, tasks }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().expect("no panic").len()
    }

    /// Stops it, and returns the acknowledged grants.
    async fn stop(self) -> Vec<(String, Token)> {
        self.going.store(false, Ordering::SeqCst);
        for task in self.tasks {
            timeout(LONG, task).await.expect("a call has a deadline").expect("no panic");
        }
        std::mem::take(&mut *self.acknowledged.lock().expect("no panic"))
    }
}

/// A client whose calls give up soon.
fn client(cluster: &LocalCluster) -> Client {
    let builder = Client::builder(&cluster.endpoints().join(",")).call_limit(Duration::from_secs(3));
    builder.build().expect("the endpoints are valid")
}

/// Waits for the end of this many nodes, which must be among `full`, and judges how they end.
async fn until_ended(cluster: &mut LocalCluster, full: &BTreeSet<u64>, count: usize) -> BTreeSet<u64> {
    let mut ended = BTreeSet::new();
    while ended.len() < count {
        let (node, status) = timeout(LONG, cluster.next_death()).await.expect("a full disk ends its node");
        let tail = cluster.node(node).log_tail();
        assert!(full.contains(&node), "node {node} has space, and ended: {tail}");
        judge_end(status.code(), &tail, node);
        ended.insert(node);
    }
    ended
}

fn judge_end(code: Option<i32>, tail: &str, node: u64) {
    assert_eq!(code, Some(EXIT_FAILED.into()), "{tail}");
    let directory = format!("node{node}/data");
    assert!(tail.contains("the disk is full") && tail.contains(&directory), "its last lines name no disk: {tail}");
}

async fn must_be_held(client: &Client, grants: &[(String, Token)]) {
    let held = async |name: &str, token: Token| {
        let answer = until("an answer", async || client.check(name, token).await.ok()).await;
        assert!(answer.held, "{name} was acknowledged with token {}, and is lost", token.0);
    };
    for together in grants.chunks(CHECKS) {
        futures::future::join_all(together.iter().map(|(name, token)| held(name, *token))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disks_of_one_two_and_all_nodes_lose_nothing_that_was_acknowledged() {
    if !mounts::is_inside(&children::full_name(
        module_path!(),
        "full_disks_of_one_two_and_all_nodes_lose_nothing_that_was_acknowledged",
    )) {
        return;
    }
    let disks = Disks::mount(3, 160);
    let mut cluster = cluster_on(&disks, 0).await;
    let client = client(&cluster);
    let options = SessionOptions { ttl: 20 * LONG, label: "test".to_owned() };
    let holder = until("a session", async || client.open(options.clone()).await.ok()).await;
    let mut grants = Vec::new();
    for count in 1..=3 {
        let leads = leader(&cluster).await;
        // The leader last, so that one and two full disks leave a node with space.
        let mut order: Vec<u64> = (1..=3).filter(|node| *node != leads).collect();
        order.push(leads);
        let full: BTreeSet<u64> = order.into_iter().take(count).collect();
        full.iter().for_each(|node| disks.fill(*node));
        let load = Load::start(&holder, &format!("full{count}"));
        // With two of three gone nothing is committed any more, so the third one writes nothing that could fail.
        let ended = until_ended(&mut cluster, &full, count.min(2)).await;
        if count == 1 {
            let before = load.count();
            until("the others serve", async || (load.count() > before + 50).then_some(())).await;
        }
        let acknowledged = load.stop().await;
        println!("{count} full: {} grants acknowledged; ended: {ended:?}", acknowledged.len());
        grants.extend(acknowledged);

        let first = *ended.first().expect("at least one");
        must_not_start(&mut cluster, &disks, first).await;
        // The third of three may meet its full disk later, when it moves its journal into sled; or it is stopped.
        for node in full.difference(&ended) {
            let status = cluster.node_mut(*node).stop().await.expect("it was started");
            if status.code() != Some(0) {
                judge_end(status.code(), &cluster.node(*node).log_tail(), *node);
            }
        }
        full.iter().for_each(|node| disks.free(*node));
        for node in &full {
            cluster.node_mut(*node).spawn().expect("it starts");
        }
        cluster.ready(LONG).await.unwrap_or_else(|error| panic!("with {count} that were full: {error}"));
        until("all nodes catch up", async || {
            let statuses = cluster.statuses().await;
            let tip = statuses.values().map(|status| status.last_log_index).max();
            let caught_up = statuses.values().filter(|status| Some(status.applied_index) == tip).count();
            (caught_up == 3).then_some(())
        })
        .await;
        must_be_held(&client, &grants).await;
    }
    assert!(grants.len() > 100, "too little was tried: {}", grants.len());
}

/// Starting again while the disk is still full ends with the cause and the remedy, and harms nothing. Whichever file is the first that does
/// not fit: with less and less room, it is another one.
async fn must_not_start(cluster: &mut LocalCluster, disks: &Disks, node: u64) {
    for kib in [0, 4, 8, 64, 256, 1024] {
        disks.free(node);
        disks.fill_but_kib(node, kib);
        let config = cluster.node(node).config_file().to_owned();
        let child = lockkeeper(&["serve", "--config"]).arg(config).spawn().expect("the program runs");
        let process = child.id().expect("it runs").to_string();
        let mut run = std::pin::pin!(child.wait_with_output());
        // With some room it may start, and go on until it needs more.
        let Ok(ended) = timeout(Duration::from_secs(5), &mut run).await else {
            std::process::Command::new("kill").args(["-9", &process]).status().expect("it runs");
            run.await.expect("it was killed");
            continue;
        };
        let (code, _, said) = text(&ended.expect("its output"));
        assert_eq!(code, i32::from(EXIT_FAILED), "{kib} KiB: {said}");
        assert!(said.contains("the disk is full") && said.contains("free some space"), "{kib} KiB: {said}");
    }
    disks.free(node);
    disks.fill(node);
}
