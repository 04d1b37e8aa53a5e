//! Deadlines: what happens as time passes.
//!
//! All deadlines are in one ordered set. Time advances from one deadline to the next, so the effects of a deadline (a lock is handed on,
//! a lock-delay begins) happen at that deadline. So the table does not depend on how often the leader ticks, as long as no batch exhausts
//! its budget.
//!
//! When a batch does, time advances all the same, since leases are counted by it; the deadlines that were not reached stay, *late*. These
//! promises still hold:
//! * late deadlines are handled in their order, before later ones;
//! * a session whose deadline has passed is over for everybody from that stamp on, handled or not: see [`Machine::alive`];
//! * the effects of a late deadline count from that deadline: a lock-delay ends as early as it would have.
//!
//! These do not: a wait may time out though the holder had lost the lock earlier, and its reply then names that holder; and tokens may be
//! issued in another order, except among waiters for the same lock.

use super::*;

/// A deadline's subject. At the same stamp, sessions end first, so that a session that is over is granted nothing; waits end last, so
/// that a wait that ends as its lock opens is granted it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    /// The session was not renewed.
    Session(SessionId),
    /// The revoked grant was not released.
    Revocation(Token),
    /// The lock-delay is over.
    Delay(LockName),
    /// The time limit of the wait has passed.
    Wait(Ticket),
}

impl Machine {
    /// When the next deadline falls due: now, while work is left.
    pub fn next_deadline(&self) -> Option<Stamp> {
        if self.has_work() {
            return Some(self.now);
        }
        self.due.get_min().map(|(deadline, _)| *deadline)
    }

    /// Advances time, handling the deadlines up to `stamp`. A stamp from the past changes nothing: time does not run back.
    pub(super) fn advance(&mut self, stamp: Stamp, events: &mut Vec<Event>) {
        let until = self.now.max(stamp);
        while let Some((deadline, due)) = self.due.get_min().filter(|(deadline, _)| *deadline <= until).cloned() {
            if self.is_spent() {
                break;
            }
            // A late deadline lies in the past: time does not run back.
            self.now = self.now.max(deadline);
            self.moment = deadline;
            match due {
                Due::Session(id) => self.end_session(id, SessionEnd::Expired, events),
                Due::Revocation(token) => self.end_revocation(token, events),
                Due::Delay(name) => self.end_delay(&name, events),
                Due::Wait(ticket) => self.time_out(ticket, events),
            }
        }
        assert!(self.now <= until, "time does not run back: leases would last longer than promised");
        self.now = until;
        self.moment = until;
        self.closed_until = self.closed_until();
        self.is_behind = self.due.get_min().is_some_and(|(deadline, _)| *deadline <= until);
    }

    /// Before when no lock is granted, since the cluster was restored from a copy. `None`: locks are granted.
    pub fn closed_until(&self) -> Option<Stamp> {
        self.closed_until.filter(|until| *until > self.now)
    }

    /// The stamp `ms` milliseconds from now, or from the deadline that is being handled.
    pub(super) fn after_ms(&self, ms: u64) -> Stamp {
        Stamp(self.moment.0.saturating_add(ms))
    }

    /// Milliseconds from now until `deadline`.
    pub(super) fn remaining_ms(&self, deadline: Stamp) -> u64 {
        deadline.0.saturating_sub(self.now.0)
    }
}
