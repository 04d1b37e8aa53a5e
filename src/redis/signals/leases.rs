//! Entries that live as long as this node holds them: it renews them, and they end soon after it has stopped.
//!
//! One task writes them, several in a transaction, so that a thousand waiting clients cost a few transactions a second. Calls take turns:
//! one that changes a single entry does not wait for those before it that change thousands. For that, each entry is queued for a *round*:
//! a call has some of its entries in the next round, as many in the one after it, and so on. An entry is queued once, however many calls
//! change it, so the queue is as long as what is to be written.
//!
//! **Renewals** go by themselves, in turns with what changes: a store that is full refuses new entries, and must not refuse with them what
//! it has already.
//!
//! **Lapses.** A node that cannot renew its entries, as one that is cut off from the others, must know before they can have ended for the
//! others. The inequality is that of native clients: the log stamps a write after this node *sent* it, and ends the entry [`LIFE`] after
//! that stamp. So until the sending of the last write that was acknowledged, plus the life, less a margin for the rates of the two clocks,
//! nobody can have seen it end ([`Leases::take_lapsed`]).

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
use crate::{Expiry, LockClaim, RedisCaller, RedisStore, RedisStoreError, RedisTxn, RedisWrite};

/// How long an entry lives without a renewal.
const LIFE: Duration = Duration::from_secs(5);
const RENEWAL: Duration = Duration::from_millis(1500);
/// Time limit of a write. There are two more attempts before the entries lapse.
const WRITE_TIMEOUT: Duration = Duration::from_millis(1500);
/// How much earlier than its life an entry lapses for its node.
const MARGIN: Duration = Duration::from_millis(250);
/// The longest pause between two searches for lapsed entries. No entry lapses so soon after it was written.
const LAPSE_LOOK: Duration = Duration::from_secs(1);
/// Number of entries that one transaction writes.
const TOGETHER_MAX: usize = 200;
/// Number of entries that a call has in a round: as many as most calls change.
const ROUND_ENTRIES: usize = 16;
/// The round of entries whose write has failed: they come before all others.
const FAILED_ROUND: u64 = 0;
/// From this number of waiting calls on, abandoned ones are searched for.
const WAITING_MIN: usize = 1024;
/// Maximum number of entries that a node holds. All of them are renewed all the time, so without a bound a few clients could have the
/// cluster do nothing else. What each client may have of them: `shares`.
pub(super) const HELD_MAX: usize = 20 << 10;
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// An entry that a node holds.
struct HeldEntry {
    value: Vec<u8>,
    /// The value that it was last written with.
    written: Option<Vec<u8>>,
    /// The time until which it cannot have ended. `None` before it was written, and after it has lapsed.
    sure_until: Option<Instant>,
}

/// The pending write of an entry.
struct UnwrittenEntry {
    /// Its value; without one it is to be deleted.
    value: Option<Vec<u8>>,
    /// Whether the store may have the entry.
    is_stored: bool,
    /// The round of its place in the queue.
    round: u64,
}

/// Entries that are to be written, or without a value deleted.
pub(super) type LeaseChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What one transaction writes.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseWrite {
    changes: LeaseChanges,
    /// Whether nothing of it is new.
    are_renewals: bool,
}

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
    held: BTreeMap<Vec<u8>, HeldEntry>,
    /// The entries that must be written or deleted. Renewals are not among them.
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
    /// Whether the last transaction was one of renewals.
    has_renewed: bool,
}

/// Says when all entries of a call are committed.
pub(super) struct LeasesWritten(oneshot::Receiver<()>);

impl LeasesWritten {
    pub(super) async fn by(self, deadline: Instant) -> Result<(), RedisStoreError> {
        match timeout_at(deadline, self.0).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(RedisStoreError::Full("the node has no free place for a waiting client".to_owned())),
            Err(_) => Err(RedisStoreError::Unavailable(
                "the place of the waiting client was not committed in time".to_owned(),
            )),
        }
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self { state: Mutex::default(), turns: Mutex::default(), changed: Notify::new() }
    }
}

impl Leases {
    /// Only the holder of this turn may use the room that [`Self::ensure_room`] has found.
    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if there is no room for these entries beside those that the node holds.
    pub(super) fn ensure_room(&self, keys: impl Iterator<Item = Vec<u8>>) -> Result<(), RedisStoreError> {
        let state = self.state();
        let new = keys.filter(|key| !state.held.contains_key(key)).count();
        // The entry of a client that left keeps its place until it is deleted: clients that come and go must not be faster than the writes.
        if state.held.len() + new > HELD_MAX || state.unwritten.len() + new > 2 * HELD_MAX {
            return Err(RedisStoreError::TooLarge(format!(
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

    /// Takes the entries that may have ended for others, each once, and says when to look again.
    pub(super) fn take_lapsed(&self, now: Instant) -> (Vec<Vec<u8>>, Instant) {
        let mut lapsed = Vec::new();
        let mut next = now + LAPSE_LOOK;
        for (key, entry) in &mut self.state().held {
            let Some(sure_until) = entry.sure_until else { continue };
            if sure_until > now {
                next = next.min(sure_until);
            } else {
                entry.sure_until = None;
                lapsed.push(key.clone());
            }
        }
        (lapsed, next)
    }

    /// The state. No code panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, HeldEntries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldEntries {
    fn hold(&mut self, key: Vec<u8>, value: Vec<u8>, round: u64) {
        let held = self.held.remove(&key);
        let was_held = held.is_some();
        // Another value makes it live no longer.
        let (written, sure_until) = held.map_or((None, None), |held| (held.written, held.sure_until));
        self.held.insert(key.clone(), HeldEntry { value: value.clone(), written, sure_until });

        let before = self.forget_unwritten(&key);
        let is_stored = before.as_ref().map_or(was_held, |before| before.is_stored);
        let round = before.map_or(round, |before| before.round.min(round));
        self.queue_entry(key, UnwrittenEntry { value: Some(value), is_stored, round });
    }

    fn release(&mut self, key: Vec<u8>, round: u64) {
        let was_held = self.held.remove(&key).is_some();
        let before = self.forget_unwritten(&key);
        let round = before.as_ref().map_or(round, |before| before.round.min(round));
        // An entry that was never stored is only forgotten. A client may also leave before its entries were noted.
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

    /// Takes the next writes: renewals, or some of the changes.
    fn take(&mut self, changed_max: usize) -> LeaseWrite {
        self.has_renewed = !self.due.is_empty() && (!self.has_renewed || self.queue.is_empty());
        if self.has_renewed {
            let changes = self.take_due();
            if !changes.is_empty() {
                return LeaseWrite { changes, are_renewals: true };
            }
        }

        let mut changes = LeaseChanges::new();
        while changes.len() < changed_max && !self.queue.is_empty() {
            self.take_first(&mut changes);
        }
        LeaseWrite { changes, are_renewals: false }
    }

    fn take_due(&mut self) -> LeaseChanges {
        let mut taken = LeaseChanges::new();
        while taken.len() < TOGETHER_MAX
            && let Some(key) = self.due.pop_front()
        {
            // What changes is in the queue.
            if !self.unwritten.contains_key(&key)
                && let Some(entry) = self.held.get(&key)
            {
                taken.insert(key, Some(entry.value.clone()));
            }
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

    /// Notes what was written by a transaction that was sent then.
    fn note_written(&mut self, changes: LeaseChanges, sent: Instant) {
        for (key, value) in changes {
            if let Some(entry) = self.held.get_mut(&key)
                && value.is_some()
            {
                entry.written = value;
                entry.sure_until = Some(sent + LIFE.saturating_sub(MARGIN));
            }
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

    /// Takes back a write that failed. Changes that came in the meantime stay. If the store refuses one of the changes, they are tried one
    /// by one, and the refused one is dropped.
    fn put_back(&mut self, write: LeaseWrite, changed_max: &mut usize, failure: &RedisStoreError) {
        let LeaseWrite { changes, are_renewals } = write;
        let is_final = matches!(failure, RedisStoreError::TooLarge(_) | RedisStoreError::Denied(_));
        let is_full = matches!(failure, RedisStoreError::Full(_));
        if (is_final || is_full)
            && changes.len() == 1
            && let Some(key) = changes.keys().next()
        {
            tracing::warn!(%failure, "the place of a waiting client or subscriber was dropped: the store refuses it");
            if !self.unwritten.contains_key(key) {
                self.give_up(key);
            }
            if is_full {
                // Others may wait for the same entry, and those that wait for another one hardly get it.
                self.waiting.clear();
            }
            return;
        }

        if is_final || is_full {
            *changed_max = 1;
        } else if are_renewals {
            changes.into_keys().rev().for_each(|key| self.due.push_front(key));
            return;
        }
        for (key, value) in changes {
            let newer = self.forget_unwritten(&key);
            let value = newer.map_or(value, |newer| newer.value);
            // It is not always known whether the write has failed.
            self.queue_entry(key, UnwrittenEntry { value, is_stored: true, round: FAILED_ROUND });
        }
    }

    /// Holds an entry as it was last written, if it was.
    fn give_up(&mut self, key: &[u8]) {
        let Some(entry) = self.held.get_mut(key) else { return };
        match entry.written.clone() {
            Some(written) => entry.value = written,
            None => {
                self.held.remove(key);
            }
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
    let mut changed_max = TOGETHER_MAX;
    loop {
        if renewal <= Instant::now() {
            renewal = Instant::now() + RENEWAL;
            leases.state().renew_all();
        }

        if write_some(&store, leases, &mut changed_max).await {
            continue;
        }

        tokio::select! {
            () = leases.changed.notified() => {}
            () = sleep_until(renewal) => {}
        }
    }
}

/// Writes some entries. Returns whether there were any.
async fn write_some<S: RedisStore>(store: &S, leases: &Leases, changed_max: &mut usize) -> bool {
    let write = leases.state().take(*changed_max);
    if write.changes.is_empty() {
        leases.state().written();
        return false;
    }

    #[expect(clippy::cast_possible_truncation, reason = "a life has some seconds")]
    let life_ms = LIFE.as_millis() as u64;
    let writes = write.changes.iter().map(|(key, value)| match value.clone() {
        Some(value) => {
            RedisWrite::Put { key: key.clone(), value, expiry: Expiry::AfterMs(life_ms), claim: LockClaim::None }
        }
        None => RedisWrite::Delete { key: key.clone() },
    });
    let txn = RedisTxn { writes: writes.collect(), ..RedisTxn::default() };

    let sent = Instant::now();
    let caller = RedisCaller { deadline: sent + WRITE_TIMEOUT, ..port() };
    match store.commit(&caller, txn).await {
        Ok(_) => {
            let mut state = leases.state();
            state.note_written(write.changes, sent);
            state.written();
            if !state.has_failed() {
                *changed_max = TOGETHER_MAX;
            }
        }
        Err(failure) => {
            tracing::debug!(%failure, "waiting clients could not be noted");
            let is_full = matches!(failure, RedisStoreError::Full(_));
            leases.state().put_back(write, changed_max, &failure);
            // If the store is full, the refused entries are reported at once, without a pause.
            if !is_full {
                sleep(PAUSE).await;
            }
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
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([("stays", Some(b""))]));

        // From now on the store has it, or will have it: also if its write seems to have failed, and while it is renewed.
        change(&leases, [("stays", None)]);
        let deleted = changes([("stays", None)]);
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, deleted);
        change(&leases, [("stays", Some(b""))]);
        let write = LeaseWrite { changes: deleted.clone(), are_renewals: false };
        leases.state().put_back(write, &mut 1, &RedisStoreError::Unknown(String::new()));
        change(&leases, [("stays", None)]);
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, deleted);
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([]));
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
            leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &RedisStoreError::Unknown(String::new()));
            leases.change(keys.map(|key| (key, None)).collect());
        }

        let next = || std::iter::once(b"next".to_vec());
        assert!(matches!(leases.ensure_room(next()), Err(RedisStoreError::TooLarge(_))));
        leases.state().take(TOGETHER_MAX);
        assert_eq!(leases.ensure_room(next()), Ok(()));
    }

    #[test]
    fn clients_that_come_and_leave_during_an_outage_leave_nothing_behind() {
        let leases = Leases::default();
        change(&leases, [("held", Some(b"1"))]);
        let taken = leases.state().take(TOGETHER_MAX);
        leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &RedisStoreError::Unavailable(String::new()));
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

        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([("held", Some(b"1")), ("waits", Some(b"1"))]));
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
            let taken = leases.state().take(10 * ROUND_ENTRIES).changes;
            assert_eq!(taken.keys().filter(|key| key.starts_with(b"0-")).count(), 5 * ROUND_ENTRIES);
            leases.state().written();
        }

        // What one of them has changed, a third call changes again. It stays where it stands, or comes earlier.
        let mut third = leases.change(keys(0).skip(4999).collect());
        leases.state().take(10 * ROUND_ENTRIES);
        leases.state().written();
        assert!(is_told(&mut third) && calls.iter_mut().all(|call| !is_told(call)));

        while !leases.state().take(TOGETHER_MAX).changes.is_empty() {
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

        let taken = leases.state().take(TOGETHER_MAX).changes;
        assert_eq!(taken.len(), TOGETHER_MAX);
        assert!(taken.contains_key(&b"one"[..]));
        assert!(!is_told(&mut second), "it is not committed yet");
        leases.state().written();
        assert!(is_told(&mut second) && !is_told(&mut first));

        while !leases.state().take(TOGETHER_MAX).changes.is_empty() {
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
        leases.state().put_back(taken, &mut TOGETHER_MAX.clone(), &RedisStoreError::Unavailable(String::new()));
        leases.state().written();
        assert!(!is_told(&mut call));

        // Another call changes it meanwhile: the newer value is written, once.
        let mut newer = change(&leases, [("a", Some(b"2"))]);
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([("a", Some(b"2"))]));
        leases.state().written();
        assert!(is_told(&mut call) && is_told(&mut newer));
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([]));
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

        let renewed = leases.state().take(TOGETHER_MAX);
        assert_eq!(renewed, LeaseWrite { changes: changes([("held", Some(b"1"))]), are_renewals: true });
        let taken = leases.state().take(TOGETHER_MAX).changes;
        let value = |key: &str| taken.get(key.as_bytes());
        assert_eq!(taken.len(), TOGETHER_MAX, "what changes goes by itself");
        assert_eq!(value("changed"), Some(&Some(b"2".to_vec())));
        assert_eq!(value("goes"), Some(&None));
    }
    #[test]
    fn a_renewal_that_failed_is_tried_again_before_what_is_not_so_old() {
        let leases = Leases::default();
        change(&leases, [("a", Some(b"1")), ("b", Some(b"1"))]);
        leases.state().take(TOGETHER_MAX);
        leases.state().renew_all();
        let renewed = leases.state().take(TOGETHER_MAX);
        change(&leases, [("b", None), ("c", Some(b"1"))]);
        leases.state().put_back(renewed, &mut 1, &RedisStoreError::Unavailable(String::new()));

        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([("b", None), ("c", Some(b"1"))]));
        let again = LeaseWrite { changes: changes([("a", Some(b"1"))]), are_renewals: true };
        assert_eq!(leases.state().take(TOGETHER_MAX), again);
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([]));
    }

    #[test]
    fn what_a_full_store_refuses_is_told_at_once_and_stays_as_it_was_written() {
        let leases = Leases::default();
        change(&leases, [("count", Some(b"9"))]);
        let write = leases.state().take(TOGETHER_MAX);
        leases.state().note_written(write.changes, Instant::now());
        leases.state().written();

        let mut calls = [change(&leases, [("count", Some(b"10"))]), change(&leases, [("new", Some(b"1"))])];
        let full = RedisStoreError::Full(String::new());
        let mut changed_max = TOGETHER_MAX;
        for together in [2, 1, 1] {
            let write = leases.state().take(changed_max);
            assert_eq!(write.changes.len(), together);
            leases.state().put_back(write, &mut changed_max, &full);
        }
        assert!(calls.iter_mut().all(|call| call.0.try_recv() == Err(oneshot::error::TryRecvError::Closed)));
        leases.state().renew_all();
        assert_eq!(leases.state().take(TOGETHER_MAX).changes, changes([("count", Some(b"9"))]));
    }
}
