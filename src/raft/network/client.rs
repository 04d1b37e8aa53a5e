//! The client for calls to one peer.

use std::{collections::BTreeMap, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use futures::Stream;
use openraft::{
    OptionalSend, RaftNetworkFactory,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable},
    network::{Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption, RPCTypes},
    raft::SnapshotResponse,
    type_config::alias::SnapshotOf,
};
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status, metadata::MetadataMap, transport::Channel};

use super::{
    Acknowledgements, ENTRIES_PATIENCE, HELLO_TIMEOUT, MESSAGE_BYTES_MAX, SnapshotSource,
    acknowledgements::Sent,
    allowance, append,
    envelope::{self, Envelope},
    snapshot,
};
use crate::{
    proto::internal::{self as pb, peer_client::PeerClient as Stub},
    raft::{
        backlog::Cuts,
        identity::{Identity, Incarnation},
        types::*,
        wire::Malformed,
    },
    transport::{Connect, channel},
};

pub(super) type RpcError = RPCError<TypeConfig>;

/// Makes the clients through which openraft calls the peers. `D` is the type of a snapshot's data.
pub struct Network<C, D> {
    connector: C,
    identity: Arc<Identity>,
    configured: BTreeMap<u64, Node>,
    acknowledgements: Acknowledgements,
    cuts: Cuts,
    snapshots: PhantomData<fn(D)>,
}

/// The client for one peer and one purpose.
pub struct PeerClient<C, D> {
    connector: C,
    identity: Arc<Identity>,
    acknowledgements: Acknowledgements,
    target: u64,
    /// The incarnation that the log names; or, while the log is empty, the one that the founders agreed on.
    incarnation: Option<Incarnation>,
    address: String,
    purpose: Purpose,
    /// Notified when a stream of entries must end.
    cut: Arc<Notify>,
    /// Dropped when a call on it failed: the next call dials again.
    connection: Option<Channel>,
    /// The peer's last refusal: the same one is logged once, not several times a second.
    refusal: Option<String>,
    snapshots: PhantomData<fn(D)>,
}

/// Whether this node relies on a promise in the answer: a vote, or entries on a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

/// The peer that is called.
pub(super) struct Callee {
    identity: Arc<Identity>,
    target: u64,
}

impl Callee {
    /// Remembers the peer's start durably, before its answer counts.
    pub(super) async fn count_on(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(start) = envelope::answered_by(metadata)? else { return Ok(()) };
        let remembered = self.identity.remember_start(self.target, start).await;
        remembered.map_err(|error| Status::internal(error.to_string()))
    }
}

/// The purpose of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Entries,
    Heartbeats,
    Snapshots,
}

impl<C: Connect, D: SnapshotSource> Network<C, D> {
    /// The network of the node with this identity.
    pub fn new(connector: C, identity: Arc<Identity>) -> Self {
        let (configured, acknowledgements, cuts) = Default::default();
        Self { connector, identity, configured, acknowledgements, cuts, snapshots: PhantomData }
    }

    /// The acknowledgements that its clients receive from the peers.
    pub fn acknowledgements(&self) -> Acknowledgements {
        self.acknowledgements.clone()
    }

    /// The handle that ends its streams of entries.
    pub fn cuts(&self) -> Cuts {
        self.cuts.clone()
    }

    /// Uses the configured addresses of these nodes instead of those in the log: a node that moved is found once the other nodes'
    /// configuration has its new address.
    pub fn with_configured(self, configured: BTreeMap<u64, Node>) -> Self {
        Self { configured, ..self }
    }

    fn client(&self, target: u64, node: &Node, purpose: Purpose) -> PeerClient<C, D> {
        PeerClient {
            connector: self.connector.clone(),
            identity: self.identity.clone(),
            acknowledgements: self.acknowledgements.clone(),
            target,
            incarnation: node.incarnation.or_else(|| self.identity.known(target)),
            address: self.configured.get(&target).unwrap_or(node).peer_address.clone(),
            purpose,
            cut: self.cuts.of(target),
            connection: None,
            refusal: None,
            snapshots: PhantomData,
        }
    }
}

impl<C: Connect, D: SnapshotSource> RaftNetworkFactory<TypeConfig> for Network<C, D> {
    type Network = PeerClient<C, D>;

    async fn new_client(&mut self, target: u64, node: &Node) -> Self::Network {
        self.client(target, node, Purpose::Entries)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Self::Network {
        self.client(target, node, Purpose::Heartbeats)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Node) -> Self::Network {
        self.client(target, node, Purpose::Snapshots)
    }
}

impl<C: Connect, D: SnapshotSource> PeerClient<C, D> {
    /// The stub for a call, and the envelope for its message.
    pub(super) fn open(&mut self) -> impl Future<Output = Result<(Stub<Channel>, Envelope), Status>> + Send + 'static {
        let dial = || channel(self.connector.clone(), &self.address);
        let stub = stub(self.connection.get_or_insert_with(dial).clone());
        let (identity, target, incarnation) = (self.identity.clone(), self.target, self.incarnation);
        let acknowledged = self.acknowledgements.of(target);
        async move {
            let unnamed = || {
                let text = format!(
                    "the log does not name the incarnation of node {target}, so a call could reach a copy of its data directory"
                );
                Status::failed_precondition(text)
            };
            Ok((stub, Envelope::new(&identity, target, incarnation.ok_or_else(unnamed)?, acknowledged)))
        }
    }

    /// Numbers a request that is handed to gRPC, by the leader of this term.
    pub(super) fn sending(&self, term: u64) -> Sent {
        self.acknowledgements.sending(term)
    }

    /// Records that the peer accepted a request, and has the entries up to `last` on disk, if it said so.
    pub(super) fn acknowledged(&self, sent: Sent, last: Option<LogId>) {
        self.acknowledgements.acknowledged(self.target, sent);
        if let Some(last) = last {
            self.acknowledgements.matched(self.target, sent, last);
        }
    }

    /// The peer, for relying on its answers.
    pub(super) fn callee(&self) -> Callee {
        Callee { identity: self.identity.clone(), target: self.target }
    }

    /// Notified when this node must end the stream of entries. `None` for heartbeats and snapshots.
    pub(super) fn cut(&self) -> Option<Arc<Notify>> {
        (self.purpose == Purpose::Entries).then(|| Arc::clone(&self.cut))
    }

    /// Converts a failed call into openraft's error, and drops the connection.
    pub(super) fn failed(&mut self, status: &Status) -> RpcError {
        self.connection = None;
        envelope::heed(&self.identity, self.target, status.metadata());
        let text = format!("{:?} to node {} at {}: {}", self.purpose, self.target, self.address, status.message());
        let refused = matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument);
        if refused && self.refusal.as_ref() != Some(&text) {
            tracing::error!("a peer refused this node's call: {text}");
            self.refusal = Some(text.clone());
        }
        // openraft retries `Network` at once, and backs off before it retries `Unreachable`.
        match refused || status.code() == Code::Unavailable {
            true => RPCError::Unreachable(Unreachable::from_string(text)),
            false => RPCError::Network(NetworkError::from_string(text)),
        }
    }

    /// Handles a missing answer: other calls on this connection would time out too.
    pub(super) fn timed_out(&mut self, action: RPCTypes, timeout: Duration) -> RpcError {
        self.connection = None;
        RPCError::Timeout(Timeout { action, id: self.identity.node_id(), target: self.target, timeout })
    }

    /// Handles an answer that cannot be decoded.
    pub(super) fn misunderstood(&mut self, error: &Malformed) -> RpcError {
        self.connection = None;
        RPCError::Network(NetworkError::new(error))
    }

    /// Makes a call with one answer, within `time`.
    async fn call<M, F, A>(
        &mut self,
        action: RPCTypes,
        time: Duration,
        counts: Counts,
        method: impl FnOnce(Stub<Channel>, tonic::Request<M>) -> F + Send,
        message: M,
    ) -> Result<A, RpcError>
    where
        M: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let (opening, callee) = (self.open(), self.callee());
        let answer = timeout(time, async {
            let (stub, envelope) = opening.await?;
            let response = method(stub, envelope.address(message)).await?;
            if counts == Counts::Yes {
                callee.count_on(response.metadata()).await?;
            }
            Ok(response)
        });
        match answer.await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failed(&status)),
            Err(_) => Err(self.timed_out(action, time)),
        }
    }
}

impl<C: Connect, D: SnapshotSource> NetStreamAppend<TypeConfig> for PeerClient<C, D> {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let patience = match self.purpose {
            Purpose::Entries => option.soft_ttl() * ENTRIES_PATIENCE,
            Purpose::Heartbeats | Purpose::Snapshots => option.soft_ttl(),
        };
        let answers: BoxStream<'s, _> = Box::pin(append::pipeline(self, input, patience));
        Box::pin(std::future::ready(Ok(answers)))
    }
}

impl<C: Connect, D: SnapshotSource> NetVote<TypeConfig> for PeerClient<C, D> {
    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.vote(request).await };
        let message = pb::VoteRequest::from(&request);
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), Counts::Yes, method, message).await?;
        answer.try_into().map_err(|error| self.misunderstood(&error))
    }

    async fn pre_vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.pre_vote(request).await };
        let message = pb::VoteRequest::from(&request);
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), Counts::No, method, message).await?;
        answer.try_into().map_err(|error| self.misunderstood(&error))
    }
}

impl<C: Connect, D: SnapshotSource> NetTransferLeader<TypeConfig> for PeerClient<C, D> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.transfer_leader(request).await };
        let message = pb::TransferLeaderRequest::from(&request);
        let answer = self.call(RPCTypes::TransferLeader, option.soft_ttl(), Counts::No, method, message).await?;
        Ok(answer.into_result(&request))
    }
}

impl<C: Connect, D: SnapshotSource> NetSnapshot<TypeConfig> for PeerClient<C, D> {
    type SnapshotData = D;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let source = &snapshot.snapshot;
        let time = option.soft_ttl() + allowance(source.length());
        let (opening, callee) = (self.open(), self.callee());
        let (pieces, receiver) = mpsc::channel(2);
        let call = async {
            let (mut stub, envelope) = opening.await?;
            let response = stub.install_snapshot(envelope.address(ReceiverStream::new(receiver))).await?;
            callee.count_on(response.metadata()).await?;
            Ok(response)
        };
        let transfer = async { tokio::join!(snapshot::send(&vote, &snapshot.meta, source, pieces), call) };

        let (sent, answer) = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            done = timeout(time, transfer) => match done {
                Ok(done) => done,
                Err(_) => return Err(self.timed_out(RPCTypes::InstallSnapshot, time).into()),
            },
        };
        if let Err(error) = sent {
            // A local error: a newer snapshot may just have replaced this one. openraft retries with the newest.
            tracing::error!(%error, "cannot read a snapshot to send it");
            return Err(StreamingError::Network(NetworkError::new(&error)));
        }
        let answer = answer.map_err(|status| self.failed(&status))?.into_inner();
        let vote = answer.vote.ok_or(Malformed("an answer to a snapshot without a vote"));
        let vote = vote.map_err(|error| self.misunderstood(&error))?;
        Ok(SnapshotResponse::new(vote.into()))
    }
}

impl<C: Connect, D: SnapshotSource> NetBackoff<TypeConfig> for PeerClient<C, D> {
    /// Short: a node that comes back is found within 200 ms, and a refused connection is cheap.
    fn backoff(&self) -> Option<Backoff> {
        let pauses_ms = [50, 100].into_iter().chain(std::iter::repeat(200));
        Some(Backoff::new(pauses_ms.map(Duration::from_millis)))
    }
}

/// Asks the node at `address` for its identity. Sends this node's identity, and the `members` of its configuration.
pub async fn hello<C: Connect>(
    connector: &C,
    address: &str,
    asker: &Identity,
    members: Vec<pb::Node>,
) -> Result<pb::HelloResponse, Status> {
    let mut stub = stub(channel(connector.clone(), address));
    let request = pb::HelloRequest {
        cluster_id: asker.cluster_id().to_string(),
        node_id: asker.node_id(),
        incarnation: asker.incarnation().as_bytes().to_vec().into(),
        members,
    };
    let late = |_| Status::unavailable(format!("no answer within {HELLO_TIMEOUT:?}"));
    Ok(timeout(HELLO_TIMEOUT, stub.hello(request)).await.map_err(late)??.into_inner())
}

fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}
