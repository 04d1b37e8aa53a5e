//! A log in memory with delayed flushes. It counts the appends that are not flushed.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper::raft::types::{LogEntry, LogId, TypeConfig, Vote};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

const FLUSH_TIME: Duration = Duration::from_millis(3);
/// Flush time of a slow disk: well below the timeout after which a leader counts a follower as dead.
const SLOW: Duration = Duration::from_millis(300);

#[derive(Clone)]
pub(crate) struct MemoryLog {
    state: Arc<Mutex<State>>,
    unflushed: Arc<AtomicUsize>,
    flushes: mpsc::UnboundedSender<IOFlushed<TypeConfig>>,
    held: watch::Sender<bool>,
    slow: watch::Sender<bool>,
}

#[derive(Clone, Default)]
struct State {
    entries: BTreeMap<u64, LogEntry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
}

impl MemoryLog {
    pub(crate) fn new() -> Self {
        let (flushes, mut queue) = mpsc::unbounded_channel::<IOFlushed<TypeConfig>>();
        let unflushed = Arc::new(AtomicUsize::new(0));
        let waiting = unflushed.clone();
        let held = watch::Sender::new(false);
        let mut gate = held.subscribe();
        let slow = watch::Sender::new(false);
        let is_slow = slow.subscribe();
        tokio::spawn(async move {
            let mut group = Vec::new();
            loop {
                let (appends_max, flush_time) = if *is_slow.borrow() { (1, SLOW) } else { (usize::MAX, FLUSH_TIME) };
                if queue.recv_many(&mut group, appends_max).await == 0 {
                    return;
                }
                sleep(flush_time).await;
                // An error means that the log was dropped.
                if gate.wait_for(|held| !held).await.is_err() {
                    return;
                }
                waiting.fetch_sub(group.len(), Ordering::Relaxed);
                group.drain(..).for_each(|flushed| flushed.io_completed(Ok(())));
            }
        });
        Self { state: Arc::default(), unflushed, flushes, held, slow }
    }

    /// A new log with the current content of this one.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new();
        *copy.state() = self.state().clone();
        copy
    }

    /// While `hold`, no flush ends.
    pub(crate) fn hold_flushes(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// While `slow`, each append has a separate flush, which takes `SLOW`.
    pub(crate) fn slow_down(&self, slow: bool) {
        self.slow.send_replace(slow);
    }

    /// Number of entries.
    pub(crate) fn entries(&self) -> usize {
        self.state().entries.len()
    }

    /// Number of appends that are not flushed.
    pub(crate) fn unflushed(&self) -> usize {
        self.unflushed.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics with the lock held")
    }
}

impl RaftLogReader<TypeConfig> for MemoryLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<LogEntry>> {
        Ok(self.state().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.state().vote)
    }
}

impl RaftLogStorage<TypeConfig> for MemoryLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.state();
        let last = state.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: last.or(state.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.state().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.state().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        self.unflushed.fetch_add(1, Ordering::Relaxed);
        self.flushes.send(callback).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.state().entries.retain(|index, _| last.is_some_and(|last| *index <= last.index));
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let mut state = self.state();
        state.purged = Some(upto);
        state.entries.retain(|index, _| *index > upto.index);
        Ok(())
    }
}
