//! The network as openraft uses it: a client for each peer and purpose, and openraft's calls on it.

use std::{future::Future, marker::PhantomData, sync::Arc, time::Duration};

use futures::Stream;
use openraft::{
    OptionalSend, RaftNetworkFactory,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, ReplicationClosed, StreamingError},
    network::{Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption, RPCTypes},
    raft::SnapshotResponse,
    type_config::alias::SnapshotOf,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};

use super::{
    Acknowledgements, ENTRIES_PATIENCE, HELLO_TIMEOUT, SnapshotSource, allowance, append,
    peer::{PeerClient, Purpose, Reliance, RpcError, stub},
    snapshot,
};
use crate::{
    apply::table_comparison::TableVerdict,
    disk::Disks,
    identity::NodeIdentity,
    log::slow_followers::StreamCuts,
    messages::{self as pb, peer_client::PeerClient as Stub},
    network::{addresses::Addresses, versions::PeerVersions},
    types::*,
};
use lockkeeper_machine::{HASH_FORM, Note};
use lockkeeper_metrics::Metrics;
use lockkeeper_table::{Malformed, MemberNode};
use lockkeeper_transport::{Connector, channel};

/// Makes the clients through which openraft calls the peers. `D` is the type of a snapshot's data.
pub struct Network<C, D> {
    connector: C,
    identity: Arc<NodeIdentity>,
    addresses: Addresses,
    acknowledgements: Acknowledgements,
    cuts: StreamCuts,
    versions: Arc<PeerVersions>,
    snapshots: PhantomData<fn(D)>,
    disks: Disks,
    metrics: Metrics,
}

impl<C: Connector, D: SnapshotSource> Network<C, D> {
    /// The network of the node with this identity.
    pub fn new(connector: C, identity: Arc<NodeIdentity>) -> Self {
        Self {
            connector,
            identity,
            addresses: Addresses::default(),
            acknowledgements: Acknowledgements::default(),
            cuts: StreamCuts::default(),
            versions: Arc::default(),
            snapshots: PhantomData,
            disks: Disks::default(),
            metrics: Metrics::default(),
        }
    }

    /// The acknowledgements that its clients receive from the peers.
    pub fn acknowledgements(&self) -> Acknowledgements {
        self.acknowledgements.clone()
    }

    /// Questions to the members of this network.
    pub fn prober(&self) -> Prober<C, D> {
        let network = Self {
            connector: self.connector.clone(),
            identity: self.identity.clone(),
            addresses: self.addresses.clone(),
            acknowledgements: self.acknowledgements(),
            cuts: self.cuts(),
            versions: Arc::clone(&self.versions),
            snapshots: PhantomData,
            disks: self.disks.clone(),
            metrics: self.metrics.clone(),
        };
        Prober { network }
    }

    /// The handle that ends its streams of entries.
    pub fn cuts(&self) -> StreamCuts {
        self.cuts.clone()
    }

    /// Says these versions, and hears those of the peers.
    pub fn with_versions(self, versions: Arc<PeerVersions>) -> Self {
        Self { versions, ..self }
    }

    /// Looks for the members at these addresses. Otherwise they are where the log says.
    pub fn with_addresses(self, addresses: Addresses) -> Self {
        Self { addresses, ..self }
    }

    /// Records the peers' reports of their disks here.
    pub fn with_disks(self, disks: Disks) -> Self {
        Self { disks, ..self }
    }

    /// Counts there.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    fn client(&self, target: u64, node: &MemberNode, purpose: Purpose) -> PeerClient<C, D> {
        PeerClient {
            connector: self.connector.clone(),
            identity: self.identity.clone(),
            acknowledgements: self.acknowledgements.clone(),
            target,
            incarnation: node.incarnation.or_else(|| self.identity.known(target)),
            addresses: self.addresses.clone(),
            in_log: node.clone(),
            address: String::new(),
            purpose,
            cut: self.cuts.cut_for(target),
            connection: None,
            parked: None,
            refusal: None,
            versions: self.versions.clone(),
            snapshots: PhantomData,
            disks: self.disks.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

/// Asks members for how long they have not heard the leader. Each question uses a connection of its own.
pub struct Prober<C, D> {
    network: Network<C, D>,
}

impl<C: Connector, D: SnapshotSource> Prober<C, D> {
    /// Asks one member, for at most `patience`. Returns the leader's silence there and the end of that member's log. Cancel safe.
    pub async fn ask(
        &self,
        target: u64,
        node: &MemberNode,
        (leader, vote): (u64, Vote),
        patience: Duration,
    ) -> Result<(Duration, Option<LogId>), Status> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.leader_silence(request).await };
        let message = pb::LeaderSilenceRequest { leader, vote: Some((&vote).into()) };
        let mut client = self.network.client(target, node, Purpose::Heartbeats);
        let answer = client.call(RPCTypes::Vote, patience, Reliance::No, method, message).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok((Duration::from_millis(answer.silence_ms), answer.last_log_id.map(LogId::from)))
    }

    /// Asks one member for the hash of its table right after this entry. Returns `None` if it has no hash to compare.
    pub(crate) async fn hash_table(
        &self,
        target: u64,
        node: &MemberNode,
        index: u64,
        patience: Duration,
    ) -> Result<Option<u64>, Status> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.hash_table(request).await };
        let mut client = self.network.client(target, node, Purpose::Heartbeats);
        let message = pb::HashTableRequest { index };
        let answer = client.call(RPCTypes::AppendEntries, patience, Reliance::No, method, message).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(answer.hash.filter(|_| answer.form == HASH_FORM))
    }

    /// Tells one member the outcome of a comparison of tables.
    pub(crate) async fn tell_verdict(
        &self,
        target: u64,
        node: &MemberNode,
        verdict: &TableVerdict,
        patience: Duration,
    ) -> Result<(), Status> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.compare_table(request).await };
        let mut client = self.network.client(target, node, Purpose::Heartbeats);

        let message = pb::CompareTableRequest {
            index: verdict.right.index,
            hash: verdict.right.hash,
            agreeing: verdict.agreeing.clone(),
            is_majority: verdict.is_majority,
        };

        let answer = client.call(RPCTypes::AppendEntries, patience, Reliance::No, method, message).await;
        answer.map(drop).map_err(|error| Status::unavailable(error.to_string()))
    }

    /// Tells one member, the leader, what an operator has done at this node. An error may mean that it is noted all the same.
    pub(crate) async fn tell_note(
        &self,
        target: u64,
        node: &MemberNode,
        note: Note,
        patience: Duration,
    ) -> Result<(), Status> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.note_act(request).await };
        let mut client = self.network.client(target, node, Purpose::Heartbeats);

        let Note { who, act, target, reason, omitted } = note;
        let message = pb::NoteActRequest { who, act, target, reason, omitted };
        let answer = client.call(RPCTypes::AppendEntries, patience, Reliance::No, method, message).await;
        answer.map(drop).map_err(|error| Status::unavailable(error.to_string()))
    }
}

impl<C: Connector, D: SnapshotSource> RaftNetworkFactory<TypeConfig> for Network<C, D> {
    type Network = PeerClient<C, D>;

    async fn new_client(&mut self, target: u64, node: &MemberNode) -> Self::Network {
        self.client(target, node, Purpose::Entries)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &MemberNode) -> Self::Network {
        self.client(target, node, Purpose::Heartbeats)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &MemberNode) -> Self::Network {
        self.client(target, node, Purpose::Snapshots)
    }
}

impl<C: Connector, D: SnapshotSource> NetStreamAppend<TypeConfig> for PeerClient<C, D> {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let opening_max = option.soft_ttl() * ENTRIES_PATIENCE;
        let patience = match self.purpose {
            Purpose::Entries => opening_max,
            Purpose::Heartbeats | Purpose::Snapshots => option.soft_ttl(),
        };

        let answers: BoxStream<'s, _> = Box::pin(append::pipeline(self, input, patience, opening_max));
        Box::pin(std::future::ready(Ok(answers)))
    }
}

impl<C: Connector, D: SnapshotSource> NetVote<TypeConfig> for PeerClient<C, D> {
    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.vote(request).await };
        let message = pb::VoteRequest::from(&request);
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), Reliance::Yes, method, message).await?;
        answer.try_into().map_err(|error| self.malformed_answer(&error))
    }

    async fn pre_vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.pre_vote(request).await };
        let message = pb::VoteRequest::from(&request);
        let answer = self.call(RPCTypes::Vote, option.soft_ttl(), Reliance::No, method, message).await?;
        answer.try_into().map_err(|error| self.malformed_answer(&error))
    }
}

impl<C: Connector, D: SnapshotSource> NetTransferLeader<TypeConfig> for PeerClient<C, D> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse, RpcError> {
        let method = |mut stub: Stub<Channel>, request| async move { stub.transfer_leader(request).await };
        let message = pb::TransferLeaderRequest::from(&request);
        let answer = self.call(RPCTypes::TransferLeader, option.soft_ttl(), Reliance::No, method, message).await?;
        Ok(answer.into_result(&request))
    }
}

impl<C: Connector, D: SnapshotSource> NetSnapshot<TypeConfig> for PeerClient<C, D> {
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
        let opening = self.open();
        let callee = self.callee();
        let (pieces, receiver) = mpsc::channel(2);
        let call = async {
            let (mut stub, envelope) = opening.await?;
            let response = stub.install_snapshot(envelope.address(ReceiverStream::new(receiver))).await?;
            callee.rely_on(response.metadata()).await?;
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
        let vote = vote.map_err(|error| self.malformed_answer(&error))?;
        Ok(SnapshotResponse::new(vote.into()))
    }
}

impl<C: Connector, D: SnapshotSource> NetBackoff<TypeConfig> for PeerClient<C, D> {
    /// Short: a node that comes back is found within 200 ms, and a refused connection is cheap.
    fn backoff(&self) -> Option<Backoff> {
        let pauses_ms = [50, 100].into_iter().chain(std::iter::repeat(200));
        Some(Backoff::new(pauses_ms.map(Duration::from_millis)))
    }
}

/// Asks the node at `address` for its identity. Sends this node's identity, and the `members` of its configuration.
pub async fn hello<C: Connector>(
    connector: &C,
    address: &str,
    asker: &NodeIdentity,
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
