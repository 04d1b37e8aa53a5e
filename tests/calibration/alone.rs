//! A node without peers: the real replica, log and snapshots, on a clock that the test advances and a disk that the test can block.
//!
//! The test can also act as another leader: it sends this node append requests in a later term.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use lockkeeper::{
    environment::{Clock, Environment},
    machine::{Command, Label, Limits, Reply, SessionId, Stamp, Time, Ttl, Versions, WallTime},
    raft::{
        Raft, Replica, ReplicaParts,
        apply::state_machine::StateMachine,
        identity::NodeIdentity,
        log::{self, LogReader, LogStore},
        network::{Network, addresses::Addresses, versions::PeerVersions},
        proposals::{leadership::TermLeadership, proposer::ProposalLimits},
        snapshot::{SnapshotFile, SnapshotStore},
        types::{self, AppendRequest, CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload, TypeConfig, Vote},
    },
    table::{MemberNode, Table, codec::commands},
    transport::TcpConnector,
};
use openraft::{
    LogState, OptionalSend, RaftLogReader, ServerState, SnapshotPolicy,
    async_runtime::WatchReceiver as _,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt as _,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Id of the leader that the test simulates.
const OTHER: u64 = 2;

/// The node.
pub(crate) struct Alone {
    pub(crate) replica: Replica,
    pub(crate) table: Arc<Table>,
    pub(crate) hand: Arc<Hand>,
    pub(crate) disk: Disk,
    raft: Raft,
    log: LogStore,
}

/// The gates that the node's log passes.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    /// Whether a sync returns.
    pub(crate) syncs: Gate,
    /// Whether entries can be read, as they are for `apply`.
    pub(crate) reads: Gate,
}

/// Blocks [`Self::pass`] while it is shut. Open at first.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(true)))
    }
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.0.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        // The sender is ours.
        let _ = self.0.subscribe().wait_for(|is_open| *is_open).await;
    }
}

/// A clock that the test advances.
#[derive(Debug)]
pub(crate) struct Hand {
    now: Mutex<Instant>,
    /// Channels to the next reader of the wall clock: it sends a notice, then waits for the permission to go on.
    doorbell: Mutex<Option<(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>)>>,
}

impl Hand {
    fn new() -> Self {
        Self { now: Mutex::new(Instant::now()), doorbell: Mutex::default() }
    }

    pub(crate) fn advance(&self, by: Duration) {
        *self.now.lock().expect("nothing panics while it has the time") += by;
    }

    /// Blocks the next read of the wall clock, which happens between the stamp of a batch and its proposal. Returns the receiver of the
    /// notice and the sender of the permission to go on.
    pub(crate) fn stop_the_next(&self) -> (std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>) {
        let ((came, comes), (go_on, wait)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        *self.doorbell.lock().expect("nothing panics while it has it") = Some((came, wait));
        (comes, go_on)
    }
}

impl Clock for Hand {
    fn now(&self) -> Instant {
        *self.now.lock().expect("nothing panics while it has the time")
    }

    fn wall_ms(&self) -> u64 {
        let doorbell = self.doorbell.lock().expect("nothing panics while it has it").take();
        if let Some((came, wait)) = doorbell {
            tokio::task::block_in_place(|| {
                came.send(()).expect("the test waits");
                wait.recv().expect("the test lets go on");
            });
        }
        0
    }
}

impl Alone {
    /// Starts a node with its data in this directory, and waits until it leads and has raised the cluster version: from then on its log
    /// grows only by what the test proposes.
    pub(crate) async fn lead(directory: &Path) -> Self {
        let node = Self::start(directory, Disk::default()).await;
        node.leadership_after(0).await;
        let raised = || node.table.read(|applied| applied.machine.version() == Versions::OWN.highest);
        let wait = node.raft.wait(Some(LONG));
        wait.metrics(|_| raised(), "the cluster version").await.expect("it is raised");
        node
    }

    /// As [`Self::lead`], without waiting until it leads.
    pub(crate) async fn start(directory: &Path, disk: Disk) -> Self {
        let hand = Arc::new(Hand::new());
        let environment = Environment { clock: Arc::clone(&hand) as Arc<dyn Clock>, ..Environment::system() };
        let cluster_id = "alone".parse().expect("a cluster id");
        let identity = Arc::new(NodeIdentity::in_memory(&cluster_id, 1, &mut environment.generator()));
        let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("snapshots in order open");
        let log = LogStore::open(&directory.join("log"), log::LogOptions::default()).expect("a log in order opens");
        let versions = Arc::<PeerVersions>::default();
        let table = Arc::new(Table::default().with_versions(Arc::clone(versions.applied())));
        let machine = StateMachine::open(Arc::clone(&table), snapshots, 1, 1_000_000).expect("nothing to restore");
        let network = Network::<TcpConnector, SnapshotFile>::new(TcpConnector, identity);
        let acknowledgements = network.acknowledgements();
        let stopped = StoppableLog::new(log.clone(), disk.clone());
        let raft = Raft::new(1, config(), network, stopped, machine).await.expect("it starts");
        let members =
            BTreeMap::from([(1, MemberNode { peer_address: "127.0.0.1:1".to_owned(), ..MemberNode::default() })]);
        if !raft.is_initialized().await.expect("raft runs") {
            raft.initialize(members.clone()).await.expect("it is new");
        }
        let parts = ReplicaParts {
            table: Arc::clone(&table),
            versions,
            acknowledgements,
            addresses: Addresses::new(members),
            silence_max: LONG,
            proposals: ProposalLimits::REAL,
        };
        let replica = Replica::start(raft.clone(), parts, &environment, Limits::default());
        Self { replica, table, hand, disk, raft, log }
    }

    /// Waits until it leads in a term after this one.
    pub(crate) async fn leadership_after(&self, term: u64) -> Arc<TermLeadership> {
        let mut led = self.replica.led();
        let is_later = |leadership: &Option<Arc<TermLeadership>>| leadership.as_ref().is_some_and(|it| it.term > term);
        let led = soon(led.wait_for(is_later)).await.expect("raft runs").clone();
        led.expect("it was waited for")
    }

    /// Waits until openraft reports it as the leader. It may not have applied its whole log by then.
    pub(crate) async fn is_elected(&self) {
        let wait = self.raft.wait(Some(LONG));
        wait.metrics(|metrics| metrics.state == ServerState::Leader, "an election").await.expect("it elects itself");
    }

    /// The index of the last entry in its log, synced or not.
    pub(crate) fn last_index(&self) -> u64 {
        self.raft.metrics().borrow_watched().last_log_index.unwrap_or(0)
    }

    /// Waits until it has this entry.
    pub(crate) async fn has_appended(&self, index: u64) {
        let wait = self.raft.wait(Some(LONG));
        wait.metrics(|metrics| metrics.last_log_index >= Some(index), "an entry").await.expect("it is appended");
    }

    /// Cluster time of the table.
    pub(crate) fn now(&self) -> Stamp {
        self.table.read(|applied| applied.machine.now())
    }

    pub(crate) fn is_alive(&self, session: SessionId) -> bool {
        self.table.read(|applied| applied.machine.session(session).is_some())
    }

    pub(crate) async fn propose(&self, command: Command) -> Reply {
        soon(self.replica.propose(command, LONG)).await.expect("it leads").reply
    }

    /// Acts as the leader of the next term, which commits a batch of one command with this stamp. Returns its term once the batch is
    /// applied. That leader sends nothing more, so the node then elects itself.
    pub(crate) async fn another_leads(&self, stamp: Stamp, command: Command) -> u64 {
        let (answer, log_id) = self.hears(stamp, command);
        assert!(soon(answer).await.expect("it did not panic").is_ok(), "the other leader is not believed");
        self.has_applied(log_id.index).await;
        log_id.leader_id.term
    }

    /// As [`Self::another_leads`], without waiting. Returns the node's answer to the other leader, and the entry's id.
    pub(crate) fn hears(&self, stamp: Stamp, command: Command) -> (JoinHandle<Result<(), String>>, LogId) {
        // The other leader has the same log as this node. The table tells its end, since metrics lag behind.
        let last = self.table.read(|applied| applied.last_entry).map(types::log_id);
        let term = self.raft.metrics().borrow_watched().vote.leader_id.term + 1;
        let log_id = LogId { leader_id: CommittedLeaderId::new(term), index: last.map_or(0, |last| last.index + 1) };
        let payload = Payload(commands::encode(Time { stamp, wall: WallTime(0) }, Limits::default(), &[command]));
        let request = AppendRequest {
            vote: Vote::new_committed(term, OTHER),
            prev_log_id: last,
            entries: vec![LogEntry { log_id, payload: EntryPayload::Normal(payload) }],
            leader_commit: Some(log_id),
        };
        let raft = self.raft.clone();
        let answer = tokio::spawn(async move {
            match raft.append_entries(request).await {
                Ok(answer) if answer.is_success() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        (answer, log_id)
    }

    /// Waits until it has applied this entry.
    pub(crate) async fn has_applied(&self, index: u64) {
        let wait = self.raft.wait(Some(LONG));
        wait.applied_index_at_least(Some(index), "an entry").await.expect("it is applied");
    }

    /// Shuts the node down cleanly.
    pub(crate) async fn end(self) {
        self.disk.syncs.open();
        self.disk.reads.open();
        soon(self.raft.shutdown()).await.expect("it ends");
        soon(self.log.close()).await.expect("closed in order");
    }
}

/// A command that opens a session with this TTL.
pub(crate) fn open(session: SessionId, ttl_ms: u32) -> Command {
    let label = Label::new("test").expect("short");
    Command::Open { session, ttl: Ttl::from_millis(ttl_ms).expect("in bounds"), label, address: None, owner: None }
}

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(LONG, what).await.expect("it happens in time")
}

fn config() -> Arc<openraft::Config> {
    let config = openraft::Config {
        heartbeat_interval: 50,
        election_timeout_min: 200,
        election_timeout_max: 300,
        snapshot_policy: SnapshotPolicy::Never,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(600),
        ..openraft::Config::default()
    };
    Arc::new(config.validate().expect("a valid configuration"))
}

/// The real log, whose syncs and reads wait for the test's gates.
struct StoppableLog {
    log: LogStore,
    disk: Disk,
    /// Syncs to report, in their order.
    synced: mpsc::UnboundedSender<(Synced, IOFlushed<TypeConfig>)>,
}

type Synced = openraft::type_config::alias::OneshotReceiverOf<TypeConfig, io::Result<()>>;

impl StoppableLog {
    fn new(log: LogStore, disk: Disk) -> Self {
        let (synced, mut told) = mpsc::unbounded_channel::<(Synced, IOFlushed<TypeConfig>)>();
        let gate = disk.syncs.clone();
        tokio::spawn(async move {
            while let Some((synced, callback)) = told.recv().await {
                let outcome = synced.await.unwrap_or_else(|_| Err(io::Error::other("the log is closed")));
                gate.pass().await;
                callback.io_completed(outcome);
            }
        });
        Self { log, disk, synced }
    }
}

impl RaftLogStorage<TypeConfig> for StoppableLog {
    type LogReader = StoppableReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> StoppableReader {
        StoppableReader { reader: self.log.get_log_reader().await, gate: self.disk.reads.clone() }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.log.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.log.save_committed(committed).await
    }

    /// Returns `None`, as after a crash that lost this record; losing it is allowed.
    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(None)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (flushed, synced) = TypeConfig::oneshot();
        self.log.append(entries, IOFlushed::signal(flushed)).await?;
        // An error means that the runtime ends.
        let _ = self.synced.send((synced, callback));
        Ok(())
    }

    async fn truncate_after(&mut self, after: Option<LogId>) -> io::Result<()> {
        self.log.truncate_after(after).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.log.purge(upto).await
    }
}

struct StoppableReader {
    reader: LogReader,
    gate: Gate,
}

impl RaftLogReader<TypeConfig> for StoppableReader {
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let read = async {
            self.gate.pass().await;
            let entries = self.reader.try_get_log_entries(range).await;
            match entries {
                Ok(entries) => stream::iter(entries.into_iter().map(Ok).collect::<Vec<_>>()),
                Err(error) => stream::iter(vec![Err(error)]),
            }
        };
        Box::pin(stream::once(read).flatten())
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.reader.try_get_log_entries(range).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.reader.read_vote().await
    }
}
