//! Who holds a lock, who waits for it, and who gets it next.

use super::*;

impl Model {
    pub(super) fn update(&mut self, id: SessionId, update: &Update) -> Result<Reply, Refusal> {
        let holds = |held: &Held| held.token == update.token && held.session == id;
        let not_held = self.not_held(id, update.token);
        let held = self.grants.iter().find(|held| holds(held)).ok_or(not_held)?;
        mode_of(&held.acquire, &update.name).ok_or(Refusal::NotHeld)?;
        let rest = self.locks.entry(update.name.clone()).or_default();
        rest.data = update.data.clone();
        rest.keep = update.keep_data && update.data.is_some();
        Ok(Reply::Updated)
    }

    pub(super) fn acquire(&mut self, id: SessionId, request: Option<u64>, acquire: &Acquire) -> Result<Reply, Refusal> {
        for want in acquire.wants() {
            if !self.claims(&want.name).is_empty() {
                return Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: None });
            }
            if want.must_exist && !self.exists(&want.name) {
                return Err(Refusal::LockUnknown { name: want.name.clone() });
            }
            if let Some(used) = self.mode(&want.name)
                && used.permits() != self.as_used(&want.name, want.mode).permits()
            {
                return Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: used.permits() });
            }
        }
        // The acquire as the last in every queue.
        let deadline = match (self.obstacle(acquire, Ticket(u64::MAX)), acquire.wait) {
            (None, _) => return Ok(Reply::Acquired(WaitEnd::Granted(self.grant(id, acquire)))),
            (Some(name), Wait::Never) => return Ok(Reply::Busy(self.busy(&name))),
            (Some(_), Wait::Millis(ms)) => Some(self.now + ms),
            (Some(_), Wait::Forever) => None,
        };
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let acquire = acquire.clone();
        let since = self.wall;
        self.waits.push(Waiting { ticket, session: id, request, acquire, deadline, since, repeats: 0 });
        Ok(Reply::Queued(ticket))
    }

    /// The first lock that blocks an acquire with this place in the queue.
    pub(super) fn obstacle(&self, acquire: &Acquire, ticket: Ticket) -> Option<LockName> {
        let blocked = |want: &&Want| {
            let waits_ahead = |other: &Waiting| other.ticket < ticket && mode_of(&other.acquire, &want.name).is_some();
            let holders = self.holders(&want.name).count();
            let admits =
                match (self.as_used(&want.name, want.mode), self.holders(&want.name).next().map(|(_, mode)| mode)) {
                    (_, None) => true,
                    (Mode::Shared, Some(mode)) => mode == Mode::Shared,
                    (Mode::Exclusive, Some(_)) => false,
                    (Mode::Permit(permits), Some(_)) => holders < permits.get() as usize,
                };
            self.waits.iter().any(waits_ahead) || self.rest(&want.name).closed_until.is_some() || !admits
        };
        acquire.wants().iter().find(blocked).map(|want| want.name.clone())
    }

    pub(super) fn holders(&self, name: &LockName) -> impl Iterator<Item = (&Held, Mode)> {
        self.grants.iter().filter_map(move |held| Some((held, self.as_used(name, mode_of(&held.acquire, name)?))))
    }

    pub(super) fn waiters(&self, name: &LockName) -> impl Iterator<Item = (&Waiting, Mode)> {
        let mode = move |waiting: &Waiting| Some(self.as_used(name, mode_of(&waiting.acquire, name)?));
        self.waits.iter().filter_map(move |waiting| Some((waiting, mode(waiting)?)))
    }

    pub(super) fn mode(&self, name: &LockName) -> Option<Mode> {
        let used = self.holders(name).map(|(_, mode)| mode).chain(self.waiters(name).map(|(_, mode)| mode)).next();
        used.or_else(|| self.rest(name).resized.map(Mode::Permit))
    }

    /// Permits are of the operator's size, if there is one.
    pub(super) fn as_used(&self, name: &LockName, mode: Mode) -> Mode {
        let resized = self.locks.get(name).and_then(|rest| rest.resized).filter(|_| mode.permits().is_some());
        resized.map_or(mode, Mode::Permit)
    }

    pub(super) fn rest(&self, name: &LockName) -> Rest {
        self.locks.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn grant(&mut self, session: SessionId, acquire: &Acquire) -> Grant {
        self.last_token += 1;
        let token = Token(self.last_token);
        for want in acquire.wants() {
            let rest = self.locks.entry(want.name.clone()).or_default();
            let sets = want.data.is_some();
            rest.data = want.data.clone().or(rest.data.clone());
            rest.keep = rest.data.is_some() && (want.keep_data || rest.keep && !sets);
        }
        self.grants.push(Held { token, session, acquire: acquire.clone(), since: self.wall, revoked: None });
        Grant { token, session, names: acquire.wants().iter().map(|want| want.name.clone()).collect() }
    }

    /// Grants the lowest ticket that can be granted, until there is none.
    pub(super) fn grant_all(&mut self) {
        let ready = |model: &Self, waiting: &Waiting| {
            let alive = model.sessions.get(&waiting.session).is_some_and(|session| session.deadline > model.now);
            alive && model.obstacle(&waiting.acquire, waiting.ticket).is_none()
        };
        while let Some(at) = self.waits.iter().position(|waiting| ready(self, waiting)) {
            let waiting = self.waits.remove(at);
            let grant = self.grant(waiting.session, &waiting.acquire);
            self.end_wait(&waiting, WaitEnd::Granted(grant));
        }
    }

    pub(super) fn end_wait(&mut self, waiting: &Waiting, end: WaitEnd) {
        let session = self.sessions.get_mut(&waiting.session).expect("waits end before their session");
        if let Some((_, reply)) = waiting.request.and_then(|request| session.memory.get_mut(&request)) {
            *reply = Reply::Acquired(end.clone());
        }
        self.events.push(Event::WaitEnded { ticket: waiting.ticket, end });
    }

    pub(super) fn leave(&mut self, ticket: Ticket, end: WaitEnd) -> bool {
        let Some(at) = self.waits.iter().position(|waiting| waiting.ticket == ticket) else { return false };
        let waiting = self.waits.remove(at);
        self.end_wait(&waiting, end);
        true
    }

    pub(super) fn cancel(&mut self, ticket: Ticket, repeats: Option<u64>) -> Reply {
        let came = self.waits.iter().find(|waiting| waiting.ticket == ticket).map(|waiting| waiting.repeats);
        let came_back = repeats.is_some() && repeats != came;
        let waited = !came_back && self.leave(ticket, WaitEnd::Cancelled);
        self.grant_all();
        Reply::WaitCancelled(waited)
    }

    pub(super) fn end_grant(&mut self, token: Token, end: End) {
        let at = self.grants.iter().position(|held| held.token == token).expect("only a held grant ends");
        let held = self.grants.remove(at);
        let lost = matches!(end, End::Expired | End::Forced);
        for want in held.acquire.wants() {
            let free = self.holders(&want.name).next().is_none();
            let closed =
                (lost && held.acquire.lock_delay_ms > 0).then(|| self.now + u64::from(held.acquire.lock_delay_ms));
            let rest = self.locks.entry(want.name.clone()).or_default();
            rest.closed_until = rest.closed_until.max(closed);
            if free && !rest.keep {
                rest.data = None;
            }
        }
    }
}
