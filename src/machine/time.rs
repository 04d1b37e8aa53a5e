//! Deadlines: what happens as time passes.
//!
//! All deadlines are in one ordered set. Time advances from one deadline to the next, so the effects of a deadline (a lock is handed on,
//! a lock-delay begins) happen at that deadline. So the table does not depend on how often the leader ticks, as long as no batch exhausts
//! its budget.
//!
//! When a batch does, time advances all the same, since leases are counted by it; the deadlines that were not reached stay, *late*. These
//! promises still hold:
//! * late deadlines are handled in their order, before later ones;
//! * a session whose deadline has passed is over for everybody from that stamp on, handled or not: see [`Machine::alive`]; so is an entry
//!   with a deadline of its own: see [`Machine::entry`];
//! * the effects of a late deadline count from that deadline: a lock-delay ends as early as it would have.
//!
//! These do not: a wait may time out though the holder had lost the lock earlier, and its reply then names that holder; and tokens may be
//! issued in another order, except among waiters for the same lock.

use crate::{table::Due, *};

impl Machine {
    /// When the next deadline falls due: now, while work is left.
    pub fn next_deadline(&self) -> Option<Stamp> {
        if self.has_work() { Some(self.clock.now()) } else { self.clock.next_deadline() }
    }

    /// Whether a deadline falls due after the present stamp and up to this one.
    pub fn is_due_by(&self, stamp: Stamp) -> bool {
        self.clock.is_due_by(stamp)
    }

    /// Advances time, handling the deadlines up to `stamp`. A stamp from the past changes nothing: time does not run back.
    pub(super) fn advance(&mut self, stamp: Stamp, events: &mut Vec<Event>) {
        let until = self.clock.now().max(stamp);
        while let Some((deadline, due)) = self.clock.first_due_at(until) {
            if self.batch.is_spent() {
                break;
            }

            self.clock.reach(deadline);
            match due {
                Due::Session(id) => self.end_session(id, SessionEnd::Expired, events),
                Due::Entry(key) => self.end_lease(key, None, events),
                Due::Revocation(token) => self.end_revocation(token, events),
                Due::Delay(name) => self.end_delay(&name, events),
                Due::Wait(ticket) => self.time_out(ticket, events),
            }
        }
        self.clock.arrive(until);
    }

    /// The time until which no lock is granted because the cluster was restored from a copy, if it is in the future.
    pub fn closed_until(&self) -> Option<Stamp> {
        self.clock.closed_until()
    }

    /// The number of milliseconds for which no lock is granted, or `None` if locks are granted: see [`closed_until`](Self::closed_until).
    pub fn closed_for_ms(&self) -> Option<u64> {
        self.closed_until().map(|until| until.0.saturating_sub(self.now().0))
    }
}
