//! How sled's files grow while the log is purged.
//!
//! ```text
//! LOCKKEEPER_GROWTH_ENTRIES=2000000 cargo test --release --test node -- --ignored --nocapture growth
//! ```

use std::{env, fs, path::Path};

use lockkeeper::raft::{
    log::{LogOptions, LogStore},
    types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload, TypeConfig},
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};

/// Entries in one append.
const APPEND: u64 = 50;

fn id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(1), index }
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

fn size(directory: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("it exists").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => found.extend(size(&entry.path())),
            Ok(meta) => found.push((name, meta.len())),
            Err(_) => {}
        }
    }
    found
}

/// The largest sizes of a log.
#[derive(Debug)]
pub(crate) struct Grown {
    /// Bytes of the entries in the log.
    pub(crate) log_max: u64,
    /// Bytes of sled's file.
    pub(crate) sled_max: u64,
    /// Bytes of all files.
    pub(crate) files_max: u64,
}

/// Appends entries; after each `purge_every` of them, purges all but `keep`. Prints the sizes of the files now and then.
pub(crate) async fn grow(
    directory: &Path,
    journal_bytes: u64,
    entries: u64,
    bytes: usize,
    purge_every: u64,
    keep: u64,
) -> Grown {
    let options = LogOptions { journal_bytes, ..LogOptions::default() };
    let mut store = LogStore::open(directory, options).expect("a new log");
    let report = (entries / 10).max(APPEND);
    let log_max = (purge_every + keep) * (bytes as u64 + 40);
    println!(
        "{entries} entries of {bytes} B; purged every {purge_every}, {keep} are kept: at most {log_max} B in the log"
    );
    let mut grown = Grown { log_max, sled_max: 0, files_max: 0 };
    let mut noise: u64 = 1;
    for first in (0..entries).step_by(APPEND as usize) {
        let mut entry = |index| {
            // Not compressible, as random data of clients are not.
            let payload: Vec<u8> = (0..bytes)
                .map(|_| {
                    noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (noise >> 56) as u8
                })
                .collect();
            LogEntry { log_id: id(index), payload: EntryPayload::Normal(Payload(payload.into())) }
        };
        let appended: Vec<LogEntry> = (first..first + APPEND).map(&mut entry).collect();
        let (flushed, answer) = TypeConfig::oneshot();
        store.append(appended, IOFlushed::<TypeConfig>::signal(flushed)).await.expect("appended");
        answer.await.expect("answered").expect("durable");
        let next = first + APPEND;
        if next.is_multiple_of(purge_every) && next > keep {
            store.purge(id(next - keep - 1)).await.expect("purged");
        }
        let files = size(directory);
        let all: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let sled: u64 = files.iter().filter(|(name, _)| name == "db").map(|(_, bytes)| bytes).sum();
        (grown.sled_max, grown.files_max) = (grown.sled_max.max(sled), grown.files_max.max(all));
        if next.is_multiple_of(report) {
            println!("{next} entries: sled {sled} B, all files {all} B");
        }
    }
    store.close().await.expect("closed");
    println!("sled's file took at most {:.2} times the largest log", grown.sled_max as f64 / log_max as f64);
    grown
}

/// As the log of a node, in a temporary directory.
async fn measure(entries: u64, bytes: usize, purge_every: u64, keep: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let journal_bytes = LogOptions::default().journal_bytes;
    println!("{:?}", grow(directory.path(), journal_bytes, entries, bytes, purge_every, keep).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes"]
async fn sleds_file_over_many_entries() {
    let entries = number("LOCKKEEPER_GROWTH_ENTRIES", 2_000_000);
    measure(entries, number("LOCKKEEPER_GROWTH_BYTES", 100) as usize, 10_000, 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes"]
async fn sleds_file_with_large_entries() {
    measure(number("LOCKKEEPER_GROWTH_LARGE", 40_000), 16 << 10, 1_000, 500).await;
}
