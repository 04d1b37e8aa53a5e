//! The faults of a simulated cluster.
//!
//! A fault is a series of *orders*, which the simulation executes between two of its steps. Healing is the same for all faults: all links
//! are mended, paused processes resume, killed nodes are started.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::chaos::{
    history::Fact,
    record::Recorder,
    run::{Observer, RunOperator},
};
use rand::{
    Rng as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    changes::Changes,
    clients::Desk,
    director::DIRECTOR,
    greed::GreedyClientProcess,
    keyspace::writer::KeyspaceClientProcess,
    network::{self, Way, node_host},
    node::{JoinedCluster, Site},
    plan::Plan,
    protocols::ContendedProtocol,
    requests::RequestsClientProcess,
    signals::SignalsJudge,
    system,
};

/// A command to the simulation, executed between two steps.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Kills a process, as `kill -9` does; its disk may lose unsynced writes.
    Crash(String),
    /// Starts a killed process.
    Start(String),
    /// Adds the host of a new node, which joins this cluster.
    Admit { node: u64, cluster: JoinedCluster },
    /// Empties the data directory of a stopped node.
    LoseData(u64),
    /// Restores the lost data of a node, if any.
    FindData(u64),
    /// Holds or releases one direction of the connections that `from` opened to `to`.
    Gate { from: String, to: String, way: Way, hold: bool },
    /// Drops all messages between two hosts.
    Cut(String, String),
    /// Drops all messages from the first host to the second.
    CutOneWay(String, String),
    /// Holds back all messages between two hosts.
    Hold(String, String),
    /// Sets the maximal message latency between two hosts.
    Latency(String, String, Duration),
    /// Sets the loss rate between two hosts. A lost message breaks its connection.
    Loss(String, String, f64),
    /// Restores the network between two hosts and delivers held messages.
    Mend(String, String),
}

/// Faults, by their names in the history.
const FAULTS: [&str; 22] = [
    "partition-halves",
    "partition-one-way",
    "partition-bridge",
    "partition-leader",
    "partition-all",
    "partition-long",
    "partition-clients",
    "flicker",
    "hold",
    "late-answers",
    "delay",
    "loss",
    "reply-lost",
    "pause-leader",
    "pause-follower",
    "pause-client",
    "kill-leader",
    "kill-follower",
    "kill-all",
    "kill-staggered",
    "data-gone",
    "slow-sync",
];

/// These touch no link and can be combined with any other fault.
const COMPANIONS: [&str; 5] = ["kill-leader", "kill-follower", "kill-client", "slow-sync", "kill-all"];

/// Duration of a sync on a busy disk, milliseconds: power fails before a sync ends.
const BUSY_SYNC_MS: (u64, u64) = (300, 900);

/// How long a node is cut off at least in a long partition, milliseconds: the cluster forgets what it keeps for clients of the node.
const LONG_MS: (u64, u64) = (5_000, 8_000);

/// Polling interval, and time for an order to be executed.
const STEP: Duration = Duration::from_millis(5);
/// Longer than followers without a leader need to elect one.
const TWO_LEADERS: Duration = Duration::from_millis(1_500);

/// All nodes, also those to come.
pub(crate) type Sites = Rc<RefCell<Vec<Arc<Site>>>>;

/// The time in which nodes stood still last, since the begin of the simulation.
pub(crate) type LastPause = Arc<Mutex<Option<Range<Duration>>>>;

/// The cluster under test, its current faults and the faults to come.
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// All nodes that there were and are: node 1 is the first.
    pub(crate) sites: Sites,
    /// The members, as the operator knows them.
    pub(crate) members: Vec<u64>,
    /// Nodes whose machine is lost.
    pub(crate) dead: BTreeSet<u64>,
    pub(crate) changes: Changes,
    /// The clients that wait.
    pub(crate) signals: Arc<SignalsJudge>,
    pub(crate) desks: Vec<Arc<Desk>>,
    pub(crate) orders: Rc<RefCell<Vec<Order>>>,
    pub(crate) observer: Observer,
    pub(crate) operator: RunOperator,
    pub(crate) recorder: Recorder,
    pub(crate) random: StdRng,
    /// Nodes that do not run.
    down: BTreeSet<u64>,
    /// Paused nodes, and since when they are.
    paused: BTreeMap<u64, Duration>,
    pub(crate) last_pause: LastPause,
    /// Nodes that run without their data.
    pub(crate) lost: Vec<u64>,
    /// Faults to come: each fault has its turn before one repeats.
    deck: Vec<&'static str>,
}

impl World {
    /// A world without faults.
    pub(crate) fn new(
        plan: Plan,
        sites: Sites,
        desks: Vec<Arc<Desk>>,
        orders: Rc<RefCell<Vec<Order>>>,
        observer: Observer,
        operator: RunOperator,
        recorder: Recorder,
    ) -> Self {
        let random = StdRng::seed_from_u64(plan.seed ^ 0x5eed);
        let (dead, changes, members) = (BTreeSet::new(), Changes::default(), (1..=plan.nodes).collect::<Vec<_>>());
        network::seat(&members);
        Self {
            plan,
            sites,
            members,
            dead,
            changes,
            signals: Arc::default(),
            desks,
            orders,
            observer,
            operator,
            recorder,
            random,
            down: BTreeSet::new(),
            paused: BTreeMap::new(),
            last_pause: LastPause::default(),
            lost: Vec::new(),
            deck: Vec::new(),
        }
    }

    /// A node, which may have been removed.
    pub(crate) fn site(&self, node: u64) -> Arc<Site> {
        Arc::clone(&self.sites.borrow()[node as usize - 1])
    }

    /// Members, and nodes on their way to be, that run or will run again.
    pub(crate) fn living(&self) -> Vec<u64> {
        let hosts = self.sites.borrow().len() as u64;
        let joins = self.changes.current.as_ref().and_then(|change| change.new).filter(|node| *node <= hosts);
        let all = self.members.iter().copied().chain(joins);
        all.filter(|node| !self.dead.contains(node)).collect()
    }

    /// Draws the next fault, or two that can be combined.
    pub(crate) fn choose(&mut self) -> Vec<&'static str> {
        if self.deck.is_empty() {
            self.deck = FAULTS.to_vec();
            self.deck.shuffle(&mut self.random);
        }
        // A deposed leader with a learner on its side: rare without help.
        if self.adds_learner() && self.random.random_bool(0.5) {
            return vec!["partition-learner"];
        }
        let mut chosen: Vec<_> = self.deck.pop().into_iter().collect();
        if self.random.random_range(0..100) < 35 {
            chosen.extend(COMPANIONS.choose(&mut self.random));
        }
        chosen.dedup();
        chosen
    }

    /// Begins these faults and waits for a random time.
    pub(crate) async fn inflict(&mut self, faults: &[&'static str]) {
        for fault in faults {
            self.recorder.fact(Fact::Fault { name: (*fault).to_owned(), nodes: Vec::new(), silent: Vec::new() });
        }
        for fault in faults {
            self.begin(fault).await;
        }
        let time = self.some_ms(300, 5_000);
        sleep(time).await;
    }

    async fn begin(&mut self, fault: &str) {
        match fault {
            "partition-halves" => {
                let (one, other) = self.halves();
                self.between(&one, &other, Order::Cut);
            }
            "partition-one-way" => {
                let node = self.some_node().await;
                let others = self.other_nodes(node);
                if self.random.random_bool(0.5) {
                    self.between(&[node_host(node)], &others, Order::CutOneWay)
                } else {
                    self.between(&others, &[node_host(node)], Order::CutOneWay)
                }
            }
            "partition-bridge" => {
                let (mut one, mut other) = self.halves();
                let bridge = if one.len() > other.len() { one.pop() } else { other.pop() };
                drop(bridge);
                self.between(&one, &other, Order::Cut);
            }
            "partition-leader" => {
                let leader = self.leader().await;
                self.between(&[node_host(leader)], &self.other_nodes(leader), Order::Cut);
            }
            "partition-learner" => {
                let (leader, learner) = (self.leader().await, self.learner().await);
                let with_leader: Vec<_> = learner.into_iter().chain([leader]).map(node_host).collect();
                let mut others = self.nodes();
                others.retain(|node| !with_leader.contains(node));
                self.between(&with_leader, &others, Order::Cut);
            }
            "partition-all" => {
                let nodes = self.nodes();
                self.between(&nodes, &nodes, Order::Cut);
            }
            "partition-long" => {
                // Best that of a client which will believe to have a lock when the others know nothing of it any more.
                let holder = self.signals.holder_node().filter(|node| self.living().contains(node));
                let node = match holder {
                    Some(node) => node,
                    None => self.some_node().await,
                };
                self.between(&[node_host(node)], &self.other_nodes(node), Order::Cut);
                let time = self.some_ms(LONG_MS.0, LONG_MS.1);
                sleep(time).await;
            }
            "partition-clients" => {
                let leader = self.leader().await;
                self.between(&[node_host(leader)], &self.clients(), Order::Cut);
            }
            "reply-lost" => {
                let leader = self.leader().await;
                self.between(&[node_host(leader)], &self.clients(), Order::CutOneWay);
            }
            "flicker" => self.flicker().await,
            "hold" => {
                for (one, other) in self.some_links(40) {
                    self.order(Order::Hold(one, other));
                }
            }
            "late-answers" => self.answer_late().await,
            "data-gone" => self.lose_data().await,
            "delay" => {
                let most = self.some_ms(30, 400);
                for (one, other) in self.some_links(60) {
                    self.order(Order::Latency(one, other, most));
                }
            }
            "loss" => {
                let rate = self.random.random_range(0.002..0.03);
                for (one, other) in self.some_links(60) {
                    self.order(Order::Loss(one, other, rate));
                }
            }
            "pause-leader" => {
                let leader = self.leader().await;
                self.pause_node(leader);
            }
            "pause-follower" => {
                let follower = self.follower().await;
                self.pause_node(follower);
            }
            "pause-client" => self.pause_clients().await,
            "kill-leader" => {
                let leader = self.leader().await;
                self.kill_for_a_while(leader).await;
            }
            "kill-follower" => {
                let follower = self.follower().await;
                self.kill_for_a_while(follower).await;
            }
            "kill-all" => {
                self.wait_for_pending_writes().await;
                self.kill_all();
                self.sites.borrow().iter().for_each(|site| site.disk().set_sync_ms(self.plan.sync_ms));
                let time = self.some_ms(10, 2_500);
                sleep(time).await;
                self.start_all();
            }
            "kill-staggered" => {
                for node in self.living() {
                    self.kill_for_a_while(node).await;
                    let time = self.some_ms(0, 700);
                    sleep(time).await;
                }
            }
            "kill-client" => self.replace_client(),
            "slow-sync" => {
                let most = self.random.random_range(50..900);
                for site in self.sites.borrow().iter() {
                    if self.random.random_bool(0.5) {
                        site.disk().set_sync_ms((most / 3, most));
                    }
                }
            }
            unknown => unreachable!("{unknown} is not a fault"),
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        if let Some(since) = std::mem::take(&mut self.paused).into_values().min() {
            *self.last_pause.lock().expect("nothing panics while it has it") = Some(since..system::elapsed());
        }
        for (one, other) in self.links().into_iter().chain(self.watched()) {
            self.order(Order::Mend(one, other));
        }
        for node in std::mem::take(&mut self.lost) {
            self.kill(node);
            self.order(Order::FindData(node));
        }
        for site in self.sites.borrow().iter() {
            site.clock.stop(false);
            site.disk().set_sync_ms(self.plan.sync_ms);
        }
        for desk in &self.desks {
            desk.going.send_replace(true);
        }
        self.start_all();
    }

    /// Cuts and mends random links several times.
    async fn flicker(&mut self) {
        for _ in 0..self.random.random_range(3..9) {
            let mut links = self.some_links(50);
            let watched = self.watched();
            links.extend(watched.into_iter().filter(|_| self.random.random_bool(0.5)));
            for (one, other) in &links {
                self.order(Order::Cut(one.clone(), other.clone()));
            }
            let time = self.some_ms(20, 700);
            sleep(time).await;
            for (one, other) in links {
                self.order(Order::Mend(one, other));
            }
            let time = self.some_ms(20, 700);
            sleep(time).await;
        }
    }

    /// The leader replicates a large entry, and its followers' answers are delayed. Meanwhile the followers elect another leader, which
    /// grants a lock. Then the late answers reach the deposed leader one by one, while it serves a read.
    async fn answer_late(&mut self) {
        let leader = self.leader().await;
        let lock = format!("late/{}", self.random.random::<u32>());
        let Some(leaders) = self.operator.before_two_leaders(&lock).await else { return };
        let (one, others) = (node_host(leader), self.other_nodes(leader));
        let gate =
            |from: &String, to: &String, way, hold| Order::Gate { from: from.clone(), to: to.clone(), way, hold };
        others.iter().for_each(|other| self.order(gate(&one, other, Way::Answers, true)));
        // The simulation executes the orders in its next step.
        sleep(STEP).await;
        let operator = self.operator.clone();
        let much = async {
            let _ = timeout(TWO_LEADERS, operator.send_much(&leaders)).await;
        };
        let meanwhile = async {
            let time = self.some_ms(25, 60);
            sleep(time).await;
            for other in &others {
                self.order(gate(&one, other, Way::Requests, true));
                self.order(gate(other, &one, Way::Requests, true));
            }
            let by = Instant::now() + TWO_LEADERS;
            let successor = loop {
                let nodes = self.members.iter().copied().filter(|node| *node != leader);
                let asked = nodes.map(async |node| operator.leads(node).await.then_some(node));
                match join_all(asked).await.into_iter().flatten().next() {
                    None if Instant::now() < by => sleep(STEP).await,
                    successor => break successor,
                }
            };
            if let Some(successor) = successor {
                operator.acquire_at(&leaders, successor).await;
            }
            let mut late = others.clone();
            late.shuffle(&mut self.random);
            let deliver = async {
                // Until the read has reached the leader.
                sleep(self.plan.latency.1 + STEP).await;
                for other in &late {
                    let time = self.some_ms(2, 12);
                    sleep(time).await;
                    self.order(gate(&one, other, Way::Answers, false));
                }
                let time = self.some_ms(10, 40);
                sleep(time).await;
                for other in &late {
                    self.order(gate(&one, other, Way::Requests, false));
                    self.order(gate(other, &one, Way::Requests, false));
                }
            };
            tokio::join!(operator.read_at(&leaders, leader), deliver);
        };
        tokio::join!(much, meanwhile);
        operator.after_two_leaders(leaders).await;
    }

    /// Some nodes are down for a while, then one of the running nodes loses its data. The other running nodes are killed: the restarted
    /// nodes form a majority with the empty node, if they accept it under its old identity.
    async fn lose_data(&mut self) {
        let leaves = self.changes.current.as_ref().and_then(|change| change.old);
        let is_lasting = |node: &u64| !self.dead.contains(node) && Some(*node) != leaves;
        let mut nodes: Vec<u64> = self.members.iter().copied().filter(is_lasting).collect();
        if nodes.len() < 2 {
            return;
        }
        nodes.shuffle(&mut self.random);
        let going_on = nodes.split_off(nodes.len() / 2);
        nodes.iter().for_each(|node| self.kill(*node));
        let time = self.some_ms(1_500, 3_000);
        sleep(time).await;
        going_on.iter().for_each(|node| self.kill(*node));
        let victim = going_on[0];
        self.order(Order::LoseData(victim));
        self.lost.push(victim);
        nodes.iter().chain([&victim]).for_each(|node| self.start(*node));
        let time = self.some_ms(2_000, 4_000);
        sleep(time).await;
    }

    /// Pauses a node, as seen by the others: its messages in both directions are held, and its clock stands still. Its actions meanwhile
    /// become visible when it resumes.
    fn pause_node(&mut self, node: u64) {
        self.paused.insert(node, system::elapsed());
        self.around(node, Order::Hold);
        self.order(Order::Hold(node_host(node), DIRECTOR.to_owned()));
        self.site(node).clock.stop(true);
    }

    /// In half of all cases, makes the disks busy for a while, so that there are unsynced writes to lose.
    async fn wait_for_pending_writes(&mut self) {
        if self.random.random_bool(0.5) {
            self.sites.borrow().iter().for_each(|site| site.disk().set_sync_ms(BUSY_SYNC_MS));
            let time = self.some_ms(20, BUSY_SYNC_MS.0);
            sleep(time).await;
        }
    }

    async fn kill_for_a_while(&mut self, node: u64) {
        self.kill(node);
        let time = self.some_ms(10, 2_500);
        sleep(time).await;
        self.start(node);
    }

    pub(crate) fn kill_all(&mut self) {
        for node in self.living() {
            self.kill(node);
        }
    }

    pub(crate) fn kill(&mut self, node: u64) {
        if !self.dead.contains(&node) && self.down.insert(node) {
            self.recorder.fact(Fact::Killed { node });
            // A machine that lost power is silent; after the kill of a process, its system resets the connections.
            if self.random.random_bool(0.5) {
                self.around(node, Order::Cut);
            }
            self.order(Order::Crash(node_host(node)));
        }
    }

    fn start(&mut self, node: u64) {
        if !self.dead.contains(&node) && self.down.remove(&node) {
            self.recorder.fact(Fact::Started { node });
            self.order(Order::Start(node_host(node)));
            self.around(node, Order::Mend);
        }
    }

    pub(crate) fn start_all(&mut self) {
        // Removed nodes too: they must find out that they were.
        for node in self.down.clone() {
            self.start(node);
        }
    }

    pub(crate) fn order(&self, order: Order) {
        // Links of a paused node stay held, whatever other faults end: its clock will jump over this time, and its actions during the pause
        // must not be seen before that.
        let wakes = matches!(&order, Order::Mend(one, other) if self.is_paused(one) || self.is_paused(other));
        if !wakes {
            self.orders.borrow_mut().push(order);
        }
    }

    fn is_paused(&self, host: &str) -> bool {
        self.paused.keys().any(|node| node_host(*node) == host)
    }

    pub(crate) fn between(&self, ones: &[String], others: &[String], order: impl Fn(String, String) -> Order) {
        for one in ones {
            for other in others.iter().filter(|other| *other != one) {
                self.order(order(one.clone(), other.clone()));
            }
        }
    }

    /// Gives an order for all links of a node.
    fn around(&self, node: u64, order: impl Fn(String, String) -> Order) {
        let others: Vec<_> = self.other_nodes(node).into_iter().chain(self.clients()).collect();
        self.between(&[node_host(node)], &others, order);
    }

    pub(crate) fn nodes(&self) -> Vec<String> {
        (1..=self.sites.borrow().len() as u64).map(node_host).collect()
    }

    fn other_nodes(&self, node: u64) -> Vec<String> {
        (1..=self.sites.borrow().len() as u64).filter(|other| *other != node).map(node_host).collect()
    }

    pub(crate) fn clients(&self) -> Vec<String> {
        let others = [KeyspaceClientProcess::HOST, RequestsClientProcess::HOST, GreedyClientProcess::HOST];
        let others = others.into_iter().chain(ContendedProtocol::ALL.map(ContendedProtocol::name));
        self.desks.iter().map(|desk| desk.host()).chain(others.map(str::to_owned)).collect()
    }

    /// The links of the director, which observes, and whose sessions outlast the faults: only a few faults affect them.
    fn watched(&self) -> Vec<(String, String)> {
        self.nodes().into_iter().map(|node| (node, DIRECTOR.to_owned())).collect()
    }

    /// All links except those of the director.
    fn links(&self) -> Vec<(String, String)> {
        let nodes = self.nodes();
        let mut links = Vec::new();
        for (place, one) in nodes.iter().enumerate() {
            let others = nodes.iter().skip(place + 1).cloned().chain(self.clients());
            links.extend(others.map(|other| (one.clone(), other)));
        }
        links
    }

    /// Draws links, each with a probability of `of_hundred` percent.
    fn some_links(&mut self, of_hundred: u32) -> Vec<(String, String)> {
        let mut links = self.links();
        links.retain(|_| self.random.random_range(0..100) < of_hundred);
        links
    }

    fn halves(&mut self) -> (Vec<String>, Vec<String>) {
        let mut nodes: Vec<_> = self.living().into_iter().map(node_host).collect();
        nodes.shuffle(&mut self.random);
        let other = nodes.split_off(nodes.len().div_ceil(2));
        (nodes, other)
    }

    /// The leader's id; a random node's if no leader is known.
    pub(crate) async fn leader(&mut self) -> u64 {
        let leader = self.observer.leader_by(Instant::now() + Duration::from_secs(2)).await;
        let living = self.living();
        let leader = leader.filter(|leader| living.contains(leader));
        leader.unwrap_or_else(|| *living.choose(&mut self.random).expect("some member lives"))
    }

    async fn follower(&mut self) -> u64 {
        let leader = self.leader().await;
        let others: Vec<u64> = self.living().into_iter().filter(|node| *node != leader).collect();
        others.choose(&mut self.random).copied().unwrap_or(leader)
    }

    async fn some_node(&mut self) -> u64 {
        if self.random.random_bool(0.5) {
            self.leader().await
        } else {
            *self.living().choose(&mut self.random).expect("some member lives")
        }
    }

    /// True with this probability in percent.
    pub(crate) fn is_likely(&mut self, of_hundred: u32) -> bool {
        self.random.random_range(0..100) < of_hundred
    }

    pub(crate) fn some_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(least..most))
    }
}
