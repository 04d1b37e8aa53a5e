//! The workloads `uncontended` and `contended` measure pairs of acquire and release.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use lockkeeper_client::{Error, Session};

use super::{
    BenchError, Series, Timing,
    closed_loop::{Worker, measure},
    target::{MeasuredCluster, close},
};

/// Acquires and releases an uncontended lock, a new one each time. The latency includes both calls.
struct UncontendedWorker {
    session: Session,
    prefix: Arc<str>,
}

impl Worker for UncontendedWorker {
    type Error = Error;

    async fn once(&mut self) -> Result<Duration, Error> {
        let name = format!("{}{:016x}", self.prefix, rand::random::<u64>());
        let began = Instant::now();
        self.session.acquire(&name).await?.release().await?;
        Ok(began.elapsed())
    }
}

/// Acquires and releases one lock that all workers want. The latency is the wait for the grant.
struct ContendedWorker {
    session: Session,
    name: Arc<str>,
}

impl Worker for ContendedWorker {
    type Error = Error;

    async fn once(&mut self) -> Result<Duration, Error> {
        let began = Instant::now();
        let held = self.session.acquire(&self.name).await?;
        let waited = began.elapsed();
        held.release().await?;
        Ok(waited)
    }
}

/// Measures workers that each have their own locks.
pub(super) async fn uncontended(
    target: &MeasuredCluster,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let worker = |session| UncontendedWorker { session, prefix: target.prefix.clone() };
    each_with_a_session(target, workers, timing, stop, worker).await
}

/// Measures workers that all use one lock.
pub(super) async fn contended(
    target: &MeasuredCluster,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let name: Arc<str> = format!("{}contended", target.prefix).into();
    let worker = |session| ContendedWorker { session, name: name.clone() };
    each_with_a_session(target, workers, timing, stop, worker).await
}

async fn each_with_a_session<W: Worker>(
    target: &MeasuredCluster,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
    worker: impl Fn(Session) -> W,
) -> Result<Series, BenchError> {
    let sessions = target.sessions(workers).await?;
    let workers = sessions.iter().cloned().map(worker).collect();

    let measured = measure(workers, timing, target.servers().as_deref(), stop).await;
    close(sessions).await;

    measured
}
