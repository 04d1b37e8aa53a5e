//! A request that was answered before a fault and is retried after it. It must not be executed again, and must have the same answer.
//!
//! Clients retry too, but only while their sessions live. This session outlives the fault. One request is sent long
//! before the fault, so that it is in a snapshot and not in the log; another just before it, so that it is at the end
//! of the log.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use lockkeeper_client::Session;
use lockkeeper_proto::v1::{AcquireRequest, RequestId, Want, acquire_response::Outcome, locks_client::LocksClient};

use super::super::parties::operator::{LASTING_TTL, RunOperator};
use crate::{
    history::{Acquire, Answer, Call},
    workload::{ATTEMPT_LIMIT, outcomes},
};

/// The only request id of its session, in which the library sends no other requests.
const REQUEST: u64 = 1;
const BETWEEN_SENDINGS: Duration = Duration::from_millis(60);

/// The session and its lock.
#[derive(Debug)]
pub struct RetriedRequest {
    session: Session,
    lock: String,
}

impl RunOperator {
    /// Acquires this lock, which is used once. Returns `None` if the cluster is not available.
    pub async fn request_before(&self, lock: &str) -> Option<RetriedRequest> {
        let session = self.open_for(LASTING_TTL, Instant::now()).await?;
        let request = RetriedRequest { session, lock: lock.to_owned() };
        self.send_until_answered(&request, false, Instant::now() + ATTEMPT_LIMIT).await;
        Some(request)
    }

    /// Reads the lock, then retries the acquire with the same request id.
    pub async fn retry(&self, request: RetriedRequest, by: Instant) {
        self.look(&request.lock).await;
        self.send_until_answered(&request, true, by).await;
        self.close(request.session).await;
    }

    async fn send_until_answered(&self, request: &RetriedRequest, mut is_again: bool, by: Instant) {
        for node in self.nodes.all().into_iter().cycle() {
            let session = request.session.id().to_string();
            let is_answered = self.send(LocksClient::new(node), &session, &request.lock, is_again).await;
            if is_answered || Instant::now() >= by {
                return;
            }
            is_again = true;
            sleep(BETWEEN_SENDINGS).await;
        }
    }

    /// Acquires this lock by the only request of this session. Returns whether there was a final answer.
    pub(super) async fn send(
        &self,
        mut node: LocksClient<tonic::transport::Channel>,
        session: &str,
        lock: &str,
        is_again: bool,
    ) -> bool {
        let call = if is_again {
            Call::Retry { session: session.to_owned(), request: REQUEST }
        } else {
            Call::Acquire(Acquire { session: session.to_owned(), request: Some(REQUEST), ..Acquire::default() })
        };

        let message = AcquireRequest {
            session_id: session.to_owned(),
            request: Some(RequestId { id: REQUEST, lowest: REQUEST, kept: Vec::new() }),
            locks: vec![Want { name: lock.to_owned(), ..Want::default() }],
            ..AcquireRequest::default()
        };

        let begun = self.recorder.begin(&[lock.to_owned()], call);
        let late = || tonic::Status::new(Code::DeadlineExceeded, "no answer in time");
        let answer = timeout(ATTEMPT_LIMIT, node.acquire(message)).await.unwrap_or_else(|_| Err(late()));
        match answer.map(|answer| answer.into_inner().outcome) {
            Ok(Some(Outcome::Granted(grant))) => {
                begun.ok(if is_again {
                    Answer::Retry { token: grant.token }
                } else {
                    Answer::Acquire { token: grant.token, place_lost: false }
                });
                true
            }
            Ok(Some(Outcome::Busy(_) | Outcome::TimedOut(_))) => {
                begun.failed("busy");
                true
            }
            Ok(None) => {
                begun.unknown("the answer has no outcome");
                false
            }
            Err(status) if outcomes::is_decided(&status) => {
                outcomes::end_call(begun, &status);
                true
            }
            Err(status) => {
                // Even if this attempt was not executed, a later one may be.
                begun.unknown(status.message());
                false
            }
        }
    }
}
