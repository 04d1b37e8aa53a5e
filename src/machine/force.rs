//! An operator revokes a grant.
//!
//! The holder is told at once, and keeps the locks until it releases them or until the deadline that its session has at that moment.
//! Renewals no longer extend the grant; until that deadline the holder may rightly trust it. Only `now` does not wait, for a holder that
//! is known to be dead.
//!
//! A grant is *taken* once it is revoked by `now` or its deadline has passed: it is over, and its locks are open. An entry with the
//! reason stays with the session, and every renewal reports it, until the session releases the token or ends. The event that tells the
//! holder at once may be lost with the leader; without the entry the holder would trust its lock for as long as it renews its session.
//!
//! An entry of the keyspace that holds a lock loses it at once, with or without `now`, since its client cannot be told: see `claims`.
//!
//! An entry takes less memory than the grant did. A session that holds a million permits can lose a million; but a session with
//! [`TAKEN_PER_SESSION_MAX`] unreleased entries is granted nothing more, so it cannot lose a million again and again.

use crate::{
    table::{ActiveLock, Due, HeldGrant, RevokedGrant, Weight},
    *,
};

impl Machine {
    /// Revokes all grants of a lock, or one of them, each with all its locks. A grant that is revoked already keeps its first reason and
    /// its earlier deadline. Of many grants, revokes as many as the budget allows.
    pub(super) fn force_release(&mut self, force: &ForceRelease, events: &mut Vec<Event>) -> Reply {
        if self.is_claimed(&force.name) {
            return Reply::Forced { grants: self.force_claim(force, events).into_iter().collect(), more_up_to: None };
        }

        let mut grants = Vec::new();
        let mut freed = Vec::new();
        // Fixed before waiters are granted: their new tokens are not meant.
        let up_to = force.up_to.unwrap_or(self.last_token());
        let mut next = self.next_to_force(force, force.after, up_to);
        while !self.batch.is_spent()
            && let Some(token) = next
        {
            grants.push(self.force_one(force, token, &mut freed, events));
            next = self.next_to_force(force, token, up_to);
        }
        self.hand_on(freed, events);
        Reply::Forced { grants, more_up_to: next.map(|_| up_to) }
    }

    fn force_one(
        &mut self,
        force: &ForceRelease,
        token: Token,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) -> Forced {
        let HeldGrant { session, lock_delay_ms, .. } = *self.grants.existing(token);
        let label = self.sessions.existing(session).label.clone();
        let over = self.over(session);
        let remaining_ms = if let Some(end) = over {
            // The session was being cleared away already.
            self.end_grant(token, GrantEnding::with_session(end), freed, events);
            0
        } else if force.now {
            self.take_back(token, &force.reason, force.by.as_ref(), freed, events);
            0
        } else {
            self.revoke(token, force, events)
        };

        let own_ms = if over.is_some() { 0 } else { lock_delay_ms.into() };
        let lock_delay_ms = self.delayed_ms(&force.name, self.clock.after_ms(remaining_ms)).max(own_ms);
        Forced { token, session, label, remaining_ms, lock_delay_ms }
    }

    /// How long a lock stays closed after `from`, by lock-delays of grants that were lost earlier.
    fn delayed_ms(&self, name: &LockName, from: Stamp) -> u64 {
        let until = self.locks.get(name).and_then(ActiveLock::closed_until);
        until.map_or(0, |until| until.0.saturating_sub(from.0))
    }

    /// The first grant above `after` and up to `up_to` that the command revokes.
    fn next_to_force(&self, force: &ForceRelease, after: Token, up_to: Token) -> Option<Token> {
        let holders = self.locks.get(&force.name)?.holders();
        let next = match force.token {
            Some(token) => holders.contains(token).then_some(token).filter(|token| *token > after),
            None => holders.after(after).next(),
        };
        next.filter(|token| *token <= up_to)
    }

    /// Revokes one grant. Returns how long its locks still stay closed, milliseconds.
    fn revoke(&mut self, token: Token, force: &ForceRelease, events: &mut Vec<Event>) -> u64 {
        let ForceRelease { reason, by, .. } = force;
        let HeldGrant { session, names, .. } = self.grants.existing(token).clone();
        if let Some(deadline) = self.grants.revoked(session, token).and_then(|revoked| revoked.deadline) {
            if self.counts_all() {
                self.batch.spend(1);
            }
            return self.clock.remaining_ms(deadline);
        }

        let deadline = self.sessions.existing(session).deadline;
        let revoked = RevokedGrant { reason: reason.clone(), by: by.clone(), deadline: Some(deadline) };
        self.insert_revoked(session, token, revoked);
        self.clock.schedule(deadline, Due::Revocation(token));
        self.batch.spend(names.len());

        let remaining_ms = self.clock.remaining_ms(deadline);
        events.push(Event::Revoked { session, revocation: Revocation { token, reason: reason.clone(), remaining_ms } });
        for name in names.iter() {
            let kind = ChangeKind::Revoked { token, session, reason: reason.clone(), by: by.clone() };
            events.push(lock_changed(name, kind));
        }
        remaining_ms
    }

    /// Ends a grant by force. Tells its holder that the locks are open: at once, and on renewals until the holder releases the token.
    fn take_back(
        &mut self,
        token: Token,
        reason: &Reason,
        by: Option<&Identity>,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) {
        let HeldGrant { session, request, .. } = *self.grants.existing(token);
        let revocation = Revocation { token, reason: reason.clone(), remaining_ms: 0 };
        events.push(Event::Revoked { session, revocation });
        self.end_grant(token, GrantEnding::Forced(reason, by), freed, events);

        if !Planted::RevocationNotKept.is_on() {
            self.insert_revoked(session, token, RevokedGrant { reason: reason.clone(), by: None, deadline: None });
            self.sessions.begin_taken(session);
            self.revoke_reply(session, request, token, reason);
        }
    }

    fn insert_revoked(&mut self, session: SessionId, token: Token, revoked: RevokedGrant) {
        self.sessions.charge(session, Weight::for_revoked(&revoked.reason, revoked.by.as_ref()));
        self.grants.insert_revoked(session, token, revoked);
    }

    pub(super) fn remove_revoked(&mut self, session: SessionId, token: Token) -> Option<RevokedGrant> {
        let revoked = self.grants.remove_revoked(session, token)?;
        self.sessions.refund(session, Weight::for_revoked(&revoked.reason, revoked.by.as_ref()));
        Some(revoked)
    }

    /// Forgets a grant that was taken from the session, if the token is one: the session knows of it now.
    pub(super) fn forget_taken(&mut self, session: SessionId, token: Token) -> Option<Refusal> {
        let refusal = self.taken(session, token)?;
        self.remove_revoked(session, token);
        self.sessions.end_taken(session);
        Some(refusal)
    }

    /// The refusal for a grant that was taken from the session, if the token is one.
    pub(super) fn taken(&self, session: SessionId, token: Token) -> Option<Refusal> {
        let revoked = self.grants.revoked(session, token).filter(|revoked| revoked.deadline.is_none())?;
        Some(Refusal::Revoked { token, reason: revoked.reason.clone() })
    }

    /// Forgets one of the grants that were taken from a session that is over. Returns whether there was one.
    pub(super) fn forget_one_taken(&mut self, session: SessionId) -> bool {
        let first = self.revocations(session, Token(0)).map(|revocation| revocation.token).next();
        let Some(token) = first else { return false };
        self.batch.spend(1);
        self.forget_taken(session, token).is_some()
    }

    /// The deadline of a revoked grant has passed.
    pub(super) fn end_revocation(&mut self, token: Token, events: &mut Vec<Event>) {
        let session = self.grants.existing(token).session;
        let mut freed = Vec::new();
        if let Some(end) = self.over(session) {
            // The session ended before, and the grant with it.
            self.end_grant(token, GrantEnding::with_session(end), &mut freed, events);
        } else {
            let revoked =
                self.grants.revoked(session, token).expect("each deadline of a revocation is one of the table");
            let RevokedGrant { reason, by, .. } = revoked.clone();
            self.take_back(token, &reason, by.as_ref(), &mut freed, events);
        }
        self.hand_on(freed, events);
    }

    /// The session's grants that are revoked or taken and not released yet, with tokens above `after`, in order.
    pub fn revocations(&self, id: SessionId, after: Token) -> impl Iterator<Item = Revocation> + '_ {
        let from = Token(after.0.saturating_add(1));
        self.grants.revoked_from(id, from).map(|(token, revoked)| Revocation {
            token,
            reason: revoked.reason.clone(),
            remaining_ms: revoked.deadline.map_or(0, |deadline| self.clock.remaining_ms(deadline)),
        })
    }
}
