//! The table behind openraft's storage traits: applies committed entries, writes and installs snapshots.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use openraft::{
    RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
    type_config::alias::SnapshotOf,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{
    apply::applier::Applier,
    log::slow_followers::LogBytes,
    snapshot::{Pace, SnapshotFile, SnapshotStore},
    types::{
        EntryPayload, LogEntry, LogId, SnapshotMeta, StoredMembership, TypeConfig, entry_id, log_id, to_applied,
        to_stored,
    },
};
use lockkeeper_audit::Sink;
use lockkeeper_machine::Machine;
use lockkeeper_planted::Planted;
use lockkeeper_storage::files;
use lockkeeper_table::{Applied, AppliedVersion, Table, codec::records};

/// Maximum entries applied in one step: control passes between the runtime and the applying thread once for each step.
const ENTRIES_PER_TURN: usize = 256;
/// After this time the writing of a snapshot that failed for a shortage is tried again; after each further failure it is twice as long.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time between two attempts. Each takes what space there is, and a disk that is full ends the node at its log.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// openraft's state machine.
#[derive(Debug)]
pub struct StateMachine {
    table: Arc<Table>,
    applier: Applier,
    snapshots: SnapshotStore,
    pace: Pace,
    log_bytes: LogBytes,
    /// Dropped with it. A snapshot that is being written for a node that has ended is given up.
    running: Arc<()>,
}

impl StateMachine {
    /// Loads the newest snapshot, if there is one, and starts the thread that applies entries. Blocks while it reads the snapshot. A new
    /// snapshot is due after at least `snapshot_entries` entries, at another place in the log than on other nodes: see
    /// [`snapshot_due`](Self::snapshot_due).
    ///
    /// Fails if the snapshot is damaged.
    pub fn open(table: Arc<Table>, snapshots: SnapshotStore, node_id: u64, snapshot_entries: u64) -> io::Result<Self> {
        if let Some(file) = snapshots.latest() {
            drop(table.restore(read(&file, table.versions())?));
        }
        let applier = Applier::start(Arc::clone(&table), snapshots.blocking())?;
        let pace = Pace::new(node_id, snapshot_entries);
        let log_bytes = LogBytes::default();
        Ok(Self { table, applier, snapshots, pace, log_bytes, running: Arc::default() })
    }

    /// Notified when a snapshot is worth its cost: enough entries, or bytes, came since the last one, and they are a sufficient part of its
    /// size. openraft's own policy counts only entries, so the caller must trigger the snapshot.
    pub fn snapshot_due(&self) -> Arc<Notify> {
        self.pace.due()
    }

    /// The bytes of the entries that were applied since the start.
    pub fn log_bytes(&self) -> LogBytes {
        self.log_bytes.clone()
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.table.read(|applied| (applied.last_entry.map(log_id), to_stored(&applied.membership))))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        // Take only the entries that are ready: an entry never waits for further ones.
        let mut groups = entries.ready_chunks(ENTRIES_PER_TURN);
        while let Some(group) = groups.next().await {
            // Entries before one that cannot be read are applied all the same.
            let mut failed = None;
            let read = group.into_iter().map_while(|entry| entry.map_err(|error| failed = Some(error)).ok());
            let group: Vec<_> = read.collect();

            let sizes: Vec<_> = group.iter().map(|(entry, _)| size(entry)).collect();
            let bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
            self.applier.apply(group, bytes).await?;

            for (index, bytes) in sizes {
                self.log_bytes.note(index, bytes);
                self.pace.applied(index, bytes, || self.snapshots.latest().map_or(0, |latest| latest.length()));
            }

            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.pace.reset();
        // Cloned here, between two entries; written elsewhere, while further entries are applied.
        let table = Arc::clone(&self.table);
        let frozen = self.table.freeze();
        let running = Arc::downgrade(&self.running);
        SnapshotBuilder { table, frozen: Some(frozen), snapshots: self.snapshots.clone(), running }
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, file: SnapshotFile) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        let began = Instant::now();
        let bytes = file.length();
        let index = file.meta().last_log_id.map_or(0, |id| id.index);

        tracing::info!(index, bytes, "taking over the leader's snapshot");
        // Durable before it is used: afterwards the log that it covers is purged.
        let blocking = snapshots.blocking();
        if Planted::SnapshotUsedBeforePublished.is_on() {
            drop(self.table.restore(read(&file, self.table.versions())?));
        }

        let versions = Arc::clone(self.table.versions());
        let sink = self.table.audit().sink().cloned();
        let restore = move || {
            // As before a snapshot of its own (below): what this node has applied is purged with the log that the leader's snapshot
            // replaces.
            sync_audit(sink.as_ref())?;
            snapshots.publish(&file)?;
            read(&file, &versions)
        };
        let restored = blocking.run(restore).await?;

        self.table.metrics().installed_snapshot(began.elapsed());
        // Dropping a table of a million locks takes a good part of a second: neither readers nor heartbeats wait for that.
        blocking.discard("drop-table", self.table.restore(restored));
        self.pace.reset();

        // The calls on this node waited on the replaced table; their clients retry.
        self.table.calls().break_off();
        tracing::info!(index, bytes, took_ms = began.elapsed().as_millis() as u64, "took over the leader's snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>> {
        Ok(self.snapshots.latest().map(|file| openraft::Snapshot { meta: file.meta().clone(), snapshot: file }))
    }
}

/// Writes one snapshot.
#[derive(Debug)]
pub struct SnapshotBuilder {
    /// The table, for its audit files and for [`Planted::SnapshotOfLaterTable`].
    table: Arc<Table>,
    /// Present until it is written.
    frozen: Option<Applied>,
    snapshots: SnapshotStore,
    running: Weak<()>,
}

impl SnapshotBuilder {
    /// Makes one attempt.
    async fn write(&self, frozen: &Arc<Applied>) -> io::Result<SnapshotFile> {
        let frozen = Arc::clone(frozen);
        let snapshots = self.snapshots.clone();
        let last_membership = to_stored(&frozen.membership);
        let meta = SnapshotMeta { last_log_id: frozen.last_entry.map(log_id), last_membership };
        let index = meta.last_log_id.map_or(0, |id| id.index);
        let blocking = snapshots.blocking();
        let sink = self.table.audit().sink().cloned();

        let write = move || {
            // The entries that this snapshot replaces are purged afterwards: then no restart makes their lines again.
            sync_audit(sink.as_ref())?;
            let records = frozen.machine.records().map(|record| records::encode(&record));
            snapshots.write_with(&meta, &frozen.ids_used, frozen.trail, records)
        };

        let began = Instant::now();
        tracing::info!(index, "writing a snapshot");
        let file = blocking.run_in_background("snapshot", write).await?;
        let took = began.elapsed();
        self.table.metrics().wrote_snapshot(took);
        tracing::info!(index, bytes = file.length(), took_ms = took.as_millis() as u64, "wrote a snapshot");
        Ok(file)
    }

    /// Makes attempts until one succeeds, or fails for another reason than a shortage. openraft stops at an error of its builder; but log
    /// and table are sound, and without a snapshot the log only grows.
    ///
    /// Each attempt writes the same table: between two entries, as here, all audit lines up to it are on their way to the files.
    async fn write_at_last(&self, frozen: &Arc<Applied>) -> io::Result<SnapshotFile> {
        let mut pause = RETRY;
        loop {
            let error = match self.write(frozen).await {
                Ok(file) => return Ok(file),
                Err(error) => error,
            };
            if !files::is_shortage(&error) {
                return Err(error);
            }

            tracing::warn!(%error, again_in = ?pause, "a snapshot cannot be written; until one is, the log is not purged");
            sleep(pause).await;
            pause = (2 * pause).min(RETRY_MAX);
            if self.running.strong_count() == 0 {
                return Err(error);
            }
        }
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotFile>> {
        let frozen = self.frozen.take();
        let mut frozen = frozen.ok_or_else(|| io::Error::other("this snapshot was written already"))?;
        if Planted::SnapshotOfLaterTable.is_on() {
            frozen.machine = self.table.freeze().machine;
        }

        let frozen = Arc::new(frozen);
        let written = self.write_at_last(&frozen).await;
        // With it go the nodes that the table has replaced since, which would delay the runtime.
        self.snapshots.blocking().discard("drop-table", frozen);
        let file = written?;
        Ok(openraft::Snapshot { meta: file.meta().clone(), snapshot: file })
    }
}

/// Waits until the audit lines of all applied entries are on the disk.
fn sync_audit(sink: Option<&Sink>) -> io::Result<()> {
    let sink = sink.filter(|_| !Planted::SnapshotBeforeAuditSync.is_on());
    sink.map_or(Ok(()), |sink| sink.sync().map_err(io::Error::other))
}

/// Reads a whole snapshot. Blocks.
pub(crate) fn read(file: &SnapshotFile, versions: &AppliedVersion) -> io::Result<Applied> {
    let mut failed = None;
    let decode = |bytes: &[u8]| {
        let record = records::decode(bytes).map_err(|malformed| newer(&malformed.to_string()))?;
        versions.check_record(&record).map_err(|error| newer(&error.to_string()))?;
        Ok(record)
    };
    let decoded = file.records()?.map_while(|record| {
        let record = record.and_then(|bytes| decode(&bytes));
        record.map_err(|error| failed = Some(error)).ok()
    });

    let machine = Machine::from_records(decoded);
    if let Some(error) = failed {
        return Err(error);
    }
    // No error of the system: at the next start it would be the same.
    let machine = machine.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken))?;

    let meta = file.meta();
    Ok(Applied {
        machine,
        last_entry: meta.last_log_id.map(entry_id),
        membership: to_applied(&meta.last_membership),
        ids_used: file.ids_used().clone(),
        trail: file.trail(),
    })
}

/// The checksum of the whole file was checked before, so it is not damaged.
fn newer(why: &str) -> io::Error {
    let text = format!(
        "a record of the snapshot cannot be read ({why}): a later version of Lockkeeper wrote it; install that version"
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// The index of an entry, and its bytes.
fn size(entry: &LogEntry) -> (u64, usize) {
    let bytes = if let EntryPayload::Normal(payload) = &entry.payload { payload.0.len() } else { 0 };
    (entry.log_id.index, bytes)
}
