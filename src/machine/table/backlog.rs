//! The pieces of work that are due and not done yet, in order of arrival, each once.

use imbl::OrdMap;

use crate::types::*;

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
pub(crate) enum BacklogKey {
    Session(SessionId),
    Lock(LockName),
}

/// Pieces of work in order of arrival.
#[derive(Clone, Default)]
pub(crate) struct Backlog {
    order: OrdMap<u64, BacklogKey>,
    places: OrdMap<BacklogKey, u64>,
    /// The last place assigned. Not part of a record: only the order counts.
    last: u64,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn contains_session(&self, session: SessionId) -> bool {
        self.places.contains_key(&BacklogKey::Session(session))
    }

    pub(crate) fn contains_lock(&self, name: &LockName) -> bool {
        // An empty backlog is the usual case, and a key costs a copy of the name.
        !self.is_empty() && self.places.contains_key(&BacklogKey::Lock(name.clone()))
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &BacklogKey> {
        self.order.values()
    }

    /// Appends a piece, unless it is in the backlog: then it keeps its place. Returns whether it was appended.
    pub(crate) fn push(&mut self, piece: BacklogKey) -> bool {
        if self.places.contains_key(&piece) {
            return false;
        }

        self.last += 1;
        self.order.insert(self.last, piece.clone());
        self.places.insert(piece, self.last);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<BacklogKey> {
        let (place, piece) = self.order.get_min().map(|(place, piece)| (*place, piece.clone()))?;
        self.order.remove(&place);
        self.places.remove(&piece);
        Some(piece)
    }

    pub(crate) fn remove_lock(&mut self, name: &LockName) {
        if self.is_empty() {
            return;
        }
        if let Some(place) = self.places.remove(&BacklogKey::Lock(name.clone())) {
            self.order.remove(&place);
        }
    }

    /// Whether both maps agree.
    pub(crate) fn is_sound(&self) -> bool {
        let agrees = |(place, piece): (&u64, &BacklogKey)| self.places.get(piece) == Some(place);
        self.order.len() == self.places.len() && self.order.iter().all(agrees)
    }
}
