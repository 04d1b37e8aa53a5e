//! The bound of a node's disk space, as `cluster-configs/day-2.md` states it, and leftovers that a restart removes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::{
    client::{NewData, Session, types::WANTS_MAX},
    local::{LocalCluster, Signal},
};
use tokio::time::{Instant, sleep, timeout};

use super::{growth, mounts::bytes_used};
use crate::support::{LONG, client, cluster_with, leader, long_session, until};

const DATA_BYTES: usize = 16 << 10;
const LOCKS: usize = 8;
const SNAPSHOT_ENTRIES: u64 = 10;
const KEEP_ENTRIES: u64 = 5;
const BACKLOG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of updates in the test of a cluster: several times the bound of the log.
const WRITTEN: u64 = 8 << 20;
/// Then, while a follower is stopped: several times that bound again.
const MISSED: u64 = 10 << 20;
/// Tasks that write large entries.
const LARGE_WRITERS: usize = 4;
/// A number of entries that no test of large entries reaches.
const ENTRIES_UNREACHED: u64 = 1_000_000;
/// Bytes of data in the test of large entries: beyond the second place for a snapshot of node 1, which is 177 MiB from its start.
const WRITTEN_LARGE: u64 = 200 << 20;
/// What a node keeps of them: 128 MiB since its snapshot, and 64 MiB behind it.
const KEPT_LARGE: u64 = 192 << 20;
/// The backlog in the test of large entries with a member that is down.
const BACKLOG_DOWN: u64 = 8 << 20;
/// Bytes of data there.
const WRITTEN_DOWN: u64 = 128 << 20;
/// What the leader keeps of them: 64 MiB behind its snapshot, the backlog, and with room to spare the few entries since the snapshot.
const KEPT_DOWN: u64 = 96 << 20;
/// Bytes of entries in the test of the log: several times its bound.
const APPENDED: u64 = 96 << 20;

/// The parts of the bound: see "Disk" in `cluster-configs/day-2.md`.
const FIXED: u64 = 16 << 20;
/// A file of the journal grows to eight times its target size, and is allocated an eighth larger.
const JOURNAL_GROWTH: u64 = 9;
const SLED_FACTOR: u64 = 3;

/// The bytes of log that are kept. `snapshot`: bytes of the largest snapshot; `entry`: of an entry.
fn log_bound(snapshot: u64, entry: u64) -> u64 {
    (2 * SNAPSHOT_ENTRIES + KEEP_ENTRIES) * entry + snapshot / 2 + BACKLOG_BYTES_MAX
}

/// The bytes of a log's files, for this target size of each file of the journal and this much log.
fn files_bound(journal_bytes: u64, log: u64) -> u64 {
    let journal_file = JOURNAL_GROWTH * journal_bytes;
    FIXED + 2 * journal_file + SLED_FACTOR * (log + journal_file)
}

fn data(cluster: &LocalCluster, node: u64) -> PathBuf {
    cluster.node(node).config().data_dir.clone()
}

/// The names of the files below a directory, with their sizes.
fn files(directory: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => found.extend(files(&entry.path())),
            Ok(meta) => drop(found.insert(entry.file_name().to_string_lossy().into_owned(), meta.len())),
            Err(_) => {}
        }
    }
    found
}

/// Updates the data of a lock until it is stopped. The bytes differ, so that nothing compresses them.
async fn update(session: Session, number: usize, going: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let name = format!("data/{number}");
    let guard = session.acquire(&name).await.expect("free");
    let mut noise = number as u64 + 1;
    while going.load(Ordering::Relaxed) {
        let bytes: Vec<u8> = (0..DATA_BYTES)
            .map(|_| {
                noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (noise >> 56) as u8
            })
            .collect();
        if guard.update(&name, NewData::Held(&bytes)).await.is_ok() {
            written.fetch_add(DATA_BYTES as u64, Ordering::Relaxed);
        }
    }
}

/// Acquires the most locks that one command can, with data, and releases them, until all writers together have written enough: an entry of
/// one MiB, and a small one.
async fn write_large_entries(session: &Session, writer: usize, written: &AtomicU64, enough: u64) {
    let names: Vec<String> = (0..WANTS_MAX).map(|lock| format!("data/{writer}/{lock}")).collect();
    let data = vec![7_u8; DATA_BYTES];
    while written.load(Ordering::Relaxed) < enough {
        let names = names.iter().map(String::as_str);
        let Ok(guard) = session.acquire_all(names).data(&data).wait_at_most(LONG).await else { continue };
        written.fetch_add((WANTS_MAX * DATA_BYTES) as u64, Ordering::Relaxed);
        // Should it fail, it goes on in the background, and the next acquire waits for it.
        let _ = guard.release().await;
    }
}

/// Writes at least this many bytes of data in large entries. Returns how many it wrote.
async fn write_large(session: &Session, enough: u64) -> u64 {
    let written = AtomicU64::new(0);
    let writers = (0..LARGE_WRITERS).map(|writer| write_large_entries(session, writer, &written, enough));
    let all = timeout(LONG, join_all(writers)).await;
    assert!(all.is_ok(), "only {} bytes in {LONG:?}", written.load(Ordering::Relaxed));
    written.load(Ordering::Relaxed)
}

/// Waits until a node has purged its log down to this many bytes, by the average entry. Returns the last entry that it purged.
async fn until_kept(cluster: &LocalCluster, node: u64, written: u64, kept_max: u64) -> u64 {
    until("the log is within its bound", async || {
        let status = cluster.node(node).status().await.ok()?;
        let entry = written / status.last_log_index;
        let kept = (status.last_log_index - status.purged_index) * entry;
        let is_within = status.purged_index > 0 && kept <= kept_max;
        is_within.then(|| {
            println!("kept {kept} of {written} bytes");
            status.purged_index
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stays_within_the_bound_under_load_with_a_slow_follower() {
    let mut cluster = cluster_with(|options| {
        options.raft.snapshot_entries = SNAPSHOT_ENTRIES;
        options.raft.keep_entries = KEEP_ENTRIES;
        options.raft.backlog_bytes_max = BACKLOG_BYTES_MAX;
        options.raft.election_timeout_ms_min = 2_000;
        options.raft.election_timeout_ms_max = 4_000;
    })
    .await;
    let client = client(&cluster);
    let holder = long_session(&client).await;
    let leads = leader(&cluster).await;
    let slow = (1..=3).find(|node| *node != leads).expect("three nodes");
    let going = Arc::new(AtomicBool::new(true));
    let written = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..LOCKS)
        .map(|number| tokio::spawn(update(holder.clone(), number, Arc::clone(&going), Arc::clone(&written))))
        .collect();

    let mut most = BTreeMap::<u64, u64>::new();
    let mut snapshot = 0;
    let deadline = Instant::now() + LONG;
    let mut entries = 0;
    let mut last = 1;
    for round in 0_u64.. {
        if written.load(Ordering::Relaxed) >= WRITTEN {
            break;
        }
        assert!(Instant::now() < deadline, "only {} bytes in {LONG:?}", written.load(Ordering::Relaxed));
        // Slow, not away: it takes entries now and then.
        match round % 20 {
            0 => cluster.node(slow).pause().await,
            15 => cluster.node(slow).signal(Signal::CONT),
            _ => {}
        }
        for node in 1..=3 {
            let used = bytes_used(&data(&cluster, node));
            let known = most.entry(node).or_default();
            *known = used.max(*known);
            let snapshots = files(&data(&cluster, node).join("snapshots"));
            assert!(snapshots.len() <= 3, "node {node}: {snapshots:?}");
            snapshot = snapshots.into_values().fold(snapshot, u64::max);
        }
        // A busy leader may answer late.
        if let Ok(status) = cluster.node(leads).status().await {
            entries = (status.last_log_index - status.purged_index).max(entries);
            last = status.last_log_index;
        }
        sleep(Duration::from_millis(40)).await;
    }
    // The load goes on and ends while the follower is stopped: what it lacks must not keep more of the log than the bound says. How
    // much was kept before, while snapshots and purges ran beside the load, is a matter of the machine's speed.
    cluster.node(slow).pause().await;
    let missed = written.load(Ordering::Relaxed) + MISSED;
    until("the load goes on", async || (written.load(Ordering::Relaxed) >= missed).then_some(())).await;
    going.store(false, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let written = written.load(Ordering::Relaxed);
    // With its record in the log: some bytes for each command.
    let entry = written / last + written / last / 16 + 200;
    let log = log_bound(snapshot, entry);
    let bound = files_bound(4 << 20, log) + 3 * snapshot;
    println!(
        "written {written} in {last} entries, at most {entries} kept; snapshot {snapshot}; log {log}, bound {bound}, most {most:?}"
    );
    assert!(written > 2 * log, "too little was written: {written}; the log may have {log}");
    until("the log is within its bound", async || {
        let status = cluster.node(leads).status().await.ok()?;
        let kept = status.last_log_index - status.purged_index;
        (kept * entry <= log).then_some(())
    })
    .await;
    cluster.node(slow).signal(Signal::CONT);
    for (node, used) in &most {
        assert!(used <= &bound, "node {node} used {used} bytes; the bound is {bound}");
    }

    // A crash while files are being written leaves them; a restart removes them, and the journal has its first size again. An older
    // snapshot is only left beside a newer one.
    let is_snapshot = |name: &String| name.starts_with("snapshot-");
    let has_snapshot = || files(&data(&cluster, slow).join("snapshots")).keys().any(is_snapshot);
    until("the slow node has a snapshot", async || has_snapshot().then_some(())).await;
    cluster.kill().await;
    let leftovers = ["snapshots/7.partial", "snapshots/snapshot-00000000000000000001"];
    for leftover in leftovers {
        fs::write(data(&cluster, slow).join(leftover), [0; 4096]).expect("written");
    }
    for node in 1..=3 {
        cluster.node_mut(node).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("they start");
    for leftover in leftovers {
        assert!(!data(&cluster, slow).join(leftover).exists(), "{leftover} is left");
    }
    until("one snapshot is left", async || (files(&data(&cluster, slow).join("snapshots")).len() == 1).then_some(()))
        .await;
    for (name, bytes) in files(&data(&cluster, slow)).iter().filter(|(name, _)| name.starts_with("journal")) {
        assert!(*bytes < 6 << 20, "{name} has {bytes} bytes after a restart");
    }
}

/// Whoever rewrites a few values makes the log grow and not the table: no limit of the table stops it. Neither number of entries is
/// reached.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_limited_in_bytes_however_few_its_entries_are() {
    let cluster = cluster_with(|options| {
        options.nodes = Some(1);
        options.raft.snapshot_entries = ENTRIES_UNREACHED;
        options.raft.keep_entries = ENTRIES_UNREACHED;
    })
    .await;
    let holder = long_session(&client(&cluster)).await;
    let written = write_large(&holder, WRITTEN_LARGE).await;
    until_kept(&cluster, 1, written, KEPT_LARGE).await;
}

/// The leader keeps no more of the log for a member that is down than its backlog. The member gets a snapshot when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_limited_in_bytes_while_a_member_is_down() {
    let mut cluster = cluster_with(|options| {
        options.raft.snapshot_entries = SNAPSHOT_ENTRIES;
        options.raft.keep_entries = ENTRIES_UNREACHED;
        options.raft.backlog_bytes_max = BACKLOG_DOWN;
        options.raft.election_timeout_ms_min = 2_000;
        options.raft.election_timeout_ms_max = 4_000;
    })
    .await;
    let holder = long_session(&client(&cluster)).await;
    let leads = leader(&cluster).await;
    let down = (1..=3).find(|node| *node != leads).expect("three nodes");
    cluster.node_mut(down).kill().await;

    let written = write_large(&holder, WRITTEN_DOWN).await;
    let purged = until_kept(&cluster, leads, written, KEPT_DOWN).await;

    cluster.node_mut(down).spawn().expect("it starts");
    until("it has taken over a snapshot", async || {
        let status = cluster.node(down).status().await.ok()?;
        (status.purged_index >= purged).then_some(())
    })
    .await;
}

/// The files of a log over many entries, of which few are kept: the journal and sled, without a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_purged_log_stay_within_the_bound() {
    const JOURNAL_BYTES: u64 = 256 << 10;
    let directory = tempfile::tempdir().expect("a directory");
    let grown = growth::grow(directory.path(), JOURNAL_BYTES, APPENDED / (16 << 10), 16 << 10, 100, 50).await;
    let bound = files_bound(JOURNAL_BYTES, grown.log_max);
    println!("{grown:?}, bound {bound}");
    assert!(APPENDED > 2 * bound, "too little to tell");
    assert!(grown.files_max <= bound, "{grown:?}; the bound is {bound}");
}
