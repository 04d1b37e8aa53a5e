//! The entries of the keyspace, and the index of their leases.

use std::{ops::Bound, sync::Arc};

use imbl::{OrdMap, OrdSet};

use super::{ledger::Temporaries, weights::Weight};
use crate::types::*;

/// The entries by key.
#[derive(Clone, Default)]
pub(crate) struct EntryTable {
    by_key: OrdMap<Key, Arc<Entry>>,
    /// The entries that have a lease, by their lease.
    leased: OrdSet<(SessionId, Key)>,
    /// Bytes of the entries without a lease: the others are charged to their session.
    bytes: usize,
    /// The temporary entries among them.
    temporaries: Temporaries,
}

impl EntryTable {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Bytes of the entries without a lease.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The temporary entries that have no session.
    pub(crate) fn temporaries(&self) -> Temporaries {
        self.temporaries
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.by_key.get(key)
    }

    /// An entry that is known to be in the table.
    pub(crate) fn existing(&self, key: &Key) -> &Arc<Entry> {
        &self.by_key[key]
    }

    /// In the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<Entry>)> {
        self.by_key.iter()
    }

    /// The entries of a range, in the order of their keys. It can be read from both ends.
    pub(crate) fn range<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'a Key, &'a Arc<Entry>)> + use<'a> {
        self.by_key.range::<_, Key>(range.bounds())
    }

    /// The first key with this lease.
    pub(crate) fn first_leased(&self, session: SessionId) -> Option<Key> {
        self.leased(session).next().cloned()
    }

    /// The keys with this lease, in order.
    pub(crate) fn leased(&self, session: SessionId) -> impl Iterator<Item = &Key> {
        let from = self.leased.range((session, Key::first())..);
        from.take_while(move |(lease, _)| *lease == session).map(|(_, key)| key)
    }

    /// The keys with this lease in a range that is not empty, in order. It can be read from both ends.
    pub(crate) fn leased_within<'a>(
        &'a self,
        session: SessionId,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = &'a Key> + use<'a> {
        let from = (session, range.from.clone().unwrap_or_else(Key::first));
        let next = session.0.checked_add(1).map(|next| (SessionId(next), Key::first()));
        let to = match &range.to {
            // A range must not end before it begins.
            _ if range.is_empty() => Bound::Excluded(from.clone()),
            Some(to) => Bound::Excluded((session, to.clone())),
            None => next.map_or(Bound::Unbounded, Bound::Excluded),
        };

        self.leased.range((Bound::Included(from), to)).map(|(_, key)| key)
    }

    /// Adds an entry under a key that has none. Returns whether it had one.
    pub(crate) fn insert(&mut self, key: Key, entry: Arc<Entry>) -> bool {
        if let Some(lease) = entry.lease {
            self.leased.insert((lease.session, key.clone()));
        } else {
            let bytes = Weight::for_entry(&key, &entry).all;
            self.bytes += bytes;
            if entry.is_temporary {
                self.temporaries = self.temporaries + Temporaries { count: 1, bytes };
            }
        }
        self.by_key.insert(key, entry).is_some()
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let entry = self.by_key.remove(key)?;
        if let Some(lease) = entry.lease {
            self.leased.remove(&(lease.session, key.clone()));
        } else {
            let bytes = Weight::for_entry(key, &entry).all;
            self.bytes -= bytes;
            if entry.is_temporary {
                self.temporaries.count -= 1;
                self.temporaries.bytes -= bytes;
            }
        }
        Some(entry)
    }

    /// Replaces an entry by the same with other children. It has no lease, and is not temporary.
    pub(crate) fn set_children(&mut self, key: &Key, entry: Arc<Entry>) {
        let place = self.by_key.get_mut(key).expect("a parent outlives its children");
        self.bytes = self.bytes - Weight::for_entry(key, place).all + Weight::for_entry(key, &entry).all;
        *place = entry;
    }

    /// Changes the claim of an entry that has one, so it is not temporary. The bytes of an entry with a lease are not counted here.
    pub(crate) fn set_claim(&mut self, key: &Key, claim: impl FnOnce(&Claim) -> Option<Claim>) {
        let entry = self.by_key.get_mut(key).expect("each claim is that of an entry");
        let before = Weight::for_entry(key, entry).all;
        let changed = Arc::make_mut(entry);
        changed.claim = changed.claim.as_deref().and_then(claim).map(Arc::new);
        if entry.lease.is_none() {
            self.bytes = self.bytes - before + Weight::for_entry(key, entry).all;
        }
    }

    /// Entries by their lease, as the index has them, for the check of invariants.
    pub(crate) fn lease_index(&self) -> &OrdSet<(SessionId, Key)> {
        &self.leased
    }

    /// What the temporary entries without a session take, counted anew.
    pub(crate) fn count_temporaries(&self) -> Temporaries {
        let temporary = self.by_key.iter().filter(|(_, entry)| entry.is_temporary && entry.lease.is_none());
        let each = temporary.map(|(key, entry)| Temporaries { count: 1, bytes: Weight::for_entry(key, entry).all });
        each.fold(Temporaries::default(), |sum, one| sum + one)
    }

    /// The bytes of entries without a lease, counted anew.
    pub(crate) fn count_bytes(&self) -> usize {
        let unleased = self.by_key.iter().filter(|(_, entry)| entry.lease.is_none());
        unleased.map(|(key, entry)| Weight::for_entry(key, entry).all).sum()
    }
}
