//! A state machine for openraft's tests of a store.

use std::{
    io,
    sync::{Arc, Mutex},
};

use futures::{Stream, TryStreamExt};
use lockkeeper::{
    raft::types::{EntryPayload, LogId, SnapshotMeta, StoredMembership, TypeConfig},
    table::Deliveries,
};
use openraft::{
    OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
    type_config::alias::SnapshotOf,
};

/// A state machine that records only the last applied id.
#[derive(Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<Applications>>);

#[derive(Default)]
struct Applications {
    meta: SnapshotMeta,
    snapshot: Option<SnapshotMeta>,
}

impl Machine {
    fn with<T>(&self, act: impl FnOnce(&mut Applications) -> T) -> T {
        act(&mut self.0.lock().expect("nothing panics while it holds it"))
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.with(|it| (it.meta.last_log_id, it.meta.last_membership.clone())))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.with(|it| it.meta.last_log_id = Some(entry.log_id));
            if let EntryPayload::Membership(membership) = entry.payload {
                self.with(|it| it.meta.last_membership = StoredMembership::new(Some(entry.log_id), membership));
            }
            if let Some(responder) = responder {
                responder.send(Deliveries::default());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, (): ()) -> io::Result<()> {
        self.with(|it| (it.meta, it.snapshot) = (meta.clone(), Some(meta.clone())));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, ()>>> {
        Ok(self.with(|it| it.snapshot.clone()).map(|meta| Snapshot { meta, snapshot: () }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, ()>> {
        let meta = self.with(|it| it.snapshot.insert(it.meta.clone()).clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}
