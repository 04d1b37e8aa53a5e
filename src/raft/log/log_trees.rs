//! Entries, the vote and other state of Raft, stored in a [`Disk`].

use std::io;

use prost::Message;

use super::record::{self, Assembly, EntryKey};
use crate::identity::{Incarnation, Start};
use crate::messages as pb;
use crate::types::{LogEntry, LogId, Vote};
pub(super) use lockkeeper_storage::files::damaged;
use lockkeeper_storage::{
    disk::{Disk, Tree},
    files,
};

/// Version of the values in the tree `meta`.
const META_VERSION: u8 = 1;
/// Format of the whole store. A store of another format is refused.
const FORMAT: u64 = 2;
/// Format from before the journal. A program that knows only this one must not open a store with a journal.
const FORMAT_WITHOUT_JOURNAL: u64 = 1;

const VOTE: &str = "vote";
const OWNER: &str = "owner";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const FORMAT_KEY: &str = "format";
const SELF_TEST: &str = "self-test";

/// The trees of one log.
pub(super) struct LogTrees<D> {
    pub(super) disk: D,
    /// No entry lies before this key: a purge continues here. A scan from the first key would visit all removals so far, which the
    /// journal still has in memory, once more for each slice.
    removed_to: Vec<u8>,
}

impl<D: Disk> LogTrees<D> {
    /// The trees on this disk.
    pub(super) fn new(disk: D) -> Self {
        Self { disk, removed_to: Vec::new() }
    }

    pub(super) fn vote(&self) -> io::Result<Option<Vote>> {
        Ok(self.meta::<pb::Vote>(VOTE)?.map(Vote::from))
    }

    pub(super) fn set_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.set_meta(VOTE, &pb::Vote::from(vote))
    }

    pub(super) fn committed(&self) -> io::Result<Option<LogId>> {
        Ok(self.meta::<pb::LogId>(COMMITTED)?.map(LogId::from))
    }

    pub(super) fn set_committed(&mut self, committed: &LogId) -> io::Result<()> {
        self.set_meta(COMMITTED, &pb::LogId::from(committed))
    }

    pub(super) fn purged(&self) -> io::Result<Option<LogId>> {
        Ok(self.meta::<pb::LogId>(PURGED)?.map(LogId::from))
    }

    pub(super) fn set_purged(&mut self, purged: &LogId) -> io::Result<()> {
        self.set_meta(PURGED, &pb::LogId::from(purged))
    }

    /// The data directory that this log belongs to, and the latest start of its node. It is `None` for a new log, and for one of a version
    /// that did not record it.
    pub(super) fn owner(&self) -> io::Result<Option<(Incarnation, Start)>> {
        let Some(owner) = self.meta::<pb::LogOwner>(OWNER)? else { return Ok(None) };
        let unreadable = || damaged(format!("`{OWNER}` names no valid owner"));
        let incarnation = owner.incarnation.as_ref().try_into().map_err(|_| unreadable())?;
        let start = owner.start.parse().map_err(|_| unreadable())?;
        Ok(Some((incarnation, start)))
    }

    pub(super) fn set_owner(&mut self, incarnation: Incarnation, start: Start) -> io::Result<()> {
        let incarnation = incarnation.as_bytes().to_vec().into();
        self.set_meta(OWNER, &pb::LogOwner { incarnation, start: start.to_string() })
    }

    /// Whether this store has a format: `false` for a newly created database, an error for another format.
    pub(super) fn is_formatted(&self) -> io::Result<bool> {
        match self.meta::<u64>(FORMAT_KEY)? {
            Some(FORMAT | FORMAT_WITHOUT_JOURNAL) => Ok(true),
            Some(other) => Err(files::unknown_format(format!(
                "it has format {other}, and this program reads formats {FORMAT_WITHOUT_JOURNAL} and {FORMAT}: {}",
                files::OTHER_FORMAT
            ))),
            None => Ok(false),
        }
    }

    pub(super) fn set_formatted(&mut self) -> io::Result<()> {
        self.set_meta(FORMAT_KEY, &FORMAT)
    }

    /// Writes a value that differs each time, so that a flush has something to do.
    pub(super) fn write_self_test(&mut self) -> io::Result<()> {
        let runs = self.meta::<u64>(SELF_TEST)?.unwrap_or(0);
        self.set_meta(SELF_TEST, &runs.wrapping_add(1))
    }

    /// Whether nothing was ever stored here.
    pub(super) fn is_blank(&self) -> io::Result<bool> {
        let no_entry = self.disk.scan(Tree::Log, &[]).next().transpose()?.is_none();
        Ok(no_entry && self.vote()?.is_none() && self.committed()?.is_none() && self.purged()?.is_none())
    }

    /// Adds an entry. The previous entry is `before`.
    pub(super) fn insert(&mut self, entry: &LogEntry, before: Option<&LogId>) -> io::Result<()> {
        let term_before = before.map_or(0, |before| before.leader_id.term);
        for (key, value) in record::encode(entry, term_before).into_iter().rev() {
            self.disk.insert(Tree::Log, &key, value)?;
        }
        Ok(())
    }

    /// Removes the entry at an index, if there is one.
    pub(super) fn remove(&mut self, index: u64) -> io::Result<()> {
        let Some(head) = self.disk.remove(Tree::Log, &EntryKey::head(index).encode())? else { return Ok(()) };
        let assembly = Assembly::begin(index, &head).map_err(|why| unreadable(index, &why))?;
        for key in assembly.chunk_keys() {
            self.disk.remove(Tree::Log, &key.encode())?;
        }
        Ok(())
    }

    /// Removes up to `count_max` keys of the entries up to and including `last`, upwards. Returns whether none is left.
    pub(super) fn remove_upwards(&mut self, last: u64, count_max: usize) -> io::Result<bool> {
        let keys: Vec<Vec<u8>> = self
            .disk
            .scan(Tree::Log, &self.removed_to)
            .map(|pair| pair.map(|(key, _)| key))
            .take_while(|key| match key {
                Ok(key) => EntryKey::decode(key).is_some_and(|key| key.index <= last),
                Err(_) => true,
            })
            .take(count_max)
            .collect::<io::Result<_>>()?;

        for key in &keys {
            self.disk.discard(Tree::Log, key)?;
        }
        let is_done = keys.len() < count_max;

        // Later entries have higher keys than the purged ones.
        self.removed_to = match keys.into_iter().next_back() {
            Some(removed) if !is_done => removed,
            Some(_) | None => EntryKey::head(last.saturating_add(1)).encode(),
        };
        Ok(is_done)
    }

    /// The entry at an index, and its size in bytes.
    pub(super) fn entry(&self, index: u64) -> io::Result<Option<(LogEntry, usize)>> {
        let Some(head) = self.disk.get(Tree::Log, &EntryKey::head(index).encode())? else { return Ok(None) };
        let bad = |why| unreadable(index, &why);
        let mut assembly = Assembly::begin(index, &head).map_err(bad)?;
        while let Some(key) = assembly.wants() {
            let chunk = self.disk.get(Tree::Log, &key.encode())?;
            assembly.add(&chunk.ok_or_else(|| bad(record::Unreadable::ChunkMissing))?).map_err(bad)?;
        }
        assembly.finish().map(Some).map_err(bad)
    }

    /// Entries from `from` up to but excluding `to`. Stops at the first missing one, and once the entries amount to `bytes_max`.
    pub(super) fn entries(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in from..to {
            let Some((entry, size)) = self.entry(index)? else { break };
            entries.push(entry);
            bytes += size;
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(entries)
    }

    fn meta<M: Message + Default>(&self, key: &str) -> io::Result<Option<M>> {
        let Some(sealed) = self.disk.get(Tree::Meta, key.as_bytes())? else { return Ok(None) };
        let message = files::unseal(META_VERSION, key.as_bytes(), &sealed);
        let message = message.map_err(|why| files::unsealable(&format!("`{key}`"), &why))?;
        M::decode(message).map(Some).map_err(|why| damaged(format!("`{key}` cannot be read: {why}")))
    }

    fn set_meta(&mut self, key: &str, message: &impl Message) -> io::Result<()> {
        let sealed = files::seal(META_VERSION, key.as_bytes(), &message.encode_to_vec());
        self.disk.insert(Tree::Meta, key.as_bytes(), sealed)
    }
}

/// An error: the entry at this index cannot be read.
pub(super) fn unreadable(index: u64, why: &record::Unreadable) -> io::Error {
    if let record::Unreadable::SealError(version @ files::SealError::Version { .. }) = why {
        return files::unsealable(&format!("entry {index}"), version);
    }
    damaged(format!("entry {index} cannot be read: {why}"))
}

#[cfg(test)]
mod tests;
