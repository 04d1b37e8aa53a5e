//! Sessions: opened, renewed, closed, and what the end of one takes with it.

use imbl::Vector;

use super::*;

/// A client's lease on existence.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) label: Label,
    pub(super) ttl: Ttl,
    pub(super) deadline: Stamp,
    pub(super) opened: WallTime,
    /// The request ids whose replies the client may still ask for.
    pub(super) open: OpenIds,
    pub(super) grants: Tokens,
    /// What its requests were answered.
    pub(super) replies: Replies,
    /// How many waits it has.
    pub(super) waits: u32,
    /// How many grants were taken from it that it has not released yet.
    pub(super) taken: usize,
}

/// The last sessions that ended, and how: a latecomer is told why. Bounded; what is older is unknown.
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
    /// The same again renews: a client that heard no answer asks once more.
    pub(super) fn open(&mut self, id: SessionId, ttl: Ttl, label: Label) -> Result<Reply, Refusal> {
        if let Some(end) = self.ended.get(id) {
            return Err(Refusal::SessionEnded(end));
        }
        if let Some(session) = self.sessions.get(&id) {
            if session.ttl != ttl || session.label != label {
                return Err(Refusal::SessionExists);
            }
            self.extend(id);
            return Ok(Reply::Opened(ttl));
        }
        if self.sessions.len() >= self.capacity.sessions {
            return Err(Refusal::Limit(Limit::Sessions));
        }
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
                open: OpenIds::default(),
                grants: Tokens::None,
                replies: Replies::default(),
                waits: 0,
                taken: 0,
            },
        );
        Ok(Reply::Opened(ttl))
    }

    pub(super) fn renew(&mut self, id: SessionId) -> Renewal {
        match self.extend(id) {
            Some(ttl) => {
                let mut revoked: Vec<_> = self.revocations(id, Token(0)).take(REVOCATIONS_TOLD_MAX + 1).collect();
                let more = revoked.len() > REVOCATIONS_TOLD_MAX;
                revoked.truncate(REVOCATIONS_TOLD_MAX);
                Renewal::Renewed { ttl, revoked, more }
            }
            None => Renewal::Ended(self.how_ended(id)),
        }
    }

    /// To close it again is fine: the first answer may have been lost. That it expired is not: its locks were lost, and the caller
    /// must hear of it.
    pub(super) fn close(&mut self, id: SessionId, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        match self.alive(id) {
            Ok(()) => self.end_session(id, SessionEnd::Closed, events),
            Err(Refusal::SessionEnded(SessionEnd::Closed)) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(Reply::Closed)
    }

    pub(super) fn alive(&self, id: SessionId) -> Result<(), Refusal> {
        match self.sessions.contains_key(&id) {
            true => Ok(()),
            false => Err(self.ended(id)),
        }
    }

    pub(super) fn ended(&self, id: SessionId) -> Refusal {
        Refusal::SessionEnded(self.how_ended(id))
    }

    fn how_ended(&self, id: SessionId) -> SessionEnd {
        self.ended.get(id).unwrap_or(SessionEnd::Unknown)
    }

    /// Gives a session its whole TTL again, from now. `None`: there is no such session.
    fn extend(&mut self, id: SessionId) -> Option<Ttl> {
        let now = self.now.0;
        let session = self.sessions.get_mut(&id)?;
        let deadline = Stamp(now.saturating_add(lease_ms(session.ttl)));
        if deadline != session.deadline {
            self.due.remove(&(session.deadline, Due::Session(id)));
            self.due.insert((deadline, Due::Session(id)));
            session.deadline = deadline;
        }
        Some(session.ttl)
    }

    /// Ends all that the session waits for and holds, and only then hands its locks on: nothing of it is left when others are
    /// granted.
    pub(super) fn end_session(&mut self, id: SessionId, end: SessionEnd, events: &mut Vec<Event>) {
        events.push(Event::SessionEnded { session: id, end });
        let mut freed = Vec::new();
        for ticket in self.tickets_of(id) {
            self.end_wait(ticket, WaitEnd::SessionEnded(end), &mut freed, events);
        }
        let grant_end = match end {
            SessionEnd::Closed => GrantEnd::Released,
            SessionEnd::Expired | SessionEnd::Unknown => GrantEnd::Expired,
        };
        for token in self.session_mut(id).grants.clone().iter() {
            self.end_grant(token, grant_end, &mut freed, events);
        }
        self.forget_all_taken(id);
        let session = self.sessions.remove(&id).expect("only a session that is alive ends");
        self.due.remove(&(session.deadline, Due::Session(id)));
        self.ended.push(id, end);
        self.hand_on(freed, events);
    }

    pub(super) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("grants, waits and replies go with their session")
    }

    fn tickets_of(&self, id: SessionId) -> Vec<Ticket> {
        self.awaited_by.range((id, Ticket(0))..=(id, Ticket(u64::MAX))).map(|(_, ticket)| *ticket).collect()
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
