//! Workers that do something again and again, each as soon as its last time is over.

use std::{fmt::Display, time::Duration};

use futures::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{BenchError, Series, Timing, recorder::Recorder};

/// After a failure: a cluster that refuses at once is not asked without a pause.
const PAUSE: Duration = Duration::from_millis(1);
/// How long workers may take to end. In a queue, one ends when its turn comes.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Does something, one time after the other.
pub trait Worker: Send + 'static {
    /// Why it may fail: a figure, and no reason to stop.
    type Error: Display + Send;

    /// Does it once, and answers how long took what counts of it. Dropped before its end when somebody asks to stop.
    fn once(&mut self) -> impl Future<Output = Result<Duration, Self::Error>> + Send;
}

/// Lets them work, and measures it. `servers`: the processes of what they load, if those are on this machine. So another service can
/// be measured in the very way in which this one is.
pub async fn measure<W: Worker>(
    workers: Vec<W>,
    timing: &Timing,
    servers: Option<&[u32]>,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let count = workers.len();
    let recorder = Recorder::new(count, timing.repetitions);
    let start = |(place, worker)| tokio::spawn(work(worker, place, recorder.clone()));
    let tasks: Vec<JoinHandle<()>> = workers.into_iter().enumerate().map(start).collect();
    let handles: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
    let timed = recorder.run(timing, servers, stop).await;
    // Who asked to stop does not wait for turns to come.
    let limit = if timed.is_ok() { END_LIMIT } else { Duration::ZERO };
    if timeout(limit, join_all(tasks)).await.is_err() {
        handles.iter().for_each(|handle| handle.abort());
    }
    recorder.series(vec![("workers", count.into())], &timed?)
}

async fn work(mut worker: impl Worker, place: usize, recorder: Recorder) {
    while !recorder.is_over() {
        let outcome = worker.once().await;
        let failed = outcome.is_err();
        recorder.note(place, outcome);
        if failed {
            sleep(PAUSE).await;
        }
    }
}
