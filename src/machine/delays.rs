//! Lock-delays: a lock whose holder was lost stays closed for a while.

use crate::{
    table::{ActiveLock, Due},
    *,
};

impl Machine {
    /// Closes a lock, whose holder was lost, until this moment. A longer delay that runs already stays; a delay that would have ended by
    /// now has no effect.
    pub(super) fn delay(&mut self, name: &LockName, until: Stamp, events: &mut Vec<Event>) {
        if until <= self.clock.now() {
            return;
        }

        match self.locks.get(name).and_then(ActiveLock::closed_until) {
            Some(before) if before >= until => return,
            Some(before) => self.clock.cancel(before, Due::Delay(name.clone())),
            None => events.push(lock_changed(name, ChangeKind::Delayed)),
        }
        self.clock.schedule(until, Due::Delay(name.clone()));
        self.locks.change(name, |lock| lock.set_closed_until(Some(until)));
    }

    pub(super) fn end_delay(&mut self, name: &LockName, events: &mut Vec<Event>) {
        self.batch.spend(1);
        if let Some(until) = self.locks.get(name).and_then(ActiveLock::closed_until) {
            self.clock.cancel(until, Due::Delay(name.clone()));
        }

        self.locks.change(name, |lock| lock.set_closed_until(None));
        events.push(lock_changed(name, ChangeKind::Opened));
        self.hand_on(vec![name.clone()], events);
    }
}

/// The event that a lock of the table changed.
pub(super) fn lock_changed(name: &LockName, kind: ChangeKind) -> Event {
    Event::Changed(Change { name: name.clone(), of: LockKind::Lock, kind })
}
