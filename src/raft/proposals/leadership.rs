//! Whether this node leads, and its clock while it does.
//!
//! A node leads from the moment at which it has applied an entry of its own term, and so all entries of its predecessors. Until then it
//! proposes nothing, since it does not know the last stamp.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{ServerState, async_runtime::WatchReceiver, type_config::alias::WatchReceiverOf};
use tokio::sync::watch;

use crate::{proposals::clock::LeaderClock, types::TypeConfig};
use lockkeeper_environment::Environment;
use lockkeeper_machine::Stamp;
use lockkeeper_planted::Planted;
use lockkeeper_table::Table;

/// openraft's view of the leadership.
pub(crate) type ServerMetrics = WatchReceiverOf<TypeConfig, openraft::metrics::RaftServerMetrics<TypeConfig>>;

/// This node's leadership in one term.
#[derive(Debug)]
pub struct TermLeadership {
    /// The term.
    pub term: u64,
    clock: Mutex<LeaderClock>,
    environment: Environment,
}

impl TermLeadership {
    pub(crate) fn new(term: u64, base: Stamp, environment: Environment) -> Self {
        let clock = Mutex::new(LeaderClock::start(base, environment.clock.now()));
        Self { term, clock, environment }
    }

    /// Reads the clock: the stamp for a proposal made now.
    pub fn stamp(&self) -> Stamp {
        self.with_clock(|clock| {
            let stalls = clock.stalls();
            let stamp = clock.read(self.environment.clock.now());
            if clock.stalls() > stalls {
                self.environment.metrics.clock_stalled();
            }
            stamp
        })
    }

    /// The latest stamp that was read, for [`Planted::StampFromCache`].
    pub(crate) fn last_stamp(&self) -> Stamp {
        self.with_clock(|clock| clock.stamp())
    }

    /// Time until this stamp, without stalls. Zero: it has been reached.
    pub fn until(&self, stamp: Stamp) -> Duration {
        self.with_clock(|clock| clock.until(stamp))
    }

    fn with_clock<T>(&self, look: impl FnOnce(&mut LeaderClock) -> T) -> T {
        look(&mut self.clock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether this node leads; updated by `follow_leadership`.
pub type Led = watch::Receiver<Option<Arc<TermLeadership>>>;

/// Updates `leadership` from openraft's state and the applied term. Returns when openraft stops.
pub(crate) async fn follow_leadership(
    mut metrics: ServerMetrics,
    table: Arc<Table>,
    environment: Environment,
    leadership: watch::Sender<Option<Arc<TermLeadership>>>,
) {
    let mut applied_term = table.applied_term();
    // Only for `Planted::ClockOfEarlierTerm`.
    let mut before: Option<Arc<TermLeadership>> = None;

    loop {
        let leading = {
            let metrics = metrics.borrow_watched();
            (metrics.state == ServerState::Leader && metrics.vote.committed).then_some(metrics.vote.leader_id.term)
        };

        // A new leader first applies all entries of its predecessors: only then does it know the last stamp, from which its clock goes on.
        let known = leadership.borrow().as_ref().map(|known| known.term);
        match leading.filter(|term| *applied_term.borrow_and_update() == *term) {
            Some(term) if known == Some(term) => {}
            Some(term) => {
                let base = match before.take().filter(|_| Planted::ClockOfEarlierTerm.is_on()) {
                    Some(before) => before.stamp(),
                    None => table.read(|applied| applied.machine.now()),
                };
                tracing::info!(term, stamp_ms = base.0, "this node leads");
                environment.metrics.came_to_lead();
                leadership.send_replace(Some(Arc::new(TermLeadership::new(term, base, environment.clone()))));
            }
            None if known.is_some() => {
                tracing::info!(term = known, "this node no longer leads");
                before = leadership.send_replace(None);
                table.calls().break_off();
            }
            None => {}
        }

        let changed = tokio::select! {
            changed = metrics.changed() => changed.is_ok(),
            changed = applied_term.changed() => changed.is_ok(),
        };

        if !changed {
            leadership.send_replace(None);
            table.calls().break_off();
            return;
        }
    }
}
