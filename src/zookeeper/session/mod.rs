//! A client whose session is open: its requests, one after the other, and the order of its answers and events.
//!
//! ```text
//! handshake   the first frame: a new session, or one that goes on
//! outgoing    what is about to be sent, in the budget of the port
//! reads       requests that look at the state of this node
//! replies     what writes answer
//! watching    watches that are set again, looked for, removed
//! ```

mod handshake;
mod outgoing;
mod reads;
mod replies;
mod watching;

use std::{net::SocketAddr, sync::Arc, sync::atomic::Ordering::Relaxed};

use bytes::BytesMut;
use tokio::time::{Duration, Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    CloseOutcome, NumberedSession, ZookeeperCaller, ZookeeperIdentity, ZookeeperStore, ZookeeperStoreError,
    node::ZookeeperNode,
    tree::ClientIdentities,
    watches::{EventOutbox, WatcherId, WatchingClient},
    wire::{ClientRequest, ErrorCode, JuteWriter, RequestHeader, WriteOperation},
    writes::{WriteContext, WriteOutcome, execute, execute_each},
};
pub(crate) use handshake::{Greeting, greet};
pub(crate) use outgoing::OutgoingFrames;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClosingReason {
    /// The client has closed it, or it broke.
    Gone,
    /// The written answers are sent, and then the connection is closed.
    AfterReplies,
    /// It is closed at once.
    AtOnce,
}

/// What a request is answered.
struct RequestAnswer {
    /// The revision that it shows; `None` for an answer that shows none, and says 0.
    revision: Option<u64>,
    result: Result<Vec<u8>, ErrorCode>,
    /// Whether the connection ends after it.
    is_last: bool,
}

impl RequestAnswer {
    fn new(revision: u64, result: Result<Vec<u8>, ErrorCode>) -> Self {
        Self { revision: Some(revision), result, is_last: false }
    }

    fn last(self) -> Self {
        Self { is_last: true, ..self }
    }

    /// The number of its bytes, without the header.
    fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, Vec::len)
    }
}

/// What lasts from one request to the next.
pub(crate) struct ClientSession<S> {
    node: Arc<ZookeeperNode<S>>,
    /// The session, as this connection has it.
    attached: NumberedSession,
    id: WatcherId,
    /// Events for this connection.
    outbox: Arc<EventOutbox>,
    address: SocketAddr,
    /// Who the client is for the policy of the store.
    identity: Option<String>,
    /// Who the client is for access lists.
    identities: Arc<ClientIdentities>,
    /// The highest revision that it was told.
    last_told: u64,
    /// Whether the session began with this connection.
    has_opened: bool,
    /// The time that the session lives without a sign of life.
    ttl: Duration,
    /// Time limit of a request.
    request_timeout: Duration,
    /// Lives for as long as the connection does.
    open: Arc<()>,
    /// Ends the connection when the password or the certificate that has proven its identity counts no more.
    proof: Option<AbortOnDropHandle<()>>,
    /// Whether the client has ended its session.
    is_closed: bool,
}

impl<S> ClientSession<S> {
    /// Events for this connection.
    pub(crate) fn outbox(&self) -> &Arc<EventOutbox> {
        &self.outbox
    }
}

impl<S: ZookeeperStore> ClientSession<S> {
    /// The client, with the deadline of a request that begins now.
    fn caller(&self) -> ZookeeperCaller {
        let deadline = Instant::now() + self.request_timeout;
        ZookeeperCaller { identity: self.identity.clone(), address: self.address, deadline, is_port: false }
    }

    /// Appends the events that are there. Between two requests, all of them are for revisions that the next reply shows.
    pub(crate) fn take_events(&self, out: &mut Vec<u8>) -> Result<(), ClosingReason> {
        let told = self.node.hub.told();
        self.count_sent(self.outbox.take_until(told, out));
        if self.outbox.is_over() { Err(ClosingReason::AfterReplies) } else { Ok(()) }
    }

    fn count_sent(&self, frames: u64) {
        self.node.stats.sent.fetch_add(frames, Relaxed);
        self.outbox.sent.fetch_add(frames, Relaxed);
    }

    /// Answers a frame: appends the events that come before the reply, and the reply. Dropping the future abandons a request: what it
    /// does may still take effect.
    async fn answer(&mut self, frame: &[u8], out: &mut OutgoingFrames<'_>) -> Result<(), ClosingReason> {
        let began = Instant::now();
        self.node.stats.received.fetch_add(1, Relaxed);
        self.outbox.received.fetch_add(1, Relaxed);
        // Any frame is a sign of life.
        self.node.store.note_alive(self.attached);

        let (header, request) = RequestHeader::read(frame).map_err(|_| ClosingReason::AfterReplies)?;
        let answer = match request {
            Ok(request) => self.serve(request).await?,
            Err(_) => self.refusal(ErrorCode::Marshalling),
        };

        out.count_made(answer.bytes())?;
        self.put_answer(header, answer, began, out).await
    }

    /// Answers the first of some requests that have arrived together, or as many writes as can be under way at the same time. Returns how
    /// many; otherwise as [`Self::answer`].
    pub(crate) async fn answer_some(
        &mut self,
        frames: &[BytesMut],
        out: &mut OutgoingFrames<'_>,
    ) -> Result<usize, ClosingReason> {
        let Some(first) = frames.first() else { return Ok(0) };
        match self.read_writes(frames) {
            Some(writes) if writes.len() > 1 => self.answer_together(writes, out).await,
            Some(_) | None => self.answer(first, out).await.map(|()| 1),
        }
    }

    /// The first of these frames, as far as they are writes that the client may ask for. `None` if it may ask for nothing now.
    fn read_writes(&self, frames: &[BytesMut]) -> Option<Vec<(RequestHeader, WriteOperation)>> {
        if self.outbox.is_over() || self.identity.is_none() && self.node.store.needs_identity() {
            return None;
        }
        let write = |frame: &BytesMut| match RequestHeader::read(frame) {
            Ok((header, Ok(ClientRequest::Write(write)))) => Some((header, write)),
            Ok(_) | Err(_) => None,
        };
        Some(frames.iter().map_while(write).collect())
    }

    /// Answers as many of these writes as can be under way together. Returns how many.
    async fn answer_together(
        &mut self,
        writes: Vec<(RequestHeader, WriteOperation)>,
        out: &mut OutgoingFrames<'_>,
    ) -> Result<usize, ClosingReason> {
        let began = Instant::now();
        self.node.store.note_alive(self.attached);
        let (headers, writes): (Vec<_>, Vec<_>) = writes.into_iter().unzip();
        let caller = self.caller();
        let outcomes = execute_each(&self.context(&caller), &writes).await;

        let answer = |(write, outcome)| self.write_answer(outcome, std::slice::from_ref(write), false);
        let answers: Vec<_> = writes.iter().zip(outcomes).map(answer).collect();
        out.count_made(answers.iter().flatten().map(RequestAnswer::bytes).sum())?;

        let answered = answers.len();
        for (header, answer) in headers.into_iter().zip(answers) {
            self.node.stats.received.fetch_add(1, Relaxed);
            self.outbox.received.fetch_add(1, Relaxed);
            self.put_answer(header, answer?, began, out).await?;
        }
        Ok(answered)
    }

    /// Appends the events that come before the reply, and the reply. Its answer was counted.
    async fn put_answer(
        &mut self,
        header: RequestHeader,
        answer: RequestAnswer,
        began: Instant,
        out: &mut OutgoingFrames<'_>,
    ) -> Result<(), ClosingReason> {
        let zxid = match answer.revision {
            Some(revision) => self.tell_until(revision, out).await?,
            None => 0,
        };
        // Clients take each answer for a sign that their session lives. The port closes such connections by itself, a moment later.
        if !answer.is_last && !self.node.store.vouch(self.attached).await {
            return Err(ClosingReason::AtOnce);
        }

        let result = answer.result.as_deref().map_err(|code| *code);
        out.put_reply(header.xid, i64::try_from(zxid).unwrap_or(i64::MAX), result);
        self.count_sent(1);
        self.node.stats.note_answer(header.opcode, began.elapsed());
        if answer.is_last { Err(ClosingReason::AfterReplies) } else { Ok(()) }
    }

    /// Appends the events up to a revision, which a reply is about to show. Returns what the reply shows: never less than one before.
    async fn tell_until(&mut self, revision: u64, out: &mut OutgoingFrames<'_>) -> Result<u64, ClosingReason> {
        self.last_told = self.last_told.max(revision);
        let told = self.node.hub.told_until(self.last_told);
        // Limit the wait, so that a feed that has stopped does not look like a slow answer for ever.
        let is_told = timeout_at(Instant::now() + self.request_timeout, told).await;
        if !matches!(is_told, Ok(Ok(()))) {
            return Err(ClosingReason::AtOnce);
        }
        self.count_sent(self.outbox.take_until(self.last_told, out.frames()));
        // The events wait with the reply, and count with it.
        out.count_made(0)?;
        Ok(self.last_told)
    }

    /// An answer that needs nothing of the store.
    fn refusal(&self, code: ErrorCode) -> RequestAnswer {
        RequestAnswer::new(self.node.hub.told(), Err(code))
    }

    async fn serve(&mut self, request: ClientRequest) -> Result<RequestAnswer, ClosingReason> {
        if self.outbox.is_over() {
            return Ok(self.refusal(ErrorCode::SessionExpired).last());
        }
        if !request.is_for_strangers() && self.identity.is_none() && self.node.store.needs_identity() {
            return Ok(self.refusal(ErrorCode::NoAuth));
        }

        match request {
            ClientRequest::Ping => Ok(RequestAnswer::new(self.node.hub.told(), Ok(Vec::new()))),
            ClientRequest::Close => self.close().await,
            ClientRequest::Read(read) => Ok(self.read(&read)),
            ClientRequest::MultiRead(reads) => Ok(self.read_all(&reads)),
            ClientRequest::Write(write) => self.write(&[write], false).await,
            ClientRequest::Multi(writes) => self.write(&writes, true).await,
            ClientRequest::Sync { path } => self.sync(&path).await,
            ClientRequest::Auth { scheme, credentials } => self.authenticate(&scheme, &credentials).await,
            ClientRequest::SetWatches { relative, paths } => Ok(self.set_watches(relative, &paths).await),
            ClientRequest::AddWatch { path, is_recursive } => Ok(self.add_watch(&path, is_recursive)),
            ClientRequest::CheckWatches { path, kind } => Ok(self.check_watches(&path, kind)),
            ClientRequest::RemoveWatches { path, kind } => Ok(self.remove_watches(&path, kind)),
            ClientRequest::GetEphemerals { prefix } => Ok(self.list_ephemerals(&prefix)),
            ClientRequest::WhoAmI => Ok(self.who_am_i()),
            // ZooKeeper without SASL says the same, and its clients go on.
            ClientRequest::Sasl => Ok(RequestAnswer::new(self.node.hub.told(), Ok(empty_token()))),
            ClientRequest::Reconfig => Ok(self.refusal(ErrorCode::ReconfigDisabled)),
            ClientRequest::Unknown => Ok(self.refusal(ErrorCode::Unimplemented)),
        }
    }

    async fn close(&mut self) -> Result<RequestAnswer, ClosingReason> {
        let closed = self.node.store.close(&self.caller(), self.attached).await;
        let (revision, result) = match closed {
            Ok(CloseOutcome::Over { revision }) => (revision, Ok(Vec::new())),
            Ok(CloseOutcome::Moved { revision }) => (revision, Err(ErrorCode::SessionMoved)),
            Err(failure) => {
                let code = failure_code(&failure)?;
                return Ok(self.refusal(code).last());
            }
        };
        self.is_closed = true;
        Ok(RequestAnswer::new(revision, result).last())
    }

    async fn sync(&self, path: &str) -> Result<RequestAnswer, ClosingReason> {
        match self.node.store.catch_up(&self.caller()).await {
            Ok(revision) => {
                let mut body = JuteWriter::default();
                body.string(path);
                Ok(RequestAnswer::new(revision, Ok(body.into_bytes())))
            }
            Err(failure) => failure_code(&failure).map(|code| self.refusal(code)),
        }
    }

    async fn write(&self, requests: &[WriteOperation], is_multi: bool) -> Result<RequestAnswer, ClosingReason> {
        let caller = self.caller();
        if requests.is_empty() {
            let outcome =
                WriteOutcome::Done { revision: self.node.hub.told(), created: Vec::new(), results: Vec::new() };
            return Ok(replies::answer(outcome, requests, is_multi));
        }

        let outcome = execute(&self.context(&caller), requests).await;
        self.write_answer(outcome, requests, is_multi)
    }

    fn context<'a>(&'a self, caller: &'a ZookeeperCaller) -> WriteContext<'a, S> {
        WriteContext {
            store: &self.node.store,
            caller,
            attached: self.attached,
            identities: &self.identities,
            wall_ms: (self.node.options.wall_ms)(),
        }
    }

    fn write_answer(
        &self,
        outcome: Result<WriteOutcome, ZookeeperStoreError>,
        requests: &[WriteOperation],
        is_multi: bool,
    ) -> Result<RequestAnswer, ClosingReason> {
        match outcome {
            Ok(outcome) => Ok(replies::answer(outcome, requests, is_multi)),
            Err(failure) => {
                // If the outcome is unknown, only the client can find it out. It does so when the connection is closed.
                let code = failure_code(&failure)?;
                Ok(replies::refuse(self.node.hub.told(), code, requests.len(), is_multi))
            }
        }
    }

    /// Adds an identity. An answer that the client is nobody must reach it before the connection is closed.
    async fn authenticate(&mut self, scheme: &str, credentials: &[u8]) -> Result<RequestAnswer, ClosingReason> {
        let added = match (scheme, std::str::from_utf8(credentials)) {
            ("digest", Ok(credentials)) => self.add_digest(credentials).await?,
            ("x509", _) if self.identities.has_certificate() => Ok(()),
            // Its address is known already.
            ("ip", _) => Ok(()),
            _ => Err(ErrorCode::AuthFailed),
        };

        let is_last = added.is_err();
        Ok(RequestAnswer { revision: None, result: added.map(|()| Vec::new()), is_last })
    }

    async fn add_digest(&mut self, credentials: &str) -> Result<Result<(), ErrorCode>, ClosingReason> {
        if let Err(code) = Arc::make_mut(&mut self.identities).add_digest(credentials) {
            return Ok(Err(code));
        }
        self.note_client();
        // The user may be one of the policy's, too. A certificate is the stronger proof, and stays.
        if self.identity.is_none()
            && let Some((user, password)) = credentials.split_once(':')
        {
            let proof = self.node.store.authenticate(user, password, Arc::downgrade(&self.open));
            let proof = proof.map_err(|failure| {
                // ZooKeeper has no answer after which the client would try again, so close the connection.
                tracing::debug!(%failure, client = %self.address, "a connection is closed, since its client has too many");
                ClosingReason::AtOnce
            })?;
            if let Some(proof) = proof {
                self.note_proof(proof);
                self.note_client();
                self.own_session().await?;
            }
        }
        Ok(Ok(()))
    }

    /// Events are for whom the client has proven to be.
    fn note_client(&self) {
        let client = WatchingClient { identities: Arc::clone(&self.identities), caller: self.caller() };
        self.node.hub.set_client(self.id, client);
    }

    /// The session belongs to the identity that was proven. Without an answer the client comes back, and proves itself again.
    async fn own_session(&mut self) -> Result<(), ClosingReason> {
        let owned = self.node.store.set_owner(&self.caller(), self.attached.session).await;
        owned.map_err(|failure| {
            tracing::debug!(%failure, client = %self.address, "a connection is closed, since its session got no owner");
            // A session too many ends with the connection that has opened it, as that of a stranger.
            if let ZookeeperStoreError::Full(_) = failure {
                self.identity = None;
            }
            ClosingReason::AtOnce
        })
    }

    /// The client is this one, until the proof counts no more.
    pub(crate) fn note_proof(&mut self, proof: ZookeeperIdentity) {
        let ZookeeperIdentity { name: identity, withdrawn } = proof;
        self.identity = Some(identity);
        let outbox = Arc::clone(&self.outbox);
        // This also ends a connection that only waits for events: it must not get further changes.
        let watched = async move {
            withdrawn.await;
            outbox.kill.cancel();
        };
        self.proof = Some(AbortOnDropHandle::new(tokio::spawn(watched)));
    }

    fn who_am_i(&self) -> RequestAnswer {
        let shown = self.identities.shown();
        let mut body = JuteWriter::default();
        body.count(shown.len());
        for (scheme, id) in shown {
            body.string(scheme).string(&id);
        }
        RequestAnswer::new(self.node.hub.told(), Ok(body.into_bytes()))
    }
}

impl<S> Drop for ClientSession<S> {
    fn drop(&mut self) {
        self.node.hub.forget(self.id);
    }
}

impl<S: ZookeeperStore> ClientSession<S> {
    /// The connection has ended: its session may end soon.
    pub(crate) fn note_end(&self, end: ClosingReason) {
        if self.is_closed || self.outbox.is_over() {
            return;
        }
        // Who has never said who it is owns nothing, and strangers must not fill the table with sessions.
        let is_unproven = self.identity.is_none() && self.node.store.needs_identity();
        if is_unproven && self.has_opened {
            self.node.note_abandoned(self.attached, self.address, self.ttl, Duration::ZERO);
            return;
        }

        // A session whose connection this node has closed is not abandoned: its client comes back, here or elsewhere.
        if end == ClosingReason::Gone
            && !self.outbox.kill.is_cancelled()
            && let Some(grace) = self.node.options.closed_socket_grace
        {
            self.node.note_abandoned(self.attached, self.address, self.ttl, grace);
        }
    }
}

impl ClientRequest {
    /// Whether a client may ask this before it has said who it is.
    fn is_for_strangers(&self) -> bool {
        matches!(self, Self::Ping | Self::Close | Self::Auth { .. } | Self::WhoAmI | Self::Sasl)
    }
}

/// The error code for a failure, or the end of the connection if the client must check the outcome or use another node.
fn failure_code(failure: &ZookeeperStoreError) -> Result<ErrorCode, ClosingReason> {
    match failure {
        ZookeeperStoreError::Denied(_) => Ok(ErrorCode::NoAuth),
        ZookeeperStoreError::TooLarge(_) => {
            // A client is told a number alone. The message names the limit.
            tracing::debug!(%failure, "a request is refused, since it is too large");
            Ok(ErrorCode::BadArguments)
        }
        ZookeeperStoreError::Full(_) => Ok(ErrorCode::QuotaExceeded),

        ZookeeperStoreError::NotExecuted(_) | ZookeeperStoreError::Unknown(_) => {
            tracing::debug!(%failure, "a connection is closed, since its request has no answer");
            Err(ClosingReason::AfterReplies)
        }
    }
}

fn empty_token() -> Vec<u8> {
    let mut body = JuteWriter::default();
    body.buffer(Some(&[]));
    body.into_bytes()
}
