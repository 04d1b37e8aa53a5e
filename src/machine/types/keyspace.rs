//! The keyspace: its keys, its entries, and their changes.

use std::{fmt, num::NonZeroU64, ops::Bound, sync::Arc};

use lockkeeper_planted::Planted;

use super::*;

/// A key: 1 to [`KEY_BYTES_MAX`] bytes of any kind, ordered byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// The value of an entry: at most [`VALUE_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(Arc<[u8]>);

/// When an entry was written: a number from the counter of tokens, so it rises over all grants and all writes of the cluster, for ever. 0:
/// never.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

/// What becomes of an entry when its lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtLeaseEnd {
    /// It is deleted.
    Delete,
    /// It stays, without a lease, and [`Entry::is_expired`].
    Keep,
}

/// The lease of an entry: it ends when its session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The session.
    pub session: SessionId,
    /// What becomes of the entry then.
    pub at_end: AtLeaseEnd,
}

/// How long an entry lives that has a deadline of its own, milliseconds from the write on: 1 to [`LIFETIME_MS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lifetime(NonZeroU64);

/// The claim of an entry with a lease or a deadline on a lock: the entry holds the lock, or waits for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The lock.
    pub lock: LockName,
    /// Its token: the revision of the write that brought this lease, or a deadline, and this lock together on the entry. Later writes that
    /// name both again keep it.
    pub token: Token,
    /// When it was granted the lock; until then, when it was made.
    pub since: WallTime,
    /// Whether it holds the lock.
    pub is_held: bool,
    /// Who holds it, for people, if the entry has a deadline of its own: a lease has the label of its session.
    pub label: Label,
}

/// What the keyspace has under a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When the key came into being: the revision of its first write since it was last absent.
    pub created: Revision,
    /// When it changed last: the revision of its last write, or of the end of its lease.
    pub modified: Revision,
    /// Number of writes since it was created, from 1 on.
    pub version: u64,
    /// Its lease, until that ends.
    pub lease: Option<Lease>,
    /// The moment of cluster time at which it is deleted, if it has a deadline of its own. Then it has no lease.
    pub until: Option<Stamp>,
    /// The lock that it holds or waits for, while its lease lasts or until its deadline.
    pub claim: Option<Arc<Claim>>,
    /// Its lease ended, and nothing was written since.
    pub is_expired: bool,
    /// An operator ended its lease, and nothing was written since. Then it is expired, too.
    pub is_revoked: bool,
    /// It is what an adapter remembers for a time ([`PutLease::Temporary`]): it has a deadline of its own, and no claim. Since version 5
    /// of the cluster.
    pub is_temporary: bool,
    /// The key that it is a child of, and its own children, if it has anything of both.
    pub kin: Option<Arc<Kinship>>,
    /// Its value.
    pub value: Value,
}

/// What an entry has to do with other keys. Apart from the entry, since most entries have nothing of it: they pay for a pointer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kinship {
    /// The key that it is a child of, as long as it exists.
    pub parent: Option<Key>,
    /// Its own children, once one was ever made below it. To make or to end a child does not write the parent: its `modified` and `version`
    /// stay, and there is no event for it.
    pub children: Option<Children>,
}

/// The children of a key since its entry was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Children {
    /// Number of children that were ever made.
    pub made: u64,
    /// Number of those that exist.
    pub live: u64,
    /// When one was last made or ended.
    pub changed: Revision,
}

/// A change of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent {
    /// When it happened. All changes of one transaction have the same revision.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// The entry before, if there was one.
    pub before: Option<Arc<Entry>>,
    /// The entry since, unless it was deleted.
    pub after: Option<Arc<Entry>>,
}

/// Why a revision cannot be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RevisionError {
    /// It is below the compacted revision. The state at the compacted revision is known, and the events after it.
    #[error("the history of the keyspace begins after revision {}", .compacted.0)]
    Compacted {
        /// The compacted revision: that of the last event forgotten.
        compacted: Revision,
    },
    /// It is above the present one.
    #[error("the keyspace is at revision {}", .present.0)]
    Future {
        /// The present one.
        present: Revision,
    },
}

/// The keys from one on, up to another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRange {
    /// The first key, included. Without one, the range begins with the first of all.
    pub from: Option<Key>,
    /// The end, excluded. Without one, the range ends with the last of all; with one that is not above `from`, it is empty.
    pub to: Option<Key>,
}

impl Key {
    /// Fails on an empty key, and on one over [`KEY_BYTES_MAX`].
    pub fn new(key: &[u8]) -> Result<Self, Invalid> {
        let key = Self::from_log(key)?;
        key.check_limits().map(|()| key)
    }

    /// The same of any length: for what the log and snapshots have.
    pub fn from_log(key: &[u8]) -> Result<Self, Invalid> {
        if key.is_empty() {
            return Err(Invalid::new(format!("the key is empty: give it 1 to {KEY_BYTES_MAX} bytes")));
        }
        Ok(Self(key.into()))
    }

    /// Fails over [`KEY_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        let bytes = self.0.len();
        if bytes > KEY_BYTES_MAX {
            return Err(Invalid::new(format!("the key has {bytes} bytes: the limit is {KEY_BYTES_MAX}")));
        }
        Ok(())
    }

    /// The first of all keys.
    pub fn first() -> Self {
        Self([0].into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    /// Shows the key as text, since most keys are mostly text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Default for Value {
    fn default() -> Self {
        Self([].into())
    }
}

impl Value {
    /// Fails over [`VALUE_BYTES_MAX`].
    pub fn new(value: &[u8]) -> Result<Self, Invalid> {
        let value = Self::from_log(value);
        value.check_limits().map(|()| value)
    }

    /// The same of any length: for what the log and snapshots have.
    pub fn from_log(value: &[u8]) -> Self {
        Self(value.into())
    }

    /// Fails over [`VALUE_BYTES_MAX`].
    pub fn check_limits(&self) -> Result<(), Invalid> {
        let bytes = self.0.len();
        if bytes > VALUE_BYTES_MAX {
            return Err(Invalid::new(format!("the value has {bytes} bytes: the limit is {VALUE_BYTES_MAX}")));
        }
        Ok(())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }
}

impl Kinship {
    /// The record that an entry stores. `None` if it has neither a parent nor children.
    pub fn stored(parent: Option<Key>, children: Option<Children>) -> Option<Arc<Self>> {
        (parent.is_some() || children.is_some()).then(|| Arc::new(Self { parent, children }))
    }
}

impl Children {
    /// The numbers after another child was made.
    pub(crate) fn with_one_more(self, changed: Revision) -> Self {
        let made = if Planted::ChildNumberReused.is_on() { self.live + 1 } else { self.made.saturating_add(1) };
        Self { made, live: self.live + 1, changed }
    }

    /// The numbers after a child ended.
    pub(crate) fn with_one_less(self, changed: Revision) -> Self {
        Self { live: self.live.saturating_sub(1), changed, ..self }
    }
}

impl Entry {
    /// The key that it is a child of.
    pub fn parent(&self) -> Option<&Key> {
        self.kin.as_ref()?.parent.as_ref()
    }

    /// Its children, once one was ever made below it.
    pub fn children(&self) -> Option<Children> {
        self.kin.as_ref()?.children
    }

    /// Whether the entry may end without a write, because it has a lease or its own deadline.
    pub fn ends(&self) -> bool {
        self.lease.is_some() || self.until.is_some()
    }

    /// The same entry with these children.
    pub(crate) fn with_children(&self, children: Option<Children>) -> Self {
        Self { kin: Kinship::stored(self.parent().cloned(), children), ..self.clone() }
    }

    /// Who claims a lock by this entry: the session of its lease, or [`SessionId::NONE`] if it has a deadline of its own. An entry without
    /// both can claim none.
    pub fn claimant(&self) -> Option<SessionId> {
        self.lease.map(|lease| lease.session).or_else(|| self.until.map(|_| SessionId::NONE))
    }
}

impl Lifetime {
    /// Fails on 0, and over [`LIFETIME_MS_MAX`].
    pub fn from_millis(ms: u64) -> Result<Self, Invalid> {
        let lifetime = Self::from_log(ms)?;
        lifetime.check_limits().map(|()| lifetime)
    }

    /// The same of any length: for what the log has. Fails on 0.
    pub fn from_log(ms: u64) -> Result<Self, Invalid> {
        let invalid = || Invalid::new(format!("an entry lives for 0 ms: give it 1 to {LIFETIME_MS_MAX} ms"));
        NonZeroU64::new(ms).map(Self).ok_or_else(invalid)
    }

    /// Fails over [`LIFETIME_MS_MAX`].
    pub fn check_limits(self) -> Result<(), Invalid> {
        let ms = self.as_millis();
        if ms > LIFETIME_MS_MAX {
            return Err(Invalid::new(format!("an entry lives for {ms} ms: the limit is {LIFETIME_MS_MAX} ms")));
        }
        Ok(())
    }

    /// Milliseconds.
    pub fn as_millis(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for Value {
    /// Its length only: values may be long, and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl KeyRange {
    /// Whether the key is in it.
    pub fn contains(&self, key: &Key) -> bool {
        self.from.as_ref().is_none_or(|from| key >= from) && self.to.as_ref().is_none_or(|to| key < to)
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        matches!((&self.from, &self.to), (Some(from), Some(to)) if from >= to)
    }

    /// The bounds of the range, for an ordered map.
    pub(crate) fn bounds(&self) -> (Bound<&Key>, Bound<&Key>) {
        let from = self.from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let to = match (self.is_empty(), &self.from, &self.to) {
            // A range must not end before it begins.
            (true, Some(from), _) => Bound::Excluded(from),
            (_, _, Some(to)) => Bound::Excluded(to),
            (_, _, None) => Bound::Unbounded,
        };
        (from, to)
    }

    /// Fails on a key beyond its limit.
    pub fn check_limits(&self) -> Result<(), Invalid> {
        [&self.from, &self.to].into_iter().flatten().try_for_each(Key::check_limits)
    }

    pub(super) fn bytes(&self) -> usize {
        [&self.from, &self.to].into_iter().flatten().map(|key| key.as_bytes().len()).sum()
    }
}
