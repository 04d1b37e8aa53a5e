//! A replica: one copy of the table, kept equal to the others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    Raft,
    contact::QuorumContact,
    disk::Disks,
    network::{Acknowledgements, addresses::Addresses, liveness::PeerLiveness, versions::PeerVersions},
    proposals::{
        audit_notes::{AuditNotes, NoteKind},
        leadership::{Led, follow_leadership},
        proposer::{self, NoReply, ProposalLimits, Proposer},
        renewals::{self, Renewals},
        ticker::tick,
        version_raise::{self, raise},
    },
    reads::read_rounds::{self, ReadRounds},
};
use lockkeeper_environment::Environment;
use lockkeeper_machine::{Command, Limits, Note, Renewal, SessionId, Stamp, Version};
use lockkeeper_planted::Planted;
use lockkeeper_table::{Applied, Delivery, MemberNode, Table};

/// Time limit of a command of renewals. Each caller has its own time limit as well.
const RENEWALS_PATIENCE: Duration = Duration::from_secs(5);

/// This node's copy of the table, and the interface to change all copies.
#[derive(Clone, Debug)]
pub struct Replica {
    raft: Raft,
    table: Arc<Table>,
    versions: Arc<PeerVersions>,
    proposer: Proposer,
    renewals: Renewals,
    reads: ReadRounds,
    led: Led,
    acknowledgements: Acknowledgements,
    addresses: Addresses,
    contact: Arc<QuorumContact>,
    silence_max: Duration,
    disks: Disks,
    hearing: Option<Hearing>,
    notes: AuditNotes,
}

/// When this node last heard from its peers, and the silence after which a leader counts as silent.
#[derive(Clone, Debug)]
struct Hearing {
    liveness: Arc<PeerLiveness>,
    limit: Duration,
}

/// What a replica is made of.
#[derive(Debug)]
pub struct ReplicaParts {
    /// The table that `raft` writes.
    pub table: Arc<Table>,
    /// The versions of the members, as its network hears them.
    pub versions: Arc<PeerVersions>,
    /// What the peers acknowledge to its network.
    pub acknowledgements: Acknowledgements,
    /// The addresses of the members. They are kept up to date.
    pub addresses: Addresses,
    /// A leader that has not heard from a quorum for so long refuses requests.
    pub silence_max: Duration,
    /// The limits of what waits to be proposed.
    pub proposals: ProposalLimits,
}

impl Replica {
    /// Starts the tasks that propose commands and ticks. They end with `raft`.
    ///
    /// While this node leads, it writes `limits` into the log.
    pub fn start(raft: Raft, parts: ReplicaParts, environment: &Environment, limits: Limits) -> Self {
        let ReplicaParts { table, versions, acknowledgements, addresses, silence_max, proposals } = parts;

        let (leadership, led) = watch::channel(None);
        let (proposer, intake) = Proposer::new(led.clone(), Arc::clone(&table), proposals);
        tokio::spawn(proposer::run(intake, raft.clone(), led.clone(), environment.clone(), limits));
        tokio::spawn(follow_leadership(raft.server_metrics(), Arc::clone(&table), environment.clone(), leadership));

        let contact = Arc::new(QuorumContact::new(raft.clone(), acknowledgements.clone(), silence_max));
        let contact_of_ticker = Arc::clone(&contact);
        let is_cut_off = move || contact_of_ticker.is_lost();
        tokio::spawn(tick(led.clone(), Arc::clone(&table), proposer.clone(), is_cut_off));
        tokio::spawn(raise(raft.clone(), led.clone(), Arc::clone(&table), Arc::clone(&versions), proposer.clone()));

        let (renewals, wanted) = Renewals::new();
        tokio::spawn(renewals::run(wanted, proposer.clone(), RENEWALS_PATIENCE));

        let (reads, waiting) = ReadRounds::new();
        tokio::spawn(read_rounds::run(waiting, raft.clone(), acknowledgements.clone()));
        tokio::spawn(addresses.clone().follow(raft.clone()));

        Self {
            raft,
            table,
            versions,
            proposer,
            renewals,
            reads,
            led,
            acknowledgements,
            addresses,
            contact,
            silence_max,
            disks: Disks::default(),
            hearing: None,
            notes: AuditNotes::default(),
        }
    }

    /// Refuses commands that add while these disks are short of space: see [`disk`](crate::disk).
    pub fn with_disks(self, disks: Disks) -> Self {
        Self { disks, ..self }
    }

    /// This replica with knowledge of its peers' liveness: a leader that was not heard for `limit` counts as silent.
    pub fn with_liveness(self, liveness: Arc<PeerLiveness>, limit: Duration) -> Self {
        Self { hearing: Some(Hearing { liveness, limit }), ..self }
    }

    /// Whether this node has heard nothing from a peer for so long that it would not answer a request. This node's own stalls do not count.
    pub fn is_silent(&self, peer: u64) -> bool {
        self.hearing.as_ref().is_some_and(|Hearing { liveness, limit }| {
            liveness.counted_silence(peer) >= liveness.tolerated(peer, *limit)
        })
    }

    /// Commands that wait for a batch.
    pub fn queued(&self) -> u64 {
        self.proposer.queued()
    }

    /// Whether a command that asks for more would be refused now by load shedding: see [`Proposer::is_overloaded`].
    pub fn is_overloaded(&self) -> bool {
        self.proposer.is_overloaded() && self.leads() && !self.cut_off()
    }

    /// Proposes a command and waits until it is applied, for at most `patience`: see [`Proposer::propose`].
    pub fn propose(
        &self,
        command: Command,
        patience: Duration,
    ) -> impl Future<Output = Result<Delivery, NoReply>> + Send {
        self.propose_in(None, command, patience)
    }

    /// The same, but only while this node leads in this term, if one is given: see [`Proposer::propose_in`].
    pub async fn propose_in(
        &self,
        term: Option<u64>,
        command: Command,
        patience: Duration,
    ) -> Result<Delivery, NoReply> {
        if self.cut_off() {
            return Err(NoReply::NoQuorum);
        }

        let needs = command.since();
        let has = self.table.versions().cluster();
        // A follower refuses as a follower: the leader may know a higher version.
        if needs > has && self.leads() {
            return Err(NoReply::VersionTooLow { needs, has });
        }

        if let Some(shortage) = self.disks.shortage()
            && self.leads()
            && self.proposer.asks_for_more(&command)
        {
            return Err(NoReply::DiskSpaceLow(shortage));
        }
        self.proposer.propose_in(term, command, patience).await
    }

    /// Records an act that does not change the table in the audit trail, in the background: at most a few of its kind a second. A note
    /// beyond that limit, one that cannot be proposed, and a refusal by a node that does not lead are counted in the next note of the kind.
    /// A follower tells the leader what an operator has done at it.
    ///
    /// Returns the leader's task that does it. A caller that writes no entry afterwards, as before a transfer of the leadership, waits for
    /// it.
    pub fn note(&self, kind: NoteKind, note: Note) -> Option<JoinHandle<()>> {
        let is_known = self.table.versions().cluster() >= Version::AUDITED;
        if is_known && kind == NoteKind::OperatorAct && !self.leads() {
            self.notes.pass_on(note);
            return None;
        }
        self.notes.write(kind, note, is_known && self.leads() && !self.cut_off(), self.proposer.clone())
    }

    /// Records what an operator has done at another member, if this node leads. Returns whether it does.
    pub fn take_note(&self, note: Note) -> bool {
        let leads = self.leads() && !self.cut_off();
        if leads {
            // In the background.
            _ = self.note(NoteKind::OperatorAct, note);
        }
        leads
    }

    /// The notes of this node that are to be told to the leader. For one listener: later calls return `None`.
    pub(crate) fn notes_for_leader(&self) -> Option<mpsc::Receiver<Note>> {
        self.notes.passed_on()
    }

    /// Counts a note that the leader was not told, in the next one.
    pub(crate) fn leave_note_out(&self, note: &Note) {
        self.notes.leave_out(NoteKind::OperatorAct, note.omitted);
    }

    /// The disks of the members.
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Renews a session and waits until that is applied, for at most `patience`. It may wait for a
    /// hundredth of the TTL, at most 100 ms, to share a command with others.
    ///
    /// Dropping the future withdraws a renewal that is not proposed yet.
    pub async fn renew(&self, session: SessionId, patience: Duration) -> Result<Renewal, NoReply> {
        if !self.leads() {
            return Err(NoReply::NotLeader);
        }
        if self.cut_off() {
            return Err(NoReply::NoQuorum);
        }

        let ttl = self.table.read(|applied| applied.machine.session(session).map(|session| session.ttl));
        if let (true, Some(ttl)) = (Planted::RenewalAckedEarly.is_on(), ttl) {
            let renewals = self.renewals.clone();
            tokio::spawn(async move { renewals.renew(session, Some(ttl), patience).await });
            return Ok(Renewal::Renewed { ttl, revoked: Vec::new(), more: false });
        }

        self.renewals.renew(session, ttl, patience).await
    }

    /// The last index that this node has both applied and made durable in its own log; 0 while that is unknown.
    ///
    /// A majority commits an entry, so a node may apply it before it is durable on its own disk: after a crash, that node's log ends
    /// before it.
    pub fn applied_and_durable(&self) -> u64 {
        if Planted::NotedBeforeDurable.is_on() {
            return self.table.index();
        }
        let flushed = self.raft.watch_log_progress().get().and_then(|point| point.last_log_id);
        flushed.map_or(0, |last| last.index.min(self.table.index()))
    }

    /// Reads the table, linearizably: everything that was answered before this call is visible.
    ///
    /// One round to a quorum serves all reads that came before it began (the read index of Raft, §6.4 of Ongaro's thesis). `look` must be
    /// short: `apply` waits for it.
    pub async fn read<T>(&self, patience: Duration, look: impl FnOnce(&Applied) -> T) -> Result<T, NoReply> {
        if Planted::ReadWithoutIndex.is_on() {
            return Ok(self.table.read(look));
        }
        if self.cut_off() {
            return Err(NoReply::NoQuorum);
        }
        self.reads.read_index(patience).await?;
        Ok(self.table.read(look))
    }

    /// Reads the table as [`Self::read`] does, and as of the leader's present clock: `look` gets the cluster time to count from.
    ///
    /// What ends is decided by the log, and a deadline that has passed by the leader's clock is not in the log yet. To show it as passed
    /// would be wrong: the clock of a next leader begins at the last stamp of the log, so that a later read could show it as not passed. So
    /// if there is one, this waits until a tick is applied. Otherwise the table is what it would be after that tick.
    ///
    /// Fails as `read` does, and if the tick cannot be proposed. Waits for at most twice `patience`. Cancel safe.
    pub async fn read_on_time<T>(
        &self,
        patience: Duration,
        look: impl FnOnce(&Applied, Stamp) -> T,
    ) -> Result<T, NoReply> {
        if self.cut_off() {
            return Err(NoReply::NoQuorum);
        }
        self.reads.read_index(patience).await?;

        // The clock is read after the quorum has confirmed the leadership: a leader that is cut off must not read it.
        let stamp = self.proposer.stamp().ok_or(NoReply::NotLeader)?;
        let mut look = Some(look);
        let mut look = move |applied: &Applied| {
            look.take().map(|look| look(applied, stamp.max(applied.machine.now()))).expect("it looks once")
        };
        let seen = self.table.read(|applied| (!applied.machine.is_due_by(stamp)).then(|| look(applied)));
        if let Some(seen) = seen {
            return Ok(seen);
        }

        // A tick that was not answered has no effect that matters here.
        let ticked = self.proposer.propose(Command::Tick, patience).await;
        ticked.map_err(|why| if matches!(why, NoReply::Unknown) { NoReply::NotLeader } else { why })?;
        Ok(self.table.read(look))
    }

    /// The other members that keep the cluster below a version: they do not support it, or were not heard lately. Known to the leader.
    pub fn members_without(&self, version: Version) -> BTreeMap<u64, &'static str> {
        self.versions.without(version, &version_raise::others(&self.raft))
    }

    /// This node's table, which may lag behind the others'.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The versions that this node's program supports, those of its peers, and that of the cluster.
    pub fn versions(&self) -> &Arc<PeerVersions> {
        &self.versions
    }

    /// Follows whether this node leads.
    pub fn led(&self) -> Led {
        self.led.clone()
    }

    /// Whether this node leads now, as far as it knows.
    pub fn leads(&self) -> bool {
        self.led.borrow().is_some()
    }

    /// Whether this node leads, but has not heard from a quorum for [`silence_max`](Self::silence_max). It then refuses requests: new
    /// ones would hang, and may never be answered.
    pub fn cut_off(&self) -> bool {
        self.contact.is_lost()
    }

    /// The time without a message from the leader, or for the leader from a quorum, after which a node cannot serve.
    pub fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// While this node leads in this term: the age of the last request that this peer has acknowledged. It is `None` if it acknowledged
    /// none.
    pub fn silence_of(&self, peer: u64, term: u64) -> Option<Duration> {
        self.acknowledgements.silence_of(peer, term)
    }

    /// Why this peer refuses this node's calls, or `None` if it accepts them or does not answer.
    pub fn why_refused(&self, peer: u64) -> Option<String> {
        self.acknowledgements.why_refused(peer)
    }

    /// The leader that this node knows, and its addresses. Not this node itself while it is cut off: other nodes may know a later leader.
    pub fn leader(&self) -> Option<(u64, MemberNode)> {
        self.look_at_leader(|id, node| (id, node.clone()))
    }

    /// The same, without a copy.
    pub fn look_at_leader<T>(&self, look: impl FnOnce(u64, &MemberNode) -> T) -> Option<T> {
        if self.cut_off() {
            return None;
        }
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        let node = metrics.membership_config.get_node(&id)?;
        Some(self.addresses.look(id, node, |node| look(id, node)))
    }

    /// The addresses of the members.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// This node's id.
    pub fn node_id(&self) -> u64 {
        *self.raft.node_id()
    }

    /// Whether a member has answered this node, as leader, within [`silence_max`](Self::silence_max); or is this node.
    pub fn hears(&self, node_id: u64) -> bool {
        let term = self.raft.server_metrics().borrow_watched().vote.leader_id.term;
        node_id == self.node_id() || self.silence_of(node_id, term).is_some_and(|silence| silence <= self.silence_max)
    }

    /// openraft's handle.
    pub fn raft(&self) -> &Raft {
        &self.raft
    }
}
