//! The workload `failover` measures the time without service after the leader is killed, or falls silent.
//!
//! One client acquires and releases locks, one after another. The leader is killed (SIGKILL) between two pairs; the
//! figure is the time to the next completed pair, with the client's own retries. Then the node is restarted, and after
//! it has caught up the next leader is killed.
//!
//! A leader that falls silent is frozen (SIGSTOP) instead: its connections stay open and its port still accepts new
//! ones, but nothing answers, as after a power failure or a pulled cable. It is killed after the measurement.

use std::time::{Duration, Instant};

use tokio::time::{self, sleep};
use tokio_util::sync::CancellationToken;

use lockkeeper_client::{Error, Session, SessionOptions};
use lockkeeper_local::{LocalCluster, Signal};

use super::{
    BenchError, Figure, Figures, Latencies, Series, Timing,
    restart::restart,
    target::{MeasuredCluster, leader},
};

/// How long a node may take to answer before the client asks the next; the same as for clients of the other measured
/// services.
const ATTEMPT: Duration = Duration::from_millis(250);
/// A failover that takes longer than this has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause after each restart, in which the nodes reconnect.
const SETTLE: Duration = Duration::from_secs(1);
/// The TTL of the session. It is longer than any failover, so the session survives.
const TTL: Duration = Duration::from_secs(120);

/// How the leader ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaderEnd {
    /// The leader gets SIGKILL: its connections are closed.
    Killed,
    /// The leader gets SIGSTOP: its connections stay open, and nothing answers.
    Silent,
}

impl LeaderEnd {
    fn signal(self) -> Signal {
        match self {
            Self::Killed => Signal::KILL,
            Self::Silent => Signal::STOP,
        }
    }
}

/// Ends one leader per repetition.
pub(super) async fn failover(
    target: &mut MeasuredCluster,
    end: LeaderEnd,
    timing: &Timing,
    stop: &CancellationToken,
    tell: &super::Tell,
) -> Result<Series, BenchError> {
    let client = target.client().attempt_limit(ATTEMPT).call_limit(LIMIT).build()?;
    let options = SessionOptions { ttl: TTL, ..SessionOptions::default() };
    let session = client.open(options).await?;

    let prefix = target.prefix.clone();
    let cluster = target.own().ok_or(BenchError::OwnOnly)?;

    let mut latencies = Latencies::default();
    let mut repetitions = Vec::with_capacity(timing.repetitions);
    for number in 1..=timing.repetitions {
        let once = once(cluster, &session, &prefix, end, timing.warm_up);
        let took = stop.run_until_cancelled(once).await.ok_or(BenchError::Stopped)??;
        latencies.record(took);

        let mut figures = Figures::default();
        figures.put(Figure::Failover, took.as_secs_f64() * 1e3);
        repetitions.push(figures);

        tell(&format!("failover {number} of {}: {} ms", timing.repetitions, took.as_millis()));
    }

    drop(session);
    let nodes = cluster.nodes().count();
    Ok(Series { conditions: vec![("nodes", nodes.into())], repetitions, latencies })
}

async fn once(
    cluster: &mut LocalCluster,
    session: &Session,
    prefix: &str,
    end: LeaderEnd,
    warm_up: Duration,
) -> Result<Duration, BenchError> {
    let began = Instant::now();
    while began.elapsed() < warm_up {
        pair(session, prefix).await?;
    }
    let leader = leader(cluster).await?;
    pair(session, prefix).await?;

    let ended = Instant::now();
    cluster.node(leader).signal(end.signal());
    loop {
        match time::timeout(LIMIT.saturating_sub(ended.elapsed()), pair(session, prefix)).await {
            Ok(Ok(())) => break,
            Ok(Err(_)) => sleep(Duration::from_millis(5)).await,
            Err(_) => return Err(BenchError::NoFailover(LIMIT)),
        }
    }
    let took = ended.elapsed();

    cluster.node_mut(leader).kill().await;
    restart(cluster, leader).await?;
    sleep(SETTLE).await;
    Ok(took)
}

/// Acquires and releases an uncontended lock.
async fn pair(session: &Session, prefix: &str) -> Result<(), Error> {
    let name = format!("{prefix}{:016x}", rand::random::<u64>());
    session.acquire(&name).no_wait().await?.release().await
}
