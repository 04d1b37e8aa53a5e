//! What happens by itself when time passes.
//!
//! All deadlines are in one ordered set. Time goes from one to the next, never past several at once: what a deadline causes (a lock
//! passes on, a lock-delay begins) happens at that deadline. So the table does not depend on how often the leader ticks.

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
    /// When something next happens by itself.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.due.get_min().map(|(deadline, _)| *deadline)
    }

    /// Lets time pass. A stamp from the past changes nothing: time does not run back.
    pub(super) fn advance(&mut self, stamp: Stamp, events: &mut Vec<Event>) {
        let until = self.now.max(stamp);
        while let Some((deadline, due)) = self.due.get_min().filter(|(deadline, _)| *deadline <= until).cloned() {
            self.now = deadline;
            match due {
                Due::Session(id) => self.end_session(id, SessionEnd::Expired, events),
                Due::Revocation(token) => self.end_revocation(token, events),
                Due::Delay(name) => self.end_delay(&name, events),
                Due::Wait(ticket) => self.time_out(ticket, events),
            }
        }
        self.now = until;
    }

    /// The moment so many milliseconds from now.
    pub(super) fn after_ms(&self, ms: u64) -> Stamp {
        Stamp(self.now.0.saturating_add(ms))
    }

    /// How long it still is until then, milliseconds.
    pub(super) fn remaining_ms(&self, deadline: Stamp) -> u64 {
        deadline.0.saturating_sub(self.now.0)
    }
}
