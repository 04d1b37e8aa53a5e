//! Sessions: opened, renewed, closed, and what ends with a session.

use imbl::Vector;

use super::{bytes::of_new_session, *};

/// A client's lease.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) label: Label,
    pub(super) ttl: Ttl,
    pub(super) deadline: Stamp,
    pub(super) opened: WallTime,
    /// The address from which it was opened. Not part of the hash.
    pub(super) address: Option<Address>,
    /// The client that it belongs to. It never changes.
    pub(super) owner: Option<Identity>,
    /// It is closed when the last entry leaves it.
    pub(super) is_of_entries: bool,
    /// It was opened for a temporary entry, and counts for the limit of these.
    pub(super) is_temporary: bool,
    /// The request ids whose replies the client may still ask for.
    pub(super) open: OpenIds,
    pub(super) grants: Tokens,
    /// The replies to its requests.
    pub(super) replies: Replies,
    /// Number of its waits.
    pub(super) waits: u32,
    /// Number of grants that were taken from it and that it has not released yet.
    pub(super) taken: usize,
    /// Number of its entries that claim a lock.
    pub(super) claims: Claimed,
    /// `Some`: it ended, and some of what it held or awaited is not cleared away yet.
    pub(super) ending: Option<Ending>,
    /// Bytes of its grants and waits, and of data on locks that it alone holds.
    pub(super) charged: usize,
}

/// The last [`ENDED_SESSIONS_MAX`] sessions of clients that ended, so that a late request is told how. Earlier ones are unknown, and those
/// that transactions opened for their entries: no client knows their ids.
#[derive(Clone, Default)]
pub(super) struct Ended {
    order: Vector<SessionId>,
    ends: OrdMap<SessionId, SessionEnd>,
}

impl Ended {
    pub(super) fn get(&self, id: SessionId) -> Option<SessionEnd> {
        self.ends.get(&id).copied()
    }

    #[cfg(debug_assertions)]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The earliest end first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, SessionEnd)> + '_ {
        self.order.iter().map(|id| (*id, self.ends[id]))
    }

    pub(super) fn push(&mut self, id: SessionId, end: SessionEnd) {
        self.order.push_back(id);
        self.ends.insert(id, end);
        if self.order.len() > ENDED_SESSIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }
}

impl Machine {
    /// Opens a session. A repeat with the same TTL and label renews it: the first reply may have been lost. The repeat may come from
    /// another address, never from another owner.
    pub(super) fn open(&mut self, new: NewSession) -> Result<Reply, Refusal> {
        self.can_open(&new)?;
        let ttl = new.ttl;
        if !self.sessions.contains_key(&new.session) {
            if self.sessions.len() - self.temporaries.sessions >= self.capacity.sessions {
                return Err(Refusal::Limit(Limit::Sessions));
            }
            self.ensure_room(None, of_new_session(&new.label, new.owner.as_ref()))?;
        }
        self.open_or_renew(new, false);
        Ok(Reply::Opened(ttl))
    }

    /// Opens a session, or renews the one that is alive under this id. The caller has judged that it may.
    pub(super) fn open_or_renew(&mut self, new: NewSession, is_of_entries: bool) {
        let NewSession { session: id, ttl, label, address, owner } = new;
        if self.extend(id).is_some() {
            return;
        }
        let is_temporary = is_of_entries && self.opening_temporaries.contains(&id);
        let deadline = self.after_ms(lease_ms(ttl));
        self.due.insert((deadline, Due::Session(id)));
        let opened = self.wall;
        self.sessions.insert(
            id,
            Session {
                label,
                ttl,
                deadline,
                opened,
                address,
                owner,
                is_of_entries,
                is_temporary,
                open: OpenIds::default(),
                grants: Tokens::None,
                replies: Replies::default(),
                waits: 0,
                taken: 0,
                claims: Claimed::default(),
                ending: None,
                charged: 0,
            },
        );
        self.count_session(id);
    }

    /// Whether a session may be opened under this id, or renewed by a repeated open. Limits apart.
    pub(super) fn can_open(&self, new: &NewSession) -> Result<(), Refusal> {
        let NewSession { session: id, ttl, label, address: _, owner } = new;
        if let Some(end) = self.over(*id).or_else(|| self.ended.get(*id)) {
            return Err(Refusal::SessionEnded(end));
        }
        match self.sessions.get(id) {
            Some(session) if session.ttl != *ttl || session.label != *label || session.owner != *owner => {
                Err(Refusal::SessionExists)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Closes a session that lives as long as its entries, if it has none.
    pub(super) fn close_without_entries(&mut self, id: SessionId, events: &mut Vec<Event>) {
        let is_left = |session: &Session| session.is_of_entries && session.over(self.now).is_none();
        if self.sessions.get(&id).is_some_and(is_left) && self.first_leased(id).is_none() {
            self.end_session(id, SessionEnd::Closed, events);
        }
    }

    pub(super) fn renew_all(&mut self, ids: &[SessionId]) -> Vec<Renewal> {
        ids.iter().map(|id| self.renew(*id)).collect()
    }

    pub(super) fn renew(&mut self, id: SessionId) -> Renewal {
        match self.extend(id) {
            Some(ttl) => {
                let mut revoked: Vec<_> = self.revocations(id, Token(0)).take(REVOCATIONS_PER_REPLY_MAX + 1).collect();
                let more = revoked.len() > REVOCATIONS_PER_REPLY_MAX;
                revoked.truncate(REVOCATIONS_PER_REPLY_MAX);
                Renewal::Renewed { ttl, revoked, more }
            }
            None => Renewal::Ended(self.how_ended(id)),
        }
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
        match self.is_over(id) {
            false => Ok(()),
            true => Err(self.ended(id)),
        }
    }

    pub(super) fn is_over(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_none_or(|session| session.over(self.now).is_some())
    }

    /// How a session ended that is still in the table.
    pub(super) fn over(&self, id: SessionId) -> Option<SessionEnd> {
        self.sessions.get(&id)?.over(self.now)
    }

    pub(super) fn ended(&self, id: SessionId) -> Refusal {
        Refusal::SessionEnded(self.how_ended(id))
    }

    fn how_ended(&self, id: SessionId) -> SessionEnd {
        self.over(id).or_else(|| self.ended.get(id)).unwrap_or(SessionEnd::Unknown)
    }

    /// Gives a session its whole TTL again, from now. `None`: there is no such session.
    pub(super) fn extend(&mut self, id: SessionId) -> Option<Ttl> {
        let now = self.now.0;
        let session = self.sessions.get_mut(&id).filter(|session| session.over(self.now).is_none())?;
        // Never shorter than it is: its client trusts the lease until then.
        let deadline = Stamp(now.saturating_add(lease_ms(session.ttl))).max(session.deadline);
        if deadline != session.deadline {
            self.due.remove(&(session.deadline, Due::Session(id)));
            self.due.insert((deadline, Due::Session(id)));
            session.deadline = deadline;
        }
        Some(session.ttl)
    }

    /// Ends a session for everybody, at once; clears away what it held and awaited as far as the budget goes.
    pub(super) fn end_session(&mut self, id: SessionId, end: SessionEnd, events: &mut Vec<Event>) {
        events.push(Event::SessionEnded { session: id, end });
        self.spend(1);
        let at = self.moment;
        let session = self.session_mut(id);
        session.ending = Some(Ending { end, at });
        let deadline = session.deadline;
        self.due.remove(&(deadline, Due::Session(id)));
        self.clear_away(id, events);
    }

    /// Ends the session's waits and grants, and only then hands on its locks: if the budget suffices, nothing of it is left when others
    /// are granted. Otherwise the rest goes to the backlog.
    pub(super) fn clear_away(&mut self, id: SessionId, events: &mut Vec<Event>) {
        let Some(Ending { end, .. }) = self.session_mut(id).ending else { return };
        let mut freed = Vec::new();
        while !self.is_spent() && self.clear_one(id, end, &mut freed, events) {}
        match self.is_cleared(id) {
            true => {
                let session = self.sessions.remove(&id).expect("it was looked at just now");
                self.uncount_session(&session);
                if !session.is_of_entries {
                    self.ended.push(id, end);
                }
            }
            false => _ = self.backlog.push(Piece::Session(id)),
        }
        self.hand_on(freed, events);
    }

    /// Ends one wait, grant or lease of a session that is over. `false`: none is left.
    fn clear_one(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) -> bool {
        if let Some(ticket) = self.first_ticket_of(id) {
            self.end_wait(ticket, WaitEnd::SessionEnded(end), freed, events);
        } else if let Some(token) = self.session_mut(id).grants.first() {
            self.end_grant(token, GrantEnd::of_session(end), freed, events);
        } else if let Some(key) = self.first_leased(id) {
            self.end_lease(key, None, events);
        } else {
            return self.forget_one_taken(id);
        }
        true
    }

    fn is_cleared(&self, id: SessionId) -> bool {
        self.sessions[&id].is_idle() && self.first_leased(id).is_none()
    }

    pub(super) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("grants, waits and replies go with their session")
    }

    fn first_ticket_of(&self, id: SessionId) -> Option<Ticket> {
        self.awaited_by.range((id, Ticket(0))..=(id, Ticket(u64::MAX))).map(|(_, ticket)| *ticket).next()
    }
}

impl Session {
    /// Whether it holds and awaits nothing, apart from entries.
    pub(super) fn is_idle(&self) -> bool {
        self.waits == 0 && self.grants.len() == 0 && self.taken == 0
    }

    /// How the session ended, if it had ended by this time.
    pub(super) fn over(&self, now: Stamp) -> Option<SessionEnd> {
        let expired = (self.deadline <= now).then_some(SessionEnd::Expired);
        self.ending.map(|ending| ending.end).or(expired)
    }
}

/// How long a session lives after its last renewal.
fn lease_ms(ttl: Ttl) -> u64 {
    let ms = u64::from(ttl.as_millis());
    match (Planted::EarlyExpiry.is_on(), Planted::NoExpiry.is_on()) {
        (false, false) => ms,
        (true, _) => ms * 3 / 4,
        (false, true) => u64::MAX,
    }
}
