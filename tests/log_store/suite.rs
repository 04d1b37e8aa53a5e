//! openraft's test suite for a log store.

use lockkeeper::raft::{log::LogStore, types::TypeConfig};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use super::{machine::Machine, support};

/// A log in its own directory, which is removed once the log is closed.
struct Place {
    store: LogStore,
    _directory: TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        futures::executor::block_on(self.store.close()).expect("closed in order");
    }
}

/// Builds logs that keep this many bytes of entries in memory.
struct Builder(usize);

impl StoreBuilder<TypeConfig, LogStore, Machine, Place> for Builder {
    async fn build(&self) -> Result<(Place, LogStore, Machine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = lockkeeper::raft::log::LogOptions { recent_bytes: self.0, ..support::options().0 };
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
