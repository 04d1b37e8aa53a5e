//! Acquires that wait, by ticket and by session.

use imbl::{OrdMap, OrdSet};

use crate::types::*;

/// An acquire that waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitingAcquire {
    pub(crate) session: SessionId,
    /// The request whose remembered reply becomes the end of this wait.
    pub(crate) request: Option<u64>,
    pub(crate) acquire: Acquire,
    /// When it times out. Without a deadline, it waits as long as its session lives.
    pub(crate) deadline: Option<Stamp>,
    pub(crate) since: WallTime,
    /// How often its request was repeated while it waited.
    pub(crate) repeats: u64,
}

/// The acquires that wait, in the order of arrival.
#[derive(Clone, Default)]
pub(crate) struct WaitTable {
    by_ticket: OrdMap<Ticket, WaitingAcquire>,
    by_session: OrdSet<(SessionId, Ticket)>,
}

impl WaitTable {
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&WaitingAcquire> {
        self.by_ticket.get(&ticket)
    }

    /// An acquire that is known to wait.
    pub(crate) fn existing(&self, ticket: Ticket) -> &WaitingAcquire {
        &self.by_ticket[&ticket]
    }

    /// In the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &WaitingAcquire)> {
        self.by_ticket.iter().map(|(ticket, waiting)| (*ticket, waiting))
    }

    /// The waits of a session, in the order of arrival.
    pub(crate) fn tickets(&self, session: SessionId) -> impl Iterator<Item = Ticket> + '_ {
        self.by_session.range((session, Ticket(0))..=(session, Ticket(u64::MAX))).map(|(_, ticket)| *ticket)
    }

    /// Returns whether another acquire had this ticket.
    pub(crate) fn insert(&mut self, ticket: Ticket, waiting: WaitingAcquire) -> bool {
        self.by_session.insert((waiting.session, ticket));
        self.by_ticket.insert(ticket, waiting).is_some()
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> WaitingAcquire {
        let waiting = self.by_ticket.remove(&ticket).expect("only an acquire that waits leaves the queue");
        self.by_session.remove(&(waiting.session, ticket));
        waiting
    }

    /// Counts a repeat of the wait's request, if there is one.
    pub(crate) fn count_repeat(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.by_ticket.get_mut(&ticket) {
            waiting.repeats += 1;
        }
    }

    /// Sessions with their waits, as the index has them, for the check of invariants.
    pub(crate) fn index(&self) -> &OrdSet<(SessionId, Ticket)> {
        &self.by_session
    }
}
