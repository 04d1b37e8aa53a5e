//! Reads a whole log and holds it against all that is known of it.

use std::io;

use super::{
    disk::{Disk, Table},
    mark::Mark,
    memory::{Recent, display, next_index},
    record::{Assembly, Key, Unreadable},
    tables::{Tables, damaged, unreadable},
};
use crate::raft::types::{Entry, LogId, Vote};

/// What a log that is in order holds.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The latest entries.
    pub(super) recent: Recent,
    /// Entries that are purged may still be on the disk.
    pub(super) has_leftovers: bool,
    /// A snapshot was installed, and the log does not show it yet.
    pub(super) installation: Option<Installation>,
    last_entry: Option<LogId>,
}

/// A snapshot that has taken the place of the log, or of its beginning, before the log said so.
///
/// openraft truncates what contradicts the snapshot, installs it, and purges what it holds. Only the snapshot is waited for. After a crash
/// it may be there beside a log that contradicts it, or that ends before it in a later term; openraft takes neither. But a
/// snapshot holds what is committed. So entries that contradict it are not, nor is what follows on them: they go, as they were meant to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Installation {
    /// Entries after this one contradict it.
    pub(super) keep: Option<LogId>,
    /// Up to where it reaches.
    pub(super) snapshot: LogId,
}

impl Recovered {
    /// Of the last entry; if there is none, up to where the log is purged.
    pub(super) fn last(&self) -> Option<LogId> {
        self.last_entry.or(self.purged)
    }
}

/// Checks the log, removes what a crash left behind its end, and answers what it holds. Any error means that it is damaged.
pub(super) fn verify<D: Disk>(
    tables: &mut Tables<D>,
    mark: &Mark,
    snapshot: Option<LogId>,
    recent: Recent,
) -> io::Result<Recovered> {
    let purged = tables.purged()?;
    let (marked, around) = (mark.last, [None, None]);
    let mut scan = Scan { recent, purged, last: None, marked, snapshot, around, assembly: None, torn: Vec::new() };
    for pair in tables.disk.scan(Table::Log, &Key::head(next_index(purged.as_ref())).encode()) {
        let (key, value) = pair?;
        scan.take(&key, &value)?;
    }
    let installation = scan.installation();
    let (recent, last_entry, torn) = scan.finish()?;

    let first_key = tables.disk.scan(Table::Log, &[]).next().transpose()?.map(|(key, _)| key);
    let first_key = first_key.as_deref().and_then(Key::decode);
    let has_leftovers = first_key.is_some_and(|key| key.index < next_index(purged.as_ref()));
    let (vote, committed) = (tables.vote()?, tables.committed()?);
    let recovered = Recovered { vote, committed, purged, recent, has_leftovers, installation, last_entry };
    compare(&recovered, mark, snapshot.as_ref())?;

    if !torn.is_empty() {
        for key in torn.iter().rev() {
            tables.disk.remove(Table::Log, &key.encode())?;
        }
        tables.disk.flush()?;
    }
    Ok(recovered)
}

/// Is the log as long, and the vote as new, as they must be?
fn compare(log: &Recovered, mark: &Mark, snapshot: Option<&LogId>) -> io::Result<()> {
    let last = log.last();
    let ends_before = |id: Option<&LogId>| next_index(last.as_ref()) < next_index(id);
    if ends_before(mark.last.as_ref()) {
        let (last, mark) = (display(last.as_ref()), display(mark.last.as_ref()));
        return Err(damaged(format!("it ends at {last}, but had reached {mark}")));
    }
    if ends_before(log.committed.as_ref()) {
        let (last, committed) = (display(last.as_ref()), display(log.committed.as_ref()));
        return Err(damaged(format!("it ends at {last}, but was committed up to {committed}")));
    }
    if mark.vote.is_some() && log.vote.partial_cmp(&mark.vote).is_none_or(|order| order.is_lt()) {
        return Err(damaged("the vote is older than one that was given".to_owned()));
    }
    // Between the two, entries would be missing. A log that ends before the snapshot is in order: it was installed, and the purge
    // was to follow.
    if next_index(log.purged.as_ref()) > next_index(snapshot) {
        let (purged, snapshot) = (display(log.purged.as_ref()), display(snapshot));
        return Err(damaged(format!("it is purged up to {purged}, but the newest snapshot ends at {snapshot}")));
    }
    Ok(())
}

/// Goes through the entries that are not purged, key by key.
struct Scan {
    recent: Recent,
    purged: Option<LogId>,
    last: Option<LogId>,
    /// The entry that the high-water mark names.
    marked: Option<LogId>,
    /// Up to where the newest snapshot reaches.
    snapshot: Option<LogId>,
    /// The entry before that one, and the one in its place.
    around: [Option<LogId>; 2],
    assembly: Option<(u64, Assembly)>,
    /// Chunks behind the end of the log, without a first one.
    torn: Vec<Key>,
}

impl Scan {
    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let key = Key::decode(key).ok_or_else(|| damaged(format!("it has a key that is none: {key:02x?}")))?;
        let next = self.next();
        match &mut self.assembly {
            Some((index, assembly)) => {
                let index = *index;
                if assembly.wants() != Some(key) {
                    return Err(unreadable(index, &Unreadable::ChunkMissing));
                }
                assembly.add(value).map_err(|why| unreadable(index, &why))?;
            }
            None if key.chunk > 0 && key.index == next => self.torn.push(key),
            None if key.chunk > 0 || key.index != next || !self.torn.is_empty() => {
                return Err(damaged(format!("entry {next} is missing")));
            }
            None => {
                let assembly = Assembly::begin(key.index, value).map_err(|why| unreadable(key.index, &why))?;
                self.assembly = Some((key.index, assembly));
            }
        }
        self.finish_entry()
    }

    /// The index that must come next.
    fn next(&self) -> u64 {
        next_index(self.last.or(self.purged).as_ref())
    }

    fn finish_entry(&mut self) -> io::Result<()> {
        if let Some((index, assembly)) = self.assembly.take_if(|(_, assembly)| assembly.wants().is_none()) {
            let term_before = assembly.term_before();
            let (entry, _) = assembly.finish().map_err(|why| unreadable(index, &why))?;
            self.follow(entry, term_before)?;
        }
        Ok(())
    }

    fn follow(&mut self, entry: Entry, term_before: u64) -> io::Result<()> {
        let id = entry.log_id;
        if self.last.is_some_and(|last| last.leader_id.term != term_before) {
            return Err(damaged(format!("entry {} followed on another one than it does now", id.index)));
        }
        if self.last.or(self.purged) >= Some(id) {
            return Err(damaged(format!("entry {} is of an older term than the one before it", id.index)));
        }
        if self.marked.is_some_and(|marked| marked.index == id.index && marked != id) {
            return Err(damaged(format!("entry {} is another one than it was", id.index)));
        }
        if let Some(snapshot) = self.snapshot.filter(|snapshot| (id.index..=id.index + 1).contains(&snapshot.index)) {
            self.around[usize::from(snapshot.index == id.index)] = Some(id);
        }
        self.last = Some(id);
        self.recent.push(entry);
        Ok(())
    }

    /// What is to be done for the log to follow on its snapshot.
    fn installation(&self) -> Option<Installation> {
        let snapshot = self.snapshot.filter(|snapshot| next_index(self.purged.as_ref()) <= snapshot.index)?;
        let [before, in_its_place] = self.around;
        let keep = match in_its_place {
            Some(id) if id == snapshot => return None,
            Some(_) => before.or(self.purged),
            // openraft purges by itself.
            None if self.last.or(self.purged) < Some(snapshot) => return None,
            None => self.last.or(self.purged),
        };
        Some(Installation { keep, snapshot })
    }

    fn finish(self) -> io::Result<(Recent, Option<LogId>, Vec<Key>)> {
        match self.assembly {
            Some((index, _)) => Err(unreadable(index, &Unreadable::ChunkMissing)),
            None => Ok((self.recent, self.last, self.torn)),
        }
    }
}
