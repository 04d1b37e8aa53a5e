//! Progress of long work on a terminal: one line on stderr, updated in place once a second, and erased after the work.
//!
//! Nothing is shown if stderr is not a terminal, in the background, and during the first second. The work may block its thread: a thread of
//! its own shows the line.

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{show, terminal::ProgressLine};

/// Interval of the updates, and delay of the first one.
const BETWEEN: Duration = Duration::from_secs(1);

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Bytes,
    /// Records of the table.
    Records,
}

/// Work under way. Dropping it erases its line.
#[derive(Debug)]
pub(super) struct WorkUnderWay {
    count: Arc<AtomicU64>,
    /// The line, if there is a terminal. It ends when the sender is dropped.
    shown: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl WorkUnderWay {
    /// Work that begins now. `total` is what the count will be at its end, if that is known.
    pub(super) fn begin(what: &str, unit: Unit, total: Option<u64>) -> Self {
        let count = Arc::<AtomicU64>::default();
        if !io::stderr().is_terminal() {
            return Self { count, shown: None };
        }

        let (sender, ended) = mpsc::channel();
        let what = show::text(what);
        let counted = Arc::clone(&count);
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let mut line = ProgressLine::default();
            let mut before = 0;
            while ended.recv_timeout(BETWEEN) == Err(RecvTimeoutError::Timeout) {
                let now = counted.load(Relaxed);
                line.show(&said(&what, unit, now, total, now - before));
                before = now;
            }
        });

        // Without a thread the work goes on, and nothing is shown.
        Self { count, shown: thread.ok().map(|thread| (sender, thread)) }
    }

    /// The number of units that are done. The work adds to it.
    pub(super) fn count(&self) -> &AtomicU64 {
        &self.count
    }
}

impl Drop for WorkUnderWay {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.shown.take() {
            drop(sender);
            // Wait, so that the line is erased before the next output.
            let _ = thread.join();
        }
    }
}

/// `rate` is the amount since the last update, a second ago.
fn said(what: &str, unit: Unit, done: u64, total: Option<u64>, rate: u64) -> String {
    let amount = |amount: u64| match unit {
        Unit::Bytes => bytes(amount),
        Unit::Records => show::count(amount, "record", "records"),
    };
    let of = match total.filter(|total| *total > 0) {
        Some(total) => format!(" of {} ({} %)", amount(total), done.min(total).saturating_mul(100) / total),
        None => String::new(),
    };
    format!("lockkeeper: {what}: {}{of}, {} a second", amount(done), amount(rate))
}

fn bytes(bytes: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..1_024 => show::count(bytes, "byte", "bytes"),
        1_024..1_048_576 => format!("{} KiB", tenths(1 << 10)),
        1_048_576..1_073_741_824 => format!("{} MiB", tenths(1 << 20)),
        _ => format!("{} GiB", tenths(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_fast() {
        let reading = said("reading b", Unit::Bytes, 3 << 20, Some(4 << 20), 1_536);
        assert_eq!(reading, "lockkeeper: reading b: 3.0 MiB of 4.0 MiB (75 %), 1.5 KiB a second");
        let making = said("making", Unit::Records, 1, None, 0);
        assert_eq!(making, "lockkeeper: making: 1 record, 0 records a second");
        // A file that grew while it was read.
        assert!(said("reading b", Unit::Bytes, 9, Some(3), 0).contains("9 bytes of 3 bytes (100 %)"));
        assert!(said("reading b", Unit::Bytes, 0, Some(0), 0).ends_with("b: 0 bytes, 0 bytes a second"));
    }
}
