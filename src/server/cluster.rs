//! This node's condition: whether it can serve, and which members lag.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockkeeper_table::Applied;
use openraft::{Instant, ServerState, async_runtime::WatchReceiver};

use tokio::sync::Semaphore;

use super::{api::Error, progress::Progress, pulse::Pulse};
use lockkeeper_environment::{Blocking, Clock};
use lockkeeper_raft::{Replica, apply::table_comparison::TableComparison, types::LogId};
use lockkeeper_transport::tls::Tls;

/// The condition of this node and, as far as the leader knows it, of the others. It answers at once, from memory, without asking the
/// cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) cluster_id: Arc<str>,
    /// Identifies the start of this process: see [`NodeIdentity::start`](lockkeeper_raft::identity::NodeIdentity::start).
    pub(crate) start: Arc<str>,
    pub(crate) replica: Replica,
    /// The node's certificate, if it has one.
    pub(crate) tls: Option<Tls>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) blocking: Blocking,
    /// While this node leads and entries wait to be committed: for how long the commit index has stood still.
    pub(crate) progress: Arc<Progress>,
    /// While this node's table lacks committed entries: for how long the table has stood still.
    pub(crate) applying: Arc<Progress>,
    /// While this node leads: for how long the log of each member that lacks entries has stood still.
    pub(crate) members: Arc<Mutex<BTreeMap<u64, Progress>>>,
    /// How this node's table compares with those of the others, if tables are compared.
    pub(crate) comparison: Option<Arc<TableComparison>>,
    /// The hashes of the table that statuses show.
    pub(crate) hashing: Arc<TableHashing>,
    /// The scheduling delay of Raft's runtime.
    pub(crate) pulse: Pulse,
    /// The scheduling delays of the clients' runtime and of the adapters'.
    pub(crate) clients_pulse: Pulse,
    pub(crate) adapters_pulse: Pulse,
}

/// A member that lacks entries and makes no progress for this time does not catch up. Longer than any pause of a busy disk.
const CATCH_UP: Duration = Duration::from_secs(5);
/// The reason of a node whose table stands still.
const STALLED: &str = "it lacks entries that are committed, and does not catch up";
/// A member that has not answered the leader for this time is logged: longer than a node needs to restart a connection.
const SILENT: Duration = Duration::from_secs(2);

impl Cluster {
    /// Whether Raft has stopped, which it does only when it cannot go on.
    pub(crate) fn has_stopped(&self) -> bool {
        self.replica.raft().metrics().borrow_watched().running_state.is_err()
    }

    /// Returns why this node cannot serve, or `None` if it can.
    pub(crate) async fn trouble(&self) -> Option<&'static str> {
        let (leads, leader, committed, uncommitted) = {
            let metrics = self.replica.raft().metrics();
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return Some("raft has stopped: see the log");
            }
            let committed = metrics.local_committed.map(|id| id.index);
            let uncommitted = (metrics.last_log_index > committed).then(|| committed.unwrap_or_default());
            (metrics.state == ServerState::Leader, metrics.current_leader, committed.unwrap_or_default(), uncommitted)
        };
        // Read it without the table's lock: an apply that stands still may hold that lock.
        let applied = self.replica.table().index();

        if leads {
            let stands_for = self.progress.stands_for(uncommitted);
            let lacks_for = self.applying.stands_for((committed > applied).then_some(applied));
            return if !self.replica.leads() {
                Some("elected, and catching up with what its predecessors left")
            } else if self.replica.cut_off() {
                Some("leader without a quorum: most members cannot be reached")
            } else if lacks_for > CATCH_UP {
                Some(STALLED)
            } else if stands_for > CATCH_UP {
                Some("leader that cannot commit: too few members take its entries")
            } else {
                None
            };
        }

        if leader.is_none() {
            return Some("no leader is known");
        }
        if self.comparison.as_ref().is_some_and(|comparison| comparison.differs()) {
            return Some("its table differs from the leader's, and no majority shows which one is right: see the log");
        }

        // Each append and each heartbeat of the leader renews its lease at this node, and carries the commit index. Compare that index with
        // the table, not with the log: a log may be complete while nothing applies its entries.
        let state = self.replica.raft().with_raft_state(move |state| {
            let committed = state.cluster_committed().map_or(0, |id| id.index);
            (state.vote_last_modified(), (committed > applied).then_some(applied))
        });
        match state.await {
            Ok((Some(heard), lacking)) if heard.elapsed() <= self.replica.silence_max() => {
                let stands_for = self.applying.stands_for(lacking);
                (stands_for > CATCH_UP).then_some(STALLED)
            }
            Ok(_) => Some("the leader is not heard from"),
            Err(_) => Some("raft has stopped: see the log"),
        }
    }

    /// Returns the members that lack entries and do not catch up, each with a text for people, if this node leads. Call it regularly:
    /// progress is measured between two calls.
    pub(crate) fn laggards(&self) -> Vec<(u64, String)> {
        let metrics = self.replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(replication) = metrics.replication.as_ref() else {
            members.clear();
            return Vec::new();
        };

        let tip = metrics.local_committed.map_or(0, |id| id.index);
        let others = replication.iter().filter(|(id, _)| **id != metrics.id);
        let laggard = |(id, matched): (&u64, &Option<LogId>)| {
            let at = matched.as_ref().map_or(0, |id| id.index);
            let stands_for = members.entry(*id).or_default().stands_for((at < tip).then_some(at));

            let why = self.replica.why_refused(*id).map(|why| format!("; it refuses: {why}")).unwrap_or_default();
            (stands_for > CATCH_UP).then(|| (*id, format!("does not catch up: it is at entry {at} of {tip}{why}")))
        };
        others.filter_map(laggard).collect()
    }

    /// Returns the members whose table is another than this node's, each with a text for people, if this node leads.
    pub(crate) fn members_with_other_tables(&self) -> Vec<(u64, String)> {
        let Some(comparison) = self.comparison.as_ref().filter(|_| self.replica.leads()) else { return Vec::new() };

        let text = |index: u64| {
            format!(
                "has another table after entry {index} than this leader: see the log of both, and \"Copies that disagree\" in \
                 cluster-configs/disaster.md"
            )
        };
        comparison.others().into_iter().map(|(id, index)| (id, text(index))).collect()
    }

    /// Returns the members that have not answered this leader for [`SILENT`], or never since it leads. `leading` measures since when it
    /// leads: pass the same one to each call.
    pub(crate) fn silent(&self, leading: &Progress) -> BTreeSet<u64> {
        let metrics = self.replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let term = metrics.vote.leader_id.term;
        let leads_for = leading.stands_for((metrics.state == ServerState::Leader).then_some(term));
        if leads_for <= SILENT {
            return BTreeSet::new();
        }

        let others = metrics.membership_config.nodes().map(|(id, _)| *id).filter(|id| *id != metrics.id);
        others.filter(|id| self.replica.silence_of(*id, term).is_none_or(|silence| silence > SILENT)).collect()
    }

    /// Returns the index of an entry that is applied, and the hash of the table after it: of the last one when this was called, or of a
    /// later one. Takes time in proportion to the table.
    pub(crate) async fn table_hash(&self) -> Result<(u64, u64), Error> {
        let table = || self.replica.table().read(Clone::clone);
        let hashed = Arc::clone(&self.hashing).hashed(self.blocking, table).await;
        hashed.map_err(|_| Error::internal("the hash of the table could not be computed"))
    }
}

/// Hashes of the table for those who ask for this node's status, which anybody may: one is computed at a time, at low priority, and those
/// who wait share the next.
#[derive(Debug)]
pub(crate) struct TableHashing {
    turn: Arc<Semaphore>,
    /// The last one, with the index of the entry after which it was computed.
    last: Mutex<Option<(u64, u64)>>,
}

impl Default for TableHashing {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), last: Mutex::default() }
    }
}

impl TableHashing {
    /// The hash of the table as it is when this is called, or later. Cancel safe: the work goes on, for the next one who asks.
    async fn hashed(self: Arc<Self>, blocking: Blocking, table: impl Fn() -> Applied) -> io::Result<(u64, u64)> {
        let asked = table().index();
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(io::Error::other)?;
        let last = *self.last();
        if let Some(last) = last.filter(|(index, _)| *index >= asked) {
            return Ok(last);
        }

        // The turn ends with the work, even if the caller no longer waits for it.
        let applied = table();
        let work = move || {
            let hashed = (applied.index(), applied.machine.hash());
            *self.last() = Some(hashed);
            drop(turn);
            Ok(hashed)
        };
        blocking.run_in_background("status-hash", work).await
    }

    fn last(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_hash() {
        let hashing = Arc::new(TableHashing::default());
        let reads = AtomicUsize::new(0);
        let table = || {
            reads.fetch_add(1, Relaxed);
            Applied::default()
        };

        let asked = (0..100).map(|_| Arc::clone(&hashing).hashed(Blocking::OnThreads, table));
        let expected = (0, Applied::default().machine.hash());
        for hashed in join_all(asked).await {
            assert_eq!(hashed.expect("a hash"), expected);
        }
        assert_eq!(reads.into_inner(), 101, "each looks at the index, and one takes the table");
    }
}
