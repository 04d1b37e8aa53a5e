//! The cost of a durable append, compared with a write and an fsync of a bare file: `cargo bench --bench log_store`.
//!
//! Disks differ, and one disk differs from minute to minute: a regression shows in the ratio of the two, measured in turns. The ratio is
//! printed at the end, with the cost of a purge for logs of several sizes. `TMPDIR` selects the disk.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark measures real time, and prints figures"
)]

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lockkeeper::raft::{
    log::{LogOptions, LogStore},
    types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload, TypeConfig, Vote},
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Entries per append.
const GROUPS: [usize; 2] = [1, 64];
/// Size of an entry, in bytes: that of a batch of one acquire.
const ENTRY_BYTES: usize = 128;
/// Appends to the log and to the bare file, for the ratio.
const TURNS: usize = 400;

/// The log of a node.
struct Log {
    runtime: Runtime,
    store: LogStore,
    next: u64,
    _directory: TempDir,
}

impl Log {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a place for temporary files");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let store = LogStore::open(&directory.path().join("log"), LogOptions::default()).expect("a new log opens");
        Self { runtime: runtime.expect("a runtime"), store, next: 0, _directory: directory }
    }

    /// Appends `count` entries, and waits until they are durable.
    fn append(&mut self, count: usize) {
        let leader_id = CommittedLeaderId::new(1);
        let entry = |index| LogEntry {
            log_id: LogId { leader_id, index },
            payload: EntryPayload::Normal(Payload(vec![index as u8; ENTRY_BYTES].into())),
        };
        let entries: Vec<LogEntry> = (self.next..).map(entry).take(count).collect();
        self.next += count as u64;
        self.runtime.block_on(async {
            let (flushed, answer) = TypeConfig::oneshot();
            self.store.append(entries, IOFlushed::<TypeConfig>::signal(flushed)).await.expect("it is appended");
            answer.await.expect("it is answered").expect("it is durable");
        });
    }

    /// Saves a vote, and waits until it is durable.
    fn vote(&mut self) {
        self.runtime.block_on(async { self.store.save_vote(&Vote::new(1, 1)).await.expect("it is durable") });
    }

    /// Starts the purge of all entries, which goes on after this returns.
    fn purge(&mut self) {
        let last = LogId { leader_id: CommittedLeaderId::new(1), index: self.next - 1 };
        self.runtime.block_on(async { self.store.purge(last).await.expect("it is queued") });
    }
}

/// A bare file: the lower bound of a durable append.
struct Bare {
    file: File,
}

impl Bare {
    fn new(directory: &Path) -> Self {
        Self { file: File::create(directory.join("bare")).expect("a new file") }
    }

    fn append(&mut self, count: usize) {
        self.file.write_all(&vec![7; ENTRY_BYTES * count]).expect("there is room");
        self.file.sync_data().expect("the disk syncs");
    }
}

fn append(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a place for temporary files");
    let mut group = criterion.benchmark_group("durable append");
    for count in GROUPS {
        group.throughput(Throughput::Elements(count as u64));
        let mut log = Log::new();
        group.bench_function(BenchmarkId::new("log", count), |bencher| bencher.iter(|| log.append(count)));
        let mut bare = Bare::new(directory.path());
        group.bench_function(BenchmarkId::new("bare file", count), |bencher| bencher.iter(|| bare.append(count)));
    }
    group.finish();
}

/// Measures the two in turns, so that a disturbance affects both.
fn ratio(_: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a place for temporary files");
    for count in GROUPS {
        let mut log = Log::new();
        let mut bare = Bare::new(directory.path());
        let mut of_log = Vec::new();
        let mut of_bare = Vec::new();
        for _ in 0..TURNS {
            of_log.push(timed(|| log.append(count)));
            of_bare.push(timed(|| bare.append(count)));
        }
        let of_log = median(of_log);
        let of_bare = median(of_bare);
        let ratio = of_log.as_secs_f64() / of_bare.as_secs_f64();
        println!("durable append of {count}: log {of_log:?}, bare file {of_bare:?}: ratio {ratio:.2}");
    }
}

/// Sizes of the purged logs, in entries: more than the journal holds, so that entries are read from sled.
const PURGED: [usize; 3] = [40_000, 80_000, 160_000];
/// The fewest entries that a purge removes between two votes.
const SLICE: usize = 250;

/// The cost of a purge per entry, which must not grow with the log; and the longest wait of a vote meanwhile.
fn purge(_: &mut Criterion) {
    for entries in PURGED {
        let mut log = Log::new();
        (0..entries / SLICE).for_each(|_| log.append(SLICE));
        let votes = entries / SLICE + 2;
        let quiet = (0..votes).map(|_| timed(|| log.vote())).sum::<Duration>();
        log.purge();
        let waits: Vec<_> = (0..votes).map(|_| timed(|| log.vote())).collect();
        let purging = waits.iter().sum::<Duration>();
        let longest = waits.into_iter().max().expect("there are votes");
        let each = purging.saturating_sub(quiet) / entries as u32;
        println!(
            "purge of {entries}: {purging:?} ({each:?} for each entry beside the votes), longest vote {longest:?}"
        );
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort();
    durations[durations.len() / 2]
}

criterion_group!(log_store, append, ratio, purge);
criterion_main!(log_store);
