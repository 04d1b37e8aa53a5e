//! Doing it, and undoing it.

use std::{fs, io, path::PathBuf, time::Duration};

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Fault,
    tools::{Tools, Trace},
};
use crate::{
    chaos::{
        history::Fact,
        links::{Links, Way},
        record::Recorder,
        run::{clients::Clients, observe::Observer, operator::Operator},
        workload::locks::Lock,
    },
    local::{LocalCluster, Signal},
};

/// Longer than any session of the workload lives.
const CLIENT_PAUSE: Duration = Duration::from_millis(3_200);
/// For how long one is sought who holds something: on a slow machine, it may take many looks.
const HOLDER_WAIT: Duration = Duration::from_secs(20);
/// Who is looked at stands still. Not for long: it is to have its locks afterwards.
const LOOK: Duration = Duration::from_millis(600);
const BETWEEN_LOOKS: Duration = Duration::from_millis(60);
/// For how long a leader is waited for, to be the one who is hit.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// For how long another one is waited for.
const NEW_LEADER_WAIT: Duration = Duration::from_secs(10);
/// How far a wall clock jumps.
const JUMP: &str = "+7h";
const NO_JUMP: &str = "+0";
/// What makes data durable.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,msync";
/// What needs room.
const WRITES: &str = "write,writev,pwrite64,pwritev,fallocate,ftruncate";

/// All that can be broken.
#[derive(Debug)]
pub(in crate::chaos) struct World {
    pub(in crate::chaos) cluster: LocalCluster,
    pub(in crate::chaos) links: Links,
    pub(in crate::chaos) clients: Clients,
    pub(in crate::chaos) observer: Observer,
    pub(in crate::chaos) operator: Operator,
    pub(in crate::chaos) recorder: Recorder,
    pub(in crate::chaos) tools: Tools,
    pub(in crate::chaos) random: StdRng,
    pub(in crate::chaos) traces: Vec<Trace>,
    /// Nodes that may end by themselves, for what is done to their disks.
    pub(in crate::chaos) may_end: Vec<u64>,
}

impl World {
    /// Begins a fault, and keeps it up for a while. False: it could not be done, or hit nothing.
    pub(in crate::chaos) async fn inflict(&mut self, fault: Fault) -> io::Result<bool> {
        let Some(leader) = self.observer.leader_by(Instant::now() + LEADER_WAIT).await else { return Ok(false) };
        let others: Vec<u64> = self.ids().into_iter().filter(|id| *id != leader).collect();
        let Some(&follower) = others.choose(&mut self.random) else { return Ok(false) };
        let node = *[leader, follower].choose(&mut self.random).expect("it has two");
        let lasting = Duration::from_millis(self.random.random_range(1_500..3_500));
        let until = Instant::now() + lasting;
        match fault {
            Fault::PartitionHalves => self.split_in_halves(),
            Fault::PartitionOneWay => self.ids().iter().for_each(|other| self.links.silence(node, *other)),
            Fault::PartitionBridge => self.split_but_for(follower),
            Fault::PartitionLeader => {
                others.iter().for_each(|other| self.links.cut(leader, *other));
                return Ok(self.another_leads(leader, lasting).await);
            }
            Fault::PartitionAll => self.links.split(&[]),
            Fault::PartitionClients => self.cut_from_clients(leader),
            Fault::Delay => self.delay(),
            Fault::Resets => self.reset_until(until).await,
            Fault::ReplyLost => self.lose_replies_until(leader, until).await,
            Fault::PauseLeader => {
                self.cluster.node(leader).signal(Signal::STOP);
                return Ok(self.another_leads(leader, lasting).await);
            }
            Fault::PauseFollower => self.cluster.node(follower).signal(Signal::STOP),
            Fault::PauseClient => return self.pause_client().await,
            Fault::KillLeader => self.kill(leader).await,
            Fault::KillFollower => self.kill(follower).await,
            Fault::KillAll => return self.kill_all().await,
            Fault::KillStaggered => return self.kill_one_by_one().await,
            Fault::ClockJump => self.set_clock(node, JUMP)?,
            Fault::SlowSync => return self.trace(node, SYNCS, "delay_enter=120000", until).await,
            Fault::FailedSync => return self.trace(node, SYNCS, "error=EIO", until).await,
            Fault::DiskFull => return self.trace(node, WRITES, "error=ENOSPC", until).await,
        }
        sleep(until.saturating_duration_since(Instant::now())).await;
        Ok(true)
    }

    /// Undoes whatever was done, and starts again what was killed.
    pub(in crate::chaos) async fn heal(&mut self) -> io::Result<()> {
        self.links.heal();
        self.clients.signal_all(Signal::CONT);
        for trace in self.traces.drain(..) {
            trace.detach().await;
        }
        for id in self.ids() {
            self.cluster.node(id).signal(Signal::CONT);
            self.set_clock(id, NO_JUMP)?;
        }
        for id in std::mem::take(&mut self.may_end) {
            // One that cannot write may hang on in a state that only an operator ends: that is us.
            self.kill(id).await;
        }
        self.start_all()
    }

    /// Waits until there is a new leader, and for a while after that: now both believe to lead. False: there was none.
    async fn another_leads(&self, old: u64, lasting: Duration) -> bool {
        let by = Instant::now() + NEW_LEADER_WAIT;
        while Instant::now() < by {
            if self.observer.leader_by(by).await.is_some_and(|leader| leader != old) {
                sleep(lasting).await;
                return true;
            }
            sleep(BETWEEN_LOOKS).await;
        }
        false
    }

    fn ids(&self) -> Vec<u64> {
        self.cluster.nodes().map(crate::local::Node::id).collect()
    }

    fn shuffled(&mut self) -> Vec<u64> {
        let mut ids = self.ids();
        rand::seq::SliceRandom::shuffle(&mut *ids, &mut self.random);
        ids
    }

    fn split_in_halves(&mut self) {
        let ids = self.shuffled();
        let (majority, minority) = ids.split_at(ids.len() / 2 + 1);
        self.links.split(&[majority, minority]);
    }

    fn split_but_for(&mut self, bridge: u64) {
        let others: Vec<u64> = self.shuffled().into_iter().filter(|id| *id != bridge).collect();
        let (one, two) = others.split_at(others.len() / 2);
        self.links.split(&[&[one, &[bridge]].concat(), &[two, &[bridge]].concat()]);
    }

    /// Nobody is told, or everybody is.
    fn cut_from_clients(&mut self, node: u64) {
        let link = self.links.of_clients(node);
        if self.random.random() {
            return link.refuse();
        }
        link.set_forth(Way::Held);
        link.set_back(Way::Held);
    }

    fn delay(&mut self) {
        for link in self.links.all() {
            let latency = Duration::from_millis(self.random.random_range(0..60));
            let jitter = Duration::from_millis(self.random.random_range(0..120));
            link.set_forth(Way::Delayed { latency, jitter });
            link.set_back(Way::Delayed { latency, jitter });
        }
    }

    async fn reset_until(&mut self, until: Instant) {
        while Instant::now() < until {
            self.links.all().filter(|_| self.random.random()).for_each(crate::chaos::links::Link::reset);
            sleep(Duration::from_millis(self.random.random_range(30..250))).await;
        }
        // Whoever waits for an answer now has to come back for it.
        self.links.all().for_each(crate::chaos::links::Link::reset);
    }

    async fn lose_replies_until(&mut self, leader: u64, until: Instant) {
        while Instant::now() < until {
            let link = self.links.of_clients(leader);
            link.set_back(Way::Held);
            sleep(Duration::from_millis(self.random.random_range(30..200))).await;
            link.reset();
            link.heal();
            sleep(Duration::from_millis(self.random.random_range(50..250))).await;
        }
    }

    /// Kills a client that has something in its hands, and starts another in its place. The locks that the dead one held.
    pub(in crate::chaos) async fn kill_a_holder(&mut self) -> io::Result<Vec<Lock>> {
        let (stopped, held) = self.stop_holders(1).await;
        for place in stopped {
            self.clients.replace(place).await?;
        }
        Ok(held)
    }

    /// About half of them stand still, and meanwhile somebody else takes over what they hold, and writes: when they go on, they are late.
    async fn pause_client(&mut self) -> io::Result<bool> {
        let until = Instant::now() + CLIENT_PAUSE;
        let (stopped, held) = self.stop_holders(self.clients.count().div_ceil(2)).await;
        self.operator.take_over(&held).await;
        sleep(until.saturating_duration_since(Instant::now())).await;
        Ok(!stopped.is_empty() && !held.is_empty())
    }

    /// Stops so many clients, of which one at least holds something: which clients, and what they hold. Only who stands still holds what
    /// it is seen to hold until something is done about it. With bad luck, nothing.
    async fn stop_holders(&mut self, count: usize) -> (Vec<usize>, Vec<Lock>) {
        let by = Instant::now() + HOLDER_WAIT;
        loop {
            let mut stopped = self.clients.some(count, &mut self.random);
            stopped.retain(|place| self.clients.signal(*place, Signal::STOP));
            let names: Vec<_> = stopped.iter().map(|place| self.clients.name(*place)).collect();
            let held = timeout(LOOK, self.operator.in_the_hands_of(&names)).await.unwrap_or_default();
            if !held.is_empty() || Instant::now() >= by {
                return (stopped, held);
            }
            self.clients.signal_all(Signal::CONT);
            sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn kill(&mut self, id: u64) {
        if self.cluster.node_mut(id).kill().await.is_some() {
            self.recorder.fact(Fact::Killed { node: id });
        }
    }

    /// Kills all nodes, and starts them again.
    pub(in crate::chaos) async fn restart_all(&mut self) -> io::Result<()> {
        self.kill_all().await?;
        self.start_all()
    }

    async fn kill_all(&mut self) -> io::Result<bool> {
        for id in self.ids() {
            self.cluster.node(id).signal(Signal::KILL);
        }
        for id in self.ids() {
            self.kill(id).await;
        }
        sleep(Duration::from_millis(self.random.random_range(50..800))).await;
        Ok(true)
    }

    async fn kill_one_by_one(&mut self) -> io::Result<bool> {
        for id in self.shuffled() {
            self.kill(id).await;
            sleep(Duration::from_millis(self.random.random_range(100..900))).await;
            self.start_all()?;
            sleep(Duration::from_millis(self.random.random_range(0..900))).await;
        }
        Ok(true)
    }

    fn start_all(&mut self) -> io::Result<()> {
        for id in self.ids() {
            if !self.cluster.node(id).is_running() {
                self.cluster.node_mut(id).spawn().map_err(io::Error::other)?;
                self.recorder.fact(Fact::Started { node: id });
            }
        }
        Ok(())
    }

    /// Where a node's wall clock is read from, if it runs under libfaketime.
    pub(in crate::chaos) fn clock_file(&self, id: u64) -> PathBuf {
        self.cluster.path().join(format!("node{id}")).join("clock")
    }

    fn set_clock(&self, id: u64, jump: &str) -> io::Result<()> {
        match self.tools.libfaketime() {
            Some(_) => fs::write(self.clock_file(id), jump),
            None => Ok(()),
        }
    }

    async fn trace(&mut self, id: u64, calls: &str, how: &str, until: Instant) -> io::Result<bool> {
        let Some(pid) = self.cluster.node(id).pid() else { return Ok(false) };
        if !how.starts_with("delay") {
            self.may_end.push(id);
        }
        let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:{how}"));
        match Trace::attach(&self.tools, pid, &["-e", &trace, "-e", &inject]).await {
            Ok(trace) => self.traces.push(trace),
            // It also ends when the node does.
            Err(_) => return Ok(!self.cluster.node_mut(id).is_alive()),
        }
        sleep(until.saturating_duration_since(Instant::now())).await;
        Ok(true)
    }
}
