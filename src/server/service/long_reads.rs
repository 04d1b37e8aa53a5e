//! Limits reads that visit many keys: they share a runtime with renewals.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::Error;
use lockkeeper_raft::NoReply;

/// Maximum number of reads that wait for their turn to visit more. Each keeps an old copy of the table alive.
pub(super) const LONG_READS_MAX: usize = 64;

/// The turns of reads that visit many keys: one at a time goes on, and a limited number of them wait.
#[derive(Debug)]
pub(crate) struct LongReads {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

impl Default for LongReads {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(LONG_READS_MAX)), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl LongReads {
    /// Waits for a turn. Fails if too many reads wait already.
    pub(super) async fn turn(&self) -> Result<[OwnedSemaphorePermit; 2], Error> {
        let overloaded = |_| Error::no_reply(NoReply::Overloaded);
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(overloaded)?;
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| Error::no_reply(NoReply::Overloaded))?;
        Ok([place, turn])
    }
}
