//! A simulated log that loses unsynced writes in a crash. It replaces sled.
//!
//! Writes go to a queue of *pending* writes, and readers see them at once. A sync takes a simulated time; then the writes that were
//! pending at its start are *synced*, and their callbacks run. A crash keeps a random prefix of the pending writes, in the order in which
//! they were written, like the log of the product.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper::{
    planted::Planted,
    raft::types::{LogEntry, LogId, TypeConfig, Vote},
};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

/// Contents of a disk, synced or as readers see them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Contents {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    pub(crate) entries: BTreeMap<u64, LogEntry>,
}

/// One write. An append is one write per entry: a crash may keep some of them.
#[derive(Debug)]
enum Write {
    Entry(LogEntry),
    Vote(Vote),
    Committed(LogId),
    Truncate(Option<LogId>),
    Purge(LogId),
}

/// A node's disk. Outlasts its process.
#[derive(Debug)]
pub(crate) struct Disk {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    synced: Contents,
    pending: VecDeque<Write>,
    sync_ms: (u64, u64),
    random: StdRng,
    /// Number of writes that crashes dropped.
    dropped: u64,
}

impl Disk {
    /// An empty disk. `sync_ms`: minimal and maximal duration of a sync, milliseconds.
    pub(crate) fn new(seed: u64, sync_ms: (u64, u64)) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (synced, pending) = (Contents::default(), VecDeque::new());
        Self { state: Mutex::new(State { synced, pending, sync_ms, random, dropped: 0 }) }
    }

    /// The disk of a node whose table is in a snapshot up to this entry, and that has cast this vote.
    pub(crate) fn founded(seed: u64, sync_ms: (u64, u64), vote: Vote, last: LogId) -> Self {
        let disk = Self::new(seed, sync_ms);
        disk.lock().synced = Contents { vote: Some(vote), purged: Some(last), ..Contents::default() };
        disk
    }

    /// The index of the last entry that is durable.
    pub(crate) fn last_index(&self) -> Option<u64> {
        self.lock().synced.last().map(|last| last.index)
    }

    /// What a process finds there that starts now.
    pub(crate) fn synced(&self) -> Contents {
        self.lock().synced.clone()
    }

    /// Sets the minimal and maximal duration of a sync.
    pub(crate) fn set_sync_ms(&self, sync_ms: (u64, u64)) {
        self.lock().sync_ms = sync_ms;
    }

    /// The process or the machine has died: keeps a prefix of the pending writes and drops the rest.
    pub(crate) fn crash(&self) {
        let mut state = self.lock();
        let State { synced, pending, random, dropped, .. } = &mut *state;
        let kept = match random.random_range(0..3) {
            0 => 0,
            1 => pending.len(),
            _ => random.random_range(0..=pending.len()),
        };
        pending.drain(..kept).for_each(|write| synced.apply(write));
        *dropped += pending.len() as u64;
        pending.clear();
    }

    /// The number of writes lost in crashes.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    fn sync_time(&self) -> Duration {
        let mut state = self.lock();
        let (least, most) = state.sync_ms;
        Duration::from_millis(state.random.random_range(least..=most))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it has the disk")
    }
}

impl Contents {
    fn apply(&mut self, write: Write) {
        match write {
            Write::Entry(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Write::Vote(vote) => self.vote = Some(vote),
            Write::Committed(committed) => self.committed = Some(committed),
            Write::Truncate(after) => drop(self.entries.split_off(&after.map_or(0, |after| after.index + 1))),
            Write::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = self.purged.max(Some(upto));
            }
        }
    }

    /// The last entry; without any, the last purged one.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).max(self.purged)
    }
}

/// The log of a running process. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    _syncing: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<Disk>,
    seen: Mutex<Seen>,
    work: Notify,
}

struct Seen {
    contents: Contents,
    waiting: Vec<Waiting>,
}

/// A caller that waits for a sync.
enum Waiting {
    Append(IOFlushed<TypeConfig>),
    Vote(oneshot::Sender<()>),
}

impl Waiting {
    fn tell(self) {
        match self {
            Self::Append(callback) => callback.io_completed(Ok(())),
            // An error means that the caller has given up.
            Self::Vote(done) => drop(done.send(())),
        }
    }
}

/// Reads the log.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
}

impl Log {
    /// Opens the log with the disk's synced contents.
    pub(crate) fn open(disk: &Arc<Disk>) -> Self {
        let contents = disk.synced();
        let seen = Mutex::new(Seen { contents, waiting: Vec::new() });
        let shared = Arc::new(Shared { disk: Arc::clone(disk), seen, work: Notify::new() });
        let syncing = AbortOnDropHandle::new(tokio::spawn(sync(Arc::clone(&shared))));
        Self { shared, _syncing: Arc::new(syncing) }
    }
}

/// Syncs pending writes in a loop.
async fn sync(shared: Arc<Shared>) {
    loop {
        shared.work.notified().await;
        let writes = shared.disk.lock().pending.len();
        let waiting = std::mem::take(&mut shared.seen().waiting);
        sleep(shared.disk.sync_time()).await;
        {
            let mut state = shared.disk.lock();
            let State { synced, pending, .. } = &mut *state;
            pending.drain(..writes).for_each(|write| synced.apply(write));
        }
        waiting.into_iter().for_each(Waiting::tell);
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics while it has the log")
    }

    fn write(&self, writes: impl IntoIterator<Item = Write>, waiting: Option<Waiting>) {
        match waiting {
            Some(waiting) if Planted::AckBeforeSync.is_on() => {
                self.note(writes, None);
                waiting.tell();
            }
            waiting => self.note(writes, waiting),
        }
    }

    fn note(&self, writes: impl IntoIterator<Item = Write>, waiting: Option<Waiting>) {
        let mut state = self.disk.lock();
        let mut seen = self.seen();
        for write in writes {
            seen.contents.apply(write.again());
            state.pending.push_back(write);
        }
        seen.waiting.extend(waiting);
        self.work.notify_one();
    }
}

impl Write {
    fn again(&self) -> Self {
        match self {
            Self::Entry(entry) => Self::Entry(entry.clone()),
            Self::Vote(vote) => Self::Vote(*vote),
            Self::Committed(committed) => Self::Committed(*committed),
            Self::Truncate(after) => Self::Truncate(*after),
            Self::Purge(upto) => Self::Purge(*upto),
        }
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let seen = self.shared.seen();
        Ok(LogState { last_purged_log_id: seen.contents.purged, last_log_id: seen.contents.last() })
    }

    async fn get_log_reader(&mut self) -> Reader {
        Reader { shared: Arc::clone(&self.shared) }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, synced) = oneshot::channel();
        self.shared.write([Write::Vote(*vote)], Some(Waiting::Vote(done)));
        synced.await.map_err(io::Error::other)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.shared.write(committed.map(Write::Committed), None);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.seen().contents.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.shared.write(entries.into_iter().map(Write::Entry), Some(Waiting::Append(callback)));
        Ok(())
    }

    async fn truncate_after(&mut self, after: Option<LogId>) -> io::Result<()> {
        self.shared.write([Write::Truncate(after)], None);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.shared.write([Write::Purge(upto)], None);
        Ok(())
    }
}

impl RaftLogReader<TypeConfig> for Reader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let seen = self.shared.seen();
        let bounds: (Bound<u64>, Bound<u64>) = (range.start_bound().cloned(), range.end_bound().cloned());
        let is_empty = matches!(bounds, (Bound::Included(from), Bound::Excluded(to)) if from >= to);
        if is_empty {
            Ok(Vec::new())
        } else {
            Ok(seen.contents.entries.range(bounds).map(|(_, entry)| entry.clone()).collect())
        }
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.seen().contents.vote)
    }
}

impl Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("contents", &self.contents).finish_non_exhaustive()
    }
}
