//! What the log and snapshots hold: batches of commands, records of the table, entries in chunks.

use bytes::Bytes;
use lockkeeper::{
    machine::{Machine, Record, Stamp, Time, WallTime},
    raft::{
        fuzzing,
        types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload},
    },
    table::codec::{commands, records},
};

use super::super::samples::samples;
use super::says;

/// The samples of these names.
pub(super) fn sampled(prefix: &str) -> Vec<Vec<u8>> {
    samples().into_iter().filter(|sample| sample.name.starts_with(prefix)).map(|sample| sample.bytes).collect()
}

pub(super) fn batch_seeds() -> Vec<Vec<u8>> {
    sampled("batch")
}

/// A batch is decoded or refused; decoded, it is applied by any table: a table that panics would stop all replicas.
pub(super) fn batch(bytes: &[u8]) {
    let batch = Bytes::copy_from_slice(bytes);
    let (time, limits, decoded) = match commands::decode(&batch) {
        Ok(decoded) => decoded,
        Err(malformed) => return says(&malformed),
    };
    let encoded = commands::encode(time, limits, &decoded);
    assert_eq!(commands::decode(&encoded).as_ref(), Ok(&(time, limits, decoded.clone())), "encoded again");

    let mut machine = Machine::default();
    let mut events = Vec::new();
    let replies = machine.apply_batch(time, limits, decoded.iter().cloned(), &mut events);
    assert_eq!(replies.len(), decoded.len());
    // Again, later, on what it left behind.
    let later = Time { stamp: Stamp(time.stamp.0.saturating_add(60_000)), wall: WallTime(time.wall.0) };
    machine.apply_batch(later, limits, decoded, &mut events);
    machine.check().expect("the invariants hold after every batch");
    let restored = Machine::from_records(machine.records()).expect("the table's own records");
    assert_eq!(restored.hash(), machine.hash(), "a table and its restored copy");
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    sampled("record")
}

pub(super) fn record(bytes: &[u8]) {
    match records::decode(bytes) {
        Ok(record) => {
            assert_eq!(records::decode(&records::encode(&record)).as_ref(), Ok(&record), "encoded again");
            // After a clock, so that it is looked at.
            let clock = Machine::default().records().next().expect("the clock is the first record");
            restore([clock, record]);
        }
        Err(malformed) => says(&malformed),
    }
}

/// Makes a table of records. It holds its invariants, or is refused with the one that is broken.
fn restore(records: impl IntoIterator<Item = Record>) {
    match Machine::from_records(records) {
        Ok(machine) => machine.check().expect("a restored table holds its invariants"),
        Err(broken) => says(&broken),
    }
}

/// Bytes of the length of a chunk in an input.
const LENGTH_BYTES: usize = 2;
const INDEX: u64 = 7;

/// Chunks, each after its length, 2 bytes.
fn chunks(mut input: &[u8]) -> Vec<&[u8]> {
    let mut chunks = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() {
        let (chunk, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        chunks.push(chunk);
        input = rest;
    }
    chunks
}

pub(super) fn log_entry_seeds() -> Vec<Vec<u8>> {
    let entry = |payload| LogEntry { log_id: LogId { leader_id: CommittedLeaderId::new(3), index: INDEX }, payload };
    let normal = |bytes: usize| EntryPayload::Normal(Payload(vec![7; bytes].into()));
    let seed = |payload| {
        let pairs = fuzzing::write_log_entry(&entry(payload), 2).into_iter();
        let with_length = |(_, value): (_, Vec<u8>)| {
            let length = u16::try_from(value.len()).expect("values are at most 4 KiB");
            [&length.to_be_bytes()[..], &value].concat()
        };
        pairs.flat_map(with_length).collect()
    };
    [EntryPayload::Blank, normal(9), normal(5000)].map(seed).into()
}

pub(super) fn log_entry(bytes: &[u8]) {
    if let Some(key) = fuzzing::log_key(bytes.get(..12).unwrap_or(bytes)) {
        assert!(fuzzing::log_key(&key) == Some(key));
    }
    match fuzzing::read_log_entry(INDEX, &chunks(bytes)) {
        Ok((entry, term_before)) => {
            let pairs = fuzzing::write_log_entry(&entry, term_before);
            let values: Vec<_> = pairs.iter().map(|(_, value)| value.as_slice()).collect();
            assert_eq!(fuzzing::read_log_entry(INDEX, &values).as_ref(), Ok(&(entry, term_before)), "written again");
        }
        Err(error) => says(&error),
    }
}

/// The first chunk is: version, checksum, length of the entry, term of the previous one, and the entry.
pub(super) fn repair_log_entry(input: &mut Vec<u8>) {
    const HEAD_BYTES: usize = 1 + 4 + 4 + 8;
    let joined: Vec<u8> = chunks(input).concat();
    if joined.len() < HEAD_BYTES || chunks(input).first().is_none_or(|chunk| chunk.len() < HEAD_BYTES) {
        return;
    }
    let entry = &joined[HEAD_BYTES..];
    let length = u32::try_from(entry.len()).expect("inputs are short").to_be_bytes();
    let mut hasher = crc32fast::Hasher::new();
    for part in [&joined[..1], &INDEX.to_be_bytes(), &length, &joined[9..HEAD_BYTES], entry] {
        hasher.update(part);
    }
    input[LENGTH_BYTES + 1..][..4].copy_from_slice(&hasher.finalize().to_be_bytes());
    input[LENGTH_BYTES + 5..][..4].copy_from_slice(&length);
}
