//! The workload `read` measures linearizable reads of held locks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use lockkeeper_client::{Client, Error, Guard, Session};

use super::{
    BenchError, Series, Timing,
    closed_loop::{Worker, measure},
    target::{MeasuredCluster, close},
};

/// The number of locks to read.
const LOCKS: usize = 1_000;
/// The number of concurrent acquires while the locks are set up.
const AT_A_TIME: usize = 64;

/// Reads random locks.
struct LockReader {
    client: Client,
    prefix: Arc<str>,
}

impl Worker for LockReader {
    type Error = Error;

    async fn once(&mut self) -> Result<Duration, Error> {
        let name = name(&self.prefix, rand::random_range(0..LOCKS));
        let began = Instant::now();
        self.client.get(&name).await?;
        Ok(began.elapsed())
    }
}

fn name(prefix: &str, number: usize) -> String {
    format!("{prefix}read/{number}")
}

/// Measures linearizable reads.
pub(super) async fn read(
    target: &MeasuredCluster,
    workers: usize,
    timing: &Timing,
    stop: &CancellationToken,
) -> Result<Series, BenchError> {
    let sessions = target.sessions(1).await?;
    let clients = target.clients(workers)?;

    let reader =
        |worker: usize| LockReader { client: clients[worker % clients.len()].clone(), prefix: target.prefix.clone() };

    let measured = match hold(&sessions[0], &target.prefix).await {
        Ok(_held) => {
            let readers = (0..workers).map(reader).collect();
            measure(readers, timing, target.servers().as_deref(), stop).await
        }
        Err(error) => Err(error.into()),
    };

    close(sessions).await;
    measured
}

async fn hold(session: &Session, prefix: &str) -> Result<Vec<Guard>, Error> {
    let acquire = |number| session.acquire(&name(prefix, number)).into_future();
    stream::iter(0..LOCKS).map(acquire).buffer_unordered(AT_A_TIME).try_collect().await
}
