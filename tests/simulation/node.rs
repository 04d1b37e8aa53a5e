//! A node of a simulated cluster: the real server on a simulated disk, clock and network.

mod stopped;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    config::{
        AuditConfig, Config, ConfiguredMember, DynamodbConfig, EtcdConfig, RaftConfig, RedisConfig, ZookeeperConfig,
    },
    environment::{Blocking, Clock, Environment, Random, Tasks},
    machine::{Limits, Revision},
    raft::{
        backup::Founding,
        disk::Space,
        identity::{NodeIdentity, Stage},
        snapshot::SnapshotStore,
    },
    server::node::{FurtherParts, NodeLimits, Parts, run},
    table::{Applied, Inspect},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

use crate::{
    greed::RefusalJudge,
    keyspace::truth::Truth,
    log::{Disk, Log},
    network::{self, CLIENT_PORT, Gates, PEER_PORT},
    process::{Load, Longest, Machinery, Process, Sockets, sockets},
    protocols::ContendedProtocol,
    rights,
    scarcity::{self, Scarcity},
    system, trace,
    trail::{self, MadeLines, TrailPlace},
};

pub(crate) use stopped::{LeftDirectory, RECOVERED};

const CLUSTER_ID: &str = "simulated";

/// State that outlives a node's process.
#[derive(Debug)]
pub(crate) struct Site {
    config: Config,
    data: Mutex<Data>,
    /// The original data, while empty data replace them.
    own: Mutex<Option<Data>>,
    environment: Environment,
    pub(crate) clock: Arc<NodeClock>,
    ledger: Arc<Ledger>,
    gates: Gates,
    scarcity: Scarcity,
    pace: Pace,
    load: Arc<Load>,
    /// The sockets of a process that is to be started.
    sockets: Mutex<Option<Sockets>>,
    seed: u64,
    directory: PathBuf,
    /// The size at which an audit file is followed by another one, if it writes an audit trail.
    audit_file_bytes: Option<u64>,
    /// Decides what its audit files lose in a crash.
    power: Mutex<StdRng>,
    may_end: AtomicBool,
    has_ended: AtomicBool,
}

/// How fast a node's machine is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Milliseconds of its clock for each one of the network.
    pub(crate) rate: f64,
    /// What one unit of work takes, nanoseconds.
    pub(crate) unit_ns: u64,
}

/// How a node comes into its cluster.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// It founds it, with the nodes from 1 to `nodes`.
    Founder { nodes: u64 },
    /// It joins one that is there.
    Joins(JoinedCluster),
}

/// A cluster that a new node joins.
#[derive(Clone, Debug)]
pub(crate) struct JoinedCluster {
    pub(crate) id: String,
    /// How often it was made anew.
    pub(crate) generation: usize,
    /// The addresses at which the node asks to be added; without any, it waits until an operator adds it.
    pub(crate) through: Vec<String>,
}

impl JoinedCluster {
    /// The first cluster of a run.
    pub(crate) fn first(through: Vec<String>) -> Self {
        Self { id: CLUSTER_ID.to_owned(), generation: 0, through }
    }
}

/// Contents of a node's data directory.
#[derive(Clone, Debug)]
struct Data {
    disk: Arc<Disk>,
    /// In memory, with the guarantee of a disk: updates are atomic.
    identity: Arc<NodeIdentity>,
    /// How often the cluster that it belongs to was made anew.
    generation: usize,
    /// The directory of the snapshots. They are real files, unlike the rest of the disk: a snapshot is synced before it is announced,
    /// so a crash between two steps of the simulation cannot undo it.
    directory: PathBuf,
}

impl Site {
    /// A node before its first start.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part of the simulated machine, and none belongs to another"
    )]
    pub(crate) fn new(
        node: u64,
        origin: Origin,
        raft: RaftConfig,
        disk: Disk,
        directory: PathBuf,
        ledger: Arc<Ledger>,
        gates: Gates,
        scarcity: Scarcity,
        pace: Pace,
        seed: u64,
    ) -> Self {
        let member = |node_id| ConfiguredMember {
            node_id,
            client_address: network::client_address(node_id),
            peer_address: network::peer_address(node_id),
        };
        let (bootstrap, members, cluster) = match origin {
            Origin::Founder { nodes } => (true, (1..=nodes).map(member).collect(), JoinedCluster::first(Vec::new())),
            Origin::Joins(cluster) => (false, vec![member(node)], cluster),
        };
        let JoinedCluster { id: cluster_id, generation, through: join } = cluster;
        let advertised = |protocol: ContendedProtocol| format!("{}:{}", network::node_host(node), protocol.port());
        let config = Config {
            cluster_id: cluster_id.clone(),
            node_id: node,
            bootstrap,
            raft,
            members,
            join,
            dynamodb: DynamodbConfig {
                secrets: rights::secrets(directory.parent().expect("it is in the directory of the run")),
                ..DynamodbConfig::default()
            },
            etcd: EtcdConfig { advertise: advertised(ContendedProtocol::Etcd), ..EtcdConfig::default() },
            redis: RedisConfig { advertise: advertised(ContendedProtocol::Redis), ..RedisConfig::default() },
            zookeeper: ZookeeperConfig { session_timeout_ms_min: 1_000, ..ZookeeperConfig::default() },
            auth: rights::config(directory.parent().expect("it is in the directory of the run")),
            ..Config::default()
        };
        let mut random = StdRng::seed_from_u64(seed);
        let cluster_id = cluster_id.parse().expect("it is one");
        let identity = Arc::new(NodeIdentity::in_memory(&cluster_id, node, &mut random));
        let clock = Arc::new(NodeClock::default());
        let environment = Environment {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            random: Arc::new(Chance(Mutex::new(random))),
            blocking: Blocking::Here,
            clients: Tasks::Here,
            adapters: Tasks::Here,
            ..Environment::system()
        };
        let snapshots = directory.join("snapshots");
        let data = Mutex::new(Data { disk: Arc::new(disk), identity, generation, directory: snapshots });
        Self {
            config,
            data,
            own: Mutex::default(),
            environment,
            clock,
            ledger,
            gates,
            scarcity,
            pace,
            load: Arc::default(),
            sockets: Mutex::default(),
            seed,
            directory,
            audit_file_bytes: None,
            power: Mutex::new(StdRng::seed_from_u64(seed ^ 0xb1ac_0047)),
            may_end: AtomicBool::default(),
            has_ended: AtomicBool::default(),
        }
    }

    /// Makes it write an audit trail, if a size of its files is given.
    pub(crate) fn with_trail(self, audit_file_bytes: Option<u64>) -> Self {
        Self { audit_file_bytes, ..self }
    }

    /// The directory of its audit files in a cluster that was made anew so often: an operator moves those of a lost cluster aside.
    pub(crate) fn audit_directory(&self, generation: usize) -> PathBuf {
        self.directory.join(format!("audit-{generation}"))
    }

    fn audit(&self, generation: usize) -> AuditConfig {
        match self.audit_file_bytes {
            Some(file_bytes) => AuditConfig { directory: self.audit_directory(generation), file_bytes, files_kept: 0 },
            None => AuditConfig::default(),
        }
    }

    fn trail_place(&self, generation: usize) -> TrailPlace {
        TrailPlace { generation, node: self.id() }
    }

    /// Its audit files must soon have all lines that it has made by now. Its process must run.
    pub(crate) fn expect_written_lines(&self) {
        let place = self.trail_place(self.data().generation);
        self.ledger.lines().expect_written(place);
    }

    /// A cluster is made of this copy of the one that this node belongs to.
    pub(crate) fn note_copy(&self, generation: usize, from: usize, copy: &Applied) {
        self.ledger.lines().copied(generation, from, copy);
    }

    /// Its process was killed, or its machine lost its power: what was not synced may be gone.
    pub(crate) fn crash(&self) {
        self.disk().crash();

        let directory = self.audit_directory(self.data().generation);
        let mut power = self.power.lock().expect("nothing panics while it has the random numbers");
        let lost = trail::lose_unsynced(&directory, &mut power).expect("the files of a run can be cut");
        if lost > 0 {
            trace::say(&network::node_host(self.id()), format_args!("its audit files lost {lost} bytes"));
            self.ledger.lines().lost(lost);
        }
    }

    /// An operator asks for its removal: from now on its process may end by itself.
    pub(crate) fn will_be_removed(&self) {
        self.may_end.store(true, Ordering::Relaxed);
    }

    /// Whether its process ended by itself after its removal.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn data(&self) -> Data {
        self.data.lock().expect("nothing panics while it has the data").clone()
    }

    /// The current disk.
    pub(crate) fn disk(&self) -> Arc<Disk> {
        self.data().disk
    }

    /// Empties its directory, from its next start on.
    pub(crate) fn lose_data(&self, sync_ms: (u64, u64)) {
        let own = self.data();
        let seed = self.seed ^ 0x1057;
        let identity = NodeIdentity::in_memory(
            &CLUSTER_ID.parse().expect("it is one"),
            self.id(),
            &mut StdRng::seed_from_u64(seed),
        );
        let directory = self.directory.join("lost");
        // It may have lost its data before.
        let _ = std::fs::remove_dir_all(&directory);
        *self.data.lock().expect("nothing panics while it has the data") =
            Data { disk: Arc::new(Disk::new(seed, sync_ms)), identity: Arc::new(identity), directory, ..own.clone() };
        *self.own.lock().expect("nothing panics while it has the data") = Some(own);
    }

    /// Restores its original data, from its next start on. Returns whether it joined the cluster without them.
    pub(crate) fn find_data(&self) -> bool {
        let Some(own) = self.own.lock().expect("nothing panics while it has the data").take() else { return false };
        let mut data = self.data.lock().expect("nothing panics while it has the data");
        let own_last = own.disk.last_index();
        let is_of_same_cluster = data.generation == own.generation;
        let replaced = std::mem::replace(&mut *data, own);
        if is_of_same_cluster {
            // Without its data it may learn that it was removed; but it must not become a member.
            !matches!(replaced.identity.stage(), Stage::New | Stage::Removed)
        } else {
            // The log of a cluster that was made anew goes on above those of all before.
            replaced.disk.last_index() >= own_last
        }
    }

    /// Gives it the data of a member of a cluster that was made anew, so often in this run. It starts on them; if they are late, it starts
    /// on what it has, and on them after [`find_data`](Self::find_data).
    pub(crate) fn refound(
        &self,
        founding: &Founding<'_>,
        identity: NodeIdentity,
        generation: usize,
        sync_ms: (u64, u64),
        is_late: bool,
    ) -> io::Result<()> {
        let directory = self.directory().join(format!("restored-{generation}"));
        let snapshots = SnapshotStore::open_with(&directory, Blocking::Here).map_err(io::Error::other)?;
        founding.write_snapshot(&snapshots, &AtomicU64::default())?;

        let seed = self.seed.wrapping_add(generation as u64);
        let disk = Disk::founded(seed, sync_ms, founding.vote(), founding.last());
        let made = Data { disk: Arc::new(disk), identity: Arc::new(identity), generation, directory };
        if is_late {
            *self.own.lock().expect("nothing panics while it has the data") = Some(made);
        } else {
            *self.data.lock().expect("nothing panics while it has the data") = made;
        }
        Ok(())
    }

    /// A directory of its own, for files of its data.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// How often its cluster was made anew.
    pub(crate) fn generation(&self) -> usize {
        self.data().generation
    }

    fn has_lost_data(&self) -> bool {
        self.own.lock().expect("nothing panics while it has the data").is_some()
    }

    /// Its id.
    pub(crate) fn id(&self) -> u64 {
        self.config.node_id
    }

    /// Each process start counts as another start of the same directory.
    fn start(&self) -> Data {
        let mut data = self.data.lock().expect("nothing panics while it has the data");
        data.identity = Arc::new(data.identity.start_again(&mut self.environment.generator()));
        data.clone()
    }

    /// The limits that it writes into the log after this start, while it leads.
    fn limits(&self) -> Limits {
        self.scarcity.limits(&mut StdRng::seed_from_u64(self.environment.generator().random()))
    }

    /// The limits of this start for what its clients may have under way.
    fn node_limits(&self) -> NodeLimits {
        scarcity::node_limits(&mut StdRng::seed_from_u64(self.environment.generator().random()))
    }

    /// What it has counted since its first start.
    pub(crate) fn metrics(&self) -> String {
        self.environment.metrics.text(Default::default())
    }

    /// Runs the node's machine: from its start on, a process can be started there.
    pub(crate) async fn run_machine(self: Arc<Self>) -> turmoil::Result {
        let further = ContendedProtocol::ALL.map(ContendedProtocol::port);
        let ports = [&[CLIENT_PORT, PEER_PORT][..], &further].concat();
        let (machinery, sockets): (Machinery, Sockets) = sockets(&ports);
        *self.sockets.lock().expect("nothing panics while it has the sockets") = Some(sockets);
        machinery.run(self.id(), self.gates.clone()).await
    }

    /// The process of a machine that has started since the last call.
    pub(crate) fn started(self: &Arc<Self>) -> Option<Process> {
        let sockets = self.sockets.lock().expect("nothing panics while it has the sockets").take()?;
        let site = Arc::clone(self);
        Some(Process::start(move || site.serve(sockets), Arc::clone(&self.load), self.pace.rate))
    }

    /// The longest of what its process has computed.
    pub(crate) fn longest(&self) -> Longest {
        self.load.longest()
    }

    /// Runs the node's process, until it fails or the simulation kills it.
    async fn serve(self: Arc<Self>, mut sockets: Sockets) -> turmoil::Result {
        let Data { disk, identity, generation, directory } = self.start();
        let snapshots = SnapshotStore::open_with(&directory, Blocking::Here)?;
        let lines = snapshots.latest().map_or(0, |latest| latest.trail().head().lines);
        self.ledger.lines().started(self.trail_place(generation), lines);

        let further = FurtherParts {
            limits: Some(self.limits()),
            node_limits: self.node_limits(),
            dynamodb: Some(sockets.door(ContendedProtocol::DynamoDb.port())),
            etcd: Some(sockets.door(ContendedProtocol::Etcd.port())),
            redis: Some(sockets.door(ContendedProtocol::Redis.port())),
            zookeeper: Some(sockets.door(ContendedProtocol::Zookeeper.port())),
            inspector: Some(Arc::new(Inspector::new(&self, generation))),
            ..FurtherParts::default()
        };
        let parts = Parts {
            config: Config {
                cluster_id: identity.cluster_id().to_string(),
                audit: self.audit(generation),
                ..self.config.clone()
            },
            clients: sockets.door(CLIENT_PORT),
            peers: sockets.door(PEER_PORT),
            connector: sockets.dialer(),
            environment: self.environment.clone(),
            identity,
            log: Log::open(&disk),
            snapshots,
            disk: Arc::new(Space { free: u64::MAX, total: u64::MAX }),
            further,
        };
        let ended = run(parts, std::future::pending()).await;
        if self.has_lost_data() {
            // Expected: the cluster refuses the node without its data. A supervisor would restart it, with the same result.
            trace::say(&network::node_host(self.id()), format_args!("refused: {ended:?}"));
            std::future::pending::<()>().await;
        }
        if self.may_end.load(Ordering::Relaxed) {
            trace::say(&network::node_host(self.id()), format_args!("removed: {ended:?}"));
            self.has_ended.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        Err(format!("node {} ended by itself: {ended:?}", self.id()).into())
    }
}

/// A node's clock. It can be stopped, like the process.
#[derive(Debug, Default)]
pub(crate) struct NodeClock {
    is_stopped: AtomicBool,
    stopped_at: Mutex<Option<Instant>>,
}

impl NodeClock {
    /// Whether it is stopped, and so the process.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// While it is stopped, readers see no time pass; then it jumps.
    pub(crate) fn stop(&self, stop: bool) {
        self.is_stopped.store(stop, Ordering::Relaxed);
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Instant {
        let mut stopped_at = self.stopped_at.lock().expect("nothing panics while it has the clock");
        if self.is_stopped.load(Ordering::Relaxed) {
            return *stopped_at.get_or_insert_with(Instant::now);
        }
        *stopped_at = None;
        Instant::now()
    }

    fn wall_ms(&self) -> u64 {
        system::wall_ms()
    }
}

#[derive(Debug)]
struct Chance(Mutex<StdRng>);

impl Random for Chance {
    fn bits(&self) -> u128 {
        self.0.lock().expect("nothing panics while it has the random numbers").random()
    }
}

/// What the first node that applied an entry had then, by generation of the cluster and log index, and the errors found.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    known: Mutex<BTreeMap<(usize, u64), (u64, u64)>>,
    /// The terms of these entries, and the revisions of the keyspace after them.
    reached: Mutex<BTreeMap<(usize, u64), (u64, Revision)>>,
    truth: Mutex<Truth>,
    /// Those of clusters that were made anew, by generation.
    later_truths: Mutex<BTreeMap<usize, Truth>>,
    troubles: Mutex<Vec<String>>,
    installed: AtomicU64,
    recoveries: Mutex<BTreeMap<&'static str, u64>>,
    lines: Mutex<MadeLines>,
    refusals: Arc<RefusalJudge>,
}

impl Ledger {
    /// The errors found.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.lock().expect("nothing panics while it has them").clone()
    }

    /// The number of entries that at least one node has applied.
    pub(crate) fn entries(&self) -> usize {
        self.known.lock().expect("nothing panics while it has them").len()
    }

    /// The number of snapshots that running nodes installed from others.
    pub(crate) fn installed(&self) -> u64 {
        self.installed.load(Ordering::Relaxed)
    }

    /// What the recoveries of lost majorities were about.
    pub(crate) fn recoveries(&self) -> BTreeMap<&'static str, u64> {
        self.recoveries.lock().expect("nothing panics while it has them").clone()
    }

    /// The lines of the audit trails that the nodes made.
    pub(crate) fn lines(&self) -> MutexGuard<'_, MadeLines> {
        self.lines.lock().expect("nothing panics while it has the lines")
    }

    /// The judge of what the nodes' limits have refused.
    pub(crate) fn refusals(&self) -> &Arc<RefusalJudge> {
        &self.refusals
    }

    /// The history of the keyspace of the cluster that the clients used: of the first generation.
    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().expect("nothing panics while it has the truth")
    }

    /// Adds the events of an entry to the history of the keyspace of its generation.
    fn follow(&self, generation: usize, applied: &Applied) -> Result<(), String> {
        if generation == 0 {
            return self.truth().note(applied);
        }
        let mut later = self.later_truths.lock().expect("nothing panics while it has them");
        later.entry(generation).or_default().note(applied)
    }

    /// Notes a hash of what a node has at an index. Returns whether it is the first one there.
    fn note(&self, node: u64, generation: usize, index: u64, hash: u64) -> bool {
        let mut known = self.known.lock().expect("nothing panics while it has them");
        let is_first = !known.contains_key(&(generation, index));
        let (first, other) = *known.entry((generation, index)).or_insert((node, hash));
        if other != hash {
            self.complain(format!("nodes {first} and {node} have different tables at index {index}"));
        }
        is_first
    }

    fn count(&self, what: &'static str, more: u64) {
        *self.recoveries.lock().expect("nothing panics while it has them").entry(what).or_default() += more;
    }

    fn complain(&self, trouble: String) {
        self.troubles.lock().expect("nothing panics while it has them").push(trouble);
    }
}

/// A node's table is looked at as a whole after each entry whose index is a multiple of this. To look at all of them took half of a run's
/// processor time, and tables that differ, or are broken, stay so for longer than some entries.
const ENTRIES_PER_LOOK: u64 = 16;

/// Checks one node's table: its invariants, and equality with the other nodes' tables.
#[derive(Debug)]
struct Inspector {
    node: u64,
    generation: usize,
    ledger: Arc<Ledger>,
    /// The last index seen; 0: none yet. It restarts with each process, whose first table may come from its own snapshot.
    seen: AtomicU64,
    load: Arc<Load>,
    unit_ns: u64,
}

impl Inspector {
    fn new(site: &Site, generation: usize) -> Self {
        Self {
            node: site.id(),
            generation,
            ledger: Arc::clone(&site.ledger),
            seen: AtomicU64::new(0),
            load: Arc::clone(&site.load),
            unit_ns: site.pace.unit_ns,
        }
    }

    fn trail_place(&self) -> TrailPlace {
        TrailPlace { generation: self.generation, node: self.node }
    }
}

impl Inspect for Inspector {
    fn look(&self, applied: &Applied, units: usize) {
        let index = applied.index();
        let is_looked_at = index.is_multiple_of(ENTRIES_PER_LOOK);
        let hash = if is_looked_at { applied.machine.hash() } else { 0 };
        trace::say(&network::node_host(self.node), format_args!("applied {index}, table {hash:016x}"));
        let is_first = self.ledger.note(self.node, self.generation, index, with_trail(hash, applied));
        self.ledger.reach(self.generation, applied);
        self.ledger.lines().changed(self.trail_place(), applied, system::elapsed());
        self.load.apply(units as u64, self.unit_ns);
        let follows = self.ledger.follow(self.generation, applied);
        if let Err(broken) = follows {
            self.ledger.complain(format!("node {} at index {index}: {broken}", self.node));
        }
        let seen = self.seen.swap(index, Ordering::Relaxed);
        if seen > 0 && index > seen + 1 {
            self.ledger.installed.fetch_add(1, Ordering::Relaxed);
        }
        // The tables of the others are equal.
        if is_first
            && is_looked_at
            && let Err(broken) = applied
                .machine
                .check()
                .map_err(|broken| broken.to_string())
                .and_then(|()| rights::check(&applied.machine))
                .and_then(|()| self.ledger.refusals.check(&applied.machine))
        {
            self.ledger.complain(format!("node {} at index {index}: {broken}", self.node));
        }
    }

    fn lasted(&self, in_place: bool) -> Duration {
        // Only entries last, and by now their lines were handed over.
        self.ledger.lines().handed_over(self.trail_place());
        self.load.applied(in_place)
    }
}

/// The ends of the audit trails must agree as well, after each entry.
fn with_trail(hash: u64, applied: &Applied) -> u64 {
    let trail = applied.trail.head().hash.0.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    hash ^ trail
}
