//! `uncontended` and `contended`: acquires and releases.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{
    BenchError, Series, Timing,
    closed_loop::{Worker, measure},
    target::{Target, close},
};
use crate::client::{Error, Session};

/// Acquires and releases a lock that nobody else wants, another one each time. What counts is both together.
struct Alone {
    session: Session,
    prefix: Arc<str>,
}

impl Worker for Alone {
    type Error = Error;

    async fn once(&mut self) -> Result<Duration, Error> {
        let name = format!("{}{:016x}", self.prefix, rand::random::<u64>());
        let began = Instant::now();
        self.session.acquire(&name).await?.release().await?;
        Ok(began.elapsed())
    }
}

/// Acquires and releases the lock that all want. What counts is how long it waited.
struct Together {
    session: Session,
    name: Arc<str>,
}

impl Worker for Together {
    type Error = Error;

    async fn once(&mut self) -> Result<Duration, Error> {
        let began = Instant::now();
        let held = self.session.acquire(&self.name).await?;
        let waited = began.elapsed();
        held.release().await?;
        Ok(waited)
    }
}

/// Locks of each worker's own.
pub(super) async fn uncontended(
    target: &Target,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let worker = |session| Alone { session, prefix: target.prefix.clone() };
    each_with_a_session(target, workers, timing, stop, worker).await
}

/// One lock for all.
pub(super) async fn contended(
    target: &Target,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let name: Arc<str> = format!("{}contended", target.prefix).into();
    let worker = |session| Together { session, name: name.clone() };
    each_with_a_session(target, workers, timing, stop, worker).await
}

async fn each_with_a_session<W: Worker>(
    target: &Target,
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
