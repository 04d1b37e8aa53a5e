//! A log and the data directory that owns it.

use std::fs;

use lockkeeper::raft::{
    identity::NodeIdentity,
    log::{LogOpenError, LogOptions, LogStore},
};
use rand::{SeedableRng, rngs::StdRng};
use tempfile::TempDir;

use super::support::*;

/// A node's data directory.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn identity(&self, seed: u64) -> NodeIdentity {
        let cluster = "blue".parse().expect("an id");
        let random = &mut StdRng::seed_from_u64(seed);
        NodeIdentity::open_or_create(self.0.path(), &cluster, 1, random).expect("its own directory")
    }

    /// Begins a start, and completes it if the log opens.
    fn start(&self, seed: u64) -> Result<(NodeIdentity, LogStore), LogOpenError> {
        let identity = self.identity(seed);
        let owner = Some(identity.log_owner());
        let store = LogStore::open(&self.0.path().join("log"), LogOptions { owner, ..options().0 })?;
        identity.started().expect("written");
        Ok((identity, store))
    }

    async fn start_and_stop(&self, seed: u64) {
        let (identity, store) = self.start(seed).expect("in order");
        identity.join().await.expect("written");
        close(store).await;
    }

    fn refusal(&self, seed: u64) -> String {
        let error = self.start(seed).expect_err("it is refused");
        assert!(matches!(error, LogOpenError::NotOwn { .. }), "{error}");
        error.to_string()
    }

    fn copy_log(&self, to: &TempDir) {
        copy(&self.0.path().join("log"), &to.path().join("log"));
    }

    fn put_log_back(&self, from: &TempDir) {
        fs::remove_dir_all(self.0.path().join("log")).expect("removed");
        copy(&from.path().join("log"), &self.0.path().join("log"));
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[tokio::test]
async fn a_deleted_log_is_refused() {
    let home = Home::new();
    let (identity, store) = home.start(1).expect("a new one");
    close(store).await;
    drop(identity);
    fs::remove_dir_all(home.0.path().join("log")).expect("removed");
    // Accepted: the node had acknowledged nothing yet.
    home.start_and_stop(2).await;

    fs::remove_dir_all(home.0.path().join("log")).expect("removed");
    // Still refused when an earlier attempt has left an empty log.
    for seed in 3..6 {
        let refusal = home.refusal(seed);
        assert!(refusal.contains("it is gone, with this node's votes and acknowledged entries"), "{refusal}");
    }
}

#[tokio::test]
async fn an_older_copy_of_the_log_alone_is_refused() {
    let home = Home::new();
    let copies = tempfile::tempdir().expect("a temporary directory");
    home.start_and_stop(1).await;
    home.copy_log(&copies);
    home.start_and_stop(2).await;
    home.put_log_back(&copies);
    assert!(home.refusal(3).contains("one of the two is an older copy"));
}

#[tokio::test]
async fn a_log_beside_an_older_identity_is_refused() {
    let home = Home::new();
    home.start_and_stop(1).await;
    let file = home.0.path().join("identity.toml");
    let older = fs::read(&file).expect("readable");
    home.start_and_stop(2).await;
    fs::write(&file, older).expect("written");
    assert!(home.refusal(3).contains("one of the two is an older copy"));
}

#[tokio::test]
async fn the_log_of_another_node_is_refused() {
    let home = Home::new();
    let other = Home::new();
    let copies = tempfile::tempdir().expect("a temporary directory");
    home.start_and_stop(1).await;
    other.start_and_stop(2).await;
    other.copy_log(&copies);
    home.put_log_back(&copies);
    assert!(home.refusal(3).contains("it belongs to incarnation"));
}

#[tokio::test]
async fn a_node_starts_again_after_an_interrupted_start() {
    let home = Home::new();
    home.start_and_stop(1).await;
    // The log has recorded its start; the identity has not.
    let identity = home.identity(2);
    let owner = Some(identity.log_owner());
    let store = LogStore::open(&home.0.path().join("log"), LogOptions { owner, ..options().0 }).expect("in order");
    close(store).await;
    // Neither has recorded it.
    drop(home.identity(3));
    home.start_and_stop(4).await;
    home.start_and_stop(5).await;
}
