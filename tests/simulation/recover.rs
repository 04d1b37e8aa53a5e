//! At the end of some runs a majority of the nodes is lost for good, with its data. The best copy that is left becomes a new cluster, by
//! the code of `lockkeeper recover`: one node at first, and new ones with empty directories join it.
//!
//! What the nodes that are left have applied, and synced, must be there: their tables are compared with those that the nodes had, and a key
//! keeps its value and its revision. So must all else that is in the log of the node that goes on ([`kept`]). What only the lost nodes had
//! may be gone. So half of the losses come after a time in which the nodes that are left were cut off from the others. A holder has a lock
//! that they know, and one that they may not know; it trusts both, as after the loss of all nodes (see `restore`), and no client keeps its
//! session. The properties that are judged across a loss are those of a restore.
//!
//! In half of the recoveries some of the lost nodes come back, and must not disturb the new cluster ([`returned`]).

mod kept;
mod returned;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lockkeeper::{
    chaos::history::Fact,
    machine::{Compare, Entry, Key, Put, PutLease, Revision, Token, Txn, TxnOperation, Value},
    proto::v1::{OpenSessionRequest, RenewSessionRequest, sessions_client::SessionsClient},
    raft::{
        backup::{Founding, StoppedNodeData},
        messages::keyspace_client::KeyspaceClient,
    },
    table::{
        Applied,
        codec::{
            keyspace::{read_entry, write_key},
            transactions::write_txn,
        },
        messages as pb,
    },
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Response, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::{
    changes::{channel, is_voter, leads, status},
    clients,
    faults::{Order, World},
    network::{self, node_host},
    node::{JoinedCluster, LeftDirectory},
    restore::{self, Survivors},
};

/// The new cluster, after those from the backup.
const CLUSTER_ID: &str = "recovered";
const GENERATION: usize = restore::TIMES + 1;
/// New nodes that join it.
const JOINING: usize = 2;
/// Time limit of each step of the operator's.
const BOUND: Duration = Duration::from_secs(20);
/// The time of one request, and the pause after an error.
const LIMIT: Duration = Duration::from_millis(900);
const PAUSE: Duration = Duration::from_millis(100);
/// Longer than an observation is old, and longer than two syncs take.
const SETTLED: Duration = Duration::from_millis(250);
/// For how long the cluster goes on before the majority is lost, milliseconds.
const UNKNOWN_MS: std::ops::Range<u64> = 100..2_000;
/// From the kill of the nodes to the start of the one that goes on, milliseconds.
const LOST_MS: std::ops::Range<u64> = 50..500;
/// How long contenders take locks of the new cluster.
const CONTENDED: Duration = Duration::from_millis(1_200);
/// The TTL of a session that no client keeps: not above those that a backup may have.
const TTL_MS: u32 = 6_000;
/// A key that stays.
const KEY: &str = "recovered/kept";

/// What clients have of the cluster that will be lost.
struct MadeBefore {
    session: String,
    /// The entry of [`KEY`], unless a limit refused it.
    kept: Option<Arc<Entry>>,
}

/// The cluster that goes on.
struct RecoveredCluster {
    /// Its first node.
    node: u64,
    /// For how long it grants nothing.
    closed_for: Duration,
    /// What it was made of, and the id of the cluster that had it.
    copy: Applied,
    lost_id: String,
    /// The revision of the last entry in the log of the copy that some node of the lost cluster had applied.
    logged: Option<Revision>,
    /// All tokens, and all indices of log entries, that are its own are higher.
    last_token: Token,
    begins_after: u64,
}

impl World {
    /// Loses a majority of the nodes for good, and goes on from the best copy that is left. Fails if that is not as documented.
    pub(crate) async fn lose_majority(&mut self, survivors: &Survivors<'_>) -> Result<(), String> {
        let Survivors { holder, is_cut_off, contention } = *survivors;
        let operator = self.operator.clone();
        let mut random = StdRng::seed_from_u64(self.plan.seed ^ 0x4ec0);
        // A node that was late in the last restore comes in now.
        self.heal();

        let by = Instant::now() + BOUND;
        let held = holder.hold("left/known", by).await;
        let mut held = held.ok_or("no lock was granted before the majority was lost")?;
        let left = self.choose_left(&mut random);
        // A cluster of one node has no majority to lose.
        if left.is_empty() {
            return Ok(());
        }

        let before = self.make_before(by).await?;
        self.settle(&left, by).await?;

        let is_parted = random.random_bool(0.5);
        if is_parted {
            self.part(&left);
        }
        is_cut_off.store(false, Ordering::Relaxed);
        let granted = holder.hold_also(&mut held, "left/unknown").await;
        if !is_parted {
            granted.map_err(|error| format!("no lock was granted before the majority was lost: {error}"))?;
        }

        is_cut_off.store(random.random_bool(0.5), Ordering::Relaxed);
        let until = Instant::now() + Duration::from_millis(random.random_range(UNKNOWN_MS));
        let newest = self.put_until(until).await;
        let members = self.living();
        let recovered = self.recover_from(&left, &mut random).await?;
        contention.restored();
        self.start_all();

        self.ensure_as_documented(recovered.node, &before).await?;
        self.ensure_newest_kept(&recovered, &newest).await?;
        let returned = self.return_old_nodes(&members, &recovered);
        for _ in 0..JOINING {
            self.join_recovered(recovered.node).await?;
        }

        let by = Instant::now() + recovered.closed_for + BOUND;
        if !operator.take_over_from(&held, by).await {
            return Err("the cluster that was recovered did not grant all locks of the one that was lost".to_owned());
        }
        is_cut_off.store(false, Ordering::Relaxed);
        let next = holder.hold("left/next/recovered", by).await;
        let _next = next.ok_or("the cluster that was recovered grants nothing")?;
        sleep(CONTENDED).await;
        match returned {
            Some(returned) => self.judge_returned(&returned, &recovered).await,
            None => Ok(()),
        }
    }

    /// The nodes that are left: too few for a majority of the members.
    fn choose_left(&self, random: &mut StdRng) -> Vec<u64> {
        let most = self.members.len() / 2;
        if most == 0 {
            return Vec::new();
        }

        let members: Vec<u64> = self.living().into_iter().filter(|node| self.site(*node).is_member()).collect();
        let count = random.random_range(1..=most);
        members.choose_multiple(random, count).copied().collect()
    }

    /// Waits until all of these have applied, and synced, what the cluster has now.
    async fn settle(&self, left: &[u64], by: Instant) -> Result<(), String> {
        sleep(SETTLED).await;
        let index = self.observer.applied_index();
        for node in left {
            let channel = channel(*node);
            while status(&channel).await.is_none_or(|status| status.applied_index < index) {
                if Instant::now() >= by {
                    return Err(format!("node {node} has not applied entry {index} in time"));
                }
                sleep(PAUSE).await;
            }
        }

        sleep(SETTLED).await;
        Ok(())
    }

    /// Cuts these nodes off from all other nodes.
    fn part(&self, left: &[u64]) {
        let left: Vec<_> = left.iter().copied().map(node_host).collect();
        let mut others = self.nodes();
        others.retain(|node| !left.contains(node));
        self.between(&left, &others, Order::Cut);
    }

    /// Kills all nodes, and makes a cluster of the best of those that are left.
    async fn recover_from(&mut self, left: &[u64], random: &mut StdRng) -> Result<RecoveredCluster, String> {
        let fault = "majority-lost".to_owned();
        self.recorder.fact(Fact::Fault { name: fault, nodes: self.members.clone(), silent: Vec::new() });
        self.kill_all();
        sleep(Duration::from_millis(random.random_range(LOST_MS))).await;

        let (node, directory, remains) = self.best_left(left)?;
        let site = self.site(node);
        site.judge_remains(&directory, &remains)?;
        kept::judge_copy(&site, &directory, &remains)?;
        site.note_copy(GENERATION, site.generation(), &remains.applied);
        let recovered = self.go_on(node, remains, random);
        let recovered = recovered.map_err(|error| format!("no cluster was made of node {node}: {error}"))?;

        // The other nodes of the old cluster are lost to the operator, whether or not one comes back by mistake.
        let members = std::mem::replace(&mut self.members, vec![node]);
        for lost in members.into_iter().filter(|member| *member != node) {
            self.dead.insert(lost);
            self.observer.forget(lost);
            self.operator.forget(lost);
            self.recorder.fact(Fact::Removed { node: lost });
        }
        network::seat(&self.members);
        self.observer.forget_terms();
        self.recorder.fact(Fact::Restored);
        Ok(recovered)
    }

    /// The node whose log has the highest term, and of these the one with the highest index.
    fn best_left(&self, left: &[u64]) -> Result<(u64, LeftDirectory, StoppedNodeData), String> {
        let end = |remains: &StoppedNodeData| remains.last.map(|last| (last.leader_id.term, last.index));
        let mut best: Option<(u64, LeftDirectory, StoppedNodeData)> = None;
        for node in left {
            let directory = self.site(*node).leave_data();
            let directory = directory.map_err(|error| format!("the data of node {node} were not written: {error}"))?;
            let remains = directory.read(None);
            let remains = remains.map_err(|error| format!("what node {node} left cannot be read: {error}"))?;

            if best.as_ref().is_none_or(|(_, _, other)| end(&remains) > end(other)) {
                best = Some((*node, directory, remains));
            }
        }
        best.ok_or_else(|| "no node is left".to_owned())
    }

    /// Gives this node the data of the only member of a new cluster.
    fn go_on(
        &self,
        node: u64,
        remains: StoppedNodeData,
        random: &mut StdRng,
    ) -> Result<RecoveredCluster, Box<dyn std::error::Error>> {
        let StoppedNodeData { identity: lost, applied: copy, .. } = remains;
        let site = self.site(node);
        let logged = site.last_committed().map(|(_, revision)| revision);
        let cluster = restore::new_cluster(&copy, CLUSTER_ID, &[node], random)?;
        let founding = Founding::draw(&cluster, random)?;
        let identity = founding.identities_in_memory().next().ok_or("a cluster has a member")?;
        site.refound(&founding, identity, GENERATION, self.plan.sync_ms, false)?;

        Ok(RecoveredCluster {
            node,
            closed_for: Duration::from_millis(cluster.machine.closed_for_ms().unwrap_or_default()),
            lost_id: lost.cluster_id.to_string(),
            logged,
            last_token: cluster.machine.last_token(),
            begins_after: founding.last().index,
            copy,
        })
    }

    /// Starts a new node, which asks this one to be added, and waits until it votes.
    async fn join_recovered(&mut self, through: u64) -> Result<(), String> {
        let node = self.sites.borrow().len() as u64 + 1;
        let through = vec![network::client_address(through)];
        let cluster = JoinedCluster { id: CLUSTER_ID.to_owned(), generation: GENERATION, through };
        // It may lead as soon as it votes.
        self.operator.insert(node, channel(node));
        self.order(Order::Admit { node, cluster });

        let by = Instant::now() + BOUND;
        let channels: Vec<_> = self.members.iter().map(|member| channel(*member)).collect();
        while !has_voter(&channels, node).await {
            if Instant::now() >= by {
                return Err(format!("node {node} did not become a voter of the cluster that was recovered"));
            }
            sleep(PAUSE).await;
        }

        self.members.push(node);
        self.observer.insert(node, channel(node));
        self.recorder.fact(Fact::Joined { node });
        network::seat(&self.members);
        Ok(())
    }

    /// Opens a session and puts a key.
    async fn make_before(&self, by: Instant) -> Result<MadeBefore, String> {
        let open = async |channel: Channel| {
            let message = OpenSessionRequest { session_id: String::new(), ttl_ms: TTL_MS, label: String::new() };
            SessionsClient::new(channel).open(message).await
        };
        let opened = self.ask(network::seat_address, by, open).await;
        let opened = opened.map_err(|why| format!("no session was opened before the majority was lost: {why}"))?;

        // A late repetition must not put it again.
        let key = kept_key();
        let kept = match self.put(network::peer_seat_address, (&key, "before"), vec![kept::absent(&key)], by).await {
            Ok(_) => self.kept(by).await?,
            Err(_) => None,
        };
        Ok(MadeBefore { session: opened.session_id, kept })
    }

    /// Fails unless the new cluster has what this node had: its keys with their revisions, and no session of a client.
    async fn ensure_as_documented(&self, node: u64, before: &MadeBefore) -> Result<(), String> {
        let by = Instant::now() + BOUND;
        let MadeBefore { session, kept } = before;
        self.ensure_unknown(session, by).await?;
        let site = self.site(node);
        site.count_recovered("sessions that a recovery ended");

        let Some(kept) = kept else { return Ok(()) };
        let now = self.kept(by).await?;
        if now.as_ref() != Some(kept) {
            return Err(format!("the cluster that was recovered has {now:?} in the place of {kept:?}"));
        }

        let written = self.put(network::peer_seat_address, (&kept_key(), "after"), Vec::new(), by).await;
        let written = written.map_err(|why| format!("the cluster that was recovered puts no key: {why}"))?;
        if written.revision <= kept.modified.0 {
            return Err(format!("a put in the cluster that was recovered has revision {}: {kept:?}", written.revision));
        }
        site.count_recovered("keys that a recovery kept");
        Ok(())
    }

    /// Fails if the session can be renewed. It may have expired before the loss; otherwise it is unknown.
    async fn ensure_unknown(&self, session: &str, by: Instant) -> Result<(), String> {
        loop {
            let message = RenewSessionRequest { session_id: session.to_owned() };
            let mut client = SessionsClient::new(clients::channel(&network::seat_address(1)));
            let why = match timeout(LIMIT, client.renew(message)).await {
                Ok(Ok(_)) => return Err(format!("the session {session} lives in the cluster that was recovered")),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer"),
            };

            let info = why.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            if ["SESSION_UNKNOWN", "SESSION_EXPIRED"].contains(&info.as_str()) {
                return Ok(());
            }
            if Instant::now() >= by {
                return Err(format!("the cluster that was recovered does not know what became of a session: {why}"));
            }
            sleep(PAUSE).await;
        }
    }

    /// Puts this value under a key, if the compares hold, through one of the nodes at these addresses.
    async fn put(
        &self,
        address: impl Fn(u64) -> String,
        (key, value): (&Key, &str),
        compares: Vec<Compare>,
        by: Instant,
    ) -> Result<pb::Committed, Status> {
        let value = Value::from_log(value.as_bytes());
        let put = Put { key: key.clone(), value, lease: PutLease::None, claims: None };
        let txn = Txn::from_log(compares, vec![TxnOperation::Put(put)], Vec::new()).expect("it puts one key");

        let message = write_txn(&txn);
        let commit = async |channel: Channel| KeyspaceClient::new(channel).commit(message.clone()).await;
        self.ask(address, by, commit).await
    }

    /// The entry of [`KEY`].
    async fn kept(&self, by: Instant) -> Result<Option<Arc<Entry>>, String> {
        let entries = self.entries(&[kept_key()], by).await?;
        Ok(entries.into_iter().next().flatten())
    }

    /// The entries of these keys, which must be few.
    async fn entries(&self, keys: &[Key], by: Instant) -> Result<Vec<Option<Arc<Entry>>>, String> {
        let found = self.find(network::peer_seat_address, keys, by).await;
        let found = found.map_err(|why| format!("a key cannot be read: {why}"))?;

        let read = |found: &pb::FoundEntry| found.entry.as_ref().map(read_entry).transpose();
        let entries: Result<Vec<_>, _> = found.entries.iter().map(read).collect();
        entries.map_err(|malformed| format!("an entry cannot be read: {malformed:?}"))
    }

    /// Reads these keys through one of the nodes at these addresses.
    async fn find(
        &self,
        address: impl Fn(u64) -> String,
        keys: &[Key],
        by: Instant,
    ) -> Result<pb::EntriesFound, Status> {
        let message = pb::GetEntries { keys: keys.iter().map(write_key).collect(), ..pb::GetEntries::default() };
        let get = async |channel: Channel| KeyspaceClient::new(channel).get(message.clone()).await;
        self.ask(address, by, get).await
    }

    /// Asks one node after the other, until one answers. Fails with the last error.
    async fn ask<T>(
        &self,
        address: impl Fn(u64) -> String,
        by: Instant,
        call: impl AsyncFn(Channel) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        loop {
            let mut last = Status::unavailable("there is no node");
            for seat in 1..=self.plan.nodes {
                match timeout(LIMIT, call(clients::channel(&address(seat)))).await {
                    Ok(Ok(answer)) => return Ok(answer.into_inner()),
                    Ok(Err(status)) => last = status,
                    Err(_) => last = Status::deadline_exceeded("no answer"),
                }
            }
            // What a limit refuses now it refuses later.
            if Instant::now() >= by || last.code() == tonic::Code::ResourceExhausted {
                return Err(last);
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether a leader says that this node votes.
async fn has_voter(channels: &[Channel], node: u64) -> bool {
    for channel in channels {
        if status(channel).await.is_some_and(|status| leads(&status) && is_voter(&status.members, node)) {
            return true;
        }
    }
    false
}

fn kept_key() -> Key {
    Key::new(KEY.as_bytes()).expect("it is short")
}
