//! What operators do: they end grants, waits and delays, drop data, and change the size of a semaphore.

use super::*;

impl Model {
    /// An operator's size ends when the lock has neither holders, waiters nor data.
    pub(super) fn forget_sizes(&mut self) {
        let resized = self.locks.iter().filter(|(_, rest)| rest.resized.is_some() && rest.data.is_none());
        let names: Vec<_> = resized.map(|(name, _)| name.clone()).collect();
        for name in names {
            if self.holders(&name).next().is_none() && self.waiters(&name).next().is_none() {
                self.locks.entry(name).or_default().resized = None;
            }
        }
    }

    pub(super) fn resize(&mut self, name: &LockName, permits: Permits) -> Result<Reply, Refusal> {
        let Some(Mode::Permit(before)) = self.mode(name) else {
            return Err(Refusal::NotSemaphore { name: name.clone() });
        };
        self.locks.entry(name.clone()).or_default().resized = Some(permits);
        self.grant_all();
        let holders = self.holders(name).count() as u64;
        let waiters = self.waiters(name).count() as u64;
        Ok(Reply::Resized { before, holders, waiters })
    }

    pub(super) fn remove_waiter(&mut self, name: &LockName, ticket: Ticket) -> Reply {
        let removed = self.lock(name).waiters.into_iter().find(|waiter| waiter.ticket == ticket);
        if removed.is_some() {
            self.leave(ticket, WaitEnd::Removed);
            self.grant_all();
        }
        Reply::WaiterRemoved(removed)
    }

    pub(super) fn lift_delay(&mut self, name: &LockName) -> Reply {
        let closed_until = self.locks.get_mut(name).and_then(|rest| rest.closed_until.take());
        self.grant_all();
        Reply::DelayLifted(closed_until.map(|until| until - self.now))
    }

    pub(super) fn drop_data(&mut self, prefix: &str, after: Option<&LockName>) -> Reply {
        let concerned = |name: &LockName| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
        let names: Vec<_> = self.locks.keys().filter(|name| concerned(name)).cloned().collect();
        let mut dropped = 0;
        for name in names {
            let held = self.holders(&name).next().is_some();
            let rest = self.locks.entry(name).or_default();
            if !held && rest.data.take().is_some() {
                rest.keep = false;
                dropped += 1;
            }
        }
        Reply::DataDropped { dropped, more_after: None }
    }

    pub(super) fn force(&mut self, force: &ForceRelease) -> Reply {
        if !self.claims(&force.name).is_empty() {
            return self.force_claim(force);
        }
        let ForceRelease { name, token: only, after, up_to, reason, now, by: _ } = force;
        let only = *only;
        let now = *now;
        let concerned = |held: &Held| {
            only.is_none_or(|token| token == held.token)
                && held.token > *after
                && up_to.is_none_or(|up_to| held.token <= up_to)
        };
        let tokens: Vec<_> =
            self.holders(name).filter(|(held, _)| concerned(held)).map(|(held, _)| held.token).collect();
        let mut forced = Vec::new();
        for token in tokens {
            let held = self.grants.iter_mut().find(|held| held.token == token).expect("it was found before");
            let session = held.session;
            let own_delay = u64::from(held.acquire.lock_delay_ms);
            let Session { label, deadline, .. } = self.sessions[&session].clone();
            let mut remaining_ms = 0;
            if now {
                self.take_back(token, reason.clone());
            } else {
                let new = held.revoked.is_none();
                let (_, at) = held.revoked.get_or_insert((reason.clone(), deadline)).clone();
                remaining_ms = at - self.now;
                if new {
                    let revocation = Revocation { token, reason: reason.clone(), remaining_ms };
                    self.events.push(Event::Revoked { session, revocation });
                }
            }
            let closed_until = self.locks.get(name).and_then(|rest| rest.closed_until).unwrap_or(0);
            let lock_delay_ms = closed_until.saturating_sub(self.now + remaining_ms).max(own_delay);
            forced.push(Forced { token, session, label, remaining_ms, lock_delay_ms });
        }
        self.grant_all();
        Reply::Forced { grants: forced, more_up_to: None }
    }

    pub(super) fn take_back(&mut self, token: Token, reason: Reason) {
        let session = self.grants.iter().find(|held| held.token == token).expect("it is held").session;
        let revocation = Revocation { token, reason: reason.clone(), remaining_ms: 0 };
        self.events.push(Event::Revoked { session, revocation });
        self.end_grant(token, End::Forced);
        let session = self.sessions.get_mut(&session).expect("a grant ends before its session");
        session.taken.insert(token, reason.clone());
        for (_, reply) in session.memory.values_mut() {
            if matches!(reply, Reply::Acquired(WaitEnd::Granted(grant)) if grant.token == token) {
                *reply = Reply::Refused(Refusal::Revoked { token, reason: reason.clone() });
            }
        }
    }
}
