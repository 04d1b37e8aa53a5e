//! Writing down what one process does, as it does it.
//!
//! Each line goes to the system at once, before whatever it tells of is done: a process that is killed has told all that it began.
//! Times are read from the clock that counts suspension and is the same for all processes of this machine, less a common base.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::history::{Answer, Call, Event, Fact, Function, What, Writer};
use crate::client::{BootClock, Clock as _, Moment};

/// The clock of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    base_ns: u64,
}

impl Timeline {
    /// It begins now.
    pub(super) fn begin() -> Self {
        Self { base_ns: nanos(BootClock.now()) }
    }

    /// The timeline of another process of this machine, by its base.
    pub(super) fn of_base(base_ns: u64) -> Self {
        Self { base_ns }
    }

    pub(super) fn base_ns(self) -> u64 {
        self.base_ns
    }

    pub(super) fn now_ns(self) -> u64 {
        self.at_ns(BootClock.now())
    }

    pub(super) fn at_ns(self, moment: Moment) -> u64 {
        nanos(moment).saturating_sub(self.base_ns)
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a process's part of a history. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: String,
    timeline: Timeline,
    file: Mutex<File>,
    operations: AtomicU64,
    granted: AtomicU64,
    failure: OnceLock<io::Error>,
}

impl Recorder {
    /// Into a new file.
    pub(super) fn create(path: &Path, process: &str, timeline: Timeline) -> io::Result<Self> {
        let file = Mutex::new(OpenOptions::new().create_new(true).append(true).open(path)?);
        let shared = Shared {
            process: process.to_owned(),
            timeline,
            file,
            operations: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            failure: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn timeline(&self) -> Timeline {
        self.shared.timeline
    }

    /// How many operations were begun, and how many acquires granted.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.shared.operations.load(Ordering::Relaxed), self.shared.granted.load(Ordering::Relaxed))
    }

    /// Why something could not be written down. Then the history is not whole.
    pub(super) fn failure(&self) -> Option<&io::Error> {
        self.shared.failure.get()
    }

    pub(super) fn fact(&self, fact: Fact) {
        self.write(None, Vec::new(), What::Fact(fact));
    }

    /// Writes down that an operation begins. Call it before anything is sent.
    pub(super) fn begin(&self, locks: &[String], call: Call) -> Begun {
        let op = self.shared.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let f = call.function();
        self.write(Some(op), locks.to_vec(), What::Invoke(call));
        Begun { recorder: self.clone(), op, f, is_open: true }
    }

    fn write(&self, op: Option<u64>, locks: Vec<String>, what: What) {
        let Shared { process, timeline, file, failure, .. } = &*self.shared;
        let mut file = file.lock().expect("nothing panics while it has the file");
        // Read under the lock: a later line has no earlier time.
        let event = Event { time_ns: timeline.now_ns(), process: process.clone(), op, locks, what };
        let mut line = Writer::new(Vec::new());
        let written = line.write(&event).and_then(|()| file.write_all(&line.into_inner()));
        if let Err(error) = written {
            let _ = failure.set(error);
        }
    }
}

/// An operation that began. Dropped without an end, its outcome is not known.
#[derive(Debug)]
#[must_use]
pub(super) struct Begun {
    recorder: Recorder,
    op: u64,
    f: Function,
    is_open: bool,
}

impl Begun {
    pub(super) fn ok(mut self, answer: Answer) {
        if let Answer::Acquire { .. } = answer {
            self.recorder.shared.granted.fetch_add(1, Ordering::Relaxed);
        }
        self.end(What::Ok(answer));
    }

    pub(super) fn failed(mut self, reason: impl Into<String>) {
        self.end(What::Fail { f: self.f, reason: reason.into() });
    }

    pub(super) fn unknown(mut self, why: impl Into<String>) {
        self.end(What::Info { f: self.f, why: why.into() });
    }

    fn end(&mut self, what: What) {
        self.is_open = false;
        self.recorder.write(Some(self.op), Vec::new(), what);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_open {
            self.end(What::Info { f: self.f, why: "given up".to_owned() });
        }
    }
}
