//! What operators may do to locks beside a forced release of a grant: see `force` for that.
//!
//! Each of these commands does a bounded amount of work, like any other, and leaves its consequences (waiters that can be granted now) to
//! the backlog when the budget ends.

use crate::{table::ActiveLock, *};

impl Machine {
    /// Ends a wait for good: the answer to its client says that the wait was removed, not that it may be repeated.
    ///
    /// Removes a waiter, but only from the queue of this lock: a mistyped ticket must not remove a waiter of another lock. A wait whose
    /// session is over ends without an operator.
    pub(super) fn remove_waiter(&mut self, name: &LockName, ticket: Ticket, events: &mut Vec<Event>) -> Reply {
        let removed = self.removable(name, ticket);
        if removed.is_some() {
            let mut freed = Vec::new();
            self.end_wait(ticket, WaitEnd::Removed, &mut freed, events);
            self.hand_on(freed, events);
        }
        Reply::WaiterRemoved(removed)
    }

    /// Opens a lock whose lock-delay runs. Grants that are held keep their own lock-delays.
    pub(super) fn lift_delay(&mut self, name: &LockName, events: &mut Vec<Event>) -> Reply {
        let until = self.locks.get(name).and_then(ActiveLock::closed_until);
        let lifted_ms = until.map(|until| self.clock.remaining_ms(until));
        if lifted_ms.is_some() {
            self.end_delay(name, events);
        }
        Reply::DelayLifted(lifted_ms)
    }

    /// Drops the data that was kept on locks under a prefix which are not held. Visits as many locks as the budget allows, held ones
    /// included: a prefix with nothing to drop costs as much as any other.
    pub(super) fn drop_data(&mut self, prefix: &str, after: Option<&LockName>, events: &mut Vec<Event>) -> Reply {
        let mut dropped = 0;
        let mut next = self.table_locks(prefix, after).next().cloned();
        let mut last = after.cloned();
        while !self.batch.is_spent()
            && let Some(name) = next
        {
            self.batch.spend(1);
            if self.locks.get(&name).is_some_and(|lock| !lock.is_held() && lock.data().is_some()) {
                self.set_data(&name, None, false, events);
                dropped += 1;
            }

            next = self.table_locks(prefix, Some(&name)).next().cloned();
            last = Some(name);
        }
        Reply::DataDropped { dropped, more_after: last.filter(|_| next.is_some()) }
    }

    /// Changes the size of a semaphore. A larger size is granted to waiters; a smaller one revokes no grant, and no permit is granted until
    /// fewer than the new size are held.
    ///
    /// From now on an acquire that names another size is treated as if it named this one, until the semaphore has neither holders, waiters
    /// nor data: a fleet of clients cannot change the size at one moment. After that, the next acquire sets the size again.
    pub(super) fn resize(
        &mut self,
        name: &LockName,
        permits: Permits,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let known = self.locks.get(name).map(|lock| (lock.mode().and_then(Mode::permits), lock.resized()));
        let Some((Some(before), resized)) = known else {
            return Err(Refusal::NotSemaphore { name: name.clone() });
        };

        self.batch.spend(1);
        if resized != Some(permits) {
            self.locks.change(name, |lock| lock.resize(permits));
            events.push(lock_changed(name, ChangeKind::Resized(permits)));
        }
        self.hand_on(vec![name.clone()], events);

        let count = |count: fn(&ActiveLock) -> usize| self.locks.get(name).map_or(0, count) as u64;
        let holders = count(|lock| lock.holders().len());
        let waiters = count(ActiveLock::queue_length);
        Ok(Reply::Resized { before, holders, waiters })
    }

    fn removable(&self, name: &LockName, ticket: Ticket) -> Option<WaiterView> {
        let waiting = self.waits.get(ticket).filter(|waiting| !self.is_over(waiting.session))?;
        let want = waiting.acquire.wants().iter().find(|want| want.name == *name)?;
        let mode = self.locks.get(name)?.as_used(want.mode);
        Some(self.waiter_view(ticket, mode))
    }
}
