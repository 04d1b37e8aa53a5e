//! A cluster, a bystander, and the checks before, during and after an abuse.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::{
    client::{Client, Guard, Session, SessionOptions},
    local::{ClusterOptions, LocalCluster, LocalNode},
    proto::v1::Role,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::{
    sync::MutexGuard,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{LONG, client, cluster_with, leader, long_session, program, until};
use crate::turns;

/// Memory that a node may keep after an abuse, beyond its size when it was idle, in MiB.
pub(crate) const MEMORY_SLACK_MIB: u64 = 64;
/// Pairs of the bystander before the abuse: the baseline.
const PAIRS_BEFORE: usize = 50;
/// Fewest pairs during an abuse; with fewer, the test shows nothing.
const PAIRS_DURING: usize = 3;
/// TTL of the session that holds the bystander's lock; the client renews it in the background.
const TTL: Duration = Duration::from_secs(30);

/// Three times the default: three nodes without optimizations share few processors.
const ELECTION_TIMEOUT_MS: (u64, u64) = (3_000, 6_000);

pub(crate) struct Stage {
    pub(crate) cluster: LocalCluster,
    pub(crate) client: Client,
    bystander: Session,
    held: Guard,
    pairs: Pairs,
    /// Durations of pairs before the abuse, in ascending order.
    idle: Vec<Duration>,
    before: Vec<u64>,
    _wrapper: Option<TempDir>,
    _machine: MutexGuard<'static, ()>,
}

/// Limits of descriptors that the nodes start with, as `ulimit` sets them.
#[derive(Clone, Copy)]
pub(crate) enum Descriptors {
    AsTheyAre,
    /// The soft limit; the hard limit stays.
    Soft(u32),
    /// The soft and the hard limit.
    Hard(u32),
}

impl Stage {
    /// Three nodes that serve a bystander.
    pub(crate) async fn open(descriptors: Descriptors) -> Self {
        Self::open_with(descriptors, |_| {}).await
    }

    /// The same with other options.
    pub(crate) async fn open_with(descriptors: Descriptors, change: impl FnOnce(&mut ClusterOptions)) -> Self {
        let machine = turns::whole_machine().await;
        raise_own_limit();
        let (wrapper, program) = match descriptors {
            Descriptors::AsTheyAre => (None, under_test()),
            Descriptors::Soft(limit) => wrapped(&format!("ulimit -S -n {limit}")),
            Descriptors::Hard(limit) => wrapped(&format!("ulimit -n {limit}")),
        };
        let cluster = cluster_with(|options: &mut ClusterOptions| {
            options.program = program;
            // The test forbids elections that a client causes. A longer timeout avoids those that a busy machine causes.
            if std::env::var_os("LOCKKEEPER_ABUSE_USUAL_TIMING").is_none() {
                (options.raft.election_timeout_ms_min, options.raft.election_timeout_ms_max) = ELECTION_TIMEOUT_MS;
            }
            change(options);
        })
        .await;
        let client = client(&cluster);
        let options = SessionOptions { ttl: TTL, label: "bystander".to_owned() };
        let bystander = client.open(options).await.expect("a session");
        let held = bystander.acquire("bystander's").await.expect("free");
        let pairs = Pairs::start(&client).await;
        pairs.reach(PAIRS_BEFORE).await;
        let (idle, before) = (pairs.take(), cluster.nodes().map(memory_mib).collect());
        Self { cluster, client, bystander, held, pairs, idle, before, _wrapper: wrapper, _machine: machine }
    }

    /// Takes the memory of the nodes now as the baseline: the table already holds the data of the case.
    pub(crate) fn remember_memory(&mut self) {
        self.before = self.cluster.nodes().map(memory_mib).collect();
    }

    /// The same for a node that was just started: it may use no more memory than the largest of the others does now.
    pub(crate) fn expect_memory_as_large_as_others(&mut self) {
        let largest = self.cluster.nodes().map(memory_mib).max().unwrap_or_default();
        self.before = self.cluster.nodes().map(|_| largest).collect();
    }

    /// The case leaves so much in the table of each node, by its limits: this may stay.
    pub(crate) fn allow_mib(&mut self, mib: u64) {
        self.before.iter_mut().for_each(|before| *before += mib);
    }

    /// The leader's address for clients.
    pub(crate) async fn leader(&self) -> SocketAddr {
        address(&self.cluster.node(leader(&self.cluster).await).config().client_listen)
    }

    /// Runs the abuse, then checks the bystander and the nodes. Panics if one of them was harmed, or if the term changed.
    pub(crate) async fn survives<T>(&mut self, what: &str, abuse: impl AsyncFnOnce(&Self) -> T) -> T {
        let term = self.term().await;
        let outcome = self.suffers(what, abuse).await;
        assert_eq!(self.term().await, term, "{what}: an election took place");
        outcome
    }

    /// As [`Self::survives`], for an abuse that stops a leader on purpose: the term may change.
    pub(crate) async fn suffers<T>(&mut self, what: &str, abuse: impl AsyncFnOnce(&Self) -> T) -> T {
        self.pairs.take();
        let outcome = abuse(self).await;
        self.pairs.reach(PAIRS_DURING).await;
        let during = self.pairs.take();
        let at_its_end: Vec<_> = self.cluster.nodes().map(memory_mib).collect();
        println!(
            "{what}: pairs {} idle, p99 {:?}; {} during, p99 {:?} ({:.1} times), worst {:?}; MiB {:?} before, {at_its_end:?} at its end",
            self.idle.len(),
            p99(&self.idle),
            during.len(),
            p99(&during),
            p99(&during).as_secs_f64() / p99(&self.idle).as_secs_f64(),
            during.last().copied().unwrap_or_default(),
            self.before,
        );
        let statuses = self.cluster.statuses().await;
        let delays: Vec<_> = statuses.iter().map(|(node, status)| (node, status.turn_delay_us_max)).collect();
        println!("{what}: largest delay of a turn on Raft's runtime within a minute, by node, in us: {delays:?}");
        self.nobody_was_hurt(what).await;
        outcome
    }

    /// The leader's term.
    async fn term(&self) -> u64 {
        until("a leader", async || {
            let statuses = self.cluster.statuses().await;
            statuses.values().find(|status| status.role() == Role::Leader && status.serving).map(|status| status.term)
        })
        .await
    }

    async fn nobody_was_hurt(&self, what: &str) {
        for (node, before) in self.cluster.nodes().zip(&self.before) {
            if node.pid().is_none() {
                continue;
            }
            let open = fs::read_dir(format!("/proc/{}/fd", pid(node))).expect("it runs").count();
            let limit = descriptors_max(node);
            assert!(open < limit, "{what}: node {} has {open} of {limit} descriptors", node.id());
            let allowed = before + MEMORY_SLACK_MIB;
            let low = until("memory to be released", async || Some(memory_mib(node)).filter(|now| *now <= allowed));
            let low = low.await;
            println!("{what}: node {}: {low} MiB afterwards, {open} descriptors of {limit}", node.id());
        }
        assert_eq!(self.bystander.loss(), None, "{what}");
        let token = self.held.token();
        let check = self.client.check("bystander's", token).await.expect("it serves");
        assert!(check.held, "{what}: the bystander's lock is gone");
    }
}

/// The program of this build, or of another build for comparison.
fn under_test() -> PathBuf {
    std::env::var_os("LOCKKEEPER_ABUSE_PROGRAM").map_or_else(program, PathBuf::from)
}

/// A program that starts the program under test with other limits.
fn wrapped(limits: &str) -> (Option<TempDir>, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let script = folder.path().join("lockkeeper");
    fs::write(&script, format!("#!/bin/sh\n{limits}\nexec '{}' \"$@\"\n", under_test().display())).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("ours");
    (Some(folder), script)
}

/// The abuser is this process: each connection that it opens needs a descriptor here too.
fn raise_own_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("a process may raise its soft limit");
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn pid(node: &LocalNode) -> u32 {
    node.pid().expect("it runs")
}

/// Resident memory of a node's process, in MiB; 0 if it does not run.
pub(crate) fn memory_mib(node: &LocalNode) -> u64 {
    let Some(pid) = node.pid() else { return 0 };
    // The kernel tells no memory of a process that has exited.
    let kib = field(Path::new(&format!("/proc/{pid}/status")), "VmRSS:");
    let kib = kib.unwrap_or_else(|| panic!("node {} exited: {}", node.id(), node.log_tail()));
    kib.parse::<u64>().expect("a number") / 1024
}

/// From now on [`peak_mib`] tells the most that a node's process has in memory.
pub(crate) fn watch_peak(node: &LocalNode) {
    fs::write(format!("/proc/{}/clear_refs", pid(node)), "5").expect("the process is ours");
}

/// The most memory that a node's process has had since [`watch_peak`], in MiB.
pub(crate) fn peak_mib(node: &LocalNode) -> u64 {
    let kib = field(Path::new(&format!("/proc/{}/status", pid(node))), "VmHWM:");
    kib.expect("it runs").parse::<u64>().expect("a number") / 1024
}

fn descriptors_max(node: &LocalNode) -> usize {
    let limit = field(Path::new(&format!("/proc/{}/limits", pid(node))), "Max open files");
    limit.expect("the kernel writes it").parse().expect("a number")
}

/// The first word after a name.
fn field(file: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// Acquires and releases locks in a loop. Each pair is answered within [`LONG`].
struct Pairs {
    took: Arc<Mutex<Vec<Duration>>>,
    _task: AbortOnDropHandle<()>,
}

impl Pairs {
    async fn start(client: &Client) -> Self {
        let took = Arc::<Mutex<Vec<Duration>>>::default();
        let (session, noted) = (long_session(client).await, Arc::clone(&took));
        let task = tokio::spawn(async move {
            for number in 0_u64.. {
                let began = Instant::now();
                let pair = async {
                    let held = session.acquire(&format!("pairs/{}", number % 16)).await.expect("a grant");
                    held.release().await.expect("it was held");
                };
                timeout(LONG, pair).await.expect("a pair is answered within its deadline");
                noted.lock().expect("no thread panics while it holds this").push(began.elapsed());
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { took, _task: AbortOnDropHandle::new(task) }
    }

    /// Waits until this many pairs have ended since [`Self::take`] was last called.
    async fn reach(&self, pairs: usize) {
        until("pairs", async || (self.took.lock().expect("no pair failed").len() >= pairs).then_some(())).await;
    }

    /// Durations of the pairs since the last call, in ascending order.
    fn take(&self) -> Vec<Duration> {
        let mut took = std::mem::take(&mut *self.took.lock().expect("no pair failed"));
        took.sort_unstable();
        took
    }
}

fn p99(sorted: &[Duration]) -> Duration {
    let Some(last) = sorted.len().checked_sub(1) else { return Duration::ZERO };
    sorted[last * 99 / 100]
}
