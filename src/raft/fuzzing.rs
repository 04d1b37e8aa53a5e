//! Parsers that are private to this crate, for `tests/fuzz`. Not an interface: it changes with the parsers.

use tonic::{Status, metadata::MetadataMap};

use crate::{
    identity::{NodeIdentity, ids::Incarnation},
    log::record::{Assembly, EntryKey, encode},
    network::envelope,
    types::{LogEntry, LogId},
};

/// An entry as key-value pairs of the log, first chunk first.
pub fn write_log_entry(entry: &LogEntry, term_before: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    encode(entry, term_before)
}

/// The entry with this index and the term before it, from the values of its chunks. Fails with what is wrong.
pub fn read_log_entry(index: u64, chunks: &[&[u8]]) -> Result<(LogEntry, u64), String> {
    let (head, rest) = chunks.split_first().ok_or("no chunk")?;
    let mut assembly = Assembly::begin(index, head).map_err(|error| error.to_string())?;
    let term_before = assembly.term_before();
    let mut rest = rest.iter();
    while assembly.wants().is_some() {
        let Some(chunk) = rest.next() else { break };
        assembly.add(chunk).map_err(|error| error.to_string())?;
    }
    assembly.finish().map(|(entry, _)| (entry, term_before)).map_err(|error| error.to_string())
}

/// The key of a chunk, encoded again.
pub fn log_key(key: &[u8]) -> Option<Vec<u8>> {
    EntryKey::decode(key).map(EntryKey::encode)
}

/// Whether a call with this metadata is admitted: the caller's id. Every caller is a member with this incarnation.
pub async fn admit(
    identity: &NodeIdentity,
    member: Incarnation,
    progress: (u64, Option<LogId>),
    metadata: &MetadataMap,
) -> Result<u64, Status> {
    let progress = std::future::ready(Ok(progress));
    envelope::admit(identity, |_| Some(member), |_| false, progress, None, metadata).await.map(|caller| caller.node_id)
}

/// What a caller reads in the metadata of an answer and of a refusal.
pub fn answered(identity: &NodeIdentity, peer: u64, metadata: &MetadataMap) -> Result<(), Status> {
    envelope::handle_refusal(identity, peer, metadata);
    envelope::answered_by(metadata).map(|_| ())
}
