//! The workload `held` measures the cost of held locks, and a restart with many of them.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use lockkeeper_client::Session;
use lockkeeper_local::{LocalCluster, LocalNode};

use super::{
    BenchError, Figure, Figures, Latencies, Series,
    background::hold,
    restart::restart,
    target::{MeasuredCluster, close, leader},
    usage,
};

/// The pause after the last acquire, before memory is measured. Pending work ends in it.
const SETTLE: Duration = Duration::from_secs(3);

/// How many locks are held, and by how many workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The number of locks, each with its own grant.
    pub locks: usize,
    /// The number of workers that acquire them.
    pub workers: usize,
}

impl Held {
    /// Fills a cluster with locks. If this program started the cluster, also measures the memory and disk of its nodes, and
    /// the restart of one.
    pub(super) async fn measure(
        self,
        target: &mut MeasuredCluster,
        stop: &CancellationToken,
        tell: &super::Tell,
    ) -> Result<Series, BenchError> {
        let sessions = target.sessions(self.workers).await?;
        let measured = stop.run_until_cancelled(self.fill_and_restart(target, &sessions, tell)).await;
        close(sessions).await;

        let (figures, latencies) = measured.ok_or(BenchError::Stopped)??;

        let conditions = vec![("locks", self.locks.into()), ("workers", self.workers.into())];
        Ok(Series { conditions, repetitions: vec![figures], latencies })
    }

    async fn fill_and_restart(
        self,
        target: &mut MeasuredCluster,
        sessions: &[Session],
        tell: &super::Tell,
    ) -> Result<(Figures, Latencies), BenchError> {
        let before = target.own().map(|cluster| Footprint::measured(cluster));
        let began = Instant::now();
        let latencies = hold(&target.prefix, sessions, 0..self.locks).await?;
        let filled = began.elapsed();
        tell(&format!("{} locks are held after {:.1} s", self.locks, filled.as_secs_f64()));

        sleep(SETTLE).await;

        let mut figures = Figures::default();
        figures.put(Figure::Held, self.locks as f64);
        figures.put(Figure::Fill, filled.as_secs_f64());
        figures.put(Figure::PerSecond, self.locks as f64 / filled.as_secs_f64());
        figures.put_latencies(&latencies);

        let after = target.own().map(|cluster| Footprint::measured(cluster));
        let per_lock =
            |bytes: fn(Footprint) -> Option<f64>| Some((bytes(after?)? - bytes(before?)?) / self.locks as f64);
        figures.put(Figure::MemoryPerLock, per_lock(|footprint| footprint.memory));
        figures.put(Figure::DiskPerLock, per_lock(|footprint| Some(footprint.disk)));

        let restarted = match target.own() {
            Some(cluster) => restart_a_follower(cluster).await?,
            None => None,
        };
        figures.put(Figure::Restart, restarted.map(|took| took.as_secs_f64() * 1e3));
        Ok((figures, latencies))
    }
}

/// The memory and disk use of a node in bytes, as the mean over all nodes.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    memory: Option<f64>,
    disk: f64,
}

impl Footprint {
    fn measured(cluster: &LocalCluster) -> Self {
        let nodes = cluster.nodes().count() as f64;
        let memory: Option<u64> = cluster.nodes().filter_map(LocalNode::pid).map(usage::resident_bytes).sum();
        let directories = cluster.nodes().map(|node| PathBuf::from(&node.config().data_dir));
        let disk: u64 = directories.map(|directory| usage::disk_bytes(&directory)).sum();
        Self { memory: memory.map(|bytes| bytes as f64 / nodes), disk: disk as f64 / nodes }
    }
}

/// Kills and restarts a follower. Does nothing if the other nodes would not be a quorum.
async fn restart_a_follower(cluster: &mut LocalCluster) -> Result<Option<Duration>, BenchError> {
    let leader = leader(cluster).await?;
    let follower = cluster.nodes().map(LocalNode::id).find(|&id| id != leader);
    let Some(follower) = follower.filter(|_| cluster.nodes().count() > 2) else { return Ok(None) };
    cluster.node_mut(follower).kill().await;
    restart(cluster, follower).await.map(Some)
}
