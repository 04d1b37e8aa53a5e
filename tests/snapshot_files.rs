//! Snapshot files: complete or absent; a damaged file is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::Arc,
    time::Duration,
};

use lockkeeper::{
    environment::Blocking,
    raft::{
        apply::state_machine::StateMachine,
        snapshot::{SnapshotError, SnapshotFile, SnapshotStore},
        types::{CommittedLeaderId, LogId, Membership, SnapshotMeta, StoredMembership},
    },
    table::{MemberNode, Table},
};
use openraft::{RaftSnapshotBuilder, storage::RaftStateMachine};

fn meta(index: u64) -> SnapshotMeta {
    let id = |index| Some(LogId { leader_id: CommittedLeaderId::new(2), index });
    let node = MemberNode {
        peer_address: "peer:1".to_owned(),
        client_address: "client:1".to_owned(),
        ..MemberNode::default()
    };
    let membership = Membership::new(vec![[1].into()], BTreeMap::from([(1, node)])).expect("its voter is a node");
    SnapshotMeta { last_log_id: id(index), last_membership: StoredMembership::new(id(index / 2), membership) }
}

fn records(index: u64) -> Vec<Vec<u8>> {
    (0..50).map(|record| vec![index as u8; record * record]).collect()
}

/// Files are deleted at once, so that what is left can be looked at.
fn open(directory: &Path) -> SnapshotStore {
    SnapshotStore::open_with(directory, Blocking::Here).expect("intact snapshots open")
}

fn write(store: &SnapshotStore, index: u64) -> SnapshotFile {
    store.write(&meta(index), &BTreeSet::new(), records(index).into_iter()).expect("written")
}

fn assert_is(snapshot: &SnapshotFile, index: u64) {
    assert_eq!(*snapshot.meta(), meta(index));
    let read: Vec<Vec<u8>> = snapshot.records().expect("readable").collect::<Result<_, _>>().expect("readable");
    assert!(read == records(index));
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("readable").file_name().into_string().expect("text");
    fs::read_dir(directory).expect("readable").map(name).collect()
}

fn bytes(snapshot: &SnapshotFile) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let piece = snapshot.read_at(all.len() as u64, 1000).expect("readable");
        if piece.is_empty() {
            assert_eq!(all.len() as u64, snapshot.length());
            return all;
        }
        all.extend_from_slice(&piece);
    }
}

#[test]
fn the_newest_is_kept_and_older_ones_stay_readable() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    assert!(store.latest().is_none());
    let first = write(&store, 100);
    let second = write(&store, 200);
    // A slow snapshot, during which a newer one was installed.
    let late = write(&store, 150);
    assert_is(&late, 150);
    drop(late);
    assert_is(&store.latest().expect("a snapshot exists"), 200);
    assert_is(&first, 100);
    assert_eq!(bytes(&second).len() as u64, second.length());
    assert_eq!(names(directory.path()), ["snapshot-00000000000000000200"]);

    fs::write(directory.path().join("0.partial"), "half").expect("written");
    fs::write(directory.path().join("snapshot-00000000000000000007"), "an older one").expect("written");
    let store = open(directory.path());
    assert_is(&store.latest().expect("a snapshot exists"), 200);
    assert_eq!(names(directory.path()), ["snapshot-00000000000000000200"]);
    store.publish(&store.latest().expect("a snapshot exists")).expect("nothing to do");
    drop(store);
    assert_is(&open(directory.path()).latest().expect("still there"), 200);
}

#[test]
fn a_snapshot_travels_to_a_peer() {
    let here = tempfile::tempdir().expect("a directory");
    let there = tempfile::tempdir().expect("a directory");
    let sent = write(&open(here.path()), 100);
    let store = open(there.path());
    let mut receiving = store.receive(meta(100), sent.length()).expect("begun");
    bytes(&sent).chunks(77).for_each(|piece| receiving.write(piece).expect("written"));
    let received = receiving.finish().expect("it is complete");
    assert_is(&received, 100);
    assert!(store.latest().is_none(), "it was not published");
    store.publish(&received).expect("published");
    assert_is(&open(there.path()).latest().expect("a snapshot exists"), 100);
}

#[test]
fn what_arrives_damaged_is_not_used_and_leaves_nothing() {
    let here = tempfile::tempdir().expect("a directory");
    let there = tempfile::tempdir().expect("a directory");
    let sent = write(&open(here.path()), 100);
    let store = open(there.path());
    let receive = |announced: SnapshotMeta, bytes: &[u8]| {
        let mut receiving = store.receive(announced, sent.length())?;
        receiving.write(bytes)?;
        receiving.finish()
    };
    let whole = bytes(&sent);
    let mut flipped = whole.clone();
    flipped[1000] ^= 1;
    let longer = [&whole[..], b"x"].concat();
    for (announced, bytes) in
        [(100, &flipped[..]), (100, &whole[..whole.len() - 1]), (100, &longer[..]), (101, &whole[..])]
    {
        receive(meta(announced), bytes).expect_err("it differs from the announced snapshot");
    }
    assert_eq!(names(there.path()), [""; 0]);
    receive(meta(100), &whole).expect("it is complete");
}

#[test]
fn every_damage_to_the_newest_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    store.write(&meta(100), &BTreeSet::new(), [vec![1; 10], vec![], vec![2; 100]].into_iter()).expect("written");
    drop(store);
    let path = directory.path().join("snapshot-00000000000000000100");
    let whole = fs::read(&path).expect("readable");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        let error = SnapshotStore::open(directory.path()).expect_err("it is damaged");
        assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("replace this node"), "{error}");
    };
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refused(&flipped);
    }
    (0..whole.len()).for_each(|length| refused(&whole[..length]));
    fs::write(&path, &whole).expect("written");
    open(directory.path());
    fs::rename(&path, directory.path().join("snapshot-00000000000000000101")).expect("renamed");
    SnapshotStore::open(directory.path()).expect_err("its name does not match its index");
}

#[test]
fn a_later_format_is_refused_and_not_taken_for_damage() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = open(directory.path());
    store.write(&meta(100), &BTreeSet::new(), [vec![1; 10]].into_iter()).expect("written");
    drop(store);
    let path = directory.path().join("snapshot-00000000000000000100");
    let mut later = fs::read(&path).expect("readable");
    let content = later.len() - 4;
    later[7] += 1;
    let checksum = crc32fast::hash(&later[..content]);
    later[content..].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&path, &later).expect("written");
    let error = SnapshotStore::open(directory.path()).expect_err("a later format").to_string();
    assert!(error.contains("snapshot-00000000000000000100: it has format"), "{error}");
    assert!(error.contains("and this program reads format") && error.contains("start the version"), "{error}");
    assert!(!error.contains("damaged"), "{error}");
}

/// Names of unfinished files in a directory whose writer finds no room. All tests of this process share their numbers.
fn fill(directory: &Path) {
    for number in 0..2_000 {
        symlink("/dev/full", directory.join(format!("{number}.partial"))).expect("made");
    }
}

/// openraft stops at a snapshot that cannot be written. But log and table are sound.
#[tokio::test(start_paused = true)]
async fn a_snapshot_for_which_there_is_no_room_is_written_once_there_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    let mut machine = StateMachine::open(Arc::new(Table::new(None)), store.clone(), 1, 1_000).expect("new");
    fill(directory.path());
    let all = names(directory.path()).len();

    let mut builder = machine.get_snapshot_builder().await;
    let mut building = tokio::spawn(async move { builder.build_snapshot().await });
    while names(directory.path()).len() > all - 3 {
        assert!(!building.is_finished(), "it gave up: {:?}", (&mut building).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for name in names(directory.path()) {
        fs::remove_file(directory.path().join(name)).expect("removed");
    }
    let written = building.await.expect("no panic").expect("there is room");
    assert_eq!(Some(written.meta), store.latest().map(|latest| latest.meta().clone()));

    // The attempts end with the node.
    fill(directory.path());
    let mut builder = machine.get_snapshot_builder().await;
    drop(machine);
    let error = builder.build_snapshot().await.expect_err("the node has ended");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}
