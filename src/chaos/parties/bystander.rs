//! The bystander of a run: a client of its own with one session and one lock, which it never uses.
//!
//! It reaches the nodes directly, not through the links of the clients, so it can reach a quorum whenever there is one. Its session must
//! live through the whole run: see the property [`Bystander`](crate::chaos::checker::Property::Bystander). It ends only with the cluster
//! that is lost in a restore, or where faults left no quorum for too long. Then the bystander begins again, with another session and
//! another lock.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::operator::{Operator, PROBE_TTL};
use crate::{
    chaos::{
        history::{Fact, Mode},
        workload::{holder, locks::Lock, outcomes},
    },
    client::{Guard, Session},
};

/// The TTL of its session: far above the longest time for which a fault leaves no quorum. A restored cluster grants nothing for the longest
/// TTL in its backup, so it is not longer than those that every run has.
const TTL: Duration = PROBE_TTL;
/// Bound on the time in which a renewal is acknowledged while there is a quorum, milliseconds. It fits into the TTL together with the
/// longest time for which a fault leaves no quorum.
pub(in crate::chaos) const RENEWAL_BOUND_MS: u64 = 8_000;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// The bystander. Dropped, it ends without a trace.
#[derive(Debug)]
pub(in crate::chaos) struct Bystander {
    task: AbortOnDropHandle<()>,
    finish: CancellationToken,
}

impl Bystander {
    /// It begins in the background. This operator is its alone, with a recorder of its own.
    pub(in crate::chaos) fn start(operator: Operator) -> Self {
        let finish = CancellationToken::new();
        let task = tokio::spawn(stand_by(operator, finish.clone()));
        Self { task: AbortOnDropHandle::new(task), finish }
    }

    /// Lets it give back what it has.
    pub(in crate::chaos) async fn finish(self) {
        self.finish.cancel();
        // A panic of it is on stderr.
        let _ = self.task.await;
    }
}

async fn stand_by(operator: Operator, finish: CancellationToken) {
    for number in 1_u32.. {
        let lock = Lock { name: format!("bystander/{number}"), mode: Mode::Exclusive };
        let held = tokio::select! {
            biased;
            () = finish.cancelled() => return,
            held = hold(&operator, &lock) => held,
        };
        let Some(Held { session, guard, watching }) = held else {
            sleep(BETWEEN_TRIES).await;
            continue;
        };
        holder::tell_of_loss(operator.recorder.clone(), &guard);
        operator.recorder.fact(Fact::Bystander { session: session.id().to_string() });
        tokio::select! {
            biased;
            loss = session.lost() => {
                // Its end is in the history then, but that of a session that another closed.
                drop(watching.await);
                if outcomes::loss(&loss).is_none() {
                    let session = session.id().to_string();
                    operator.recorder.fact(Fact::Lost { session, why: "closed".to_owned(), token: None });
                }
            }
            () = finish.cancelled() => {
                operator.look(&lock.name).await;
                operator.release(guard).await;
                return operator.close(session).await;
            }
        }
    }
}

/// A session, its lock, and the record of its renewals.
struct Held {
    session: Session,
    guard: Guard,
    watching: AbortOnDropHandle<()>,
}

/// Opens a session and acquires the lock. `None`: the session could not be opened, or was lost meanwhile.
async fn hold(operator: &Operator, lock: &Lock) -> Option<Held> {
    let session = operator.open_for(TTL, Instant::now()).await?;
    let watching = holder::watch(operator.recorder.clone(), &session);
    while session.loss().is_none() {
        // A restored cluster grants nothing for a while.
        if let Ok(guard) = operator.acquire(&session, lock, Duration::ZERO).await {
            return Some(Held { session, guard, watching });
        }
        sleep(BETWEEN_TRIES).await;
    }
    None
}
