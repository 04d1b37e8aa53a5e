//! What happens by itself when time passes.
//!
//! All deadlines are in one ordered set. Time goes from one to the next, never past several at once: what a deadline causes (a lock
//! passes on, a lock-delay begins) happens at that deadline. So the table does not depend on how often the leader ticks, as long as
//! no batch comes to the end of its budget.
//!
//! When one does, time goes on all the same, for it is what leases are counted by; the deadlines that were not reached stay, *late*. What
//! still holds then:
//! * they are met in their order, before later ones;
//! * a session whose deadline has passed is over for everybody from that stamp on, met or not: see [`Machine::alive`];
//! * what a late deadline causes counts from that deadline: a lock-delay ends as early as it would have.
//!
//! What does not: a wait may time out though the lock was lost to its holder before, and is answered with that holder; and tokens may
//! be given in another order, except to those who wait for the same lock.

use super::*;

/// What falls due. Of what falls due at the same moment, sessions end first: one that is over is not granted anything; and waits
/// end last: one that ends as its lock opens is granted it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    /// A session was not renewed.
    Session(SessionId),
    /// A revoked grant was not given back.
    Revocation(Token),
    /// A lock-delay is over.
    Delay(LockName),
    /// An acquire waited as long as it was to.
    Wait(Ticket),
}

impl Machine {
    /// When something next happens by itself: now, while work is left.
    pub fn next_deadline(&self) -> Option<Stamp> {
        if self.has_work() {
            return Some(self.now);
        }
        self.due.get_min().map(|(deadline, _)| *deadline)
    }

    /// Lets time pass. A stamp from the past changes nothing: time does not run back.
    pub(super) fn advance(&mut self, stamp: Stamp, events: &mut Vec<Event>) {
        let until = self.now.max(stamp);
        while let Some((deadline, due)) = self.due.get_min().filter(|(deadline, _)| *deadline <= until).cloned() {
            if self.is_spent() {
                break;
            }
            // One that is late was passed before: time does not run back.
            self.now = self.now.max(deadline);
            self.moment = deadline;
            match due {
                Due::Session(id) => self.end_session(id, SessionEnd::Expired, events),
                Due::Revocation(token) => self.end_revocation(token, events),
                Due::Delay(name) => self.end_delay(&name, events),
                Due::Wait(ticket) => self.time_out(ticket, events),
            }
        }
        self.now = until;
        self.moment = until;
        self.is_behind = self.due.get_min().is_some_and(|(deadline, _)| *deadline <= until);
    }

    /// The moment so many milliseconds from now, or from the deadline that is being met.
    pub(super) fn after_ms(&self, ms: u64) -> Stamp {
        Stamp(self.moment.0.saturating_add(ms))
    }

    /// How long it still is until then, milliseconds.
    pub(super) fn remaining_ms(&self, deadline: Stamp) -> u64 {
        deadline.0.saturating_sub(self.now.0)
    }
}
