//! Snapshots and backups.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use lockkeeper::{
    machine::{Machine, WallTime},
    raft::{
        backup::{self, BackupFile, BackupHeader},
        snapshot::SnapshotFile,
        types::entry_id,
    },
    table::{
        Applied, AppliedMembership, EntryId, MemberNode,
        codec::{commands, records},
    },
};

use super::{says, table::sampled, with_file};

/// A file of each kind that later versions may read: the magic and the version.
const MAGIC_BYTES: usize = 8;

/// A table with something of each kind of command in it, and its members.
fn applied() -> Applied {
    let mut machine = Machine::default();
    let mut events = Vec::new();
    for batch in sampled("batch") {
        let (time, limits, commands) = commands::decode(&batch.into()).expect("a sample");
        machine.apply_batch(time, limits, commands, &mut events);
    }
    let node = MemberNode {
        peer_address: "peer:1".to_owned(),
        client_address: "client:1".to_owned(),
        ..MemberNode::default()
    };
    let last_entry = Some(EntryId { term: 2, index: 9 });
    let nodes = BTreeMap::from([(1, node)]);
    let membership = AppliedMembership { entry: last_entry, voters: vec![[1].into()], nodes };
    Applied { machine, last_entry, membership, ids_used: [1].into(), ..Applied::default() }
}

fn header() -> BackupHeader {
    BackupHeader {
        cluster_id: "blue".parse().expect("an id"),
        node_id: 1,
        version: "0.1.0".to_owned(),
        created: WallTime(5),
        is_stale: false,
    }
}

/// A piece of a file, after its length.
fn piece(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).expect("short").to_be_bytes()[..], bytes].concat()
}

fn snapshot_of(records: &[Vec<u8>]) -> Vec<u8> {
    let header = sampled("snapshot-file-header").swap_remove(0);
    let pieces: Vec<u8> = std::iter::once(&header).chain(records).flat_map(|bytes| piece(bytes)).collect();
    let count = (records.len() as u64).to_be_bytes();
    let mut file = [b"LKSNAP\0\x01", &pieces[..], &u32::MAX.to_be_bytes(), &count, &[0; 4]].concat();
    repair_snapshot(&mut file);
    file
}

pub(super) fn snapshot_seeds() -> Vec<Vec<u8>> {
    let of_table: Vec<_> = applied().machine.records().map(|record| records::encode(&record)).collect();
    // The records of the samples are of no one table: it is refused.
    vec![snapshot_of(&of_table), snapshot_of(&of_table[..1]), snapshot_of(&sampled("record")), snapshot_of(&[])]
}

pub(super) fn snapshot(bytes: &[u8]) {
    with_file(bytes, |path| {
        match SnapshotFile::open(path) {
            Ok(file) => {
                let records: usize =
                    file.records().expect("it was checked").map(|record| record.expect("it was checked").len()).sum();
                assert!(records < bytes.len(), "records of more bytes than the file has");
            }
            Err(error) => return says(&error),
        }
        // Its table.
        match BackupFile::read(path) {
            Ok(read) => same_again(&header(), &read.applied),
            Err(error) => says(&error),
        }
    });
}

/// The last 4 bytes are the checksum of all before.
pub(super) fn repair_snapshot(file: &mut Vec<u8>) {
    if let Some((content, checksum)) = file.split_last_chunk_mut::<4>() {
        *checksum = crc32fast::hash(content).to_be_bytes();
    }
}

pub(super) fn backup_seeds() -> Vec<Vec<u8>> {
    let written = |applied: &Applied| {
        let mut file = Vec::new();
        backup::write(&mut file, &header(), applied).expect("written to memory");
        file
    };
    vec![written(&applied()), written(&Applied::default())]
}

pub(super) fn backup(bytes: &[u8]) {
    with_file(bytes, |path| {
        let read = BackupFile::read(path);
        let checked = backup::check(path, &AtomicU64::default());
        match &read {
            // A snapshot: the other target.
            Ok(BackupFile { header: None, .. }) => {}
            Ok(BackupFile { header: Some(header), applied, bytes: length }) => {
                let summary = checked.expect("what is read is sound");
                let last = summary.log_id.map(entry_id);
                assert_eq!((&summary.header, last, summary.bytes), (header, applied.last_entry, *length));
                same_again(header, applied);
            }
            Err(error) => says(error),
        }
    });
}

/// A table that was read is the same after it was written and read once more.
fn same_again(header: &BackupHeader, applied: &Applied) {
    applied.machine.check().expect("a table that was read holds its invariants");
    let mut file = Vec::new();
    backup::write(&mut file, header, applied).expect("written to memory");
    let again = with_file(&file, |path| BackupFile::read(path).expect("what was written"));
    assert_eq!(again.header.as_ref(), Some(header));
    assert_eq!(again.applied.machine.hash(), applied.machine.hash());
    assert_eq!(again.applied.last_entry, applied.last_entry);
    assert_eq!(again.applied.membership, applied.membership);
}

/// Blocks: length, checksum of number and length and bytes, bytes. What is behind the end stays as it is.
pub(super) fn repair_backup(file: &mut Vec<u8>) {
    let mut at = MAGIC_BYTES;
    let mut number = 0_u64;
    while let Some(head) = file.get(at..at + 4) {
        let length = u32::from_be_bytes(head.try_into().expect("4 bytes"));
        let end = (at + 8).saturating_add(length as usize);
        let Some(block) = file.get(at + 8..end) else { return };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&number.to_be_bytes());
        hasher.update(&u64::from(length).to_be_bytes());
        hasher.update(block);
        file[at + 4..at + 8].copy_from_slice(&hasher.finalize().to_be_bytes());
        (at, number) = (end, number + 1);
    }
}
