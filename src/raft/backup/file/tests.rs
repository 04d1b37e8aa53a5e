//! A file comes back as it was written, or is refused.

use std::{collections::BTreeMap, fs};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{
    backup::BLOCK_BYTES_MAX,
    snapshot::SnapshotStore,
    types::{CommittedLeaderId, Membership, SnapshotMeta},
};
use lockkeeper_machine::{
    Acquire, Command, Data, Label, Limits, LockName, Mode, OpenIds, Operation, Request, SessionId, Stamp, Time, Ttl,
    Version, Versions, Wait, Want,
};
use lockkeeper_table::{MemberNode, Trail};

fn header() -> BackupHeader {
    BackupHeader {
        cluster_id: "prod".parse().unwrap(),
        node_id: 2,
        version: "0.1.0".into(),
        created: WallTime(1_700_000_000_000),
        is_stale: false,
    }
}

/// A table of `sessions` sessions, each of which holds one lock with data.
fn applied(sessions: u64) -> Applied {
    let mut machine = Machine::default();
    let commands = (1..=sessions).flat_map(|id| {
        let ttl = Ttl::from_millis(10_000).unwrap();
        let label = Label::new("worker").unwrap();
        let open = Command::Open { session: SessionId(id.into()), ttl, label, address: None, owner: None };
        let want = Want {
            name: LockName::new(&format!("jobs/{id}")).unwrap(),
            mode: Mode::Exclusive,
            data: Some(Data::new(&[id as u8; 100]).unwrap()),
            keep_data: true,
            must_exist: false,
        };
        let operation = Operation::Acquire(Acquire::new(vec![want], Wait::Never, 0).unwrap());
        let request = Some(Request { id: 1, open: OpenIds::default() });
        [open, Command::Session { session: SessionId(id.into()), request, operation }]
    });
    let time = Time { stamp: Stamp(5), wall: WallTime(6) };
    machine.apply_batch(time, Limits::default(), commands, &mut Vec::new());
    let log_id = Some(LogId { leader_id: CommittedLeaderId::new(3), index: 77 });
    let nodes = BTreeMap::from([(
        2,
        MemberNode { peer_address: "p:1".into(), client_address: "c:1".into(), ..MemberNode::default() },
    )]);
    let membership = StoredMembership::new(log_id, Membership::new(vec![[2].into()], nodes).unwrap());
    Applied {
        machine,
        last_entry: log_id.map(types::entry_id),
        membership: types::to_applied(&membership),
        ids_used: [2].into(),
        trail: Trail::default(),
    }
}

fn written(applied: &Applied) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, &header(), applied).unwrap();
    bytes
}

/// A directory with a file of these bytes.
fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    fs::write(&path, bytes).unwrap();
    (directory, path)
}

/// The error of a damaged file, which both ways of reading must find.
fn refused(path: &Path, bytes: &[u8]) -> BackupError {
    fs::write(path, bytes).unwrap();
    assert!(check(path, &AtomicU64::default()).is_err());
    BackupFile::read(path).map(|read| read.header).expect_err("the damage is noticed")
}

#[test]
fn a_backup_comes_back_as_it_was() {
    // The second one has more bytes than a block.
    for sessions in [0, 1, 3 * BLOCK_BYTES_MAX as u64 / 200] {
        let applied = applied(sessions);
        let bytes = written(&applied);
        let (_directory, path) = file(&bytes);
        let summary = BackupSummary {
            header: header(),
            log_id: applied.last_entry.map(types::log_id),
            bytes: bytes.len() as u64,
        };
        let count = AtomicU64::default();
        assert_eq!(check(&path, &count).unwrap(), summary);
        // All but the magic, which says what the file is.
        assert_eq!(count.into_inner(), summary.bytes - MAGIC.len() as u64);
        let read = BackupFile::read(&path).unwrap();
        assert_eq!(read.header, Some(header()));
        assert_eq!(read.bytes, bytes.len() as u64);
        assert_eq!((read.applied.last_entry, read.applied.membership), (applied.last_entry, applied.membership));
        assert_eq!(read.applied.machine.hash(), applied.machine.hash());
    }
}

#[test]
fn a_snapshot_of_a_node_is_read_too_and_every_flipped_byte_of_it_is_refused() {
    let (directory, applied) = (tempfile::tempdir().unwrap(), applied(2));
    let last_membership = types::to_stored(&applied.membership);
    let meta = SnapshotMeta { last_log_id: applied.last_entry.map(types::log_id), last_membership };
    let records = applied.machine.records().map(|record| records::encode(&record));
    SnapshotStore::open(directory.path()).unwrap().write(&meta, &applied.ids_used, records).unwrap();
    let path = crate::snapshot::newest_in(directory.path()).unwrap().unwrap();
    let read = BackupFile::read(&path).unwrap();
    assert_eq!((read.header, read.applied.machine.hash()), (None, applied.machine.hash()));
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        fs::write(&path, &damaged).unwrap();
        assert!(BackupFile::read(&path).is_err(), "byte {at}");
    }
}

#[test]
fn every_flipped_byte_is_refused_and_the_place_is_at_or_before_it() {
    let bytes = written(&applied(3));
    let (_directory, path) = file(&bytes);
    for at in 0..bytes.len() {
        for flip in [0x01, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            match refused(&path, &damaged) {
                BackupError::Damaged { at: said, .. } => {
                    assert!(at >= 8 && said <= at as u64, "byte {at}, said {said}")
                }
                BackupError::Foreign { .. } | BackupError::Newer { .. } => assert!(at < 8, "byte {at}"),
                BackupError::Io { source, .. } => panic!("byte {at}: {source}"),
            }
        }
    }
}

#[test]
fn a_file_that_is_cut_or_too_long_is_refused_at_each_length() {
    let bytes = written(&applied(3));
    let (_directory, path) = file(&bytes);
    for length in 0..bytes.len() {
        match refused(&path, &bytes[..length]) {
            BackupError::Damaged { at, .. } => assert!(length > 0 && at <= length as u64, "{length}: {at}"),
            BackupError::Foreign { what, .. } => assert_eq!((length, what), (0, "it is empty")),
            error @ (BackupError::Newer { .. } | BackupError::Io { .. }) => panic!("{length}: {error}"),
        }
    }
    let longer = [&bytes[..], b"\0"].concat();
    assert!(matches!(refused(&path, &longer), BackupError::Damaged { at, .. } if at == bytes.len() as u64));
}

#[test]
fn errors_name_the_file_the_place_and_the_remedy() {
    let bytes = written(&applied(3000));
    let (_directory, path) = file(&bytes);
    let mut damaged = bytes.clone();
    let block = 8 + BLOCK_BYTES_MAX;
    damaged[8 + block + 5000] ^= 1;
    let said = refused(&path, &damaged).to_string();
    let place = format!("from byte {} on, a checksum does not match", 8 + block);
    assert!(
        said.contains(&path.display().to_string()) && said.contains(&place) && said.contains("an earlier backup"),
        "{said}"
    );
    let said = refused(&path, b"#!/bin/sh\necho hello\n").to_string();
    assert!(said.contains("is not a backup: it does not begin like one; name a file that"), "{said}");
    let mut newer = bytes;
    newer[7] += 1;
    let said = refused(&path, &newer).to_string();
    assert!(
        said.contains("format 2, this program knows 1") && said.contains("use the version that wrote it"),
        "{said}"
    );
}

/// A record that this program does not know, or of a cluster version that it does not support, in sound blocks: not damage.
#[test]
fn a_record_from_a_newer_version_is_told_from_damage() {
    let later = Version(Versions::OWN.highest.0 + 1);
    let of_later_cluster = records::encode(&Record::Version { version: later });
    let clock = records::encode(&applied(0).machine.records().next().expect("the clock is first"));
    for (record, says) in [(vec![0xfa, 0x07, 0x00], "unknown kind"), (of_later_cluster, "it needs cluster version")] {
        let mut bytes = MAGIC.to_vec();
        let mut output = BlockWriter::new(&mut bytes);
        let header = pb::BackupHeader {
            cluster_id: "prod".into(),
            version: "9.9.9".into(),
            membership: Some((&types::to_stored(&applied(0).membership)).into()),
            ..pb::BackupHeader::default()
        };
        write_piece(&mut output, &header.encode_to_vec()).unwrap();
        write_piece(&mut output, &clock).unwrap();
        write_piece(&mut output, &record).unwrap();
        write_end(&mut output, 2).unwrap();
        output.finish().unwrap();
        let (_directory, path) = file(&bytes);
        let said = BackupFile::read(&path).unwrap_err().to_string();
        assert!(said.contains(says) && said.contains("use the version that wrote it, 9.9.9"), "{said}");
    }
}

proptest! {
    /// Whatever the file holds, reading it ends with an error, and takes no more memory than the file.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), after in 0_usize..400) {
        let sound = written(&applied(1));
        let (_directory, path) = file(b"");
        refused(&path, &bytes);
        let tail = [&sound[..after.min(sound.len() - 1)], &bytes[..]].concat();
        prop_assume!(tail != sound);
        refused(&path, &tail);
    }
}
