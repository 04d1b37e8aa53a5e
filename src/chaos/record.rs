//! Records the events of one process.
//!
//! Each line is written without buffering before its operation is executed, so a killed process has recorded every operation that it began.
//! Times come from a clock that counts suspension and is common to all processes of this machine, less a common base. In a simulation, they
//! come from the simulated clock.

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

use lockkeeper_client::{BootClock, Clock, Moment};

use super::history::{Answer, Call, Event, Fact, Function, What, Writer};

/// The clock of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryClock {
    clock: &'static dyn Clock,
    base_ns: u64,
}

impl HistoryClock {
    /// A timeline that begins now.
    pub fn begin() -> Self {
        Self::with_base(nanos(BootClock.now()))
    }

    /// The timeline of another clock, from its start.
    pub fn with_clock(clock: &'static dyn Clock) -> Self {
        Self { clock, base_ns: 0 }
    }

    /// The timeline of another process of this machine, by its base.
    pub fn with_base(base_ns: u64) -> Self {
        Self { clock: &BootClock, base_ns }
    }

    /// The reading of the clock at the start of the timeline.
    pub fn base_ns(self) -> u64 {
        self.base_ns
    }

    /// The time since the start, in nanoseconds.
    pub fn now_ns(self) -> u64 {
        self.at_ns(self.clock.now())
    }

    /// The time from the start to this moment of the clock, in nanoseconds.
    pub fn at_ns(self, moment: Moment) -> u64 {
        nanos(moment).saturating_sub(self.base_ns)
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

/// The output of recorders. Several recorders with one timeline may share it.
pub type HistorySink = Arc<Mutex<dyn Write + Send>>;

/// Writes a process's part of a history. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<RecorderState>,
}

struct RecorderState {
    process: String,
    timeline: HistoryClock,
    sink: HistorySink,
    operations: AtomicU64,
    granted: AtomicU64,
    failure: OnceLock<io::Error>,
}

impl Recorder {
    /// Records into a new file.
    pub fn create(path: &Path, process: &str, timeline: HistoryClock) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Self::new(Arc::new(Mutex::new(file)), process, timeline))
    }

    /// Records into this sink, with one write per line.
    pub fn new(sink: HistorySink, process: &str, timeline: HistoryClock) -> Self {
        let shared = RecorderState {
            process: process.to_owned(),
            timeline,
            sink,
            operations: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            failure: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The timeline of its events.
    pub fn timeline(&self) -> HistoryClock {
        self.shared.timeline
    }

    /// The number of begun operations, and of granted acquires.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.operations.load(Ordering::Relaxed), self.shared.granted.load(Ordering::Relaxed))
    }

    /// Returns why an event could not be written. The history is then incomplete.
    pub fn failure(&self) -> Option<&io::Error> {
        self.shared.failure.get()
    }

    /// Records a fact.
    pub fn fact(&self, fact: Fact) {
        self.write(None, Vec::new(), What::Fact(fact));
    }

    /// Records the start of an operation. Call it before anything is sent.
    pub fn begin(&self, locks: &[String], call: Call) -> Begun {
        let op = self.shared.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let f = call.function();
        self.write(Some(op), locks.to_vec(), What::Invoke(call));
        Begun { recorder: self.clone(), op, f, is_open: true }
    }

    fn write(&self, op: Option<u64>, locks: Vec<String>, what: What) {
        let RecorderState { process, timeline, sink, failure, .. } = &*self.shared;
        let mut sink = sink.lock().expect("no code panics while it holds this lock");
        // Read the clock under the lock, so that times rise from line to line.
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

/// An operation that has started. If it is dropped without an end, its outcome is recorded as unknown.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    recorder: Recorder,
    op: u64,
    f: Function,
    is_open: bool,
}

impl Begun {
    /// Records that its effect is confirmed.
    pub fn ok(mut self, answer: Answer) {
        if let Answer::Acquire { .. } = answer {
            self.recorder.shared.granted.fetch_add(1, Ordering::Relaxed);
        }
        self.end(What::Ok(answer));
    }

    /// Records that it had no effect.
    pub fn failed(mut self, reason: impl Into<String>) {
        self.end(What::Fail { f: self.f, reason: reason.into() });
    }

    /// Records that its outcome is unknown.
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
