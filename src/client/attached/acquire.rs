//! An acquire in an attached session.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::{
    super::{
        Error, Refusal,
        acquire::{in_time, message, not_acquired, waiting_policy},
        backoff::Backoff,
    },
    AttachedSession,
    numbers::Numbered,
};
use lockkeeper_proto::v1::{ReleaseRequest, acquire_response::Outcome, release_request::Target};
use lockkeeper_types::Token;

/// An acquire of an [`AttachedSession`]. Nothing is sent before [`AttachedAcquire::granted`].
///
/// If it is dropped before its end: the cluster cancels a waiting acquire 5 s after the call broke; a granted one is
/// held until it is released or the session ends. [`AttachedAcquire::abandon`] leaves nothing behind.
#[derive(Debug)]
#[must_use = "an acquire does nothing before it is awaited"]
pub struct AttachedAcquire {
    session: AttachedSession,
    acquire: Arc<lockkeeper_types::Acquire>,
    began: Option<Instant>,
    request: Option<Numbered>,
    /// The cluster cancelled its wait; it was queued again.
    place_lost: bool,
}

impl AttachedAcquire {
    pub(super) fn new(session: AttachedSession, acquire: lockkeeper_types::Acquire) -> Self {
        Self { session, acquire: Arc::new(acquire), began: None, request: None, place_lost: false }
    }

    /// Waits until the locks are held. Survives the loss of its connection and a change of leader, and keeps its place in the queue.
    ///
    /// Fails with [`Error::NotAcquired`], with [`Error::Lost`] if the session is over, and with [`Error::Unknown`] if
    /// there was no answer in time: the session may then hold the locks, and only [`AttachedAcquire::abandon`] or the
    /// end of the session is sure to release them. Cancel safe: a second call continues with the same request.
    pub async fn granted(&mut self) -> Result<Token, Error> {
        let began = *self.began.get_or_insert_with(Instant::now);
        let mut backoff = Backoff::default();

        loop {
            match self.send(began).await {
                // The cluster cancels a wait whose call was broken for too long. The caller still wants the locks, so
                // the acquire goes to the end of the queue.
                Err(Error::Refused(refused))
                    if refused.reason == Refusal::WaitCancelled && in_time(self.acquire.wait, began) =>
                {
                    self.request = None;
                    self.place_lost = true;
                    sleep(backoff.next(self.session.client.caller.jitter())).await;
                }
                answer => return answer,
            }
        }
    }

    async fn send(&mut self, began: Instant) -> Result<Token, Error> {
        let caller = &self.session.client.caller;
        let session = self.session.id;
        let request = self.request.get_or_insert_with(|| Numbered::begin(caller));
        let answer = request.send(caller, waiting_policy(caller.policy(), self.acquire.wait), |node, request| {
            // The first attempt that arrives sets the wait's limit; a retry must not extend it.
            let message = message(session, request, &self.acquire, began.elapsed());
            node.pipeline.acquire(message)
        });
        let answer = answer.await.map_err(super::lost)?;

        match answer.outcome {
            Some(Outcome::Granted(grant)) => Ok(Token(grant.token)),
            Some(Outcome::Busy(busy)) => Err(not_acquired(false, self.place_lost, busy)),
            Some(Outcome::TimedOut(busy)) => Err(not_acquired(true, self.place_lost, busy)),
            None => Err(Error::Unknown { why: "the answer has no outcome".to_owned() }),
        }
    }

    /// Withdraws the acquire, whatever its state. After `Ok` it holds nothing and waits for nothing.
    ///
    /// Fails with [`Error::NoCluster`] or [`Error::Unknown`] if no node answers within the client's call limit.
    pub async fn abandon(self) -> Result<(), Error> {
        let Some(acquire) = self.request else { return Ok(()) };
        let caller = &self.session.client.caller;
        let session_id = self.session.id.to_string();
        let target = Some(Target::AcquireRequestId(acquire.id()));

        let mut release = Numbered::begin(caller);
        let answer = release.send(caller, caller.policy(), |node, request| {
            let request = ReleaseRequest { session_id: session_id.clone(), request: Some(request), target };
            node.pipeline.release(request.clone())
        });

        match answer.await.map_err(super::lost) {
            // The end of the session released everything.
            Ok(_) | Err(Error::Lost(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
