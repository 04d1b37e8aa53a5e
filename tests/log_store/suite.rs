//! openraft's own tests of a store.

use std::{
    io,
    sync::{Arc, Mutex},
};

use futures::{Stream, TryStreamExt};
use lockkeeper::raft::{
    log::LogStore,
    types::{Applied, EntryPayload, LogId, SnapshotMeta, StoredMembership, TypeConfig},
};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, StorageError,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
    testing::log::{StoreBuilder, Suite},
    type_config::alias::SnapshotOf,
};
use tempfile::TempDir;

use crate::support;

/// A machine that knows nothing but how far it is.
#[derive(Clone, Default)]
struct Machine(Arc<Mutex<Applications>>);

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
                responder.send(Applied::default());
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

/// A log in a directory of its own, whose files go when its writer is done with them.
struct Place {
    store: LogStore,
    _directory: TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        futures::executor::block_on(self.store.close()).expect("closed in order");
    }
}

/// Makes logs that keep so many bytes of entries in memory.
struct Builder(usize);

impl StoreBuilder<TypeConfig, LogStore, Machine, Place> for Builder {
    async fn build(&self) -> Result<(Place, LogStore, Machine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = lockkeeper::raft::log::Options { recent_bytes: self.0, ..support::options().0 };
        let store = LogStore::open(directory.path(), options).expect("a new log opens");
        Ok((Place { store: store.clone(), _directory: directory }, store, Machine::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_suite_passes_from_memory() {
    Suite::test_all(Builder(1 << 20)).await.expect("all of it passes");
}

/// With nothing in memory but the last entry, all reads go to the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_suite_passes_from_the_disk() {
    Suite::test_all(Builder(0)).await.expect("all of it passes");
}
