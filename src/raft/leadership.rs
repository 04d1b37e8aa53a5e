//! What a node does while it leads: it keeps the clock, and lets time pass in the log.
//!
//! A node leads from the moment at which it has applied an entry of its own term, and so all that its predecessors left. Until then
//! it proposes nothing: it does not know the last stamp.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{ServerState, async_runtime::WatchReceiver, type_config::alias::WatchReceiverOf};
use tokio::sync::watch;

use super::{
    clock::{BEAT, LeaderClock},
    proposer::Proposer,
    table::Table,
    types::TypeConfig,
};
use crate::{
    environment::Environment,
    machine::{Command, Stamp},
};

/// How often time passes in the log at the least, while anything can fall due: a failover loses no more than this.
const TICK_AT_LEAST: Duration = Duration::from_secs(1);

/// How long a tick may take to be applied before another one is proposed.
const TICK_DEADLINE: Duration = Duration::from_secs(2);

/// openraft's word on who leads.
pub(super) type ServerMetrics = WatchReceiverOf<TypeConfig, openraft::metrics::RaftServerMetrics<TypeConfig>>;

/// This node's time as the leader of one term.
#[derive(Debug)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    clock: Mutex<LeaderClock>,
    environment: Environment,
}

impl Leadership {
    fn new(term: u64, base: Stamp, environment: Environment) -> Self {
        let clock = Mutex::new(LeaderClock::start(base, environment.clock.now()));
        Self { term, clock, environment }
    }

    /// The stamp for what is proposed now.
    pub fn stamp(&self) -> Stamp {
        self.with_clock(|clock| clock.look(self.environment.clock.now()))
    }

    fn until(&self, stamp: Stamp) -> Duration {
        self.with_clock(|clock| clock.until(stamp))
    }

    fn with_clock<T>(&self, look: impl FnOnce(&mut LeaderClock) -> T) -> T {
        look(&mut self.clock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether this node leads, kept up to date by `follow_leadership`.
pub type Led = watch::Receiver<Option<Arc<Leadership>>>;

/// Keeps `leadership` true to what openraft says and what is applied. Ends with openraft.
pub(super) async fn follow_leadership(
    mut metrics: ServerMetrics,
    table: Arc<Table>,
    environment: Environment,
    leadership: watch::Sender<Option<Arc<Leadership>>>,
) {
    let mut applied_term = table.applied_term();
    loop {
        let leading = {
            let metrics = metrics.borrow_watched();
            (metrics.state == ServerState::Leader && metrics.vote.committed).then_some(metrics.vote.leader_id.term)
        };
        let known = leadership.borrow().as_ref().map(|known| known.term);
        match leading.filter(|term| *applied_term.borrow_and_update() == *term) {
            Some(term) if known == Some(term) => {}
            Some(term) => {
                let base = table.read(|applied| applied.machine.now());
                tracing::info!(term, stamp_ms = base.0, "this node leads");
                leadership.send_replace(Some(Arc::new(Leadership::new(term, base, environment.clone()))));
            }
            None if known.is_some() => {
                tracing::info!(term = known, "this node no longer leads");
                leadership.send_replace(None);
                table.break_off_waits();
            }
            None => {}
        }
        let changed = tokio::select! {
            changed = metrics.changed() => changed.is_ok(),
            changed = applied_term.changed() => changed.is_ok(),
        };
        if !changed {
            leadership.send_replace(None);
            table.break_off_waits();
            return;
        }
    }
}

/// Lets time pass in the log, while this node leads: when something falls due, and about once a second while anything can. An idle
/// table writes nothing. Ends with [`follow_leadership`].
pub(super) async fn tick(mut led: Led, table: Arc<Table>, proposer: Proposer) {
    let mut deadline = table.next_deadline();
    loop {
        let Some(leadership) = led.borrow_and_update().clone() else {
            if led.changed().await.is_err() {
                return;
            }
            continue;
        };
        // Looking at the clock is what keeps a stall from being counted: see `LeaderClock`.
        let stamp = leadership.stamp();
        let (now, next) = table.read(|applied| (applied.machine.now(), applied.machine.next_deadline()));
        deadline.mark_unchanged();
        let pause = match next {
            None => BEAT,
            Some(due) if due <= stamp || stamp.0 - now.0.min(stamp.0) >= TICK_AT_LEAST.as_millis() as u64 => {
                // Whether it came through is seen in the table, at the next turn.
                let _ = proposer.propose(Command::Tick, TICK_DEADLINE).await;
                // A proposer that refuses at once (no leader, overload) must not make this a busy loop.
                Duration::from_millis(1)
            }
            Some(due) => leadership.until(due).clamp(Duration::from_millis(1), BEAT),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = deadline.changed() => {}
            changed = led.changed() => if changed.is_err() { return },
        }
    }
}
