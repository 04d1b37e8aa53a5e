//! What the sessions of one owner have together: for the limits of identities, which the leader asks before it proposes.
//!
//! Counted as sessions, grants and waits come and go, the same on all replicas. Nothing in the table is decided by it: two commands that
//! are under way at the same time may together exceed a limit by what one of them asks for.

use super::*;

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

impl Machine {
    /// What this owner's sessions have.
    pub fn usage(&self, owner: &Identity) -> Usage {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    /// Changes what the owner of a counted session has, if it has one. Costs nothing while no session has an owner.
    pub(super) fn count(&mut self, session: SessionId, change: impl FnOnce(&mut Usage)) {
        if self.owners.is_empty() {
            return;
        }
        let owner = self.sessions.get(&session).and_then(|session| session.owner.clone());
        self.count_for(owner, change);
    }

    pub(super) fn count_for(&mut self, owner: Option<Identity>, change: impl FnOnce(&mut Usage)) {
        let Some(owner) = owner else { return };
        let usage = self.owners.entry(owner.clone()).or_default();
        change(usage);
        if *usage == Usage::default() {
            self.owners.remove(&owner);
        }
    }

    /// Recounts everything.
    pub(super) fn count_owners(&self) -> OrdMap<Identity, Usage> {
        let mut owners: OrdMap<Identity, Usage> = OrdMap::new();
        for session in self.sessions.values() {
            let Some(owner) = session.owner.clone() else { continue };
            let usage = owners.entry(owner).or_default();
            usage.sessions += u64::from(!session.is_temporary);
            usage.waiters += u64::from(session.waits);
            usage.bytes += session.bytes() as u64;
        }
        for held in self.grants.values() {
            if let Some(owner) = self.sessions.get(&held.session).and_then(|session| session.owner.clone()) {
                owners.entry(owner).or_default().locks += held.names.len() as u64;
            }
        }
        owners
    }
}
