//! This node's condition: whether it can serve, and which members lag.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{Instant, ServerState, async_runtime::WatchReceiver};

use super::{api::Error, progress::Progress, pulse::Pulse};
use lockkeeper_environment::Blocking;
use lockkeeper_raft::{Replica, table_comparison::TableComparison, types::LogId};
use lockkeeper_transport::tls::Tls;

/// Answers from what this node knows, at once and without the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) cluster_id: Arc<str>,
    /// The start of this process.
    pub(crate) start: Arc<str>,
    pub(crate) replica: Replica,
    /// `None`: it has no certificate.
    pub(crate) tls: Option<Tls>,
    pub(crate) blocking: Blocking,
    /// As the leader, of its commit index, while entries wait to be committed.
    pub(crate) progress: Arc<Progress>,
    /// Of its table, while it lacks committed entries.
    pub(crate) applying: Arc<Progress>,
    /// As the leader: of the log of each member that lacks entries.
    pub(crate) members: Arc<Mutex<BTreeMap<u64, Progress>>>,
    /// How its table compares with those of the others. `None`: it is not compared.
    pub(crate) comparison: Option<Arc<TableComparison>>,
    /// Of Raft's runtime.
    pub(crate) pulse: Pulse,
    /// Of the clients' runtime, and of the adapters'.
    pub(crate) clients_pulse: Pulse,
    pub(crate) adapters_pulse: Pulse,
}

/// A member that lacks entries and makes no progress for this time does not catch up. Longer than any pause of a busy disk.
const CATCH_UP: Duration = Duration::from_secs(5);
/// Its table stands still.
const STALLED: &str = "it lacks entries that are committed, and does not catch up";
/// A member that has not answered the leader for this time is logged: longer than a node needs to restart a connection.
const SILENT: Duration = Duration::from_secs(2);

impl Cluster {
    /// Whether Raft has stopped, which it does only when it cannot go on.
    pub(crate) fn has_stopped(&self) -> bool {
        self.replica.raft().metrics().borrow_watched().running_state.is_err()
    }

    /// Why this node cannot serve; `None` if it can.
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
        // Not under the table's lock, which an apply that stands still may hold.
        let applied = self.replica.table().index();
        if leads {
            let stands_for = self.progress.stands_for(uncommitted);
            let lacks_for = self.applying.stands_for((committed > applied).then_some(applied));
            return match self.replica.leads() {
                false => Some("elected, and catching up with what its predecessors left"),
                true if self.replica.cut_off() => Some("leader without a quorum: most members cannot be reached"),
                true if lacks_for > CATCH_UP => Some(STALLED),
                true if stands_for > CATCH_UP => Some("leader that cannot commit: too few members take its entries"),
                true => None,
            };
        }
        if leader.is_none() {
            return Some("no leader is known");
        }
        if self.comparison.as_ref().is_some_and(|comparison| comparison.differs()) {
            return Some("its table differs from the leader's, and no majority shows which one is right: see the log");
        }
        // Each append and each heartbeat of the leader renews its lease at this node, and carries the commit index.
        // What counts is the table: a log may reach as far as the leader's, and its entries be applied by nobody.
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

    /// As the leader: the members that lack entries and do not catch up, each with a text for people. Call it regularly: progress is
    /// measured between two calls.
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

    /// As the leader: the members with another table than this node's, each with a text for people.
    pub(crate) fn members_with_other_tables(&self) -> Vec<(u64, String)> {
        let Some(comparison) = self.comparison.as_ref().filter(|_| self.replica.leads()) else { return Vec::new() };
        let text = |index: u64| {
            format!(
                "has another table after entry {index} than this leader: see the log of both, and \"Copies that disagree\" in the \
                 operators' page"
            )
        };
        comparison.others().into_iter().map(|(id, index)| (id, text(index))).collect()
    }

    /// As the leader: the members that have not answered it for [`SILENT`], or not since it leads. `leading` is for this alone, between its
    /// calls.
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

    /// The index of the last entry applied, and the hash of the table at it. Takes time in proportion to the table.
    pub(crate) async fn table_hash(&self) -> Result<(u64, u64), Error> {
        let applied = self.replica.table().read(Clone::clone);
        let hashed = self.blocking.run(move || Ok((applied.index(), applied.machine.hash()))).await;
        hashed.map_err(|_| Error::internal("the hash of the table could not be computed"))
    }
}
