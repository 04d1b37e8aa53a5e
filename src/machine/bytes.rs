//! How many bytes the table takes: in all, and of each session.
//!
//! Names, labels, data and reasons count by their length; each record adds a fixed amount, the average of what it takes in the table's
//! maps and indexes. So the sum is the memory of the table within a factor of two. It is the same on all replicas, since it follows from
//! the table alone.
//!
//! In the total, a name that several records share counts once, with its lock. A session is charged for its own records: its grants and
//! waits with their names, the data of its waits, the data of locks that it alone holds, the replies that it may still ask for, and the
//! entries of the keyspace whose lease it is. Data on a lock that several sessions hold, or that was kept after the last holder left, and
//! entries without a lease are charged to no session and count only in the total.
//!
//! The limits ([`Limits::table_bytes`], [`Limits::session_bytes`]) apply to commands that ask for more: an open, an acquire, an update
//! that is longer than the data it replaces, a transaction that puts more than it replaces. The check estimates a little high: an acquire
//! counts as if all its locks were new. A release is never refused; the replies to releases are bounded by their number. The history of the
//! keyspace has a limit of its own ([`EVENT_BYTES_MAX`]), and is not counted here. Temporary entries are counted, and have a limit in
//! addition to the table's: see `keyspace`.

use imbl::OrdMap;

use crate::{
    table::{Charge, SessionState, Weight, acquire_bytes_max, data_bytes},
    *,
};

impl Machine {
    /// The estimated size of the table in bytes, without the history of the keyspace.
    pub fn bytes(&self) -> u64 {
        self.table_bytes() as u64
    }

    /// The limits of the last batch that this replica applied.
    pub fn limits(&self) -> Limits {
        self.batch.limits()
    }

    /// What the sessions of this owner have together: for the limits of identities, which the leader asks before it proposes.
    ///
    /// The table does not use it for decisions: two commands that are under way at the same time may together exceed a limit by the amount
    /// that one of them asks for.
    pub fn usage(&self, owner: &Identity) -> Usage {
        let usage = self.sessions.ledger().usage(owner);
        if Planted::OthersSessionsCounted.is_on() {
            return Usage { sessions: self.sessions.ordinary() as u64, ..usage };
        }
        usage
    }

    /// Bytes of all records together. A lock that several sessions hold counts once, with its lock.
    pub(super) fn table_bytes(&self) -> usize {
        self.locks.bytes() + self.sessions.ledger().bytes() + self.entries.bytes()
    }

    /// Refuses an addition of `more` bytes beyond the table's limit. Temporary entries have a limit of their own.
    pub(super) fn ensure_room_in_table(&self, more: usize) -> Result<(), Refusal> {
        let others = self.table_bytes().saturating_sub(self.temporaries().bytes);
        if others.saturating_add(more) > self.batch.limits().table_bytes {
            return Err(Refusal::Limit(Limit::TableBytes));
        }
        Ok(())
    }

    /// Refuses an addition of `more` bytes beyond a session's limit.
    pub(super) fn ensure_room_in_session(&self, session: SessionId, more: usize) -> Result<(), Refusal> {
        self.ensure_room_beside(self.sessions.get(session).map_or(0, SessionState::bytes), more)
    }

    /// The same of a session that has `own` bytes.
    fn ensure_room_beside(&self, own: usize, more: usize) -> Result<(), Refusal> {
        if own.saturating_add(more) > self.batch.limits().session_bytes {
            return Err(Refusal::Limit(Limit::SessionBytes));
        }
        Ok(())
    }

    pub(super) fn ensure_room_for_acquire(&self, session: &SessionState, acquire: &Acquire) -> Result<(), Refusal> {
        let more = acquire_bytes_max(acquire);
        self.ensure_room_in_table(more)?;
        self.ensure_room_beside(session.bytes(), more)
    }

    /// Refuses data of this length on a lock, if it exceeds a limit. Data that is not longer than the present data is never refused.
    pub(super) fn ensure_room_for_data(
        &self,
        session: SessionId,
        name: &LockName,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let before = self.locks.get(name).map_or(0, |lock| data_bytes(lock.data()));
        let more = bytes.saturating_sub(before);
        if more == 0 {
            return Ok(());
        }
        self.ensure_room_in_table(more)?;
        self.ensure_room_in_session(session, more)
    }

    /// What each session should be charged for, counted anew.
    pub(super) fn count_charges(&self) -> OrdMap<SessionId, Charge> {
        let mut charges: OrdMap<SessionId, Charge> =
            self.sessions.iter().map(|(id, _)| (id, Charge::default())).collect();
        for (_, held) in self.grants.iter() {
            let charge = charges.entry(held.session).or_default();
            charge.weight.add(Weight::for_grant(held.names.iter()));
            charge.locks += held.names.len() as u64;
        }

        let waits = self.waits.iter().map(|(_, waiting)| (waiting.session, Weight::for_wait(&waiting.acquire)));
        let revoked = self
            .grants
            .all_revoked()
            .map(|(session, _, revoked)| (session, Weight::for_revoked(&revoked.reason, revoked.by.as_ref())));
        let data = self.locks.iter().filter_map(|(name, _)| self.held_data(name));
        let entries =
            self.entries.iter().filter_map(|(key, entry)| Some((entry.lease?.session, Weight::for_entry(key, entry))));
        for (session, weight) in waits.chain(revoked).chain(data).chain(entries) {
            charges.entry(session).or_default().weight.add(weight);
        }
        charges
    }
}
