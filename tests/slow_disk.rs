//! A leader whose disk has become slow hands leadership over; the cluster serves meanwhile.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    client::{Client, NodeStatus, Role, SessionOptions},
    raft::{
        log::{LogOptions, LogReader, LogStore},
        types::{LogEntry, LogId, TypeConfig, Vote},
    },
};
use openraft::{
    LogState, OptionalSend,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt as _,
};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::in_process::{self, NodeData, Seat};

/// Deadline: longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// The time that a sync takes longer on a slow disk, milliseconds: much longer than on the others, also on a busy machine.
const SLOW_MS: u64 = 900;
/// The same while all disks are slow: enough to be slow.
const ALL_SLOW_MS: u64 = 300;
const CLUSTER: &str = "slow-disk";

/// A log whose disk can become slow: entries are reported as durable later than they are.
#[derive(Clone)]
struct SlowLog {
    log: LogStore,
    /// 0: not slow.
    delay_ms: Arc<AtomicU64>,
}

impl RaftLogStorage<TypeConfig> for SlowLog {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.log.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.log.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.log.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
        if delay.is_zero() {
            return self.log.append(entries, callback).await;
        }
        let (flushed, is_flushed) = TypeConfig::oneshot();
        self.log.append(entries, IOFlushed::signal(flushed)).await?;
        tokio::spawn(async move {
            sleep(delay).await;
            if let Ok(result) = is_flushed.await {
                callback.io_completed(result);
            }
        });
        Ok(())
    }

    async fn truncate_after(&mut self, after: Option<LogId>) -> io::Result<()> {
        self.log.truncate_after(after).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.log.purge(upto).await
    }
}

/// Three nodes in this process.
struct Cluster {
    addresses: Vec<String>,
    delays_ms: Vec<Arc<AtomicU64>>,
    nodes: JoinSet<()>,
    stopping: CancellationToken,
    _directory: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a place for temporary files");
        let mut seats = Vec::new();
        for node_id in 1..=3 {
            seats.push(Seat::new(node_id).await);
        }
        let members: Vec<_> = seats.iter().map(|seat| seat.member.clone()).collect();

        let mut delays_ms = Vec::new();
        let mut nodes = JoinSet::new();
        let stopping = CancellationToken::new();
        for seat in seats {
            let node_id = seat.member.node_id;
            let config = in_process::config(CLUSTER, node_id, &members);
            let place = directory.path().join(node_id.to_string());
            let data = NodeData::open(&place, &config, LogOptions::default());

            let log = data.log.clone();
            let delay_ms = Arc::new(AtomicU64::new(0));
            delays_ms.push(Arc::clone(&delay_ms));
            let slow_log = SlowLog { log: log.clone(), delay_ms };
            let parts = in_process::parts(config, seat, data, slow_log);
            let stopped = stopping.clone().cancelled_owned();
            nodes.spawn(async move {
                in_process::serve(parts, log, stopped).await.expect("it serves until it is stopped");
            });
        }
        let addresses = members.into_iter().map(|member| member.client_address).collect();
        Self { addresses, delays_ms, nodes, stopping, _directory: directory }
    }

    /// Stops all nodes, before their directory is removed.
    async fn stop(mut self) {
        self.stopping.cancel();
        while let Some(ended) = timeout(LONG, self.nodes.join_next()).await.expect("a node stops") {
            ended.expect("no panic");
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.addresses.join(",")).expect("valid endpoints")
    }

    /// The leader's place among the nodes, and its status; waits for one that is fit.
    async fn leader(&self, is_fit: impl Fn(usize) -> bool) -> (usize, NodeStatus) {
        let client = self.client();
        let search = async {
            loop {
                for (place, address) in self.addresses.iter().enumerate() {
                    match client.status(address, Duration::from_secs(1)).await {
                        Ok(status) if status.role == Role::Leader && is_fit(place) => return (place, status),
                        _ => {}
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, search).await.expect("such a leader")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leadership_leaves_a_slow_disk_and_does_not_return() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    let options = SessionOptions { ttl: LONG, ..SessionOptions::default() };
    let session = timeout(LONG, client.open(options)).await.expect("in time").expect("a session");
    let load = tokio::spawn(async move {
        loop {
            match session.acquire("busy").no_wait().await {
                Ok(guard) => _ = guard.release().await,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let (slow, before) = cluster.leader(|_| true).await;
    cluster.delays_ms[slow].store(SLOW_MS, Ordering::Relaxed);
    let (_, after) = cluster.leader(|place| place != slow).await;
    assert!(after.term > before.term, "{after:?}");

    // All disks are equally slow: then there is no better leader.
    cluster.delays_ms.iter().for_each(|delay_ms| delay_ms.store(ALL_SLOW_MS, Ordering::Relaxed));
    let index = async || cluster.leader(|place| place != slow).await.1.applied_index;
    let begun = index().await;
    let moved_on = async {
        while index().await < begun + 24 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, moved_on).await.expect("entries are committed by a leader other than the first");
    load.abort();
    cluster.stop().await;
}
