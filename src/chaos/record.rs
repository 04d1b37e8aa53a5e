//! Writing down what one process does, as it does it.
//!
//! Each line goes to the system at once, before whatever it tells of is done: a process that is killed has told all that it began.
//! Times are read from the clock that counts suspension and is the same for all processes of this machine, less a common base; in a
//! simulation, from its own.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::history::{Answer, Call, Event, Fact, Function, What, Writer};
use crate::client::{BootClock, Clock, Moment};

/// The clock of a history.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    clock: &'static dyn Clock,
    base_ns: u64,
}

impl Timeline {
    /// It begins now.
    pub fn begin() -> Self {
        Self::of_base(nanos(BootClock.now()))
    }

    /// That of another clock, from its beginning.
    pub fn of_clock(clock: &'static dyn Clock) -> Self {
        Self { clock, base_ns: 0 }
    }

    /// The timeline of another process of this machine, by its base.
    pub fn of_base(base_ns: u64) -> Self {
        Self { clock: &BootClock, base_ns }
    }

    /// What its clock said when it began.
    pub fn base_ns(self) -> u64 {
        self.base_ns
    }

    /// How long ago it began.
    pub fn now_ns(self) -> u64 {
        self.at_ns(self.clock.now())
    }

    /// How long after its beginning this moment of its clock was.
    pub fn at_ns(self, moment: Moment) -> u64 {
        nanos(moment).saturating_sub(self.base_ns)
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

/// Where lines go. Several recorders of one timeline may share it.
pub type Sink = Arc<Mutex<dyn Write + Send>>;

/// Writes a process's part of a history. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    process: String,
    timeline: Timeline,
    sink: Sink,
    operations: AtomicU64,
    granted: AtomicU64,
    failure: OnceLock<io::Error>,
}

impl Recorder {
    /// Into a new file.
    pub fn create(path: &Path, process: &str, timeline: Timeline) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Self::new(Arc::new(Mutex::new(file)), process, timeline))
    }

    /// Into this sink: a line in one write.
    pub fn new(sink: Sink, process: &str, timeline: Timeline) -> Self {
        let shared = Shared {
            process: process.to_owned(),
            timeline,
            sink,
            operations: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            failure: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Where its times come from.
    pub fn timeline(&self) -> Timeline {
        self.shared.timeline
    }

    /// How many operations were begun, and how many acquires granted.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.operations.load(Ordering::Relaxed), self.shared.granted.load(Ordering::Relaxed))
    }

    /// Why something could not be written down. Then the history is not whole.
    pub fn failure(&self) -> Option<&io::Error> {
        self.shared.failure.get()
    }

    /// Writes down that something is so.
    pub fn fact(&self, fact: Fact) {
        self.write(None, Vec::new(), What::Fact(fact));
    }

    /// Writes down that an operation begins. Call it before anything is sent.
    pub fn begin(&self, locks: &[String], call: Call) -> Begun {
        let op = self.shared.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let f = call.function();
        self.write(Some(op), locks.to_vec(), What::Invoke(call));
        Begun { recorder: self.clone(), op, f, is_open: true }
    }

    fn write(&self, op: Option<u64>, locks: Vec<String>, what: What) {
        let Shared { process, timeline, sink, failure, .. } = &*self.shared;
        let mut sink = sink.lock().expect("nothing panics while it has the sink");
        // Read under the lock: a later line has no earlier time.
        let event = Event { time_ns: timeline.now_ns(), process: process.clone(), op, locks, what };
        let mut line = Writer::new(Vec::new());
        let written = line.write(&event).and_then(|()| sink.write_all(&line.into_inner()));
        if let Err(error) = written {
            let _ = failure.set(error);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("process", &self.shared.process).finish_non_exhaustive()
    }
}

/// An operation that began. Dropped without an end, its outcome is not known.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    recorder: Recorder,
    op: u64,
    f: Function,
    is_open: bool,
}

impl Begun {
    /// It did what it says.
    pub fn ok(mut self, answer: Answer) {
        if let Answer::Acquire { .. } = answer {
            self.recorder.shared.granted.fetch_add(1, Ordering::Relaxed);
        }
        self.end(What::Ok(answer));
    }

    /// It certainly did not.
    pub fn failed(mut self, reason: impl Into<String>) {
        self.end(What::Fail { f: self.f, reason: reason.into() });
    }

    /// Nobody knows.
    pub fn unknown(mut self, why: impl Into<String>) {
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
