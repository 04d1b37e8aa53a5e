//! The table behind openraft's storage traits: applies what is committed, and makes and takes snapshots.

use std::{io, sync::Arc};

use futures::{Stream, TryStreamExt};
use openraft::{
    RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
    type_config::alias::SnapshotOf,
};
use tokio::sync::Notify;

use super::{
    commands, records,
    snapshot::{Pace, SnapshotFile, SnapshotStore},
    table::{Applied, Batch, Table},
    types::{Entry, EntryPayload, LogId, SnapshotMeta, StoredMembership, TypeConfig},
};
use crate::{machine::Machine, planted::Planted};

/// What openraft drives.
#[derive(Debug)]
pub struct StateMachine {
    table: Arc<Table>,
    snapshots: SnapshotStore,
    pace: Pace,
}

impl StateMachine {
    /// Starts from the newest snapshot, if there is one. Blocks while it reads it. A new one is due after so many entries, or later, and
    /// not when another node's is: see [`snapshot_due`](Self::snapshot_due).
    ///
    /// Fails if the snapshot is damaged.
    pub fn open(table: Arc<Table>, snapshots: SnapshotStore, node_id: u64, snapshot_entries: u64) -> io::Result<Self> {
        if let Some(file) = snapshots.latest() {
            table.restore(read(&file)?);
        }
        Ok(Self { table, snapshots, pace: Pace::new(node_id, snapshot_entries) })
    }

    /// Told when a snapshot is worth its cost: enough entries came since the last one, and their bytes are not few beside its own. openraft
    /// knows entries only, so it is to be asked for one then.
    pub fn snapshot_due(&self) -> Arc<Notify> {
        self.pace.due()
    }

    fn apply_entry(&self, entry: Entry, answer: bool) -> io::Result<super::types::Applied> {
        let log_id = entry.log_id;
        match entry.payload {
            EntryPayload::Blank => self.table.pass(log_id, None),
            EntryPayload::Membership(membership) => self.table.pass(log_id, Some(membership)),
            EntryPayload::Normal(payload) => {
                let (time, commands) =
                    commands::decode(&payload.0).map_err(|malformed| damaged(&log_id, &malformed.to_string()))?;
                return Ok(self.table.apply(log_id, Batch { time, commands }, answer));
            }
        }
        Ok(super::types::Applied::default())
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.table.read(|applied| (applied.log_id, applied.membership.clone())))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let bytes = if let EntryPayload::Normal(payload) = &entry.payload { payload.0.len() } else { 0 };
            let index = entry.log_id.index;
            let applied = self.apply_entry(entry, responder.is_some())?;
            self.pace.applied(index, bytes, || self.snapshots.latest().map_or(0, |latest| latest.length()));
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.pace.begin_again();
        // Frozen here, between two entries; written elsewhere, while entries are applied.
        let (table, frozen) = (Arc::clone(&self.table), self.table.freeze());
        SnapshotBuilder { table, frozen, snapshots: self.snapshots.clone() }
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, file: SnapshotFile) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        // Durable before it is used: once it is, the log behind it is purged.
        let blocking = snapshots.blocking();
        if Planted::SnapshotUsedBeforePublished.is_on() {
            self.table.restore(read(&file)?);
        }
        let restored = blocking.run(move || snapshots.publish(&file).and_then(|()| read(&file))).await?;
        self.table.restore(restored);
        self.pace.begin_again();
        // The calls that wait here waited for a table that is gone; their clients ask again.
        self.table.calls().break_off();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>> {
        Ok(self.snapshots.latest().map(|file| openraft::Snapshot { meta: file.meta().clone(), snapshot: file }))
    }
}

/// Writes one snapshot.
#[derive(Debug)]
pub struct SnapshotBuilder {
    /// For [`Planted::SnapshotOfLaterTable`] alone.
    table: Arc<Table>,
    frozen: Applied,
    snapshots: SnapshotStore,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotFile>> {
        let mut frozen = self.frozen.clone();
        if Planted::SnapshotOfLaterTable.is_on() {
            frozen.machine = self.table.freeze().machine;
        }
        let snapshots = self.snapshots.clone();
        let meta = SnapshotMeta { last_log_id: frozen.log_id, last_membership: frozen.membership.clone() };
        let blocking = snapshots.blocking();
        let write = move || snapshots.write(&meta, frozen.machine.records().map(|r| records::encode(&r)));
        let file = blocking.run_aside("snapshot", write).await?;
        Ok(openraft::Snapshot { meta: file.meta().clone(), snapshot: file })
    }
}

/// Reads a whole snapshot. Blocks.
fn read(file: &SnapshotFile) -> io::Result<Applied> {
    let mut failed = None;
    let decoded = file.records()?.map_while(|record| {
        let record = record.and_then(|bytes| records::decode(&bytes).map_err(io::Error::other));
        record.map_err(|error| failed = Some(error)).ok()
    });
    let machine = Machine::from_records(decoded);
    if let Some(error) = failed {
        return Err(error);
    }
    let machine = machine.map_err(io::Error::other)?;
    let meta = file.meta();
    Ok(Applied { machine, log_id: meta.last_log_id, membership: meta.last_membership.clone() })
}

fn damaged(log_id: &LogId, why: &str) -> io::Error {
    let message = format!(
        "log entry {log_id} cannot be read ({why}): it is damaged or was written by a newer version; \
         remove this member from the cluster and add a new one, or install that version"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}
