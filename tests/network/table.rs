//! A state machine that records the applied entries in order; its snapshots are in memory.

use std::{
    io::{self, Cursor},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use lockkeeper::{
    raft::{
        network::{SnapshotReceiver, SnapshotSink, SnapshotSource},
        types::{EntryPayload, LogId, SnapshotMeta, StoredMembership, TypeConfig},
    },
    table::Deliveries,
};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, Snapshot,
    storage::{EntryResponder, RaftStateMachine},
    type_config::alias::SnapshotOf,
};

#[derive(Clone, Default)]
pub(crate) struct Table {
    state: Arc<Mutex<State>>,
    snapshot: SnapshotShelf,
}

/// The newest snapshot of a node, which outlives its process.
#[derive(Clone, Default)]
pub(crate) struct SnapshotShelf(Arc<Mutex<Option<(SnapshotMeta, MemorySnapshot)>>>);

impl SnapshotShelf {
    /// A new shelf with the current snapshot of this one.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::default();
        copy.put(self.get());
        copy
    }

    fn get(&self) -> Option<(SnapshotMeta, MemorySnapshot)> {
        self.0.lock().expect("no code panics with the lock held").clone()
    }

    fn put(&self, snapshot: Option<(SnapshotMeta, MemorySnapshot)>) {
        *self.0.lock().expect("no code panics with the lock held") = snapshot;
    }
}

#[derive(Clone, Default)]
struct State {
    applied: Option<LogId>,
    membership: StoredMembership,
    /// Length and content of each applied entry.
    lines: Vec<u8>,
}

impl Table {
    /// The table as it is in the snapshot on this shelf, where its own snapshots go.
    pub(crate) fn restore(snapshot: SnapshotShelf) -> Self {
        let state = snapshot.get().map(|(meta, snapshot)| State::restore(&meta, &snapshot)).unwrap_or_default();
        Self { state: Arc::new(Mutex::new(state)), snapshot }
    }

    /// The applied entries.
    pub(crate) fn lines(&self) -> Vec<u8> {
        self.state().lines.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics with the lock held")
    }
}

impl State {
    fn restore(meta: &SnapshotMeta, snapshot: &MemorySnapshot) -> Self {
        Self { applied: meta.last_log_id, membership: meta.last_membership.clone(), lines: snapshot.0.to_vec() }
    }
}

impl RaftStateMachine<TypeConfig> for Table {
    type SnapshotData = MemorySnapshot;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut state = self.state();
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(payload) => {
                    state.lines.extend((payload.0.len() as u32).to_be_bytes());
                    state.lines.extend(payload.0);
                }
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            drop(state);
            if let Some(responder) = responder {
                responder.send(Deliveries::default());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: MemorySnapshot) -> io::Result<()> {
        *self.state() = State::restore(meta, &snapshot);
        self.snapshot.put(Some((meta.clone(), snapshot)));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, MemorySnapshot>>> {
        Ok(self.snapshot.get().map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Table {
    type SnapshotData = MemorySnapshot;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, MemorySnapshot>> {
        let State { applied, membership, lines } = self.state().clone();
        let meta = SnapshotMeta { last_log_id: applied, last_membership: membership };
        let snapshot = MemorySnapshot(lines.into());
        self.snapshot.put(Some((meta.clone(), snapshot.clone())));
        Ok(Snapshot { meta, snapshot })
    }
}

#[derive(Clone)]
pub(crate) struct MemorySnapshot(pub(crate) Bytes);

impl SnapshotSource for MemorySnapshot {
    type Reader = Cursor<Bytes>;

    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    async fn open(&self) -> io::Result<Cursor<Bytes>> {
        Ok(Cursor::new(self.0.clone()))
    }
}

/// Counts the received pieces of snapshots.
#[derive(Clone, Default)]
pub(crate) struct MemorySink {
    pieces: Arc<AtomicUsize>,
}

impl MemorySink {
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.load(Ordering::Relaxed)
    }
}

pub(crate) struct Arriving {
    bytes: BytesMut,
    pieces: Arc<AtomicUsize>,
}

impl SnapshotSink for MemorySink {
    type SnapshotData = MemorySnapshot;
    type Receiver = Arriving;

    async fn begin(&self, _meta: &SnapshotMeta, length: u64) -> io::Result<Arriving> {
        Ok(Arriving { bytes: BytesMut::with_capacity(length as usize), pieces: self.pieces.clone() })
    }
}

impl SnapshotReceiver for Arriving {
    type SnapshotData = MemorySnapshot;

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    async fn finish(self) -> io::Result<MemorySnapshot> {
        Ok(MemorySnapshot(self.bytes.freeze()))
    }
}
