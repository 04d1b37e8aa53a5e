//! Entries that live as long as this node holds them: it renews them, and they end soon after it has stopped.
//!
//! One task writes them, several in a transaction, so that a thousand waiting clients cost a few transactions a second.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{SharedSignals, port};
use crate::{EntryTxn, EntryWrite, Expiry, LockClaim, RedisStore, StoreFailure};

/// How long an entry lives without a renewal.
const LIFE_MS: u64 = 5000;
const RENEWAL: Duration = Duration::from_millis(1500);
/// Number of entries that one transaction writes.
const TOGETHER_MAX: usize = 200;
/// Maximum number of entries that a node holds. All of them are renewed all the time, so without a bound a few clients could have the
/// cluster do nothing else.
const HELD_MAX: usize = 16 << 10;
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// What is to be done to an entry.
struct UnwrittenEntry {
    /// Its value; without one it is to be deleted.
    value: Option<Vec<u8>>,
    /// Whether the store may have the entry.
    is_stored: bool,
}

/// An entry that is to be written, or without a value deleted.
type LeaseChange = (Vec<u8>, Option<Vec<u8>>);

/// The entries that a node holds.
pub(super) struct Leases {
    state: Mutex<HeldEntries>,
    /// The turn of those that look whether there is room, and then take it.
    turns: Mutex<()>,
    /// Something is to be written.
    changed: Notify,
    /// The last generation of which everything is written.
    settled: watch::Sender<u64>,
}

#[derive(Default)]
struct HeldEntries {
    /// The entries, with their values.
    held: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Those that are to be written, and those that are to be deleted.
    unwritten: BTreeMap<Vec<u8>, UnwrittenEntry>,
    /// Rises with each change.
    generation: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            turns: Mutex::default(),
            changed: Notify::new(),
            settled: watch::Sender::new(0),
        }
    }
}

impl Leases {
    /// Whoever has this turn takes the room that [`Self::ensure_room`] has found: nobody else does meanwhile.
    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if there is no room for these entries beside those that the node holds.
    pub(super) fn ensure_room(&self, keys: impl Iterator<Item = Vec<u8>>) -> Result<(), StoreFailure> {
        let state = self.state();
        let new = keys.filter(|key| !state.held.contains_key(key)).count();
        // Those that have gone have a place until they are deleted: clients that come and go must not outrun the writes.
        if state.held.len() + new > HELD_MAX || state.unwritten.len() + new > 2 * HELD_MAX {
            return Err(StoreFailure::TooLarge(format!(
                "a node keeps {HELD_MAX} places of waiting clients and channels with subscribers, and no more: use fewer, or another node"
            )));
        }
        Ok(())
    }

    /// Has an entry written and kept. Returns the generation for [`Self::settled`].
    pub(super) fn hold(&self, key: Vec<u8>, value: Vec<u8>) -> u64 {
        self.change(|state| {
            let was_held = state.held.insert(key.clone(), value.clone()).is_some();
            let is_stored = state.unwritten.get(&key).map_or(was_held, |before| before.is_stored);
            state.unwritten.insert(key, UnwrittenEntry { value: Some(value), is_stored });
        })
    }

    /// Has an entry deleted.
    pub(super) fn release(&self, key: Vec<u8>) -> u64 {
        self.change(|state| {
            state.held.remove(&key);
            // One that the store has not seen is just forgotten.
            let is_stored = state.unwritten.remove(&key).is_none_or(|before| before.is_stored);
            if is_stored {
                state.unwritten.insert(key, UnwrittenEntry { value: None, is_stored });
            }
        })
    }

    /// Waits until everything up to a generation is committed.
    pub(super) async fn settled(&self, generation: u64, deadline: Instant) -> Result<(), StoreFailure> {
        let mut settled = self.settled.subscribe();
        match timeout_at(deadline, settled.wait_for(|settled| *settled >= generation)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                Err(StoreFailure::Unavailable("the client's place could not be noted in time".to_owned()))
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut HeldEntries)) -> u64 {
        let mut state = self.state();
        change(&mut state);
        state.generation += 1;
        self.changed.notify_one();
        state.generation
    }

    /// The state. No code panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, HeldEntries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of what is to be written, and the generation that is settled after it.
    fn take(&self, together_max: usize) -> (Vec<LeaseChange>, u64) {
        let mut state = self.state();
        let mut taken = Vec::new();
        while taken.len() < together_max
            && let Some((key, change)) = state.unwritten.pop_first()
        {
            taken.push((key, change.value));
        }
        let settled = if state.unwritten.is_empty() { state.generation } else { 0 };
        (taken, settled)
    }

    /// Takes back what could not be written. Changes that came meanwhile stay. If the store will never take one of them, they are tried one
    /// by one, and that one is given up.
    fn put_back(&self, changes: Vec<LeaseChange>, together_max: &mut usize, failure: &StoreFailure) {
        let is_final = matches!(failure, StoreFailure::TooLarge(_) | StoreFailure::Denied(_));
        let mut state = self.state();
        if is_final && let [(key, _)] = &changes[..] {
            tracing::warn!(%failure, "a waiting client or a subscription is given up");
            state.held.remove(key);
            return;
        }
        if is_final {
            *together_max = 1;
        }
        for (key, value) in changes {
            // It is not always known whether the write has failed.
            let change = UnwrittenEntry { value, is_stored: true };
            state.unwritten.entry(key).and_modify(|newer| newer.is_stored = true).or_insert(change);
        }
    }

    fn renew_all(&self) {
        let mut state = self.state();
        let held = state.held.clone();
        for (key, value) in held {
            state.unwritten.entry(key).or_insert(UnwrittenEntry { value: Some(value), is_stored: true });
        }
    }
}

/// Writes the entries of a node, and renews them. Never returns.
pub(super) async fn keep<S: RedisStore>(store: S, shared: Arc<SharedSignals>) {
    let leases = &shared.leases;
    let mut renewal = Instant::now() + RENEWAL;
    loop {
        tokio::select! {
            () = leases.changed.notified() => {}
            () = sleep_until(renewal) => {
                renewal = Instant::now() + RENEWAL;
                leases.renew_all();
            }
        }
        write_all(&store, leases).await;
    }
}

async fn write_all<S: RedisStore>(store: &S, leases: &Leases) {
    let mut together_max = TOGETHER_MAX;
    loop {
        let (changes, settled) = leases.take(together_max);
        if !changes.is_empty() {
            let writes = changes.iter().cloned().map(|(key, value)| match value {
                Some(value) => EntryWrite::Put { key, value, expiry: Expiry::AfterMs(LIFE_MS), claim: LockClaim::None },
                None => EntryWrite::Delete { key },
            });
            let txn = EntryTxn { writes: writes.collect(), ..EntryTxn::default() };

            if let Err(failure) = store.commit(&port(), txn).await {
                tracing::debug!(%failure, "waiting clients could not be noted");
                leases.put_back(changes, &mut together_max, &failure);
                sleep(PAUSE).await;
                continue;
            }
            together_max = TOGETHER_MAX;
        }
        if settled > 0 {
            leases.settled.send_if_modified(|before| std::mem::replace(before, (*before).max(settled)) < settled);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_come_and_go_leave_nothing_to_write() {
        let leases = Leases::default();
        leases.hold(b"stays".to_vec(), Vec::new());
        for number in 0..10 {
            let key = format!("goes-{number}").into_bytes();
            leases.hold(key.clone(), b"1".to_vec());
            leases.hold(key.clone(), b"2".to_vec());
            leases.release(key);
        }
        assert_eq!(leases.take(TOGETHER_MAX).0, [(b"stays".to_vec(), Some(Vec::new()))]);

        // From now on the store has it, or will have it: also if its write seems to have failed, and while it is renewed.
        leases.release(b"stays".to_vec());
        let deleted = vec![(b"stays".to_vec(), None)];
        assert_eq!(leases.take(TOGETHER_MAX).0, deleted);
        leases.hold(b"stays".to_vec(), Vec::new());
        leases.put_back(deleted.clone(), &mut 1, &StoreFailure::Unknown(String::new()));
        leases.release(b"stays".to_vec());
        assert_eq!(leases.take(TOGETHER_MAX).0, deleted);
    }

    #[test]
    fn entries_have_their_places_until_they_are_deleted() {
        let leases = Leases::default();
        // What comes is written before what has gone is deleted.
        for round in [1, 0] {
            let keys = (0..HELD_MAX).map(|number| format!("{round}-{number}").into_bytes());
            assert_eq!(leases.ensure_room(keys.clone()), Ok(()), "round {round}");
            for key in keys.clone() {
                leases.hold(key, Vec::new());
            }
            leases.take(HELD_MAX);
            for key in keys {
                leases.release(key);
            }
        }

        let next = || std::iter::once(b"next".to_vec());
        assert!(matches!(leases.ensure_room(next()), Err(StoreFailure::TooLarge(_))));
        leases.take(TOGETHER_MAX);
        assert_eq!(leases.ensure_room(next()), Ok(()));
    }
}
