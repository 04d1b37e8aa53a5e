//! A lock that is held, a queue that stands, a request that was answered, and a grant that was taken by force, from before a fault until
//! after it.
//!
//! Whatever is done to a cluster, what it acknowledged before is there afterwards, and those who waited are served in their order. Clients
//! hold and wait for short times, so what they happen to have when a fault comes is by chance. This is there at each one.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    HANDOVER_BOUND_MS, LIVENESS_BOUND,
    forced::Forced,
    operator::{LASTING_TTL, Operator},
    pledge::Pledge,
};
use crate::{
    chaos::{
        history::{Answer, Call, Mode},
        workload::{holder, locks::Lock, words},
    },
    client::{Guard, Session},
    machine::Token,
};

/// Of those who queue, while it is held by one who would share it. Who would share it too, and comes later, must not overtake.
const LINE: [Mode; 4] = [Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Exclusive];
/// For how long one is expected to be seen in the queue.
const SEEN_BY: Duration = Duration::from_secs(2);
/// How long it may take until one who has the lock knows it. Longer than is promised, so that a broken promise is seen.
const TOLD_WITHIN: Duration = Duration::from_millis(HANDOVER_BOUND_MS + 1_500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A lock of its own, and those who want it.
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
    /// On the lock of this number, which is used once. `None`: it was not to be had.
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

    /// Waits until it has the lock, and gives it on.
    async fn stand(self, session: Session, lock: Lock) {
        if let Ok(guard) = self.acquire(&session, &lock, LASTING_TTL).await {
            self.release(guard).await;
        }
        self.close(session).await;
    }

    /// Whoever comes after this came later.
    async fn see_in_line(&self, lock: &str, session: &str, standing: &AbortOnDropHandle<()>) {
        let by = Instant::now() + SEEN_BY;
        while !standing.is_finished() && Instant::now() < by {
            if self.look(lock).await.waiters.iter().any(|waiter| waiter.session_id == session) {
                return;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Asks whether all is as it was, gives the lock back, and sees the queue served by then. Whether it was.
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
