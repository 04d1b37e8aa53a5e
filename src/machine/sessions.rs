//! Sessions: opened, renewed, closed, and what ends with a session.

use crate::{
    table::{BacklogKey, Due, SessionEnding, SessionState, new_session_bytes},
    *,
};

impl Machine {
    /// Opens a session. A repeat with the same TTL and label renews it: the first reply may have been lost. The repeat may come from
    /// another address, never from another owner.
    pub(super) fn open(&mut self, new: NewSession) -> Result<Reply, Refusal> {
        self.can_open(&new)?;
        let ttl = new.ttl;
        if !self.sessions.contains(new.session) {
            if self.sessions.ordinary() >= self.capacity.sessions {
                return Err(Refusal::Limit(Limit::Sessions));
            }
            self.ensure_room_in_table(new_session_bytes(&new.label, new.owner.as_ref()))?;
        }

        self.open_or_renew(new, false);
        Ok(Reply::Opened(ttl))
    }

    /// Opens a session, or renews the live session with this id. The caller has checked that this is allowed.
    pub(super) fn open_or_renew(&mut self, new: NewSession, is_of_entries: bool) {
        let id = new.session;
        if self.extend(id).is_some() {
            return;
        }

        let deadline = self.clock.after_ms(lease_ms(new.ttl.as_millis().into()));
        self.clock.schedule(deadline, Due::Session(id));
        let session = SessionState {
            is_of_entries,
            is_temporary: is_of_entries && self.batch.opens_temporary(id) && !Planted::MemoriesTakeSessions.is_on(),
            ..SessionState::new(new, deadline, self.clock.wall(), OpenIds::default())
        };
        self.sessions.insert(id, session);
    }

    /// Whether a session may be opened under this id, or renewed by a repeated open. Limits apart.
    pub(super) fn can_open(&self, new: &NewSession) -> Result<(), Refusal> {
        let NewSession { session: id, ttl, label, address: _, owner } = new;
        if let Some(end) = self.over(*id).or_else(|| self.sessions.ended().get(*id)) {
            return Err(Refusal::SessionEnded(end));
        }

        let is_other =
            |session: &SessionState| session.ttl != *ttl || session.label != *label || session.owner != *owner;
        if self.sessions.get(*id).is_some_and(is_other) { Err(Refusal::SessionExists) } else { Ok(()) }
    }

    /// Closes a session that lives as long as its entries, if it has none.
    pub(super) fn close_without_entries(&mut self, id: SessionId, events: &mut Vec<Event>) {
        let now = self.clock.now();
        let is_left = |session: &SessionState| session.is_of_entries && session.over(now).is_none();
        if self.sessions.get(id).is_some_and(is_left) && self.entries.first_leased(id).is_none() {
            self.end_session(id, SessionEnd::Closed, events);
        }
    }

    pub(super) fn renew_all(&mut self, ids: &[SessionId]) -> Vec<Renewal> {
        ids.iter().map(|id| self.renew(*id)).collect()
    }

    pub(super) fn renew(&mut self, id: SessionId) -> Renewal {
        let Some(ttl) = self.extend(id) else {
            return Renewal::Ended(self.how_ended(id));
        };
        let mut revoked: Vec<_> = self.revocations(id, Token(0)).take(REVOCATIONS_PER_REPLY_MAX + 1).collect();
        let more = revoked.len() > REVOCATIONS_PER_REPLY_MAX;
        revoked.truncate(REVOCATIONS_PER_REPLY_MAX);
        Renewal::Renewed { ttl, revoked, more }
    }

    /// Renews a session, and attaches it anew. A repetition does it again: its caller has the number of the last reply.
    pub(super) fn attach(&mut self, id: SessionId) -> Result<Reply, Refusal> {
        let ttl = self.extend(id).ok_or_else(|| self.ended(id))?;
        Ok(Reply::Attached(Attachment { number: self.sessions.attach(id), ttl }))
    }

    /// Gives a session its owner, who is charged for all that it has. A repeat succeeds: the first reply may have been lost. Another owner
    /// is refused: a session belongs to one client for ever.
    pub(super) fn set_owner(&mut self, id: SessionId, owner: Identity) -> Result<Reply, Refusal> {
        self.alive(id)?;
        let session = self.sessions.existing(id);
        match &session.owner {
            Some(known) if *known == owner => return Ok(Reply::OwnerSet),
            Some(_) if !Planted::OwnerReplaced.is_on() => return Err(Refusal::SessionExists),
            Some(_) | None => {}
        }

        let more = new_session_bytes(&session.label, Some(&owner)) - new_session_bytes(&session.label, None);
        self.ensure_room_in_table(more)?;
        let locks = session.grants.iter().map(|token| self.grants.existing(token).names.len() as u64).sum();
        self.sessions.set_owner(id, owner, locks);
        Ok(Reply::OwnerSet)
    }

    /// A repeated close succeeds: the first reply may have been lost. A close of an expired session is refused: its locks were lost, and
    /// the caller must be told.
    pub(super) fn close(&mut self, id: SessionId, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        match self.alive(id) {
            Ok(()) => self.end_session(id, SessionEnd::Closed, events),
            Err(Refusal::SessionEnded(SessionEnd::Closed)) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(Reply::Closed)
    }

    /// Whether a session is alive: it is in the table, did not end, and its deadline has not passed. A session that is over may stay in
    /// the table until what it held is cleared away.
    pub(super) fn alive(&self, id: SessionId) -> Result<(), Refusal> {
        if self.is_over(id) { Err(self.ended(id)) } else { Ok(()) }
    }

    pub(super) fn is_over(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_none_or(|session| session.over(self.clock.now()).is_some())
    }

    /// How a session ended that is still in the table.
    pub(super) fn over(&self, id: SessionId) -> Option<SessionEnd> {
        self.sessions.get(id)?.over(self.clock.now())
    }

    pub(super) fn ended(&self, id: SessionId) -> Refusal {
        Refusal::SessionEnded(self.how_ended(id))
    }

    pub(super) fn how_ended(&self, id: SessionId) -> SessionEnd {
        self.over(id).or_else(|| self.sessions.ended().get(id)).unwrap_or(SessionEnd::Unknown)
    }

    /// Gives a session its whole TTL again, from now, if it is alive.
    pub(super) fn extend(&mut self, id: SessionId) -> Option<Ttl> {
        let extension = self.sessions.extend(id, self.clock.now(), |ttl| lease_ms(ttl.as_millis().into()))?;
        if extension.deadline != extension.before {
            self.clock.cancel(extension.before, Due::Session(id));
            self.clock.schedule(extension.deadline, Due::Session(id));
        }
        Some(extension.ttl)
    }

    /// Ends a session for everybody, at once; clears away what it held and awaited as far as the budget goes.
    pub(super) fn end_session(&mut self, id: SessionId, end: SessionEnd, events: &mut Vec<Event>) {
        events.push(Event::SessionEnded { session: id, end });
        self.batch.spend(1);
        let deadline = self.sessions.begin_end(id, SessionEnding { end, at: self.clock.moment() });
        self.clock.cancel(deadline, Due::Session(id));
        self.clear_away(id, events);
    }

    /// Ends the session's waits and grants, and only then grants its locks to others: if the budget is enough, the session has nothing left
    /// at that time. Otherwise the rest goes to the backlog.
    pub(super) fn clear_away(&mut self, id: SessionId, events: &mut Vec<Event>) {
        let Some(SessionEnding { end, .. }) = self.sessions.existing(id).ending else { return };
        let mut freed = Vec::new();
        while !self.batch.is_spent() && self.clear_one(id, end, &mut freed, events) {}

        if self.is_cleared(id) {
            self.sessions.remove(id, end);
        } else {
            self.backlog.push(BacklogKey::Session(id));
        }
        self.hand_on(freed, events);
    }

    /// Ends one wait, grant or lease of a session that is over. Returns whether there was one.
    fn clear_one(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) -> bool {
        let first_wait = self.waits.tickets(id).next();
        if let Some(ticket) = first_wait {
            self.end_wait(ticket, WaitEnd::SessionEnded(end), freed, events);
        } else if let Some(token) = self.sessions.existing(id).grants.first() {
            self.end_grant(token, GrantEnding::with_session(end), freed, events);
        } else if let Some(key) = self.entries.first_leased(id) {
            self.end_lease(key, None, events);
        } else {
            return self.forget_one_taken(id);
        }
        true
    }

    fn is_cleared(&self, id: SessionId) -> bool {
        self.sessions.existing(id).is_idle() && self.entries.first_leased(id).is_none()
    }
}

/// How long a session lives after its last renewal, or an entry after the write that gave it this lifetime.
pub(crate) fn lease_ms(ms: u64) -> u64 {
    if Planted::EarlyExpiry.is_on() {
        ms * 3 / 4
    } else if Planted::NoExpiry.is_on() {
        u64::MAX
    } else {
        ms
    }
}
