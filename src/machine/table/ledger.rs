//! What sessions are charged for, summed up: for the table, for temporary entries, and for each owner.
//!
//! The sums follow from the sessions, and change with them alone: [`SessionTable`](super::SessionTable) enters each change.

use std::ops::Add;

use imbl::OrdMap;
use lockkeeper_planted::Planted;

use super::{
    session::SessionState,
    weights::{Charge, Weight},
};
use crate::types::*;

/// What the sessions of one owner have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Sessions alive, and those that are over but not cleared away yet. Without those of temporary entries.
    pub sessions: u64,
    /// Locks held: a grant of three locks counts three.
    pub locks: u64,
    /// Acquires that wait.
    pub waiters: u64,
    /// Bytes that the sessions are charged for.
    pub bytes: u64,
}

/// What temporary entries take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Temporaries {
    /// Number of the entries, or of the sessions of those that have one.
    pub(crate) count: usize,
    /// Their bytes, and those of their sessions.
    pub(crate) bytes: usize,
}

impl Add for Temporaries {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

/// The sums over all sessions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SessionLedger {
    /// Bytes of the sessions, and of the records that hang on them.
    bytes: usize,
    temporaries: Temporaries,
    owners: OrdMap<Identity, Usage>,
}

impl SessionLedger {
    /// Bytes of the sessions, and of the records that hang on them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The temporary entries that have a session.
    pub(crate) fn temporaries(&self) -> Temporaries {
        self.temporaries
    }

    pub(crate) fn usage(&self, owner: &Identity) -> Usage {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    pub(crate) fn owners(&self) -> &OrdMap<Identity, Usage> {
        &self.owners
    }

    /// A session enters the table.
    pub(super) fn open(&mut self, session: &SessionState) {
        let bytes = session.bare_bytes();
        self.bytes += bytes;
        if session.is_temporary {
            self.temporaries.count += 1;
            self.temporaries.bytes += bytes;
        }
        self.count(session, |usage| {
            usage.sessions += u64::from(!session.is_temporary);
            usage.bytes += bytes as u64;
        });
    }

    /// A session leaves the table, with nothing that hangs on it.
    pub(super) fn close(&mut self, session: &SessionState) {
        let bytes = session.bare_bytes();
        self.bytes -= bytes;
        if session.is_temporary {
            self.temporaries.count -= 1;
            self.temporaries.bytes -= bytes;
        }
        self.count(session, |usage| {
            usage.sessions -= u64::from(!session.is_temporary);
            usage.bytes -= bytes as u64;
        });
    }

    /// New records hang on a session; `change` counts more of them for its owner.
    pub(super) fn add(&mut self, session: &SessionState, weight: Weight, change: impl FnOnce(&mut Usage)) {
        self.bytes += weight.all;
        if session.is_temporary {
            self.temporaries.bytes += weight.own;
        }
        self.count(session, |usage| {
            usage.bytes += weight.own as u64;
            change(usage);
        });
    }

    /// Records of a session are gone; `change` counts fewer of them for its owner.
    pub(super) fn subtract(&mut self, session: &SessionState, weight: Weight, change: impl FnOnce(&mut Usage)) {
        self.bytes -= weight.all;
        if session.is_temporary {
            self.temporaries.bytes -= weight.own;
        }
        self.count(session, |usage| {
            usage.bytes -= weight.own as u64;
            change(usage);
        });
    }

    /// The bytes of a session's own entry changed.
    pub(super) fn replace(&mut self, session: &SessionState, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
        if session.is_temporary {
            self.temporaries.bytes = self.temporaries.bytes - before + after;
        }
        self.count(session, |usage| usage.bytes = usage.bytes - before as u64 + after as u64);
    }

    /// A session has got an owner, who is charged for everything that it has: `before` are the bytes of its own entry until then, and
    /// `locks` is the number of the locks that it holds.
    pub(super) fn adopt(&mut self, session: &SessionState, before: usize, locks: u64) {
        let more = session.bare_bytes() - before;
        self.bytes += more;
        if session.is_temporary {
            self.temporaries.bytes += more;
        }

        if Planted::LateOwnerUncharged.is_on() {
            return;
        }

        self.count(session, |usage| {
            usage.sessions += u64::from(!session.is_temporary);
            usage.locks += locks;
            usage.waiters += u64::from(session.waits);
            usage.bytes += session.bytes() as u64;
        });
    }

    /// Counts a session with everything that hangs on it, as [`Self::open`] and all later changes did.
    pub(super) fn recount(&mut self, session: &SessionState, charge: Charge) {
        self.open(session);
        let Charge { weight, locks } = charge;
        self.add(session, weight, |usage| {
            usage.locks += locks;
            usage.waiters += u64::from(session.waits);
        });
    }

    /// Changes what the session's owner has, if it has one. Owners that have nothing are not kept.
    fn count(&mut self, session: &SessionState, change: impl FnOnce(&mut Usage)) {
        let Some(owner) = &session.owner else { return };
        let usage = self.owners.entry(owner.clone()).or_default();
        change(usage);
        if *usage == Usage::default() {
            self.owners.remove(owner);
        }
    }
}
