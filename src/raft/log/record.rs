//! How a log entry is stored in sled.
//!
//! sled moves pages over 128 KiB to files that it never syncs, so no value may be large: an entry is split into chunks of at most
//! [`VALUE_BYTES_MAX`].
//!
//! ```text
//! key: index                 value: version, checksum, length of the entry, term of the previous entry, first chunk
//! key: index, chunk number   value: chunk            (numbered from 1)
//! ```
//!
//! Numbers are big-endian, so that keys sort in log order. The checksum covers the index, the head, and all chunks; it is independent of
//! sled's own checks.
//!
//! Each entry stores the term of the previous one, as Raft's appends do, and for the same reason: a term and an index identify one entry,
//! so the last entry vouches for all before it. Damaged files may bring back entries that were truncated and replaced, each of them
//! valid; only this shows that they do not belong there.
//!
//! An entry is written last chunk first and removed first chunk first. sled recovers a prefix of the writes, so after a crash an entry
//! with a first chunk is complete. At most one entry has chunks without a first one: it was never acknowledged, or was being removed.

use prost::Message;

use crate::messages as pb;
use crate::types::LogEntry;
use lockkeeper_storage::files::SealError;

/// The largest value in sled.
pub(crate) const VALUE_BYTES_MAX: usize = 4096;

/// Version 1 lacked the previous entry's term.
const VERSION: u8 = 2;
const HEAD_BYTES: usize = 1 + 4 + 4 + 8;
const FIRST_CHUNK_BYTES: usize = VALUE_BYTES_MAX - HEAD_BYTES;

/// A key of the table of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryKey {
    pub(crate) index: u64,
    /// 0: the first.
    pub(crate) chunk: u32,
}

/// An entry's key-value pairs, first chunk first.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Why an entry cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(transparent)]
    SealError(#[from] SealError),
    #[error("a chunk of it is missing")]
    ChunkMissing,
    #[error("it is not a log entry: {0}")]
    Malformed(String),
}

/// An entry that is being assembled from its chunks.
#[derive(Debug)]
pub(crate) struct Assembly {
    index: u64,
    checksum: u32,
    length: usize,
    term_before: u64,
    bytes: Vec<u8>,
    next_chunk: u32,
}

impl EntryKey {
    pub(crate) fn head(index: u64) -> Self {
        Self { index, chunk: 0 }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut key = self.index.to_be_bytes().to_vec();
        if self.chunk > 0 {
            key.extend_from_slice(&self.chunk.to_be_bytes());
        }
        key
    }

    pub(crate) fn decode(key: &[u8]) -> Option<Self> {
        let (index, chunk) = key.split_first_chunk()?;
        let chunk = match chunk {
            [] => 0,
            chunk => u32::from_be_bytes(chunk.try_into().ok()?),
        };
        Some(Self { index: u64::from_be_bytes(*index), chunk })
    }
}

/// Splits an entry into key-value pairs. The term of the previous entry is `term_before`, 0 without one.
pub(crate) fn encode(entry: &LogEntry, term_before: u64) -> Pairs {
    let index = entry.log_id.index;
    let bytes = pb::Entry::from(entry).encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("an entry is limited to far less than 4 GiB");
    let (first, rest) = bytes.split_at(bytes.len().min(FIRST_CHUNK_BYTES));

    let mut head = Vec::with_capacity(HEAD_BYTES + first.len());
    head.push(VERSION);
    head.extend_from_slice(&checksum(VERSION, index, length, term_before, &bytes).to_be_bytes());
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&term_before.to_be_bytes());
    head.extend_from_slice(first);

    let chunks =
        (1..).zip(rest.chunks(VALUE_BYTES_MAX)).map(|(chunk, bytes)| (EntryKey { index, chunk }, bytes.to_vec()));
    std::iter::once((EntryKey::head(index), head)).chain(chunks).map(|(key, value)| (key.encode(), value)).collect()
}

impl Assembly {
    /// Begins with the value of the first chunk.
    pub(crate) fn begin(index: u64, head: &[u8]) -> Result<Self, Unreadable> {
        let Some((head, first)) = head.split_first_chunk::<HEAD_BYTES>() else { return Err(SealError::Short.into()) };
        let [version, c0, c1, c2, c3, l0, l1, l2, l3, term_before @ ..] = *head;
        if version != VERSION {
            return Err(SealError::Version { found: version, reads: VERSION }.into());
        }

        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        Ok(Self {
            index,
            checksum: u32::from_be_bytes([c0, c1, c2, c3]),
            length: length as usize,
            term_before: u64::from_be_bytes(term_before),
            bytes: first.to_vec(),
            next_chunk: 1,
        })
    }

    /// The previous entry's term. Valid only once the entry is [finished](Self::finish).
    pub(crate) fn term_before(&self) -> u64 {
        self.term_before
    }

    /// The key of the next chunk, if one is missing.
    pub(crate) fn wants(&self) -> Option<EntryKey> {
        (self.bytes.len() < self.length).then_some(EntryKey { index: self.index, chunk: self.next_chunk })
    }

    /// Adds the chunk that it [wants](Self::wants).
    pub(crate) fn add(&mut self, chunk: &[u8]) -> Result<(), Unreadable> {
        // Empty chunks would never complete the entry.
        if chunk.is_empty() {
            return Err(SealError::Short.into());
        }
        self.bytes.extend_from_slice(chunk);
        self.next_chunk += 1;
        Ok(())
    }

    /// The keys of all chunks except the first, in order.
    pub(crate) fn chunk_keys(&self) -> impl Iterator<Item = EntryKey> + use<> {
        let index = self.index;
        let chunks = self.length.saturating_sub(FIRST_CHUNK_BYTES).div_ceil(VALUE_BYTES_MAX);
        (1..).take(chunks).map(move |chunk| EntryKey { index, chunk })
    }

    /// The complete entry, and its size in bytes.
    pub(crate) fn finish(self) -> Result<(LogEntry, usize), Unreadable> {
        if self.bytes.len() < self.length {
            return Err(Unreadable::ChunkMissing);
        }
        let length = u32::try_from(self.length).expect("was read as one");
        if checksum(VERSION, self.index, length, self.term_before, &self.bytes) != self.checksum {
            return Err(SealError::Checksum.into());
        }

        let size = self.bytes.len();
        let malformed = |why: &dyn std::fmt::Display| Unreadable::Malformed(why.to_string());
        let entry = pb::Entry::decode(bytes::Bytes::from(self.bytes)).map_err(|why| malformed(&why))?;
        let entry = entry.into_entry().map_err(|why| malformed(&why))?;
        if entry.log_id.index == self.index {
            Ok((entry, size))
        } else {
            Err(malformed(&"its index differs from its key's"))
        }
    }
}

fn checksum(version: u8, index: u64, length: u32, term_before: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[version]);
    hasher.update(&index.to_be_bytes());
    hasher.update(&length.to_be_bytes());
    hasher.update(&term_before.to_be_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CommittedLeaderId, EntryPayload, LogId, Payload};

    fn entry(index: u64, bytes: usize) -> LogEntry {
        let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let log_id = LogId { leader_id: CommittedLeaderId::new(3), index };
        LogEntry { log_id, payload: EntryPayload::Normal(Payload(payload.into())) }
    }

    fn decode(pairs: &Pairs) -> Result<LogEntry, Unreadable> {
        let key = EntryKey::decode(&pairs[0].0).expect("a key");
        let mut assembly = Assembly::begin(key.index, &pairs[0].1)?;
        while let Some(wanted) = assembly.wants() {
            let pair = pairs.iter().find(|pair| pair.0 == wanted.encode()).ok_or(Unreadable::ChunkMissing)?;
            assembly.add(&pair.1)?;
        }
        assembly.finish().map(|(entry, _)| entry)
    }

    #[test]
    fn entries_of_all_sizes_come_back() {
        for bytes in [0, 1, 100, 4000, 4090, 4096, 8191, 8192, 100_000, 2 << 20] {
            let pairs = encode(&entry(7, bytes), 2);
            assert!(pairs.iter().all(|(_, value)| value.len() <= VALUE_BYTES_MAX));
            assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "keys sort as they are read");
            assert_eq!(decode(&pairs), Ok(entry(7, bytes)));
            let assembly = Assembly::begin(7, &pairs[0].1).expect("readable");
            let keys: Vec<_> = assembly.chunk_keys().map(EntryKey::encode).collect();
            assert!(keys.iter().eq(pairs[1..].iter().map(|(key, _)| key)), "{bytes} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let pairs = encode(&entry(7, 5000), 2);
        for pair in 0..pairs.len() {
            for bit in 0..pairs[pair].1.len() * 8 {
                let mut flipped = pairs.clone();
                flipped[pair].1[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&flipped).is_err(), "pair {pair} bit {bit}");
            }
        }
    }

    #[test]
    fn an_entry_in_anothers_place_is_noticed() {
        let mut pairs = encode(&entry(7, 10), 2);
        pairs[0].0 = EntryKey::head(8).encode();
        assert_eq!(decode(&pairs), Err(SealError::Checksum.into()));
    }

    #[test]
    fn invalid_keys_are_not_decoded() {
        assert_eq!(EntryKey::decode(b""), None);
        assert_eq!(EntryKey::decode(b"1234567"), None);
        assert_eq!(EntryKey::decode(b"1234567890"), None);
        let key = EntryKey { index: u64::MAX, chunk: 9 };
        assert_eq!(EntryKey::decode(&key.encode()), Some(key));
    }
}
