//! The schedule of a run: cycles of calm, fault and healing; then the clients finish, and all nodes restart from their snapshots. At
//! last the cluster is lost, and restored from a backup; and in some runs a majority of its nodes is lost, and the rest recovered.
//!
//! It is the schedule of a run against real processes (`lockkeeper::chaos::run`), with the same operator, the same sentinels through each
//! fault, and the same churn of short-lived locks.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    chaos::{
        history::Fact,
        record::Recorder,
        run::{Observer, RetriedRequest, RunOperator, Sentinel},
        workload::resource::RegisterPlace,
    },
    client::{self, Client},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clients::{self, Clients, Desk},
    contenders::Contention,
    faults::{LastPause, Order, Sites, World},
    keyspace::judge::Judge,
    network,
    plan::Plan,
    restore::Survivors,
    signals::SignalsJudge,
};

/// The name of its host.
pub(crate) const DIRECTOR: &str = "director";
/// Whom the losses of the cluster surprise.
const HOLDER: &str = "holder";
/// After each fault, fresh acquires are answered and the queues are served within this time.
pub(crate) const LIVENESS_BOUND: Duration = Duration::from_secs(20);
/// The pause before each fault.
const CALM: Duration = Duration::from_millis(2_000);
/// Probability that the greedy client takes during a fault, percent.
const GREED: u32 = 80;
/// Deadline for clients to finish.
const FINISH: Duration = Duration::from_secs(30);
/// Deadline for those that wait for items and messages, which look at everything for the last time, and for the last watches.
const CONCLUDED: Duration = Duration::from_secs(90);
/// Time to find all nodes at one index: while clients work, and at the end, with no load.
const COMPARE: Duration = Duration::from_millis(500);
const COMPARE_AT_END: Duration = Duration::from_secs(10);
/// The last fault of each run, and the deadline for the snapshots before it.
const RESTART: &str = "restart-at-rest";
const SNAPSHOT_BOUND: Duration = Duration::from_secs(5);
const DOWN: Duration = Duration::from_millis(300);
/// By then each node has written the lines of its audit trail: its process looks four times a second.
const WRITTEN: Duration = Duration::from_secs(1);

/// Runs the schedule, on its own host.
pub(crate) struct Director {
    pub(crate) plan: Plan,
    pub(crate) sites: Sites,
    /// Changes of the membership made, by kind.
    pub(crate) changes: Rc<RefCell<BTreeMap<&'static str, u64>>>,
    pub(crate) desks: Vec<Arc<Desk>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) orders: Rc<RefCell<Vec<Order>>>,
    /// Lets the greedy client take.
    pub(crate) hungry: watch::Sender<bool>,
    /// The clients that wait.
    pub(crate) signals: Arc<SignalsJudge>,
    /// What the judge of the clients with identities has to know.
    pub(crate) last_pause: LastPause,
    /// The clients of the keyspace.
    pub(crate) keyspace: Arc<Judge>,
    /// The contenders of other protocols.
    pub(crate) contention: Arc<Contention>,
    /// Failures that are not in the history.
    pub(crate) troubles: Rc<RefCell<Vec<String>>>,
    pub(crate) nemesis: Recorder,
}

impl Director {
    pub(crate) async fn direct(self) -> turmoil::Result {
        let channels = self.nodes().map(|node| (node, clients::channel(&network::client_address(node)))).collect();
        let observer = Observer::watch(channels, self.clients.book.recorder("observer"));
        let (sites, desks, orders) = (Rc::clone(&self.sites), self.desks.clone(), Rc::clone(&self.orders));
        let operator = self.operator()?;
        let mut world =
            World::new(self.plan.clone(), sites, desks, orders, observer, operator.clone(), self.nemesis.clone());
        world.changes.made = Rc::clone(&self.changes);
        world.signals = Arc::clone(&self.signals);
        world.last_pause = Arc::clone(&self.last_pause);
        self.nodes().for_each(|node| self.nemesis.fact(Fact::Started { node }));
        self.expect(operator.probe(Instant::now() + LIVENESS_BOUND).await, "the cluster did not form");
        self.break_things(&operator, &mut world).await?;
        self.close(&operator, &mut world).await;
        Ok(())
    }

    /// The founders.
    fn nodes(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.plan.nodes
    }

    fn operator(&self) -> Result<RunOperator, client::Error> {
        Ok(self.operator_with("operator", clients::client(self.plan.nodes, !self.plan.seed)?))
    }

    /// One of this name, with this client.
    fn operator_with(&self, name: &str, client: Client) -> RunOperator {
        let nodes = self.nodes().map(|node| clients::channel(&network::client_address(node))).collect();
        let place = RegisterPlace::Here(Arc::clone(&self.clients.registers));
        RunOperator::new(client, nodes, place, self.clients.book.recorder(name))
    }

    async fn break_things(&self, operator: &RunOperator, world: &mut World) -> Result<(), client::Error> {
        let began = Instant::now();
        let changer = clients::client(self.plan.nodes, !self.plan.seed ^ 0xc4a6)?;
        let _reading = operator.read_and_revoke(self.plan.seed);
        let finish = CancellationToken::new();
        let churning = operator.churn(finish.clone());
        let mut number = 0;
        while began.elapsed() < self.plan.duration && self.troubles.borrow().is_empty() {
            number += 1;
            let sentinel = operator.set_up_sentinel(number).await;
            self.calm(operator, world).await;
            world.begin_change(&changer).await;
            let faults = world.choose();
            let late = operator.request_before(&format!("retried/{number}/late")).await;
            // Not always: what a limit refuses is not tried in a fault.
            self.hungry.send_replace(world.is_likely(GREED));
            world.inflict(&faults).await;
            self.hungry.send_replace(false);
            self.recover(operator, world, &faults, (late, sentinel)).await;
        }
        finish.cancel();
        // An error says that it had ended by itself.
        let _ = churning.await;
        Ok(())
    }

    /// A client that holds locks is killed, and its locks are granted to others.
    async fn calm(&self, operator: &RunOperator, world: &mut World) {
        let until = Instant::now() + CALM;
        let held = world.kill_a_holder().await;
        let (all, ()) = tokio::join!(operator.wait_for_all(&held), sleep_until(until));
        self.expect(all, "not all locks of a killed client were granted again");
    }

    /// Ends the faults and checks that the cluster recovers.
    async fn recover(
        &self,
        operator: &RunOperator,
        world: &mut World,
        faults: &[&str],
        (late, sentinel): (Option<RetriedRequest>, Option<Sentinel>),
    ) {
        world.heal();
        for fault in faults {
            self.nemesis.fact(Fact::Heal { name: Some((*fault).to_owned()) });
        }
        let (by, after) = (Instant::now() + LIVENESS_BOUND, faults.join(" and "));
        if let Some(late) = late {
            operator.retry(late, by).await;
        }
        if let Some(sentinel) = sentinel {
            let served = operator.check_sentinel(sentinel).await;
            self.expect(served, &format!("after {after}, not all waiters were served"));
        }
        self.expect(operator.probe(by).await, &format!("after {after}, not all locks were served in time"));
        let settled = world.settle_change(Instant::now() + LIVENESS_BOUND).await;
        self.expect(settled.is_ok(), &format!("after {after}, {}", settled.err().unwrap_or_default()));
        world.observer.compare_tables(Instant::now() + COMPARE).await;
    }

    /// Lets all clients finish, then restarts the cluster and compares the nodes.
    async fn close(&self, operator: &RunOperator, world: &mut World) {
        world.heal();
        self.nemesis.fact(Fact::Heal { name: None });
        self.clients.finish.cancel();
        let by = Instant::now() + FINISH;
        let finished = || self.clients.finished.load(Ordering::Relaxed) >= self.desks.len();
        while !finished() && Instant::now() < by {
            sleep(Duration::from_millis(20)).await;
        }
        self.expect(finished(), "not all clients finished in time");
        let concluded = timeout(CONCLUDED, self.signals.concluded()).await;
        self.expect(concluded.is_ok(), "the clients that wait did not finish in time");
        if self.plan.is_watched_for_long {
            let concluded = timeout(CONCLUDED, self.keyspace.concluded()).await;
            self.expect(concluded.is_ok(), "the clients of the keyspace did not finish in time");
        }
        let running = world.removed_have_ended(Instant::now() + LIVENESS_BOUND).await;
        self.expect(running.is_empty(), &format!("nodes {running:?} were removed and have not ended"));
        self.restart_at_rest(operator, world).await;
        operator.read_all().await;
        let is_equal = world.observer.compare_tables(Instant::now() + COMPARE_AT_END).await;
        self.expect(is_equal, "at rest, not all nodes came to the same index");
        let restored = self.lose_and_restore(world).await;
        self.expect(restored.is_ok(), &restored.err().unwrap_or_default());
        let is_equal = world.observer.compare_tables(Instant::now() + COMPARE_AT_END).await;
        self.expect(is_equal, "after the last restore, not all nodes came to the same index");
        self.await_audit_lines(world).await;
        self.nemesis.fact(Fact::End);
    }

    /// Lets the nodes write the lines that they have made, if they write audit trails.
    async fn await_audit_lines(&self, world: &World) {
        if self.plan.audit_file_bytes.is_none() {
            return;
        }
        for node in world.living() {
            world.site(node).expect_written_lines();
        }
        sleep(WRITTEN).await;
    }

    /// Loses the cluster and restores it, while somebody holds locks; then, in some runs, a majority of it.
    async fn lose_and_restore(&self, world: &mut World) -> Result<(), String> {
        let is_cut_off = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&is_cut_off);
        let connect = Arc::new(move |endpoint| network::dial_unless(endpoint, Arc::clone(&gate)));
        let client = clients::client_with(self.plan.nodes, !self.plan.seed ^ 0x401d, connect);
        let client = client.map_err(|error| error.to_string())?;
        let holder = self.operator_with(HOLDER, client);
        let survivors = Survivors { holder: &holder, is_cut_off: &is_cut_off, contention: &self.contention };

        world.lose_and_restore(&survivors).await?;
        if self.plan.loses_majority {
            world.lose_majority(&survivors).await?;
        }
        world.end_contenders();
        Ok(())
    }

    /// The clients have ended and hold nothing. All nodes take a snapshot, if `snapshot_entries` permits it, and restart from it: state
    /// that no grant refers to must survive.
    async fn restart_at_rest(&self, operator: &RunOperator, world: &mut World) {
        let index = world.observer.applied_index();
        operator.renew_until(Instant::now() + SNAPSHOT_BOUND, async || world.observer.snapshots_reach(index)).await;
        let nodes = world.members.clone();
        self.nemesis.fact(Fact::Fault { name: RESTART.to_owned(), nodes, silent: Vec::new() });
        world.kill_all();
        sleep(DOWN).await;
        world.heal();
        self.nemesis.fact(Fact::Heal { name: Some(RESTART.to_owned()) });
        let is_served = operator.probe(Instant::now() + LIVENESS_BOUND).await;
        self.expect(is_served, &format!("after a {RESTART}, not all locks were served in time"));
    }

    fn expect(&self, holds: bool, trouble: &str) {
        if !holds {
            self.troubles.borrow_mut().push(trouble.to_owned());
        }
    }
}
