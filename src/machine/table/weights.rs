//! How many bytes each record takes: see `bytes`.

use std::sync::Arc;

use crate::types::*;

/// A session: its entry with its client's address, its deadline, its place in other indexes. Counted the same with and without an
/// address, as by versions without the field.
const SESSION: usize = 420;
/// Added to a session with an owner, without the owner's name: the name's allocation, and the session's part in its owner's sums.
const OWNED: usize = 48;
/// A lock's entry, without its name.
const LOCK: usize = 112;
/// Added to a lock that is awaited, delayed, or carries data.
const RARE: usize = 160;
/// A grant's entry.
const GRANT: usize = 120;
/// A lock of a grant.
pub(super) const HELD: usize = 16;
/// A wait's entry, its deadline, its place in other indexes.
const WAIT: usize = 320;
/// A lock of a wait, without its name and data.
const WANT: usize = 128;
/// A reply that is remembered.
pub(super) const REPLY: usize = 240;
/// A grant that was revoked or taken.
const REVOKED: usize = 96;
/// An entry of the keyspace, without its key and value.
const ENTRY: usize = 200;
/// An event of the keyspace, without its key.
const EVENT: usize = 80;
/// Added to an event that keeps an entry, without the entry's value.
const PAST: usize = 136;
/// Added to an entry with a lease or a deadline, without its key: its place in the index of leases, or among the deadlines.
const LEASED: usize = 64;
/// Added to an entry that is a child or had children, without the key of its parent.
const KIN: usize = 80;
/// Added to an entry that claims a lock, without the lock's name: the claim, and its place in the index of claims.
const CLAIMED: usize = 160;

/// The bytes of some records: in their session's sum, and in the table's.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Weight {
    pub(crate) own: usize,
    pub(crate) all: usize,
}

/// Everything that one session is charged for, apart from its own entry.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Charge {
    pub(crate) weight: Weight,
    /// Number of the locks that it holds.
    pub(crate) locks: u64,
}

impl Weight {
    fn same(bytes: usize) -> Self {
        Self { own: bytes, all: bytes }
    }

    /// In the table's sum, the names of the locks count with the locks.
    pub(crate) fn for_grant<'n>(names: impl Iterator<Item = &'n LockName>) -> Self {
        names.fold(Self::same(GRANT), |Self { own, all }, name| Self {
            own: own + HELD + LOCK + name.as_str().len(),
            all: all + HELD,
        })
    }

    pub(crate) fn for_wait(acquire: &Acquire) -> Self {
        let want = |want: &Want| WANT + want.name.as_str().len() + data_bytes(want.data.as_ref());
        Self::same(WAIT + acquire.wants().iter().map(want).sum::<usize>())
    }

    pub(crate) fn for_entry(key: &Key, entry: &Entry) -> Self {
        // An entry has one of both at the most, and the place among deadlines takes as much as that among leases.
        let leased = if entry.lease.is_some() || entry.until.is_some() { LEASED } else { 0 };
        let claimed = |claim: &Arc<Claim>| CLAIMED + claim.lock.as_str().len() + claim.label.as_str().len();
        let claimed = entry.claim.as_ref().map_or(0, claimed);
        let kin = kin_bytes(entry);
        Self::same(ENTRY + leased + claimed + kin + key.as_bytes().len() + entry.value.as_bytes().len())
    }

    pub(crate) fn for_revoked(reason: &Reason, by: Option<&Identity>) -> Self {
        let by = by.map_or(0, |by| by.as_str().len());
        Self::same(REVOKED + reason.as_str().len() + by)
    }

    /// Data that a session alone holds: in the table's sum it counts with its lock.
    pub(crate) fn for_held_data(bytes: usize) -> Self {
        Self { own: bytes, all: 0 }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.own += other.own;
        self.all += other.all;
    }
}

pub(crate) fn data_bytes(data: Option<&Data>) -> usize {
    data.map_or(0, |data| data.as_bytes().len())
}

/// A lock's bytes; a plain one has neither waiters, data nor a lock-delay.
pub(super) fn lock_bytes(name: &LockName, is_plain: bool, data: Option<&Data>) -> usize {
    let rare = if is_plain { 0 } else { RARE };
    LOCK + name.as_str().len() + rare + data_bytes(data)
}

pub(crate) fn new_session_bytes(label: &Label, owner: Option<&Identity>) -> usize {
    SESSION + label.as_str().len() + owner.map_or(0, |owner| OWNED + owner.as_str().len())
}

/// The bytes that an acquire may add to the table, at most.
pub(crate) fn acquire_bytes_max(acquire: &Acquire) -> usize {
    let locks = |want: &Want| LOCK + RARE + want.name.as_str().len();
    Weight::for_wait(acquire).all + acquire.wants().iter().map(locks).sum::<usize>()
}

fn kin_bytes(entry: &Entry) -> usize {
    let parent = entry.parent().map_or(0, |parent| parent.as_bytes().len());
    if entry.kin.is_some() { KIN + parent } else { 0 }
}

/// What an event alone keeps in memory: the entry after it is in the table, or is the one before a later event.
pub(super) fn event_bytes(event: &EntryEvent) -> usize {
    let before = event.before.as_ref().map_or(0, |before| PAST + before.value.as_bytes().len() + kin_bytes(before));
    EVENT + event.key.as_bytes().len() + before
}
