//! A task that calls the nodes without the client library, to test idempotency: a request must be executed once,
//! however often and late it is sent.

use std::{sync::Arc, time::Duration};

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Channel};

use lockkeeper_machine::SessionId;
use lockkeeper_proto::v1::{
    AcquireRequest, CloseSessionRequest, OpenSessionRequest, Reason, ReleaseRequest, Released, RenewSessionRequest,
    RequestId, Want, acquire_request, acquire_response::Outcome, locks_client::LocksClient, release_request::Target,
    sessions_client::SessionsClient,
};

use super::{
    ATTEMPT_LIMIT, TTLS, TasksState,
    locks::{self, EXCLUSIVE},
    outcomes, percent, some_ms,
};
use crate::history::{self, Answer, Call, CancelFound, Fact, Lease, Modes, Wait};

/// Number of answered requests of a session that are retried much later.
const ANSWERED_MAX: usize = 3;
/// Maximum number of attempts of one request.
const SENDINGS_MAX: u32 = 8;
const OPERATIONS_OF_A_HOLD: u32 = 6;
const BETWEEN_SENDINGS: std::ops::Range<u64> = 20..150;

struct LockCaller {
    shared: Arc<TasksState>,
    random: StdRng,
    nodes: Vec<Channel>,
    /// The index of the node to call. It advances after a failed call.
    next: usize,
}

/// A session of the caller.
struct CallerSession {
    id: String,
    ttl: Duration,
    last_request: u64,
    renewed_ns: u64,
    is_over: bool,
    /// The answered requests whose ids are still open, oldest first.
    answered: Vec<AnsweredRequest>,
}

/// An answered request, for a retry.
#[derive(Clone)]
struct AnsweredRequest {
    request: u64,
    lock: String,
    wait: Wait,
}

impl CallerSession {
    /// Makes the message of a request id. It names as open all ids from `lowest` on, and the answered ones that are kept.
    fn numbered(&self, id: u64, lowest: u64) -> RequestId {
        let kept = self.answered.iter().map(|answered| answered.request).filter(|request| *request < lowest);
        // What is neither above `lowest` nor kept, the server may forget: then a retry of it is refused as stale, and would test nothing.
        RequestId { id, lowest, kept: kept.collect() }
    }
}

/// The result of an attempt.
enum Attempt<A> {
    Answered(A),
    Refused(Reason),
    /// The outcome is unknown, so the request is retried.
    Unknown,
}

/// Runs until the workload finishes.
pub(super) async fn run(shared: Arc<TasksState>, mut random: StdRng) {
    let nodes = shared.parts.nodes.clone();
    let next = random.random_range(0..nodes.len().max(1));
    let mut caller = LockCaller { shared, random, nodes, next };
    while !caller.shared.is_over() && !caller.nodes.is_empty() {
        match caller.open().await {
            Some(session) => caller.live(session).await,
            None => caller.rest().await,
        }
    }
}

impl LockCaller {
    fn node(&self) -> Channel {
        self.nodes[self.next % self.nodes.len()].clone()
    }

    async fn rest(&mut self) {
        self.next = self.next.wrapping_add(1);
        let pause = some_ms(&mut self.random, BETWEEN_SENDINGS);
        self.shared.pause(pause).await;
    }

    /// Makes one attempt. Without an answer within the limit, the request may still take effect.
    async fn send<A>(
        &mut self,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<A>, Status>>,
    ) -> Result<A, Status> {
        match timeout(limit, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::new(Code::DeadlineExceeded, "no answer in time")),
        }
    }

    async fn open(&mut self) -> Option<CallerSession> {
        let id = SessionId(self.random.random()).to_string();
        let ttl = *TTLS.choose(&mut self.random)?;
        let ttl_ms = u32::try_from(ttl.as_millis()).ok()?;
        let label = self.shared.parts.name.clone();
        let message = OpenSessionRequest { session_id: id.clone(), ttl_ms, label };

        // Read before the request is sent: a deadline that is counted from a later moment could be beyond the server's.
        let renewed_ns = self.shared.parts.recorder.timeline().now_ns();
        let call = Call::Open { session: id.clone(), ttl_ms: ttl_ms.into() };
        let begun = self.shared.parts.recorder.begin(&[], call);
        let mut service = SessionsClient::new(self.node());

        match self.send(ATTEMPT_LIMIT, service.open(message)).await {
            Ok(_) => begun.ok(Answer::Open(Lease::default())),
            Err(status) => {
                outcomes::end_call(begun, &status);
                return None;
            }
        }
        Some(CallerSession { id, ttl, last_request: 0, renewed_ns, is_over: false, answered: Vec::new() })
    }

    async fn live(&mut self, mut session: CallerSession) {
        for _ in 0..self.random.random_range(2..10) {
            self.renew_if_due(&mut session).await;
            if session.is_over || self.shared.is_over() {
                break;
            }

            self.ask_again(&mut session).await;
            let is_silent = self.hold(&mut session).await;
            if is_silent {
                return self.fall_silent(session).await;
            }

            self.rest_a_little().await;
        }
        self.close(&session).await;
    }

    /// Sometimes retries a request that was answered earlier. Its answer must not have changed.
    async fn ask_again(&mut self, session: &mut CallerSession) {
        let Some(AnsweredRequest { request, lock, wait }) = session.answered.choose(&mut self.random).cloned() else {
            return;
        };
        if percent(&mut self.random, 50)
            && let Attempt::Refused(reason) = self.acquire(session, &lock, request, wait, true).await
        {
            session.is_over = is_over(reason);
        }
    }

    async fn rest_a_little(&mut self) {
        let pause = some_ms(&mut self.random, 10..120);
        self.shared.pause(pause).await;
    }

    async fn renew_if_due(&mut self, session: &mut CallerSession) {
        let age_ns = self.shared.parts.recorder.timeline().now_ns().saturating_sub(session.renewed_ns);
        if Duration::from_nanos(age_ns) < session.ttl / 3 {
            return;
        }
        for _ in 0..SENDINGS_MAX {
            if self.renew(session).await {
                return;
            }
            self.rest().await;
        }
    }

    /// Renews the session. Returns whether the attempt had a final answer.
    async fn renew(&mut self, session: &mut CallerSession) -> bool {
        // As for the opening: the TTL counts from the sending of the renewal that was acknowledged.
        let sent_ns = self.shared.parts.recorder.timeline().now_ns();
        let begun = self.shared.parts.recorder.begin(&[], Call::Renew { session: session.id.clone() });
        let message = RenewSessionRequest { session_id: session.id.clone() };
        let mut service = SessionsClient::new(self.node());

        match self.send(ATTEMPT_LIMIT, service.renew(message)).await {
            Ok(renewed) => {
                for revoked in renewed.revoked {
                    let session = session.id.clone();
                    let token = Some(revoked.token);
                    self.shared.parts.recorder.fact(Fact::Lost { session, why: "revoked".to_owned(), token });
                }
                begun.ok(Answer::Renew(Lease::default()));
                session.renewed_ns = sent_ns;
                true
            }
            Err(status) => {
                session.is_over = is_over(outcomes::reason_of(&status));
                outcomes::end_call(begun, &status);
                session.is_over
            }
        }
    }

    /// Acquires, sometimes with retries, and releases. Returns `true` if it keeps the lock and stops renewing.
    async fn hold(&mut self, session: &mut CallerSession) -> bool {
        let round = locks::round(self.shared.parts.recorder.timeline());
        let place = self.random.random_range(EXCLUSIVE);
        if !self.shared.budget.spend(round, &[place], OPERATIONS_OF_A_HOLD) {
            return false;
        }
        let lock = locks::lock_at(round, place).name;
        session.last_request += 1;
        let request = session.last_request;
        let wait = if percent(&mut self.random, 50) { Wait::None } else { Wait::AtMostMs(300) };

        let mut token = None;
        for sending in 0..SENDINGS_MAX {
            match self.acquire(session, &lock, request, wait, sending > 0).await {
                Attempt::Answered(granted) => token = granted,
                Attempt::Refused(reason) => {
                    session.is_over = is_over(reason);
                    return false;
                }
                // Given up without an answer: the acquire may still take effect, also after the cancellation that follows. The checker must
                // find neither a grant that nobody can end nor one after it.
                Attempt::Unknown if percent(&mut self.random, 25) => break,
                Attempt::Unknown => {
                    self.rest().await;
                    continue;
                }
            }
            // A final answer stays the same, however often it is requested.
            if token.is_none() || !percent(&mut self.random, 30) {
                break;
            }
        }
        let is_silent = self.settle(session, &lock, request, token).await;
        if token.is_some() && percent(&mut self.random, 60) {
            session.answered.push(AnsweredRequest { request, lock, wait });
            let surplus = session.answered.len().saturating_sub(ANSWERED_MAX);
            session.answered.drain(..surplus);
        }
        is_silent
    }

    /// Releases the grant or cancels the acquire. Returns `true` if it keeps the lock and stops renewing.
    async fn settle(&mut self, session: &mut CallerSession, lock: &str, request: u64, token: Option<u64>) -> bool {
        match token {
            // Nobody ends this grant but the expiry of its session: a run without such holders would show nothing of expiries.
            Some(_) if percent(&mut self.random, 6) => return true,
            Some(token) if percent(&mut self.random, 70) => {
                self.rest_a_little().await;
                self.give_back(session, lock, Call::Release { session: session.id.clone(), token }, request).await;
            }
            _ => {
                let call = Call::Cancel { session: session.id.clone(), request: Some(request), op: None };
                self.give_back(session, lock, call, request).await;
            }
        }
        false
    }

    /// Acquires the lock. Answers with the token, or with `None` if the lock was not available.
    async fn acquire(
        &mut self,
        session: &CallerSession,
        lock: &str,
        request: u64,
        wait: Wait,
        is_again: bool,
    ) -> Attempt<Option<u64>> {
        let id = session.id.clone();
        let call = if is_again {
            Call::Retry { session: id.clone(), request }
        } else {
            Call::Acquire(history::Acquire {
                session: id.clone(),
                request: Some(request),
                mode: Modes::default(),
                wait,
                lock_delay_ms: 0,
            })
        };

        let message = AcquireRequest {
            session_id: id,
            request: Some(session.numbered(request, request)),
            locks: vec![Want { name: lock.to_owned(), ..Want::default() }],
            wait: match wait {
                Wait::None => None,
                Wait::AtMostMs(ms) => Some(acquire_request::Wait::WaitMs(ms)),
                Wait::Forever => Some(acquire_request::Wait::WaitForever(true)),
            },
            lock_delay_ms: 0,
        };

        // Sometimes the call ends early.
        let limit = if percent(&mut self.random, 30) { some_ms(&mut self.random, 1..60) } else { ATTEMPT_LIMIT };
        let begun = self.shared.parts.recorder.begin(&[lock.to_owned()], call);
        let mut service = LocksClient::new(self.node());
        match self.send(limit, service.acquire(message)).await.map(|answer| answer.outcome) {
            Ok(Some(Outcome::Granted(grant))) => {
                begun.ok(if is_again {
                    Answer::Retry { token: grant.token }
                } else {
                    Answer::Acquire { token: grant.token, place_lost: false }
                });
                Attempt::Answered(Some(grant.token))
            }
            Ok(Some(Outcome::Busy(_))) => refused(begun, "busy"),
            Ok(Some(Outcome::TimedOut(_))) => refused(begun, "timed_out"),
            Ok(None) => {
                begun.unknown("the answer has no outcome");
                Attempt::Unknown
            }
            Err(status) => sent(begun, &status),
        }
    }

    /// Releases by token or by request id, and retries until there is a final answer.
    async fn give_back(&mut self, session: &mut CallerSession, lock: &str, call: Call, acquire: u64) {
        session.last_request += 1;
        let target = if let Call::Release { token, .. } = &call {
            Target::Token(*token)
        } else {
            Target::AcquireRequestId(acquire)
        };

        let by_request = matches!(target, Target::AcquireRequestId(_));
        let message = ReleaseRequest {
            session_id: session.id.clone(),
            // The acquire stays open, since the release may have to find it by its id.
            request: Some(session.numbered(session.last_request, acquire)),
            target: Some(target),
        };

        // One operation of the history for all attempts: the request is executed once, however often it is sent, somewhere between the
        // first sending and the answer.
        let begun = self.shared.parts.recorder.begin(&[lock.to_owned()], call);
        let mut may_have_worked = false;
        for _ in 0..SENDINGS_MAX {
            let mut service = LocksClient::new(self.node());
            match self.send(ATTEMPT_LIMIT, service.release(message.clone())).await {
                Ok(answer) if by_request => {
                    return match answer.released() {
                        Released::Grant => begun.ok(Answer::Cancel { found: CancelFound::Grant }),
                        Released::Wait => begun.ok(Answer::Cancel { found: CancelFound::Wait }),
                        Released::Nothing => begun.ok(Answer::Cancel { found: CancelFound::Nothing }),
                        Released::Unspecified => begun.unknown("the answer does not say"),
                    };
                }
                Ok(_) => return begun.ok(Answer::Release {}),
                Err(status) if outcomes::is_decided(&status) => {
                    session.is_over = is_over(outcomes::reason_of(&status));
                    // After the end of the session, the outcome of the earlier attempts is no longer stored.
                    return if may_have_worked {
                        begun.unknown(status.message())
                    } else {
                        outcomes::end_call(begun, &status)
                    };
                }
                Err(status) => {
                    may_have_worked |= !outcomes::is_safe(&status);
                    self.rest().await;
                }
            }
        }
        begun.unknown("no answer");
    }

    async fn close(&mut self, session: &CallerSession) {
        let begun = self.shared.parts.recorder.begin(&[], Call::Close { session: session.id.clone() });
        let mut service = SessionsClient::new(self.node());

        match self
            .send(
                ATTEMPT_LIMIT,
                service.close_session(CloseSessionRequest { session_id: session.id.clone(), reason: String::new() }),
            )
            .await
        {
            Ok(_) => begun.ok(Answer::Close {}),
            Err(status) => outcomes::end_call(begun, &status),
        }
    }

    /// Stops renewing. Asks for the session's state when it should have expired.
    async fn fall_silent(&mut self, mut session: CallerSession) {
        let silence = session.ttl * 2;
        self.shared.pause(silence).await;
        self.renew(&mut session).await;
        if !session.is_over {
            self.close(&session).await;
        }
    }
}

fn refused(begun: crate::record::Begun, reason: &str) -> Attempt<Option<u64>> {
    begun.failed(reason);
    Attempt::Answered(None)
}

fn sent<A>(begun: crate::record::Begun, status: &Status) -> Attempt<A> {
    if outcomes::is_decided(status) {
        outcomes::end_call(begun, status);
        return Attempt::Refused(outcomes::reason_of(status));
    }
    // Even if this attempt was not executed, a later one may be.
    begun.unknown(status.message());
    Attempt::Unknown
}

fn is_over(reason: Reason) -> bool {
    matches!(reason, Reason::SessionExpired | Reason::SessionUnknown | Reason::SessionClosed)
}
