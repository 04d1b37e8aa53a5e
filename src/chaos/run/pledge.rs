//! A request that was answered before a fault, and is sent again after it: it has happened, and has the same answer.
//!
//! Clients do that too, while their sessions live. This one's session outlives the fault. One is given long before, so that it is in a
//! snapshot and not in the log; another one the moment before, so that it is the last thing in the log.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::operator::{LASTING_TTL, Operator};
use crate::{
    chaos::{
        history::{Acquire, Answer, Call},
        workload::{ATTEMPT_LIMIT, words},
    },
    client::Session,
    proto::v1::{AcquireRequest, RequestId, Want, acquire_response::Outcome, locks_client::LocksClient},
};

/// The only one of its session: the library numbers none of its own there.
const REQUEST: u64 = 1;
const BETWEEN_SENDINGS: Duration = Duration::from_millis(60);

/// The session, and the lock that it was granted.
#[derive(Debug)]
pub struct Pledge {
    session: Session,
    lock: String,
}

impl Operator {
    /// Acquires this lock, which is used once. `None`: there is no cluster at the moment.
    pub async fn pledge(&self, lock: &str) -> Option<Pledge> {
        let session = self.open_for(LASTING_TTL, Instant::now()).await?;
        let pledge = Pledge { session, lock: lock.to_owned() };
        self.send_until_answered(&pledge, false, Instant::now() + ATTEMPT_LIMIT).await;
        Some(pledge)
    }

    /// Looks whether it is still held, and acquires it again, by the same request.
    pub async fn redeem(&self, pledge: Pledge, by: Instant) {
        self.look(&pledge.lock).await;
        self.send_until_answered(&pledge, true, by).await;
        self.close(pledge.session).await;
    }

    async fn send_until_answered(&self, pledge: &Pledge, mut is_again: bool, by: Instant) {
        for node in self.nodes.iter().cycle() {
            if self.send(LocksClient::new(node.clone()), pledge, is_again).await || Instant::now() >= by {
                return;
            }
            is_again = true;
            sleep(BETWEEN_SENDINGS).await;
        }
    }

    /// Whether there was an answer for good.
    async fn send(&self, mut node: LocksClient<tonic::transport::Channel>, pledge: &Pledge, is_again: bool) -> bool {
        let session = pledge.session.id().to_string();
        let call = match is_again {
            true => Call::Retry { session: session.clone(), request: REQUEST },
            false => Call::Acquire(Acquire { session: session.clone(), request: Some(REQUEST), ..Acquire::default() }),
        };
        let message = AcquireRequest {
            session_id: session,
            request: Some(RequestId { id: REQUEST, lowest: REQUEST, kept: Vec::new() }),
            locks: vec![Want { name: pledge.lock.clone(), ..Want::default() }],
            ..AcquireRequest::default()
        };
        let begun = self.recorder.begin(std::slice::from_ref(&pledge.lock), call);
        let late = || tonic::Status::new(Code::DeadlineExceeded, "no answer in time");
        let answer = timeout(ATTEMPT_LIMIT, node.acquire(message)).await.unwrap_or_else(|_| Err(late()));
        match answer.map(|answer| answer.into_inner().outcome) {
            Ok(Some(Outcome::Granted(grant))) => {
                begun.ok(match is_again {
                    true => Answer::Retry { token: grant.token },
                    false => Answer::Acquire { token: grant.token, place_lost: false },
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
            Err(status) if words::is_decided(&status) => {
                words::end_call(begun, &status);
                true
            }
            Err(status) => {
                // Even if this sending did nothing, the next one may.
                begun.unknown(status.message());
                false
            }
        }
    }
}
