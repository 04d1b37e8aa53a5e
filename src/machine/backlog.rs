//! Work that is due and not done yet: when it is continued, and how much of it.
//!
//! The work that one command causes is unbounded: a session may hold a hundred thousand locks when it ends, and a hundred thousand
//! sharers may wait for the lock that is released. All replicas would stall while they compute it, and a stalled leader sends no
//! heartbeats. So each batch of the log does a bounded amount ([`Limits::work`]). The rest stays here, as part of the table, and
//! continues with later batches, in the same order on all replicas. The leader's ticker proposes batches until the backlog is empty.
//!
//! A unit of work is a lock that is granted, taken or released, a session that ends, an entry of the keyspace that a transaction visits in
//! a range, a claim that is passed over, or some events of the keyspace that are forgotten. One batch has three parts, each with a budget
//! of its own, so that none of them starves another:
//! * the backlog, at most a quarter of the budget for one piece at a time: a small piece does not wait for the end of a large one;
//! * the deadlines that have passed, in their order;
//! * its commands. Each has at least [`COMMAND_WORK`], so that an ordinary release hands on its locks at once however long the batch is.
//!
//! Postponed work is always safe. A session whose end is in the backlog is over for everybody: its requests are refused, and it is
//! granted nothing. The locks that it held stay closed until they are reached; its acquires keep their places, and others queue behind
//! them as before. The lock-delays of its grants count from the session's end. A lock in the backlog is open, and its queue moves on
//! later.
//!
//! Dropping old events is not a piece of the backlog: it uses the rest of the first part's budget.
//!
//! The backlog is bounded by the table: a session is in it at most once; a lock is in it at most once, and only while it is awaited.

use crate::{
    table::{BacklogKey, SessionEnding},
    *,
};

/// Units of work that one command may do at least before the rest goes to the backlog: a grant of [`WANTS_MAX`] locks, each with another
/// grant that follows it.
const COMMAND_WORK: usize = 4 * WANTS_MAX;
/// One piece of the backlog gets this part of a batch's budget before the next piece has its turn.
const PIECES_PER_BATCH: usize = 4;

impl Machine {
    /// Units of work that the last batch did, including those of refused transactions and those without a charge. It is for measurements;
    /// replicas need not agree about it.
    pub fn work_done(&self) -> usize {
        self.batch.work_done()
    }

    /// Whether work is left that fell due earlier: the leader then proposes ticks until none is left.
    pub fn has_work(&self) -> bool {
        self.is_clearing() || self.history.exceeds(&self.capacity)
    }

    fn is_clearing(&self) -> bool {
        !self.backlog.is_empty() || self.clock.is_behind()
    }

    /// When the first of the sessions ended that are over and not cleared away, among those for which `is_asked` holds: the table may still
    /// show what they held. It may be the time of another deadline that has passed and is not handled yet.
    pub fn first_uncleared(&self, is_asked: impl Fn(SessionId) -> bool) -> Option<Stamp> {
        let ended = self.backlog.iter().filter_map(|piece| match piece {
            BacklogKey::Session(id) if is_asked(*id) => self.sessions.get(*id)?.ending.map(|ending| ending.at),
            BacklogKey::Session(_) | BacklogKey::Lock(_) => None,
        });
        let late = self.clock.next_deadline().filter(|_| self.clock.is_behind());
        ended.chain(late).min()
    }

    /// Begins a batch: continues the backlog, advances time, then sets the budget for the batch's commands.
    pub(super) fn begin(&mut self, time: Time, limits: Limits, events: &mut Vec<Event>) {
        self.clock.set_wall(time.wall);
        self.batch.set_limits(limits);
        self.batch.begin_work();

        // Each of the three parts has a budget of its own, so that none of them starves another.
        self.continue_backlog(events);
        self.batch.allow(limits.work);
        self.advance(time.stamp, events);
        self.batch.allow(limits.work);
    }

    /// Gives a command the rest of the batch's budget, and at least [`COMMAND_WORK`].
    pub(super) fn begin_command(&mut self) {
        let least = COMMAND_WORK.min(self.batch.limits().work);
        self.batch.allow(self.batch.left().max(least));
    }

    fn continue_backlog(&mut self, events: &mut Vec<Event>) {
        let work = self.batch.limits().work;
        let mut left = work;
        while left > 0
            && let Some(piece) = self.backlog.pop()
        {
            let share = left.min(work.div_ceil(PIECES_PER_BATCH));
            self.batch.allow(share);
            match piece {
                BacklogKey::Session(id) => self.clear_away(id, events),
                BacklogKey::Lock(name) if self.is_claimed(&name) => self.grant_claim(&name, events),
                BacklogKey::Lock(name) => self.hand_on(vec![name], events),
            }

            // Subtract at least one, so that the loop ends.
            left -= (share - self.batch.left()).max(1);
        }

        self.batch.allow(left);
        self.trim_history();
    }

    /// Puts one lock of this acquire into the backlog if the acquire could be granted now.
    pub(super) fn hand_on_later(&mut self, ticket: Ticket) {
        let Some(waiting) = self.waits.get(ticket) else { return };
        if self.is_over(waiting.session) || self.obstacle(ticket).is_some() {
            return;
        }
        // Any one of its locks: handing on that lock finds the acquire.
        let name = waiting.acquire.wants()[0].name.clone();
        self.backlog.push(BacklogKey::Lock(name));
    }

    /// The backlog as records show it, the oldest first.
    pub(super) fn work(&self) -> impl Iterator<Item = Work> + '_ {
        self.backlog.iter().filter_map(|piece| match piece {
            BacklogKey::Lock(name) => Some(Work::HandOn { name: name.clone() }),
            BacklogKey::Session(id) => {
                let SessionEnding { end, at } = self.sessions.get(*id)?.ending?;
                Some(Work::EndSession { session: *id, end, at })
            }
        })
    }
}
