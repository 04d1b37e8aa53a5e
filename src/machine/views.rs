//! Views for people and for waiters. Nothing here changes the table.

use std::ops::Bound;

use crate::{
    table::{ActiveLock, SessionState},
    *,
};

impl Machine {
    /// A lock with one page of its holders and waiters. A free lock is an empty view.
    pub fn lock(&self, name: &LockName, page: Page) -> LockView {
        if let Some(view) = self.claimed_lock(name, page) {
            return view;
        }

        let free = ActiveLock::default();
        let lock = self.locks.get(name).unwrap_or(&free);
        let holders = lock.holders().after(page.holders_after).take(page.size);
        let waiters = lock.waiters_after(page.waiters_after).take(page.size);
        LockView {
            name: name.clone(),
            kind: LockKind::Lock,
            mode: lock.mode(),
            holders: holders.map(|token| self.shown_holder(lock, token)).collect(),
            holder_count: lock.holders().len() as u64,
            waiters: waiters.map(|(ticket, mode)| self.waiter_view(ticket, mode)).collect(),
            queue_length: lock.queue_length() as u64,
            data: lock.data().cloned(),
            keep_data: lock.keeps_data(),
            delay_remaining_ms: self.delay_remaining_ms(lock),
            resized: lock.resized().is_some(),
        }
    }

    /// The same of a lock with at most `most` holders and waiters together, so that the caller does not hold up others for long. There is
    /// no view of a lock that has more, or that entries claim.
    pub fn lock_of_few(&self, name: &LockName, page: Page, most: usize) -> Option<LockView> {
        let is_small = match self.locks.get(name) {
            Some(lock) => lock.holders().len() + lock.queue_length() <= most,
            None => !self.is_claimed(name),
        };
        is_small.then(|| self.lock(name, page))
    }

    /// The names in use under a prefix, sorted, above `after`: of locks, and of those that entries claim.
    pub fn locks<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        let mut locks = self.table_locks(prefix, after).peekable();
        let mut claimed = self.claims.names_under(prefix, after).peekable();
        // No name is in both.
        std::iter::from_fn(move || match (locks.peek(), claimed.peek()) {
            (Some(lock), Some(other)) if other < lock => claimed.next(),
            (Some(_), _) => locks.next(),
            (None, _) => claimed.next(),
        })
    }

    /// The same, of the table of locks alone.
    pub(super) fn table_locks<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        let after = after.map(LockName::as_str).filter(|after| *after >= prefix);
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        self.locks.names_from(from).take_while(move |name| name.as_str().starts_with(prefix))
    }

    /// The holder of the lock with this token, if there is one.
    pub fn holder(&self, name: &LockName, token: Token) -> Option<HolderView> {
        let Some(lock) = self.locks.get(name) else {
            return self.claim_holder(name).filter(|holder| holder.token == token);
        };
        lock.holders().contains(token).then(|| self.shown_holder(lock, token))
    }

    /// A session that is alive.
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        self.sessions.get(id).filter(|_| !self.is_over(id)).map(|session| self.session_view(id, session))
    }

    /// Whether a session is in the table: alive, or over and not cleared away yet.
    pub fn has_session(&self, id: SessionId) -> bool {
        self.sessions.contains(id)
    }

    /// How often a session that is alive was attached.
    pub fn attached(&self, id: SessionId) -> Option<u64> {
        self.sessions.get(id).filter(|_| !self.is_over(id)).map(|session| session.attached)
    }

    /// The owner of a session that is in the table, alive or being cleared away: `Some(None)` if it has none.
    pub fn owner(&self, id: SessionId) -> Option<Option<&Identity>> {
        self.sessions.get(id).map(|session| session.owner.as_ref())
    }

    /// How a session ended, unless it is alive.
    pub fn session_end(&self, id: SessionId) -> Option<SessionEnd> {
        self.is_over(id).then(|| self.how_ended(id))
    }

    /// The sessions that are alive, in the order of their ids, above `after`.
    pub fn sessions(&self, after: Option<SessionId>) -> impl Iterator<Item = SessionView> + '_ {
        self.sessions_up_to(after, None)
    }

    /// The same up to `last`, included. None above that is looked at, so the view of a single session costs the same however many there
    /// are, whether it is alive or not.
    pub fn sessions_up_to(
        &self,
        after: Option<SessionId>,
        last: Option<SessionId>,
    ) -> impl Iterator<Item = SessionView> + '_ {
        let within = move |(id, _): &(SessionId, &SessionState)| last.is_none_or(|last| *id <= last);
        let alive = |(_, session): &(SessionId, &SessionState)| session.over(self.clock.now()).is_none();
        self.sessions.after(after).take_while(within).filter(alive).map(|(id, session)| self.session_view(id, session))
    }

    /// The grants of a session above this token, in the order of their tokens. Locks that its entries claim are not among them.
    pub fn grants_of(&self, session: SessionId, after: Token) -> impl Iterator<Item = GrantView> + '_ {
        let tokens = self.sessions.get(session).into_iter().flat_map(move |session| session.grants.after(after));
        tokens.map(|token| {
            let held = self.grants.existing(token);
            let revoked = self.grants.revoked(held.session, token).map(|revoked| revoked.reason.clone());
            GrantView { token, since: held.since, names: held.names.to_vec(), revoked }
        })
    }

    /// The waits of a session, in the order of arrival. Entries that wait are not among them.
    pub fn waits_of(&self, session: SessionId) -> impl Iterator<Item = WaitView> + '_ {
        self.waits.tickets(session).map(|ticket| {
            let waiting = self.waits.existing(ticket);
            let names = waiting.acquire.wants().iter().map(|want| want.name.clone()).collect();
            WaitView { ticket, since: waiting.since, names }
        })
    }

    /// Whether a session is over while some of its locks, waits or entries are not yet cleared away.
    pub fn is_clearing_away(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|session| session.ending.is_some())
    }

    /// The acquires that wait, in the order of arrival.
    pub fn waits(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.waits.iter().map(|(ticket, _)| ticket)
    }

    /// The waits whose requests have no id, so that clients cannot repeat them.
    pub fn waits_without_request(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.waits.iter().filter(|(_, waiting)| waiting.request.is_none()).map(|(ticket, _)| ticket)
    }

    /// The locks that an acquire wants, if it still waits.
    pub fn wanted_by(&self, ticket: Ticket) -> Option<&[Want]> {
        self.waits.get(ticket).map(|waiting| waiting.acquire.wants())
    }

    /// The acquires that wait, in the order of arrival, each with the locks that it wants.
    pub fn queued(&self) -> impl Iterator<Item = (Ticket, &[Want])> {
        self.waits.iter().map(|(ticket, waiting)| (ticket, waiting.acquire.wants()))
    }

    /// The sizes of the tables.
    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.sessions.len(),
            locks: self.locks.len() + self.claims.names(),
            waiters: self.waits.len() + self.claims.waiting(),
            grants: self.grants.len() + self.claims.held(),
            entries: self.entries.len(),
        }
    }

    /// The description of a lock for a client whose acquire is refused.
    pub(super) fn busy(&self, name: &LockName) -> Busy {
        let free = ActiveLock::default();
        let lock = self.locks.get(name).unwrap_or(&free);
        Busy {
            name: name.clone(),
            holder: lock.holders().iter().next().map(|token| self.holder_view(lock, token)),
            queue_length: lock.queue_length() as u64,
            delay_remaining_ms: self.delay_remaining_ms(lock),
        }
    }

    fn delay_remaining_ms(&self, lock: &ActiveLock) -> u64 {
        lock.closed_until().max(self.closed_until()).map_or(0, |until| self.clock.remaining_ms(until))
    }

    /// The holder in the reply to an acquire that it blocks: without the client behind it. The table remembers that reply, and may read it
    /// back from a snapshot, so it holds what a snapshot's record holds.
    fn holder_view(&self, lock: &ActiveLock, token: Token) -> HolderView {
        let held = self.grants.existing(token);
        let session = self.sessions.existing(held.session);

        // The holder may trust the lock until the earlier of two deadlines; until none, once its session is being cleared away.
        let revoked = self.grants.revoked(held.session, token);
        let revoked_until = revoked.and_then(|revoked| revoked.deadline);
        let deadline = revoked_until.map_or(session.deadline, |until| until.min(session.deadline));
        let remaining_ms = if session.ending.is_some() { 0 } else { self.clock.remaining_ms(deadline) };

        HolderView {
            token,
            session: held.session,
            label: session.label.clone(),
            mode: lock.mode().expect("a lock that is held is held in some way"),
            since: held.since,
            remaining_ms,
            revoked: revoked.map(|revoked| revoked.reason.clone()),
            origin: HolderOrigin::default(),
        }
    }

    /// The holder with the client behind it.
    fn shown_holder(&self, lock: &ActiveLock, token: Token) -> HolderView {
        let holder = self.holder_view(lock, token);
        HolderView { origin: self.origin(holder.session), ..holder }
    }

    /// The client behind a holder, if its session is in the table: a claim with a deadline has none.
    pub(super) fn origin(&self, id: SessionId) -> HolderOrigin {
        let session = self.sessions.get(id).map(|session| self.session_view(id, session));
        session.map_or_else(HolderOrigin::default, HolderOrigin::from)
    }

    pub(super) fn waiter_view(&self, ticket: Ticket, mode: Mode) -> WaiterView {
        let waiting = self.waits.existing(ticket);
        WaiterView {
            ticket,
            session: waiting.session,
            label: self.sessions.existing(waiting.session).label.clone(),
            mode,
            since: waiting.since,
            remaining_ms: waiting.deadline.map(|deadline| self.clock.remaining_ms(deadline)),
        }
    }

    fn session_view(&self, id: SessionId, session: &SessionState) -> SessionView {
        SessionView {
            session: id,
            label: session.label.clone(),
            ttl: session.ttl,
            remaining_ms: self.clock.remaining_ms(session.deadline),
            opened: session.opened,
            grants: session.grants.len() as u32 + session.claims.held,
            waits: session.waits + session.claims.waiting,
            address: session.address,
            owner: session.owner.clone(),
            bytes: session.bytes() as u64,
        }
    }
}
