//! Any node answers: what a client asks of a follower is passed on to the leader, over the peers' port, one hop.
//!
//! Every reply and every error names the leader in its metadata, so that a good client goes there next. While there is no leader,
//! the answer is `UNAVAILABLE`, at once.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{Stream, StreamExt, TryStreamExt, future::ready};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream, transport::Channel};

use super::{
    errors::{has_reason, no_leader, shutting_down, unknown},
    locks::Locks,
    pipeline,
    sessions::Sessions,
};
use crate::{
    proto::{
        LEADER_KEY,
        v1::{
            self,
            locks_client::LocksClient,
            locks_server::{self, Locks as _},
            pipeline_request::What as Asked,
            pipeline_response::What as Answer,
            sessions_client::SessionsClient,
            sessions_server,
        },
    },
    raft::{Replica, types::Node},
};

/// Bytes in one message, at the most: 64 locks with their names and data fit.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The metadata key by which gRPC carries a call's deadline.
const TIMEOUT_KEY: &str = "grpc-timeout";

/// Makes a channel to a peer's address.
pub(super) type Dial = Arc<dyn Fn(&str) -> Channel + Send + Sync>;

/// The services as clients see them.
#[derive(Clone)]
pub(super) struct Gateway {
    replica: Replica,
    sessions: Sessions,
    locks: Locks,
    dial: Dial,
    stopping: CancellationToken,
    channels: Arc<Mutex<HashMap<String, Channel>>>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// Where a call goes.
enum Route {
    Here,
    Leader(Channel),
}

/// One call: here, or at the leader.
macro_rules! pass_on {
    ($self:ident, $request:ident, $here:ident, $client:ident, $call:ident) => {
        match $self.route() {
            Ok(Route::Here) => $self.$here.$call($request).await,
            Ok(Route::Leader(channel)) => {
                let mut client = $client::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
                // Boxed: what is answered here, in most cases, does not carry the room for it about.
                Box::pin(client.$call(onward($request))).await.map_err(lost)
            }
            Err(status) => Err(status),
        }
    };
}

impl Gateway {
    /// Refuses new calls once `stopping` is cancelled.
    pub(super) fn new(sessions: Sessions, locks: Locks, dial: Dial, stopping: CancellationToken) -> Self {
        Self { replica: locks.replica.clone(), sessions, locks, dial, stopping, channels: Arc::default() }
    }

    fn route(&self) -> Result<Route, Status> {
        if self.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        if self.replica.leads() {
            return Ok(Route::Here);
        }
        match self.replica.leader() {
            // It was elected, but has not applied yet what its predecessors left.
            Some((id, _)) if id == *self.replica.raft().node_id() => Err(no_leader()),
            Some((_, Node { peer_address, .. })) => Ok(Route::Leader(self.channel(&peer_address))),
            None => Err(no_leader()),
        }
    }

    /// Whether an acquire would be refused here because too much waits already: what it costs to find that out the usual way is better
    /// spent on what was let in.
    pub(super) fn is_overloaded(&self) -> bool {
        !self.stopping.is_cancelled() && self.replica.is_overloaded()
    }

    fn channel(&self, address: &str) -> Channel {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry(address.to_string()).or_insert_with(|| (self.dial)(address)).clone()
    }

    /// Where clients reach the leader, if that is known.
    pub(super) fn leader(&self) -> Option<String> {
        self.replica.look_at_leader(|_, node| node.client_address.clone())
    }

    /// Answers a request of a pipeline as the call of its own would be answered.
    pub(super) async fn answer(&self, asked: Asked) -> Result<Answer, Status> {
        match asked {
            Asked::Acquire(message) => {
                let request = Request::new(message);
                answered(pass_on!(self, request, locks, LocksClient, acquire), Answer::Acquire)
            }
            Asked::Release(message) => {
                let request = Request::new(message);
                answered(pass_on!(self, request, locks, LocksClient, release), Answer::Release)
            }
            Asked::Check(message) => {
                let request = Request::new(message);
                answered(pass_on!(self, request, locks, LocksClient, check), Answer::Check)
            }
            Asked::Get(message) => answered(self.look_up(Request::new(message)).await, Answer::Get),
            Asked::Cancel(_) => Err(Status::internal("a cancellation is no request")),
        }
    }

    async fn look_up(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        if request.get_ref().stale {
            return self.locks.get(request).await;
        }
        pass_on!(self, request, locks, LocksClient, get)
    }

    fn name_leader<T>(&self, answer: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        let leader = self.leader().and_then(|address| address.parse().ok());
        match (answer, leader) {
            (Ok(mut response), Some(leader)) => {
                response.metadata_mut().insert(LEADER_KEY, leader);
                Ok(response)
            }
            (Err(mut status), Some(leader)) => {
                status.metadata_mut().insert(LEADER_KEY, leader);
                Err(status)
            }
            (answer, None) => answer,
        }
    }
}

/// The same call for the leader, with the client's deadline.
fn onward<T>(request: Request<T>) -> Request<T> {
    let (metadata, _, message) = request.into_parts();
    let mut onward = Request::new(message);
    if let Some(timeout) = metadata.get(TIMEOUT_KEY) {
        onward.metadata_mut().insert(TIMEOUT_KEY, timeout.clone());
    }
    onward
}

/// What the transport says of a call that got no answer from the leader, in our terms.
fn lost(status: Status) -> Status {
    match has_reason(&status) {
        true => Status::with_details(status.code(), status.message(), status.details().to_vec().into()),
        false => unknown(
            Code::Unavailable,
            "the leader could not be reached, or broke off; the request may still take effect",
        ),
    }
}

/// A stream from the leader, for the client.
fn passed_on<T: Send + 'static>(response: Response<Streaming<T>>) -> Response<BoxStream<T>> {
    response.map(|stream| boxed(stream.map_err(lost)))
}

/// As it goes on a pipeline.
fn answered<T>(response: Result<Response<T>, Status>, kind: impl FnOnce(T) -> Answer) -> Result<Answer, Status> {
    response.map(|response| kind(response.into_inner()))
}

fn boxed<T>(stream: impl Stream<Item = Result<T, Status>> + Send + 'static) -> BoxStream<T> {
    Box::pin(stream)
}

#[tonic::async_trait]
impl sessions_server::Sessions for Gateway {
    type KeepAliveStream = BoxStream<v1::KeepAliveResponse>;

    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        self.name_leader(pass_on!(self, request, sessions, SessionsClient, open))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewSessionRequest>,
    ) -> Result<Response<v1::RenewSessionResponse>, Status> {
        self.name_leader(pass_on!(self, request, sessions, SessionsClient, renew))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<v1::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let answer = match self.route() {
            Ok(Route::Here) => self.sessions.keep_alive(request).await.map(|response| response.map(boxed)),
            Ok(Route::Leader(channel)) => {
                // The client's stream ends for the leader when it ends here, broken or not: there is nothing to add to what came.
                let requests = request.into_inner().scan((), |(), request| ready(request.ok()));
                SessionsClient::new(channel).keep_alive(requests).await.map(passed_on).map_err(lost)
            }
            Err(status) => Err(status),
        };
        self.name_leader(answer)
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.name_leader(pass_on!(self, request, sessions, SessionsClient, close))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        if request.get_ref().stale {
            return self.name_leader(self.sessions.list(request).await);
        }
        self.name_leader(pass_on!(self, request, sessions, SessionsClient, list))
    }
}

#[tonic::async_trait]
impl locks_server::Locks for Gateway {
    type WatchStream = BoxStream<v1::WatchResponse>;
    type PipelineStream = ReceiverStream<Result<v1::PipelineResponse, Status>>;

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        self.name_leader(pass_on!(self, request, locks, LocksClient, acquire))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.name_leader(pass_on!(self, request, locks, LocksClient, release))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::UpdateResponse>, Status> {
        self.name_leader(pass_on!(self, request, locks, LocksClient, update))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        self.name_leader(pass_on!(self, request, locks, LocksClient, check))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        self.name_leader(self.look_up(request).await)
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        if request.get_ref().stale {
            return self.name_leader(self.locks.list(request).await);
        }
        self.name_leader(pass_on!(self, request, locks, LocksClient, list))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let answer = match self.route() {
            Ok(Route::Here) => self.locks.watch(request).await.map(|response| response.map(boxed)),
            Ok(Route::Leader(channel)) => {
                let mut client = LocksClient::new(channel);
                client.watch(onward(request)).await.map(passed_on).map_err(lost)
            }
            Err(status) => Err(status),
        };
        self.name_leader(answer)
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        self.name_leader(pass_on!(self, request, locks, LocksClient, force_release))
    }

    /// Stays here: its requests are passed on one by one, each to who leads at its time.
    async fn pipeline(
        &self,
        request: Request<Streaming<v1::PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        if self.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        Ok(Response::new(pipeline::start(self.clone(), request.into_inner(), self.stopping.clone())))
    }
}
