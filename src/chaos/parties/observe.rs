//! Observes the nodes through their status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use lockkeeper_local::{LocalCluster, LocalNode};
use lockkeeper_proto::v1::{Role, StatusRequest, StatusResponse, cluster_client::ClusterClient};

use crate::{dial::Dial, history::Fact, record::Recorder};

/// Interval of the requests to a node.
const EVERY: Duration = Duration::from_millis(60);
/// Timeout of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The age beyond which a status is not used.
const FRESH: Duration = Duration::from_millis(1_000);
/// The runtime whose turns a status tells.
const RAFT_RUNTIME: &str = "raft";
/// Pause between two attempts to find all nodes at the same index.
const BETWEEN_LOOKS: Duration = Duration::from_millis(40);

/// Observes all nodes directly, not through the links, and records elections, snapshots and longer turns.
#[derive(Debug)]
pub struct Observer {
    nodes: BTreeMap<u64, Channel>,
    seen: Observations,
    recorder: Recorder,
    watching: BTreeMap<u64, AbortOnDropHandle<()>>,
    dial: Dial,
}

/// The latest observations. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations(Arc<Mutex<LastStatuses>>);

#[derive(Debug, Default)]
struct LastStatuses {
    statuses: BTreeMap<u64, (Instant, StatusResponse)>,
    elected: BTreeSet<(u64, u64)>,
    installed: BTreeSet<(u64, u64)>,
    /// The longest turn of each node that was recorded, in microseconds.
    longest_turns: BTreeMap<u64, u64>,
}

impl Observer {
    pub(crate) fn for_cluster(cluster: &LocalCluster, dial: Dial, recorder: Recorder) -> Self {
        let mut observer = Self { dial, ..Self::watch(BTreeMap::new(), recorder) };
        cluster.nodes().for_each(|node| observer.add(node));
        observer
    }

    /// Observes these nodes in the background until it is dropped.
    pub fn watch(nodes: BTreeMap<u64, Channel>, recorder: Recorder) -> Self {
        let seen = Observations::default();
        let watching = BTreeMap::new();
        let dial = Dial::default();
        let mut observer = Self { nodes: BTreeMap::new(), seen, recorder, watching, dial };
        nodes.into_iter().for_each(|(id, channel)| observer.insert(id, channel));
        observer
    }

    /// Observes one more node.
    pub fn insert(&mut self, id: u64, channel: Channel) {
        let task = watch(id, channel.clone(), self.seen.clone(), self.recorder.clone());
        self.watching.insert(id, AbortOnDropHandle::new(tokio::spawn(task)));
        self.nodes.insert(id, channel);
    }

    /// Observes one more node.
    pub(crate) fn add(&mut self, node: &LocalNode) {
        self.insert(node.id(), self.dial.channel(&node.config().client_listen, ANSWER_TIMEOUT));
    }

    /// Observes this node no longer.
    pub fn forget(&mut self, node: u64) {
        self.watching.remove(&node);
        self.nodes.remove(&node);
        self.seen.lock().statuses.remove(&node);
    }

    /// Forgets the terms of the elections: a cluster that was made from a backup may elect a node in a term in which the lost one did.
    pub fn forget_terms(&self) {
        self.seen.lock().elected.clear();
        self.seen.lock().installed.clear();
    }

    /// Returns the leader of the highest term, as soon as a node reports to be one, or `None` if no node did by this time.
    pub async fn leader_by(&self, by: Instant) -> Option<u64> {
        loop {
            match self.seen.leader() {
                None if Instant::now() < by => sleep(EVERY).await,
                leader => return leader,
            }
        }
    }

    /// The highest applied index of all nodes.
    pub fn applied_index(&self) -> u64 {
        self.seen.lock().statuses.values().map(|(_, status)| status.applied_index).max().unwrap_or(0)
    }

    /// Whether all nodes have snapshots that include this index.
    pub fn snapshots_reach(&self, index: u64) -> bool {
        self.seen.lock().statuses.values().all(|(_, status)| status.snapshot_index >= index)
    }

    pub(crate) fn observations(&self) -> Observations {
        self.seen.clone()
    }

    /// Tries until all nodes are at the same index, and records their table hashes. Returns `false` if they were not by this time.
    pub async fn compare_tables(&self, by: Instant) -> bool {
        loop {
            let looks = self.nodes.iter().map(|(id, channel)| async { (*id, status(channel.clone(), true).await) });
            let found: Vec<_> = futures::future::join_all(looks).await;
            let all: Option<Vec<_>> = found.into_iter().map(|(id, status)| Some((id, status?))).collect();

            if let Some(all) = all
                && all.windows(2).all(|pair| pair[0].1.applied_index == pair[1].1.applied_index)
            {
                for (node, status) in all {
                    let index = status.applied_index;
                    let hash = status.table_hash;
                    self.recorder.fact(Fact::Table { node, index, hash });
                }
                return true;
            }

            if Instant::now() >= by {
                return false;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

impl Observations {
    pub(crate) fn leader(&self) -> Option<u64> {
        let seen = self.lock();
        let fresh = seen.statuses.values().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, status)| status);
        let leaders = fresh.filter(|status| status.role() == Role::Leader && status.serving);
        leaders.max_by_key(|status| status.term).map(|status| status.node_id)
    }

    /// The voters and all members, as the leader knows them.
    pub(crate) fn members(&self) -> Option<(BTreeSet<u64>, BTreeSet<u64>)> {
        let leader = self.leader()?;
        let seen = self.lock();
        let members = &seen.statuses.get(&leader)?.1.members;
        let ids = |only_voters: bool| {
            let members = members.iter().filter(move |member| member.voter || !only_voters);
            members.map(|member| member.node_id).collect()
        };
        Some((ids(true), ids(false)))
    }

    /// Number of observed elections.
    pub(crate) fn elections(&self) -> usize {
        self.lock().elected.len()
    }

    fn lock(&self) -> MutexGuard<'_, LastStatuses> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

async fn watch(id: u64, channel: Channel, seen: Observations, recorder: Recorder) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(status) = status(channel.clone(), false).await else { continue };

        let mut seen = seen.lock();
        if status.role() == Role::Leader && seen.elected.insert((status.term, id)) {
            recorder.fact(Fact::Elected { node: id, term: status.term });
        }

        if let Some(index) = installed(&status)
            && seen.installed.insert((id, index))
        {
            recorder.fact(Fact::SnapshotInstalled { node: id, index });
        }
        let longest_us = seen.longest_turns.entry(id).or_default();
        if status.turn_delay_us_max > *longest_us {
            *longest_us = status.turn_delay_us_max;
            recorder.fact(Fact::LongestTurn { node: id, runtime: RAFT_RUNTIME.to_owned(), us: *longest_us });
        }
        seen.statuses.insert(id, (Instant::now(), status));
    }
}

/// The index of a snapshot that the node installed from its leader. Such a node has no log entries before it; one that built its own
/// snapshot keeps some.
fn installed(status: &StatusResponse) -> Option<u64> {
    (status.snapshot_index > 0 && status.purged_index == status.snapshot_index).then_some(status.snapshot_index)
}

async fn status(channel: Channel, table_hash: bool) -> Option<StatusResponse> {
    let mut service = ClusterClient::new(channel);
    let answer = timeout(ANSWER_TIMEOUT, service.status(StatusRequest { table_hash })).await;
    Some(answer.ok()?.ok()?.into_inner())
}
