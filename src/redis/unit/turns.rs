//! Units that write the same keys take turns at the node that runs them.
//!
//! Without turns, of many units on one key only one would commit at a time, and all others would run again. Turns are about time and not
//! about truth: what a unit commits is compared with what it read, turn or not.
//!
//! A unit of very many keys would hold nearly all queues, and all others would wait until it has run. It can hardly commit anything, since
//! the keyspace compares no more keys in a transaction than have turns here. So such units have one queue of their own.

use std::{
    collections::{BTreeSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::Arc,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of queues. Keys that share one wait for each other without need.
const QUEUES: usize = 1024;
/// Maximum number of keys of a unit that has the turns of its keys: as many as the keyspace compares in a transaction.
const KEYS_MAX: usize = 256;

/// The queues of units.
#[derive(Debug)]
pub(super) struct UnitTurns {
    /// Those of keys.
    by_key: Vec<Arc<Semaphore>>,
    /// The one of units with more keys than have turns.
    wide: Arc<Semaphore>,
}

/// The turn of a unit, until it is dropped.
#[derive(Debug)]
pub(super) struct UnitTurn(#[expect(dead_code, reason = "dropping them ends the turn")] Vec<OwnedSemaphorePermit>);

impl Default for UnitTurns {
    fn default() -> Self {
        let queue = || Arc::new(Semaphore::new(1));
        Self { by_key: (0..QUEUES).map(|_| queue()).collect(), wide: queue() }
    }
}

impl UnitTurns {
    /// Waits for the turn of a unit with these keys. Queues are entered in one order, so no two units wait for each other.
    pub(super) async fn take(&self, keys: &BTreeSet<Vec<u8>>) -> UnitTurn {
        if keys.len() > KEYS_MAX {
            return UnitTurn(Arc::clone(&self.wide).acquire_owned().await.ok().into_iter().collect());
        }

        let queue = |key: &Vec<u8>| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            usize::try_from(hasher.finish() % QUEUES as u64).unwrap_or(0)
        };
        let queues: BTreeSet<usize> = keys.iter().map(queue).collect();

        let mut permits = Vec::with_capacity(queues.len());
        for queue in queues {
            // The queues are never closed.
            permits.extend(Arc::clone(&self.by_key[queue]).acquire_owned().await.ok());
        }
        UnitTurn(permits)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn keys(count: usize) -> BTreeSet<Vec<u8>> {
        (0..count).map(|number| number.to_string().into_bytes()).collect()
    }

    /// Takes a turn that comes at once.
    async fn take(turns: &UnitTurns, count: usize) -> Option<UnitTurn> {
        timeout(Duration::from_secs(1), turns.take(&keys(count))).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_of_very_many_keys_waits_for_others_like_it_and_for_no_key() {
        let turns = UnitTurns::default();
        let narrow = take(&turns, KEYS_MAX).await.expect("its turn");
        assert!(take(&turns, 1).await.is_none(), "another unit of the same key");
        let wide = take(&turns, 8_000).await.expect("its turn");
        assert!(take(&turns, 9_000).await.is_none(), "another unit of very many keys");

        drop(narrow);
        let narrow = take(&turns, 1).await.expect("its turn, beside the wide one");
        drop(wide);
        assert!(take(&turns, 9_000).await.is_some());
        drop(narrow);
    }
}
