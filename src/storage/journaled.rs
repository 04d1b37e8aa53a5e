//! A write-ahead log in front of a store: one small fsync makes a group durable, and changes are moved to the store later, in bulk.
//!
//! A change goes into the journal's next record and into memory. A flush commits the record. When a file of the journal is full, its
//! changes, collected in memory, are handed to a thread that *settles* them: it moves them to the store, flushes that, and reports;
//! meanwhile the journal continues in its other file. Many changes never reach the store, because the key is overwritten or removed while
//! they are in memory.
//!
//! Reads look into memory first: new changes, then those being settled, then the store.
//!
//! The store itself holds, under one key, the number of the last settled record, which is written last before the flush. An opening first
//! settles all later records. Repeating an interrupted settling is harmless: each change sets the value of a key, so applying all of them
//! again in order gives the same result.
//!
//! An opening also skips a number: that of the record which may be torn. See `journal`.

use std::{
    collections::BTreeMap,
    io, iter,
    mem::{self, ManuallyDrop},
    ops::Bound,
    path::Path,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::{
    disk::{Disk, Pair, Tree},
    files::damaged,
    journal::{Journal, JournalContent, TreeOperation, first_format, operations},
    panics::{self, Doing},
};
use crate::files::{self, SealError};

/// The store's key for the [`JournalState`] of the journal.
const STATE_KEY: &[u8] = b"journal";
const STATE_VERSION: u8 = 2;
/// The version of a journal in its [first format](first_format).
const FIRST_STATE_VERSION: u8 = 1;
/// The factor by which a file of the journal may exceed its size. Beyond it, writes wait until the other file is settled.
const PATIENCE: u64 = 8;

/// A write-ahead log in front of a store. The module's documentation describes it.
pub struct Journaled<D: Disk> {
    // The settler comes first, so it is dropped first. The owner of this then closes the disk, which may fail.
    settler: Settler,
    disk: D,
    journal: Journal,
    /// The target size of each file of the journal in bytes.
    journal_bytes: u64,
    salt: u64,
    /// The changes in the active file, and in the next record.
    new: PendingChanges,
    /// The changes in the other file, while they are being settled.
    settling: Option<Arc<PendingChanges>>,
}

/// Values by key. A removed key has `None`.
type Keys = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The changes of both trees. Only the last change of a key is kept.
#[derive(Debug, Default)]
struct PendingChanges {
    log: Keys,
    meta: Keys,
}

/// The state of the journal, as stored in the disk.
#[derive(Clone, Copy, Debug)]
struct JournalState {
    /// The version of this state and of the journal.
    version: u8,
    salt: u64,
    /// The number of the last record that is on the disk, or was never complete.
    settled: u64,
}

impl<D: Disk + Clone> Journaled<D> {
    /// Opens a disk with its journal in this directory. If the disk has no state of a journal, the journal is created. Afterwards
    /// all records of the journal are on the disk.
    pub fn open(mut disk: D, directory: &Path, journal_bytes: u64) -> io::Result<Self> {
        let state = match JournalState::read(&disk)? {
            Some(state) if state.version == STATE_VERSION => state,
            before => {
                if let Some(state) = before {
                    let records = first_format::read(directory, state.salt, state.settled)?;
                    let settled = state.settled + records.len() as u64;
                    settle(&mut disk, &PendingChanges::from_records(&records)?, JournalState { settled, ..state })?;
                }
                // If the process crashes before the state is on the disk, the journal is created again.
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a salt only has to differ from earlier ones; no decision depends on it"
                )]
                let salt = rand::random();
                Journal::create(directory, salt, journal_bytes)?;
                JournalState { version: STATE_VERSION, salt, settled: 0 }
            }
        };

        let JournalContent { records, spoilt } = Journal::read(directory, state.salt, state.settled)?;
        let state = JournalState { settled: state.settled + records.len() as u64 + 1, ..state };

        // This is needed even without records. After a kill, the last settled records may not be synced yet, and they are about
        // to be overwritten.
        settle(&mut disk, &PendingChanges::from_records(&records)?, state)?;

        let journal = Journal::start(directory, state.salt, state.settled + 1, journal_bytes, &spoilt)?;
        let settler = Settler::start(disk.clone(), directory)?;
        let new = PendingChanges::default();

        Ok(Self { settler, disk, journal, journal_bytes, salt: state.salt, new, settling: None })
    }
}

impl<D: Disk> Journaled<D> {
    fn change(&mut self, operation: TreeOperation<'_>) {
        self.journal.add(operation);
        self.new.take(operation);
    }

    /// Checks whether the other file is settled, or waits for it. Returns the settler's error.
    fn look_after_settler(&mut self, must_wait: bool) -> io::Result<()> {
        if self.settling.is_some() && self.settler.is_done(must_wait)? {
            self.settling = None;
        }
        Ok(())
    }

    /// Continues in the other file if the active one is full. If the other one is still being settled, the active one may grow
    /// further.
    fn turn(&mut self) -> io::Result<()> {
        self.look_after_settler(self.journal.used() >= self.journal_bytes.saturating_mul(PATIENCE))?;
        if self.journal.used() < self.journal_bytes || self.settling.is_some() {
            return Ok(());
        }

        let changes = Arc::new(mem::take(&mut self.new));
        self.settler.settle(
            Arc::clone(&changes),
            JournalState { version: STATE_VERSION, salt: self.salt, settled: self.journal.last() },
        )?;

        self.settling = Some(changes);
        self.journal.switch();
        Ok(())
    }
}

impl<D: Disk> Disk for Journaled<D> {
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let settling = self.settling.as_deref();
        match self.new.in_tree(tree).get(key).or_else(|| settling.and_then(|settling| settling.in_tree(tree).get(key)))
        {
            Some(value) => Ok(value.clone()),
            None => self.disk.get(tree, key),
        }
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        let there = self.disk.scan(tree, from).map(|pair| pair.map(|(key, value)| (key, Some(value))));
        let settling = self.settling.as_deref().into_iter().flat_map(move |settling| settling.scan(tree, from));
        merge(self.new.scan(tree, from), merge(settling, there))
            .filter_map(|pair| pair.map(|(key, value)| value.map(|value| (key, value))).transpose())
    }

    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.change(TreeOperation { tree, key, value: Some(&value) });
        Ok(())
    }

    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let was = self.get(tree, key)?;
        if was.is_some() {
            self.change(TreeOperation { tree, key, value: None });
        }
        Ok(was)
    }

    fn discard(&mut self, tree: Tree, key: &[u8]) -> io::Result<()> {
        self.change(TreeOperation { tree, key, value: None });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.journal.commit()?;
        self.turn()
    }

    fn idle(&mut self) -> io::Result<()> {
        self.journal.note_end()
    }

    fn close(&mut self) -> io::Result<()> {
        self.look_after_settler(true)?;
        self.disk.close()
    }
}

/// Moves changes to the disk, all records up to `state.settled`. They are durable when it returns.
fn settle(disk: &mut impl Disk, changes: &PendingChanges, state: JournalState) -> io::Result<()> {
    for tree in [Tree::Log, Tree::Meta] {
        for (key, value) in changes.in_tree(tree) {
            match value {
                Some(value) => disk.insert(tree, key, value.clone())?,
                None => {
                    disk.remove(tree, key)?;
                }
            }
        }
    }

    let JournalState { version, salt, settled } = state;
    let sealed = files::seal(version, STATE_KEY, [salt.to_be_bytes(), settled.to_be_bytes()].as_flattened());
    disk.insert(Tree::Meta, STATE_KEY, sealed)?;
    disk.flush()
}

impl JournalState {
    fn read(disk: &impl Disk) -> io::Result<Option<Self>> {
        let Some(sealed) = disk.get(Tree::Meta, STATE_KEY)? else { return Ok(None) };
        let unreadable = |why: String| damaged(format!("the state of its journal cannot be read: {why}"));
        let version = if sealed.first() == Some(&FIRST_STATE_VERSION) { FIRST_STATE_VERSION } else { STATE_VERSION };
        let state = files::unseal(version, STATE_KEY, &sealed).map_err(|why| match why {
            SealError::Version { .. } => files::unsealable("its journal", &why),
            SealError::Short | SealError::Checksum => unreadable(why.to_string()),
        })?;
        let numbers = state.split_first_chunk().and_then(|(&salt, rest)| Some((salt, rest.try_into().ok()?)));
        let Some((salt, settled)) = numbers else { return Err(unreadable("it has another length".to_owned())) };
        Ok(Some(Self { version, salt: u64::from_be_bytes(salt), settled: u64::from_be_bytes(settled) }))
    }
}

impl PendingChanges {
    fn from_records(records: &[Vec<u8>]) -> io::Result<Self> {
        let mut changes = Self::default();
        for operation in records.iter().flat_map(|record| operations(record)) {
            changes.take(operation?);
        }
        Ok(changes)
    }

    fn in_tree(&self, tree: Tree) -> &Keys {
        match tree {
            Tree::Log => &self.log,
            Tree::Meta => &self.meta,
        }
    }

    fn take(&mut self, operation: TreeOperation<'_>) {
        let keys = match operation.tree {
            Tree::Log => &mut self.log,
            Tree::Meta => &mut self.meta,
        };
        keys.insert(operation.key.to_vec(), operation.value.map(<[u8]>::to_vec));
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)> {
        self.in_tree(tree).range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
    }
}

type MergedPair = io::Result<(Vec<u8>, Option<Vec<u8>>)>;

/// Merges two sorted sequences; where both have a key, `over` wins.
fn merge<'a>(
    over: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
    under: impl Iterator<Item = MergedPair>,
) -> impl Iterator<Item = MergedPair> {
    let mut over = over.peekable();
    let mut under = under.peekable();
    iter::from_fn(move || {
        let Some((key, value)) = over.peek().copied() else { return under.next() };
        match under.peek() {
            Some(Err(_)) => return under.next(),
            Some(Ok((other, _))) if other < key => return under.next(),
            Some(Ok((other, _))) if other == key => {
                under.next();
            }
            Some(Ok(_)) | None => {}
        }
        over.next();
        Some(Ok((key.clone(), value.clone())))
    })
}

/// The thread that settles.
struct Settler {
    /// `None` once it must end.
    work: Option<mpsc::SyncSender<(Arc<PendingChanges>, JournalState)>>,
    done: mpsc::Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Settler {
    fn start(disk: impl Disk, directory: &Path) -> io::Result<Self> {
        // A capacity of 1 suffices: one file is settled at a time.
        let (work, to_do) = mpsc::sync_channel::<(Arc<PendingChanges>, JournalState)>(1);
        let (say, done) = mpsc::sync_channel(1);
        let directory = directory.to_owned();
        let run = move || {
            let _advice = panics::advise(&directory, Doing::Serving);
            // After a failure the disk must not be dropped; see `Writer::run`.
            let mut disk = ManuallyDrop::new(disk);
            for (changes, state) in to_do {
                let settled = settle(&mut *disk, &changes, state);
                let has_failed = settled.is_err();
                drop(changes);
                // The receiver is gone when the log is being closed.
                let _ = say.send(settled);
                if has_failed {
                    return;
                }
            }
            drop(ManuallyDrop::into_inner(disk));
        };
        let thread = thread::Builder::new().name("log-settler".to_owned()).spawn(run)?;
        Ok(Self { work: Some(work), done, thread: Some(thread) })
    }

    fn settle(&self, changes: Arc<PendingChanges>, state: JournalState) -> io::Result<()> {
        self.work.as_ref().and_then(|work| work.send((changes, state)).ok()).ok_or_else(gone)
    }

    /// Whether it has settled the last changes. Returns its error.
    fn is_done(&self, must_wait: bool) -> io::Result<bool> {
        if must_wait {
            return self.done.recv().map_err(|_| gone())?.map(|()| true);
        }
        match self.done.try_recv() {
            Ok(settled) => settled.map(|()| true),
            Err(mpsc::TryRecvError::Empty) => Ok(false),
            Err(mpsc::TryRecvError::Disconnected) => Err(gone()),
        }
    }
}

impl Drop for Settler {
    /// Waits until the thread has dropped the disk.
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that moves the journal into sled has ended")
}

#[cfg(test)]
mod tests;
