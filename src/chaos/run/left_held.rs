//! A holder that the loss of its cluster surprises. It trusts its locks until it is told or until its deadline, and a cluster that is
//! restored from a backup must not grant them before.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use lockkeeper_client::{Error, Guard, Session};

use super::super::parties::operator::RunOperator;
use crate::{
    history::Mode,
    workload::{
        holder::{self, SessionWatch},
        locks::Lock,
    },
};

/// The TTL of the holder's session: longer than a restore and the election after it.
pub const LEFT_TTL: Duration = Duration::from_secs(4);
/// Time limit of an acquire that finds the lock held, or the cluster closed.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// The pause after an error.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// A holder and its locks. If it is dropped, it releases what it still has.
#[derive(Debug)]
pub struct LeftHeld {
    session: Session,
    locks: Vec<Lock>,
    /// By which it trusts its locks.
    guards: Vec<Guard>,
    _watching: SessionWatch,
}

impl RunOperator {
    /// Acquires this lock, which is used once, in a session of its own. Returns `None` if the cluster is not available by this time.
    pub async fn hold(&self, lock: &str, by: Instant) -> Option<LeftHeld> {
        let session = self.open_for(LEFT_TTL, by).await?;
        let watching = holder::watch(self.recorder.clone(), &session);
        let mut held = LeftHeld { session, locks: Vec::new(), guards: Vec::new(), _watching: watching };
        self.hold_also(&mut held, lock).await.ok()?;
        Some(held)
    }

    /// Acquires one more lock, which is used once, in the holder's session.
    pub async fn hold_also(&self, held: &mut LeftHeld, lock: &str) -> Result<(), Error> {
        let lock = Lock { name: lock.to_owned(), mode: Mode::Exclusive };
        let guard = self.acquire(&held.session, &lock, Duration::ZERO).await?;
        held.guards.push(guard);
        held.locks.push(lock);
        Ok(())
    }

    /// Acquires the holder's locks, as another client that goes on asking for them. Returns whether each was granted by this time.
    pub async fn take_over_from(&self, held: &LeftHeld, by: Instant) -> bool {
        let Some(session) = self.open_for(LEFT_TTL, by).await else { return false };
        let watching = holder::watch(self.recorder.clone(), &session);
        let takes = held.locks.iter().map(async |lock| {
            loop {
                match self.acquire(&session, lock, PATIENCE).await {
                    Ok(guard) => {
                        self.release(guard).await;
                        return true;
                    }
                    Err(_) if Instant::now() >= by => return false,
                    Err(Error::NotAcquired(_)) => {}
                    Err(_) => sleep(AFTER_ERROR).await,
                }
            }
        });

        let taken = futures::future::join_all(takes).await;
        watching.expect_close();
        self.close(session).await;
        taken.into_iter().all(|taken| taken)
    }
}
