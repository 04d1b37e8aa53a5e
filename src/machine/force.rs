//! An operator takes a grant back.
//!
//! The holder is told at once, and keeps the locks until it lets go or until the deadline that its session has at that moment:
//! renewals no longer extend the grant, and before that deadline a holder may rightly trust it. Only `now` does not wait, for a holder
//! that is known to be dead.

use super::*;

/// A grant that an operator took back and that its holder did not give back yet.
#[derive(Clone, Debug)]
pub(super) struct Revoked {
    pub(super) reason: Reason,
    pub(super) deadline: Stamp,
}

impl Machine {
    /// Revokes all grants of a lock, or one of them, each with all its locks. A grant that is revoked already stays so: the first
    /// reason and the earlier deadline count.
    pub(super) fn force_release(
        &mut self,
        name: &LockName,
        only: Option<Token>,
        reason: &Reason,
        now: bool,
        events: &mut Vec<Event>,
    ) -> Reply {
        let mut forced = Vec::new();
        let mut freed = Vec::new();
        for token in self.holders_to_force(name, only) {
            let session = self.grants[&token].session;
            let label = self.session_mut(session).label.clone();
            let remaining_ms = match now {
                true => {
                    self.take_back(token, reason, &mut freed, events);
                    0
                }
                false => self.revoke(token, reason, events),
            };
            forced.push(Forced { token, session, label, remaining_ms });
        }
        self.hand_on(freed, events);
        Reply::Forced(forced)
    }

    fn holders_to_force(&self, name: &LockName, only: Option<Token>) -> Vec<Token> {
        let Some(lock) = self.locks.get(name) else { return Vec::new() };
        match only {
            Some(token) => lock.holders().contains(token).then_some(token).into_iter().collect(),
            None => lock.holders().iter().collect(),
        }
    }

    /// Says how long its locks still stay closed, milliseconds.
    fn revoke(&mut self, token: Token, reason: &Reason, events: &mut Vec<Event>) -> u64 {
        let Held { session, names, .. } = self.grants[&token].clone();
        if let Some(revoked) = self.revoked.get(&(session, token)) {
            return self.remaining_ms(revoked.deadline);
        }
        let deadline = self.session_mut(session).deadline;
        self.revoked.insert((session, token), Revoked { reason: reason.clone(), deadline });
        self.due.insert((deadline, Due::Revocation(token)));
        let remaining_ms = self.remaining_ms(deadline);
        events.push(Event::Revoked { session, revocation: Revocation { token, reason: reason.clone(), remaining_ms } });
        for name in names.iter() {
            events.push(changed(name, ChangeKind::Revoked { token, session, reason: reason.clone() }));
        }
        remaining_ms
    }

    /// Ends a grant by force, and tells its holder that the locks are open.
    fn take_back(&mut self, token: Token, reason: &Reason, freed: &mut Vec<LockName>, events: &mut Vec<Event>) {
        let session = self.grants[&token].session;
        let revocation = Revocation { token, reason: reason.clone(), remaining_ms: 0 };
        events.push(Event::Revoked { session, revocation });
        self.end_grant(token, GrantEnd::Forced(reason), freed, events);
    }

    /// A revoked grant was not given back in time.
    pub(super) fn end_revocation(&mut self, token: Token, events: &mut Vec<Event>) {
        let session = self.grants[&token].session;
        let reason = self.revoked[&(session, token)].reason.clone();
        let mut freed = Vec::new();
        self.take_back(token, &reason, &mut freed, events);
        self.hand_on(freed, events);
    }

    /// The grants of a session that are revoked and not given back, in the order of their tokens.
    pub fn revocations(&self, id: SessionId) -> Vec<Revocation> {
        self.revoked
            .range((id, Token(0))..=(id, Token(u64::MAX)))
            .map(|((_, token), revoked)| Revocation {
                token: *token,
                reason: revoked.reason.clone(),
                remaining_ms: self.remaining_ms(revoked.deadline),
            })
            .collect()
    }
}
