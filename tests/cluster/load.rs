//! Clients that acquire and release without pause, and record the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    client::{Client, Error, Guard, SessionOptions},
    machine::Token,
};
use tokio::task::JoinSet;

use crate::support::until;

/// Contended locks.
const LOCKS: usize = 4;
/// Longer than any failover, so that workers keep their sessions. A lost session would still break no promise.
const TTL: Duration = Duration::from_secs(10);

/// A protected resource: it checks tokens and mutual exclusion.
#[derive(Default)]
struct Resource {
    highest: AtomicU64,
    occupied: AtomicBool,
}

impl Resource {
    fn enter(&self, held: &Guard) {
        let token = held.token().0;
        if held.remaining() == Duration::ZERO {
            return;
        }
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "token {token} enters, and another is inside");
        let highest = self.highest.swap(token, Ordering::SeqCst);
        assert!(token > highest, "token {token} comes after {highest}");
        self.occupied.store(false, Ordering::SeqCst);
    }
}

/// The answers of the cluster.
#[derive(Default)]
struct Ledger {
    resources: [Resource; LOCKS],
    tokens: Mutex<BTreeSet<u64>>,
    released: Mutex<BTreeSet<u64>>,
    kept: Mutex<BTreeMap<String, u64>>,
    pairs: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    fn granted(&self, token: u64) {
        assert!(self.tokens.lock().expect("no worker panicked").insert(token), "token {token} was given out twice");
    }
}

/// The running workers.
pub(crate) struct Load {
    ledger: Arc<Ledger>,
    client: Client,
    workers: JoinSet<()>,
}

impl Load {
    /// Starts this number of workers.
    pub(crate) fn start(client: &Client, workers: usize) -> Self {
        let ledger = Arc::new(Ledger::default());
        let mut tasks = JoinSet::new();
        for worker in 0..workers {
            tasks.spawn(work(client.clone(), Arc::clone(&ledger), worker));
        }
        tasks.spawn(keep(client.clone(), Arc::clone(&ledger)));
        Self { ledger, client: client.clone(), workers: tasks }
    }

    /// Waits until the workers have made this number of further pairs of acquire and release. Panics if a promise was broken.
    pub(crate) async fn progress(&mut self, pairs: u64) {
        let target = self.ledger.pairs.load(Ordering::SeqCst) + pairs;
        until("progress of the workers", async || (self.ledger.pairs.load(Ordering::SeqCst) >= target).then_some(()))
            .await;
        while let Some(ended) = self.workers.try_join_next() {
            ended.expect("no worker ends before it is told to");
        }
    }

    /// Stops the workers, and compares their answers with the state of the cluster.
    pub(crate) async fn finish(mut self) {
        self.ledger.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("no worker saw a promise broken");
        }
        let released = self.ledger.released.lock().expect("the workers are gone").clone();
        let locks = self.client.list("", "").await.expect("the cluster answers").locks;
        for holder in locks.iter().flat_map(|lock| &lock.holders) {
            assert!(!released.contains(&holder.token.0), "token {} was released, and is held", holder.token.0);
        }
        let kept = self.ledger.kept.lock().expect("the workers are gone").clone();
        for (name, token) in &kept {
            let check = self.client.check(name, Token(*token)).await.expect("the cluster answers");
            assert!(check.held, "{name} was granted with token {token} and never released, and is not held");
        }
        let tokens = self.ledger.tokens.lock().expect("the workers are gone").len();
        assert!(!released.is_empty() && !kept.is_empty(), "too few operations to show anything");
        println!("{tokens} tokens, {} acknowledged releases, {} grants kept throughout", released.len(), kept.len());
    }
}

async fn work(client: Client, ledger: Arc<Ledger>, worker: usize) {
    let options = || SessionOptions { ttl: TTL, label: format!("worker {worker}") };
    let mut session = client.open(options()).await.expect("a session");
    for turn in worker.. {
        if ledger.stop.load(Ordering::SeqCst) {
            return;
        }
        let lock = turn % LOCKS;
        let held = match session.acquire(&format!("fought/{lock}")).await {
            Ok(held) => held,
            Err(Error::Lost(_)) => {
                session = client.open(options()).await.expect("a session");
                continue;
            }
            Err(error) => panic!("worker {worker} asked for a lock: {error}"),
        };
        let token = held.token().0;
        ledger.granted(token);
        ledger.resources[lock].enter(&held);
        match held.release().await {
            Ok(()) => {
                ledger.released.lock().expect("no worker panicked").insert(token);
                ledger.pairs.fetch_add(1, Ordering::SeqCst);
            }
            Err(Error::Lost(_)) => session = client.open(options()).await.expect("a session"),
            Err(error) => panic!("worker {worker} released token {token}: {error}"),
        }
    }
}

/// Acquires locks and never releases them: they must be held at the end.
async fn keep(client: Client, ledger: Arc<Ledger>) {
    let session = crate::support::long_session(&client).await;
    let mut pairs = 0;
    for number in 0.. {
        let name = format!("kept/{number}");
        let held = session.acquire(&name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        ledger.granted(held.token().0);
        ledger.kept.lock().expect("no worker panicked").insert(name, held.token().0);
        std::mem::forget(held);
        // One kept lock for ten pairs of the workers, so that some are acquired before each kill and some after it.
        pairs += 10;
        while ledger.pairs.load(Ordering::SeqCst) < pairs {
            if ledger.stop.load(Ordering::SeqCst) {
                // The session stays open: its grants are checked at the end.
                std::mem::forget(session);
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
