//! The workloads of `lockkeeper bench`, run on a [`Peer`].

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use lockkeeper::bench::{SeriesCondition, Figure, Figures, Latencies, Series, Timing, Worker, measure, resident_bytes};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::peer::{Hand, Lease, Peer, Servers, Watched};

/// Number of locks to read.
const READ: usize = 1_000;
/// Timing of the client in `lockkeeper bench failover`.
const ATTEMPT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(5);
const LIMIT: Duration = Duration::from_secs(60);
/// Renewals in flight: their number without a rate, their maximum with one.
const IN_FLIGHT: usize = 64;
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) struct Bench {
    pub(crate) peer: Box<dyn Peer>,
    pub(crate) servers: Servers,
    pub(crate) workers: Vec<usize>,
    pub(crate) timing: Timing,
}

/// Waits until all nodes are ready.
pub(crate) async fn ready(peer: &dyn Peer, servers: &Servers) -> Result<()> {
    for node in 0..servers.endpoints.len() {
        wait_for(peer, node).await?;
    }
    peer.leader().await?;
    Ok(())
}

async fn wait_for(peer: &dyn Peer, node: usize) -> Result<Duration> {
    let began = Instant::now();
    while !peer.is_ready(node).await {
        if began.elapsed() > LIMIT {
            bail!("node {} is not ready after {LIMIT:?}", node + 1);
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(began.elapsed())
}

/// The operation that a worker repeats.
enum Task {
    Alone(Arc<Vec<String>>),
    Together(String),
    Read(Vec<String>),
}

struct HandWorker {
    hand: Box<dyn Hand>,
    task: Task,
}

impl Worker for HandWorker {
    type Error = anyhow::Error;

    async fn once(&mut self) -> Result<Duration> {
        let hand = &mut self.hand;
        match &self.task {
            Task::Alone(names) => {
                let name = &names[rand::random_range(0..names.len())];
                let began = Instant::now();
                let grant = hand.acquire(name).await?;
                hand.release(name, grant).await?;
                Ok(began.elapsed())
            }
            Task::Together(name) => {
                let began = Instant::now();
                let grant = hand.acquire(name).await?;
                let waited = began.elapsed();
                hand.release(name, grant).await?;
                Ok(waited)
            }
            Task::Read(names) => {
                let name = &names[rand::random_range(0..names.len())];
                let began = Instant::now();
                if !hand.is_held(name).await? {
                    bail!("{name} is not held");
                }
                Ok(began.elapsed())
            }
        }
    }
}

impl Bench {
    async fn hands(&self, count: usize) -> Result<Vec<Box<dyn Hand>>> {
        try_join_all((0..count).map(|worker| self.peer.hand(worker))).await
    }

    async fn measure_hands(&self, task: impl Fn(usize, usize) -> Task) -> Result<Vec<Series>> {
        let mut series = Vec::new();
        for &count in &self.workers {
            let hands = self.hands(count).await?.into_iter().enumerate();
            let workers = hands.map(|(worker, hand)| HandWorker { hand, task: task(worker, count) }).collect();
            let (pids, stop) = (self.servers.pids()?, CancellationToken::new());
            series.push(measure(workers, &self.timing, Some(&pids), &stop).await?);
        }
        Ok(series)
    }

    /// `watches`: of other keys, which are open meanwhile.
    pub(crate) async fn uncontended(&self, watches: usize) -> Result<Vec<Series>> {
        self.peer.watch_others(watches).await?;
        // Each worker's random names, generated in advance.
        let names = |worker, _| {
            let name = |_| self.peer.own_name(worker, rand::random());
            Task::Alone(Arc::new((0..4_096).map(name).collect()))
        };
        let mut all = self.measure_hands(names).await?;
        if watches > 0 {
            all.iter_mut().for_each(|series| series.conditions.push(("watches", watches.into())));
        }
        Ok(all)
    }

    pub(crate) async fn contended(&self) -> Result<Vec<Series>> {
        self.measure_hands(|_, _| Task::Together("/one".to_owned())).await
    }

    pub(crate) async fn read(&self) -> Result<Vec<Series>> {
        let names: Vec<String> = (0..READ).map(|number| format!("/read/{number}")).collect();
        let mut holder = self.peer.hand(0).await?;
        for name in &names {
            if !holder.is_held(name).await? {
                holder.acquire(name).await?;
            }
        }
        let measured = self.measure_hands(|_, _| Task::Read(names.clone())).await;
        drop(holder);
        measured
    }

    pub(crate) async fn keep_alive(
        &self,
        count: usize,
        ttl: Duration,
        rate: Option<f64>,
        spread: bool,
    ) -> Result<Vec<Series>> {
        let leases = self.peer.leases(count, ttl, spread).await?;
        let mut shares: Vec<VecDeque<_>> = (0..IN_FLIGHT.min(count)).map(|_| VecDeque::new()).collect();
        let workers = shares.len();
        leases.into_iter().enumerate().for_each(|(place, lease)| shares[place % workers].push_back(lease));
        let (began, period) = (tokio::time::Instant::now(), rate.map(|rate| workers as f64 / rate));
        let renewer = |(place, leases): (usize, VecDeque<Box<dyn Lease>>)| {
            let first = began + Duration::from_secs_f64(place as f64 / rate.unwrap_or(f64::INFINITY));
            Renewer { leases, next: first, period: period.map(Duration::from_secs_f64) }
        };
        let renewers = shares.into_iter().enumerate().map(renewer).collect();
        let (pids, stop) = (self.servers.pids()?, CancellationToken::new());
        let mut series = measure(renewers, &self.timing, Some(&pids), &stop).await?;
        series.conditions = vec![
            ("sessions", count.into()),
            ("rate", SeriesCondition::Word(rate.map_or("max".to_owned(), |rate| rate.to_string()))),
            ("at", SeriesCondition::Word(if spread { "all nodes" } else { "the leader" }.to_owned())),
        ];
        Ok(vec![series])
    }

    /// One writer. An operation is a change that all watchers have been told of.
    pub(crate) async fn watch(&self, watchers: usize) -> Result<Vec<Series>> {
        let writer = Writer(self.peer.watched("/watched", watchers).await?);
        let (pids, stop) = (self.servers.pids()?, CancellationToken::new());
        let mut series = measure(vec![writer], &self.timing, Some(&pids), &stop).await?;
        series.conditions = vec![("watchers", watchers.into())];
        Ok(vec![series])
    }

    pub(crate) async fn failover(&self) -> Result<Vec<Series>> {
        let mut client = Client { peer: &*self.peer, hands: Vec::new(), at: 0 };
        client.hands.resize_with(self.servers.endpoints.len(), || None);
        let (mut latencies, mut repetitions) = (Latencies::default(), Vec::new());
        for _ in 0..self.timing.repetitions {
            let began = Instant::now();
            while began.elapsed() < self.timing.warm_up {
                // The first attempts may fail: it tries the nodes in turn.
                let _ = client.pair().await;
            }
            let leader = self.peer.leader().await?;
            while client.pair().await.is_err() {
                sleep(PAUSE).await;
            }
            let killed = Instant::now();
            self.servers.kill(leader)?;
            while client.pair().await.is_err() {
                if killed.elapsed() > LIMIT {
                    bail!("no lock was granted within {LIMIT:?} after the leader was killed");
                }
                sleep(PAUSE).await;
            }
            latencies.record(killed.elapsed());
            let mut figures = Figures::default();
            figures.put(Figure::Failover, killed.elapsed().as_secs_f64() * 1e3);
            repetitions.push(figures);
            sleep(Duration::from_secs(1)).await;
            self.servers.start(leader)?;
            wait_for(&*self.peer, leader).await?;
            sleep(SETTLE).await;
        }
        let nodes = self.servers.endpoints.len();
        Ok(vec![Series { conditions: vec![("nodes", nodes.into())], repetitions, latencies }])
    }

    pub(crate) async fn held(&self, locks: usize) -> Result<Vec<Series>> {
        let workers = self.workers[0];
        let hands = self.hands(workers).await?;
        let before = self.memory()?;
        let began = Instant::now();
        let fill = |(worker, mut hand): (usize, Box<dyn Hand>)| async move {
            for number in (worker..locks).step_by(workers) {
                hand.acquire(&format!("/held/{number}")).await?;
            }
            Ok::<_, anyhow::Error>(hand)
        };
        let hands = try_join_all(hands.into_iter().enumerate().map(fill)).await?;
        let filled = began.elapsed();
        sleep(SETTLE).await;
        let mut figures = Figures::default();
        figures.put(Figure::Held, locks as f64);
        figures.put(Figure::Fill, filled.as_secs_f64());
        figures.put(Figure::PerSecond, locks as f64 / filled.as_secs_f64());
        figures.put(Figure::MemoryPerLock, (self.memory()? - before) / locks as f64);
        if self.servers.can_start() {
            figures.put(Figure::Restart, self.restart().await?.as_secs_f64() * 1e3);
        }
        drop(hands);
        let conditions = vec![("locks", locks.into()), ("workers", workers.into())];
        Ok(vec![Series { conditions, repetitions: vec![figures], latencies: Latencies::default() }])
    }

    /// Resident bytes; mean of the nodes.
    fn memory(&self) -> Result<f64> {
        let pids = self.servers.pids()?;
        let bytes: Option<u64> = pids.iter().map(|&pid| resident_bytes(pid)).sum();
        Ok(bytes.context("a server process has ended")? as f64 / pids.len() as f64)
    }

    /// Restart time of a follower, or of the only node, until ready.
    async fn restart(&self) -> Result<Duration> {
        let node = (self.peer.leader().await? + 1) % self.servers.endpoints.len();
        self.servers.kill(node)?;
        sleep(Duration::from_secs(1)).await;
        self.servers.start(node)?;
        wait_for(&*self.peer, node).await
    }
}

struct Writer(Box<dyn Watched>);

impl Worker for Writer {
    type Error = anyhow::Error;

    async fn once(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.0.change().await?;
        Ok(began.elapsed())
    }
}

/// Renews its leases in turn, one at a time.
struct Renewer {
    leases: VecDeque<Box<dyn Lease>>,
    next: tokio::time::Instant,
    /// The interval between two renewals.
    period: Option<Duration>,
}

impl Worker for Renewer {
    type Error = anyhow::Error;

    async fn once(&mut self) -> Result<Duration> {
        if let Some(period) = self.period {
            sleep_until(self.next).await;
            self.next += period;
        }
        let lease = self.leases.front_mut().context("a worker has no lease")?;
        let began = Instant::now();
        let renewed = lease.renew().await;
        self.leases.rotate_left(1);
        renewed.map(|()| began.elapsed())
    }
}

/// Tries the nodes in turn.
struct Client<'p> {
    peer: &'p dyn Peer,
    hands: Vec<Option<Box<dyn Hand>>>,
    at: usize,
}

impl Client<'_> {
    async fn pair(&mut self) -> Result<()> {
        let (peer, at) = (self.peer, self.at);
        let slot = &mut self.hands[at];
        let attempt = async {
            let hand = match slot {
                Some(hand) => hand,
                None => slot.insert(peer.hand_at(at).await?),
            };
            let name = peer.own_name(0, rand::random());
            let grant = hand.acquire(&name).await?;
            hand.release(&name, grant).await
        };
        match timeout(ATTEMPT, attempt).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => self.pass_over(error),
            Err(late) => self.pass_over(late.into()),
        }
    }

    fn pass_over(&mut self, error: anyhow::Error) -> Result<()> {
        self.hands[self.at] = None;
        self.at = (self.at + 1) % self.hands.len();
        Err(error)
    }
}
