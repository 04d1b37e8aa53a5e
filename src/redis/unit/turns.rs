//! Units that write the same keys take turns at the node that runs them.
//!
//! Without turns, of many units on one key only one would commit at a time, and all others would run again. Turns are about time and not
//! about truth: what a unit commits is compared with what it read, turn or not.

use std::{
    collections::{BTreeSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::Arc,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of queues. Keys that share one wait for each other without need.
const QUEUES: usize = 1024;

/// The queues of units.
#[derive(Debug)]
pub(super) struct UnitTurns(Vec<Arc<Semaphore>>);

/// The turn of a unit, until it is dropped.
#[derive(Debug)]
pub(super) struct UnitTurn(#[expect(dead_code, reason = "dropping them ends the turn")] Vec<OwnedSemaphorePermit>);

impl Default for UnitTurns {
    fn default() -> Self {
        Self((0..QUEUES).map(|_| Arc::new(Semaphore::new(1))).collect())
    }
}

impl UnitTurns {
    /// Waits for the turn of a unit with these keys. Queues are entered in one order, so no two units wait for each other.
    pub(super) async fn take<'a>(&self, keys: impl IntoIterator<Item = &'a Vec<u8>>) -> UnitTurn {
        let queue = |key: &Vec<u8>| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            usize::try_from(hasher.finish() % QUEUES as u64).unwrap_or(0)
        };
        let queues: BTreeSet<usize> = keys.into_iter().map(queue).collect();

        let mut permits = Vec::with_capacity(queues.len());
        for queue in queues {
            // The queues are never closed.
            permits.extend(Arc::clone(&self.0[queue]).acquire_owned().await.ok());
        }
        UnitTurn(permits)
    }
}
