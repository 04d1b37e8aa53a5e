//! Who breaks a simulated cluster, and what can be done to it.
//!
//! A fault is a series of *orders* to the simulation, which carries them out between two of its steps. Ending a fault is one order,
//! whatever it was: the network is whole, all that stopped goes on, all that was killed is started.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc, sync::Arc, time::Duration};

use futures::future::join_all;
use lockkeeper::chaos::{
    history::Fact,
    record::Recorder,
    run::{Observer, Operator},
};
use rand::{
    Rng as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clients::Desk,
    director::DIRECTOR,
    network::{Way, node_host},
    node::Site,
    plan::Plan,
};

/// What the simulation is to do between two steps.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// A process ends, as by `kill -9`; its disk forgets what was not synced.
    Crash(String),
    /// It runs again.
    Start(String),
    /// A node that does not run loses its data.
    LoseData(u64),
    /// They are found again, if they were lost.
    FindData(u64),
    /// On the connections that one host opened to another, one direction waits, or passes.
    Gate { from: String, to: String, way: Way, hold: bool },
    /// Nothing passes between two hosts.
    Cut(String, String),
    /// Nothing passes from the first to the second.
    CutOneWay(String, String),
    /// What is sent between them waits.
    Hold(String, String),
    /// Between two hosts, a message takes up to so long.
    Latency(String, String, Duration),
    /// One message of so many between two hosts is lost, and with it the connection.
    Loss(String, String, f64),
    /// The network between two hosts is as it was in the beginning; what waited is delivered.
    Mend(String, String),
}

/// Faults, by their names in the history.
const FAULTS: [&str; 21] = [
    "partition-halves",
    "partition-one-way",
    "partition-bridge",
    "partition-leader",
    "partition-all",
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

/// They touch no link, and go along with any other.
const COMPANIONS: [&str; 5] = ["kill-leader", "kill-follower", "kill-client", "slow-sync", "kill-all"];

/// How long syncs take on a busy disk, milliseconds: longer than it takes until the power fails.
const BUSY_SYNC_MS: (u64, u64) = (300, 900);

/// Between two looks, and for an order to be carried out.
const STEP: Duration = Duration::from_millis(5);
/// Longer than those who hear of no leader need to elect one.
const TWO_LEADERS: Duration = Duration::from_millis(1_500);

/// Faults that begin and are still to come.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) desks: Vec<Arc<Desk>>,
    pub(crate) orders: Rc<RefCell<Vec<Order>>>,
    pub(crate) observer: Observer,
    pub(crate) operator: Operator,
    pub(crate) recorder: Recorder,
    pub(crate) random: StdRng,
    /// Nodes that do not run.
    down: BTreeSet<u64>,
    /// Nodes that stand still.
    paused: BTreeSet<u64>,
    /// Nodes that lost their data.
    lost: Vec<u64>,
    /// Faults to come, so that all have their turn.
    deck: Vec<&'static str>,
}

impl World {
    /// With everything whole.
    pub(crate) fn new(
        plan: Plan,
        sites: Vec<Arc<Site>>,
        desks: Vec<Arc<Desk>>,
        orders: Rc<RefCell<Vec<Order>>>,
        observer: Observer,
        operator: Operator,
        recorder: Recorder,
    ) -> Self {
        let random = StdRng::seed_from_u64(plan.seed ^ 0x5eed);
        let (down, paused, lost, deck) = Default::default();
        Self { plan, sites, desks, orders, observer, operator, recorder, random, down, paused, lost, deck }
    }

    /// What is done next: one fault, or two that go together.
    pub(crate) fn choose(&mut self) -> Vec<&'static str> {
        if self.deck.is_empty() {
            self.deck = FAULTS.to_vec();
            self.deck.shuffle(&mut self.random);
        }
        let mut chosen: Vec<_> = self.deck.pop().into_iter().collect();
        if self.random.random_range(0..100) < 35 {
            chosen.extend(COMPANIONS.choose(&mut self.random));
        }
        chosen.dedup();
        chosen
    }

    /// Breaks something, for a while.
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
                match self.random.random_bool(0.5) {
                    true => self.between(&[node_host(node)], &others, Order::CutOneWay),
                    false => self.between(&others, &[node_host(node)], Order::CutOneWay),
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
            "partition-all" => {
                let nodes = self.nodes();
                self.between(&nodes, &nodes, Order::Cut);
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
                self.sites.iter().for_each(|site| site.disk().set_sync_ms(self.plan.sync_ms));
                let time = self.some_ms(10, 2_500);
                sleep(time).await;
                self.start_all();
            }
            "kill-staggered" => {
                for node in 1..=self.plan.nodes {
                    self.kill_for_a_while(node).await;
                    let time = self.some_ms(0, 700);
                    sleep(time).await;
                }
            }
            "kill-client" => self.replace_client(),
            "slow-sync" => {
                let most = self.random.random_range(50..900);
                for site in &self.sites {
                    if self.random.random_bool(0.5) {
                        site.disk().set_sync_ms((most / 3, most));
                    }
                }
            }
            unknown => unreachable!("{unknown} is none of the faults"),
        }
    }

    /// Ends all of it.
    pub(crate) fn heal(&mut self) {
        self.paused.clear();
        for (one, other) in self.links().into_iter().chain(self.watched()) {
            self.order(Order::Mend(one, other));
        }
        for node in std::mem::take(&mut self.lost) {
            self.kill(node);
            self.order(Order::FindData(node));
        }
        for site in &self.sites {
            site.clock.stop(false);
            site.disk().set_sync_ms(self.plan.sync_ms);
        }
        for desk in &self.desks {
            desk.going.send_replace(true);
        }
        self.start_all();
    }

    /// Connections break, and come back, again and again.
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

    /// The leader sends something large; its followers answer, and the answers are late. Meanwhile they elect another leader, which does
    /// something. Then the answers come, one after the other, to one who is asked what there is.
    async fn answer_late(&mut self) {
        let leader = self.leader().await;
        let lock = format!("late/{}", self.random.random::<u32>());
        let Some(leaders) = self.operator.before_two_leaders(&lock).await else { return };
        let (one, others) = (node_host(leader), self.other_nodes(leader));
        let gate =
            |from: &String, to: &String, way, hold| Order::Gate { from: from.clone(), to: to.clone(), way, hold };
        others.iter().for_each(|other| self.order(gate(&one, other, Way::Answers, true)));
        // They may not even be asked to hold by the next step of the simulation.
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
                let nodes = (1..=self.plan.nodes).filter(|node| *node != leader);
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
                // Until the leader has been asked.
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

    /// Some nodes are down for a while, and one of those that go on without them then loses its data. The others of these stay away:
    /// those who come back make a majority with it, if it is taken for who it was.
    async fn lose_data(&mut self) {
        let mut nodes: Vec<u64> = (1..=self.plan.nodes).collect();
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

    /// As seen by all others, it stops: nothing comes from it, nothing reaches it, and its clock stands still. What it does meanwhile
    /// shows when it goes on.
    fn pause_node(&mut self, node: u64) {
        self.paused.insert(node);
        self.around(node, Order::Hold);
        self.order(Order::Hold(node_host(node), DIRECTOR.to_owned()));
        self.sites[node as usize - 1].clock.stop(true);
    }

    /// In half of all cases, disks are busy for a while, so that there is something to lose.
    async fn wait_for_pending_writes(&mut self) {
        if self.random.random_bool(0.5) {
            self.sites.iter().for_each(|site| site.disk().set_sync_ms(BUSY_SYNC_MS));
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
        for node in 1..=self.plan.nodes {
            self.kill(node);
        }
    }

    fn kill(&mut self, node: u64) {
        if self.down.insert(node) {
            self.recorder.fact(Fact::Killed { node });
            // Of a machine that lost its power nobody hears; of a process that was killed, its system says that it is gone.
            if self.random.random_bool(0.5) {
                self.around(node, Order::Cut);
            }
            self.order(Order::Crash(node_host(node)));
        }
    }

    fn start(&mut self, node: u64) {
        if self.down.remove(&node) {
            self.recorder.fact(Fact::Started { node });
            self.order(Order::Start(node_host(node)));
            self.around(node, Order::Mend);
        }
    }

    fn start_all(&mut self) {
        for node in 1..=self.plan.nodes {
            self.start(node);
        }
    }

    pub(crate) fn order(&self, order: Order) {
        // Whatever else comes and goes, of a node that stands still nobody hears: its clock will jump over this time, and what it does in
        // it must not be seen before that.
        let wakes = matches!(&order, Order::Mend(one, other) if self.is_paused(one) || self.is_paused(other));
        if !wakes {
            self.orders.borrow_mut().push(order);
        }
    }

    fn is_paused(&self, host: &str) -> bool {
        self.paused.iter().any(|node| node_host(*node) == host)
    }

    pub(crate) fn between(&self, ones: &[String], others: &[String], order: impl Fn(String, String) -> Order) {
        for one in ones {
            for other in others.iter().filter(|other| *other != one) {
                self.order(order(one.clone(), other.clone()));
            }
        }
    }

    /// To all links of a node.
    fn around(&self, node: u64, order: impl Fn(String, String) -> Order) {
        let others: Vec<_> = self.other_nodes(node).into_iter().chain(self.clients()).collect();
        self.between(&[node_host(node)], &others, order);
    }

    pub(crate) fn nodes(&self) -> Vec<String> {
        (1..=self.plan.nodes).map(node_host).collect()
    }

    fn other_nodes(&self, node: u64) -> Vec<String> {
        (1..=self.plan.nodes).filter(|other| *other != node).map(node_host).collect()
    }

    fn clients(&self) -> Vec<String> {
        self.desks.iter().map(|desk| desk.host()).collect()
    }

    /// Those of the director, who watches, and whose sessions outlast the faults: only now and then something happens to them.
    fn watched(&self) -> Vec<(String, String)> {
        self.nodes().into_iter().map(|node| (node, DIRECTOR.to_owned())).collect()
    }

    /// All others.
    fn links(&self) -> Vec<(String, String)> {
        let nodes = self.nodes();
        let mut links = Vec::new();
        for (place, one) in nodes.iter().enumerate() {
            let others = nodes.iter().skip(place + 1).cloned().chain(self.clients());
            links.extend(others.map(|other| (one.clone(), other)));
        }
        links
    }

    /// Each with so many chances of a hundred.
    fn some_links(&mut self, of_hundred: u32) -> Vec<(String, String)> {
        let mut links = self.links();
        links.retain(|_| self.random.random_range(0..100) < of_hundred);
        links
    }

    fn halves(&mut self) -> (Vec<String>, Vec<String>) {
        let mut nodes = self.nodes();
        nodes.shuffle(&mut self.random);
        let other = nodes.split_off(nodes.len().div_ceil(2));
        (nodes, other)
    }

    /// Who leads; anybody, where nobody seems to.
    async fn leader(&mut self) -> u64 {
        let leader = self.observer.leader_by(Instant::now() + Duration::from_secs(2)).await;
        leader.unwrap_or_else(|| self.random.random_range(1..=self.plan.nodes))
    }

    async fn follower(&mut self) -> u64 {
        let leader = self.leader().await;
        let step = self.random.random_range(1..self.plan.nodes);
        (leader - 1 + step) % self.plan.nodes + 1
    }

    async fn some_node(&mut self) -> u64 {
        match self.random.random_bool(0.5) {
            true => self.leader().await,
            false => self.random.random_range(1..=self.plan.nodes),
        }
    }

    pub(crate) fn some_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(least..most))
    }
}
