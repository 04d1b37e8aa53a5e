//! The locks in use, each with its holders, its queue, its data and its lock-delay.
//!
//! There may be millions of locks, nearly all with one holder and no waiter. So rare fields are stored apart, and a plain lock costs a
//! token, a mode and a null pointer.

use std::{ops::Bound, sync::Arc};

use imbl::OrdMap;

use super::{compact_sets::TokenSet, weights::lock_bytes};
use crate::types::*;

/// The locks in use, by name.
#[derive(Clone, Default)]
pub(crate) struct LockTable {
    by_name: OrdMap<LockName, ActiveLock>,
    /// Bytes of all of them.
    bytes: usize,
}

/// A lock that is held, awaited, delayed, or carries data.
#[derive(Clone, Default, Debug)]
pub(crate) struct ActiveLock {
    holders: TokenSet,
    /// The mode of its holders, if there are any.
    held_as: Option<Mode>,
    rare: Option<Arc<Rare>>,
}

/// Fields that few locks have.
#[derive(Clone, Default, Debug)]
struct Rare {
    /// The waiters, each with the mode that it asks for.
    queue: OrdMap<Ticket, Mode>,
    data: Option<Data>,
    /// Whether the data outlives the present grants. Never without data.
    keep_data: bool,
    /// The end of the lock-delay.
    closed_until: Option<Stamp>,
    /// The size that an operator gave this semaphore. It overrides the sizes that acquires name. Never without a holder, a waiter or
    /// data.
    resized: Option<Permits>,
}

impl ActiveLock {
    /// The bytes that it takes under this name.
    fn bytes(&self, name: &LockName) -> usize {
        lock_bytes(name, self.rare.is_none(), self.data())
    }

    /// Whether it has this holder alone, and nothing else that is remembered.
    pub(crate) fn is_only(&self, token: Token) -> bool {
        self.rare.is_none() && matches!(self.holders, TokenSet::One(one) if one == token)
    }

    /// Whether the lock need not be in the table.
    pub(crate) fn is_idle(&self) -> bool {
        self.rare.is_none() && self.held_as.is_none()
    }

    /// The mode in which the lock is used: that of its holders, or else of the first waiter. A resized lock is a semaphore of that size.
    pub(crate) fn mode(&self) -> Option<Mode> {
        let awaited_as = || self.rare.as_ref()?.queue.get_min().map(|(_, mode)| *mode);
        self.resized().map(Mode::Permit).or(self.held_as).or_else(awaited_as)
    }

    /// The mode of its holders.
    pub(crate) fn held_as(&self) -> Option<Mode> {
        self.held_as
    }

    /// The size that an operator gave it.
    pub(crate) fn resized(&self) -> Option<Permits> {
        self.rare.as_ref()?.resized
    }

    /// How the lock is held by a grant that asked for this mode: a permit is one of the operator's size, if there is one.
    pub(crate) fn as_used(&self, mode: Mode) -> Mode {
        match self.resized() {
            Some(permits) if mode.permits().is_some() => Mode::Permit(permits),
            Some(_) | None => mode,
        }
    }

    /// Changes the size of a semaphore, until it has neither holders, waiters nor data. Its holders stay.
    pub(crate) fn resize(&mut self, permits: Permits) {
        self.rare_mut().resized = Some(permits);
        self.held_as = self.held_as.map(|mode| self.as_used(mode));
        self.tidy();
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held_as.is_some()
    }

    pub(crate) fn holders(&self) -> &TokenSet {
        &self.holders
    }

    /// Whether the holders and the lock-delay allow one more holder. Ignores the queue.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        if self.closed_until().is_some() {
            return false;
        }
        match (self.held_as, self.as_used(mode)) {
            (None, _) | (Some(Mode::Shared), Mode::Shared) => true,
            (Some(_), Mode::Permit(permits)) => self.holders.len() < permits.get() as usize,
            (Some(_), Mode::Exclusive | Mode::Shared) => false,
        }
    }

    /// Returns the mode in which it is held.
    pub(crate) fn add_holder(&mut self, token: Token, mode: Mode) -> Mode {
        let mode = self.as_used(mode);
        let is_shared = mode != Mode::Exclusive && self.held_as != Some(Mode::Exclusive);
        assert!(is_shared || !self.is_held(), "an exclusive lock has one holder (M1): {token:?} would be another");
        self.holders.insert(token);
        self.held_as = Some(mode);
        mode
    }

    pub(crate) fn remove_holder(&mut self, token: Token) {
        self.holders.remove(token);
        if self.holders.len() == 0 {
            self.held_as = None;
            self.tidy();
        }
    }

    /// The first in the queue.
    pub(crate) fn first_waiter(&self) -> Option<Ticket> {
        self.rare.as_ref()?.queue.get_min().map(|(ticket, _)| *ticket)
    }

    pub(crate) fn queue_length(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.queue.len())
    }

    /// The waiters with a ticket above this one, in order.
    pub(crate) fn waiters_after(&self, after: Ticket) -> impl Iterator<Item = (Ticket, Mode)> + '_ {
        let from = Ticket(after.0.saturating_add(1));
        let queue = self.rare.iter().flat_map(move |rare| rare.queue.range(from..));
        queue.map(|(ticket, mode)| (*ticket, self.as_used(*mode)))
    }

    /// Returns the mode in which it will be held.
    pub(crate) fn add_waiter(&mut self, ticket: Ticket, mode: Mode) -> Mode {
        self.rare_mut().queue.insert(ticket, mode);
        self.as_used(mode)
    }

    pub(crate) fn remove_waiter(&mut self, ticket: Ticket) {
        self.rare_mut().queue.remove(&ticket);
        self.tidy();
    }

    pub(crate) fn data(&self) -> Option<&Data> {
        self.rare.as_ref()?.data.as_ref()
    }

    pub(crate) fn keeps_data(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.keep_data)
    }

    /// Sets the data. `keep` has no effect without data.
    pub(crate) fn set_data(&mut self, data: Option<Data>, keep: bool) {
        if data.is_none() && self.rare.is_none() {
            return;
        }
        let rare = self.rare_mut();
        rare.keep_data = keep && data.is_some();
        rare.data = data;
        self.tidy();
    }

    pub(crate) fn closed_until(&self) -> Option<Stamp> {
        self.rare.as_ref()?.closed_until
    }

    pub(crate) fn set_closed_until(&mut self, until: Option<Stamp>) {
        self.rare_mut().closed_until = until;
        self.tidy();
    }

    fn rare_mut(&mut self) -> &mut Rare {
        Arc::make_mut(self.rare.get_or_insert_default())
    }

    /// Forgets the operator's size when the semaphore is out of use, and drops empty fields.
    fn tidy(&mut self) {
        let Some(rare) = &self.rare else { return };
        let is_used = self.held_as.is_some() || !rare.queue.is_empty() || rare.data.is_some();
        if rare.resized.is_some() && !is_used {
            self.rare_mut().resized = None;
        }
        let empty = |rare: &Arc<Rare>| {
            let Rare { queue, data, keep_data: _, closed_until, resized } = &**rare;
            queue.is_empty() && data.is_none() && closed_until.is_none() && resized.is_none()
        };
        if self.rare.as_ref().is_some_and(empty) {
            self.rare = None;
        }
    }
}

impl LockTable {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Bytes of all locks, with their names and data.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn get(&self, name: &LockName) -> Option<&ActiveLock> {
        self.by_name.get(name)
    }

    /// A lock that is known to be in use.
    pub(crate) fn existing(&self, name: &LockName) -> &ActiveLock {
        self.by_name.get(name).expect("a lock that is held or awaited is in the table")
    }

    /// In the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LockName, &ActiveLock)> {
        self.by_name.iter()
    }

    /// The names from a bound on, in order.
    pub(crate) fn names_from<'a>(&'a self, from: Bound<&str>) -> impl Iterator<Item = &'a LockName> + use<'a> {
        self.by_name.range::<_, str>((from, Bound::Unbounded)).map(|(name, _)| name)
    }

    /// Whether a lock carries data.
    pub(crate) fn has_data(&self, name: &LockName) -> bool {
        self.get(name).is_some_and(|lock| lock.data().is_some())
    }

    /// The only holder of a lock with data, and the bytes of the data.
    pub(crate) fn data_of_only_holder(&self, name: &LockName) -> Option<(Token, usize)> {
        let lock = self.get(name)?;
        let bytes = lock.data()?.as_bytes().len();
        let only = lock.holders().first().filter(|_| lock.holders().len() == 1)?;
        Some((only, bytes))
    }

    /// Changes a lock. The lock enters the table when it stops being idle and leaves it when it is idle again.
    pub(crate) fn change<T>(&mut self, name: &LockName, change: impl FnOnce(&mut ActiveLock) -> T) -> T {
        if let Some(lock) = self.by_name.get_mut(name) {
            self.bytes -= lock.bytes(name);
            let result = change(lock);
            if lock.is_idle() {
                self.by_name.remove(name);
            } else {
                self.bytes += lock.bytes(name);
            }
            return result;
        }

        let mut lock = ActiveLock::default();
        let result = change(&mut lock);
        if !lock.is_idle() {
            self.bytes += lock.bytes(name);
            self.by_name.insert(name.clone(), lock);
        }
        result
    }

    /// Adds a lock that is not in the table, with its first holder. Returns the mode in which it is held.
    pub(crate) fn add(&mut self, name: &LockName, token: Token, mode: Mode) -> Mode {
        let mut lock = ActiveLock::default();
        let mode = lock.add_holder(token, mode);
        self.bytes += lock.bytes(name);
        let same = self.by_name.insert(name.clone(), lock);
        assert!(same.is_none(), "the lock {name} was taken for a new one, and its holders would be forgotten (M1)");
        mode
    }

    /// Adds a holder. Returns the interned name, so that the grant shares the table's allocation; and the mode in which the lock is held.
    pub(crate) fn add_holder(&mut self, name: &LockName, token: Token, mode: Mode) -> (LockName, Mode) {
        let known = self.by_name.get_key_value(name).map(|(name, _)| name.clone());
        if let Some(name) = known {
            let mode = self.change(&name, |lock| lock.add_holder(token, mode));
            (name, mode)
        } else {
            (name.clone(), self.add(name, token, mode))
        }
    }

    /// Takes a lock out of the table, whatever it has.
    pub(crate) fn remove(&mut self, name: &LockName) {
        if let Some(lock) = self.by_name.remove(name) {
            self.bytes -= lock.bytes(name);
        }
    }

    /// The sum of the bytes, counted anew.
    pub(crate) fn count_bytes(&self) -> usize {
        self.by_name.iter().map(|(name, lock)| lock.bytes(name)).sum()
    }
}
