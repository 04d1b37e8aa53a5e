//! Watches of the keyspace: through the death of a leader and of the watcher's own node, at a node that was brought up to date by a
//! snapshot, and below a compaction.
//!
//! At the peers' port, where each node serves its own events.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    local::LocalCluster,
    machine::{Key, KeyRange, Put, PutLease, Txn, TxnOperation, Value},
    proto::v1::{StatusRequest, cluster_client::ClusterClient},
    raft::messages::keyspace_client::KeyspaceClient,
    table::{codec::transactions::write_txn, messages as pb},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};
use tonic::{Code, Response, Status, transport::Channel};

use crate::support::{LONG, client, cluster, cluster_with, leader, long_session, until};

const WRITERS: usize = 3;
/// Acknowledged writes that a test waits for, again and again.
const SOME: usize = 30;

type Keyspace = KeyspaceClient<Channel>;

/// Where each node serves its peers.
fn peers(cluster: &LocalCluster) -> BTreeMap<u64, String> {
    cluster.nodes().map(|node| (node.id(), node.config().peer_listen.clone())).collect()
}

async fn keyspace(address: &str) -> Option<Keyspace> {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address").timeout(LONG);
    endpoint.connect().await.ok().map(KeyspaceClient::new)
}

/// Asks one node after the other until the leader answers, whichever it is by then. What it then refuses is an error.
async fn ask<T>(
    peers: &BTreeMap<u64, String>,
    mut call: impl AsyncFnMut(Keyspace) -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    until("an answer from a leader", async || {
        for address in peers.values() {
            let Some(keyspace) = keyspace(address).await else { continue };
            match call(keyspace).await {
                Ok(answer) => return Some(Ok(answer.into_inner())),
                Err(status) if status.code() == Code::OutOfRange => return Some(Err(status)),
                // It does not lead, or its cluster is too young for a keyspace.
                Err(_) => {}
            }
        }
        None
    })
    .await
}

/// A transaction that puts this value under both keys.
fn puts(keys: [&str; 2], value: usize) -> pb::Txn {
    let put = |key: &str| {
        let key = Key::new(key.as_bytes()).expect("a key");
        let value = Value::new(value.to_string().as_bytes());
        TxnOperation::Put(Put { key, value: value.expect("short"), lease: PutLease::None, claims: None })
    };
    write_txn(&Txn::new(vec![], keys.map(put).into(), vec![]).expect("in bounds"))
}

/// Returns the revision. Without [`ask`], so that a task can do it.
async fn commit(peers: &BTreeMap<u64, String>, txn: &pb::Txn) -> u64 {
    let deadline = Instant::now() + LONG;
    loop {
        for address in peers.values() {
            if let Some(mut keyspace) = keyspace(address).await
                && let Ok(committed) = keyspace.commit(txn.clone()).await
            {
                return committed.into_inner().revision;
            }
        }
        assert!(Instant::now() < deadline, "waited {LONG:?} in vain for a leader");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn compact(peers: &BTreeMap<u64, String>, revision: u64) -> Result<u64, Status> {
    let compacted = ask(peers, async |mut keyspace| keyspace.compact(pb::Compaction { revision }).await).await;
    compacted.map(|compacted| compacted.revision)
}

async fn watch(address: &str, from: u64) -> Result<tonic::Streaming<pb::EntriesWatched>, Status> {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let range = Some(lockkeeper::table::codec::keyspace::write_range(&KeyRange::default()));
    let request = pb::WatchEntries { range, from_revision: Some(from), with_previous: true };
    Ok(KeyspaceClient::new(channel).watch(request).await?.into_inner())
}

/// What a watcher knows.
#[derive(Default)]
struct Seen {
    events: Vec<pb::EntryEvent>,
    complete: u64,
}

impl Seen {
    fn add(&mut self, message: pb::EntriesWatched) {
        assert!(message.complete >= self.complete, "{} after {}", message.complete, self.complete);
        self.events.extend(message.events);
        self.complete = message.complete;
    }

    /// Before another stream begins after the last complete revision.
    fn drop_parts(&mut self) {
        self.events.retain(|event| event.revision <= self.complete);
    }

    /// Reads on until all events up to a revision are there.
    async fn read_up_to(
        &mut self,
        revision: u64,
        stream: &mut tonic::Streaming<pb::EntriesWatched>,
    ) -> Result<(), Status> {
        let deadline = Instant::now() + LONG;
        while self.complete < revision {
            let message = timeout_at(deadline, stream.message()).await.expect("as many events within this time");
            self.add(message?.ok_or_else(|| Status::unavailable("the stream ended"))?);
        }
        Ok(())
    }
}

/// All events from a revision on, up to another, as one node has them.
async fn events_at(address: &str, from: u64, to: u64) -> Vec<pb::EntryEvent> {
    let mut seen = Seen::default();
    let mut stream = watch(address, from).await.expect("it serves");
    seen.read_up_to(to, &mut stream).await.expect("nothing is compacted");
    seen.events.retain(|event| event.revision <= to);
    seen.events
}

/// Writers that put two keys of their own in each transaction, until they are told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    /// The revisions that were acknowledged.
    tasks: Vec<JoinHandle<Vec<u64>>>,
    acknowledged: Arc<AtomicUsize>,
}

impl Writers {
    fn start(peers: &BTreeMap<u64, String>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let acknowledged = Arc::<AtomicUsize>::default();
        let tasks = (0..WRITERS).map(|writer| {
            let peers = peers.clone();
            let stop = Arc::clone(&stop);
            let acknowledged = Arc::clone(&acknowledged);
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                let keys = [format!("a/{writer}"), format!("b/{writer}")];
                while !stop.load(Ordering::Relaxed) {
                    let txn = puts([&keys[0], &keys[1]], revisions.len());
                    revisions.push(commit(&peers, &txn).await);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                revisions
            })
        });
        Self { tasks: tasks.collect(), stop, acknowledged }
    }

    /// Waits for some more acknowledged writes.
    async fn go_on(&self) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        until("more writes", async || (self.acknowledged.load(Ordering::Relaxed) >= before + SOME).then_some(())).await;
    }

    async fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("no panic"));
        }
        all.sort_unstable();
        all
    }
}

/// The events are in order, those of a transaction together, and each begins where the one before it of the same key ended.
fn assert_in_order(events: &[pb::EntryEvent]) {
    assert!(events.is_sorted_by(|one, next| (one.revision, &one.key) < (next.revision, &next.key)), "a repetition");
    let mut last = BTreeMap::new();
    for events in events.chunk_by(|one, next| one.revision == next.revision) {
        assert_eq!(events.len(), 2, "a part of revision {}", events[0].revision);
        for event in events {
            let before = last.insert(event.key.clone(), event.after.clone());
            assert_eq!(event.before, before.flatten(), "a gap before revision {}", event.revision);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_survives_its_leader_and_goes_on_at_another_node_without_gap_or_repetition() {
    let mut cluster = cluster().await;
    let peers = peers(&cluster);
    let first = commit(&peers, &puts(["a/0", "b/0"], 0)).await;
    let dead = leader(&cluster).await;
    let own = dead % 3 + 1;
    let other = (dead + 1) % 3 + 1;
    let writers = Writers::start(&peers);
    let mut seen = Seen::default();
    let mut stream = watch(&peers[&own], first).await.expect("it serves");

    writers.go_on().await;
    cluster.node_mut(dead).kill().await;
    writers.go_on().await;
    // One more, since the last acknowledged one may not have been applied at this node.
    let now = commit(&peers, &puts(["a/x", "b/x"], 0)).await;
    seen.read_up_to(now, &mut stream).await.expect("the same stream, through a change of leader");

    cluster.node_mut(dead).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("it serves again");
    cluster.node_mut(own).kill().await;
    writers.go_on().await;
    seen.read_up_to(u64::MAX, &mut stream).await.expect_err("its node is dead");
    seen.drop_parts();
    let mut stream = watch(&peers[&other], seen.complete + 1).await.expect("it serves");
    writers.go_on().await;
    let acknowledged = writers.end().await;
    let last = *acknowledged.last().expect("many");
    seen.read_up_to(last, &mut stream).await.expect("it goes on");
    seen.events.retain(|event| event.revision <= last);

    assert_in_order(&seen.events);
    let is_seen = |revision: &u64| seen.events.binary_search_by_key(revision, |event| event.revision).is_ok();
    assert!(acknowledged.iter().all(is_seen), "an acknowledged write was not seen");
    for node in [dead, other] {
        assert!(events_at(&peers[&node], first, last).await == seen.events, "node {node} has another history");
    }

    // Alone, the last node knows no leader and learns of no event: its watchers are to look elsewhere.
    cluster.node_mut(dead).kill().await;
    let ended = seen.read_up_to(u64::MAX, &mut stream).await.expect_err("no leader comes");
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_snapshot_serves_a_past_watch_until_a_compaction() {
    const ENTRIES: u64 = 50;
    let mut cluster = cluster_with(|options| {
        options.raft.snapshot_entries = ENTRIES;
        options.raft.keep_entries = ENTRIES / 5;
    })
    .await;
    let peers = peers(&cluster);
    let first = commit(&peers, &puts(["a", "b"], 0)).await;
    let away = leader(&cluster).await % 3 + 1;
    cluster.node_mut(away).kill().await;
    let left_at = cluster.statuses().await.values().map(|status| status.last_log_index).max().expect("two answer");
    let session = long_session(&client(&cluster)).await;
    let mut value = 0;
    until("the logs to be purged", async || {
        value += 1;
        commit(&peers, &puts(["a", "b"], value)).await;
        session.acquire("turn").await.expect("free").release().await.expect("it was held");
        let statuses = cluster.statuses().await;
        statuses.values().all(|status| status.purged_index > left_at).then_some(())
    })
    .await;
    let last = commit(&peers, &puts(["a", "b"], value + 1)).await;
    cluster.node_mut(away).spawn().expect("it starts again");
    cluster.ready(LONG).await.expect("it serves again");
    until("the snapshot that brought it up to date", async || {
        let mut asked = ClusterClient::new(cluster.node(away).channel().await.ok()?);
        (asked.status(StatusRequest::default()).await.ok()?.into_inner().snapshot_index > left_at).then_some(())
    })
    .await;

    let events = events_at(&peers[&away], first, last).await;
    assert_in_order(&events);
    assert_eq!(events.len(), 2 * (value + 2), "each write is there, since the first one");
    assert!(events_at(&peers[&(away % 3 + 1)], first, last).await == events);

    // In the middle of them.
    let middle = events[events.len() / 2].revision;
    let mut live = watch(&peers[&away], last + 1).await.expect("it serves");
    assert_eq!(compact(&peers, u64::MAX).await.expect_err("far ahead").code(), Code::OutOfRange);
    assert_eq!(compact(&peers, middle).await.expect("it is over"), middle);
    assert_eq!(compact(&peers, first).await.expect("no effect"), middle);
    let below = async |from| {
        let mut stream = watch(&peers[&away], from).await.expect("it serves");
        loop {
            match stream.message().await {
                Ok(Some(message)) if message.events.is_empty() => {}
                other => return other,
            }
        }
    };
    // As soon as this node has applied the compaction.
    let refused = until("a compacted watch", async || below(first).await.err()).await;
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(refused.message().contains(&format!("begins after revision {middle}")), "{refused}");
    assert_eq!(below(middle).await.expect_err("it is compacted").code(), Code::OutOfRange);
    let rest: Vec<_> = events.iter().filter(|event| event.revision > middle).cloned().collect();
    assert!(events_at(&peers[&away], middle + 1, last).await == rest);
    let get = async |at_revision| {
        let get =
            pb::GetEntries { keys: vec![b"a".to_vec().into()], at_revision: Some(at_revision), ..Default::default() };
        ask(&peers, async |mut keyspace| keyspace.get(get.clone()).await).await
    };
    assert_eq!(get(middle - 1).await.expect_err("forgotten").code(), Code::OutOfRange);
    assert_eq!(get(u64::MAX).await.expect_err("far ahead").code(), Code::OutOfRange);
    for event in rest.iter().filter(|event| &event.key[..] == b"a") {
        let found = |answer: pb::EntriesFound| answer.entries[0].entry.clone();
        assert_eq!(found(get(event.revision).await.expect("known")), event.after);
        assert_eq!(found(get(event.revision - 1).await.expect("known")), event.before);
    }
    // A watcher that was up to date is not concerned.
    let now = commit(&peers, &puts(["a", "b"], 0)).await;
    let mut seen = Seen::default();
    seen.read_up_to(now, &mut live).await.expect("it goes on");
    assert_eq!(seen.events.len(), 2);
}
