//! One lock: its holders, its queue, its data, its lock-delay.
//!
//! There may be millions of locks, nearly all with one holder and no waiter. So rare fields are stored apart, and a plain lock costs a
//! token, a mode and a null pointer.

use super::{bytes::of_lock, *};

/// A lock in use.
#[derive(Clone, Default, Debug)]
pub(super) struct Lock {
    holders: Tokens,
    /// The mode of its holders; `None`: there are none.
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

impl Lock {
    /// Whether the lock has none of the rare fields.
    pub(super) fn is_plain(&self) -> bool {
        self.rare.is_none()
    }

    /// Whether it has this holder alone, and nothing else that is remembered.
    pub(super) fn is_only(&self, token: Token) -> bool {
        self.rare.is_none() && matches!(self.holders, Tokens::One(one) if one == token)
    }

    /// Whether the lock need not be in the table.
    pub(super) fn is_idle(&self) -> bool {
        self.rare.is_none() && self.held_as.is_none()
    }

    /// The mode in which the lock is used: that of its holders, or else of the first waiter. A resized lock is a semaphore of that size.
    pub(super) fn mode(&self) -> Option<Mode> {
        let awaited_as = || self.rare.as_ref()?.queue.get_min().map(|(_, mode)| *mode);
        self.resized().map(Mode::Permit).or(self.held_as).or_else(awaited_as)
    }

    /// The mode of its holders.
    pub(super) fn held_as(&self) -> Option<Mode> {
        self.held_as
    }

    /// The size that an operator gave it.
    pub(super) fn resized(&self) -> Option<Permits> {
        self.rare.as_ref()?.resized
    }

    /// How the lock is held by a grant that asked for this mode: a permit is one of the operator's size, if there is one.
    pub(super) fn as_used(&self, mode: Mode) -> Mode {
        match self.resized() {
            Some(permits) if mode.permits().is_some() => Mode::Permit(permits),
            Some(_) | None => mode,
        }
    }

    /// Changes the size of a semaphore, until it has neither holders, waiters nor data. Its holders stay.
    pub(super) fn resize(&mut self, permits: Permits) {
        self.rare_mut().resized = Some(permits);
        self.held_as = self.held_as.map(|mode| self.as_used(mode));
        self.tidy();
    }

    pub(super) fn is_held(&self) -> bool {
        self.held_as.is_some()
    }

    pub(super) fn holders(&self) -> &Tokens {
        &self.holders
    }

    /// Whether the holders and the lock-delay allow one more holder. Ignores the queue.
    pub(super) fn admits(&self, mode: Mode) -> bool {
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
    pub(super) fn add_holder(&mut self, token: Token, mode: Mode) -> Mode {
        let mode = self.as_used(mode);
        let is_shared = mode != Mode::Exclusive && self.held_as != Some(Mode::Exclusive);
        assert!(is_shared || !self.is_held(), "an exclusive lock has one holder (M1): {token:?} would be another");
        self.holders.insert(token);
        self.held_as = Some(mode);
        mode
    }

    pub(super) fn remove_holder(&mut self, token: Token) {
        self.holders.remove(token);
        if self.holders.len() == 0 {
            self.held_as = None;
            self.tidy();
        }
    }

    /// The first in the queue.
    pub(super) fn first_waiter(&self) -> Option<Ticket> {
        self.rare.as_ref()?.queue.get_min().map(|(ticket, _)| *ticket)
    }

    pub(super) fn queue_length(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.queue.len())
    }

    /// The waiters with a ticket above this one, in order.
    pub(super) fn waiters_after(&self, after: Ticket) -> impl Iterator<Item = (Ticket, Mode)> + '_ {
        let from = Ticket(after.0.saturating_add(1));
        let queue = self.rare.iter().flat_map(move |rare| rare.queue.range(from..));
        queue.map(|(ticket, mode)| (*ticket, self.as_used(*mode)))
    }

    /// Returns the mode in which it will be held.
    pub(super) fn add_waiter(&mut self, ticket: Ticket, mode: Mode) -> Mode {
        self.rare_mut().queue.insert(ticket, mode);
        self.as_used(mode)
    }

    pub(super) fn remove_waiter(&mut self, ticket: Ticket) {
        self.rare_mut().queue.remove(&ticket);
        self.tidy();
    }

    pub(super) fn data(&self) -> Option<&Data> {
        self.rare.as_ref()?.data.as_ref()
    }

    pub(super) fn keeps_data(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.keep_data)
    }

    /// Sets the data. `keep` has no effect without data.
    pub(super) fn set_data(&mut self, data: Option<Data>, keep: bool) {
        if data.is_none() && self.rare.is_none() {
            return;
        }
        let rare = self.rare_mut();
        rare.keep_data = keep && data.is_some();
        rare.data = data;
        self.tidy();
    }

    pub(super) fn closed_until(&self) -> Option<Stamp> {
        self.rare.as_ref()?.closed_until
    }

    pub(super) fn set_closed_until(&mut self, until: Option<Stamp>) {
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

impl Machine {
    /// Changes a lock. The lock enters the table when it stops being idle and leaves it when it is idle again.
    pub(super) fn change<T>(&mut self, name: &LockName, change: impl FnOnce(&mut Lock) -> T) -> T {
        if let Some(lock) = self.locks.get_mut(name) {
            self.bytes -= of_lock(name, lock);
            let result = change(lock);
            match lock.is_idle() {
                true => _ = self.locks.remove(name),
                false => self.bytes += of_lock(name, lock),
            }
            return result;
        }
        let mut lock = Lock::default();
        let result = change(&mut lock);
        if !lock.is_idle() {
            self.bytes += of_lock(name, &lock);
            self.locks.insert(name.clone(), lock);
        }
        result
    }

    /// Takes a lock out of the table.
    pub(super) fn remove_lock(&mut self, name: &LockName) {
        if let Some(lock) = self.locks.remove(name) {
            self.bytes -= of_lock(name, &lock);
        }
    }

    /// Closes a lock, whose holder was lost, until this moment. A longer delay that runs already stays; a delay that would have ended by
    /// now is none.
    pub(super) fn delay(&mut self, name: &LockName, until: Stamp, events: &mut Vec<Event>) {
        if until <= self.now {
            return;
        }
        let before = self.locks.get(name).and_then(Lock::closed_until);
        match before {
            Some(before) if before >= until => return,
            Some(before) => _ = self.due.remove(&(before, Due::Delay(name.clone()))),
            None => events.push(changed(name, ChangeKind::Delayed)),
        }
        self.due.insert((until, Due::Delay(name.clone())));
        self.change(name, |lock| lock.set_closed_until(Some(until)));
    }

    pub(super) fn end_delay(&mut self, name: &LockName, events: &mut Vec<Event>) {
        self.spend(1);
        if let Some(until) = self.locks.get(name).and_then(Lock::closed_until) {
            self.due.remove(&(until, Due::Delay(name.clone())));
        }
        self.change(name, |lock| lock.set_closed_until(None));
        events.push(changed(name, ChangeKind::Opened));
        self.hand_on(vec![name.clone()], events);
    }
}

/// The event that a lock changed.
pub(super) fn changed(name: &LockName, kind: ChangeKind) -> Event {
    Event::Changed(Change { name: name.clone(), of: LockKind::Lock, kind })
}
