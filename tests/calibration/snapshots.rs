//! Promises of snapshots: each is the table at its index, and no published snapshot is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use futures::stream;
use lockkeeper::{
    machine::{Limits, SessionId, Stamp, Time, WallTime},
    raft::{
        apply::state_machine::StateMachine,
        snapshot::{SnapshotFile, SnapshotStore},
        types::{
            CommittedLeaderId, EntryPayload, LogEntry, LogId, Membership, Payload, SnapshotMeta, StoredMembership,
        },
    },
    table::{Applied, Inspect, MemberNode, Table, codec::commands},
};
use openraft::{RaftSnapshotBuilder as _, storage::RaftStateMachine as _};
use tempfile::TempDir;

use super::alone::open;
use crate::{
    children,
    power::{
        disk::{Disk, Image, SAID, write_image},
        trace,
    },
};

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn store(directory: &Path) -> SnapshotStore {
    SnapshotStore::open(directory).expect("snapshots in order open")
}

fn machine(table: &Arc<Table>, snapshots: &SnapshotStore) -> StateMachine {
    StateMachine::open(Arc::clone(table), snapshots.clone(), 1, 1_000_000).expect("snapshots in order are read")
}

fn log_id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(1), index }
}

/// Applies an entry at this index that opens a session.
async fn apply(machine: &mut StateMachine, index: u64) {
    let time = Time { stamp: Stamp(index), wall: WallTime(0) };
    let payload = Payload(commands::encode(time, Limits::default(), &[open(SessionId(index.into()), 60_000)]));
    let entry = LogEntry { log_id: log_id(index), payload: EntryPayload::Normal(payload) };
    machine.apply(stream::iter([Ok((entry, None))])).await.expect("it is applied");
}

fn hash(table: &Table) -> u64 {
    table.read(|applied| applied.machine.hash())
}

/// Entries after the snapshot's index are in the log, and would be applied twice. So the table is frozen at that index while it is written.
#[tokio::test]
async fn a_snapshot_is_the_table_at_its_index() {
    let (directory, table) = (directory(), Arc::new(Table::default()));
    let snapshots = store(directory.path());
    let mut first = machine(&table, &snapshots);
    apply(&mut first, 1).await;
    let then = hash(&table);
    let mut builder = first.get_snapshot_builder().await;
    apply(&mut first, 2).await;
    assert_ne!(hash(&table), then);
    let built = builder.build_snapshot().await.expect("it is written");
    assert_eq!(built.meta.last_log_id, Some(log_id(1)));

    let restored = Arc::new(Table::default());
    let mut second = machine(&restored, &snapshots);
    assert_eq!(hash(&restored), then, "the snapshot of entry 1 holds more than that");
    apply(&mut second, 2).await;
    assert_eq!(hash(&restored), hash(&table));
}

/// Records, at each change of the table, whether a snapshot at its index is published.
#[derive(Debug)]
struct Witness {
    directory: PathBuf,
    seen: Mutex<Vec<bool>>,
}

impl Inspect for Witness {
    fn look(&self, applied: &Applied, _units: usize) {
        let name = self.directory.join(format!("snapshot-{:020}", applied.index()));
        self.seen.lock().expect("nothing panics while it has it").push(name.exists());
    }
}

/// The table of an installed snapshot is visible only once the snapshot is durable. openraft purges the log after the installation returns.
/// But other tasks read the table at once, and one records the applied index: a node that has recorded more than its disk holds does not
/// start again.
#[tokio::test]
async fn a_snapshot_is_durable_before_it_is_used() {
    let (here, there) = (directory(), directory());
    let mut sender = machine(&Arc::new(Table::default()), &store(here.path()));
    apply(&mut sender, 1).await;
    let sent = sender.get_snapshot_builder().await.build_snapshot().await.expect("it is written");

    let witness = Arc::new(Witness { directory: there.path().to_owned(), seen: Mutex::default() });
    let table = Arc::new(Table::new(Some(Arc::clone(&witness) as Arc<dyn Inspect>)));
    let snapshots = store(there.path());
    let mut receiver = machine(&table, &snapshots);
    let received = receive(&snapshots, &sent.snapshot);
    receiver.install_snapshot(&sent.meta, received).await.expect("it is installed");
    assert!(table.read(|applied| applied.machine.session(SessionId(1)).is_some()));
    let seen = witness.seen.lock().expect("nothing panics while it has it");
    assert!(!seen.is_empty() && seen.iter().all(|is_durable| *is_durable), "the table was there before: {seen:?}");
}

fn receive(store: &SnapshotStore, sent: &SnapshotFile) -> SnapshotFile {
    let mut receiving = store.receive(sent.meta().clone(), sent.length()).expect("begun");
    let length = usize::try_from(sent.length()).expect("it is small");
    let bytes = sent.read_at(0, length).expect("readable");
    bytes.chunks(5000).for_each(|piece| receiving.write(piece).expect("written"));
    receiving.finish().expect("it is whole")
}

/// The environment variable with the child's directory.
const ROOT: &str = "LOCKKEEPER_SNAPSHOT_ROOT";
const SNAPSHOTS: &str = "snapshots";
/// Snapshots that the child publishes: half of them built locally, half received from a peer.
const COUNT: u64 = 8;
/// Simulated power failures after each recorded call.
const CUTS: u64 = 8;

fn meta(index: u64) -> SnapshotMeta {
    let membership =
        Membership::new(vec![[1].into()], BTreeMap::from([(1, MemberNode::default())])).expect("its voter is a node");
    SnapshotMeta { last_log_id: Some(log_id(index)), last_membership: StoredMembership::new(None, membership) }
}

fn records(index: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..4).map(move |record| vec![(index + record) as u8; 2000])
}

/// The child: publishes the snapshots and reports each.
#[test]
#[ignore = "the entry point of a child process"]
fn publish() {
    let Some(root) = env::var_os(ROOT).map(PathBuf::from) else { return };
    let elsewhere = directory();
    let (here, peer) = (store(&root.join(SNAPSHOTS)), store(elsewhere.path()));
    let mut said = File::options().create(true).append(true).open(root.join(SAID)).expect("it can speak");
    for index in 1..=COUNT {
        match index % 2 {
            0 => drop(here.write(&meta(index), &BTreeSet::new(), records(index)).expect("written")),
            _ => {
                let sent = peer.write(&meta(index), &BTreeSet::new(), records(index)).expect("written");
                here.publish(&receive(&here, &sent)).expect("published");
            }
        }
        said.write_all(format!("{index}\n").as_bytes()).expect("it can speak");
    }
}

/// A published snapshot replaces the purged log up to its index: after any power failure, it or a later one must be there.
#[test]
fn a_power_failure_takes_no_snapshot_away() {
    let (root, aside) = (directory(), directory());
    let trace = aside.path().join("trace");
    let child = children::command(&children::full_name(module_path!(), "publish"))
        .env(ROOT, root.path())
        .env("LD_PRELOAD", layer(aside.path()))
        .env("LOCKKEEPER_LAYER_ROOT", root.path())
        .env("LOCKKEEPER_LAYER_TRACE", &trace)
        .output();
    let child = child.expect("this program can be run again");
    assert!(child.status.success(), "{child:?}");

    let bytes = Arc::new(fs::read(&trace).expect("the layer wrote it, unless this program is linked statically"));
    let recorded = trace::read(&bytes, root.path());
    let (mut disk, mut published) = (Disk::new(Arc::clone(&bytes), true), 0);
    let trial = directory();
    for (at, record) in recorded.iter().enumerate() {
        if let Some(line) = disk.apply(record) {
            published = line.trim_end().parse().expect("it says a number");
        }
        for seed in 0..CUTS {
            let found = newest(&disk.after_power_failure(seed * 1_000_003 + at as u64), trial.path());
            assert!(
                found.as_ref().is_ok_and(|found| *found >= published),
                "a power failure after call {at} (seed {seed}) took snapshot {published} away: {found:?}"
            );
        }
    }
    assert_eq!(published, COUNT);
}

/// The index of the newest snapshot in this disk image, or the error with which the store does not open.
fn newest(image: &Image, trial: &Path) -> Result<u64, String> {
    write_image(image, trial);
    let snapshots = SnapshotStore::open(&trial.join(SNAPSHOTS)).map_err(|error| error.to_string())?;
    Ok(snapshots.latest().and_then(|latest| latest.meta().last_log_id).map_or(0, |id| id.index))
}

/// Compiles the layer of the power tests, which records the system calls of a process.
fn layer(place: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/layer.c");
    let built = place.join("layer.so");
    let compiled =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&built).arg(source).arg("-lpthread").output();
    let compiled = compiled.unwrap_or_else(|error| panic!("this test needs a C compiler, `cc`: {error}"));
    assert!(compiled.status.success(), "{compiled:?}");
    built
}
