//! Counts operations by window: none during the warm-up, then in one window after another.
//!
//! An operation belongs to the window in which it ends. An operation that began before a window and ends in it is
//! counted, one that ends after it is not: over many operations these balance.

use std::{
    fmt::Display,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{BenchError, Figure, Figures, Latencies, Series, SeriesCondition, Timing, usage::Cpu};

/// Records the results of workers. Clones share the record.
#[derive(Clone, Debug)]
pub(super) struct ResultRecorder(Arc<RecordedWindows>);

#[derive(Debug)]
struct RecordedWindows {
    /// The current phase: 0 is the warm-up, and from 1 on it is the number of the window. Above the number of windows the
    /// measurement is over.
    phase: AtomicUsize,
    windows: Vec<Mutex<RepetitionWindow>>,
}

/// The results of one window.
#[derive(Clone, Debug)]
struct RepetitionWindow {
    latencies: Latencies,
    /// The latencies of refusals.
    refused: Latencies,
    sent: u64,
    per_worker: Vec<u64>,
    errors: u64,
    first_error: Option<String>,
}

/// How long a window took, and the CPU time used in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowTime {
    elapsed: Duration,
    cpu: Cpu,
}

impl ResultRecorder {
    pub(super) fn new(workers: usize, windows: usize) -> Self {
        let window = RepetitionWindow {
            latencies: Latencies::default(),
            refused: Latencies::default(),
            sent: 0,
            per_worker: vec![0; workers],
            errors: 0,
            first_error: None,
        };
        let windows = vec![window; windows].into_iter().map(Mutex::new).collect();
        Self(Arc::new(RecordedWindows { phase: AtomicUsize::new(0), windows }))
    }

    /// Records an operation that has just ended.
    pub(super) fn note<E: Display>(&self, worker: usize, outcome: Result<Duration, E>) {
        self.in_window(|window| match outcome {
            Ok(latency) => {
                window.latencies.record(latency);
                window.per_worker[worker] += 1;
            }
            Err(error) => {
                window.errors += 1;
                window.first_error.get_or_insert_with(|| error.to_string());
            }
        });
    }

    /// Counts a sent operation. Only workloads with that figure call it.
    pub(super) fn sent(&self) {
        self.in_window(|window| window.sent += 1);
    }

    /// Records a refusal due to load shedding after this time.
    pub(super) fn refused(&self, after: Duration) {
        self.in_window(|window| window.refused.record(after));
    }

    fn in_window(&self, change: impl FnOnce(&mut RepetitionWindow)) {
        if let Some(window) = self.phase().checked_sub(1).and_then(|window| self.0.windows.get(window)) {
            change(&mut window.lock().expect("no code panics while it holds this lock"));
        }
    }

    /// Adds the figures of sent and refused requests to each repetition.
    pub(super) fn put_refusals(&self, series: &mut Series, timed: &[WindowTime]) {
        for ((window, timed), figures) in self.0.windows.iter().zip(timed).zip(&mut series.repetitions) {
            let window = window.lock().expect("no code panics while it holds this lock");
            let refused = &window.refused;
            let elapsed = timed.elapsed.as_secs_f64();
            let quantile = |fraction| (refused.count() > 0).then(|| refused.quantile(fraction).as_secs_f64() * 1e6);
            figures.put(Figure::Sent, window.sent as f64 / elapsed);
            figures.put(Figure::Refused, refused.count() as f64 / elapsed);
            figures.put(Figure::RefusedP50, quantile(0.5));
            figures.put(Figure::RefusedP99, quantile(0.99));
        }
    }

    /// Whether the measurement is over.
    pub(super) fn is_over(&self) -> bool {
        self.phase() > self.0.windows.len()
    }

    fn phase(&self) -> usize {
        self.0.phase.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.0.phase.store(self.0.windows.len() + 1, Ordering::Relaxed);
    }

    /// Runs the warm-up and all windows. The measurement is over when this returns, also if it returns early.
    pub(super) async fn run(
        &self,
        timing: &Timing,
        servers: Option<&[u32]>,
        stop: &CancellationToken,
    ) -> Result<Vec<WindowTime>, BenchError> {
        let outcome = stop.run_until_cancelled(self.pass(timing, servers)).await;
        self.end();
        outcome.ok_or(BenchError::Stopped)
    }

    async fn pass(&self, timing: &Timing, servers: Option<&[u32]>) -> Vec<WindowTime> {
        sleep(timing.warm_up).await;
        let mut timed = Vec::with_capacity(self.0.windows.len());
        for window in 1..=self.0.windows.len() {
            let cpu = Cpu::used(servers);
            let began = Instant::now();
            self.0.phase.store(window, Ordering::Relaxed);
            sleep(timing.duration).await;
            timed.push(WindowTime { elapsed: began.elapsed(), cpu: Cpu::used(servers).since(cpu) });
        }
        timed
    }

    /// The figures of all windows. Fails if no operation succeeded in any window.
    pub(super) fn series(
        &self,
        conditions: Vec<(&'static str, SeriesCondition)>,
        timed: &[WindowTime],
    ) -> Result<Series, BenchError> {
        let mut latencies = Latencies::default();
        let mut errors = 0;
        let mut first_error = None;
        let mut repetitions = Vec::with_capacity(timed.len());

        for (window, timed) in self.0.windows.iter().zip(timed) {
            let window = window.lock().expect("no code panics while it holds this lock");
            latencies.add(&window.latencies);
            repetitions.push(window.figures(timed));
            errors += window.errors;
            first_error = first_error.or_else(|| window.first_error.clone());
        }

        if latencies.count() == 0 {
            let first = first_error.unwrap_or_else(|| "none ended in time".to_owned());
            return Err(BenchError::Nothing { errors, first });
        }

        Ok(Series { conditions, repetitions, latencies })
    }
}

impl RepetitionWindow {
    fn figures(&self, WindowTime { elapsed, cpu }: &WindowTime) -> Figures {
        let operations = self.latencies.count() as f64;
        let share = |used: Option<Duration>| used.map(|used| used.as_secs_f64() / elapsed.as_secs_f64());

        let mut figures = Figures::default();
        figures.put(Figure::PerSecond, operations / elapsed.as_secs_f64());
        figures.put_latencies(&self.latencies);

        let servers = cpu.servers().filter(|_| operations > 0.0);
        figures.put(Figure::ServersPerOperation, servers.map(|used| used.as_secs_f64() * 1e6 / operations));

        figures.put(Figure::Servers, share(cpu.servers()));
        figures.put(Figure::Generator, share(cpu.generator()));
        figures.put(Figure::Others, share(cpu.others()));

        figures.put(Figure::Fewest, self.per_worker.iter().min().map(|&count| count as f64));
        figures.put(Figure::Most, self.per_worker.iter().max().map(|&count| count as f64));
        figures.put(Figure::Errors, self.errors as f64);

        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(recorder: &ResultRecorder, phase: usize) {
        recorder.0.phase.store(phase, Ordering::Relaxed);
    }

    fn timed() -> WindowTime {
        let now = Cpu::used(None);
        WindowTime { elapsed: 10 * MS, cpu: now.since(now) }
    }

    #[test]
    fn what_ends_in_a_window_counts_and_nothing_else() {
        let recorder = ResultRecorder::new(2, 2);
        // During the warm-up, in the two windows, and after the end.
        for phase in 0..=3 {
            at(&recorder, phase);
            assert_eq!(recorder.is_over(), phase == 3);
            recorder.note::<&str>(0, Ok(MS));
            recorder.note(1, Err("no"));
        }
        let series = recorder.series(Vec::new(), &[timed(), timed()]).unwrap();
        assert_eq!((series.repetitions.len(), series.latencies.count()), (2, 2));
        for figures in &series.repetitions {
            let counts =
                [Figure::Errors, Figure::Fewest, Figure::Most, Figure::PerSecond].map(|figure| figures.get(figure));
            assert_eq!(counts, [Some(1.0), Some(0.0), Some(1.0), Some(100.0)]);
            assert_eq!(figures.get(Figure::Servers), None, "it is not known which they are");
        }
    }

    #[test]
    fn where_nothing_succeeds_at_all_it_says_why() {
        let recorder = ResultRecorder::new(1, 2);
        for (phase, error) in [(1, "no leader"), (2, "too late")] {
            at(&recorder, phase);
            recorder.note(0, Err(error));
        }
        let error = recorder.series(Vec::new(), &[timed(), timed()]).unwrap_err();
        assert!(error.to_string().contains("(2 failed): no leader"), "{error}");
        // A repetition without a success is valid if another one has successes.
        recorder.note::<&str>(0, Ok(MS));
        let series = recorder.series(Vec::new(), &[timed(), timed()]).unwrap();
        assert_eq!(series.repetitions[0].get(Figure::PerSecond), Some(0.0));
        assert_eq!(series.repetitions[0].get(Figure::P50), None);
    }

    #[tokio::test]
    async fn windows_follow_each_other_and_then_all_is_over() {
        let recorder = ResultRecorder::new(1, 3);
        let timing = Timing { warm_up: MS, duration: 2 * MS, repetitions: 3 };
        let timed = recorder.run(&timing, None, &CancellationToken::new()).await.unwrap();
        assert!(timed.len() == 3 && timed.iter().all(|timed| timed.elapsed >= timing.duration), "{timed:?}");
        assert!(recorder.is_over());
    }

    #[tokio::test]
    async fn it_can_be_stopped() {
        let recorder = ResultRecorder::new(1, 2);
        let stop = CancellationToken::new();
        stop.cancel();
        let timing = Timing { warm_up: Duration::MAX, duration: MS, repetitions: 2 };
        assert!(matches!(recorder.run(&timing, None, &stop).await, Err(BenchError::Stopped)));
        assert!(recorder.is_over());
    }
}
