//! The bystander of a run: a client of its own with one session and one lock, which it never uses.
//!
//! It reaches the nodes directly, not through the links of the clients, so it can reach a quorum whenever there is one. Its session must
//! live through the whole run: see the property [`Bystander`](crate::checker::Property::Bystander). The session ends only with the
//! cluster that is lost in a restore, or where faults left no quorum for too long. Then the bystander begins again, with another session
//! and another lock.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use lockkeeper_client::{Guard, Session};

use super::operator::{PROBE_TTL, RunOperator};
use crate::{
    history::{Fact, Mode},
    workload::{
        holder::{self, SessionWatch},
        locks::Lock,
    },
};

/// The TTL of its session, which is far above the longest time for which a fault leaves no quorum. A restored cluster grants nothing for
/// the longest TTL in its backup, so this one does not exceed those that every run has.
const TTL: Duration = PROBE_TTL;
/// Time limit of a renewal's acknowledgement while there is a quorum, in milliseconds. Together with the longest time for which a fault
/// leaves no quorum, it fits into the TTL.
pub(crate) const RENEWAL_BOUND_MS: u64 = 8_000;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// The bystander. If it is dropped, it ends without a trace.
#[derive(Debug)]
pub(crate) struct Bystander {
    task: AbortOnDropHandle<()>,
    finish: CancellationToken,
}

impl Bystander {
    /// Starts it in the background. Only the bystander uses this operator, which has a recorder of its own.
    pub(crate) fn start(operator: RunOperator) -> Self {
        let finish = CancellationToken::new();
        let task = tokio::spawn(stand_by(operator, finish.clone()));
        Self { task: AbortOnDropHandle::new(task), finish }
    }

    /// Lets it give back its lock and its session.
    pub(crate) async fn finish(self) {
        self.finish.cancel();
        // If it panicked, stderr has the panic.
        let _ = self.task.await;
    }
}

async fn stand_by(operator: RunOperator, finish: CancellationToken) {
    for number in 1_u32.. {
        let lock = Lock { name: format!("bystander/{number}"), mode: Mode::Exclusive };
        let held = tokio::select! {
            biased;
            () = finish.cancelled() => return,
            held = hold(&operator, &lock) => held,
        };
        let Some(StandingHold { session, guard, watching }) = held else {
            sleep(BETWEEN_TRIES).await;
            continue;
        };

        holder::tell_of_loss(operator.recorder.clone(), &guard);
        operator.recorder.fact(Fact::Bystander { session: session.id().to_string() });

        tokio::select! {
            biased;
            // The history then has the session's end, also if another client closed the session.
            _ = session.lost() => watching.recorded().await,
            () = finish.cancelled() => {
                operator.look(&lock.name).await;
                operator.release(guard).await;
                watching.expect_close();
                return operator.close(session).await;
            }
        }
    }
}

/// A session, its lock, and the record of its renewals.
struct StandingHold {
    session: Session,
    guard: Guard,
    watching: SessionWatch,
}

/// Opens a session and acquires the lock. Returns `None` if the session could not be opened, or was lost meanwhile.
async fn hold(operator: &RunOperator, lock: &Lock) -> Option<StandingHold> {
    let session = operator.open_for(TTL, Instant::now()).await?;
    let watching = holder::watch(operator.recorder.clone(), &session);
    while session.loss().is_none() {
        // A restored cluster grants nothing for a while.
        if let Ok(guard) = operator.acquire(&session, lock, Duration::ZERO).await {
            return Some(StandingHold { session, guard, watching });
        }
        sleep(BETWEEN_TRIES).await;
    }
    None
}
