//! State that must survive each fault: a held lock, a queue, an answered request, and a grant that was taken by force.
//!
//! After a fault, all acknowledged changes must still be there, and waiters must be served in order. Clients hold and
//! wait only for short times, so their state at the moment of a fault is random. This state exists at every fault.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use lockkeeper_client::{Guard, Session};
use lockkeeper_machine::{SessionId, Token};

use super::{forced::Forced, retried_request::RetriedRequest};
use crate::{
    history::{Answer, Call, Mode},
    parties::{
        HANDOVER_BOUND_MS, LIVENESS_BOUND,
        operator::{LASTING_TTL, RunOperator},
    },
    workload::{
        holder::{self, SessionWatch},
        locks::Lock,
        outcomes,
    },
};

/// The modes of the waiters behind a shared holder. The later shared waiter must not overtake the exclusive one before it.
const WAITERS: [Mode; 4] = [Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Exclusive];
/// Time limit until a waiter is visible in the queue.
const QUEUED_WITHIN: Duration = Duration::from_secs(2);
/// Time limit until a granted waiter is told. It is longer than the promised bound, so that a violation becomes visible.
const TOLD_WITHIN: Duration = Duration::from_millis(HANDOVER_BOUND_MS + 1_500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A lock with a holder and waiters.
#[derive(Debug)]
pub struct Sentinel {
    lock: Lock,
    session: Session,
    guard: Guard,
    waiters: Vec<AbortOnDropHandle<()>>,
    request: RetriedRequest,
    forced: Forced,
    watching: SessionWatch,
}

impl RunOperator {
    /// Sets up the state on the lock with this number, which is used once. Returns `None` if the lock was not available.
    pub async fn set_up_sentinel(&self, number: u32) -> Option<Sentinel> {
        let lock = Lock { name: format!("sentinel/{number}"), mode: Mode::Shared };
        let session = self.open_for(LASTING_TTL, Instant::now()).await?;
        let watching = holder::watch(self.recorder.clone(), &session);
        let guard = self.acquire(&session, &lock, Duration::ZERO).await.ok()?;

        let request = self.request_before(&format!("retried/{number}/early")).await?;
        let forced = self.acquire_and_force(&format!("forced/{number}")).await?;

        let mut sentinel = Sentinel { lock, session, guard, waiters: Vec::new(), request, forced, watching };
        for mode in WAITERS {
            let session = self.open_for(LASTING_TTL, Instant::now()).await?;
            let id = session.id();
            let lock = Lock { mode, ..sentinel.lock.clone() };
            let waiter = AbortOnDropHandle::new(tokio::spawn(self.clone().wait_and_release(session, lock)));
            self.wait_until_queued(&sentinel.lock.name, id, &waiter).await;
            sentinel.waiters.push(waiter);
        }
        Some(sentinel)
    }

    /// Waits for the lock, then releases it.
    async fn wait_and_release(self, session: Session, lock: Lock) {
        if let Ok(guard) = self.acquire(&session, &lock, LASTING_TTL).await {
            self.release(guard).await;
        }
        self.close(session).await;
    }

    /// Waits until the waiter is in the queue, so that the next one is behind it.
    async fn wait_until_queued(&self, lock: &str, session: SessionId, waiter: &AbortOnDropHandle<()>) {
        let by = Instant::now() + QUEUED_WITHIN;
        while !waiter.is_finished() && Instant::now() < by {
            let waiters = self.look(lock).await.map_or_else(Vec::new, |lock| lock.waiters);
            if waiters.iter().any(|waiter| waiter.session_id == session) {
                return;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Checks the state after a fault, releases the lock and waits for the queue to be served. Returns whether it was.
    pub async fn check_sentinel(&self, sentinel: Sentinel) -> bool {
        let Sentinel { lock, session, guard, waiters, request, forced, watching } = sentinel;

        self.renew_until_told(forced, Instant::now() + LIVENESS_BOUND).await;
        let by = Instant::now() + LIVENESS_BOUND;
        self.retry(request, by).await;

        let token = guard.token().0;
        self.look(&lock.name).await;
        let begun = self.recorder.begin(std::slice::from_ref(&lock.name), Call::Check { token });
        match self.client.check(&lock.name, Token(token)).await {
            Ok(answer) => begun.ok(Answer::Check { held: answer.held }),
            Err(error) => outcomes::end(begun, &error),
        }

        self.release(guard).await;
        watching.expect_close();
        self.close(session).await;

        let mut granted = None;
        while waiters.iter().any(|waiter| !waiter.is_finished()) {
            let holders = self.holders(&lock.name).await.into_iter().map(|holder| holder.token).collect::<Vec<_>>();
            let since = match granted.take() {
                Some((known, since)) if known == holders && !holders.is_empty() => since,
                _ => Instant::now(),
            };

            if since.elapsed() >= TOLD_WITHIN || Instant::now() >= by {
                return false;
            }
            granted = Some((holders, since));
            sleep(BETWEEN_LOOKS).await;
        }
        true
    }
}
