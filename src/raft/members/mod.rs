//! The members of the cluster, and how they change while it serves.
//!
//! A new node joins as a learner: it gets the snapshot and the log, and counts for nothing. Once it has caught up (`catch_up`) the leader
//! makes it a voter by itself; if an operator has asked to replace a voter, in that voter's place, in one change. An id that was a member's
//! is never given again, and a node that was removed is refused by all others and ends ([`crate::identity`]).
//!
//! * [`Members`]: what an operator, or a node that joins, asks of the leader;
//! * `rules`: which of it is allowed now;
//! * `run`: the leader's task. It promotes learners that have caught up, and ends exchanges of voters that an earlier leader began. What is
//!   still to be done is in the replicated membership, so the next leader goes on with it;
//! * [`forming`]: how the first members find each other and found the cluster;
//! * [`compared_starts`] and [`compared_tables`]: what members compare while the cluster serves, to notice an older copy of a data
//!   directory, and a table that differs. Where the members are reached is known below:
//!   [`Addresses`](crate::network::addresses::Addresses);
//! * [`passed_notes`]: what operators have done at followers, told to the leader for the audit trail.
//!
//! Voters change by openraft's joint consensus (§4.3 of Ongaro's thesis): an entry with both sets of voters, then one with the new set.
//! Each request names the membership that it was judged by, so of two requests at the same time one is refused.

mod catch_up;
pub mod compared_starts;
pub mod compared_tables;
pub mod forming;
pub mod passed_notes;
mod rules;
#[cfg(test)]
mod transcripts;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use openraft::{
    ServerState,
    async_runtime::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
    raft::Precondition,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};
use tonic::Status;

use self::{
    catch_up::CatchUp,
    rules::{CandidateAdmission, MemberStep, MembershipChange, MembershipView},
};
use crate::{
    Replica,
    elections::handover,
    identity::Incarnation,
    messages as pb,
    types::{StoredMembership, TypeConfig, entry_id},
};
use lockkeeper_table::Applied;

/// Members at the most, learners among them. Each one more is another copy of every entry for the leader to send.
pub const MEMBERS_MAX: usize = 15;
/// Time limit of one change. One that is not committed by then may still be.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an answer that says that all is as asked already looks whether that is committed.
const CONFIRM_PAUSE: Duration = Duration::from_millis(20);
/// How often the leader looks after a change that is under way.
const TURN: Duration = Duration::from_millis(50);
/// The pause after a step that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// A node that is to become a member; or a member with its present addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// An id that no member has ever had.
    pub node_id: u64,
    /// The incarnation of its data directory.
    pub incarnation: Incarnation,
    /// The address for peers: host:port.
    pub peer_address: String,
    /// The address for clients: host:port.
    pub client_address: String,
    /// It is promoted only when an operator says so.
    pub stays_learner: bool,
}

/// Why the membership was not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemberError {
    /// The node does not lead.
    #[error("this node does not lead")]
    NotLeader,
    /// Whether it was changed is unknown.
    #[error("the change was not confirmed in time; it may still take effect: look at the members before you repeat it")]
    Unconfirmed,
    /// Another change is under way.
    #[error(
        "another change of the membership is under way: {what}; wait until it is done, `lockkeeper member list` shows it"
    )]
    UnderWay {
        /// Which.
        what: String,
    },
    /// The id is a member's.
    #[error(
        "node {node_id} is a member with another data directory: give the new node an id that no member has ever had, and if it \
         takes the place of node {node_id}, say so with `lockkeeper member replace {node_id}`"
    )]
    IdInUse {
        /// The id.
        node_id: u64,
    },
    /// The id was a member's.
    #[error(
        "node {node_id} was a member and was removed; an id is never used again: give the new node another id and an empty data \
         directory"
    )]
    IdUsedBefore {
        /// The id.
        node_id: u64,
    },
    /// There is no member with this id.
    #[error("node {node_id} is not a member; the members are {}", ids(.members))]
    Unknown {
        /// The id.
        node_id: u64,
        /// The members.
        members: Vec<u64>,
    },
    /// A member cannot take its own place.
    #[error("node {node_id} cannot take its own place: name the new node")]
    Itself {
        /// The member.
        node_id: u64,
    },
    /// Only a voter is replaced.
    #[error(
        "node {node_id} is a learner, which counts for no quorum: remove it with `lockkeeper member remove {node_id}`"
    )]
    NotVoter {
        /// The learner.
        node_id: u64,
    },
    /// There is only one voter.
    #[error("node {node_id} is the only voter: without it there is no cluster; add another node first")]
    LastVoter {
        /// The voter.
        node_id: u64,
    },
    /// The cluster would stop.
    #[error(
        "the cluster would have {voters} voters, of which {} not answer; it needs {}: bring them back first, or replace them one \
         after the other",
        do_not_answer(.silent), .voters / 2 + 1
    )]
    LosesQuorum {
        /// The number of voters after the change.
        voters: usize,
        /// The voters that do not answer.
        silent: Vec<u64>,
    },
    /// There are [`MEMBERS_MAX`] members.
    #[error("the cluster has {MEMBERS_MAX} members, the limit: remove one first")]
    TooMany,
    /// The new node was not found at the address that it, or the operator, gave.
    #[error("the node cannot join: its peer address {address} was asked, and {why}")]
    NotThere {
        /// The address.
        address: String,
        /// The problem, and the remedy.
        why: String,
    },
    /// Raft refused.
    #[error("Raft refused the change: {why}")]
    Refused {
        /// Its reason.
        why: String,
    },
}

impl MemberError {
    /// The error's name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotLeader => "not-leader",
            Self::Unconfirmed => "unconfirmed",
            Self::UnderWay { .. } => "under-way",
            Self::IdInUse { .. } => "id-in-use",
            Self::IdUsedBefore { .. } => "id-used-before",
            Self::Unknown { .. } => "unknown",
            Self::Itself { .. } => "itself",
            Self::NotVoter { .. } => "not-voter",
            Self::LastVoter { .. } => "last-voter",
            Self::LosesQuorum { .. } => "loses-quorum",
            Self::TooMany => "too-many",
            Self::NotThere { .. } => "not-there",
            Self::Refused { .. } => "refused",
        }
    }

    fn under_way(what: impl Into<String>) -> Self {
        Self::UnderWay { what: what.into() }
    }
}

/// Exchanges Hello with the node at a peer address.
pub type Greet =
    Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<pb::HelloResponse, Status>> + Send>> + Send + Sync>;

/// Changes the membership, on the leader. Cheap to clone.
#[derive(Clone)]
pub struct Members {
    replica: Replica,
    greet: Greet,
    cluster_id: Arc<str>,
    /// A learner that catches up within this time counts as caught up.
    round_max: Duration,
    /// Held while a change is committed: an exchange of voters takes two entries, and `run` must not add the second one to a change that
    /// is on its way to do so itself.
    changing: Arc<Mutex<()>>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").field("replica", &self.replica).finish_non_exhaustive()
    }
}

impl Members {
    /// `greet` asks new nodes who they are. The shortest election timeout is `round_max`.
    pub fn new(replica: Replica, greet: Greet, cluster_id: &str, round_max: Duration) -> Self {
        Self { replica, greet, cluster_id: cluster_id.into(), round_max, changing: Arc::default() }
    }

    /// Makes a node a learner, or gives a member new addresses. The node must answer at its peer address as the one that it is said to be.
    /// The `incarnation` is what the node has said; without one, it is asked for.
    ///
    /// Idempotent: a node that is a member already, with these addresses, stays one.
    pub async fn add(
        &self,
        node_id: u64,
        incarnation: Option<Incarnation>,
        (peer_address, client_address): (String, String),
        stays_learner: bool,
    ) -> Result<(), MemberError> {
        let incarnation = self.ask(node_id, incarnation, &peer_address).await?;
        let candidate = Candidate { node_id, incarnation, peer_address, client_address, stays_learner };
        let judge = |view: &MembershipView<'_>| match rules::add(view, &candidate)? {
            CandidateAdmission::IsMember => Ok(None),
            CandidateAdmission::Change(change) => Ok(Some(change)),
        };

        // Check the membership after the candidate has answered, because another change may have been made before.
        self.ensure_leads()?;
        let term = self.term();
        let judged = self.applied_membership().await?;
        self.change_from(&judged, term, judge).await
    }

    /// Lets a learner that waits for it become a voter, once it has caught up.
    pub async fn promote(&self, node_id: u64) -> Result<(), MemberError> {
        self.change_if(|view| rules::promote(view, node_id)).await
    }

    /// Removes a member for good. This node itself, if it leads, must hand over first.
    pub async fn remove(&self, node_id: u64) -> Result<(), MemberError> {
        self.change_if(|view| rules::remove(view, node_id).map(Some)).await
    }

    /// Whether [`remove`](Self::remove) would be allowed.
    pub async fn may_remove(&self, node_id: u64) -> Result<(), MemberError> {
        let judge = |view: &MembershipView<'_>| rules::remove(view, node_id).map(drop);
        self.hear_members(&judge).await;
        self.judge(&self.membership(), judge)
    }

    /// Whether a member is a voter now.
    pub fn is_voter(&self, node_id: u64) -> bool {
        self.membership().membership().voter_ids().any(|voter| voter == node_id)
    }

    /// Marks a voter: the next learner that is promoted takes its place, in one change. With `with` it is this member. If that is a voter
    /// already, the old one is only removed, as by [`remove`](Self::remove).
    pub async fn replace(&self, old: u64, with: Option<u64>) -> Result<(), MemberError> {
        self.change_if(|view| rules::replace(view, old, with)).await
    }

    /// Takes the mark of [`replace`](Self::replace) back.
    pub async fn keep(&self, old: u64) -> Result<(), MemberError> {
        self.change_if(|view| rules::keep(view, old)).await
    }

    /// The incarnation of the node at this address, if it is the one that is meant.
    async fn ask(&self, node_id: u64, said: Option<Incarnation>, address: &str) -> Result<Incarnation, MemberError> {
        let not_there = |why: String| MemberError::NotThere { address: address.to_owned(), why };
        let unreachable = |status: Status| {
            let why = format!(
                "does not answer the leader: {}; check the address, and that the leader may reach it",
                status.message()
            );
            not_there(why)
        };

        let answer = (self.greet)(address.to_owned()).await.map_err(unreachable)?;
        if answer.cluster_id != *self.cluster_id {
            let why = format!("the node there belongs to cluster {}, not {}", answer.cluster_id, self.cluster_id);
            return Err(not_there(why));
        }
        if answer.node_id != node_id {
            let why = format!("node {} answers there, not node {node_id}: check the addresses", answer.node_id);
            return Err(not_there(why));
        }

        let found = Incarnation::try_from(answer.incarnation.as_ref());
        let found =
            found.map_err(|_| not_there("the node there has no incarnation: it is not a Lockkeeper node".into()))?;
        if said.is_none_or(|said| said == found) {
            Ok(found)
        } else {
            Err(not_there(format!("a node {node_id} with another data directory answers there")))
        }
    }

    /// Makes the change that `judge` returns, if any, provided that the membership is still the one that `judge` has seen.
    async fn change_if(
        &self,
        judge: impl Fn(&MembershipView<'_>) -> Result<Option<MembershipChange>, MemberError>,
    ) -> Result<(), MemberError> {
        self.hear_members(&judge).await;
        self.ensure_leads()?;
        let term = self.term();
        self.change_from(&self.membership(), term, judge).await
    }

    /// Waits, on a leader, while this would be refused because too many members seem silent, for as long as one may be silent: a leader
    /// that was just elected has heard from a quorum of them at the most, and the others answer presently.
    async fn hear_members<T>(&self, judge: &impl Fn(&MembershipView<'_>) -> Result<T, MemberError>) {
        let until = Instant::now() + self.replica.silence_max().min(CHANGE_TIMEOUT);
        let seem_silent = || matches!(self.judge(&self.membership(), judge), Err(MemberError::LosesQuorum { .. }));
        while seem_silent() && self.ensure_leads().is_ok() && Instant::now() < until {
            sleep(CONFIRM_PAUSE).await;
        }
    }

    /// The same, provided that the membership is this one, which was the newest in `term`.
    async fn change_from(
        &self,
        judged: &StoredMembership,
        term: u64,
        judge: impl FnOnce(&MembershipView<'_>) -> Result<Option<MembershipChange>, MemberError>,
    ) -> Result<(), MemberError> {
        match self.judge(judged, judge)? {
            None => self.confirm(judged, term).await,
            Some(change) => self.commit(judged, change).await,
        }
    }

    fn ensure_leads(&self) -> Result<(), MemberError> {
        if self.replica.leads() && !self.replica.cut_off() { Ok(()) } else { Err(MemberError::NotLeader) }
    }

    /// The newest membership, once this node has applied it: only then does the table know each id that was a member's before. The log may
    /// be far ahead of the table, and an id that was removed in between would be given again.
    async fn applied_membership(&self) -> Result<Arc<StoredMembership>, MemberError> {
        let applied = async {
            loop {
                let membership = self.membership();
                if membership.log_id().is_none_or(|log_id| self.replica.table().index() >= log_id.index) {
                    return membership;
                }
                sleep(CONFIRM_PAUSE).await;
            }
        };
        let too_late = |_| MemberError::under_way("this node has not applied the last one yet");
        timeout(CHANGE_TIMEOUT, applied).await.map_err(too_late)
    }

    /// Waits until this membership, which was the newest in `term`, is committed: what has only been written may be overwritten by another
    /// leader. Fails if it is not in time, or if another term has begun.
    async fn confirm(&self, judged: &StoredMembership, term: u64) -> Result<(), MemberError> {
        let confirmed = async {
            loop {
                let has_applied = |applied: &Applied| applied.membership.entry >= judged.log_id().map(entry_id);
                match self.replica.read(CHANGE_TIMEOUT, has_applied).await {
                    Ok(true) if self.term() == term => return Ok(()),
                    Ok(true) => return Err(MemberError::Unconfirmed),
                    Ok(false) => sleep(CONFIRM_PAUSE).await,
                    Err(_) => return Err(MemberError::Unconfirmed),
                }
            }
        };
        timeout(CHANGE_TIMEOUT, confirmed).await.unwrap_or(Err(MemberError::Unconfirmed))
    }

    fn term(&self) -> u64 {
        self.replica.raft().metrics().borrow_watched().current_term
    }

    fn membership(&self) -> Arc<StoredMembership> {
        self.replica.raft().server_metrics().borrow_watched().membership_config.clone()
    }

    fn judge<T>(&self, membership: &StoredMembership, judge: impl FnOnce(&MembershipView<'_>) -> T) -> T {
        let is_alive = |node_id| self.replica.hears(node_id);
        let was_removed = |node_id| self.replica.table().has_removed(node_id);
        judge(&MembershipView { membership: membership.membership(), is_alive: &is_alive, was_removed: &was_removed })
    }

    async fn commit(&self, judged: &StoredMembership, change: MembershipChange) -> Result<(), MemberError> {
        let busy = |_| MemberError::under_way("it is being committed");
        let _changing = self.changing.try_lock().map_err(busy)?;
        let unchanged = Precondition::LastMembershipLogId { last_membership_log_id: *judged.log_id() };

        let text = change.to_string();
        tracing::info!(%change, "changing the membership");
        let changing = self.replica.raft().change_membership_if(change, false, [unchanged]);

        match timeout(CHANGE_TIMEOUT, changing).await {
            Ok(Ok(done)) => {
                tracing::info!(change = text, index = done.log_id.index, "changed the membership");
                Ok(())
            }
            Ok(Err(error)) => Err(refused(error)),
            Err(_) => Err(MemberError::Unconfirmed),
        }
    }

    /// Looks after changes that are under way while this node leads. Returns when Raft stops.
    pub async fn run(self) {
        let mut metrics = self.replica.raft().server_metrics();
        let mut catching_up = None;
        loop {
            let leads = metrics.borrow_watched().state == ServerState::Leader;
            let pause = if leads {
                self.turn(&mut catching_up).await
            } else {
                catching_up = None;
                None
            };

            let changed = metrics.changed();
            let stopped = match pause {
                None => changed.await.is_err(),
                Some(pause) => tokio::select! {
                    changed = changed => changed.is_err(),
                    () = sleep(pause) => false,
                },
            };
            if stopped {
                return;
            }
        }
    }

    /// Takes the next step, if it can be taken now. Returns when to look again, or `None` for when the membership has changed.
    async fn turn(&self, catching_up: &mut Option<(u64, CatchUp)>) -> Option<Duration> {
        if !self.replica.leads() {
            return Some(TURN);
        }

        let judged = self.membership();
        let taken = match self.judge(&judged, rules::next_step) {
            MemberStep::None => {
                *catching_up = None;
                return None;
            }
            MemberStep::EndExchange => self.commit(&judged, rules::end_of_exchange()).await,
            MemberStep::Promote { learner, instead_of } => {
                if !self.has_caught_up(learner, catching_up) {
                    return Some(TURN);
                }
                // The leader does not take itself out: its successor does.
                if instead_of == Some(self.replica.node_id()) {
                    if let Err(error) = handover::transfer(&self.replica, None, CHANGE_TIMEOUT).await {
                        tracing::warn!(%error, "this node is to be replaced, and cannot hand its leadership over");
                    }
                    return Some(PAUSE);
                }
                match self.judge(&judged, |view| rules::promotion(view, learner, instead_of)) {
                    Ok(change) => self.commit(&judged, change).await,
                    Err(refused) => Err(refused),
                }
            }
        };

        if let Err(error) = taken {
            tracing::debug!(%error, "a step of a change of the membership is tried again");
            return Some(PAUSE);
        }
        Some(TURN)
    }

    fn has_caught_up(&self, learner: u64, catching_up: &mut Option<(u64, CatchUp)>) -> bool {
        let metrics = self.replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or_default();
        let matched = metrics.replication.as_ref().and_then(|replication| replication.get(&learner)?.as_ref());
        let matched = matched.map(|matched| matched.index);
        let (_, rounds) = match catching_up {
            Some(rounds) if rounds.0 == learner => rounds,
            other => other.insert((learner, CatchUp::new(last))),
        };
        matched.is_some_and(|matched| rounds.is_done(matched, last, self.round_max))
    }
}

fn refused(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> MemberError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => MemberError::NotLeader,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_))) => {
            MemberError::under_way("the last one is not committed yet")
        }
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => {
            MemberError::under_way("the membership has just changed")
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => {
            MemberError::Refused { why: error.to_string() }
        }
        RaftError::APIError(error) => MemberError::Refused { why: error.to_string() },
        RaftError::Fatal(_) => MemberError::Unconfirmed,
    }
}

fn ids(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn do_not_answer(silent: &[u64]) -> String {
    match silent {
        [one] => format!("node {one} does"),
        several => format!("nodes {} do", ids(several)),
    }
}
