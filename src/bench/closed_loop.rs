//! Closed loops: workers that begin each operation when the previous one has ended.

use std::{fmt::Display, time::Duration};

use futures::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{BenchError, Series, Timing, recorder::ResultRecorder};

/// The pause after a failure. Without it, a cluster that refuses at once would be flooded.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the workers may take to end. A queued acquire ends only when it is granted.
const END_LIMIT: Duration = Duration::from_secs(30);

/// An operation that is repeated.
pub trait Worker: Send + 'static {
    /// The error of a failed operation. Failures are counted and do not stop the worker.
    type Error: Display + Send;

    /// Executes the operation once, and returns its latency. The future is dropped when the measurement is stopped.
    fn once(&mut self) -> impl Future<Output = Result<Duration, Self::Error>> + Send;
}

/// Runs the workers and measures them. `servers` are the processes of the measured service, if they are on this
/// machine.
///
/// The function is public because other services are measured with it as well.
pub async fn measure<W: Worker>(
    workers: Vec<W>,
    timing: &Timing,
    servers: Option<&[u32]>,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let count = workers.len();
    let recorder = ResultRecorder::new(count, timing.repetitions);

    let start = |(place, worker)| tokio::spawn(work(worker, place, recorder.clone()));
    let tasks: Vec<JoinHandle<()>> = workers.into_iter().enumerate().map(start).collect();
    let handles: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();

    let timed = recorder.run(timing, servers, stop).await;

    // An early stop does not wait for queued acquires.
    let limit = if timed.is_ok() { END_LIMIT } else { Duration::ZERO };
    if timeout(limit, join_all(tasks)).await.is_err() {
        handles.iter().for_each(|handle| handle.abort());
    }

    recorder.series(vec![("workers", count.into())], &timed?)
}

async fn work(mut worker: impl Worker, place: usize, recorder: ResultRecorder) {
    while !recorder.is_over() {
        let outcome = worker.once().await;
        let failed = outcome.is_err();
        recorder.note(place, outcome);
        if failed {
            sleep(PAUSE).await;
        }
    }
}
