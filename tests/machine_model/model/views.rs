//! The views that the machine must show too.

use super::*;

impl Model {
    pub(crate) fn last_token(&self) -> u64 {
        self.last_token
    }

    pub(super) fn busy(&self, name: &LockName) -> Busy {
        let view = self.lock(name);
        Busy {
            name: name.clone(),
            holder: view.holders.first().map(|holder| HolderView { origin: HolderOrigin::default(), ..holder.clone() }),
            queue_length: view.queue_length,
            delay_remaining_ms: view.delay_remaining_ms,
        }
    }

    pub(super) fn origin(&self, session: SessionId) -> HolderOrigin {
        HolderOrigin { address: self.sessions.get(&session).and_then(|session| session.address) }
    }

    pub(crate) fn lock(&self, name: &LockName) -> LockView {
        if !self.claims(name).is_empty() {
            return self.lock_of_entries(name);
        }
        let holder = |(held, mode): (&Held, Mode)| {
            let session = &self.sessions[&held.session];
            let until = held.revoked.as_ref().map_or(session.deadline, |(_, at)| session.deadline.min(*at));
            HolderView {
                token: held.token,
                session: held.session,
                label: session.label.clone(),
                mode,
                since: held.since,
                remaining_ms: until.saturating_sub(self.now),
                revoked: held.revoked.as_ref().map(|(reason, _)| reason.clone()),
                origin: self.origin(held.session),
            }
        };
        let waiter = |(waiting, mode): (&Waiting, Mode)| WaiterView {
            ticket: waiting.ticket,
            session: waiting.session,
            label: self.sessions[&waiting.session].label.clone(),
            mode,
            since: waiting.since,
            remaining_ms: waiting.deadline.map(|deadline| deadline - self.now),
        };
        let rest = self.rest(name);
        LockView {
            name: name.clone(),
            kind: LockKind::Lock,
            mode: self.mode(name),
            holders: self.holders(name).map(holder).collect(),
            holder_count: self.holders(name).count() as u64,
            waiters: self.waiters(name).map(waiter).collect(),
            queue_length: self.waiters(name).count() as u64,
            data: rest.data,
            keep_data: rest.keep,
            delay_remaining_ms: rest.closed_until.map_or(0, |until| until - self.now),
            resized: rest.resized.is_some(),
        }
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.get(&id)?;
        Some(SessionView {
            session: id,
            label: session.label.clone(),
            ttl: session.ttl,
            remaining_ms: session.deadline - self.now,
            opened: session.opened,
            address: session.address,
            owner: session.owner.clone(),
            grants: self.grants.iter().filter(|held| held.session == id).count() as u32 + self.claimed(id, true),
            waits: self.waits.iter().filter(|waiting| waiting.session == id).count() as u32 + self.claimed(id, false),
            bytes: 0,
        })
    }

    /// Names in use, in order.
    pub(crate) fn names(&self, all: &[LockName]) -> Vec<LockName> {
        all.iter().filter(|name| self.exists(name) || !self.claims(name).is_empty()).cloned().collect()
    }

    pub(super) fn exists(&self, name: &LockName) -> bool {
        self.mode(name).is_some() || self.rest(name) != Rest::default()
    }
}
