//! What every call to a peer needs: its connection, the envelope, and the meaning of a failure.

use std::{future::Future, marker::PhantomData, sync::Arc, time::Duration};

use openraft::{
    errors::{NetworkError, RPCError, Timeout, Unreachable},
    network::RPCTypes,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tonic::{Code, Response, Status, metadata::MetadataMap, transport::Channel};

use super::{
    Acknowledgements, MESSAGE_BYTES_MAX, SnapshotSource,
    acknowledgements::Sent,
    envelope::{self, Envelope},
    parked::Parked,
};
use crate::messages::{DiskSpace, peer_client::PeerClient as Stub};
use crate::{
    disk::Disks,
    identity::{Incarnation, NodeIdentity},
    network::{addresses::Addresses, versions::PeerVersions},
    types::*,
};
use lockkeeper_metrics::{CommandStage, Metrics};
use lockkeeper_table::{Malformed, MemberNode};
use lockkeeper_transport::{Connector, channel};

pub(super) type RpcError = RPCError<TypeConfig>;

/// The client for one peer and one purpose.
pub struct PeerClient<C, D> {
    pub(super) connector: C,
    pub(super) identity: Arc<NodeIdentity>,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) target: u64,
    /// The incarnation that the log names; or, while the log is empty, the one that the founders agreed on.
    pub(super) incarnation: Option<Incarnation>,
    pub(super) addresses: Addresses,
    /// The peer in the log when this client was made.
    pub(super) in_log: MemberNode,
    /// The address of the connection.
    pub(super) address: String,
    pub(super) purpose: Purpose,
    /// Notified when a stream of entries must end.
    pub(super) cut: Arc<Notify>,
    /// Dropped when a call on it failed: the next call dials again.
    pub(super) connection: Option<PeerConnection>,
    /// A stream on it that waits for the next heartbeat.
    pub(super) parked: Option<Parked>,
    /// The peer's last refusal: the same one is logged once, not several times a second.
    pub(super) refusal: Option<String>,
    pub(super) versions: Arc<PeerVersions>,
    pub(super) snapshots: PhantomData<fn(D)>,
    pub(super) disks: Disks,
    pub(super) metrics: Metrics,
}

/// A connection to the peer.
pub(super) struct PeerConnection {
    channel: Channel,
    dialled_at: Instant,
    /// Whether the peer has answered on it: it is open.
    has_answered: bool,
}

/// Whether this node relies on a promise in the answer: a vote, or entries on a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reliance {
    Yes,
    No,
}

/// The peer that is called.
pub(super) struct Callee {
    identity: Arc<NodeIdentity>,
    versions: Arc<PeerVersions>,
    target: u64,
}

impl Callee {
    /// Remembers the peer's start durably, before its answer counts. Fails if the peer's program does not support the cluster version.
    pub(super) async fn rely_on(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.versions.hear(self.target, metadata, true)?;
        let Some(start) = envelope::answered_by(metadata)? else { return Ok(()) };
        let remembered = self.identity.remember_start(self.target, start).await;
        remembered.map_err(|error| Status::internal(error.to_string()))
    }
}

/// The purpose of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Entries,
    Heartbeats,
    Snapshots,
}

impl<C: Connector, D: SnapshotSource> PeerClient<C, D> {
    /// Takes the peer's report of its disk from an answer.
    pub(super) fn disk_reported(&self, report: Option<DiskSpace>) {
        if let Some(report) = report {
            self.disks.reported(self.target, report.into());
        }
    }

    /// The stub for a call, and the envelope for its message.
    pub(super) fn open(&mut self) -> impl Future<Output = Result<(Stub<Channel>, Envelope), Status>> + Send + 'static {
        let connection = self.connection.get_or_insert_with(|| {
            self.address = self.addresses.peer_address(self.target, &self.in_log);
            let channel = channel(self.connector.to_node(self.target), &self.address);
            PeerConnection { channel, dialled_at: Instant::now(), has_answered: false }
        });

        let stub = stub(connection.channel.clone());
        let identity = self.identity.clone();
        let target = self.target;
        let incarnation = self.incarnation;
        let acknowledged = self.acknowledgements.last_from(target);
        let said = self.versions.said();

        async move {
            let unnamed = || {
                let text = format!(
                    "the log does not name the incarnation of node {target}, so a call could reach a copy of its data directory"
                );
                Status::failed_precondition(text)
            };
            let envelope = Envelope::new(&identity, target, incarnation.ok_or_else(unnamed)?, acknowledged).await?;
            Ok((stub, envelope.saying(said)))
        }
    }

    /// The peer has answered on the connection.
    pub(super) fn answered(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.has_answered = true;
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

    /// Measures a request with entries that the peer has now.
    pub(super) fn replicated(&self, sent: &Sent) {
        self.metrics.took(CommandStage::Replicate, sent.elapsed());
    }

    /// The peer, for relying on its answers.
    pub(super) fn callee(&self) -> Callee {
        Callee { identity: self.identity.clone(), versions: self.versions.clone(), target: self.target }
    }

    /// Notified when this node must end the stream of entries. `None` for heartbeats and snapshots.
    pub(super) fn cut(&self) -> Option<Arc<Notify>> {
        (self.purpose == Purpose::Entries).then(|| Arc::clone(&self.cut))
    }

    /// Drops the connection: the next call dials again, perhaps at another address.
    fn hang_up(&mut self) {
        if self.connection.take().is_some() {
            self.addresses.failed(self.target, &self.in_log, &self.address);
        }
    }

    /// Converts a failed call into openraft's error, and drops the connection.
    pub(super) fn failed(&mut self, status: &Status) -> RpcError {
        self.hang_up();
        envelope::handle_refusal(&self.identity, self.target, status.metadata());

        let text = format!("{:?} to node {} at {}: {}", self.purpose, self.target, self.address, status.message());
        let refused = matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument);
        if refused {
            self.acknowledgements.refused(self.target, &text);
        }

        if refused && self.refusal.as_ref() != Some(&text) {
            tracing::error!("a peer refused this node's call: {text}");
            self.refusal = Some(text.clone());
        }

        // openraft retries `Network` at once, and backs off before it retries `Unreachable`.
        if refused || status.code() == Code::Unavailable {
            RPCError::Unreachable(Unreachable::from_string(text))
        } else {
            RPCError::Network(NetworkError::from_string(text))
        }
    }

    /// Handles a missing answer: other calls on this connection would time out too.
    pub(super) fn timed_out(&mut self, action: RPCTypes, timeout: Duration) -> RpcError {
        self.timed_out_opening(action, timeout, timeout)
    }

    /// The same, for a call that may have waited for the connection to open. A connection on which the peer has not answered yet stays for
    /// the next call, if that call too can be waited for within `opening_max` of the dialling.
    ///
    /// The call that ends here takes nothing of the opening with it: what was dialled goes on as soon as the next call waits for it.
    pub(super) fn timed_out_opening(&mut self, action: RPCTypes, timeout: Duration, opening_max: Duration) -> RpcError {
        let is_opening = |connection: &PeerConnection| {
            !connection.has_answered && connection.dialled_at.elapsed() + timeout <= opening_max
        };
        if !self.connection.as_ref().is_some_and(is_opening) {
            self.hang_up();
        }
        RPCError::Timeout(Timeout { action, id: self.identity.node_id(), target: self.target, timeout })
    }

    /// Handles an answer that cannot be decoded.
    pub(super) fn malformed_answer(&mut self, error: &Malformed) -> RpcError {
        // Not `hang_up`: it was the peer that answered, so another address of it would not help.
        self.connection = None;
        RPCError::Network(NetworkError::new(error))
    }

    /// Makes a call with one answer, within `time`.
    pub(super) async fn call<M, F, A>(
        &mut self,
        action: RPCTypes,
        time: Duration,
        counts: Reliance,
        method: impl FnOnce(Stub<Channel>, tonic::Request<M>) -> F + Send,
        message: M,
    ) -> Result<A, RpcError>
    where
        M: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let opening = self.open();
        let callee = self.callee();

        let answer = timeout(time, async {
            let (stub, envelope) = opening.await?;
            let response = method(stub, envelope.address(message)).await?;
            if counts == Reliance::Yes {
                callee.rely_on(response.metadata()).await?;
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

pub(super) fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}
