//! Entries that live as long as this node holds them: it renews them, and they end soon after it has stopped.
//!
//! One task writes them, several in a transaction, so that a thousand waiting clients cost a few transactions a second. Calls take turns:
//! one that changes a single entry does not wait for those before it that change thousands. For that, each entry is queued for a *round*:
//! a call has some of its entries in the next round, as many in the one after it, and so on. An entry is queued once, however many calls
//! change it, so the queue is as long as what is to be written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{SharedSignals, port};
use crate::{EntryTxn, EntryWrite, Expiry, LockClaim, RedisStore, StoreFailure};

/// How long an entry lives without a renewal.
const LIFE_MS: u64 = 5000;
const RENEWAL: Duration = Duration::from_millis(1500);
/// Number of entries that one transaction writes.
const TOGETHER_MAX: usize = 200;
/// Those of them that are renewals while calls wait. Most of them: an entry that is not renewed in time ends.
const RENEWED_TOGETHER_MAX: usize = 150;
/// Number of entries that a call has in a round: as many as most calls change.
const ROUND_ENTRIES: usize = 16;
/// The round of entries whose write has failed: they come before all others.
const FAILED_ROUND: u64 = 0;
/// Number of waiting calls from which on those are looked for that nobody waits for any more.
const WAITING_MIN: usize = 1024;
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
    /// Where it stands in the queue.
    round: u64,
}

/// Entries that are to be written, or without a value deleted.
pub(super) type LeaseChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The entries that a node holds.
pub(super) struct Leases {
    state: Mutex<HeldEntries>,
    /// The turn of those that look whether there is room, and then take it.
    turns: Mutex<()>,
    /// Something is to be written.
    changed: Notify,
}

#[derive(Default)]
struct HeldEntries {
    /// The entries, with their values.
    held: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Those that are to be written, and those that are to be deleted. What is renewed is not among them.
    unwritten: BTreeMap<Vec<u8>, UnwrittenEntry>,
    /// The same ones by their rounds.
    queue: BTreeSet<(u64, Vec<u8>)>,
    /// The last round of which an entry was taken.
    round: u64,
    /// The calls whose entries are not committed yet, by the last rounds of these.
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    /// Number of calls up to now.
    calls: u64,
    /// Number of waiting calls at which the next search for abandoned ones begins.
    sweep_at: usize,
    /// Entries that are to be renewed.
    due: VecDeque<Vec<u8>>,
}

/// Says when all entries of a call are committed.
pub(super) struct LeasesWritten(oneshot::Receiver<()>);

impl LeasesWritten {
    pub(super) async fn by(self, deadline: Instant) -> Result<(), StoreFailure> {
        match timeout_at(deadline, self.0).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                Err(StoreFailure::Unavailable("the client's place could not be noted in time".to_owned()))
            }
        }
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self { state: Mutex::default(), turns: Mutex::default(), changed: Notify::new() }
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

    /// Has entries written and kept, or deleted.
    pub(super) fn change(&self, changes: LeaseChanges) -> LeasesWritten {
        let (done, written) = oneshot::channel();
        let mut state = self.state();
        let first = state.round + 1;
        let mut last = first;
        for ((key, value), round) in changes.into_iter().zip((first..).flat_map(|round| [round; ROUND_ENTRIES])) {
            last = round;
            match value {
                Some(value) => state.hold(key, value, round),
                None => state.release(key, round),
            }
        }
        state.wait_for(last, done);
        drop(state);

        self.changed.notify_one();
        LeasesWritten(written)
    }

    /// The state. No code panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, HeldEntries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldEntries {
    fn hold(&mut self, key: Vec<u8>, value: Vec<u8>, round: u64) {
        let was_held = self.held.insert(key.clone(), value.clone()).is_some();
        let before = self.forget_unwritten(&key);
        let is_stored = before.as_ref().map_or(was_held, |before| before.is_stored);
        let round = before.map_or(round, |before| before.round.min(round));
        self.queue_entry(key, UnwrittenEntry { value: Some(value), is_stored, round });
    }

    fn release(&mut self, key: Vec<u8>, round: u64) {
        let was_held = self.held.remove(&key).is_some();
        let before = self.forget_unwritten(&key);
        let round = before.as_ref().map_or(round, |before| before.round.min(round));
        // One that the store has not seen is just forgotten. A client may also leave before its entries were noted.
        if before.map_or(was_held, |before| before.is_stored) {
            self.queue_entry(key, UnwrittenEntry { value: None, is_stored: true, round });
        }
    }

    fn queue_entry(&mut self, key: Vec<u8>, entry: UnwrittenEntry) {
        self.queue.insert((entry.round, key.clone()));
        self.unwritten.insert(key, entry);
    }

    fn forget_unwritten(&mut self, key: &[u8]) -> Option<UnwrittenEntry> {
        let (key, entry) = self.unwritten.remove_entry(key)?;
        self.queue.remove(&(entry.round, key));
        Some(entry)
    }

    /// Notes a call that waits for all entries up to a round.
    fn wait_for(&mut self, round: u64, done: oneshot::Sender<()>) {
        self.calls += 1;
        self.waiting.insert((round, self.calls), done);

        // While no leader writes anything, clients may come and leave as often as they like.
        if self.waiting.len() > self.sweep_at.max(WAITING_MIN) {
            self.waiting.retain(|_, done| !done.is_closed());
            self.sweep_at = 2 * self.waiting.len();
        }
    }

    /// Some of what is to be written.
    fn take(&mut self, together_max: usize) -> LeaseChanges {
        let mut taken = LeaseChanges::new();
        while taken.len() < together_max && self.has_failed() {
            self.take_first(&mut taken);
        }

        let renewed_max = if self.queue.is_empty() { together_max } else { together_max.min(RENEWED_TOGETHER_MAX) };
        while taken.len() < renewed_max
            && let Some(key) = self.due.pop_front()
        {
            // What changes is written here as well, and not a second time soon after.
            if let Some(change) = self.forget_unwritten(&key) {
                taken.insert(key, change.value);
            } else if let Some(value) = self.held.get(&key).cloned() {
                taken.insert(key, Some(value));
            }
        }

        while taken.len() < together_max && !self.queue.is_empty() {
            self.take_first(&mut taken);
        }
        taken
    }

    fn take_first(&mut self, taken: &mut LeaseChanges) {
        let Some((round, key)) = self.queue.pop_first() else { return };
        self.round = self.round.max(round);
        if let Some(change) = self.unwritten.remove(&key) {
            taken.insert(key, change.value);
        }
    }

    /// Tells the calls of which nothing is left in the queue that all of theirs is committed. After a write that has failed there are none
    /// until it is made up for.
    fn written(&mut self) {
        let unwritten_from = self.queue.first().map_or(u64::MAX, |(round, _)| *round);
        let still_waiting = self.waiting.split_off(&(unwritten_from, 0));
        for (_, done) in std::mem::replace(&mut self.waiting, still_waiting) {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }

    fn has_failed(&self) -> bool {
        self.queue.first().is_some_and(|(round, _)| *round == FAILED_ROUND)
    }

    /// Takes back what could not be written. Changes that came meanwhile stay. If the store will never take one of them, they are tried one
    /// by one, and that one is given up.
    fn put_back(&mut self, changes: LeaseChanges, together_max: &mut usize, failure: &StoreFailure) {
        let is_final = matches!(failure, StoreFailure::TooLarge(_) | StoreFailure::Denied(_));
        if is_final
            && changes.len() == 1
            && let Some(key) = changes.keys().next()
        {
            tracing::warn!(%failure, "a waiting client or a subscription is given up");
            if !self.unwritten.contains_key(key) {
                self.held.remove(key);
            }
            return;
        }

        if is_final {
            *together_max = 1;
        }
        for (key, value) in changes {
            let newer = self.forget_unwritten(&key);
            let value = newer.map_or(value, |newer| newer.value);
            // It is not always known whether the write has failed.
            self.queue_entry(key, UnwrittenEntry { value, is_stored: true, round: FAILED_ROUND });
        }
    }

    /// Has all entries renewed, unless that is still under way.
    fn renew_all(&mut self) {
        if self.due.is_empty() {
            self.due = self.held.keys().cloned().collect();
        }
    }
}

/// Writes the entries of a node, and renews them. Never returns.
pub(super) async fn keep<S: RedisStore>(store: S, shared: Arc<SharedSignals>) {
    let leases = &shared.leases;
    let mut renewal = Instant::now() + RENEWAL;
    let mut together_max = TOGETHER_MAX;
    loop {
        if renewal <= Instant::now() {
            renewal = Instant::now() + RENEWAL;
            leases.state().renew_all();
        }
        if write_some(&store, leases, &mut together_max).await {
            continue;
        }
        tokio::select! {
            () = leases.changed.notified() => {}
            () = sleep_until(renewal) => {}
        }
    }
}

/// Writes some entries. Returns whether there were any.
async fn write_some<S: RedisStore>(store: &S, leases: &Leases, together_max: &mut usize) -> bool {
    let changes = leases.state().take(*together_max);
    if changes.is_empty() {
        leases.state().written();
        return false;
    }

    let writes = changes.iter().map(|(key, value)| match value.clone() {
        Some(value) => {
            EntryWrite::Put { key: key.clone(), value, expiry: Expiry::AfterMs(LIFE_MS), claim: LockClaim::None }
        }
        None => EntryWrite::Delete { key: key.clone() },
    });
    let txn = EntryTxn { writes: writes.collect(), ..EntryTxn::default() };
    match store.commit(&port(), txn).await {
        Ok(_) => {
            let mut state = leases.state();
            state.written();
            if !state.has_failed() {
                *together_max = TOGETHER_MAX;
            }
        }
        Err(failure) => {
            tracing::debug!(%failure, "waiting clients could not be noted");
            leases.state().put_back(changes, together_max, &failure);
            sleep(PAUSE).await;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change<const N: usize>(leases: &Leases, changes: [(&str, Option<&[u8]>); N]) -> LeasesWritten {
        let owned = |(key, value): (&str, Option<&[u8]>)| (key.as_bytes().to_vec(), value.map(<[u8]>::to_vec));
        leases.change(changes.into_iter().map(owned).collect())
    }

    fn changes<const N: usize>(changes: [(&str, Option<&[u8]>); N]) -> LeaseChanges {
        changes.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value.map(<[u8]>::to_vec))).collect()
    }

    /// Whether a call was told that its entries are committed.
    fn is_told(call: &mut LeasesWritten) -> bool {
        call.0.try_recv().is_ok()
    }

    #[test]
    fn entries_that_come_and_go_leave_nothing_to_write() {
        let leases = Leases::default();
        change(&leases, [("stays", Some(b""))]);
        for number in 0..10 {
            let key = format!("goes-{number}");
            change(&leases, [(&key, Some(b"1"))]);
            change(&leases, [(&key, Some(b"2"))]);
            change(&leases, [(&key, None)]);
        }
        assert_eq!(leases.state().take(TOGETHER_MAX), changes([("stays", Some(b""))]));

        // From now on the store has it, or will have it: also if its write seems to have failed, and while it is renewed.
        change(&leases, [("stays", None)]);
        let deleted = changes([("stays", None)]);
        assert_eq!(leases.state().take(TOGETHER_MAX), deleted);
        change(&leases, [("stays", Some(b""))]);
        leases.state().put_back(deleted.clone(), &mut 1, &StoreFailure::Unknown(String::new()));
        change(&leases, [("stays", None)]);
        assert_eq!(leases.state().take(TOGETHER_MAX), deleted);
        assert_eq!(leases.state().take(TOGETHER_MAX), changes([]));
    }

    #[test]
    fn entries_have_their_places_until_they_are_deleted() {
        let leases = Leases::default();
        // Whether a write that failed has reached the store is not known.
        for round in [1, 0] {
            let keys = (0..HELD_MAX).map(|number| format!("{round}-{number}").into_bytes());
            assert_eq!(leases.ensure_room(keys.clone()), Ok(()), "round {round}");
            leases.change(keys.clone().map(|key| (key, Some(Vec::new()))).collect());
            let taken = leases.state().take(2 * HELD_MAX);
            leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &StoreFailure::Unknown(String::new()));
            leases.change(keys.map(|key| (key, None)).collect());
        }

        let next = || std::iter::once(b"next".to_vec());
        assert!(matches!(leases.ensure_room(next()), Err(StoreFailure::TooLarge(_))));
        leases.state().take(TOGETHER_MAX);
        assert_eq!(leases.ensure_room(next()), Ok(()));
    }

    #[test]
    fn clients_that_come_and_leave_during_an_outage_leave_nothing_behind() {
        let leases = Leases::default();
        change(&leases, [("held", Some(b"1"))]);
        let taken = leases.state().take(TOGETHER_MAX);
        leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &StoreFailure::Unavailable(String::new()));
        let mut waits = change(&leases, [("waits", Some(b"1"))]);

        for client in 0..20_000 {
            let keys = || (0..20).map(move |number| format!("{client}-{number}").into_bytes());
            drop(leases.change(keys().map(|key| (key, Some(Vec::new()))).collect()));
            drop(leases.change(keys().map(|key| (key, None)).collect()));
            // This one leaves before there was anything to write.
            change(&leases, [(&format!("never-{client}"), None)]);
        }
        {
            let state = leases.state();
            assert_eq!((state.held.len(), state.unwritten.len(), state.queue.len()), (2, 2, 2));
            assert!(state.waiting.len() <= WAITING_MIN + 1, "{} calls", state.waiting.len());
        }

        assert_eq!(leases.state().take(TOGETHER_MAX), changes([("held", Some(b"1")), ("waits", Some(b"1"))]));
        leases.state().written();
        assert!(is_told(&mut waits));
        assert!(leases.state().waiting.is_empty());
    }

    #[test]
    fn calls_that_change_thousands_take_turns() {
        let leases = Leases::default();
        let keys =
            |call: usize| (0..5000).map(move |number| (format!("{call}-{number}").into_bytes(), Some(Vec::new())));
        let mut calls = [0, 1].map(|call| leases.change(keys(call).collect()));
        for _ in 0..10 {
            let taken = leases.state().take(10 * ROUND_ENTRIES);
            assert_eq!(taken.keys().filter(|key| key.starts_with(b"0-")).count(), 5 * ROUND_ENTRIES);
            leases.state().written();
        }

        // What one of them has changed, a third call changes again. It stays where it stands, or comes earlier.
        let mut third = leases.change(keys(0).skip(4999).collect());
        leases.state().take(10 * ROUND_ENTRIES);
        leases.state().written();
        assert!(is_told(&mut third) && calls.iter_mut().all(|call| !is_told(call)));

        while !leases.state().take(TOGETHER_MAX).is_empty() {
            leases.state().written();
        }
        assert!(calls.iter_mut().all(is_told));
    }

    #[test]
    fn a_call_for_one_entry_does_not_wait_for_those_of_thousands() {
        let leases = Leases::default();
        let thousands = (0..5000).map(|number| (format!("many-{number}").into_bytes(), Some(Vec::new())));
        let mut first = leases.change(thousands.collect());
        let mut second = change(&leases, [("one", Some(b""))]);

        let taken = leases.state().take(TOGETHER_MAX);
        assert_eq!(taken.len(), TOGETHER_MAX);
        assert!(taken.contains_key(&b"one"[..]));
        assert!(!is_told(&mut second), "it is not committed yet");
        leases.state().written();
        assert!(is_told(&mut second) && !is_told(&mut first));

        while !leases.state().take(TOGETHER_MAX).is_empty() {
            leases.state().written();
        }
        leases.state().written();
        assert!(is_told(&mut first));
    }

    #[test]
    fn a_call_whose_entry_could_not_be_written_waits_for_it() {
        let leases = Leases::default();
        let mut call = change(&leases, [("a", Some(b"1"))]);
        let taken = leases.state().take(TOGETHER_MAX);
        leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &StoreFailure::Unavailable(String::new()));
        leases.state().written();
        assert!(!is_told(&mut call));

        // Another call changes it meanwhile: the newer value is written, once.
        let mut newer = change(&leases, [("a", Some(b"2"))]);
        assert_eq!(leases.state().take(TOGETHER_MAX), changes([("a", Some(b"2"))]));
        leases.state().written();
        assert!(is_told(&mut call) && is_told(&mut newer));
        assert_eq!(leases.state().take(TOGETHER_MAX), changes([]));
    }

    #[test]
    fn entries_are_renewed_however_many_calls_wait() {
        let leases = Leases::default();
        change(&leases, [("held", Some(b"1")), ("changed", Some(b"1")), ("goes", Some(b"1"))]);
        leases.state().take(TOGETHER_MAX);
        leases.state().written();

        let many = (0..5000).map(|number| (format!("many-{number}").into_bytes(), Some(Vec::new())));
        leases.change(many.collect());
        change(&leases, [("changed", Some(b"2")), ("goes", None)]);
        leases.state().renew_all();

        let taken = leases.state().take(TOGETHER_MAX);
        let value = |key: &str| taken.get(key.as_bytes());
        assert_eq!(value("held"), Some(&Some(b"1".to_vec())));
        assert_eq!(value("changed"), Some(&Some(b"2".to_vec())));
        assert_eq!(value("goes"), Some(&None));
    }
}
