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

use super::*;

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
const HELD: usize = 16;
/// A wait's entry, its deadline, its place in other indexes.
const WAIT: usize = 320;
/// A lock of a wait, without its name and data.
const WANT: usize = 128;
/// A reply that is remembered.
const REPLY: usize = 240;
/// A grant that was revoked or taken.
const REVOKED: usize = 96;
/// An entry of the keyspace, without its key and value.
const ENTRY: usize = 200;
/// An event of the keyspace, without its key.
const EVENT: usize = 80;
/// Added to an event that keeps an entry, without the entry's value.
const PAST: usize = 136;
/// Added to an entry with a lease, without its key: its place in the index of leases.
const LEASED: usize = 64;
/// Added to an entry that claims a lock, without the lock's name: the claim, and its place in the index of claims.
const CLAIMED: usize = 160;

/// The bytes of some records: in their session's sum, and in the table's.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    pub(super) own: usize,
    pub(super) all: usize,
}

impl Weight {
    fn same(bytes: usize) -> Self {
        Self { own: bytes, all: bytes }
    }

    pub(super) fn of_grant<'n>(names: impl Iterator<Item = &'n LockName>) -> Self {
        names.fold(Self::same(GRANT), |Self { own, all }, name| Self {
            own: own + HELD + LOCK + name.as_str().len(),
            all: all + HELD,
        })
    }

    pub(super) fn of_wait(acquire: &Acquire) -> Self {
        let want = |want: &Want| WANT + want.name.as_str().len() + want.data.as_ref().map_or(0, len);
        Self::same(WAIT + acquire.wants().iter().map(want).sum::<usize>())
    }

    pub(super) fn of_entry(key: &Key, entry: &Entry) -> Self {
        let leased = entry.lease.map_or(0, |_| LEASED);
        let claimed = entry.claim.as_ref().map_or(0, |claim| CLAIMED + claim.lock.as_str().len());
        Self::same(ENTRY + leased + claimed + key.as_bytes().len() + entry.value.as_bytes().len())
    }

    pub(super) fn of_revoked(revoked: &Revoked) -> Self {
        let by = revoked.by.as_ref().map_or(0, |by| by.as_str().len());
        Self::same(REVOKED + revoked.reason.as_str().len() + by)
    }
}

fn len(data: &Data) -> usize {
    data.as_bytes().len()
}

/// What an event alone keeps in memory: the entry after it is in the table, or is the one before a later event.
pub(super) fn of_event(event: &EntryEvent) -> usize {
    let before = event.before.as_ref().map_or(0, |before| PAST + before.value.as_bytes().len());
    EVENT + event.key.as_bytes().len() + before
}

pub(super) fn of_lock(name: &LockName, lock: &Lock) -> usize {
    let rare = if lock.is_plain() { 0 } else { RARE };
    LOCK + name.as_str().len() + rare + lock.data().map_or(0, len)
}

pub(super) fn of_new_session(label: &Label, owner: Option<&Identity>) -> usize {
    SESSION + label.as_str().len() + owner.map_or(0, |owner| OWNED + owner.as_str().len())
}

/// The bytes that an acquire may add to the table, at most.
fn of_acquire(acquire: &Acquire) -> usize {
    let locks = |want: &Want| LOCK + RARE + want.name.as_str().len();
    Weight::of_wait(acquire).all + acquire.wants().iter().map(locks).sum::<usize>()
}

pub(super) fn of_reply(remembered: &RememberedReply) -> usize {
    let names = |names: &[LockName]| names.iter().map(|name| HELD + name.as_str().len()).sum::<usize>();
    let asked = match &remembered.asked {
        Asked::Acquire(asked) => names(asked),
        Asked::Update(_, name) => name.as_str().len(),
        Asked::Release(_) | Asked::Abandoned => 0,
    };
    let busy = |busy: &Busy| {
        let holder = busy.holder.as_ref();
        let reason = holder.and_then(|holder| holder.revoked.as_ref()).map_or(0, |reason| reason.as_str().len());
        busy.name.as_str().len() + reason + holder.map_or(0, |holder| holder.label.as_str().len())
    };
    let reply = &remembered.reply;
    let reply = if let Reply::Busy(found) | Reply::Acquired(WaitEnd::TimedOut(found)) = reply {
        busy(found)
    } else if let Reply::Refused(Refusal::Revoked { reason, .. }) = reply {
        reason.as_str().len()
    } else if let Reply::Refused(Refusal::ModeMismatch { name, .. } | Refusal::LockUnknown { name }) = reply {
        name.as_str().len()
    } else {
        0
    };
    REPLY + asked + reply
}

impl Session {
    /// The bytes of the session without its grants and waits.
    pub(super) fn bare_bytes(&self) -> usize {
        of_new_session(&self.label, self.owner.as_ref()) + size_of_val(self.open.kept()) + self.replies.bytes()
    }

    /// All bytes that the session is charged for.
    pub(super) fn bytes(&self) -> usize {
        self.bare_bytes() + self.charged
    }
}

impl Machine {
    /// The estimated size of the table in bytes, without the history of the keyspace.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The limits of the last batch that this replica applied.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Refuses an addition of `more` bytes beyond the table's or the session's limit.
    pub(super) fn ensure_room(&self, session: Option<SessionId>, more: usize) -> Result<(), Refusal> {
        self.ensure_room_in_table(more)?;
        session.map_or(Ok(()), |session| self.ensure_room_of(session, more))
    }

    pub(super) fn ensure_room_in_table(&self, more: usize) -> Result<(), Refusal> {
        // A lock that several sessions hold is in the sum of each.
        let others = self.bytes.saturating_sub(self.temporaries.bytes);
        match others.saturating_add(more) > self.limits.table_bytes {
            true => Err(Refusal::Limit(Limit::TableBytes)),
            false => Ok(()),
        }
    }

    pub(super) fn ensure_room_of(&self, session: SessionId, more: usize) -> Result<(), Refusal> {
        self.ensure_room_beside(self.sessions.get(&session).map_or(0, Session::bytes), more)
    }

    /// The same of a session with so many bytes.
    fn ensure_room_beside(&self, own: usize, more: usize) -> Result<(), Refusal> {
        match own.saturating_add(more) > self.limits.session_bytes {
            true => Err(Refusal::Limit(Limit::SessionBytes)),
            false => Ok(()),
        }
    }

    pub(super) fn ensure_room_for_acquire(&self, session: &Session, acquire: &Acquire) -> Result<(), Refusal> {
        let more = of_acquire(acquire);
        self.ensure_room_in_table(more)?;
        self.ensure_room_beside(session.bytes(), more)
    }

    pub(super) fn ensure_room_for_data(
        &self,
        session: SessionId,
        name: &LockName,
        data: Option<&Data>,
    ) -> Result<(), Refusal> {
        let before = self.locks.get(name).and_then(Lock::data).map_or(0, len);
        match data.map_or(0, len).checked_sub(before) {
            None | Some(0) => Ok(()),
            Some(more) => self.ensure_room(Some(session), more),
        }
    }

    /// Charges a session for new records.
    pub(super) fn add(&mut self, session: SessionId, weight: Weight) {
        self.add_with(session, weight, |_| ());
    }

    /// The same, together with another change of the session, since each look for a session costs.
    pub(super) fn add_with<T>(
        &mut self,
        session: SessionId,
        weight: Weight,
        change: impl FnOnce(&mut Session) -> T,
    ) -> T {
        let charged = self.session_mut(session);
        charged.charged += weight.own;
        let is_temporary = charged.is_temporary;
        let result = change(charged);

        self.count(session, |usage| usage.bytes += weight.own as u64);
        self.bytes += weight.all;
        if is_temporary {
            self.temporaries.bytes += weight.own;
        }
        result
    }

    /// Records for which a session was charged are gone.
    pub(super) fn subtract(&mut self, session: SessionId, weight: Weight) {
        self.subtract_with(session, weight, |_| ());
    }

    /// The same, together with another change of the session.
    pub(super) fn subtract_with<T>(
        &mut self,
        session: SessionId,
        weight: Weight,
        change: impl FnOnce(&mut Session) -> T,
    ) -> T {
        let charged = self.session_mut(session);
        charged.charged -= weight.own;
        let is_temporary = charged.is_temporary;
        let result = change(charged);

        self.count(session, |usage| usage.bytes -= weight.own as u64);
        self.bytes -= weight.all;
        if is_temporary {
            self.temporaries.bytes -= weight.own;
        }
        result
    }

    /// Changes a session's own entry and counts the difference.
    pub(super) fn change_session<T>(&mut self, id: SessionId, change: impl FnOnce(&mut Session) -> T) -> T {
        self.change_if(id, |_| true, change).expect("grants, waits and replies go with their session")
    }

    /// The same, unless the session is over or unknown: then it returns `None`.
    pub(super) fn change_if_alive<T>(&mut self, id: SessionId, change: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let now = self.now;
        self.change_if(id, |session| session.over(now).is_none(), change)
    }

    fn change_if<T>(
        &mut self,
        id: SessionId,
        applies: impl FnOnce(&Session) -> bool,
        change: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let session = self.sessions.get_mut(&id)?;
        if !applies(session) {
            return None;
        }

        let before = session.bare_bytes();
        let result = change(session);
        let after = session.bare_bytes();
        if before == after {
            return Some(result);
        }

        if session.is_temporary {
            self.temporaries.bytes = self.temporaries.bytes - before + after;
        }
        self.bytes = self.bytes - before + after;
        self.count(id, |usage| usage.bytes = usage.bytes - before as u64 + after as u64);
        Some(result)
    }

    pub(super) fn count_session(&mut self, id: SessionId) {
        let session = &self.sessions[&id];
        let (bytes, is_temporary, owner) = (session.bare_bytes(), session.is_temporary, session.owner.clone());
        self.bytes += bytes;
        if is_temporary {
            self.temporaries.sessions += 1;
            self.temporaries.bytes += bytes;
        }
        self.count_for(owner, |usage| {
            usage.sessions += u64::from(!is_temporary);
            usage.bytes += bytes as u64;
        });
    }

    pub(super) fn uncount_session(&mut self, session: &Session) {
        let bytes = session.bare_bytes();
        self.bytes -= bytes;
        if session.is_temporary {
            self.temporaries.sessions -= 1;
            self.temporaries.bytes -= bytes;
        }
        self.count_for(session.owner.clone(), |usage| {
            usage.sessions -= u64::from(!session.is_temporary);
            usage.bytes -= bytes as u64;
        });
    }

    /// Takes the data of this lock off the sum of its only holder. Call it before the lock or the holder changes; then
    /// [`Self::charge_data`].
    pub(super) fn uncharge_data(&mut self, name: &LockName) {
        if let Some((session, bytes)) = self.data_charged(name) {
            let charged = self.session_mut(session);
            charged.charged -= bytes;
            if charged.is_temporary {
                self.temporaries.bytes -= bytes;
            }
            self.count(session, |usage| usage.bytes -= bytes as u64);
        }
    }

    /// Charges the lock's data to its only holder, after the change.
    pub(super) fn charge_data(&mut self, name: &LockName) {
        if let Some((session, bytes)) = self.data_charged(name) {
            let charged = self.session_mut(session);
            charged.charged += bytes;
            if charged.is_temporary {
                self.temporaries.bytes += bytes;
            }
            self.count(session, |usage| usage.bytes += bytes as u64);
        }
    }

    /// Whether a lock carries data.
    pub(super) fn has_data(&self, name: &LockName) -> bool {
        self.locks.get(name).is_some_and(|lock| lock.data().is_some())
    }

    /// The only holder of a lock with data. `None` also while a grant that begins or ends is not among the grants.
    fn data_charged(&self, name: &LockName) -> Option<(SessionId, usize)> {
        let lock = self.locks.get(name)?;
        let bytes = len(lock.data()?);
        let only = lock.holders().first().filter(|_| lock.holders().len() == 1)?;
        Some((self.grants.get(&only)?.session, bytes))
    }

    /// Recounts everything: the total of the table, and for each session its charge apart from its own entry.
    pub(super) fn count_bytes(&self) -> (usize, OrdMap<SessionId, usize>) {
        let mut all: usize = self.locks.iter().map(|(name, lock)| of_lock(name, lock)).sum();
        let mut own: OrdMap<SessionId, usize> = OrdMap::new();
        for (id, session) in &self.sessions {
            all += session.bare_bytes();
            own.insert(*id, 0);
        }
        let grants = self.grants.values().map(|held| (held.session, Weight::of_grant(held.names.iter())));
        let waits = self.waits.values().map(|waiting| (waiting.session, Weight::of_wait(&waiting.acquire)));
        let revoked = self.revoked.iter().map(|((id, _), revoked)| (*id, Weight::of_revoked(revoked)));
        for (session, weight) in grants.chain(waits).chain(revoked) {
            all += weight.all;
            *own.entry(session).or_default() += weight.own;
        }
        for (session, bytes) in self.locks.keys().filter_map(|name| self.data_charged(name)) {
            *own.entry(session).or_default() += bytes;
        }
        for (key, entry) in &self.entries {
            let weight = Weight::of_entry(key, entry);
            all += weight.all;
            if let Some(lease) = entry.lease {
                *own.entry(lease.session).or_default() += weight.own;
            }
        }
        (all, own)
    }
}
