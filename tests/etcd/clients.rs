//! Lock clients of etcd as they are: of PyPI, npm and crates.io, and etcdctl. The programs are in `clients/`, one for each language; what
//! a client does is named in `src/etcd/README.md`.
//!
//! All clients run at the same time on one cluster, each with locks of its own: eight contenders exclude each other while the leader is
//! killed and all members are restarted; holders die, lose their lease and leave. Rust's client is one of them where
//! `scripts/etcd-clients.sh` has built it.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::{join, join_all};
use lockkeeper::local::LocalCluster;
use lockkeeper_etcd::proto::etcdserverpb::{
    LeaseRevokeRequest, RangeRequest,
    kv_client::KvClient,
    lease_client::LeaseClient,
    range_request::{SortOrder, SortTarget},
};
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use super::{LONG, cluster, steady_cluster};
use crate::turns;
use crate::unmodified::{
    debian, npm,
    packages::{self, command},
    program::Program,
};

/// For how long clients contend before the first fault, seconds.
const SECONDS: &str = "LOCKKEEPER_ETCD_SECONDS";
/// The program of `clients/rust`.
const RUST: &str = "LOCKKEEPER_ETCD_RUST";

/// One way to take a lock with a client.
struct Client {
    /// As its program knows it.
    kind: &'static str,
    program: PathBuf,
    script: Option<&'static str>,
    environment: Option<(&'static str, PathBuf)>,
    /// Each that waits has a key; otherwise it tries again and again.
    queues: bool,
    /// Its program has the role `offers`: it shows what else the client offers.
    offers_more: bool,
}

impl Client {
    /// Starts its program in a role.
    fn start(&self, endpoint: &str, role: &str, more: &[&str]) -> Program {
        let mut command = command(&self.program, &[]);
        command.args(self.script.map(script)).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let name = format!("{} {} {role}", self.program.display(), self.kind);
        Program::start(&name, command, &[&[self.kind, endpoint, role][..], more].concat())
    }
}

/// Where this program is.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/clients").join(name)
}

/// A Python with one of the lists of packages: two of them want other versions of protobuf.
async fn python(name: &str, wanted: &str) -> Option<PathBuf> {
    let python = packages::python(name, wanted).await;
    python
        .inspect_err(|problem| {
            crate::skipped::skipped(format_args!("{name}: clients from PyPI cannot be had: {problem}"))
        })
        .ok()
}

async fn python_of_etcd3() -> Option<PathBuf> {
    python("etcd-python", include_str!("clients/requirements.txt")).await
}

async fn python_of_aetcd() -> Option<PathBuf> {
    python("etcd-aetcd", include_str!("clients/requirements-aetcd.txt")).await
}

/// All clients that can be had here. Says why others cannot.
async fn clients() -> Vec<Client> {
    let mut clients = Vec::new();
    let of_python = |kind, program| Client {
        kind,
        program,
        script: Some("contenders.py"),
        environment: None,
        queues: false,
        offers_more: false,
    };
    if let Some(python) = python_of_etcd3().await {
        clients.extend(["etcd3", "etcd3gw", "tooz"].map(|kind| of_python(kind, python.clone())));
    }
    clients.extend(python_of_aetcd().await.map(|python| of_python("aetcd", python)));
    match debian::etcd().await {
        Ok(programs) => {
            let environment = Some(("ETCDCTL", programs.join("etcdctl")));
            clients.push(Client { environment, queues: true, ..of_python("etcdctl", "python3".into()) });
        }
        Err(problem) => crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    }
    let lock = include_str!("clients/package-lock.json");
    match npm::modules("etcd-npm", include_str!("clients/package.json"), lock).await {
        Ok(modules) => clients.extend([("lock", false), ("election", true)].map(|(kind, queues)| Client {
            kind,
            program: "node".into(),
            script: Some("contenders.js"),
            environment: Some(("NODE_PATH", modules.clone())),
            queues,
            offers_more: queues,
        })),
        Err(problem) => crate::skipped::skipped(format_args!("etcd's clients from npm cannot be had: {problem}")),
    }
    clients.extend(env::var_os(RUST).into_iter().flat_map(|program| {
        [("lock", false), ("election", true)].map(|(kind, offers_more)| Client {
            kind,
            program: PathBuf::from(&program),
            script: None,
            environment: None,
            queues: true,
            offers_more,
        })
    }));
    clients
}

/// The id of the leader, and of another node.
pub(crate) async fn leader_and_other(cluster: &LocalCluster) -> (u64, u64) {
    let statuses = cluster.statuses().await;
    let leader = statuses.values().map(|status| status.leader_id).find(|id| *id != 0).expect("a leader");
    (leader, cluster.nodes().map(|node| node.id()).find(|id| *id != leader).expect("three nodes"))
}

/// A program of contenders, and what it has seen.
struct Contenders {
    program: Program,
    seen: serde_json::Value,
}

impl Contenders {
    fn start(client: &Client, endpoint: &str, more: &[&str]) -> Self {
        Self { program: client.start(endpoint, "contend", more), seen: serde_json::Value::Null }
    }

    /// Waits for the end of its round: see `clients/contenders.py`.
    async fn round(&mut self) {
        let Some(line) = self.program.line().await else {
            self.program.kill();
            panic!("no progress: {}", self.program.end().await);
        };
        self.seen = serde_json::from_str(&line).expect("JSON");
    }

    fn count(&self, what: &str) -> u64 {
        self.seen[what].as_u64().unwrap_or_else(|| panic!("{what} is counted: {}", self.seen))
    }

    async fn end(mut self) {
        self.program.close();
        self.program.end().await;
    }
}

/// One more round of all of them: the lock of each client goes from one to the next again.
async fn round(all: &mut [Contenders]) {
    for one in &mut *all {
        one.program.tell().await;
    }
    join_all(all.iter_mut().map(Contenders::round)).await;
    for one in all {
        assert_eq!(one.count("overlaps"), 0, "{}: {}", one.program.name(), one.seen);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: packages of others"]
async fn contenders_exclude_each_other_while_members_die_and_restart() {
    let clients = clients().await;
    let _turn = turns::whole_machine().await;
    let mut cluster = cluster().await;
    let (leader, other) = leader_and_other(&cluster).await;
    // Not the leader, whose death is then nothing but a change of leader.
    let endpoint = cluster.node(other).etcd_endpoint().expect("it serves the API");
    let mut all: Vec<_> = clients.iter().map(|client| Contenders::start(client, &endpoint, &["jobs"])).collect();
    let seconds = env::var(SECONDS).map_or(3, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    join_all(all.iter_mut().map(Contenders::round)).await;
    while Instant::now() < end {
        round(&mut all).await;
    }
    cluster.node_mut(leader).kill().await;
    round(&mut all).await;
    cluster.node_mut(leader).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("all serve");
    for node in 1..=3 {
        cluster.node_mut(node).stop().await;
        cluster.node_mut(node).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("all serve");
        round(&mut all).await;
    }
    for one in all {
        eprintln!("{}: {}", one.program.name(), one.seen);
        one.end().await;
    }
    cluster.stop().await;
}

/// The keys whose name contains this one, oldest first, each with its lease.
async fn keys(channel: &Channel, name: &str) -> Vec<(String, i64)> {
    let request = RangeRequest {
        key: vec![0],
        range_end: vec![0],
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    };
    let kvs = KvClient::new(channel.clone()).range(request).await.expect("an answer").into_inner().kvs;
    let named = kvs.into_iter().map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.lease));
    named.filter(|(key, _)| key.contains(name)).collect()
}

/// Waits until there are as many keys of this name.
pub(crate) async fn until_keys(channel: &Channel, name: &str, count: usize) -> Vec<(String, i64)> {
    let deadline = Instant::now() + LONG;
    loop {
        let keys = keys(channel, name).await;
        if keys.len() == count {
            return keys;
        }
        assert!(Instant::now() < deadline, "{count} keys: {keys:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A waiter gives up, a holder dies, and one loses its lease: each time the next one has the lock, and no key is left.
async fn hand_over(client: &Client, number: usize, endpoints: &[String], channel: &Channel) {
    let name = format!("handed-over-{number}");
    // Each that waits has a key; one that tries has none.
    let count = |waiting: usize| 1 + if client.queues { waiting } else { 0 };
    let start = async |member: usize, waiting: usize| {
        let mut one = client.start(&endpoints[member], "hold", &[&name]);
        one.says("waiting").await;
        until_keys(channel, &name, count(waiting)).await;
        one
    };
    let mut first = start(0, 0).await;
    first.says("held").await;
    let mut second = start(1, 1).await;
    let mut third = start(2, 2).await;

    second.tell().await;
    second.says("cancelled").await;
    second.end().await;
    until_keys(channel, &name, count(1)).await;

    first.kill();
    third.says("held").await;
    let mut fourth = start(0, 1).await;

    let (_, lease) = until_keys(channel, &name, count(1)).await.remove(0);
    LeaseClient::new(channel.clone()).lease_revoke(LeaseRevokeRequest { id: lease }).await.expect("it is revoked");
    third.says("lost").await;
    third.end().await;
    fourth.says("held").await;
    fourth.tell().await;
    fourth.says("released").await;
    fourth.end().await;
    until_keys(channel, &name, 0).await;
}

/// Contenders that each take another lock are seen to overlap: those that exclude each other would be seen, too, if they did not.
async fn overlap(client: &Client, number: usize, endpoint: &str) {
    let mut apart = Contenders::start(client, endpoint, &[&format!("apart-{number}"), "apart"]);
    apart.round().await;
    let deadline = Instant::now() + LONG;
    while apart.count("overlaps") == 0 {
        assert!(Instant::now() < deadline, "no overlap is seen: {}", apart.seen);
        apart.program.tell().await;
        apart.round().await;
    }
    apart.end().await;
}

/// What Python's clients offer beside locks: aetcd's leases and watches, and APScheduler's jobs, which are in etcd.
async fn python_offers(endpoint: &str) {
    for (python, name) in
        [(python_of_aetcd().await, "aetcd_offers.py"), (python_of_etcd3().await, "apscheduler_jobs.py")]
    {
        let Some(python) = python else { continue };
        let program = command(&python, &[&script(name).display().to_string()]);
        Program::start(name, program, &[endpoint, name]).end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: packages of others"]
async fn holders_die_and_lose_their_lease_and_waiters_give_up() {
    let clients = clients().await;
    let _turn = turns::whole_machine().await;
    let mut cluster = steady_cluster().await;
    let endpoints = cluster.etcd_endpoints();
    let channel = Channel::from_shared(format!("http://{}", endpoints[0])).expect("a URL");
    let channel = channel.connect().await.expect("it listens");
    let all = clients.iter().zip(0..).map(async |(client, number)| {
        hand_over(client, number, &endpoints, &channel).await;
        overlap(client, number, &endpoints[number % 3]).await;
        if client.offers_more {
            client.start(&endpoints[number % 3], "offers", &[&format!("offers-{number}")]).end().await;
        }
    });
    join(join_all(all), python_offers(&endpoints[1])).await;
    cluster.stop().await;
}
