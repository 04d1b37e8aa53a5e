//! The entries, the index of their leases, and the end of a lease.

use std::ops::Bound;

use crate::{bytes::Weight, *};

impl Machine {
    /// What the keyspace has under a key now.
    pub fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.in_force(self.entries.get(key)?)
    }

    /// The entries of a range, in the order of their keys. It can be read from both ends.
    pub fn entries<'a>(&'a self, range: &KeyRange) -> impl DoubleEndedIterator<Item = (&'a Key, Arc<Entry>)> + use<'a> {
        self.stored(range).filter_map(|(key, entry)| Some((key, self.in_force(entry)?)))
    }

    /// The revision of the keyspace: not below that of any entry.
    pub fn revision(&self) -> Revision {
        Revision(self.last_token.0)
    }

    /// The entries of a range, those among them whose lease is over.
    pub(super) fn stored<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'a Key, &'a Arc<Entry>)> + use<'a> {
        let from = range.from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let to = match (range.is_empty(), &range.from, &range.to) {
            // A range must not end before it begins.
            (true, Some(from), _) => Bound::Excluded(from),
            (_, _, Some(to)) => Bound::Excluded(to),
            (_, _, None) => Bound::Unbounded,
        };
        self.entries.range::<_, Key>((from, to))
    }

    /// The entry as it is for everybody, whether or not the end of its lease was handled.
    pub(super) fn in_force(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        match entry.lease.filter(|lease| self.is_over(lease.session)) {
            None => Some(Arc::clone(entry)),
            Some(lease) => without_lease(entry, lease),
        }
    }

    /// Whether a key has an entry whose lease is over, and whose end was not handled yet.
    pub(super) fn is_lease_over(&self, key: &Key) -> bool {
        let lease = self.entries.get(key).and_then(|entry| entry.lease);
        lease.is_some_and(|lease| self.is_over(lease.session))
    }

    /// Replaces what is under a key, as of the revision that was issued last. `forced`: an operator ends its lease.
    pub(super) fn set_entry(
        &mut self,
        key: Key,
        entry: Option<Arc<Entry>>,
        forced: Option<&ForceRelease>,
        events: &mut Vec<Event>,
    ) {
        let before = self.entries.remove(&key);
        self.record_event(&key, before.as_ref(), entry.as_ref());
        if let Some(before) = &before {
            self.drop_claim(before, entry.as_deref(), forced, events);
            let weight = Weight::of_entry(&key, before);
            match before.lease {
                Some(Lease { session, .. }) => {
                    self.leased.remove(&(session, key.clone()));
                    self.subtract(session, weight);
                }
                None => self.bytes -= weight.all,
            }
        }
        let Some(mut entry) = entry else { return };
        self.make_claim(&key, before.as_deref(), &mut entry, events);
        let weight = Weight::of_entry(&key, &entry);
        match entry.lease {
            Some(Lease { session, .. }) => {
                self.leased.insert((session, key.clone()));
                self.add(session, weight);
            }
            None => self.bytes += weight.all,
        }
        self.entries.insert(key, entry);
    }

    /// The first key with this lease.
    pub(crate) fn first_leased(&self, session: SessionId) -> Option<Key> {
        let next = self.leased.range((session, Key::first())..).next();
        next.filter(|(lease, _)| *lease == session).map(|(_, key)| key.clone())
    }

    /// The entries of a range whose lease is this session, in the order of their keys. It can be read from both ends.
    pub fn entries_leased_by(
        &self,
        session: SessionId,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&Key, Arc<Entry>)> {
        let from = (session, range.from.clone().unwrap_or_else(Key::first));
        let next = session.0.checked_add(1).map(|next| (SessionId(next), Key::first()));
        let to = match &range.to {
            // Nothing: then the range must not end before it begins. Of a session that is over, no entry has a lease.
            _ if range.is_empty() || self.is_over(session) => Bound::Excluded(from.clone()),
            Some(to) => Bound::Excluded((session, to.clone())),
            None => next.map_or(Bound::Unbounded, Bound::Excluded),
        };
        let leased = self.leased.range((Bound::Included(from), to)).map(|(_, key)| key);
        leased.filter_map(|key| Some((key, self.entry(key).filter(|entry| entry.lease.is_some())?)))
    }

    /// Deletes or marks an entry whose lease is over, or is ended by an operator.
    pub(crate) fn end_lease(&mut self, key: Key, forced: Option<&ForceRelease>, events: &mut Vec<Event>) {
        self.spend(1);
        let modified = Revision(self.issue_token().0);
        let left = self.entries.get(&key).and_then(|entry| without_lease(entry, entry.lease?));
        let left = left.map(|entry| {
            let is_revoked = forced.is_some();
            Arc::new(Entry { modified, is_revoked, ..Entry::clone(&entry) })
        });
        self.set_entry(key, left, forced, events);
    }
}

/// What the end of its lease leaves of an entry.
fn without_lease(entry: &Entry, lease: Lease) -> Option<Arc<Entry>> {
    match lease.at_end {
        AtLeaseEnd::Delete => None,
        AtLeaseEnd::Keep => Some(Arc::new(Entry { lease: None, claim: None, is_expired: true, ..entry.clone() })),
    }
}
