//! Executes and ends faults.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{Rng as _, rngs::StdRng};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use lockkeeper_local::{LocalCluster, LocalError, Signal};
use lockkeeper_storage::IDENTITY_FILE;

use super::{
    Fault,
    aim::Aim,
    roster::{OpenOperation, Roster},
    tools::{Tools, Trace},
    turns::NodePrograms,
};
use crate::{
    dial::Dial,
    history::Fact,
    links::{Direction, Links},
    parties::{LIVENESS_BOUND, clients::Clients, observe::Observer, operator::RunOperator},
    record::Recorder,
    trail::TrailFiles,
    workload::locks::Lock,
};

/// A time longer than the TTL of any session of the workload.
const OVER_A_TTL: Duration = Duration::from_millis(3_200);
/// Time limit of the search for a client that holds a lock. On a slow machine it may take many attempts.
const HOLDER_WAIT: Duration = Duration::from_secs(20);
/// Time for which clients are stopped while their locks are read. It is short, so that they still hold the locks afterwards.
const LOOK: Duration = Duration::from_millis(600);
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(60);
/// Time limit of the wait for a leader as the target.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// Time limit of the wait for a new leader.
const NEW_LEADER_WAIT: Duration = Duration::from_secs(10);
/// The text in an identity file by which it belongs to a member.
const MEMBER: &str = "stage = \"member\"";

/// The path to which a data directory is moved.
fn aside(directory: &Path) -> PathBuf {
    directory.with_extension("aside")
}

/// The parts of a run that faults act on.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) cluster: LocalCluster,
    pub(crate) dial: Dial,
    pub(crate) links: Links,
    pub(crate) clients: Clients,
    pub(crate) observer: Observer,
    pub(crate) operator: RunOperator,
    pub(crate) recorder: Recorder,
    pub(crate) tools: Tools,
    pub(crate) node_programs: NodePrograms,
    pub(crate) trail: Option<TrailFiles>,
    pub(crate) random: StdRng,
    pub(crate) traces: Vec<Trace>,
    /// Nodes that may exit by themselves due to a disk fault.
    pub(crate) may_end: Vec<u64>,
    /// Nodes whose data directories are moved aside.
    pub(crate) set_aside: Vec<u64>,
    /// The nodes that may join.
    pub(crate) roster: Roster,
    /// The time for which the cluster that was restored last grants nothing.
    pub(crate) closed_for: Duration,
    /// The operation in flight.
    pub(crate) operation: Option<OpenOperation>,
    /// A token that is cancelled to end faults early. Faults are not dropped, so that each kill is recorded.
    pub(crate) stop: CancellationToken,
}

/// Starts a node that does not run, with the program whose turn it is, and records it.
pub(crate) fn start(
    cluster: &mut LocalCluster,
    id: u64,
    programs: &mut NodePrograms,
    tools: &mut Tools,
    recorder: &Recorder,
) -> Result<(), LocalError> {
    let node = cluster.node_mut(id);
    node.set_program(programs.take_turn(id).clone());
    node.spawn()?;

    if let Some(pid) = node.pid().filter(|_| tools.libfaketime().is_some()) {
        tools.is_loaded_into(pid);
    }
    recorder.fact(Fact::Started { node: id });
    Ok(())
}

impl World {
    /// Begins a fault and lets it last. Returns `false` if it was not possible, or had no target.
    pub(crate) async fn inject_fault(&mut self, fault: Fault) -> io::Result<bool> {
        let Some(leader) = self.observer.leader_by(Instant::now() + LEADER_WAIT).await else { return Ok(false) };
        let ids: Vec<u64> = self.cluster.nodes().map(lockkeeper_local::LocalNode::id).collect();
        let aim = Aim::take(fault, leader, &ids, &mut self.random);

        if fault.is_request() {
            return self.begin(fault, &aim).await;
        }

        let name = fault.name().to_owned();
        let nodes = aim.nodes.clone();
        let silent = aim.silent.clone();
        self.recorder.fact(Fact::Fault { name, nodes, silent });
        // Recorded first: what the nodes do by the fault must come after it in the history, or a violation would seem to have no cause.
        aim.silent.iter().for_each(|(from, to)| self.links.silence(*from, *to));

        let until = Instant::now() + Duration::from_millis(self.random.random_range(1_500..3_500));
        let hit = self.hit(fault, &aim.nodes, until).await?;
        if hit && !fault.has_its_own_time() {
            self.rest_until(until).await;
        }
        Ok(hit)
    }

    /// Injects a fault as [`World::inject_fault`] does, and its companion before it has taken effect. Returns those of the two that were
    /// possible and had a target: none without the first fault.
    pub(crate) async fn inject_together(&mut self, fault: Fault, companion: Option<Fault>) -> io::Result<Vec<Fault>> {
        if !self.inject_fault(fault).await? {
            return Ok(Vec::new());
        }

        let mut injected = vec![fault];
        if let Some(companion) = companion {
            self.rest(0..500).await;
            // The companion may lack a target. The first fault takes effect anyway.
            if self.inject_fault(companion).await? {
                injected.push(companion);
            }
        }
        Ok(injected)
    }

    pub(super) async fn rest(&mut self, ms: Range<u64>) {
        let ms = self.random.random_range(ms);
        self.rest_until(Instant::now() + Duration::from_millis(ms)).await;
    }

    pub(super) async fn rest_until(&self, until: Instant) {
        let _ = timeout_at(until, self.stop.cancelled()).await;
    }

    pub(super) fn goes_on(&self, until: Instant) -> bool {
        Instant::now() < until && !self.stop.is_cancelled()
    }

    /// Executes the part of a fault beyond the links between nodes. Returns whether it hit.
    async fn hit(&mut self, fault: Fault, nodes: &[u64], until: Instant) -> io::Result<bool> {
        let lasting = until.saturating_duration_since(Instant::now());
        match (fault, nodes) {
            // These are made of links alone, which are silent by now.
            (Fault::PartitionHalves | Fault::PartitionOneWay | Fault::PartitionBridge | Fault::PartitionAll, _) => {}
            (Fault::Delay, _) => self.delay(),
            (Fault::Resets, _) => self.reset_until(until).await,
            (Fault::AnswersLost, _) => self.lose_answers().await,
            (Fault::PauseClient, _) => return self.pause_client().await,
            (Fault::KillAll, _) => self.kill_all().await,
            (Fault::KillStaggered, _) => self.kill_one_by_one(nodes).await?,
            (Fault::DataGone, _) => self.lose_data(nodes).await?,
            (Fault::Restore, _) => self.lose_and_restore(1).await?,
            (Fault::RestoreAgain, _) => self.lose_and_restore(2).await?,
            (Fault::RollingRestart, _) => self.restart_one_by_one(nodes).await?,
            (Fault::Transfer | Fault::Add, _) => return Ok(false),
            (_, &[]) => return Ok(false),
            (Fault::PartitionClients, &[node, ..]) => self.cut_from_clients(node),
            (Fault::ReplyLost, &[node, ..]) => self.lose_replies_until(node, until).await,
            (Fault::PartitionLeader, &[node, ..]) => return Ok(self.another_leads(node, lasting).await),
            (Fault::PauseLeader, &[node, ..]) => {
                self.cluster.node(node).signal(Signal::STOP);
                return Ok(self.another_leads(node, lasting).await);
            }
            (Fault::PauseFollower, &[node, ..]) => self.cluster.node(node).signal(Signal::STOP),
            (Fault::KillLeader | Fault::KillFollower, &[node, ..]) => self.kill(node).await,
            (Fault::Restart, &[node, ..]) => self.restart(node).await?,
            (Fault::Remove | Fault::Replace, _) => return Ok(false),
            (Fault::ClockJump, &[node, ..]) => return self.jump_clock(node, until).await,
            (Fault::SlowSync, &[node, ..]) => return self.slow_syncs(node).await,
            (Fault::FailedSync, &[node, ..]) => return self.fail_syncs(node).await,
            (Fault::DiskFull, &[node, ..]) => return self.fill_disk(node).await,
            (Fault::SlowAudit, &[node, ..]) => return self.slow_audit_disk(node).await,
            (Fault::HungAudit, &[node, ..]) => return self.hang_audit_disk(node).await,
        }
        Ok(true)
    }

    /// Ends all faults and restarts killed nodes.
    pub(crate) async fn heal(&mut self) -> io::Result<()> {
        self.links.heal();
        self.clients.signal_all(Signal::CONT);

        for trace in self.traces.drain(..) {
            trace.detach().await;
        }
        for id in self.ids() {
            self.cluster.node(id).signal(Signal::CONT);
            self.reset_clock(id)?;
        }

        for id in std::mem::take(&mut self.may_end) {
            // A node that cannot write may hang in a state that only an operator can end, so it is killed.
            self.kill(id).await;
        }

        for id in std::mem::take(&mut self.set_aside) {
            self.kill(id).await;
            self.put_data_back(id)?;
        }

        // All faults are gone by now, so that a node that does not come up again has no excuse.
        self.start_all()
    }

    /// Executes [`Fault::DataGone`].
    async fn lose_data(&mut self, nodes: &[u64]) -> io::Result<()> {
        // The first half goes down early and lacks the latest entries. The victim is one of those that have them: if its id with an empty
        // directory counted, it and those behind were a majority without entries that were acknowledged.
        let (behind, ahead) = nodes.split_at(nodes.len() / 2);

        for id in behind {
            self.kill(*id).await;
        }

        self.rest(1_500..3_000).await;
        for id in ahead {
            self.kill(*id).await;
        }

        let Some(&victim) = ahead.first() else { return Ok(()) };
        let directory = self.cluster.node(victim).config().data_dir.clone();
        fs::rename(&directory, aside(&directory))?;
        self.set_aside.push(victim);
        for id in behind.iter().chain([&victim]) {
            self.start_node(*id)?;
        }

        self.rest(2_500..4_000).await;
        Ok(())
    }

    /// Puts the data of a node back. Fails if the node became a member without them.
    fn put_data_back(&self, id: u64) -> io::Result<()> {
        let directory = self.cluster.node(id).config().data_dir.clone();
        let identity = fs::read_to_string(directory.join(IDENTITY_FILE)).unwrap_or_default();
        // The node may have been killed before it created the directory.
        let _ = fs::remove_dir_all(&directory);
        fs::rename(aside(&directory), &directory)?;
        if identity.contains(MEMBER) {
            Err(io::Error::other(format!("node {id} was accepted as a member without its data")))
        } else {
            Ok(())
        }
    }

    /// Waits for a new leader, and for a while after that: meanwhile, two nodes act as leaders. Returns `false` if there was no new leader.
    async fn another_leads(&self, old: u64, lasting: Duration) -> bool {
        let by = Instant::now() + NEW_LEADER_WAIT;
        while self.goes_on(by) {
            if self.observer.leader_by(by).await.is_some_and(|leader| leader != old) {
                self.rest_until(Instant::now() + lasting).await;
                return true;
            }
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }
        false
    }

    fn ids(&self) -> Vec<u64> {
        self.cluster.nodes().map(lockkeeper_local::LocalNode::id).collect()
    }

    /// Cuts a node from its clients: either holds the link without an error, or resets its connections.
    fn cut_from_clients(&mut self, node: u64) {
        let link = self.links.from_clients(node);
        if self.random.random() {
            return link.refuse();
        }
        link.set_forward(Direction::Held);
        link.set_backward(Direction::Held);
    }

    fn delay(&mut self) {
        for link in self.links.all() {
            let latency = Duration::from_millis(self.random.random_range(0..60));
            let jitter = Duration::from_millis(self.random.random_range(0..120));
            link.set_forward(Direction::Delayed { latency, jitter });
            link.set_backward(Direction::Delayed { latency, jitter });
        }
    }

    async fn reset_until(&mut self, until: Instant) {
        while self.goes_on(until) {
            self.links.all().filter(|_| self.random.random()).for_each(crate::links::Link::reset);
            self.rest(30..250).await;
        }
        // Every pending call must now be repeated.
        self.links.all().for_each(crate::links::Link::reset);
    }

    async fn lose_replies_until(&mut self, leader: u64, until: Instant) {
        while self.goes_on(until) {
            self.links.from_clients(leader).set_backward(Direction::Held);
            self.rest(30..200).await;
            let link = self.links.from_clients(leader);
            link.reset();
            link.heal();
            self.rest(50..250).await;
        }
    }

    async fn lose_answers(&mut self) {
        self.links.to_clients().for_each(|link| link.set_backward(Direction::Held));
        self.rest_until(Instant::now() + OVER_A_TTL).await;
        for link in self.links.to_clients() {
            // The answers are lost with the connections.
            link.reset();
            link.heal();
        }
    }

    /// Kills a client that holds a lock, and starts another in its place. Returns the locks that it held.
    pub(crate) async fn kill_a_holder(&mut self) -> io::Result<Vec<Lock>> {
        let (stopped, held) = self.stop_holders(1).await;
        for place in stopped {
            self.clients.replace(place).await?;
        }
        Ok(held)
    }

    /// Stops about half of the clients. Meanwhile the operator acquires their locks and writes, so that the clients are
    /// late when they continue.
    async fn pause_client(&mut self) -> io::Result<bool> {
        let until = Instant::now() + OVER_A_TTL;
        let (stopped, held) = self.stop_holders(self.clients.count().div_ceil(2)).await;
        self.operator.take_over(&held).await;
        self.rest_until(until).await;
        Ok(!stopped.is_empty() && !held.is_empty())
    }

    /// Stops `count` clients, until at least one of them holds a lock. Returns the clients and their locks, or no lock if none was found.
    /// Only a stopped client is sure to still hold the locks that a read shows.
    async fn stop_holders(&mut self, count: usize) -> (Vec<usize>, Vec<Lock>) {
        let by = Instant::now() + HOLDER_WAIT;
        loop {
            let mut stopped = self.clients.some(count, &mut self.random);
            stopped.retain(|place| self.clients.signal(*place, Signal::STOP));
            let names: Vec<_> = stopped.iter().map(|place| self.clients.name(*place)).collect();
            let held = timeout(LOOK, self.operator.held_by(&names)).await.unwrap_or_default();

            if !held.is_empty() || !self.goes_on(by) {
                return (stopped, held);
            }
            self.clients.signal_all(Signal::CONT);
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }
    }

    /// Stops a node gracefully, and starts it. Fails if it does not end as it should.
    pub(super) async fn restart(&mut self, id: u64) -> io::Result<()> {
        // A node that was started a moment ago may not handle the signal yet. The signal then kills it, which is allowed.
        let answers = self.cluster.node(id).status().await.is_ok();
        let Some(status) = self.cluster.node_mut(id).stop().await else { return Ok(()) };
        self.recorder.fact(Fact::Stopped { node: id });
        if answers && !status.success() {
            return Err(io::Error::other(format!("node {id} was asked to stop, and ended with {status}")));
        }
        self.rest(0..1_000).await;
        self.start_node(id)
    }

    async fn restart_one_by_one(&mut self, nodes: &[u64]) -> io::Result<()> {
        for id in nodes {
            self.restart(*id).await?;
            self.cluster.ready(LIVENESS_BOUND).await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    pub(super) async fn kill(&mut self, id: u64) {
        if self.cluster.node_mut(id).kill().await.is_some() {
            self.recorder.fact(Fact::Killed { node: id });
        }
    }

    /// Kills all nodes and restarts them.
    pub(crate) async fn restart_all(&mut self) -> io::Result<()> {
        self.kill_all().await;
        self.start_all()
    }

    pub(super) async fn kill_all(&mut self) {
        for id in self.ids() {
            self.cluster.node(id).signal(Signal::KILL);
        }
        for id in self.ids() {
            self.kill(id).await;
        }
        self.rest(50..800).await;
    }

    async fn kill_one_by_one(&mut self, nodes: &[u64]) -> io::Result<()> {
        for id in nodes {
            self.kill(*id).await;
            self.rest(100..900).await;
            self.start_all()?;
            self.rest(0..900).await;
        }
        Ok(())
    }

    /// Starts a node as [`start`] does.
    pub(super) fn start_node(&mut self, id: u64) -> io::Result<()> {
        let started = start(&mut self.cluster, id, &mut self.node_programs, &mut self.tools, &self.recorder);
        started.map_err(io::Error::other)
    }

    pub(super) fn start_all(&mut self) -> io::Result<()> {
        for id in self.ids() {
            if !self.cluster.node(id).is_running() {
                self.start_node(id)?;
            }
        }
        Ok(())
    }
}
