//! The locks that entries claim: who holds each, and who waits for it.

use std::ops::Bound;

use imbl::OrdMap;

use crate::types::*;

/// The claims by lock: the one that holds it first, then those that wait, by token.
#[derive(Clone, PartialEq, Default)]
pub(crate) struct ClaimTable {
    keys: OrdMap<(LockName, ClaimPlace), Key>,
    /// How many wait for each lock for which some do.
    queues: OrdMap<LockName, u64>,
    names: usize,
    held: usize,
}

/// A place among the claims of one lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClaimPlace {
    pub(crate) is_waiting: bool,
    pub(crate) token: Token,
}

impl ClaimPlace {
    const FIRST: Self = Self { is_waiting: false, token: Token(0) };
    /// A place after all others: no token is as high.
    const LAST: Self = Self { is_waiting: true, token: Token(u64::MAX) };

    fn waiting(token: Token) -> Self {
        Self { is_waiting: true, token }
    }
}

impl From<&Claim> for ClaimPlace {
    fn from(claim: &Claim) -> Self {
        Self { is_waiting: !claim.is_held, token: claim.token }
    }
}

impl ClaimTable {
    /// Number of the locks that are claimed.
    pub(crate) fn names(&self) -> usize {
        self.names
    }

    /// Number of the claims that hold their lock.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Number of the claims that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.keys.len() - self.held
    }

    pub(crate) fn contains(&self, lock: &LockName) -> bool {
        self.is_awaited(lock) || self.holder(lock).is_some()
    }

    fn is_awaited(&self, lock: &LockName) -> bool {
        self.queues.contains_key(lock)
    }

    /// The claims of a lock, in their order.
    pub(crate) fn places<'a>(&'a self, lock: &LockName) -> impl Iterator<Item = (ClaimPlace, &'a Key)> + use<'a> {
        self.places_from(lock, ClaimPlace::FIRST)
    }

    /// The claims that wait for a lock, with tokens from this one on.
    pub(crate) fn waiting_from<'a>(
        &'a self,
        lock: &LockName,
        token: Token,
    ) -> impl Iterator<Item = (ClaimPlace, &'a Key)> + use<'a> {
        self.places_from(lock, ClaimPlace::waiting(token))
    }

    fn places_from<'a>(
        &'a self,
        lock: &LockName,
        from: ClaimPlace,
    ) -> impl Iterator<Item = (ClaimPlace, &'a Key)> + use<'a> {
        let range = (lock.clone(), from)..(lock.clone(), ClaimPlace::LAST);
        self.keys.range(range).map(|((_, place), key)| (*place, key))
    }

    /// The entry that holds a lock.
    pub(crate) fn holder(&self, lock: &LockName) -> Option<&Key> {
        let ((name, place), key) = self.keys.get_next(&(lock.clone(), ClaimPlace::FIRST))?;
        (name == lock && !place.is_waiting).then_some(key)
    }

    /// How many wait for a lock.
    pub(crate) fn queue_length(&self, lock: &LockName) -> u64 {
        self.queues.get(lock).copied().unwrap_or_default()
    }

    /// The locks under a prefix that are claimed, sorted, above `after`.
    pub(crate) fn names_under<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        let from = match after.filter(|after| after.as_str() >= prefix) {
            Some(after) => Bound::Excluded((after.clone(), ClaimPlace::LAST)),
            None => first_under(prefix),
        };
        let first = self.first_from(from);
        // Go from lock to lock, because a lock may have thousands of claims.
        let next = |name: &&'a LockName| self.first_from(Bound::Excluded(((*name).clone(), ClaimPlace::LAST)));
        std::iter::successors(first, next).take_while(move |name| name.as_str().starts_with(prefix))
    }

    /// The claims of locks whose names begin so, by lock.
    pub(crate) fn places_under<'a>(
        &'a self,
        prefix: &str,
    ) -> impl Iterator<Item = (&'a LockName, ClaimPlace)> + use<'a> {
        let claims = self.keys.range((first_under(prefix), Bound::Unbounded)).map(|((lock, place), _)| (lock, *place));
        let prefix = prefix.to_owned();
        claims.take_while(move |(name, _)| name.as_str().starts_with(&prefix))
    }

    /// The first lock from a bound on.
    fn first_from(&self, from: Bound<(LockName, ClaimPlace)>) -> Option<&LockName> {
        self.keys.range((from, Bound::Unbounded)).next().map(|((name, _), _)| name)
    }

    /// Returns whether the place was taken.
    pub(crate) fn insert(&mut self, lock: &LockName, place: ClaimPlace, key: Key) -> bool {
        let is_new = self.is_alone(lock, place);
        self.names += usize::from(is_new);
        if place.is_waiting {
            *self.queues.entry(lock.clone()).or_default() += 1;
        } else {
            self.held += 1;
        }
        self.keys.insert((lock.clone(), place), key).is_some()
    }

    pub(crate) fn remove(&mut self, lock: &LockName, place: ClaimPlace) -> Option<Key> {
        let key = self.keys.remove(&(lock.clone(), place))?;
        if !place.is_waiting {
            self.held -= 1;
        } else if let Some(length) = self.queues.get_mut(lock) {
            *length -= 1;
            if *length == 0 {
                self.queues.remove(lock);
            }
        }
        let was_last = self.is_alone(lock, place);
        self.names -= usize::from(was_last);
        Some(key)
    }

    /// Whether a lock has no other claim than this one. A lock has one holder at the most, so for that one only the others count.
    fn is_alone(&self, lock: &LockName, place: ClaimPlace) -> bool {
        !self.is_awaited(lock) && (!place.is_waiting || self.holder(lock).is_none())
    }
}

/// The place at which the names with this prefix begin.
fn first_under(prefix: &str) -> Bound<(LockName, ClaimPlace)> {
    match LockName::new(prefix) {
        Ok(prefix) => Bound::Included((prefix, ClaimPlace::FIRST)),
        // The empty prefix, which all names have, and a prefix that no name can have.
        Err(_) => Bound::Unbounded,
    }
}
