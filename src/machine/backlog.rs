//! Work that is due and not done yet.
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
//! Events that are forgotten are no piece: they go with what is left of the first part's budget.
//!
//! The backlog is bounded by the table: a session is in it at most once; a lock is in it at most once, and only while it is awaited.

use super::*;

/// Units of work that one command may do at least before the rest goes to the backlog: a grant of [`WANTS_MAX`] locks, each with another
/// grant that follows it.
const COMMAND_WORK: usize = 4 * WANTS_MAX;
/// One piece of the backlog gets this part of a batch's budget before the next piece has its turn.
const PIECES_PER_BATCH: usize = 4;

/// A piece of work in the backlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Clears away what a session held and awaited.
    EndSession {
        /// The session's id.
        session: SessionId,
        /// How the session ended.
        end: SessionEnd,
        /// When the session ended.
        at: Stamp,
    },
    /// Grants a lock to the waiters that can have it, or to the claims of entries.
    HandOn {
        /// The lock's name.
        name: LockName,
    },
}

/// The key of a [`Work`]. How and when a session ended is stored with the session.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Piece {
    Session(SessionId),
    Lock(LockName),
}

/// Pieces of work in order of arrival, each once.
#[derive(Clone, Default)]
pub(super) struct Backlog {
    order: OrdMap<u64, Piece>,
    places: OrdMap<Piece, u64>,
    /// The last place assigned. Not part of a record: only the order counts.
    last: u64,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn contains(&self, piece: &Piece) -> bool {
        self.places.contains_key(piece)
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.order.values()
    }

    /// Appends the piece. `false`: it is in the backlog already, and keeps its place.
    pub(super) fn push(&mut self, piece: Piece) -> bool {
        if self.contains(&piece) {
            return false;
        }
        self.last += 1;
        self.order.insert(self.last, piece.clone());
        self.places.insert(piece, self.last);
        true
    }

    fn pop(&mut self) -> Option<Piece> {
        let (place, piece) = self.order.get_min().map(|(place, piece)| (*place, piece.clone()))?;
        self.order.remove(&place);
        self.places.remove(&piece);
        Some(piece)
    }

    fn remove(&mut self, piece: &Piece) {
        if let Some(place) = self.places.remove(piece) {
            self.order.remove(&place);
        }
    }

    /// Whether both maps agree.
    pub(super) fn is_sound(&self) -> bool {
        let agrees = |(place, piece): (&u64, &Piece)| self.places.get(piece) == Some(place);
        self.order.len() == self.places.len() && self.order.iter().all(agrees)
    }
}

/// How a session ended that is still in the backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) end: SessionEnd,
    /// When it ended: its lock-delays count from then.
    pub(super) at: Stamp,
}

impl Machine {
    /// Whether work is left that fell due earlier: the leader then proposes ticks until none is left.
    pub fn has_work(&self) -> bool {
        !self.backlog.is_empty() || self.is_behind || self.history.exceeds(&self.capacity)
    }

    /// Begins a batch: continues the backlog, advances time, then sets the budget for the batch's commands.
    pub(super) fn begin(&mut self, time: Time, limits: Limits, events: &mut Vec<Event>) {
        self.wall = time.wall;
        self.limits = limits;
        self.continue_backlog(events);
        self.budget = limits.work;
        self.advance(time.stamp, events);
        self.budget = limits.work;
    }

    /// Gives a command the rest of the batch's budget, and at least [`COMMAND_WORK`].
    pub(super) fn begin_command(&mut self) {
        self.budget = self.budget.max(COMMAND_WORK.min(self.limits.work));
    }

    fn continue_backlog(&mut self, events: &mut Vec<Event>) {
        let mut left = self.limits.work;
        while left > 0
            && let Some(piece) = self.backlog.pop()
        {
            let share = left.min(self.limits.work.div_ceil(PIECES_PER_BATCH));
            self.budget = share;
            match piece {
                Piece::Session(id) => self.clear_away(id, events),
                Piece::Lock(name) if self.is_claimed(&name) => self.grant_claim(&name, events),
                Piece::Lock(name) => self.hand_on(vec![name], events),
            }
            // At least one, so that this ends.
            left -= (share - self.budget).max(1);
        }
        self.budget = left;
        self.trim_history();
    }

    pub(super) fn spend(&mut self, units: usize) {
        self.budget = self.budget.saturating_sub(units);
    }

    /// Whether the budget is used up, so that the rest goes to the backlog.
    pub(super) fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// Puts one lock of this acquire into the backlog if the acquire could be granted now.
    pub(super) fn hand_on_later(&mut self, ticket: Ticket) {
        let over = self.waits.get(&ticket).is_none_or(|waiting| self.is_over(waiting.session));
        if over || self.obstacle(ticket).is_some() {
            return;
        }
        // Any one of its locks: handing on that lock finds the acquire.
        if let Some(name) = self.waits.get(&ticket).map(|waiting| waiting.acquire.wants()[0].name.clone()) {
            self.backlog.push(Piece::Lock(name));
        }
    }

    /// Takes a lock out of the backlog, since no waiter is left.
    pub(super) fn cancel_hand_on(&mut self, name: &LockName) {
        if !self.backlog.is_empty() {
            self.backlog.remove(&Piece::Lock(name.clone()));
        }
    }

    /// Whether the lock is in the backlog.
    pub(super) fn is_in_backlog(&self, name: &LockName) -> bool {
        !self.backlog.is_empty() && self.backlog.contains(&Piece::Lock(name.clone()))
    }

    /// The backlog as records show it, the oldest first.
    pub(super) fn work(&self) -> impl Iterator<Item = Work> + '_ {
        self.backlog.iter().filter_map(|piece| match piece {
            Piece::Lock(name) => Some(Work::HandOn { name: name.clone() }),
            Piece::Session(id) => {
                let Ending { end, at } = self.sessions.get(id)?.ending?;
                Some(Work::EndSession { session: *id, end, at })
            }
        })
    }
}
