//! State that must survive each fault: a held lock, a queue, an answered request, and a grant that was taken by force.
//!
//! After a fault, all acknowledged changes must still be there, and waiters must be served in order. Clients hold and
//! wait only for short times, so their state at the moment of a fault is random. This state exists at every fault.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{forced::Forced, pledge::Pledge};
use crate::{
    chaos::{
        history::{Answer, Call, Mode},
        parties::{
            HANDOVER_BOUND_MS, LIVENESS_BOUND,
            operator::{LASTING_TTL, Operator},
        },
        workload::{holder, locks::Lock, words},
    },
    client::{Guard, Session},
    machine::Token,
};

/// Modes of the waiters behind a shared holder. The later shared waiter must not overtake the exclusive one before it.
const LINE: [Mode; 4] = [Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Exclusive];
/// How long to wait until a waiter is visible in the queue.
const SEEN_BY: Duration = Duration::from_secs(2);
/// How long a granted waiter may take to be told. Longer than the promised bound, so that a violation becomes visible.
const TOLD_WITHIN: Duration = Duration::from_millis(HANDOVER_BOUND_MS + 1_500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A lock with a holder and waiters.
#[derive(Debug)]
pub struct Vigil {
    lock: Lock,
    session: Session,
    guard: Guard,
    line: Vec<AbortOnDropHandle<()>>,
    pledge: Pledge,
    forced: Forced,
    _watching: AbortOnDropHandle<()>,
}

impl Operator {
    /// Sets up the state on the lock with this number, which is used once. `None`: the lock was not available.
    pub async fn begin_vigil(&self, number: u32) -> Option<Vigil> {
        let lock = Lock { name: format!("vigil/{number}"), mode: Mode::Shared };
        let session = self.open_for(LASTING_TTL, Instant::now()).await?;
        let watching = holder::watch(self.recorder.clone(), &session);
        let guard = self.acquire(&session, &lock, Duration::ZERO).await.ok()?;
        let pledge = self.pledge(&format!("pledge/{number}/early")).await?;
        let forced = self.force_from_itself(&format!("forced/{number}")).await?;
        let mut vigil = Vigil { lock, session, guard, line: Vec::new(), pledge, forced, _watching: watching };
        for mode in LINE {
            let session = self.open_for(LASTING_TTL, Instant::now()).await?;
            let (id, lock) = (session.id().to_string(), Lock { mode, ..vigil.lock.clone() });
            let standing = AbortOnDropHandle::new(tokio::spawn(self.clone().stand(session, lock)));
            self.see_in_line(&vigil.lock.name, &id, &standing).await;
            vigil.line.push(standing);
        }
        Some(vigil)
    }

    /// Waits for the lock, then releases it.
    async fn stand(self, session: Session, lock: Lock) {
        if let Ok(guard) = self.acquire(&session, &lock, LASTING_TTL).await {
            self.release(guard).await;
        }
        self.close(session).await;
    }

    /// Waits until the waiter is in the queue, so that the next one is behind it.
    async fn see_in_line(&self, lock: &str, session: &str, standing: &AbortOnDropHandle<()>) {
        let by = Instant::now() + SEEN_BY;
        while !standing.is_finished() && Instant::now() < by {
            if self.look(lock).await.waiters.iter().any(|waiter| waiter.session_id == session) {
                return;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Checks the state after a fault, releases the lock and waits for the queue to be served. Returns whether it was.
    pub async fn end_vigil(&self, vigil: Vigil) -> bool {
        let Vigil { lock, session, guard, line, pledge, forced, _watching } = vigil;
        self.hear_of_force(forced, Instant::now() + LIVENESS_BOUND).await;
        let by = Instant::now() + LIVENESS_BOUND;
        self.redeem(pledge, by).await;
        let token = guard.token().0;
        self.look(&lock.name).await;
        let begun = self.recorder.begin(std::slice::from_ref(&lock.name), Call::Check { token });
        match self.client.check(&lock.name, Token(token)).await {
            Ok(answer) => begun.ok(Answer::Check { held: answer.held }),
            Err(error) => words::end(begun, &error),
        }
        self.release(guard).await;
        self.close(session).await;
        let mut granted = None;
        while line.iter().any(|standing| !standing.is_finished()) {
            let holders =
                self.look(&lock.name).await.holders.into_iter().map(|holder| holder.token).collect::<Vec<_>>();
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
