//! Turns of reads that visit many keys: the table's readers share a runtime with renewals.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::Error;
use lockkeeper_raft::NoReply;

/// Reads that wait for their turn to visit more. Each keeps the table as it was.
pub(super) const LONG_READS_MAX: usize = 64;

/// Reads that visit many keys: one at a time goes on, and a number of them wait.
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
    /// Waits for its turn. Fails if too many wait.
    pub(super) async fn turn(&self) -> Result<[OwnedSemaphorePermit; 2], Error> {
        let overloaded = |_| Error::no_reply(NoReply::Overloaded);
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(overloaded)?;
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| Error::no_reply(NoReply::Overloaded))?;
        Ok([place, turn])
    }
}
