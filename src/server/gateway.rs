//! Any node answers: what a client asks of a follower is passed on to the leader, over the peers' port, one hop.
//!
//! Every reply and every error names the leader in its metadata, so that a good client goes there next. While there is no leader,
//! the answer is `UNAVAILABLE`, at once.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, future::ready, stream::unfold};
use openraft::async_runtime::WatchReceiver;
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream, transport::Channel};

use super::{
    deadline::{Deadline, until},
    errors::{deadline_passed, has_reason, leader_not_reached, no_leader, shutting_down, too_many_waits, unknown},
    locks::Locks,
    origin, pipeline,
    sessions::Sessions,
};
use crate::{
    planted::Planted,
    proto::{
        LEADER_KEY,
        v1::{
            self,
            acquire_request::Wait,
            locks_client::LocksClient,
            locks_server::{self, Locks as _},
            pipeline_request::What as Asked,
            pipeline_response::What as Answer,
            sessions_client::SessionsClient,
            sessions_server,
        },
    },
    raft::{Replica, types::Node},
    transport::{Settings, Windows, never_sent},
};

/// Bytes in one message, at the most: 64 locks with their names and data fit.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How long a node that was deposed may still take to answer what was passed on to it: whoever is told that another one leads does not
/// know what became of the request.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Makes a channel to a peer's address, with these windows for what it answers.
pub(super) type Dial = Arc<dyn Fn(&str, Windows) -> Channel + Send + Sync>;

/// The services as clients see them.
#[derive(Clone)]
pub(super) struct Gateway {
    replica: Replica,
    sessions: Sessions,
    locks: Locks,
    dial: Dial,
    stopping: CancellationToken,
    channels: Arc<Mutex<HashMap<(String, Lane), Channel>>>,
    /// Places for acquires that wait at the leader.
    waits: Arc<Semaphore>,
}

/// Connections to the leader that calls share. A connection has a limit of calls under way, and of bytes that nobody has read: what takes long,
/// or is read by a client when it likes, is not in the way of what is short.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Lane {
    /// Calls that are answered as soon as they are applied.
    Short,
    /// Acquires that may wait.
    Waits,
    KeepAlives,
    Watches,
}

/// Acquires that may wait at the leader for clients of this node. One that would wait beyond them is refused: its client is told who leads.
const WAITS_PASSED_ON_MAX: usize = 4096;
// What is passed on finds room on its connection.
const _: () = assert!(WAITS_PASSED_ON_MAX < Settings::PEERS.calls_max as usize);

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// Where a call goes.
enum Route {
    Here,
    /// To the node with this id.
    Leader(u64, Channel),
}

/// What is known of a call that got no answer.
#[derive(Clone, Copy)]
struct Kind {
    /// It changes nothing.
    reads: bool,
    deadline: Option<Deadline>,
}

/// One call that `reads`, `changes` or `waits`: here, or at the leader.
macro_rules! pass_on {
    (reads, $($call:tt)*) => { pass_on!(@ true, Lane::Short, $($call)*) };
    (changes, $($call:tt)*) => { pass_on!(@ false, Lane::Short, $($call)*) };
    (waits, $($call:tt)*) => { pass_on!(@ false, Lane::Waits, $($call)*) };
    (@ $reads:literal, $lane:expr, $self:ident, $request:ident, $here:ident, $client:ident, $call:ident) => {
        match $self.route($lane) {
            Ok(Route::Here) => $self.$here.$call($request).await,
            Ok(Route::Leader(leader, channel)) => {
                let kind = Kind { reads: $reads, deadline: Deadline::of(&$request) };
                let mut client = $client::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
                // Boxed: what is answered here, in most cases, does not carry the room for it about.
                Box::pin($self.while_it_leads(leader, kind, client.$call(onward($request)))).await
            }
            Err(status) => Err(status),
        }
    };
}

impl Gateway {
    /// Refuses new calls once `stopping` is cancelled.
    pub(super) fn new(sessions: Sessions, locks: Locks, dial: Dial, stopping: CancellationToken) -> Self {
        Self {
            replica: locks.replica.clone(),
            sessions,
            locks,
            dial,
            stopping,
            channels: Arc::default(),
            waits: Arc::new(Semaphore::new(WAITS_PASSED_ON_MAX)),
        }
    }

    fn route(&self, lane: Lane) -> Result<Route, Status> {
        if self.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        if self.replica.leads() {
            return Ok(Route::Here);
        }
        match self.replica.leader() {
            // It was elected, but has not applied yet what its predecessors left.
            Some((id, _)) if id == *self.replica.raft().node_id() => Err(no_leader()),
            Some((id, Node { peer_address, .. })) => Ok(Route::Leader(id, self.channel(peer_address, lane))),
            None => Err(no_leader()),
        }
    }

    /// The answer of a node, for as long as no other one is known to lead: one that was deposed may be cut off, and never say so.
    async fn while_it_leads<T>(
        &self,
        leader: u64,
        kind: Kind,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        tokio::select! {
            biased;
            answer = call => answer.map_err(|status| lost(status, kind)),
            () = led_by_other(self.replica.clone(), leader) => Err(moved(kind)),
        }
    }

    /// Whether an acquire would be refused here because too much waits already: what it costs to find that out the usual way is better
    /// spent on what was let in.
    pub(super) fn is_overloaded(&self) -> bool {
        !self.stopping.is_cancelled() && self.replica.is_overloaded()
    }

    fn channel(&self, address: String, lane: Lane) -> Channel {
        let windows = match lane {
            Lane::Short | Lane::Waits => Windows::WIDE,
            Lane::KeepAlives | Lane::Watches => Windows::RELAYED,
        };
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let dial = || (self.dial)(&address, windows);
        channels.entry((address.clone(), lane)).or_insert_with(dial).clone()
    }

    /// An acquire, of a call or of a pipeline.
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        if !may_wait(request.get_ref()) {
            return pass_on!(changes, self, request, locks, LocksClient, acquire);
        }
        // Those that wait here are limited by the table.
        let _place = match self.replica.leads() {
            true => None,
            false => Some(self.waits.try_acquire().map_err(|_| too_many_waits(WAITS_PASSED_ON_MAX))?),
        };
        pass_on!(waits, self, request, locks, LocksClient, acquire)
    }

    /// Where clients reach the leader, if that is known.
    pub(super) fn leader(&self) -> Option<String> {
        self.replica.look_at_leader(|_, node| node.client_address.clone())
    }

    /// Answers a request of a pipeline as the call of its own would be answered.
    pub(super) async fn answer(&self, asked: Asked) -> Result<Answer, Status> {
        match asked {
            Asked::Acquire(message) => answered(self.acquire(Request::new(message)).await, Answer::Acquire),
            Asked::Release(message) => {
                let request = Request::new(message);
                answered(pass_on!(changes, self, request, locks, LocksClient, release), Answer::Release)
            }
            Asked::Check(message) => {
                let request = Request::new(message);
                answered(pass_on!(reads, self, request, locks, LocksClient, check), Answer::Check)
            }
            Asked::Get(message) => answered(self.look_up(Request::new(message)).await, Answer::Get),
            Asked::Cancel(_) => Err(Status::internal("a cancellation is no request")),
        }
    }

    async fn look_up(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        if request.get_ref().stale {
            return self.locks.get(request).await;
        }
        pass_on!(reads, self, request, locks, LocksClient, get)
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

/// Whether the acquire asks to wait.
pub(super) fn may_wait(message: &v1::AcquireRequest) -> bool {
    match message.wait {
        None | Some(Wait::WaitMs(0) | Wait::WaitForever(false)) => false,
        Some(Wait::WaitMs(_) | Wait::WaitForever(true)) => true,
    }
}

/// The same call for the leader, with what is left of the client's time, and with the client's address where that was noted.
fn onward<T>(request: Request<T>) -> Request<T> {
    let (deadline, from) = (Deadline::of(&request), origin::of(&request));
    let mut onward = Request::new(request.into_inner());
    if let Some(deadline) = deadline {
        onward.set_timeout(deadline.left());
    }
    origin::pass_on(from, &mut onward);
    onward
}

/// Returns when another node is known to lead, and has been for as long as the one before may take to answer.
async fn led_by_other(replica: Replica, leader: u64) {
    let mut metrics = replica.raft().server_metrics();
    while metrics.borrow_watched().current_leader.is_none_or(|known| known == leader) {
        if metrics.changed().await.is_err() {
            // This node ends, and its calls with it.
            return std::future::pending().await;
        }
    }
    sleep(LAST_ANSWERS).await;
}

/// Of a call to a node that was deposed and does not answer.
fn moved(kind: Kind) -> Status {
    match kind.reads {
        true => leader_not_reached(),
        false => unknown(
            Code::Unavailable,
            "another node leads now, and the one before does not answer; the request may still take effect: repeat it with the same id",
        ),
    }
}

/// What the transport says of a call that got no answer from the leader, in our terms.
fn lost(status: Status, kind: Kind) -> Status {
    if has_reason(&status) {
        return Status::with_details(status.code(), status.message(), status.details().to_vec().into());
    }
    if kind.deadline.is_some_and(Deadline::has_passed) {
        return deadline_passed(kind.reads);
    }
    match kind.reads || never_sent(&status) || Planted::LostForwardedIsSafe.is_on() {
        true => leader_not_reached(),
        false => unknown(
            Code::Unavailable,
            "the leader could not be reached, or broke off; the request may still take effect",
        ),
    }
}

/// A stream from this leader, for the client, for as long as no other node is known to lead.
fn passed_on<T: Send + 'static>(
    response: Response<Streaming<T>>,
    replica: &Replica,
    leader: u64,
    kind: Kind,
) -> Response<BoxStream<T>> {
    let deposed = Box::pin(led_by_other(replica.clone(), leader));
    let next = move |items: Option<(Streaming<T>, _)>| async move {
        let (mut items, mut deposed) = items?;
        let item = tokio::select! {
            biased;
            item = items.next() => item?.map_err(|status| lost(status, kind)),
            () = &mut deposed => Err(moved(kind)),
        };
        let rest = item.is_ok().then_some((items, deposed));
        Some((item, rest))
    };
    response.map(|items| until(kind.deadline, unfold(Some((items, deposed)), next)))
}

/// As it goes on a pipeline.
fn answered<T>(response: Result<Response<T>, Status>, kind: impl FnOnce(T) -> Answer) -> Result<Answer, Status> {
    response.map(|response| kind(response.into_inner()))
}

#[tonic::async_trait]
impl sessions_server::Sessions for Gateway {
    type KeepAliveStream = BoxStream<v1::KeepAliveResponse>;

    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, sessions, SessionsClient, open))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewSessionRequest>,
    ) -> Result<Response<v1::RenewSessionResponse>, Status> {
        self.name_leader(pass_on!(changes, self, request, sessions, SessionsClient, renew))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<v1::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        // A renewal that is not acknowledged is not counted on.
        let kind = Kind { reads: true, deadline: Deadline::of(&request) };
        let answer = match self.route(Lane::KeepAlives) {
            Ok(Route::Here) => {
                let answers = self.sessions.keep_alive(request).await;
                answers.map(|response| response.map(|stream| until(kind.deadline, stream)))
            }
            Ok(Route::Leader(leader, channel)) => {
                // The client's stream ends for the leader when it ends here, broken or not: there is nothing to add to what came.
                let requests = request.into_inner().scan((), |(), request| ready(request.ok()));
                let mut client = SessionsClient::new(channel);
                let answers = self.while_it_leads(leader, kind, client.keep_alive(requests)).await;
                answers.map(|stream| passed_on(stream, &self.replica, leader, kind))
            }
            Err(status) => Err(status),
        };
        self.name_leader(answer)
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, sessions, SessionsClient, close))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        if request.get_ref().stale {
            return self.name_leader(self.sessions.list(request).await);
        }
        self.name_leader(pass_on!(reads, self, request, sessions, SessionsClient, list))
    }
}

#[tonic::async_trait]
impl locks_server::Locks for Gateway {
    type WatchStream = BoxStream<v1::WatchResponse>;
    type PipelineStream = pipeline::Answers;

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        self.name_leader(Gateway::acquire(self, request).await)
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, release))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::UpdateResponse>, Status> {
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, update))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        self.name_leader(pass_on!(reads, self, request, locks, LocksClient, check))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        self.name_leader(self.look_up(request).await)
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        if request.get_ref().stale {
            return self.name_leader(self.locks.list(request).await);
        }
        self.name_leader(pass_on!(reads, self, request, locks, LocksClient, list))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let kind = Kind { reads: true, deadline: Deadline::of(&request) };
        let answer = match self.route(Lane::Watches) {
            Ok(Route::Here) => {
                let changes = self.locks.watch(request).await;
                changes.map(|response| response.map(|stream| until(kind.deadline, stream)))
            }
            Ok(Route::Leader(leader, channel)) => {
                let mut client = LocksClient::new(channel);
                let changes = self.while_it_leads(leader, kind, client.watch(onward(request))).await;
                changes.map(|stream| passed_on(stream, &self.replica, leader, kind))
            }
            Err(status) => Err(status),
        };
        self.name_leader(answer)
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, force_release))
    }

    async fn remove_waiter(
        &self,
        request: Request<v1::RemoveWaiterRequest>,
    ) -> Result<Response<v1::RemoveWaiterResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, remove_waiter))
    }

    async fn lift_delay(
        &self,
        request: Request<v1::LiftDelayRequest>,
    ) -> Result<Response<v1::LiftDelayResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, lift_delay))
    }

    async fn drop_data(&self, request: Request<v1::DropDataRequest>) -> Result<Response<v1::DropDataResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, drop_data))
    }

    async fn resize(&self, request: Request<v1::ResizeRequest>) -> Result<Response<v1::ResizeResponse>, Status> {
        let request = origin::marked(request);
        self.name_leader(pass_on!(changes, self, request, locks, LocksClient, resize))
    }

    /// Stays here: its requests are passed on one by one, each to who leads at its time.
    async fn pipeline(
        &self,
        request: Request<Streaming<v1::PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        if self.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        let deadline = Deadline::of(&request);
        Ok(Response::new(pipeline::start(self.clone(), request.into_inner(), deadline, self.stopping.clone())))
    }
}
