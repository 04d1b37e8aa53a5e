//! Raft of a node, between the network to its peers and the table that its log is applied to.

use std::{io, sync::Arc, time::Duration};

use openraft::{SnapshotPolicy, storage::RaftLogStorage};
use tokio::sync::Notify;

use lockkeeper_config::{Config, RaftConfig};
use lockkeeper_environment::Blocking;
use lockkeeper_machine::Versions;
use lockkeeper_raft::{
    Raft, Replica, ReplicaParts,
    apply::{state_machine::StateMachine, table_comparison::TableComparison},
    disk::Disks,
    elections::{fast_election::BrokenStreams, silent_leader},
    log::slow_followers::{LogBytes, StreamCuts},
    network::{
        Acknowledgements, Network, PeerService, Prober, addresses::Addresses, liveness::PeerLiveness,
        versions::PeerVersions,
    },
    snapshot::{SnapshotFile, SnapshotStore},
    types::TypeConfig,
};
use lockkeeper_table::{Audit, Inspect, Table};
use lockkeeper_transport::Connector;

use super::{Foundation, ServeError, stopped, unapplied};

/// openraft's deadline for installing a snapshot. The transfer has deadlines of its own, which grow with its size.
const INSTALL_SNAPSHOT_MS: u64 = 10 * 60 * 1000;
/// Maximum number of entries in one append. The network splits appends that have too many bytes.
const APPEND_ENTRIES: u64 = 64;

/// Raft that runs, with the handles that the duties of the node need.
pub(super) struct Replication<C> {
    pub(super) replica: Replica,
    /// Answers the calls of the peers.
    pub(super) peer_service: PeerService<StateMachine, SnapshotStore>,
    pub(super) versions: Arc<PeerVersions>,
    pub(super) comparison: Arc<TableComparison>,
    pub(super) disks: Disks,
    pub(super) snapshots: SnapshotStore,
    pub(super) snapshot_due: Arc<Notify>,
    pub(super) log_bytes: LogBytes,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) cuts: StreamCuts,
    pub(super) liveness: Arc<PeerLiveness>,
    pub(super) broken_streams: Option<BrokenStreams>,
    /// Notified when this node refuses a candidate for its shorter log.
    pub(super) shorter_logs: Arc<Notify>,
    /// The longest time between two calls of a leader that is heard: see [`silent_leader::beat`].
    pub(super) beat: Duration,
    /// Asks the peers how long the leader has been silent there.
    pub(super) silence_prober: Prober<C, SnapshotFile>,
    /// Asks the peers for the hashes of their tables.
    pub(super) table_prober: Prober<C, SnapshotFile>,
    /// Tells the leader of this node's start.
    pub(super) start_prober: Prober<C, SnapshotFile>,
    /// Tells the leader what operators have done at this node.
    pub(super) note_prober: Prober<C, SnapshotFile>,
}

impl<C: Connector> Replication<C> {
    /// Starts Raft on this log and these snapshots. It applies the entries that are known to be committed before it returns.
    pub(super) async fn start<S: RaftLogStorage<TypeConfig>>(
        base: &Foundation<C>,
        log: S,
        snapshots: SnapshotStore,
        versions: Versions,
        inspector: Option<Arc<dyn Inspect>>,
    ) -> Result<Self, ServeError> {
        let Foundation { config, environment, identity, .. } = base;
        let versions = Arc::new(PeerVersions::new(versions).with_audit(base.audit.is_some()));
        let table = Arc::new(empty_table(base, &versions, inspector));

        let disks = Disks::default();
        let comparison = Arc::new(TableComparison::new(Arc::clone(&table), Arc::clone(identity), environment.blocking));
        let peer_service = PeerService::new(Arc::clone(identity), &base.plan.members, snapshots.clone())
            .with_versions(Arc::clone(&versions));
        peer_service.report_disk(disks.clone());
        peer_service.compare_table(Arc::clone(&comparison));

        let machine = open_machine(config, environment.blocking, &table, &snapshots).await?;
        let snapshot_due = machine.snapshot_due();
        let log_bytes = machine.log_bytes();

        let addresses = Addresses::new(base.plan.members.clone());
        let network = Network::<C, SnapshotFile>::new(base.connector.clone(), Arc::clone(identity))
            .with_addresses(addresses.clone())
            .with_versions(Arc::clone(&versions))
            .with_disks(disks.clone())
            .with_metrics(environment.metrics.clone());
        let acknowledgements = network.acknowledgements();
        let cuts = network.cuts();
        let [silence_prober, table_prober, start_prober, note_prober] = [(); 4].map(|()| network.prober());

        let raft_config = Arc::new(raft_config(config)?);
        let raft = Raft::new(config.node_id, raft_config, network, log, machine).await;
        // Raft fails to start at an entry that cannot be applied. The table knows which one it was.
        let raft = raft.map_err(|error| unapplied(&table).unwrap_or_else(|| stopped(error)))?;

        let applied = Arc::clone(&table);
        peer_service.attach(raft.clone(), move |node_id| applied.has_removed(node_id));
        let broken_streams = peer_service.broken_streams();
        let shorter_logs = peer_service.shorter_logs();
        let liveness = peer_service.liveness();

        let silence_max = 2 * Duration::from_millis(config.raft.election_timeout_ms_max);
        let parts = ReplicaParts {
            table,
            versions: Arc::clone(&versions),
            acknowledgements: acknowledgements.clone(),
            addresses,
            silence_max,
            proposals: base.node_limits.proposals,
        };
        let replica = Replica::start(raft, parts, environment, base.limits);

        let election_timeout = Duration::from_millis(config.raft.election_timeout_ms_min);
        let beat = silent_leader::beat(Duration::from_millis(config.raft.heartbeat_ms), election_timeout);
        let silent = beat * silent_leader::SILENT_HEARTBEATS;
        let replica = replica.with_disks(disks.clone()).with_liveness(Arc::clone(&liveness), silent);

        Ok(Self {
            replica,
            peer_service,
            versions,
            comparison,
            disks,
            snapshots,
            snapshot_due,
            log_bytes,
            acknowledgements,
            cuts,
            liveness,
            broken_streams,
            shorter_logs,
            beat,
            silence_prober,
            table_prober,
            start_prober,
            note_prober,
        })
    }
}

/// The table before it applies anything, with what it reports to.
fn empty_table<C>(base: &Foundation<C>, versions: &PeerVersions, inspector: Option<Arc<dyn Inspect>>) -> Table {
    Table::new(inspector)
        .with_versions(Arc::clone(versions.applied()))
        .with_audit(Audit::new(base.identity.cluster_id().as_str(), base.audit.clone()))
        .with_metrics(base.environment.metrics.clone())
        .with_calls_per_wait(base.node_limits.waits.calls_per_wait)
}

/// Restores the table from the newest snapshot.
async fn open_machine(
    config: &Config,
    blocking: Blocking,
    table: &Arc<Table>,
    snapshots: &SnapshotStore,
) -> Result<StateMachine, ServeError> {
    let table = Arc::clone(table);
    let snapshots = snapshots.clone();
    let node_id = config.node_id;
    let snapshot_entries = config.raft.snapshot_entries;
    let opened = blocking.run(move || StateMachine::open(table, snapshots, node_id, snapshot_entries)).await;

    opened.map_err(|error| {
        // The snapshot is intact, and was written by a later version.
        if error.kind() == io::ErrorKind::Unsupported {
            ServeError::Version(error.to_string())
        } else {
            ServeError::Restore(error)
        }
    })
}

/// openraft's configuration.
fn raft_config(config: &Config) -> Result<openraft::Config, ServeError> {
    let RaftConfig { heartbeat_ms, election_timeout_ms_min, election_timeout_ms_max, keep_entries, .. } = config.raft;
    let raft = openraft::Config {
        cluster_name: config.cluster_id.clone(),
        heartbeat_interval: heartbeat_ms,
        election_timeout_min: election_timeout_ms_min,
        election_timeout_max: election_timeout_ms_max,
        // A leader that restarts must be elected again; otherwise its reads may be stale (openraft #1511).
        enable_leader_restore: Some(false),
        // Pre-vote: a node that was cut off or restarted does not disturb a leader that the others hear.
        enable_pre_vote: Some(true),
        // A leader without a quorum pauses its heartbeats, so that the members that hear it can elect another one.
        quorum_loss_probe_interval: Some(2 * election_timeout_ms_max),
        install_snapshot_timeout: INSTALL_SNAPSHOT_MS,
        max_payload_entries: APPEND_ENTRIES,
        // The node triggers snapshots itself, by the bytes of the log too: see `take_snapshots`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: keep_entries,
        ..openraft::Config::default()
    };

    raft.validate().map_err(|invalid| ServeError::Config(format!("the timing under [raft] does not fit: {invalid}")))
}
