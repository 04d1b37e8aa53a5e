//! The invariants M1 to M14 of the [module](super), as code.
//!
//! A violation is our own mistake, or a damaged snapshot; no command may cause one.

use std::{collections::BTreeMap, fmt::Debug, num::NonZeroU64};

use imbl::OrdSet;

use crate::{
    table::{ActiveLock, BacklogKey, Due, HeldGrant, SessionEnding, SessionState, WaitingAcquire, as_written},
    *,
};

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table contradicts itself: {0}")]
pub struct BrokenInvariant(String);

impl BrokenInvariant {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), BrokenInvariant> {
    if holds { Ok(()) } else { Err(BrokenInvariant(what())) }
}

fn ensure_same<T: PartialEq + Debug>(found: &T, expected: &T, what: &str) -> Result<(), BrokenInvariant> {
    ensure(found == expected, || format!("{what}: {found:?} where {expected:?} follows from the tables (M6)"))
}

impl Machine {
    /// Checks all invariants. Scans the whole table.
    pub fn check(&self) -> Result<(), BrokenInvariant> {
        self.check_sessions()?;
        self.check_locks()?;
        self.check_grants()?;
        self.check_waits()?;
        self.check_replies()?;
        self.check_backlog()?;

        self.check_entries()?;
        self.check_children()?;
        self.check_history()?;
        self.check_claims()?;

        self.check_bytes()?;
        self.check_indexes()
    }

    /// Spreads the cost of a check, which grows with the table: a small table is checked after each command.
    #[cfg(debug_assertions)]
    pub(super) fn check_now_and_then(&mut self) {
        if let Some(fewer) = self.unchecked.checked_sub(1) {
            self.unchecked = fewer;
            return;
        }
        if let Err(broken) = self.check() {
            panic!("{broken}");
        }

        let size = [
            self.sessions.len(),
            self.sessions.ended().len(),
            self.replies().count(),
            self.locks.len(),
            self.waits.len(),
            self.entries.len(),
            self.history.len(),
        ];
        self.unchecked = size.iter().sum::<usize>() / 256;
    }

    fn check_sessions(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in self.sessions.iter() {
            self.check_session(id, session)?;
        }
        let known = |(_, end): (_, SessionEnd)| end != SessionEnd::Unknown;
        let ended = self.sessions.ended();
        ensure(ended.iter().all(known), || "an ended session is remembered without how it ended".into())
    }

    fn check_session(&self, id: SessionId, session: &SessionState) -> Result<(), BrokenInvariant> {
        let holds = |token| self.grants.get(token).is_some_and(|held| held.session == id);
        ensure(session.grants.iter().all(holds), || {
            format!("the session {id} lists a token whose grant is missing or belongs to another session (M6)")
        })?;
        let rises = session.replies.iter().is_sorted_by(|(one, _), (next, _)| one < next);
        ensure(rises, || format!("the replies of the session {id} are not in order"))?;

        ensure_same(&(session.waits as usize), &self.waits.tickets(id).count(), "a session's number of waits")?;
        let revoked = self.grants.revoked_from(id, Token(0));
        let taken = revoked.filter(|(_, revoked)| revoked.deadline.is_none()).count();
        ensure_same(&session.taken, &taken, "a session's number of grants taken")?;

        ensure(!session.is_temporary || session.is_of_entries, || {
            format!("the session {id} is that of a temporary entry, and not of entries (M13)")
        })?;
        ensure(self.sessions.ended().get(id).is_none(), || format!("the session {id} is alive and ended"))?;
        let is_left = session.is_of_entries && !self.is_over(id) && self.entries.first_leased(id).is_none();
        ensure(!is_left, || format!("the session {id} must end with its last entry, and has no entries (M13)"))
    }

    fn check_locks(&self) -> Result<(), BrokenInvariant> {
        for (name, lock) in self.locks.iter() {
            ensure(!lock.is_idle(), || format!("the lock {name:?} is in the table, but idle (M3)"))?;
            self.check_holders(name, lock)?;
            self.check_queue(name, lock)?;
            check_data(name, lock)?;
            if let Some(permits) = lock.resized() {
                check_size(name, lock, permits)?;
            }
        }
        Ok(())
    }

    fn check_queue(&self, name: &LockName, lock: &ActiveLock) -> Result<(), BrokenInvariant> {
        for (ticket, mode) in lock.waiters_after(Ticket(0)) {
            let agrees = lock.mode().is_some_and(|used| used.permits() == mode.permits());
            ensure(agrees, || format!("those who use the lock {name:?} disagree on its mode (M5)"))?;
            let waits = |waiting: &WaitingAcquire| waiting.acquire.wants().iter().any(|want| want.name == *name);
            let known = self.waits.get(ticket).is_some_and(waits);
            ensure(known, || format!("{ticket:?} queues for the lock {name:?}, but does not wait (M6)"))?;
        }
        Ok(())
    }

    fn check_holders(&self, name: &LockName, lock: &ActiveLock) -> Result<(), BrokenInvariant> {
        let most = match lock.mode() {
            None | Some(Mode::Shared) => usize::MAX,
            Some(Mode::Exclusive) => 1,
            Some(Mode::Permit(_)) if lock.resized().is_some() => usize::MAX,
            Some(Mode::Permit(permits)) => permits.get() as usize,
        };

        let count = lock.holders().len();
        ensure(count <= most, || format!("the lock {name:?} has {count} holders of at most {most} (M1)"))?;
        for token in lock.holders().iter() {
            let holds = self.grants.get(token).is_some_and(|held| held.names.contains(name));
            ensure(holds, || {
                format!("{token:?} is a holder of the lock {name:?}, but no grant of this token has the lock (M6)")
            })?;
        }
        Ok(())
    }

    fn check_grants(&self) -> Result<(), BrokenInvariant> {
        let held_by = |session: SessionId, token| {
            self.sessions.get(session).is_some_and(|session| session.grants.contains(token))
        };
        for (token, held) in self.grants.iter() {
            self.check_grant(token, held)?;
            ensure(held_by(held.session, token), || "a grant is not among those of its session (M6)".into())?;
        }

        for (session, token, revoked) in self.grants.all_revoked() {
            if revoked.deadline.is_some() {
                ensure(held_by(session, token), || "a grant is revoked that is not held (M6)".into())?;
            } else {
                self.check_taken(session, token)?;
            }
        }
        Ok(())
    }

    fn check_grant(&self, token: Token, held: &HeldGrant) -> Result<(), BrokenInvariant> {
        ensure(self.is_issued(token), || format!("{token:?} was never issued (M2)"))?;
        ensure(!held.names.is_empty(), || format!("{token:?} holds nothing"))?;
        ensure(held.names.is_sorted_by(|a, b| a < b), || format!("the locks of {token:?} are not in order"))?;
        let holds = |name: &LockName| self.locks.get(name).is_some_and(|lock| lock.holders().contains(token));
        ensure(held.names.iter().all(holds), || format!("{token:?} is not held by its locks (M6)"))
    }

    fn is_issued(&self, token: Token) -> bool {
        token > Token(0) && token <= self.last_token()
    }

    fn check_taken(&self, session: SessionId, token: Token) -> Result<(), BrokenInvariant> {
        ensure(self.is_issued(token), || format!("{token:?} was taken, but never issued (M2)"))?;
        ensure(!self.grants.contains(token), || format!("{token:?} was taken, and is held (M9)"))?;
        ensure(self.sessions.contains(session), || format!("{token:?} was taken from a session that is over (M9)"))
    }

    fn check_waits(&self) -> Result<(), BrokenInvariant> {
        for (ticket, waiting) in self.waits.iter() {
            let is_issued = ticket > Ticket(0) && ticket <= self.last_ticket();
            ensure(is_issued, || format!("{ticket:?} was never issued (M2)"))?;
            let queues = |want: &Want| {
                let lock = self.locks.get(&want.name);
                lock.is_some_and(|lock| {
                    lock.waiters_after(Ticket(ticket.0 - 1)).next() == Some((ticket, lock.as_used(want.mode)))
                })
            };
            ensure(waiting.acquire.wants().iter().all(queues), || format!("{ticket:?} is not in its queues (M6)"))?;

            let is_later = |want: &Want| self.backlog.contains_lock(&want.name);
            let waits_for_something = self.obstacle(ticket).is_some()
                || self.is_over(waiting.session)
                || waiting.acquire.wants().iter().any(is_later);
            ensure(waits_for_something, || format!("{ticket:?} waits for locks that it could have (M4)"))?;
        }
        Ok(())
    }

    fn check_replies(&self) -> Result<(), BrokenInvariant> {
        for (id, request, remembered) in self.replies() {
            let is_open = self.sessions.get(id).is_some_and(|session| session.open.contains(request));
            ensure(is_open, || format!("the reply to {request} of the session {id} should be forgotten (M8)"))?;
            let is_sound = self.is_sound_reply(id, request, &remembered.reply)?;
            ensure(is_sound, || format!("the reply to {request} of the session {id} contradicts the tables (M8)"))?;
        }
        Ok(())
    }

    /// Whether a session may remember this reply to a request, as the tables are.
    fn is_sound_reply(&self, session: SessionId, request: u64, reply: &Reply) -> Result<bool, BrokenInvariant> {
        let Some(reply) = reply.to_session() else { return Ok(false) };
        Ok(match reply {
            SessionReply::Queued(ticket) => {
                let waiting = self.waits.get(ticket);
                waiting.is_some_and(|waiting| waiting.session == session && waiting.request == Some(request))
            }
            SessionReply::Acquired(WaitEnd::Granted(grant)) => self.check_granted(session, request, grant)?,
            SessionReply::Acquired(_) | SessionReply::Busy(_) | SessionReply::Released(_) => true,
            SessionReply::Updated | SessionReply::Refused(_) => true,
        })
    }

    /// Whether the request may have had this reply: the grant, if it still exists, names the request.
    fn check_granted(&self, session: SessionId, request: u64, grant: &Grant) -> Result<bool, BrokenInvariant> {
        let taken = self.taken(session, grant.token).is_some();
        ensure(!taken, || format!("{:?} was taken, and the reply to {request} still grants it (M9)", grant.token))?;
        let leads_back = |held: &HeldGrant| held.session == session && held.request == NonZeroU64::new(request);
        Ok(self.grants.get(grant.token).is_none_or(leads_back))
    }

    fn check_indexes(&self) -> Result<(), BrokenInvariant> {
        let awaited_by = self.waits.iter().map(|(ticket, waiting)| (waiting.session, ticket)).collect();
        ensure_same(self.waits.index(), &awaited_by, "waits by session")?;
        let alive = |id: &SessionId| self.sessions.contains(*id);
        ensure(awaited_by.iter().all(|(id, _)| alive(id)), || "a session that is over awaits something (M6)".into())?;

        ensure_same(self.clock.deadlines(), &self.expected_due(), "deadlines")?;
        let is_passed = self.clock.next_deadline().is_some_and(|deadline| deadline <= self.now());
        ensure(!is_passed || self.clock.is_behind(), || "a deadline has passed (M7)".into())
    }

    /// Each part of the table keeps a sum of its own.
    fn check_bytes(&self) -> Result<(), BrokenInvariant> {
        ensure_same(&self.locks.bytes(), &self.locks.count_bytes(), "the bytes of locks")?;
        ensure_same(&self.entries.bytes(), &self.entries.count_bytes(), "the bytes of entries without a lease")?;

        let charges = self.count_charges();
        let ledger = self.sessions.ledger();
        let expected = self.sessions.count_ledger(&charges);
        ensure_same(&ledger.bytes(), &expected.bytes(), "the bytes of sessions")?;
        ensure_same(ledger.owners(), expected.owners(), "what the owners of sessions have")?;
        ensure_same(&ledger.temporaries(), &expected.temporaries(), "what temporary entries take")?;

        for (id, session) in self.sessions.iter() {
            let charged = charges.get(&id).map(|charge| charge.weight.own);
            ensure_same(&Some(session.charged), &charged, "the bytes of a session")?;
            let replies: usize = session.replies.iter().map(|(_, remembered)| remembered.bytes()).sum();
            ensure_same(&session.replies.bytes(), &replies, "the bytes of a session's replies")?;
        }
        Ok(())
    }

    fn check_entries(&self) -> Result<(), BrokenInvariant> {
        for (key, entry) in self.entries.iter() {
            let Entry { created, modified, version, lease, until, is_expired, is_revoked, .. } = &**entry;
            let in_order = *created > Revision(0) && created <= modified && *modified <= self.revision();
            ensure(in_order && *version > 0, || {
                format!("{key:?} was created at {created:?} and modified at {modified:?}, as version {version} (M10)")
            })?;

            let is_leased = lease.is_none_or(|lease| !is_expired && self.sessions.contains(lease.session));
            ensure(is_leased, || format!("{key:?} has a lease that is over (M10)"))?;
            let is_double = until.is_some() && (lease.is_some() || *is_expired);
            ensure(!is_double, || format!("{key:?} has a deadline beside a lease (M10)"))?;
            ensure(!is_revoked || *is_expired, || format!("the lease of {key:?} was ended, and is not over (M10)"))?;
        }
        for (key, entry) in self.entries.iter().filter(|(_, entry)| entry.is_temporary) {
            ensure(entry.until.is_some() && entry.claim.is_none(), || {
                format!("{key:?} is remembered for a time, without a deadline or beside a claim (M10)")
            })?;
        }
        let temporaries = self.entries.count_temporaries();
        ensure_same(&self.entries.temporaries(), &temporaries, "what temporary entries without a session take")?;

        let leased = self.entries.iter().filter_map(|(key, entry)| Some((entry.lease?.session, key.clone())));
        ensure_same(self.entries.lease_index(), &leased.collect(), "entries by lease")
    }

    /// Parents count their children, exist as long as they have some, and do not end by themselves.
    fn check_children(&self) -> Result<(), BrokenInvariant> {
        let mut live: BTreeMap<&Key, u64> = BTreeMap::new();
        for parent in self.entries.iter().filter_map(|(_, entry)| entry.parent()) {
            *live.entry(parent).or_default() += 1;
        }
        for (parent, count) in &live {
            let counted = self.entries.get(parent).and_then(|entry| entry.children()).map(|children| children.live);
            ensure(counted == Some(*count), || {
                format!("{parent:?} has {count} children, and counts {counted:?} (M14)")
            })?;
        }

        for (key, entry) in self.entries.iter() {
            let is_stored = entry.kin.as_ref().is_none_or(|kin| **kin != Kinship::default());
            ensure(is_stored, || format!("{key:?} has a record of kinship without a parent or children (M14)"))?;
            let Some(Children { made, live: counted, changed }) = entry.children() else { continue };
            ensure(!entry.ends(), || format!("{key:?} has or had children, and a lease or a deadline (M14)"))?;
            let is_sound = counted == live.get(key).copied().unwrap_or(0) && counted <= made && made > 0;
            ensure(is_sound, || format!("{key:?} counts {counted} children of {made} that were made (M14)"))?;
            let is_issued = changed >= entry.created && changed <= self.revision();
            ensure(is_issued, || format!("the children of {key:?} changed at {changed:?} (M14)"))?;
        }
        Ok(())
    }

    /// Walks through the history once, and compares where it ends with the table.
    fn check_history(&self) -> Result<(), BrokenInvariant> {
        let compacted = self.history.compacted();
        ensure(compacted <= self.revision(), || format!("{compacted:?} is compacted, but was never issued (M11)"))?;

        let mut last = (Revision(0), None);
        let mut known: BTreeMap<&Key, &Option<Arc<Entry>>> = BTreeMap::new();
        for event in self.history.stored() {
            let EntryEvent { revision, key, before, after } = &**event;
            let place = (*revision, Some(key));
            ensure(last < place && *revision <= self.revision(), || {
                format!("the event of {key:?} at {revision:?} comes after {last:?} (M11)")
            })?;
            last = place;

            ensure(is_change(*revision, before.as_deref(), after.as_deref()), || {
                format!("the event of {key:?} at {revision:?} changes the entry as no command does (M11)")
            })?;
            let follows = known.insert(key, after).is_none_or(|known| known == before);
            ensure(follows, || {
                format!("the event of {key:?} at {revision:?} does not follow the one before it (M11)")
            })?;
        }

        for (key, after) in &known {
            ensure(self.entries.get(key).map(as_written) == **after, || {
                format!("the table differs from the last event of {key:?} (M11)")
            })?;
        }
        let is_known = |(key, entry): (&Key, &Arc<Entry>)| entry.modified <= compacted || known.contains_key(key);
        ensure(self.entries.iter().all(is_known), || "an entry was modified without an event (M11)".into())?;
        ensure_same(&self.history.bytes(), &self.history.count_bytes(), "the bytes of the history")
    }

    /// Each piece of the backlog refers to an entry of the table, and each session that is over is in the backlog.
    fn check_backlog(&self) -> Result<(), BrokenInvariant> {
        ensure(self.backlog.is_sound(), || "the two halves of the backlog differ (M6)".into())?;
        for piece in self.backlog.iter() {
            let is_known = match piece {
                BacklogKey::Session(id) => self.sessions.get(*id).is_some_and(|session| session.ending.is_some()),
                BacklogKey::Lock(name) => {
                    let is_awaited = self.locks.get(name).is_some_and(|lock| lock.queue_length() > 0);
                    is_awaited || self.is_claimed(name) && self.claim_holder(name).is_none()
                }
            };
            ensure(is_known, || format!("{piece:?} is in the backlog, but needs no work (M6)"))?;
        }

        for (id, session) in self.sessions.iter() {
            let Some(SessionEnding { end, at }) = session.ending else { continue };
            ensure(self.backlog.contains_session(id), || {
                format!("the session {id} is over, but not in the backlog (M6)")
            })?;
            let is_known = at <= self.now() && end != SessionEnd::Unknown;
            ensure(is_known, || format!("the session {id} ended in no known way"))?;
        }
        Ok(())
    }

    fn expected_due(&self) -> OrdSet<(Stamp, Due)> {
        let alive = self.sessions.iter().filter(|(_, session)| session.ending.is_none());
        let sessions = alive.map(|(id, session)| (session.deadline, Due::Session(id)));
        let revoked = self.grants.all_revoked();
        let revoked = revoked.filter_map(|(_, token, revoked)| Some((revoked.deadline?, Due::Revocation(token))));

        let delays =
            self.locks.iter().filter_map(|(name, lock)| Some((lock.closed_until()?, Due::Delay(name.clone()))));
        let waits = self.waits.iter().filter_map(|(ticket, waiting)| Some((waiting.deadline?, Due::Wait(ticket))));

        let entries = self.entries.iter();
        let entries = entries.filter_map(|(key, entry)| Some((entry.until?, Due::Entry(key.clone()))));
        sessions.chain(entries).chain(revoked).chain(delays).chain(waits).collect()
    }
}

fn check_data(name: &LockName, lock: &ActiveLock) -> Result<(), BrokenInvariant> {
    ensure(!lock.keeps_data() || lock.data().is_some(), || format!("the lock {name:?} keeps data, but has none"))?;
    let is_kept = lock.is_held() || lock.data().is_none() || lock.keeps_data();
    ensure(is_kept, || format!("the lock {name:?} is free and has data that was not kept"))
}

/// Checks a lock that an operator resized.
fn check_size(name: &LockName, lock: &ActiveLock, permits: Permits) -> Result<(), BrokenInvariant> {
    let is_used = lock.is_held() || lock.queue_length() > 0 || lock.data().is_some();
    ensure(is_used, || format!("the lock {name:?} was resized, and is not in use (M3)"))?;
    let is_permit = lock.held_as().is_none_or(|mode| mode == Mode::Permit(permits));
    ensure(is_permit, || format!("the lock {name:?} was resized, and is held in another way (M5)"))
}

/// Whether a command can have changed an entry in this way: created, written, deleted, or marked at the end of its lease, also by an
/// operator.
fn is_change(revision: Revision, before: Option<&Entry>, after: Option<&Entry>) -> bool {
    if before.is_some_and(|before| before.modified >= revision) {
        return false;
    }
    let Some(after) = after else { return before.is_some() };

    let is_created = after.created == revision && after.version == 1 && !after.is_expired;
    let follows = before.is_some_and(|before| {
        let is_revoked = after.is_revoked;
        let ended = Entry { modified: revision, lease: None, is_expired: true, is_revoked, ..before.clone() };
        let is_same = after.created == before.created && after.parent() == before.parent();
        let is_put = is_same && after.version == before.version + 1;
        // A put that keeps a lease which is over changes nothing of that.
        let stays_over = (before.is_expired, before.is_revoked) == (after.is_expired, after.is_revoked);
        *after == ended || is_put && (!after.is_expired || stays_over)
    });
    after.modified == revision && (is_created || follows)
}
