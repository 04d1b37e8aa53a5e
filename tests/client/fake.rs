//! A scripted node: it answers from a script, records its calls, and can be killed.

#![expect(clippy::unwrap_used, reason = "this is part of a test: a panic is how it fails")]

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    Stream, StreamExt,
    future::{AbortHandle, Abortable},
};
use lockkeeper::proto::v1::{
    cluster_server::{Cluster, ClusterServer},
    keep_alive_response::{Renewed, What},
    locks_server::{Locks, LocksServer},
    pipeline_request::What as Asked,
    pipeline_response::{Failure, What as Told},
    sessions_server::{Sessions, SessionsServer},
    *,
};
use tokio::{
    runtime::Runtime,
    sync::{broadcast, watch},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming, transport::Server};
use tonic_types::{ErrorDetails, StatusExt};

use super::TTL_MS;

type Reply<T> = Result<Response<T>, Status>;

/// Marks an error that ends the pipeline stream of its request.
const ENDS_STREAM: &str = "ends-stream";

/// A call that a node got.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Call {
    Open(OpenSessionRequest),
    Close(CloseSessionRequest),
    Renew(RenewSessionRequest),
    KeepAlive(KeepAliveRequest),
    Acquire(AcquireRequest),
    Release(ReleaseRequest),
    Update(UpdateRequest),
    Get(GetRequest),
    Watch(WatchRequest),
    ForceRelease(ForceReleaseRequest),
    Transfer(TransferLeaderRequest),
    /// The cancellation of a request on a pipeline stream.
    Cancel,
}

/// How a node answers its next acquire, release, get, forced release or transfer of the leadership.
#[derive(Clone)]
pub(crate) enum Answer {
    Refuse(Code, &'static str, &'static str),
    /// A refusal that must not be retried, with a detail and its value.
    RefuseAbout(Code, &'static str, (&'static str, String)),
    /// No answer.
    Hang,
    Busy,
    /// As `Refuse`, but of the whole pipeline stream, which ends.
    EndStream(Code, &'static str),
}

/// A node. Unless its script says otherwise, it grants and renews.
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) fake: Fake,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
pub(crate) struct Fake(Arc<State>);

struct State {
    ttl_ms: Mutex<Option<u32>>,
    /// Revocations in the answer to each unary renewal.
    revoked: Mutex<Vec<Revocation>>,
    script: Mutex<VecDeque<Answer>>,
    /// Answers to opens, as `script` has them for other calls.
    opens: Mutex<VecDeque<Answer>>,
    /// Answers to releases.
    releases: Mutex<VecDeque<Answer>>,
    /// The messages of each of the next watches, before its stream breaks.
    watches: Mutex<VecDeque<Vec<watch_response::What>>>,
    leader: Mutex<Option<String>>,
    /// A node of a version without `Pipeline` and `CloseSession`.
    is_old: Mutex<bool>,
    silent: watch::Sender<bool>,
    push: broadcast::Sender<What>,
    calls: watch::Sender<Vec<Call>>,
}

impl Node {
    pub(crate) fn start() -> Self {
        // No other fake is given the port once this one is killed: it would answer this one's client.
        let listener = lockkeeper::local::free_port().unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = Fake(Arc::new(State {
            ttl_ms: Mutex::default(),
            revoked: Mutex::default(),
            script: Mutex::default(),
            opens: Mutex::default(),
            releases: Mutex::default(),
            watches: Mutex::default(),
            leader: Mutex::default(),
            is_old: Mutex::default(),
            silent: watch::Sender::new(false),
            push: broadcast::Sender::new(16),
            calls: watch::Sender::default(),
        }));
        // Its own runtime: shutting it down breaks all connections at once, as with a killed process.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let services = fake.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            Server::builder()
                .add_service(SessionsServer::new(services.clone()))
                .add_service(LocksServer::new(services.clone()))
                .add_service(ClusterServer::new(services))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        });
        Self { address, fake, runtime: Some(runtime) }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Returns once the sockets are closed. A thread, since tokio forbids this wait inside an asynchronous test.
            let end = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            end.join().unwrap();
        }
    }

    pub(crate) fn answers(&self, answers: impl IntoIterator<Item = Answer>) -> &Self {
        self.fake.0.script.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn answers_opens(&self, answers: impl IntoIterator<Item = Answer>) -> &Self {
        self.fake.0.opens.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn answers_releases(&self, answers: impl IntoIterator<Item = Answer>) -> &Self {
        self.fake.0.releases.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn shows(&self, watches: impl IntoIterator<Item = Vec<watch_response::What>>) {
        self.fake.0.watches.lock().unwrap().extend(watches);
    }

    /// Makes it name this leader from now on.
    pub(crate) fn names_leader(&self, address: &str) {
        *self.fake.0.leader.lock().unwrap() = Some(address.to_owned());
    }

    /// Makes it a node of a version without `Pipeline` and `CloseSession`.
    pub(crate) fn is_old(&self) -> &Self {
        *self.fake.0.is_old.lock().unwrap() = true;
        self
    }

    /// Makes it leave renewals unanswered, or answer them again.
    pub(crate) fn falls_silent(&self, silent: bool) {
        self.fake.0.silent.send_replace(silent);
    }

    /// Makes it report these in the answer to each unary renewal; not on streams.
    pub(crate) fn revokes(&self, revoked: impl IntoIterator<Item = Revocation>) {
        *self.fake.0.revoked.lock().unwrap() = revoked.into_iter().collect();
    }

    /// Sends a message on all keep-alive streams.
    pub(crate) fn says(&self, what: What) {
        self.fake.0.push.send(what).unwrap();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.fake.0.calls.borrow().clone()
    }

    /// Waits for a call for which `pick` returns a value, and returns that value.
    pub(crate) async fn asked<T>(&self, pick: impl Fn(&Call) -> Option<T>) -> T {
        let mut calls = self.fake.0.calls.subscribe();
        let found = async {
            loop {
                if let Some(found) = calls.borrow_and_update().iter().find_map(&pick) {
                    return found;
                }
                calls.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.expect("the node is asked in time")
    }

    pub(crate) async fn asked_to_acquire(&self) -> AcquireRequest {
        self.asked(|call| if let Call::Acquire(request) = call { Some(request.clone()) } else { None }).await
    }

    pub(crate) async fn asked_to_release(&self) -> ReleaseRequest {
        self.asked(|call| if let Call::Release(request) = call { Some(request.clone()) } else { None }).await
    }

    pub(crate) async fn asked_to_close(&self) {
        self.asked(|call| matches!(call, Call::Close(_)).then_some(())).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fake {
    fn note(&self, call: Call) {
        self.0.calls.send_modify(|calls| calls.push(call));
    }

    fn name_leader(&self, metadata: &mut tonic::metadata::MetadataMap) {
        if let Some(leader) = &*self.0.leader.lock().unwrap() {
            metadata.insert("lockkeeper-leader", leader.parse().unwrap());
        }
    }

    fn reply<T>(&self, message: T) -> Reply<T> {
        let mut response = Response::new(message);
        self.name_leader(response.metadata_mut());
        Ok(response)
    }

    /// The next answer of the script, or `usual` if there is none.
    async fn scripted<T>(&self, busy: Option<T>, usual: T) -> Reply<T> {
        let next = self.0.script.lock().unwrap().pop_front();
        self.as_told(next, busy, usual).await
    }

    async fn as_told<T>(&self, next: Option<Answer>, busy: Option<T>, usual: T) -> Reply<T> {
        match next {
            None => self.reply(usual),
            Some(Answer::Busy) => self.reply(busy.unwrap()),
            Some(Answer::Hang) => std::future::pending().await,
            Some(Answer::EndStream(code, reason)) => {
                let mut status = self.refusal(code, reason, [("retry", "no".to_owned())]);
                status.metadata_mut().insert(ENDS_STREAM, "yes".parse().unwrap());
                Err(status)
            }
            Some(Answer::Refuse(code, reason, retry)) => Err(self.refusal(code, reason, [("retry", retry.to_owned())])),
            Some(Answer::RefuseAbout(code, reason, about)) => {
                Err(self.refusal(code, reason, [("retry", "no".to_owned()), about]))
            }
        }
    }

    fn refusal<const N: usize>(&self, code: Code, reason: &str, metadata: [(&str, String); N]) -> Status {
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
        let details = ErrorDetails::with_error_info(reason, "lockkeeper.v1", HashMap::from(metadata));
        let mut status = Status::with_error_details(code, reason, details);
        self.name_leader(status.metadata_mut());
        status
    }
}

impl Fake {
    /// The answer to one request of a pipeline stream. `None` for a cancellation, which has none. An error ends the stream.
    async fn answer(self, request: PipelineRequest) -> Option<Result<PipelineResponse, Status>> {
        let answer = match request.what.unwrap() {
            Asked::Acquire(asked) => self.acquire(Request::new(asked)).await.map(|told| told.map(Told::Acquire)),
            Asked::Release(asked) => self.release(Request::new(asked)).await.map(|told| told.map(Told::Release)),
            Asked::Check(asked) => self.check(Request::new(asked)).await.map(|told| told.map(Told::Check)),
            Asked::Get(asked) => self.get(Request::new(asked)).await.map(|told| told.map(Told::Get)),
            Asked::Cancel(_) => return None,
        };
        let answer = match answer {
            Err(status) if status.metadata().contains_key(ENDS_STREAM) => return Some(Err(status)),
            answer => answer,
        };
        let answer = answer.unwrap_or_else(|status| {
            let code = status.code().into();
            let message = status.message().to_owned();
            let failure = Failure { code, message, details: status.details().to_vec() };
            let mut response = Response::new(Told::Failure(failure));
            *response.metadata_mut() = status.metadata().clone();
            response
        });
        let leader = answer.metadata().get("lockkeeper-leader").map(|leader| leader.to_str().unwrap().to_owned());
        let what = Some(answer.into_inner());
        Some(Ok(PipelineResponse { number: request.number, what, leader: leader.unwrap_or_default() }))
    }
}

fn unused<T>() -> Reply<T> {
    Err(Status::unimplemented("the tests do not ask for this"))
}

#[tonic::async_trait]
impl Sessions for Fake {
    async fn open(&self, request: Request<OpenSessionRequest>) -> Reply<OpenSessionResponse> {
        let request = request.into_inner();
        *self.0.ttl_ms.lock().unwrap() = Some(request.ttl_ms);
        self.note(Call::Open(request.clone()));
        let next = self.0.opens.lock().unwrap().pop_front();
        let opened = OpenSessionResponse { session_id: request.session_id, ttl_ms: request.ttl_ms };
        self.as_told(next, None, opened).await
    }

    async fn renew(&self, request: Request<RenewSessionRequest>) -> Reply<RenewSessionResponse> {
        self.note(Call::Renew(request.into_inner()));
        let ttl_ms = self.0.ttl_ms.lock().unwrap().unwrap_or(TTL_MS);
        let revoked = self.0.revoked.lock().unwrap().clone();
        self.reply(RenewSessionResponse { ttl_ms, revoked, more_revoked: false })
    }

    type KeepAliveStream = Pin<Box<dyn Stream<Item = Result<KeepAliveResponse, Status>> + Send>>;

    async fn keep_alive(&self, request: Request<Streaming<KeepAliveRequest>>) -> Reply<Self::KeepAliveStream> {
        let fake = self.clone();
        let session = Arc::new(Mutex::new(String::new()));
        let known = session.clone();
        let renewals = request.into_inner().filter_map(move |request| {
            let fake = fake.clone();
            let session = session.clone();
            async move {
                let request = request.ok()?;
                // Set before the call is recorded: messages that a test sends after it belong to this session.
                session.lock().unwrap().clone_from(&request.session_id);
                fake.note(Call::KeepAlive(request.clone()));
                // That of the tests if the session was opened at another node.
                let ttl_ms = fake.0.ttl_ms.lock().unwrap().unwrap_or(TTL_MS);
                let what = Some(What::Renewed(Renewed { sequence: request.sequence, ttl_ms, members: Vec::new() }));
                let silent = *fake.0.silent.borrow();
                (!silent).then_some(Ok(KeepAliveResponse { session_id: request.session_id, what }))
            }
        });
        let pushed = tokio_stream::wrappers::BroadcastStream::new(self.0.push.subscribe()).map(move |what| {
            let session_id = known.lock().unwrap().clone();
            Ok(KeepAliveResponse { session_id, what: what.ok() })
        });
        self.reply(Box::pin(futures::stream::select(renewals, pushed)))
    }

    async fn close_session(&self, request: Request<CloseSessionRequest>) -> Reply<CloseSessionResponse> {
        if *self.0.is_old.lock().unwrap() {
            return unused();
        }
        self.note(Call::Close(request.into_inner()));
        self.reply(CloseSessionResponse {})
    }

    async fn close(&self, request: Request<CloseSessionRequest>) -> Reply<CloseSessionResponse> {
        assert!(*self.0.is_old.lock().unwrap(), "the former name is for nodes of the version before");
        self.note(Call::Close(request.into_inner()));
        self.reply(CloseSessionResponse {})
    }

    async fn list(&self, _: Request<ListSessionsRequest>) -> Reply<ListSessionsResponse> {
        unused()
    }
}

#[tonic::async_trait]
impl Locks for Fake {
    async fn acquire(&self, request: Request<AcquireRequest>) -> Reply<AcquireResponse> {
        let request = request.into_inner();
        self.note(Call::Acquire(request.clone()));
        let names = request.locks.iter().map(|want| want.name.clone()).collect();
        let granted = acquire_response::Outcome::Granted(Grant { token: 7, session_id: request.session_id, names });
        let busy = acquire_response::Outcome::Busy(Busy { name: "jobs".into(), ..Busy::default() });
        let response = |outcome| AcquireResponse { outcome: Some(outcome) };
        self.scripted(Some(response(busy)), response(granted)).await
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Reply<ReleaseResponse> {
        self.note(Call::Release(request.into_inner()));
        let next = self.0.releases.lock().unwrap().pop_front();
        self.as_told(next, None, ReleaseResponse { released: Released::Grant.into() }).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Reply<GetResponse> {
        let request = request.into_inner();
        self.note(Call::Get(request.clone()));
        let lock = Some(LockInfo { name: request.name, ..LockInfo::default() });
        self.scripted(None, GetResponse { lock, index: 42 }).await
    }

    async fn force_release(&self, request: Request<ForceReleaseRequest>) -> Reply<ForceReleaseResponse> {
        self.note(Call::ForceRelease(request.into_inner()));
        self.scripted(None, ForceReleaseResponse::default()).await
    }

    async fn remove_waiter(&self, _: Request<RemoveWaiterRequest>) -> Reply<RemoveWaiterResponse> {
        unused()
    }

    async fn lift_delay(&self, _: Request<LiftDelayRequest>) -> Reply<LiftDelayResponse> {
        unused()
    }

    async fn drop_data(&self, _: Request<DropDataRequest>) -> Reply<DropDataResponse> {
        unused()
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Reply<ResizeResponse> {
        unused()
    }

    async fn update(&self, request: Request<UpdateRequest>) -> Reply<UpdateResponse> {
        self.note(Call::Update(request.into_inner()));
        self.reply(UpdateResponse {})
    }

    async fn check(&self, _: Request<CheckRequest>) -> Reply<CheckResponse> {
        unused()
    }

    async fn busiest(&self, _: Request<BusiestRequest>) -> Reply<BusiestResponse> {
        unused()
    }

    async fn list(&self, _: Request<ListRequest>) -> Reply<ListResponse> {
        unused()
    }

    type PipelineStream = Pin<Box<dyn Stream<Item = Result<PipelineResponse, Status>> + Send>>;

    async fn pipeline(&self, request: Request<Streaming<PipelineRequest>>) -> Reply<Self::PipelineStream> {
        if *self.0.is_old.lock().unwrap() {
            return unused();
        }
        let fake = self.clone();
        let under_way = Arc::new(Mutex::new(HashMap::new()));
        let answers = request.into_inner().filter_map(async |request| request.ok()).map(move |request| {
            let (handle, registration) = AbortHandle::new_pair();
            if let Some(Asked::Cancel(_)) = request.what {
                fake.note(Call::Cancel);
                under_way.lock().unwrap().remove(&request.number).iter().for_each(AbortHandle::abort);
            } else {
                under_way.lock().unwrap().insert(request.number, handle);
            }
            Abortable::new(fake.clone().answer(request), registration)
        });
        let answers = answers.buffer_unordered(100).filter_map(async |answer| answer.ok().flatten());
        self.reply(Box::pin(answers))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    /// Sends the next scripted messages and breaks the stream; without a script, keeps it open without messages.
    async fn watch(&self, request: Request<WatchRequest>) -> Reply<Self::WatchStream> {
        self.note(Call::Watch(request.into_inner()));
        match self.0.watches.lock().unwrap().pop_front() {
            Some(messages) => {
                let messages = messages.into_iter().map(|what| Ok(WatchResponse { what: Some(what) }));
                let broken = Err(Status::unavailable("it broke off"));
                self.reply(Box::pin(futures::stream::iter(messages.chain([broken]))))
            }
            None => self.reply(Box::pin(futures::stream::pending())),
        }
    }
}

#[tonic::async_trait]
impl Cluster for Fake {
    async fn status(&self, _: Request<StatusRequest>) -> Reply<StatusResponse> {
        self.reply(StatusResponse { node_id: 1, role: Role::Leader.into(), serving: true, ..StatusResponse::default() })
    }

    async fn add_member(&self, _: Request<AddMemberRequest>) -> Reply<MembershipResponse> {
        unused()
    }

    async fn promote_member(&self, _: Request<PromoteMemberRequest>) -> Reply<MembershipResponse> {
        unused()
    }

    async fn remove_member(&self, _: Request<RemoveMemberRequest>) -> Reply<MembershipResponse> {
        unused()
    }

    async fn replace_member(&self, _: Request<ReplaceMemberRequest>) -> Reply<MembershipResponse> {
        unused()
    }

    async fn transfer_leader(&self, request: Request<TransferLeaderRequest>) -> Reply<TransferLeaderResponse> {
        let request = request.into_inner();
        let leader_id = if request.to_node_id == 0 { 2 } else { request.to_node_id };
        self.note(Call::Transfer(request));
        self.scripted(None, TransferLeaderResponse { leader_id }).await
    }
}
