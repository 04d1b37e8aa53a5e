//! The service that answers the peers' calls.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use openraft::{
    Raft, Snapshot,
    async_runtime::WatchReceiver,
    errors::{Fatal, RaftError},
    storage::RaftStateMachine,
};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    time::timeout,
};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{
    MESSAGE_BYTES_MAX, SNAPSHOT_PIECE_TIMEOUT, SnapshotSink,
    envelope::{self, PeerCaller},
    snapshot,
};
use crate::messages::{
    self as pb,
    peer_server::{Peer, PeerServer},
};
use crate::types::*;
use crate::{
    apply::table_comparison::{TableComparison, TableHash, TableVerdict},
    disk::Disks,
    identity::{Incarnation, NodeIdentity, Stage},
    network::{liveness::PeerLiveness, versions::PeerVersions},
};
use lockkeeper_machine::{HASH_FORM, Note};
use lockkeeper_planted::Planted;
use lockkeeper_table::{Malformed, MemberNode};
use lockkeeper_transport::Remote;

/// Answers the peers' calls for one node: for its state machine `M`, with snapshots arriving in `K`.
///
/// Cheap to clone; clones share the service.
pub struct PeerService<M: RaftStateMachine<TypeConfig>, K> {
    shared: Arc<ServiceState<M, K>>,
}

struct ServiceState<M: RaftStateMachine<TypeConfig>, K> {
    identity: Arc<NodeIdentity>,
    /// The members of the configuration.
    members: Vec<pb::Node>,
    sink: K,
    /// Empty while the node starts.
    raft: OnceLock<Raft<TypeConfig, M>>,
    /// Tells whether a node is a former member, as far as this node has applied its log. Empty while the node starts.
    was_removed: OnceLock<Box<dyn Fn(u64) -> bool + Send + Sync>>,
    /// Serializes the receiving of snapshots.
    receiving: Semaphore,
    /// The reason of the last refusal: the same one is logged once, not several times a second.
    refusal: Mutex<String>,
    broken: mpsc::Sender<u64>,
    broken_streams: Mutex<Option<mpsc::Receiver<u64>>>,
    shorter_logs: Arc<Notify>,
    liveness: Arc<PeerLiveness>,
    /// Set before the node takes part.
    versions: OnceLock<Arc<PeerVersions>>,
    /// Empty: this node does not report its disk.
    disks: OnceLock<Disks>,
    /// Empty: this node's table is compared with no other.
    comparison: OnceLock<Arc<TableComparison>>,
    /// Takes the notes of other members for the audit trail, if this node leads. Empty while the node starts.
    notes: OnceLock<Box<dyn Fn(Note) -> bool + Send + Sync>>,
}

/// Capacity for unhandled broken streams. Further ones would add no information.
const BROKEN_STREAMS: usize = 16;

impl<M, K> PeerService<M, K>
where
    M: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<SnapshotData = M::SnapshotData>,
{
    /// A service that answers only Hello, until [`PeerService::attach`].
    pub fn new(identity: Arc<NodeIdentity>, members: &BTreeMap<u64, MemberNode>, sink: K) -> Self {
        let members = members.iter().map(|(id, node)| pb::Node::new(*id, node)).collect();
        let (broken, broken_streams) = mpsc::channel(BROKEN_STREAMS);

        let shared = ServiceState {
            identity,
            members,
            sink,
            raft: OnceLock::new(),
            was_removed: OnceLock::new(),
            receiving: Semaphore::new(1),
            refusal: Mutex::default(),
            broken,
            broken_streams: Mutex::new(Some(broken_streams)),
            shorter_logs: Arc::default(),
            liveness: Arc::default(),
            versions: OnceLock::new(),
            disks: OnceLock::new(),
            comparison: OnceLock::new(),
            notes: OnceLock::new(),
        };

        Self { shared: Arc::new(shared) }
    }

    /// Answers calls by `raft` from now on, except calls of former members. Only the first call of this function has an effect.
    pub fn attach(&self, raft: Raft<TypeConfig, M>, was_removed: impl Fn(u64) -> bool + Send + Sync + 'static) {
        // Keep this order: calls are admitted as soon as `raft` is set, and no call may be admitted before the removed members are known.
        let _ = self.shared.was_removed.set(Box::new(was_removed));
        let _ = self.shared.raft.set(raft);
    }

    /// Says these versions, and hears those of the peers. Only the first call has an effect.
    pub fn with_versions(self, versions: Arc<PeerVersions>) -> Self {
        let _ = self.shared.versions.set(versions);
        self
    }

    /// Reports this node's disk to the leader from now on, with answers to its appends. Only the first call has an effect.
    pub fn report_disk(&self, disks: Disks) {
        let _ = self.shared.disks.set(disks);
    }

    /// Lets the leader compare this node's table from now on. Only the first call has an effect.
    pub fn compare_table(&self, comparison: Arc<TableComparison>) {
        let _ = self.shared.comparison.set(comparison);
    }

    /// Gives the notes of other members for the audit trail to `take`, which says whether this node leads. Only the first call has an
    /// effect.
    pub fn take_notes(&self, take: impl Fn(Note) -> bool + Send + Sync + 'static) {
        let _ = self.shared.notes.set(Box::new(take));
    }

    /// The ids of peers whose stream of appends broke off instead of ending in order. For one listener: later calls return `None`.
    pub fn broken_streams(&self) -> Option<mpsc::Receiver<u64>> {
        self.shared.broken_streams.lock().expect("no code panics with the lock held").take()
    }

    /// Notified when this node refuses its vote to a candidate because the candidate's log is shorter.
    pub fn shorter_logs(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.shorter_logs)
    }

    /// The connections from the peers.
    pub fn liveness(&self) -> Arc<PeerLiveness> {
        Arc::clone(&self.shared.liveness)
    }

    /// The service for the gRPC server, with its limits.
    pub fn server(&self) -> PeerServer<Self> {
        PeerServer::new(self.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Admits a call: returns the replica, and the caller.
    async fn admit<T>(&self, request: &Request<T>) -> Result<(&Raft<TypeConfig, M>, PeerCaller), Status> {
        let raft = self.shared.raft.get().ok_or_else(|| Status::unavailable("this node is starting"))?;
        let named = |node_id| self.shared.named(node_id);
        let progress = async {
            let progress =
                raft.with_raft_state(|state| (state.vote_ref().leader_id.term, state.log_ids.last().copied()));
            progress.await.map_err(stopped)
        };

        let was_removed = |node_id| self.shared.was_removed(node_id);
        let certified = certified(request);
        let caller =
            envelope::admit(&self.shared.identity, named, was_removed, progress, certified, request.metadata()).await;

        // `Unavailable` asks the caller for its earlier start; it repeats the call at once, so that is not worth a log line.
        let caller = caller.inspect_err(|status| {
            if status.code() != Code::Unavailable {
                self.report(status.message());
            }
        })?;

        let is_member = self.shared.named(caller.node_id).is_some();
        let heard = self.shared.versions().hear(caller.node_id, request.metadata(), is_member);
        heard.inspect_err(|status| self.report(status.message()))?;
        // Last of all: only a call that was admitted is a sign of life. A node that was removed, or that has lost its data, calls for as
        // long as it runs, and must not keep an election away.
        let connection = request.extensions().get::<Remote>();
        if is_member {
            self.shared.liveness.called(caller.node_id, connection);
        } else {
            self.shared.liveness.called_by_other(caller.node_id, connection);
        }
        Ok((raft, caller))
    }

    /// An answer that the other node relies on.
    async fn signed<T>(&self, answer: T) -> Result<Response<T>, Status> {
        let mut response = envelope::signed(&self.shared.identity, answer).await?;
        for (key, value) in self.shared.versions().said() {
            response.metadata_mut().insert(key, value);
        }
        Ok(response)
    }

    fn report(&self, reason: &str) {
        let mut last = self.shared.refusal.lock().expect("no code panics with the lock held");
        if *last != reason {
            tracing::warn!("refused a peer's call: {reason}");
            *last = reason.into();
        }
    }

    fn greeting(&self, asker: &pb::HelloRequest) -> pb::HelloResponse {
        let identity = &self.shared.identity;
        let bytes = |incarnation: Incarnation| incarnation.as_bytes().to_vec().into();
        let is_same_cluster = asker.cluster_id == identity.cluster_id().as_str();
        // If the asker is in another cluster, the id is another node's there.
        let known: Bytes = if is_same_cluster {
            self.shared.named(asker.node_id).map(bytes).unwrap_or_default()
        } else {
            Bytes::default()
        };

        // The asker compares it with its own starts: an older copy of a data directory finds out before it takes part, not by its first
        // vote.
        let remembered = identity.remembered(asker.node_id).and_then(|peer| peer.start).filter(|_| !known.is_empty());

        pb::HelloResponse {
            cluster_id: identity.cluster_id().to_string(),
            node_id: identity.node_id(),
            incarnation: bytes(identity.incarnation()),
            members: self.shared.members.clone(),
            formed: identity.stage() != Stage::New,
            asker_incarnation: known,
            asker_start: remembered.map(|start| start.to_string()).unwrap_or_default(),
            asker_removed: is_same_cluster && self.shared.was_removed(asker.node_id),
        }
    }
}

impl<M: RaftStateMachine<TypeConfig>, K> ServiceState<M, K> {
    fn was_removed(&self, node_id: u64) -> bool {
        let was_removed = self.was_removed.get().is_some_and(|was_removed| was_removed(node_id));
        was_removed && !Planted::RemovedTakenIn.is_on()
    }

    fn versions(&self) -> &Arc<PeerVersions> {
        self.versions.get_or_init(Arc::default)
    }

    /// The incarnation by which this node's log names a member. An empty log names none; then the founders' agreement is used.
    fn named(&self, node_id: u64) -> Option<Incarnation> {
        let in_log = self.raft.get().and_then(|raft| {
            let metrics = raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.membership().get_node(&node_id)?.incarnation
        });
        in_log.or_else(|| self.identity.known(node_id))
    }
}

#[tonic::async_trait]
impl<M, K> Peer for PeerService<M, K>
where
    M: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<SnapshotData = M::SnapshotData>,
{
    async fn hello(&self, request: Request<pb::HelloRequest>) -> Result<Response<pb::HelloResponse>, Status> {
        let named = request.get_ref().node_id;
        let certified = certified(&request);
        if certified.is_some_and(|certified| certified != named) {
            self.report(&format!("its certificate is not node {named}'s"));
            return Err(envelope::certified_as_another(named));
        }
        Ok(Response::new(self.greeting(request.get_ref())))
    }

    type AppendStream = BoxStream<'static, Result<pb::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<pb::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        // On the disk before anything is acknowledged: a leader that comes back as an older copy of itself must be told so by a follower
        // that has its entries.
        caller.rely_on(&self.shared.identity).await?;

        // openraft takes a stream of requests, not of results. So the first invalid request ends the stream for it, and its error waits
        // here until all requests before it are answered.
        let fault = StreamFault::default();
        let broken = self.shared.broken.clone();
        let liveness = self.liveness();
        let guard = StreamGuard { sender: caller.node_id, broken, liveness, in_order: false };
        let sender = Sender { id: caller.node_id, bounds: bounds(raft) };
        let receiver = Receiver { raft: raft.clone(), identity: Arc::clone(&self.shared.identity) };

        let requests = well_formed(request.into_inner(), sender, receiver, guard, fault.clone());
        // The free space rides on answers that are sent anyway: a report of its own would cost a call for each follower and second.
        let mut news = self.shared.disks.get().map(Disks::news);
        let answers = raft.stream_append(requests).map(move |answer| {
            let answer = answer.map(pb::AppendResponse::from).map_err(stopped)?;
            Ok(pb::AppendResponse { disk: news.as_mut().and_then(Iterator::next), ..answer })
        });

        // After the answers to valid requests: the error of the first invalid one.
        let verdict = futures::stream::iter(std::iter::from_fn(move || fault.take()).map(Err));
        self.signed(answers.chain(verdict).boxed()).await
    }

    async fn vote(&self, request: Request<pb::VoteRequest>) -> Result<Response<pb::VoteResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        let request = ballot(request.into_inner(), Sender { id: caller.node_id, bounds: bounds(raft) })?;
        // As for appends, rely on the start first: the candidate may come to lead by this vote, and must not come back as an older copy of
        // itself.
        caller.rely_on(&self.shared.identity).await?;
        let answer = raft.vote(request).await.map_err(unanswered)?;
        self.signed((&answer).into()).await
    }

    async fn pre_vote(&self, request: Request<pb::VoteRequest>) -> Result<Response<pb::VoteResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        let request = ballot(request.into_inner(), Sender { id: caller.node_id, bounds: bounds(raft) })?;
        // A pre-vote promises nothing (§9.6 of Ongaro's thesis): neither does this node remember the caller's start, nor is the answer
        // signed. So pre-votes cost no sync, however many candidates there are.
        let candidate = request.last_log_id;
        let answer = raft.pre_vote(request).await.map_err(unanswered)?;
        // The candidate cannot win against this node, and this node perhaps can. Whoever waits here for its turn learns that the one before
        // it will not do.
        if !answer.vote_granted && answer.last_log_id > candidate {
            self.shared.shorter_logs.notify_one();
        }
        Ok(Response::new((&answer).into()))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        let request: TransferLeaderRequest = request.into_inner().try_into().map_err(malformed)?;
        Sender { id: caller.node_id, bounds: bounds(raft) }.check_vote(request.from_leader())?;
        let answer = raft.handle_transfer_leader(request).await.map_err(stopped)?;
        Ok(Response::new(answer.into()))
    }

    async fn leader_silence(
        &self,
        request: Request<pb::LeaderSilenceRequest>,
    ) -> Result<Response<pb::LeaderSilenceResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        let pb::LeaderSilenceRequest { leader, vote } = request.into_inner();
        let vote = Vote::from(vote.ok_or_else(|| Status::invalid_argument("a question without a vote"))?);

        let seen = raft.with_raft_state(|state| (*state.vote_ref(), state.log_ids.last().copied()));
        let (known, last) = seen.await.map_err(stopped)?;

        // A node that restarted has the vote, not committed, until it hears the leader.
        let follows =
            known <= vote && raft.server_metrics().borrow_watched().current_leader.is_none_or(|led| led == leader);

        // The leader that both follow has compared the caller's start: see [`crate::members::compared_starts`].
        if follows && known == vote && vote.committed {
            caller.rely_on(&self.shared.identity).await?;
        }

        let silence = if follows { self.shared.liveness.counted_silence(leader) } else { Duration::ZERO };
        let silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        Ok(Response::new(pb::LeaderSilenceResponse { silence_ms, last_log_id: last.as_ref().map(Into::into) }))
    }

    async fn hash_table(
        &self,
        request: Request<pb::HashTableRequest>,
    ) -> Result<Response<pb::HashTableResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        follows(raft, &caller)?;
        let hash = match self.shared.comparison.get() {
            Some(comparison) => comparison.hash_at(request.get_ref().index).await,
            None => None,
        };
        Ok(Response::new(pb::HashTableResponse { hash, form: HASH_FORM }))
    }

    async fn compare_table(
        &self,
        request: Request<pb::CompareTableRequest>,
    ) -> Result<Response<pb::CompareTableResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        // The comparison may stop this node, so accept it only from the leader that this node follows.
        follows(raft, &caller)?;
        if let Some(comparison) = self.shared.comparison.get() {
            let pb::CompareTableRequest { index, hash, agreeing, is_majority } = request.into_inner();
            comparison.hear(caller.node_id, &TableVerdict { right: TableHash { index, hash }, agreeing, is_majority });
        }
        Ok(Response::new(pb::CompareTableResponse {}))
    }

    async fn note_act(&self, request: Request<pb::NoteActRequest>) -> Result<Response<pb::NoteActResponse>, Status> {
        self.admit(&request).await?;
        let pb::NoteActRequest { who, act, target, reason, omitted } = request.into_inner();
        let note = Note { who, act, target, reason, omitted };
        match self.shared.notes.get() {
            Some(take) if take(note) => Ok(Response::new(pb::NoteActResponse {})),
            Some(_) | None => {
                Err(Status::unavailable("this node does not lead, so it cannot note an act in the audit trail"))
            }
        }
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<pb::SnapshotPiece>>,
    ) -> Result<Response<pb::SnapshotResponse>, Status> {
        let (raft, caller) = self.admit(&request).await?;
        // A transfer that broke off may still wait for its next piece, for [`SNAPSHOT_PIECE_TIMEOUT`].
        let place = timeout(SNAPSHOT_PIECE_TIMEOUT * 2, self.shared.receiving.acquire()).await;
        let _place = place.map_err(|_| Status::unavailable("this node is receiving another snapshot"))?;

        let sender = Sender { id: caller.node_id, bounds: bounds(raft) };
        let accept = |vote: &Vote, meta: &SnapshotMeta| {
            sender.check_vote(vote)?;
            sender.check_index(meta.last_log_id)
        };
        let (vote, meta, data) = snapshot::receive(&self.shared.sink, request.into_inner(), accept).await?;

        let receiver = Receiver { raft: raft.clone(), identity: Arc::clone(&self.shared.identity) };
        // A snapshot replaces the whole table. One that lacks what this node knows to be committed would take back what clients were told,
        // so it is compared as appends are.
        receiver.compare(sender, vote, meta.last_log_id.into_iter()).await?;
        caller.rely_on(&self.shared.identity).await?;

        let snapshot = Snapshot { meta, snapshot: data };
        let answer = raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        self.signed(pb::SnapshotResponse { vote: Some((&answer.vote).into()) }).await
    }
}

impl<M: RaftStateMachine<TypeConfig>, K> Clone for PeerService<M, K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// Refuses the comparison of tables to all but the leader that this node follows.
fn follows<M: RaftStateMachine<TypeConfig>>(raft: &Raft<TypeConfig, M>, caller: &PeerCaller) -> Result<(), Status> {
    let leader = raft.server_metrics().borrow_watched().current_leader;
    if leader == Some(caller.node_id) {
        Ok(())
    } else {
        Err(Status::aborted(format!("node {} does not lead, as far as this node knows", caller.node_id)))
    }
}

/// The node that the caller's certificate names, or `None` on a connection without certificates.
fn certified<T>(request: &Request<T>) -> Option<u64> {
    request.extensions().get::<Remote>()?.node()
}

/// Why a stream of appends was ended.
#[derive(Clone, Default)]
struct StreamFault(Arc<Mutex<Option<Status>>>);

impl StreamFault {
    fn set(&self, status: Status) {
        *self.0.lock().expect("no code panics with the lock held") = Some(status);
    }

    fn take(&self) -> Option<Status> {
        self.0.lock().expect("no code panics with the lock held").take()
    }
}

/// Reports, when it is dropped, that a peer's stream broke off.
struct StreamGuard {
    sender: u64,
    broken: mpsc::Sender<u64>,
    liveness: Arc<PeerLiveness>,
    in_order: bool,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if !self.in_order {
            // The listener is gone, or enough broken streams wait already.
            let _ = self.broken.try_send(self.sender);
        }
    }
}

/// The node that takes entries.
struct Receiver<M: RaftStateMachine<TypeConfig>> {
    raft: Raft<TypeConfig, M>,
    identity: Arc<NodeIdentity>,
}

impl<M: RaftStateMachine<TypeConfig>> Receiver<M> {
    /// Checks that the leader has the entries that this node knows to be committed: those that it has applied, and after a restart those up
    /// to the index in its identity. `named` are entries of the leader's log, the latest first.
    ///
    /// The leader has every entry that is committed, unless a member has lost what it acknowledged. Raft does not look: it would truncate
    /// what is applied. Only the latest entry that both have needs a look, since all before it follow from it; in nearly all requests there
    /// is none, or it is the last one that was applied.
    ///
    /// If an entry was purged, only the snapshot's end is known. Terms do not fall along a log (§5.3 of the Raft paper), so an entry
    /// before that end with a later term is not the one that this node had there. Neither does Raft look at these: it takes any entry up to
    /// the last one that is committed for its own, and acknowledges it.
    async fn compare(&self, sender: Sender, vote: Vote, mut named: impl Iterator<Item = LogId>) -> Result<(), Status> {
        let applied = self.raft.metrics().borrow_watched().last_applied;
        let committed = applied.map(|applied| applied.index).max(self.identity.committed_index());
        let Some(committed) = committed.filter(|_| !is_loss_planted()) else { return Ok(()) };
        let Some(other) = named.find(|named| named.index <= committed) else { return Ok(()) };
        // The usual case, answered without a turn of Raft's task.
        if Some(other) == applied {
            return Ok(());
        }

        let seen = self.raft.with_raft_state(move |state| {
            let log_ids = &state.log_ids;
            let purged = log_ids.purged().copied().filter(|purged| purged.index > other.index);
            (*state.vote_ref(), log_ids.get(other.index).or(purged))
        });
        let (known, own) = seen.await.map_err(stopped)?;

        // A late request of a leader that was deposed: it may name entries that were never committed, and Raft refuses it.
        if vote < known {
            return Ok(());
        }

        // It is still to come.
        let Some(own) = own else { return Ok(()) };

        let agrees = if own.index == other.index { own == other } else { other.leader_id <= own.leader_id };
        if agrees {
            Ok(())
        } else {
            let disagreement = self.identity.mark_disagreeing(sender.id, committed, own, other);
            Err(envelope::refusal(disagreement))
        }
    }
}

/// Planted bugs that lose data must be found by their effect on the table, not by this check.
fn is_loss_planted() -> bool {
    Planted::OlderCopyTakenIn.is_on() || Planted::LostDataTakenIn.is_on()
}

/// The entries that a request names, the latest first.
fn named(request: &AppendRequest) -> impl Iterator<Item = LogId> {
    request.entries.iter().rev().map(|entry| entry.log_id).chain(request.prev_log_id)
}

/// The requests of a stream up to the first invalid one; its error is put into `fault`.
fn well_formed<M: RaftStateMachine<TypeConfig>>(
    requests: Streaming<pb::AppendRequest>,
    sender: Sender,
    receiver: Receiver<M>,
    guard: StreamGuard,
    fault: StreamFault,
) -> impl Stream<Item = AppendRequest> + Unpin + Send + 'static {
    let check = move |request: pb::AppendRequest| -> Result<AppendRequest, Status> {
        let request: AppendRequest = request.try_into().map_err(malformed)?;
        sender.check_vote(&request.vote)?;
        sender.check_index(request.leader_commit)?;
        sender.check_index(request.prev_log_id)?;
        sender.check_index(request.entries.last().map(|entry| entry.log_id))?;
        Ok(request)
    };

    let next = async move |requests: &mut Streaming<pb::AppendRequest>,
                           guard: &mut StreamGuard,
                           receiver: &Receiver<M>| match requests.message().await? {
        Some(request) => {
            guard.liveness.spoke(guard.sender);
            let request = check(request)?;
            receiver.compare(sender, request.vote, named(&request)).await?;
            Ok(Some(request))
        }
        None => {
            guard.in_order = true;
            Ok(None)
        }
    };

    let requests = futures::stream::unfold((requests, guard, receiver), move |(mut requests, mut guard, receiver)| {
        let fault = fault.clone();
        async move {
            let request = next(&mut requests, &mut guard, &receiver).await;
            let request = request.map_err(|status| fault.set(status)).ok()??;
            Some((request, (requests, guard, receiver)))
        }
    });

    Box::pin(requests)
}

fn ballot(request: pb::VoteRequest, sender: Sender) -> Result<VoteRequest, Status> {
    let request: VoteRequest = request.try_into().map_err(malformed)?;
    sender.check_vote(&request.vote)?;
    sender.check_index(request.last_log_id)?;
    Ok(request)
}

/// How far beyond this node's own term a peer's may be. An election raises it by one, so a peer of this cluster never gets so far; a larger
/// one would leave too few terms for further elections, for good.
const TERMS_AHEAD_MAX: u64 = 1 << 32;
/// The same for the index of an entry. The log of a restored cluster begins at 2^8 for each millisecond since 2020, below this up to 2159,
/// and a new member has no entry.
const ENTRIES_AHEAD_MAX: u64 = 1 << 50;

/// The highest term and the highest index of an entry that a peer may name.
#[derive(Clone, Copy)]
struct IndexBounds {
    term: u64,
    index: u64,
}

fn bounds<M: RaftStateMachine<TypeConfig>>(raft: &Raft<TypeConfig, M>) -> IndexBounds {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    IndexBounds {
        term: metrics.current_term.saturating_add(TERMS_AHEAD_MAX),
        index: metrics.last_log_index.unwrap_or_default().saturating_add(ENTRIES_AHEAD_MAX),
    }
}

/// The peer that sent a request.
#[derive(Clone, Copy)]
struct Sender {
    id: u64,
    bounds: IndexBounds,
}

impl Sender {
    /// Refuses a vote that is not the sender's own, or of a term far beyond this node's.
    fn check_vote(self, vote: &Vote) -> Result<(), Status> {
        own_vote(vote, self.id)?;
        if vote.leader_id.term <= self.bounds.term {
            Ok(())
        } else {
            Err(Status::invalid_argument(format!(
                "node {} is in term {}, far beyond this node's: its data are damaged or forged",
                self.id, vote.leader_id.term
            )))
        }
    }

    /// Refuses an entry far beyond this node's log.
    fn check_index(self, entry: Option<LogId>) -> Result<(), Status> {
        match entry.filter(|entry| entry.index > self.bounds.index) {
            None => Ok(()),
            Some(entry) => Err(Status::invalid_argument(format!(
                "node {} has entry {}, far beyond this node's log: its data are damaged or forged",
                self.id, entry.index
            ))),
        }
    }
}

/// Refuses a vote that is not the sender's own.
fn own_vote(vote: &Vote, sender: u64) -> Result<(), Status> {
    if vote.leader_id.voted_for == sender {
        Ok(())
    } else {
        Err(Status::invalid_argument(format!("node {sender} sent the vote of another node: {vote}")))
    }
}

fn malformed(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

fn unanswered(error: RaftError<TypeConfig>) -> Status {
    Status::unavailable(format!("this node's replica does not answer: {error}"))
}

fn stopped(error: Fatal<TypeConfig>) -> Status {
    Status::unavailable(format!("this node's replica has stopped: {error}"))
}
