//! The entries, the index of their leases, and the end of a lease or of a lifetime.

use std::sync::Arc;

use crate::{
    table::{Due, Weight},
    *,
};

impl Machine {
    /// What the keyspace has under a key now.
    pub fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.in_force(self.entries.get(key)?)
    }

    /// The entries of a range, in the order of their keys. It can be read from both ends.
    pub fn entries<'a>(&'a self, range: &KeyRange) -> impl DoubleEndedIterator<Item = (&'a Key, Arc<Entry>)> + use<'a> {
        self.entries.range(range).filter_map(|(key, entry)| Some((key, self.in_force(entry)?)))
    }

    /// The stored entry of a key. It includes an entry whose lease is over, or whose deadline has passed, until its end is handled. So it
    /// is the state that the events up to now lead to: a reader that follows the events sees no change before its event.
    pub fn stored_entry(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// The stored entries of a range, in the order of the keys: see [`Machine::stored_entry`]. It can be read from both ends.
    pub fn stored_entries<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'a Key, &'a Arc<Entry>)> + use<'a> {
        self.entries.range(range)
    }

    /// The keys of a range whose entries the log has given this session as their lease, whether or not it is over.
    pub fn stored_leased_by<'a>(
        &'a self,
        session: SessionId,
        range: &KeyRange,
    ) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.entries.leased_within(session, range)
    }

    /// The revision of the keyspace. No entry has a higher revision.
    pub fn revision(&self) -> Revision {
        Revision(self.last_token().0)
    }

    /// The entry as it is for everybody, whether or not the end of its lease was handled.
    pub(super) fn in_force(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        if self.is_past(entry.until) {
            return None;
        }
        let over = entry.lease.filter(|lease| self.is_over(lease.session) && !Planted::EndedLeaseInForce.is_on());
        over.map_or_else(|| Some(Arc::clone(entry)), |lease| without_lease(entry, lease))
    }

    /// Whether a key has an entry whose lease is over, or whose deadline has passed, and whose end was not handled yet.
    pub(super) fn is_lease_over(&self, key: &Key) -> bool {
        self.entries.get(key).is_some_and(|entry| self.is_end_due(entry))
    }

    /// Whether the lease of an entry is over, or its deadline has passed.
    pub(super) fn is_end_due(&self, entry: &Entry) -> bool {
        entry.lease.is_some_and(|lease| self.is_over(lease.session)) || self.is_past(entry.until)
    }

    fn is_past(&self, until: Option<Stamp>) -> bool {
        until.is_some_and(|until| until <= self.now())
    }

    /// Replaces what is under a key, as of the revision that was issued last. If an operator ends its lease, `forced` is the command.
    /// Returns the lease of the entry before.
    pub(super) fn set_entry(
        &mut self,
        key: Key,
        entry: Option<Arc<Entry>>,
        forced: Option<&ForceRelease>,
        events: &mut Vec<Event>,
    ) -> Option<Lease> {
        let before = self.entries.remove(&key);
        let lease = before.as_ref().and_then(|before| before.lease);
        self.record_event(&key, before.as_ref(), entry.as_ref());
        if let Some(before) = &before {
            self.drop_claim(before, entry.as_deref(), forced, events);
            if let Some(Lease { session, .. }) = lease {
                self.sessions.refund(session, Weight::for_entry(&key, before));
            }
            if let Some(until) = before.until {
                self.clock.cancel(until, Due::Entry(key.clone()));
            }
        }

        let Some(mut entry) = entry else { return lease };
        self.make_claim(&key, before.as_deref(), &mut entry, events);
        if let Some(Lease { session, .. }) = entry.lease {
            self.sessions.charge(session, Weight::for_entry(&key, &entry));
        }
        if let Some(until) = entry.until {
            self.clock.schedule(until, Due::Entry(key.clone()));
        }
        self.entries.insert(key, entry);
        lease
    }

    /// The entries of a range whose lease is this session, in the order of their keys. It can be read from both ends.
    pub fn entries_leased_by(
        &self,
        session: SessionId,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&Key, Arc<Entry>)> {
        // Entries of a session that is over have no lease.
        let leased = (!self.is_over(session)).then(|| self.entries.leased_within(session, range));
        let leased = leased.into_iter().flatten();
        leased.filter_map(|key| Some((key, self.entry(key).filter(|entry| entry.lease.is_some())?)))
    }

    /// Deletes or marks an entry whose lease is over, or is ended by an operator. Deletes one whose deadline has passed.
    pub(crate) fn end_lease(&mut self, key: Key, forced: Option<&ForceRelease>, events: &mut Vec<Event>) {
        self.batch.spend(1);
        let modified = Revision(self.issued.issue_token().0);
        let left = self.entries.get(&key).and_then(|entry| without_lease(entry, entry.lease?));
        let left = left.map(|entry| {
            let is_revoked = forced.is_some() && !Planted::ForcedClaimUnmarked.is_on();
            Arc::new(Entry { modified, is_revoked, ..Entry::clone(&entry) })
        });
        let parent = self.entries.get(&key).filter(|_| left.is_none()).and_then(|entry| entry.parent().cloned());
        self.set_entry(key, left, forced, events);
        if let Some(parent) = parent.filter(|_| !Planted::ChildEndUncounted.is_on()) {
            self.end_child(&parent, modified);
        }
    }
}

/// What the end of its lease leaves of an entry.
fn without_lease(entry: &Entry, lease: Lease) -> Option<Arc<Entry>> {
    match lease.at_end {
        AtLeaseEnd::Delete => None,
        AtLeaseEnd::Keep => Some(Arc::new(Entry { lease: None, claim: None, is_expired: true, ..entry.clone() })),
    }
}
