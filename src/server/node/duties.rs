//! What a node does besides serving. A duty returns when the node must end; a task in the background does not return, or need not be
//! missed.

use std::{sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::sync::Notify;
use tonic_health::server::HealthReporter;

use lockkeeper_audit::Sink;
use lockkeeper_config::RaftConfig;
use lockkeeper_environment::Blocking;
use lockkeeper_raft::{
    Replica,
    elections::{disk_watch, fast_election, silent_leader, slow_disk},
    identity::NodeIdentity,
    log::slow_followers,
    members::{
        compared_starts, compared_tables,
        forming::{self, FormingConfig},
        passed_notes,
    },
    network::{Acknowledgements, versions::PeerVersions},
};
use lockkeeper_transport::Connector;

use super::{NodeTasks, RunningNode, ServeError, ending::NodeEnding, stopped, unapplied};
use crate::{
    cluster::Cluster,
    health,
    joining::{self, JoiningNode},
    service::{self, waiting},
};

/// How often a node records, outside of its log, how far its log and those of its peers are; and after what time first.
const NOTE_PROGRESS: Duration = Duration::from_secs(10);
const NOTE_FIRST: Duration = Duration::from_millis(250);
/// One in this number of consecutive failures to write that record is logged.
const NOTE_FAILURES_SILENT: u32 = 6;

impl<C: Connector> RunningNode<C> {
    /// Starts the duties and the tasks in the background. Returns what ends the node in order.
    pub(super) fn start_duties(self, reporter: HealthReporter, tasks: &mut NodeTasks) -> NodeEnding {
        let ending = NodeEnding {
            reporter: reporter.clone(),
            stopping: self.stopping.clone(),
            replica: self.replication.replica.clone(),
            audit: self.base.audit.clone(),
            blocking: self.base.environment.blocking,
            traces: self.traces.clone(),
        };

        self.start_what_ends_it(tasks);
        self.serve_in_background(reporter, tasks);
        self.watch_peers(tasks);
        ending
    }

    /// Tasks with whose end the node must end.
    fn start_what_ends_it(&self, tasks: &mut NodeTasks) {
        let Self { base, replication, .. } = self;
        let identity = &base.identity;
        let replica = &replication.replica;
        let duties = &mut tasks.duties;

        duties.spawn(take_part(Arc::clone(identity), replica.clone(), base.plan.clone(), base.connector.clone()));
        duties.spawn(outdated(Arc::clone(identity)));
        duties.spawn(removed(Arc::clone(identity)));
        if let Some(own) = base.config.this_member().cloned() {
            let joining = JoiningNode {
                identity: Arc::clone(identity),
                replica: replica.clone(),
                members: self.members.clone(),
                own,
                endpoints: base.config.join.clone(),
                connector: base.connector.clone(),
            };
            duties.spawn(async move { Err(joining.join().await.into()) });
        }

        duties.spawn(outgrown(Arc::clone(&replication.versions)));
        duties.spawn(raft_stops(replica.clone()));
        if let Some(audit) = base.audit.clone() {
            duties.spawn(audit_stops(audit));
        }
        duties.spawn(take_snapshots(replica.clone(), Arc::clone(&replication.snapshot_due)));
    }

    /// What keeps the services going: waits and watches, access files, limits of unread answers, health.
    fn serve_in_background(&self, reporter: HealthReporter, tasks: &mut NodeTasks) {
        let Self { base, replication, services, .. } = self;
        let replica = &replication.replica;
        let background = &mut tasks.background;
        background.spawn(self.members.clone().run());
        if let Some(tls) = base.tls.clone() {
            background.spawn(tls.follow_files());
        }

        let clients = &base.environment.clients;
        let adapters = &base.environment.adapters;
        clients.spawn(background, waiting::give_up_places(replica.clone()));
        clients.spawn(background, waiting::sweep(replica.clone()));
        clients.spawn(background, service::dispatch_watches(replica.clone()));
        adapters.spawn(background, service::dispatch_entry_watches(replica.clone()));
        clients.spawn(background, waiting::break_off_when_cut_off(replica.clone()));

        // In a simulation, time stands still while the thread computes.
        if base.environment.blocking == Blocking::OnThreads {
            let Cluster { pulse, clients_pulse, adapters_pulse, .. } = services.cluster.clone();
            background.spawn(pulse.beat("Raft"));
            clients.spawn(background, clients_pulse.beat("clients"));
            adapters.spawn(background, adapters_pulse.beat("adapters"));
        }

        clients.spawn(background, Arc::clone(&services.local.access).watch_files(base.environment.blocking));
        clients.spawn(background, services.unread.clone().watch_over());
        adapters.spawn(background, services.adapters_unread.clone().watch_over());
        clients.spawn(background, health::report(services.cluster.clone(), reporter));
    }

    /// What watches this node's disk, the leader, and the other members.
    fn watch_peers(self, tasks: &mut NodeTasks) {
        let Self { base, replication, .. } = self;
        let replica = &replication.replica;
        let background = &mut tasks.background;
        background.spawn(joining::notice_removal(Arc::clone(&base.identity), replica.clone(), base.connector.clone()));
        background.spawn(note_progress(base.identity, replica.clone(), replication.acknowledgements));

        let RaftConfig { keep_entries, backlog_bytes_max, compare_tables_ms, heartbeat_ms, .. } = base.config.raft;
        let metrics = replica.raft().metrics();
        background.spawn(slow_followers::limit(
            metrics,
            replication.log_bytes.clone(),
            replication.cuts,
            keep_entries,
            backlog_bytes_max,
        ));
        let raft = replica.raft().clone();
        let log_bytes = replication.log_bytes.clone();
        background.spawn(slow_followers::purge_beyond(raft, log_bytes, keep_entries, backlog_bytes_max));
        background.spawn(disk_watch::watch(
            replication.disks,
            replica.clone(),
            base.environment.blocking,
            base.disk,
            base.config.disk.reserve_bytes,
            replication.snapshots,
            replication.log_bytes,
        ));
        background.spawn(slow_disk::watch(replica.clone()));

        let liveness = replication.liveness;
        let silence =
            silent_leader::watch(replica.clone(), replication.silence_prober, Arc::clone(&liveness), replication.beat);
        background.spawn(silence);
        if compare_tables_ms > 0 {
            let interval = Duration::from_millis(compare_tables_ms);
            let prober = replication.table_prober;
            background.spawn(compared_tables::watch(replica.clone(), replication.comparison, prober, interval));
        }
        let interval = compared_starts::INTERVAL;
        let prober = replication.start_prober;
        background.spawn(compared_starts::tell(replica.clone(), prober, Arc::clone(&liveness), interval));

        let noting = replica.clone();
        replication.peer_service.take_notes(move |note| noting.take_note(note));
        background.spawn(passed_notes::pass_on(replica.clone(), replication.note_prober));

        if let Some(broken_streams) = replication.broken_streams {
            let heartbeat = Duration::from_millis(heartbeat_ms);
            background.spawn(fast_election::watch(
                replica.clone(),
                base.connector,
                broken_streams,
                replication.shorter_logs,
                liveness,
                heartbeat,
            ));
        }
    }
}

/// Returns once the audit files cannot be written, or their disk does not answer: a node that goes on would leave lines out.
async fn audit_stops(sink: Sink) -> Result<(), ServeError> {
    loop {
        if let Some(failure) = sink.look() {
            return Err(ServeError::AuditStopped(failure));
        }
        tokio::time::sleep(Sink::LOOK).await;
    }
}

/// Joins this node to its cluster, and forms the cluster if that is due. Returns only with an error.
async fn take_part<C: Connector>(
    identity: Arc<NodeIdentity>,
    replica: Replica,
    plan: FormingConfig,
    connector: C,
) -> Result<(), ServeError> {
    forming::form(&identity, &plan, &connector).await?;
    forming::initialize(&identity, replica.raft()).await?;
    forming::check(&identity, &plan, &connector).await?;
    std::future::pending().await
}

/// Returns once another node remembers a start or entries that this node's data lack.
async fn outdated(identity: Arc<NodeIdentity>) -> Result<(), ServeError> {
    Err(identity.outdated().await.into())
}

/// Returns once the cluster has removed this node.
async fn removed(identity: Arc<NodeIdentity>) -> Result<(), ServeError> {
    Err(identity.removed().await.into())
}

/// Returns once the cluster has a version that this program does not support.
async fn outgrown(versions: Arc<PeerVersions>) -> Result<(), ServeError> {
    Err(ServeError::Version(versions.outgrown().await))
}

/// Records every [`NOTE_PROGRESS`] how far this node's log is committed, so that the loss of the whole log is noticed; and what peers
/// acknowledged, so that they are asked for it. Does not return: nothing relies on a record before it is written, so one that cannot be
/// written now (no file descriptor is left, or the disk is full) is written later. Until then the older record holds; it says less, and is
/// true.
async fn note_progress(identity: Arc<NodeIdentity>, replica: Replica, acknowledgements: Acknowledgements) {
    let mut noted = 0;
    let mut failures: u32 = 0;
    loop {
        tokio::time::sleep(if noted == 0 { NOTE_FIRST } else { NOTE_PROGRESS }).await;
        let certain = replica.applied_and_durable();
        if certain <= noted {
            continue;
        }

        match identity.record_progress(certain, acknowledgements.last_from_all()).await {
            Ok(()) => {
                noted = certain;
                failures = 0;
            }
            Err(error) => {
                // Log the first failure, and one in NOTE_FAILURES_SILENT after it: about one line a minute.
                if failures.is_multiple_of(NOTE_FAILURES_SILENT) {
                    tracing::warn!(%error, "cannot record how far the log is committed; the node goes on and tries again");
                }
                failures = failures.saturating_add(1);
                tokio::time::sleep(NOTE_PROGRESS).await;
            }
        }
    }
}

/// Triggers a snapshot whenever one is due. Returns when Raft stops.
async fn take_snapshots(replica: Replica, due: Arc<Notify>) -> Result<(), ServeError> {
    loop {
        due.notified().await;
        // Does nothing if a snapshot is being built.
        replica.raft().trigger().snapshot().await.map_err(stopped)?;
    }
}

/// Returns when Raft stops, which it does by itself only when it cannot go on.
async fn raft_stops(replica: Replica) -> Result<(), ServeError> {
    // This one of Raft's two metrics channels seldom changes. Both are closed when Raft stops, and the other one has the cause.
    let mut changes = replica.raft().server_metrics();
    while changes.changed().await.is_ok() {}

    if let Some(unapplied) = unapplied(replica.table()) {
        return Err(unapplied);
    }
    replica.raft().metrics().borrow_watched().running_state.as_ref().map_err(stopped).copied()
}
