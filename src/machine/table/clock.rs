//! Cluster time, and the deadlines that it has not reached.

use imbl::OrdSet;

use crate::types::*;

/// Cluster time and all deadlines, in the order in which they fall due.
#[derive(Clone, Default)]
pub(crate) struct TableClock {
    now: Stamp,
    /// The moment at which the current work counts as done: the deadline that is being handled, or else now. Not part of a record.
    moment: Stamp,
    /// Wall time of the command that is being applied. Not part of a record: the next command brings its own.
    wall: WallTime,
    due: OrdSet<(Stamp, Due)>,
    /// Whether deadlines have passed that were not handled yet, because the budget ended first.
    is_behind: bool,
    /// The cluster was restored, and grants no lock before. It may have passed: see [`Self::closed_until`].
    closed_until: Option<Stamp>,
}

/// A deadline's subject. At the same stamp, sessions and entries end first, so that one that is over is granted nothing; waits end last, so
/// that a wait that ends as its lock opens is granted it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Due {
    /// The session was not renewed.
    Session(SessionId),
    /// The entry lives until then.
    Entry(Key),
    /// The revoked grant was not released.
    Revocation(Token),
    /// The lock-delay is over.
    Delay(LockName),
    /// The time limit of the wait has passed.
    Wait(Ticket),
}

impl Due {
    /// The value before all others at the same stamp.
    const FIRST: Self = Self::Session(SessionId::NONE);
}

impl TableClock {
    /// The clock of a table that is read from a snapshot, without its deadlines.
    pub(crate) fn restored(now: Stamp, is_behind: bool) -> Self {
        Self { now, moment: now, is_behind, ..Self::default() }
    }

    pub(crate) fn now(&self) -> Stamp {
        self.now
    }

    /// The moment at which the current work counts as done.
    pub(crate) fn moment(&self) -> Stamp {
        self.moment
    }

    /// Wall time of the batch that is being applied.
    pub(crate) fn wall(&self) -> WallTime {
        self.wall
    }

    pub(crate) fn set_wall(&mut self, wall: WallTime) {
        self.wall = wall;
    }

    /// Whether deadlines have passed that were not handled yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The moment `ms` milliseconds from now, or from the deadline that is being handled.
    pub(crate) fn after_ms(&self, ms: u64) -> Stamp {
        Stamp(self.moment.0.saturating_add(ms))
    }

    /// Milliseconds from now until `deadline`.
    pub(crate) fn remaining_ms(&self, deadline: Stamp) -> u64 {
        deadline.0.saturating_sub(self.now.0)
    }

    pub(crate) fn schedule(&mut self, deadline: Stamp, due: Due) {
        self.due.insert((deadline, due));
    }

    pub(crate) fn cancel(&mut self, deadline: Stamp, due: Due) {
        self.due.remove(&(deadline, due));
    }

    /// All deadlines, for the check of invariants.
    pub(crate) fn deadlines(&self) -> &OrdSet<(Stamp, Due)> {
        &self.due
    }

    pub(crate) fn next_deadline(&self) -> Option<Stamp> {
        self.due.get_min().map(|(deadline, _)| *deadline)
    }

    /// Whether a deadline falls due after now and up to this stamp. Those that are late are not among them.
    pub(crate) fn is_due_by(&self, stamp: Stamp) -> bool {
        let after_now = (Stamp(self.now.0.saturating_add(1)), Due::FIRST);
        let next = if self.is_behind { self.due.range(after_now..).next() } else { self.due.get_min() };
        next.is_some_and(|(deadline, _)| *deadline <= stamp)
    }

    /// The earliest deadline that has passed at this stamp.
    pub(crate) fn first_due_at(&self, stamp: Stamp) -> Option<(Stamp, Due)> {
        self.due.get_min().filter(|(deadline, _)| *deadline <= stamp).cloned()
    }

    /// Advances time to a deadline that is handled now.
    pub(crate) fn reach(&mut self, deadline: Stamp) {
        // A deadline that is handled late is in the past. Time does not run back, but the effects count from the deadline.
        self.now = self.now.max(deadline);
        self.moment = deadline;
    }

    /// Ends an advance of time: all deadlines up to `stamp` were handled, or the budget ended.
    pub(crate) fn arrive(&mut self, stamp: Stamp) {
        assert!(self.now <= stamp, "time does not run back: leases would last longer than promised");
        self.now = stamp;
        self.moment = stamp;
        self.closed_until = self.closed_until();
        self.is_behind = self.next_deadline().is_some_and(|deadline| deadline <= stamp);
    }

    /// The time until which no lock is granted because the cluster was restored from a copy, if it is in the future.
    pub(crate) fn closed_until(&self) -> Option<Stamp> {
        self.closed_until.filter(|until| *until > self.now)
    }

    /// Keeps all locks closed until this moment. Returns whether a time until which they are closed was set already.
    pub(crate) fn close_until(&mut self, until: Stamp) -> bool {
        self.closed_until.replace(until).is_some()
    }
}
