//! The services of `lockkeeper.v1` at a node: sessions, locks, and as much of the rest as clients ask for.

use std::{collections::HashMap, pin::Pin};

use futures::{FutureExt as _, Stream, future::ready};
use lockkeeper_machine::{Command, LockName, Page, Refusal, Reply, SessionId, Ticket, Token};
use lockkeeper_proto::v1::{
    acquire_response::Outcome,
    cluster_server::Cluster,
    locks_server::Locks,
    pipeline_request::What as Asked,
    pipeline_response::{Failure, What as Told},
    sessions_server::Sessions,
    *,
};
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::{
    arrivals::{Arrival, Method},
    keeping::KeepAliveStream,
    node::{Answering, Node},
    outbox::{Delivery, Outbox, UNREAD_MAX},
    watching::WatchStream,
    wire,
};

type Answer<T> = Result<Response<T>, Status>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("this fake does not know the call"))
}

fn now<T: Send + 'static>(answer: Result<T, Status>) -> Answering<T> {
    ready(answer).boxed()
}

/// The page that holds a whole lock.
fn whole(holders_after: u64, waiters_after: u64) -> Page {
    Page { size: 1_000, holders_after: Token(holders_after), waiters_after: Ticket(waiters_after) }
}

impl Node {
    /// Fails if the table has no record of the session.
    pub(crate) fn check_known(&self, session: &str) -> Result<(), Status> {
        let session = wire::session_id(session)?;
        if self.cluster.table().is_forgotten(session) {
            return Err(wire::session_over(lockkeeper_machine::SessionEnd::Unknown));
        }
        Ok(())
    }

    /// Applies a request of a session. Notes mistakes in its id.
    fn apply(&self, session: &str, command: Result<Command, Status>) -> Result<Reply, Status> {
        self.check_known(session)?;
        let command = command?;
        let reply = self.cluster.change(|table| table.apply(command));
        let Reply::Refused(refusal) = reply else { return Ok(reply) };
        if matches!(refusal, Refusal::RequestReused | Refusal::RequestStale { .. }) {
            self.cluster.table().mistakes.push(format!("{refusal:?} of session {session}"));
        }
        Err(wire::show_refusal(refusal))
    }

    fn begin_acquire(&self, request: AcquireRequest) -> Answering<AcquireResponse> {
        let session = request.session_id.clone();
        let busy = |busy| Ok(AcquireResponse { outcome: Some(Outcome::Busy(wire::show_busy(busy))) });
        match self.apply(&session, wire::acquire_command(request)) {
            Ok(Reply::Acquired(end)) => now(wire::show_end(end)),
            Ok(Reply::Busy(lock)) => now(busy(lock)),
            Ok(Reply::Queued(ticket)) => self.clone().end_of_wait(ticket).boxed(),
            Ok(other) => now(Err(Status::internal(format!("{other:?}")))),
            Err(why) => now(Err(why)),
        }
    }

    /// Waits for the end of a wait, or until the leader breaks off its calls.
    async fn end_of_wait(self, ticket: Ticket) -> Result<AcquireResponse, Status> {
        let mut applied = self.cluster.applied();
        let mut term = self.cluster.term.subscribe();
        loop {
            applied.mark_unchanged();
            if let Some(end) = self.cluster.table().end_of_wait(ticket) {
                return wire::show_end(end);
            }
            tokio::select! {
                _ = applied.changed() => {}
                _ = term.changed() => return Err(wire::refusal(Code::Unavailable, "OUTCOME_UNKNOWN", "same-id")),
            }
        }
    }

    fn begin_release(&self, request: ReleaseRequest) -> Answering<ReleaseResponse> {
        let session = request.session_id.clone();
        now(self.apply(&session, wire::release_command(request)).map(|reply| {
            let released = if matches!(reply, Reply::Released(lockkeeper_machine::Released::Grant)) {
                Released::Grant
            } else if matches!(reply, Reply::Released(lockkeeper_machine::Released::Wait)) {
                Released::Wait
            } else {
                Released::Nothing
            };
            ReleaseResponse { released: released.into() }
        }))
    }

    fn begin_get(&self, request: &GetRequest) -> Answering<GetResponse> {
        let Ok(name) = LockName::new(&request.name) else {
            return now(Err(wire::refusal(Code::InvalidArgument, "INVALID_ARGUMENT", "no")));
        };
        let table = self.cluster.table();
        let lock = table.machine().lock(&name, whole(request.holders_after, request.waiters_after));
        now(Ok(GetResponse { lock: Some(wire::show_lock(lock)), index: table.index() }))
    }

    fn begin_check(&self, request: &CheckRequest) -> Answering<CheckResponse> {
        let Ok(name) = LockName::new(&request.name) else {
            return now(Err(wire::refusal(Code::InvalidArgument, "INVALID_ARGUMENT", "no")));
        };
        let table = self.cluster.table();
        let holder = table.machine().holder(&name, Token(request.token)).map(wire::show_holder);
        let (held, last_token) = (holder.is_some(), table.machine().last_token().0);
        now(Ok(CheckResponse { held, holder, last_token, index: table.index() }))
    }

    fn begin_force_release(&self, request: &ForceReleaseRequest) -> Answering<ForceReleaseResponse> {
        let force = || -> Result<_, lockkeeper_machine::Invalid> {
            Ok(lockkeeper_machine::ForceRelease {
                name: LockName::new(&request.name)?,
                token: (request.token > 0).then_some(Token(request.token)),
                after: Token(request.after_token),
                up_to: None,
                reason: lockkeeper_machine::Reason::new(&request.reason)?,
                now: request.now,
                by: None,
            })
        };
        let Ok(force) = force() else {
            return now(Err(wire::refusal(Code::InvalidArgument, "INVALID_ARGUMENT", "no")));
        };
        let Reply::Forced { grants, .. } = self.cluster.change(|table| table.apply(Command::ForceRelease(force)))
        else {
            return now(Err(Status::internal("a forced release has another reply")));
        };
        let forced = grants.into_iter().map(|forced| force_release_response::Forced {
            token: forced.token.0,
            session_id: forced.session.to_string(),
            label: forced.label.as_str().to_owned(),
            remaining_ms: forced.remaining_ms,
            lock_delay_ms: forced.lock_delay_ms,
        });
        now(Ok(ForceReleaseResponse { forced: forced.collect(), more_up_to_token: 0 }))
    }

    fn begin_close(&self, request: &CloseSessionRequest) -> Answering<CloseSessionResponse> {
        let session = match wire::session_id(&request.session_id) {
            Ok(session) => session,
            Err(why) => return now(Err(why)),
        };
        let close = Command::Close { session, by: None, reason: None };
        now(self.apply(&request.session_id, Ok(close)).map(|_| CloseSessionResponse {}))
    }

    async fn answer_close(&self, request: CloseSessionRequest) -> Answer<CloseSessionResponse> {
        let arrival = Arrival::new(Method::Close, self.number).with("session", &request.session_id);
        let node = self.clone();
        self.call(arrival, move || node.begin_close(&request)).await
    }

    /// One request of a pipeline stream. `None`: a cancellation, which has no answer.
    async fn answer(self, stream: u64, request: PipelineRequest) -> Option<(PipelineResponse, Delivery)> {
        let node = self.clone();
        let (answer, delivery) = match request.what? {
            Asked::Acquire(asked) => {
                let arrival = Arrival::from_acquire(self.number, &asked).on(stream);
                let played = self.play(arrival, move || node.begin_acquire(asked)).await;
                (played.answer.map(Told::Acquire), played.delivery)
            }
            Asked::Release(asked) => {
                let arrival = Arrival::from_release(self.number, &asked).on(stream);
                let played = self.play(arrival, move || node.begin_release(asked)).await;
                (played.answer.map(Told::Release), played.delivery)
            }
            Asked::Check(asked) => {
                let arrival = Arrival::new(Method::Check, self.number).with("name", &asked.name).on(stream);
                let played = self.play(arrival, move || node.begin_check(&asked)).await;
                (played.answer.map(Told::Check), played.delivery)
            }
            Asked::Get(asked) => {
                let arrival = Arrival::new(Method::Get, self.number).with("name", &asked.name).on(stream);
                let played = self.play(arrival, move || node.begin_get(&asked)).await;
                (played.answer.map(Told::Get), played.delivery)
            }
            Asked::Cancel(_) => return None,
        };
        let told = answer.unwrap_or_else(|status| {
            let details = status.details().to_vec();
            Told::Failure(Failure { code: status.code().into(), message: status.message().to_owned(), details })
        });
        let leader = self.cluster.leader_address().unwrap_or_default();
        Some((PipelineResponse { number: request.number, what: Some(told), leader }, delivery))
    }

    /// Serves a pipeline stream until the client ends it.
    async fn serve_pipeline(
        self,
        stream: u64,
        mut requests: Streaming<PipelineRequest>,
        mut outbox: Outbox<PipelineResponse>,
    ) {
        let (answered, mut answers) = mpsc::channel(UNREAD_MAX);
        let mut under_way: HashMap<u64, AbortHandle> = HashMap::new();
        loop {
            tokio::select! {
                request = requests.message() => {
                    let Ok(Some(request)) = request else { break };
                    if let Some(Asked::Cancel(_)) = request.what {
                        self.cluster.arrivals.note(Arrival::new(Method::Cancel, self.number).on(stream));
                        under_way.remove(&request.number).iter().for_each(AbortHandle::abort);
                        continue;
                    }
                    let (number, answered) = (request.number, answered.clone());
                    let answering = self.clone().answer(stream, request);
                    let task = tokio::spawn(async move {
                        if let Some(answer) = answering.await {
                            // An error means that the stream is over.
                            let _ = answered.send(answer).await;
                        }
                    });
                    under_way.insert(number, task.abort_handle());
                }
                answer = answers.recv() => {
                    let Some((answer, delivery)) = answer else { break };
                    under_way.remove(&answer.number);
                    if outbox.send(answer, delivery).await.is_err() {
                        break;
                    }
                }
            }
        }
        under_way.values().for_each(AbortHandle::abort);
    }
}

#[tonic::async_trait]
impl Sessions for Node {
    async fn open(&self, request: Request<OpenSessionRequest>) -> Answer<OpenSessionResponse> {
        let request = request.into_inner();
        let mut arrival = Arrival::new(Method::Open, self.number).with("session", &request.session_id);
        arrival.content = format!("{} {}", request.ttl_ms, request.label);
        let node = self.clone();
        let begin = move || {
            let opened = wire::open_command(&request).and_then(|(session, command)| {
                let reply = node.apply(&request.session_id, Ok(command))?;
                let Reply::Opened(ttl) = reply else { return Err(Status::internal(format!("{reply:?}"))) };
                let ttl_ms = node.cluster.told_ttl_ms(ttl);
                Ok(OpenSessionResponse { session_id: session.to_string(), ttl_ms })
            });
            now(opened)
        };
        self.call(arrival, begin).await
    }

    async fn renew(&self, request: Request<RenewSessionRequest>) -> Answer<RenewSessionResponse> {
        let session = request.into_inner().session_id;
        let arrival = Arrival::new(Method::Renew, self.number).with("session", &session);
        let node = self.clone();
        self.call(arrival, move || now(node.renew_now(&session).map(|renewed| renewed.1))).await
    }

    type KeepAliveStream = Messages<KeepAliveResponse>;

    async fn keep_alive(&self, request: Request<Streaming<KeepAliveRequest>>) -> Answer<Self::KeepAliveStream> {
        let stream = self.cluster.new_stream();
        if let Err(why) = self.open_stream(Method::Stream, stream).await {
            return self.reply(Err(why));
        }
        let (outbox, answers) = Outbox::new();
        tokio::spawn(KeepAliveStream::new(self.clone(), stream, outbox).serve(request.into_inner()));
        self.reply(Ok(Box::pin(ReceiverStream::new(answers))))
    }

    async fn close_session(&self, request: Request<CloseSessionRequest>) -> Answer<CloseSessionResponse> {
        if self.is_old() {
            return unused();
        }
        self.answer_close(request.into_inner()).await
    }

    async fn close(&self, request: Request<CloseSessionRequest>) -> Answer<CloseSessionResponse> {
        self.answer_close(request.into_inner()).await
    }

    async fn list(&self, _: Request<ListSessionsRequest>) -> Answer<ListSessionsResponse> {
        unused()
    }
}

impl Node {
    /// Renews a session once.
    pub(crate) fn renew_now(&self, session: &str) -> Result<(SessionId, RenewSessionResponse), Status> {
        let id = wire::session_id(session)?;
        let reply = self.apply(session, Ok(Command::Renew { sessions: vec![id] }))?;
        let Reply::Renewed(renewals) = reply else { return Err(Status::internal(format!("{reply:?}"))) };
        match renewals.into_iter().next() {
            Some(lockkeeper_machine::Renewal::Renewed { ttl, revoked, more }) => {
                let revoked = revoked.iter().map(wire::show_revocation).collect();
                let ttl_ms = self.cluster.told_ttl_ms(ttl);
                Ok((id, RenewSessionResponse { ttl_ms, revoked, more_revoked: more }))
            }
            Some(lockkeeper_machine::Renewal::Ended(end)) => Err(wire::session_over(end)),
            None => Err(Status::internal("a renewal without a reply")),
        }
    }
}

#[tonic::async_trait]
impl Locks for Node {
    async fn acquire(&self, request: Request<AcquireRequest>) -> Answer<AcquireResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        self.call(Arrival::from_acquire(self.number, &request), move || node.begin_acquire(request)).await
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Answer<ReleaseResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        self.call(Arrival::from_release(self.number, &request), move || node.begin_release(request)).await
    }

    async fn update(&self, request: Request<UpdateRequest>) -> Answer<UpdateResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        let arrival = Arrival::from_update(self.number, &request);
        let begin = move || {
            let session = request.session_id.clone();
            now(node.apply(&session, wire::update_command(request)).map(|_| UpdateResponse {}))
        };
        self.call(arrival, begin).await
    }

    async fn check(&self, request: Request<CheckRequest>) -> Answer<CheckResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        let arrival = Arrival::new(Method::Check, self.number).with("name", &request.name);
        self.call(arrival, move || node.begin_check(&request)).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        let arrival = Arrival::new(Method::Get, self.number).with("name", &request.name);
        self.call(arrival, move || node.begin_get(&request)).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        let arrival = Arrival::new(Method::List, self.number).with("name", &request.prefix);
        let begin = move || {
            let table = node.cluster.table();
            let names: Vec<LockName> = table.machine().locks(&request.prefix, None).cloned().collect();
            let locks = names.iter().map(|name| wire::show_lock(table.machine().lock(name, whole(0, 0)))).collect();
            now(Ok(ListResponse { locks, next_page_token: String::new(), index: table.index() }))
        };
        self.call(arrival, begin).await
    }

    async fn force_release(&self, request: Request<ForceReleaseRequest>) -> Answer<ForceReleaseResponse> {
        let (request, node) = (request.into_inner(), self.clone());
        let arrival = Arrival::new(Method::ForceRelease, self.number).with("name", &request.name);
        let arrival = arrival.with("token", request.token);
        self.call(arrival, move || node.begin_force_release(&request)).await
    }

    async fn remove_waiter(&self, _: Request<RemoveWaiterRequest>) -> Answer<RemoveWaiterResponse> {
        unused()
    }

    async fn lift_delay(&self, _: Request<LiftDelayRequest>) -> Answer<LiftDelayResponse> {
        unused()
    }

    async fn drop_data(&self, _: Request<DropDataRequest>) -> Answer<DropDataResponse> {
        unused()
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Answer<ResizeResponse> {
        unused()
    }

    async fn busiest(&self, _: Request<BusiestRequest>) -> Answer<BusiestResponse> {
        unused()
    }

    type WatchStream = Messages<WatchResponse>;

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let request = request.into_inner();
        let arrival = Arrival::new(Method::Watch, self.number).with("name", &request.prefix);
        let arrival = arrival.with("after_index", request.after_index);
        let opened = self.play(arrival, || now(Ok(()))).await;
        if let Err(why) = opened.answer {
            return self.reply(Err(why));
        }
        let (outbox, answers) = Outbox::new();
        tokio::spawn(WatchStream::new(self.clone(), request, outbox).serve());
        self.reply(Ok(Box::pin(ReceiverStream::new(answers))))
    }

    type PipelineStream = Messages<PipelineResponse>;

    async fn pipeline(&self, request: Request<Streaming<PipelineRequest>>) -> Answer<Self::PipelineStream> {
        if self.is_old() {
            return unused();
        }
        let stream = self.cluster.new_stream();
        if let Err(why) = self.open_stream(Method::Pipeline, stream).await {
            return self.reply(Err(why));
        }
        let (outbox, answers) = Outbox::new();
        tokio::spawn(self.clone().serve_pipeline(stream, request.into_inner(), outbox));
        self.reply(Ok(Box::pin(ReceiverStream::new(answers))))
    }
}

#[tonic::async_trait]
impl Cluster for Node {
    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        self.cluster.arrivals.note(Arrival::new(Method::Status, self.number));
        let leader = self.cluster.leading().node.unwrap_or_default();
        let role = if leader == self.number { Role::Leader } else { Role::Follower };
        self.reply(Ok(StatusResponse {
            cluster_id: "fake".to_owned(),
            node_id: self.number as u64,
            leader_id: leader as u64,
            role: role.into(),
            serving: leader > 0,
            ..StatusResponse::default()
        }))
    }

    async fn add_member(&self, _: Request<AddMemberRequest>) -> Answer<MembershipResponse> {
        unused()
    }

    async fn promote_member(&self, _: Request<PromoteMemberRequest>) -> Answer<MembershipResponse> {
        unused()
    }

    async fn remove_member(&self, _: Request<RemoveMemberRequest>) -> Answer<MembershipResponse> {
        unused()
    }

    async fn replace_member(&self, _: Request<ReplaceMemberRequest>) -> Answer<MembershipResponse> {
        unused()
    }

    async fn transfer_leader(&self, _: Request<TransferLeaderRequest>) -> Answer<TransferLeaderResponse> {
        unused()
    }
}
