//! The driver uses a log as a node does and reports its operations. It runs in a child process: this test program again, with only
//! the test `drive`.
//!
//! Its reports go to a file next to the log, one write per line: so the layer below records them in one order with the calls of the
//! store, and they survive a kill.

use std::{
    env, fmt,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{self, Command},
    thread,
    time::Duration,
};

use lockkeeper::raft::{
    log::{LogOptions, LogStore},
    types::{TypeConfig, Vote},
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::{TypeConfigExt, alias::OneshotReceiverOf},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    disk::SAID,
    history::{History, Id, Operation, Said},
    support::{JOURNAL_BYTES, entry, id, log_id},
};
use crate::children;

/// The directory of the log, below the driver's.
pub(crate) const LOG: &str = "log";

/// Exit code if the log does not open.
pub(crate) const REFUSED: i32 = 3;
/// Exit code if the log reports an error, but has not ended the process within twice `STALL_LIMIT`.
pub(crate) const LEFT_ALONE: i32 = 4;

const ROOT: &str = "LOCKKEEPER_DRIVER_ROOT";
const SEED: &str = "LOCKKEEPER_DRIVER_SEED";
const OPERATIONS: &str = "LOCKKEEPER_DRIVER_OPERATIONS";

/// The log is purged above this number of entries.
const ENTRIES_MAX: u64 = 400;
/// Deadline of a hanging disk; short for the tests.
const STALL_LIMIT: Duration = Duration::from_secs(2);

/// A driver that performs `operations` in this directory and ends.
pub(crate) fn command(root: &Path, seed: u64, operations: u64) -> Command {
    let mut command = children::command(&children::full_name(module_path!(), "drive"));
    command.env(ROOT, root).env(SEED, seed.to_string()).env(OPERATIONS, operations.to_string());
    command
}

/// The child's main function.
#[test]
#[ignore = "the entry point of a child process"]
fn drive() {
    let Some(root) = env::var_os(ROOT).map(PathBuf::from) else { return };
    let number = |name| env::var(name).ok().and_then(|value| value.parse().ok()).expect("the parent sets it");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut driver = Driver::begin(&root, number(SEED)).await;
        for _ in 0..number(OPERATIONS) {
            driver.step().await;
        }
        driver.close().await;
    });
}

/// The driver's reports, one a line. An incomplete last line is ignored.
pub(crate) fn said(root: &Path) -> Vec<Said> {
    let text = match fs::read_to_string(root.join(SAID)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => panic!("the driver's reports cannot be read: {error}"),
    };
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(must_parse).collect()
}

/// Parses one report.
pub(crate) fn must_parse(line: &str) -> Said {
    line.trim_end().parse().expect("the driver's report is valid")
}

type Flushed = OneshotReceiverOf<TypeConfig, io::Result<()>>;

struct Driver {
    root: PathBuf,
    voice: File,
    random: StdRng,
    store: LogStore,
    /// The last entry in the snapshot.
    snapshot: Option<Id>,
    vote: (u64, bool),
    purged: Option<Id>,
    /// The terms of the entries in the log.
    terms: std::collections::VecDeque<u64>,
    committed: Option<Id>,
    /// Number of the last operation begun.
    number: u64,
    /// Unacknowledged appends.
    waiting: Vec<(u64, Flushed)>,
}

impl Driver {
    async fn begin(root: &Path, seed: u64) -> Self {
        let mut history = History::new();
        said(root).iter().for_each(|said| drop(history.hear(said)));
        let snapshot = history.snapshot;
        let mut voice = File::options().create(true).append(true).open(root.join(SAID)).expect("opened");
        let store = open(root, &mut voice, snapshot);
        let mut driver = Self {
            root: root.to_owned(),
            voice,
            random: StdRng::seed_from_u64(seed),
            store,
            snapshot,
            vote: (0, false),
            purged: None,
            terms: Default::default(),
            committed: None,
            number: 0,
            waiting: Vec::new(),
        };
        driver.opened().await;
        driver
    }

    /// Reads the state of the log, reports it and continues from it.
    async fn opened(&mut self) {
        let state = super::support::state(&mut self.store).await.expect("an opened log is consistent");
        self.committed = self.store.read_committed().await.expect("readable").map(id);
        let vote = state.vote;
        let purged = state.purged;
        let last = state.last();
        say(&mut self.voice, &Said::Opened { vote, purged, last });
        (self.vote, self.purged, self.terms) = (vote, purged, state.terms);
        // As openraft does: entries in the snapshot are not appended again.
        if let Some(snapshot) = self.snapshot.filter(|snapshot| last.is_none_or(|last| last.1 < snapshot.1)) {
            self.purge(snapshot).await;
        }
        self.raise_vote().await;
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            _ if self.terms.len() as u64 > ENTRIES_MAX => self.purge_some().await,
            0..70 => self.append().await,
            70..76 => self.raise_vote().await,
            76..86 => self.truncate().await,
            86..90 => self.purge_some().await,
            90..97 => self.commit().await,
            97..98 => self.skip_to_a_snapshot().await,
            _ => self.reopen().await,
        }
        if self.waiting.len() > 8 || self.random.random_bool(0.3) {
            self.settle().await;
        }
    }

    fn first(&self) -> u64 {
        self.purged.map_or(0, |(_, index)| index + 1)
    }

    fn next(&self) -> u64 {
        self.first() + self.terms.len() as u64
    }

    fn id_at(&self, index: u64) -> Option<Id> {
        match index.checked_sub(self.first()) {
            Some(at) => Some((self.terms[at as usize], index)),
            None => self.purged,
        }
    }

    fn say_begin(&mut self, operation: Operation) -> u64 {
        self.number += 1;
        say(&mut self.voice, &Said::Begin { number: self.number, operation });
        self.number
    }

    async fn append(&mut self) {
        let term = self.vote.0;
        let first = self.next();
        let count = self.random.random_range(1..=6);
        let number = self.say_begin(Operation::Append { term, first, count });
        let (flushed, answer) = TypeConfig::oneshot();
        let entries = (first..first + count).map(|index| entry(term, index));
        must(self.store.append(entries, IOFlushed::<TypeConfig>::signal(flushed)).await);
        self.terms.extend((0..count).map(|_| term));
        self.waiting.push((number, answer));
    }

    /// Waits until all appends are durable.
    async fn settle(&mut self) {
        for (number, flushed) in std::mem::take(&mut self.waiting) {
            must(must(flushed.await));
            say(&mut self.voice, &Said::Done { number });
        }
    }

    async fn raise_vote(&mut self) {
        match self.vote {
            (term, false) if term > 0 && self.random.random() => self.vote((term, true)).await,
            (term, _) => self.vote((term + 1, false)).await,
        }
    }

    async fn vote(&mut self, (term, is_committed): (u64, bool)) {
        let number = self.say_begin(Operation::Vote { term, is_committed });
        let vote = if is_committed { Vote::new_committed(term, 1) } else { Vote::new(term, 1) };
        must(self.store.save_vote(&vote).await);
        self.vote = (term, is_committed);
        say(&mut self.voice, &Said::Done { number });
    }

    /// Truncates as a follower does if its last entries differ from the new leader's: later entries have that leader's term. The log
    /// relies on this property of Raft: a term and an index identify an entry and all its predecessors.
    async fn truncate(&mut self) {
        let fixed = self.committed.max(self.purged).map_or(0, |(_, index)| index + 1);
        if fixed >= self.next() {
            return;
        }
        self.vote((self.vote.0 + 1, true)).await;
        let from = self.random.random_range(fixed.max(self.next().saturating_sub(20))..self.next());
        self.say_begin(Operation::Truncate { from });
        let after = from.checked_sub(1).and_then(|last| self.id_at(last)).map(log_id);
        must(self.store.truncate_after(after).await);
        self.terms.truncate((from - self.first()) as usize);
    }

    async fn purge_some(&mut self) {
        if self.terms.is_empty() {
            return;
        }
        let upto = self.random.random_range(self.first()..self.next());
        let upto = self.id_at(upto).expect("it is in the log");
        self.purge(upto).await;
    }

    /// Purges as a follower does that installs a snapshot: it reaches beyond the end of the log.
    async fn skip_to_a_snapshot(&mut self) {
        let upto = (self.vote.0, self.next() + self.random.random_range(0..50));
        self.purge(upto).await;
    }

    async fn purge(&mut self, upto: Id) {
        self.say_begin(Operation::Purge { upto });
        must(self.store.purge(log_id(upto)).await);
        let gone = (upto.1 + 1 - self.first()).min(self.terms.len() as u64);
        self.terms.drain(..gone as usize);
        (self.purged, self.snapshot) = (Some(upto), self.snapshot.max(Some(upto)));
    }

    async fn commit(&mut self) {
        let fixed = self.committed.max(self.purged).map_or(0, |(_, index)| index);
        if fixed + 20 < self.next() {
            let index = self.random.random_range(fixed + 1..self.next() - 19);
            self.committed = self.id_at(index);
            must(self.store.save_committed(self.committed.map(log_id)).await);
        }
    }

    async fn close(&mut self) {
        self.settle().await;
        say(&mut self.voice, &Said::Closing);
        must(self.store.close().await);
        say(&mut self.voice, &Said::Closed);
    }

    async fn reopen(&mut self) {
        self.close().await;
        self.store = open(&self.root, &mut self.voice, self.snapshot);
        self.opened().await;
    }
}

fn open(root: &Path, voice: &mut File, snapshot: Option<Id>) -> LogStore {
    say(voice, &Said::Opening);
    let snapshot = snapshot.map(log_id);
    let journal_bytes = JOURNAL_BYTES;
    let stall_limit = STALL_LIMIT;
    let open_limit = STALL_LIMIT * 3;
    let options = LogOptions { snapshot, journal_bytes, stall_limit, open_limit, ..LogOptions::default() };
    LogStore::open(&root.join(LOG), options).unwrap_or_else(|error| {
        eprintln!("lockkeeper: {error}");
        process::exit(REFUSED)
    })
}

/// One line is one write, so a report is complete or missing, never torn.
fn say(voice: &mut File, said: &Said) {
    voice.write_all(format!("{said}\n").as_bytes()).expect("written");
}

/// Unwraps the store's answer. After a failure, the store must end the process.
fn must<T, E: fmt::Display>(answer: Result<T, E>) -> T {
    answer.unwrap_or_else(|error| {
        eprintln!("the driver was told: {error}");
        thread::sleep(STALL_LIMIT * 2);
        process::exit(LEFT_ALONE)
    })
}
