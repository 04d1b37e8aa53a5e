//! The log's state in memory: its bounds, the vote, and the latest entries.
//!
//! It is ahead of the disk: an append shows here when it is queued, so that replication can send it while it is being flushed. Readers
//! find the latest entries here, up to a number of bytes, and ask the writer for older ones.

use std::{collections::VecDeque, io};

use crate::types::{EntryPayload, LogEntry, LogId, Vote};

/// The state of the log as its users see it.
#[derive(Debug, Default)]
pub(super) struct LogMemory {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The index of the first entry, if there is one: after the purged ones, or wherever the first entry was put.
    first: u64,
    /// The last entry; if there is none, as `purged`.
    pub(super) last: Option<LogId>,
    /// Counts removals of entries, each of them a job in the writer's queue. A reader with several steps restarts when it has changed.
    pub(super) removals: u64,
    recent: RecentEntries,
}

/// The latest entries, without a gap up to the end of the log.
#[derive(Debug, Default)]
pub(super) struct RecentEntries {
    entries: VecDeque<LogEntry>,
    bytes: usize,
    bytes_max: usize,
}

/// One step of reading a range.
#[derive(Debug)]
pub(super) enum ReadStep {
    /// The next entries.
    Here(Vec<LogEntry>),
    /// The next entries are on the disk: from the first index up to but excluding the second.
    OnDisk(u64, u64),
    /// No entry of the range is left.
    End,
}

impl LogMemory {
    pub(super) fn new(
        purged: Option<LogId>,
        vote: Option<Vote>,
        committed: Option<LogId>,
        recent: RecentEntries,
    ) -> Self {
        let last = recent.entries.back().map(|entry| entry.log_id).or(purged);
        Self { vote, committed, purged, first: next_index(purged.as_ref()), last, removals: 0, recent }
    }

    /// Adds entries at the end.
    pub(super) fn append(&mut self, entries: &[LogEntry]) -> io::Result<()> {
        let mut last = self.last;
        for entry in entries {
            if last.is_some_and(|last| entry.log_id.index != last.index + 1) {
                let what = format!("entry {} cannot follow entry {}", entry.log_id.index, display(last.as_ref()));
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            last = Some(entry.log_id);
        }

        if let (None, Some(first)) = (self.last, entries.first()) {
            self.first = first.log_id.index;
        }

        entries.iter().for_each(|entry| self.recent.push(entry.clone()));
        self.last = last;
        Ok(())
    }

    /// Removes all entries after this one. Returns whether there were any.
    pub(super) fn truncate_after(&mut self, after: Option<LogId>) -> io::Result<bool> {
        let keep = next_index(after.as_ref());
        if keep >= next_index(self.last.as_ref()) {
            return Ok(false);
        }

        let fixed = self.committed.max(self.purged);
        if keep < next_index(fixed.as_ref()) {
            let after = display(after.as_ref());
            let fixed = display(fixed.as_ref());
            let what = format!("entries after {after} cannot be removed: they are committed up to {fixed}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }

        self.recent.truncate(keep);
        self.last = after;
        self.removals += 1;
        Ok(true)
    }

    /// Removes all entries up to and including this one. Returns whether anything changed.
    pub(super) fn purge(&mut self, upto: LogId) -> bool {
        if self.purged >= Some(upto) {
            return false;
        }

        self.recent.purge(upto.index);
        self.purged = Some(upto);
        self.first = self.first.max(upto.index + 1);

        // A snapshot may reach beyond the end of the log. The remaining entries are then dropped.
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.recent.entries.clear();
            self.recent.bytes = 0;
            self.last = Some(upto);
        }

        self.removals += 1;
        true
    }

    /// The first step of reading this range.
    pub(super) fn step(&self, from: u64, to: u64, bytes_max: usize) -> ReadStep {
        let from = from.max(self.first);
        let to = to.min(next_index(self.last.as_ref()));
        match self.recent.first_index() {
            _ if from >= to => ReadStep::End,
            Some(first) if from >= first => ReadStep::Here(self.recent.get(from, to, bytes_max)),
            Some(first) => ReadStep::OnDisk(from, to.min(first)),
            None => ReadStep::OnDisk(from, to),
        }
    }
}

impl RecentEntries {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds an entry that follows the last one.
    pub(super) fn push(&mut self, entry: LogEntry) {
        self.bytes += size(&entry);
        self.entries.push_back(entry);
        // The last entry stays, however large: it is read next.
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            self.pop_front();
        }
    }

    fn first_index(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    fn get(&self, from: u64, to: u64, bytes_max: usize) -> Vec<LogEntry> {
        let first = self.first_index().expect("the caller found the range in here");
        let range = (from - first) as usize..(to - first) as usize;
        let mut bytes = 0;
        let fits = |entry: &&LogEntry| {
            let is_first = bytes == 0;
            bytes += size(entry);
            is_first || bytes <= bytes_max
        };
        self.entries.range(range).take_while(fits).cloned().collect()
    }

    fn truncate(&mut self, keep: u64) {
        while self.entries.back().is_some_and(|last| last.log_id.index >= keep) {
            let removed = self.entries.pop_back().expect("it is there");
            self.bytes -= size(&removed);
        }
    }

    fn purge(&mut self, upto: u64) {
        while self.first_index().is_some_and(|first| first <= upto) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        let removed = self.entries.pop_front().expect("the caller saw one");
        self.bytes -= size(&removed);
    }
}

/// The estimated size of an entry in memory and on the disk, bytes.
pub(super) fn size(entry: &LogEntry) -> usize {
    const ITSELF: usize = size_of::<LogEntry>();
    match &entry.payload {
        EntryPayload::Blank => ITSELF,
        EntryPayload::Normal(payload) => ITSELF + payload.0.len(),
        EntryPayload::Membership(membership) => ITSELF + 256 * membership.nodes().count(),
    }
}

/// The index after this one; 0 after none.
pub(super) fn next_index(id: Option<&LogId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

/// Formats a log id for a message.
pub(super) fn display(id: Option<&LogId>) -> String {
    id.map_or("the beginning".to_owned(), |id| format!("{} of term {}", id.index, id.leader_id.term))
}
