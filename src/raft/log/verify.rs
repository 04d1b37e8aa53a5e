//! Reads a whole log and checks it against everything known about it.

use std::io;

use super::{
    log_trees::{LogTrees, damaged, unreadable},
    mark::LogMark,
    memory::{RecentEntries, display, next_index},
    record::{Assembly, EntryKey, Unreadable},
};
use crate::types::{LogEntry, LogId, Vote};
use lockkeeper_storage::{
    database::Progress,
    disk::{Disk, Tree},
};

/// The content of a valid log.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The latest entries.
    pub(super) recent: RecentEntries,
    /// Whether purged entries may still be on the disk.
    pub(super) has_leftovers: bool,
    /// It is `Some` while the log does not reflect an installed snapshot.
    pub(super) installation: Option<Installation>,
    last_entry: Option<LogId>,
}

/// A snapshot that replaced the log, or its beginning, before the log recorded it.
///
/// openraft truncates entries that contradict the snapshot, installs it, and purges the entries that it covers. It waits only for the
/// snapshot. After a crash, the snapshot may exist beside a log that contradicts it, or that ends before it in a later term; openraft
/// accepts neither. But a snapshot holds committed entries only. So entries that contradict it, and later ones, are not committed, and
/// are removed as intended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Installation {
    /// Entries after this one contradict it.
    pub(super) keep: Option<LogId>,
    /// The last entry of the snapshot.
    pub(super) snapshot: LogId,
}

impl Recovered {
    /// The last entry; if there is none, the last purged one.
    pub(super) fn last(&self) -> Option<LogId> {
        self.last_entry.or(self.purged)
    }
}

/// Checks the log, removes the remains of torn entries after its end, and returns its content. Any error means that it is damaged. Each
/// record that is read is a step of the progress.
pub(super) fn verify<D: Disk>(
    trees: &mut LogTrees<D>,
    mark: &LogMark,
    snapshot: Option<LogId>,
    recent: RecentEntries,
    progress: &Progress,
) -> io::Result<Recovered> {
    let purged = trees.purged()?;
    let committed = trees.committed()?;
    let known = KnownEntries { marked: mark.last, committed };
    let around = [None, None];
    let mut scan = Scan { recent, purged, last: None, known, snapshot, around, assembly: None, torn: Vec::new() };
    for pair in trees.disk.scan(Tree::Log, &EntryKey::head(next_index(purged.as_ref())).encode()) {
        let (key, value) = pair?;
        scan.take(&key, &value)?;
        progress.step();
    }
    let installation = scan.installation();
    let (recent, last_entry, torn) = scan.finish()?;

    let first_key = trees.disk.scan(Tree::Log, &[]).next().transpose()?.map(|(key, _)| key);
    let first_key = first_key.as_deref().and_then(EntryKey::decode);
    let has_leftovers = first_key.is_some_and(|key| key.index < next_index(purged.as_ref()));
    let vote = trees.vote()?;
    let recovered = Recovered { vote, committed, purged, recent, has_leftovers, installation, last_entry };
    compare(&recovered, mark, snapshot.as_ref())?;

    if !torn.is_empty() {
        // Remove from the end: the rest after a crash is then again a torn entry.
        for key in torn.iter().rev() {
            trees.disk.remove(Tree::Log, &key.encode())?;
        }
        trees.disk.flush()?;
    }
    Ok(recovered)
}

/// Checks that the log is as long, and the vote as new, as they must be.
fn compare(log: &Recovered, mark: &LogMark, snapshot: Option<&LogId>) -> io::Result<()> {
    let last = log.last();
    let ends_before = |id: Option<&LogId>| next_index(last.as_ref()) < next_index(id);

    if ends_before(mark.last.as_ref()) {
        let last = display(last.as_ref());
        let mark = display(mark.last.as_ref());
        return Err(damaged(format!("it ends at {last}, but it had reached {mark}")));
    }

    if ends_before(log.committed.as_ref()) {
        let last = display(last.as_ref());
        let committed = display(log.committed.as_ref());
        return Err(damaged(format!("it ends at {last}, but it was committed up to {committed}")));
    }

    if mark.vote.is_some() && log.vote.partial_cmp(&mark.vote).is_none_or(|order| order.is_lt()) {
        return Err(damaged("the vote is older than one that was given".to_owned()));
    }

    // Otherwise entries between the two would be missing. A log that ends before the snapshot is valid: the snapshot was installed, and
    // the purge had not happened yet.
    if next_index(log.purged.as_ref()) > next_index(snapshot) {
        let purged = display(log.purged.as_ref());
        let found = match snapshot {
            Some(snapshot) => format!("but the newest snapshot ends at {}", display(Some(snapshot))),
            None => "and the snapshot that replaced these entries is gone".to_owned(),
        };
        return Err(damaged(format!("it is purged up to {purged}, {found}")));
    }
    Ok(())
}

/// Entries that the log must have, if it has any at their indexes.
struct KnownEntries {
    /// The entry that the high-water mark names.
    marked: Option<LogId>,
    /// The last entry that was known to be committed. openraft applies all up to it before it hears of a leader.
    committed: Option<LogId>,
}

impl KnownEntries {
    fn check(&self, id: LogId) -> io::Result<()> {
        let differs = |known: Option<LogId>| known.is_some_and(|known| known.index == id.index && known != id);
        if differs(self.marked) {
            return Err(damaged(format!("entry {} differs from the entry that the file `high-water` names", id.index)));
        }
        if differs(self.committed) {
            let found = display(Some(&id));
            let committed = display(self.committed.as_ref());
            return Err(damaged(format!("it has entry {found}, but entry {committed} was committed")));
        }
        Ok(())
    }
}

/// Visits the entries that are not purged, key by key.
struct Scan {
    recent: RecentEntries,
    purged: Option<LogId>,
    last: Option<LogId>,
    known: KnownEntries,
    /// The last entry of the newest snapshot.
    snapshot: Option<LogId>,
    /// The log's entries just before and at the snapshot's index.
    around: [Option<LogId>; 2],
    assembly: Option<(u64, Assembly)>,
    /// Chunks after the end of the log, without a first one.
    torn: Vec<EntryKey>,
}

impl Scan {
    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let key =
            EntryKey::decode(key).ok_or_else(|| damaged(format!("it has a key of an unknown format: {key:02x?}")))?;

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

    /// The next expected index.
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

    fn follow(&mut self, entry: LogEntry, term_before: u64) -> io::Result<()> {
        let id = entry.log_id;

        if self.last.is_some_and(|last| last.leader_id.term != term_before) {
            return Err(damaged(format!(
                "entry {} was written after another entry than the one that precedes it now",
                id.index
            )));
        }

        if self.last.or(self.purged) >= Some(id) {
            return Err(damaged(format!("entry {} has an older term than the entry before it", id.index)));
        }
        self.known.check(id)?;

        if let Some(snapshot) = self.snapshot.filter(|snapshot| (id.index..=id.index + 1).contains(&snapshot.index)) {
            self.around[usize::from(snapshot.index == id.index)] = Some(id);
        }
        self.last = Some(id);
        self.recent.push(entry);
        Ok(())
    }

    /// The steps that make the log continue from its snapshot.
    fn installation(&self) -> Option<Installation> {
        let snapshot = self.snapshot.filter(|snapshot| next_index(self.purged.as_ref()) <= snapshot.index)?;
        let [before, in_its_place] = self.around;
        let keep = match in_its_place {
            Some(id) if id == snapshot => return None,
            Some(_) => before.or(self.purged),
            // openraft itself purges in this case.
            None if self.last.or(self.purged) < Some(snapshot) => return None,
            None => self.last.or(self.purged),
        };
        Some(Installation { keep, snapshot })
    }

    fn finish(self) -> io::Result<(RecentEntries, Option<LogId>, Vec<EntryKey>)> {
        match self.assembly {
            Some((index, _)) => Err(unreadable(index, &Unreadable::ChunkMissing)),
            None => Ok((self.recent, self.last, self.torn)),
        }
    }
}
