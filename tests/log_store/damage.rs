//! A damaged log opens with all its contents, or not at all.
//!
//! sled panics on some damage, and hangs or loses entries on other. Each attempt is therefore made in this process, as in a node: a panic
//! in `open`, or an endless wait, fails the test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lockkeeper::raft::{
    log::{LogOpenError, LogOptions, LogStore},
    types::Vote,
};
use openraft::storage::RaftLogStorage;
use tempfile::TempDir;

use super::support::*;

/// A closed log with records of all kinds, and its contents.
struct Original {
    directory: TempDir,
    contents: String,
}

fn with_snapshot() -> LogOptions {
    LogOptions { snapshot: Some(id(1, 20)), ..options().0 }
}

impl Original {
    async fn new() -> Self {
        let directory = temporary();
        let mut held = String::new();
        // Not opened after the last round: at an opening sled writes its own snapshot, with which it would notice a loss.
        for round in 0..3 {
            let mut store = LogStore::open(directory.path(), with_snapshot()).expect("in order");
            store.save_vote(&Vote::new_committed(1 + round, 7)).await.expect("saved");
            if round > 0 {
                store.save_committed(Some(id(1, 20))).await.expect("saved");
                within(store.purge(id(1, 20))).await.expect("purged");
            }
            for index in round * 40..(round + 1) * 40 {
                let bytes = if index % 16 == 0 { 9000 } else { 60 };
                append(&mut store, vec![entry(1 + round, index, bytes)]).await;
            }
            held = contents(&mut store).await;
            close(store).await;
        }
        Self { directory, contents: held }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("readable") {
                let path = entry.expect("readable").path();
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }

    /// Opens a copy in which this file has other bytes, or is missing. Returns whether it opened, after a check that it is complete.
    async fn opens_with(&self, changed: &Path, bytes: Option<&[u8]>, what: &str) -> bool {
        let copy = temporary();
        for file in self.files() {
            let name = file.strip_prefix(self.directory.path()).expect("it is below");
            let target = copy.path().join(name);
            fs::create_dir_all(target.parent().expect("it is below")).expect("made");
            match (file == changed, bytes) {
                (true, Some(bytes)) => fs::write(target, bytes).expect("written"),
                (true, None) => {}
                (false, _) => drop(fs::copy(&file, target).expect("copied")),
            }
        }
        let mut store = match LogStore::open(copy.path(), with_snapshot()) {
            Ok(store) => store,
            Err(LogOpenError::Locked { .. } | LogOpenError::NotDurable { .. }) => {
                panic!("{what}: an error of another kind")
            }
            Err(error) => {
                let names_it = error.to_string().contains(&copy.path().display().to_string());
                assert!(names_it, "{what}: {error} does not name the directory");
                return false;
            }
        };
        assert_eq!(contents(&mut store).await, self.contents, "{what}: opened, but it lost something");
        close(store).await;
        true
    }
}

/// Pseudo-random numbers, the same in each run.
fn scattered(count: u64, below: u64) -> impl Iterator<Item = usize> {
    (1..=count).map(move |n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % below) as usize)
}

#[tokio::test]
async fn a_log_with_a_flipped_bit_opens_whole_or_is_refused() {
    let original = Original::new().await;
    let mut opened = 0;
    let mut refused = 0;
    for path in original.files() {
        let whole = fs::read(&path).expect("readable");
        // Most of sled's file is empty: flip bits in the used part only.
        let used = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
        if used == 0 {
            continue;
        }
        let count = if path.ends_with("sled/db") { 800 } else { 150 };
        for at in scattered(count, used as u64) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            let what = format!("{} flipped at {at}", path.display());
            if original.opens_with(&path, Some(&flipped), &what).await {
                opened += 1;
            } else {
                refused += 1;
            }
        }
    }
    println!("{opened} opened whole, {refused} refused");
    assert!(opened > 0 && refused > 100, "{opened} opened whole, {refused} refused");
}

#[tokio::test]
async fn a_log_with_a_cut_or_missing_file_opens_whole_or_is_refused() {
    let original = Original::new().await;
    let mut opened = 0;
    let mut refused = 0;
    for path in original.files() {
        let whole = fs::read(&path).expect("readable");
        let lengths = [0, 1, whole.len() / 2, whole.len().saturating_sub(1)];
        let count = if path.ends_with("sled/db") { 150 } else { 4 };
        let lengths = lengths.into_iter().chain(scattered(count, whole.len().max(1) as u64)).map(Some);
        for length in lengths.chain([None]).filter(|length| length.is_none_or(|length| length <= whole.len())) {
            let what = format!("{} cut to {length:?}", path.display());
            if original.opens_with(&path, length.map(|length| &whole[..length]), &what).await {
                opened += 1;
            } else {
                refused += 1;
            }
        }
    }
    println!("{opened} opened whole, {refused} refused");
    assert!(opened > 0 && refused > 20, "{opened} opened whole, {refused} refused");
}

fn assert_damaged(opened: Result<LogStore, LogOpenError>, why: &str) {
    let error = opened.expect_err("it is damaged");
    assert!(matches!(error, LogOpenError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
    assert!(error.to_string().contains("replace this node"), "{error}");
}

#[tokio::test]
async fn an_emptied_or_older_log_is_refused() {
    let original = Original::new().await;
    let at = original.directory.path();
    let sled = at.join("sled");

    fs::remove_dir_all(&sled).expect("removed");
    assert_damaged(LogStore::open(at, with_snapshot()), "emptied");
    assert_damaged(LogStore::open(at, with_snapshot()), "emptied");

    // An older copy, as from a backup: of the database alone, and of all files but the high-water mark.
    for (restored, why) in
        [(vec!["sled/db"], "of its journal"), (vec!["sled/db", "journal-0", "journal-1"], "the vote is older")]
    {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut store = must_open(directory.path());
        append(&mut store, vec![entry(1, 0, 1)]).await;
        close(store).await;
        let backup = restored.iter().map(|name| fs::read(directory.path().join(name)).expect("readable"));
        let backup: Vec<_> = backup.collect();
        let mut store = must_open(directory.path());
        store.save_vote(&Vote::new(1, 1)).await.expect("saved");
        close(store).await;
        // A further opening moves the journal's records to sled, and sled records the move.
        close(must_open(directory.path())).await;
        for file in fs::read_dir(directory.path().join("sled")).expect("readable") {
            let path = file.expect("readable").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("snap.")) {
                fs::remove_file(path).expect("removed");
            }
        }
        for (name, bytes) in restored.iter().zip(backup) {
            fs::write(directory.path().join(name), bytes).expect("written");
        }
        assert_damaged(open(directory.path()), why);
    }
}

/// openraft applies all entries up to the commit index before it hears of a leader: another entry in its place would change the table.
#[tokio::test]
async fn a_log_with_another_entry_in_the_place_of_the_committed_one_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = must_open(directory.path());
    append(&mut store, vec![entry(1, 0, 10), entry(1, 1, 10), entry(2, 2, 10), entry(2, 3, 10)]).await;
    store.save_committed(Some(id(1, 1))).await.expect("saved");
    close(store).await;

    let mut store = must_open(directory.path());
    store.save_committed(Some(id(1, 2))).await.expect("saved");
    close(store).await;
    assert_damaged(open(directory.path()), "was committed");
}

#[tokio::test]
async fn a_log_without_its_high_water_mark_is_refused() {
    let original = Original::new().await;
    fs::remove_file(original.directory.path().join("high-water")).expect("removed");
    assert_damaged(LogStore::open(original.directory.path(), with_snapshot()), "`high-water` is missing");
}

#[tokio::test]
async fn a_log_with_blob_files_is_refused_since_sled_never_syncs_them() {
    let original = Original::new().await;
    fs::write(original.directory.path().join("sled/blobs/17"), "a page").expect("written");
    assert_damaged(LogStore::open(original.directory.path(), with_snapshot()), "`blobs`");
}

#[tokio::test]
async fn files_left_by_a_kill_while_opening_are_removed() {
    let original = Original::new().await;
    let unfinished = original.directory.path().join("sled/snap.00000000000FFFFF.generating");
    fs::write(&unfinished, "half").expect("written");
    let mut store = LogStore::open(original.directory.path(), with_snapshot()).expect("in order");
    assert_eq!(contents(&mut store).await, original.contents);
    assert!(!unfinished.exists());
    close(store).await;
}
