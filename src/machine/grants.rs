//! Grants: tokens issued, released, lost, and the data that their holders set.

use std::num::NonZeroU64;

use crate::{
    table::{Due, GrantNames, HeldGrant, RevokedGrant, Weight, data_bytes},
    *,
};

/// How a grant ends.
#[derive(Clone, Copy)]
pub(super) enum GrantEnding<'a> {
    /// Its holder released it.
    Released,
    /// Its session expired.
    Expired,
    /// An operator revoked it, for this reason.
    Forced(&'a Reason, Option<&'a Identity>),
}

/// A grant that was taken out of the table, and leaves its locks.
struct EndedGrant<'g> {
    token: Token,
    held: &'g HeldGrant,
    ending: GrantEnding<'g>,
    /// Its locks are in the table for this grant alone.
    leaves_nothing: bool,
}

impl GrantEnding<'_> {
    /// How a session's grants end with the session.
    pub(super) fn with_session(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Closed => Self::Released,
            SessionEnd::Expired | SessionEnd::Unknown => Self::Expired,
        }
    }

    /// The change of a lock that a grant with this end leaves.
    fn change(self, token: Token, held: &HeldGrant) -> ChangeKind {
        let HeldGrant { session, since, .. } = *held;
        let lost = |reason, by| ChangeKind::Lost { token, session, since, reason, by };
        match self {
            Self::Released => ChangeKind::Released { token, session, since },
            Self::Expired => lost(None, None),
            Self::Forced(reason, by) => lost(Some(reason.clone()), by.cloned()),
        }
    }
}

impl Machine {
    /// Grants locks under the next token. The caller has checked that all of them can be had. If they `are_new`, none of them is in the
    /// table, so they need not be looked for.
    pub(super) fn grant(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        acquire: &Acquire,
        are_new: bool,
        events: &mut Vec<Event>,
    ) -> Grant {
        let wants = acquire.wants();
        self.batch.spend(wants.len());
        let token = self.issued.issue_token();
        let weight = Weight::for_grant(wants.iter().map(|want| &want.name));
        let label = self.sessions.begin_grant(session, token, weight, wants.len());

        // Data is charged to the only holder, and the holders change.
        let has_data = |want: &Want| want.data.is_some() || !are_new && self.locks.has_data(&want.name);
        let is_charged = wants.iter().any(has_data);
        if is_charged {
            wants.iter().for_each(|want| self.refund_data(&want.name));
        }

        let mut names = Vec::with_capacity(wants.len());
        for want in wants {
            let (name, mode) = if are_new {
                (want.name.clone(), self.locks.add(&want.name, token, want.mode))
            } else {
                self.locks.add_holder(&want.name, token, want.mode)
            };
            let kind = ChangeKind::Granted { token, session, label: label.clone(), mode, ticket: None };
            events.push(lock_changed(&name, kind));
            self.set_data_on_grant(want, events);
            names.push(name);
        }

        let names = GrantNames::from(names);
        let grant = Grant { token, session, names: names.to_shared() };
        let held = HeldGrant {
            session,
            request: request.and_then(NonZeroU64::new),
            names,
            since: self.clock.wall(),
            lock_delay_ms: acquire.lock_delay_ms,
        };
        let is_known = self.grants.insert(token, held);
        assert!(!is_known, "tokens rise: a fence would admit both holders of {token:?} (M2)");
        if is_charged {
            grant.names.iter().for_each(|name| self.charge_data(name));
        }
        grant
    }

    /// The acquire that sets data decides whether it is kept; an acquire without data can still ask to keep the present data.
    fn set_data_on_grant(&mut self, want: &Want, events: &mut Vec<Event>) {
        if want.data.is_some() {
            self.set_data(&want.name, want.data.clone(), want.keep_data, events);
        } else if want.keep_data {
            self.locks.change(&want.name, |lock| lock.set_data(lock.data().cloned(), true));
        }
    }

    pub(super) fn set_data(&mut self, name: &LockName, data: Option<Data>, keep: bool, events: &mut Vec<Event>) {
        self.refund_data(name);
        let differs = self.locks.change(name, |lock| {
            let differs = lock.data() != data.as_ref();
            lock.set_data(data.clone(), keep);
            differs
        });
        self.charge_data(name);

        if differs {
            events.push(lock_changed(name, ChangeKind::Data(data)));
        }
    }

    /// Takes the data of this lock off the sum of its only holder. Call it before the lock or the holder changes; then
    /// [`Self::charge_data`].
    fn refund_data(&mut self, name: &LockName) {
        if let Some((session, weight)) = self.held_data(name) {
            self.sessions.refund(session, weight);
        }
    }

    /// Charges the lock's data to its only holder, after the change.
    fn charge_data(&mut self, name: &LockName) {
        if let Some((session, weight)) = self.held_data(name) {
            self.sessions.charge(session, weight);
        }
    }

    /// The session of a lock's only holder, and its charge for the lock's data. Returns `None` while the holder's grant is missing from the
    /// table.
    pub(super) fn held_data(&self, name: &LockName) -> Option<(SessionId, Weight)> {
        let (only, bytes) = self.locks.data_of_only_holder(name)?;
        Some((self.grants.get(only)?.session, Weight::for_held_data(bytes)))
    }

    /// Sets the data on a lock that the session holds by this token.
    pub(super) fn update(
        &mut self,
        session: SessionId,
        update: &Update,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        if let Some(revoked) = self.taken(session, update.token) {
            return Err(revoked);
        }
        let held = self.grants.get(update.token).ok_or(Refusal::NotHeld)?;
        if held.session != session || held.names.binary_search(&update.name).is_err() {
            return Err(Refusal::NotHeld);
        }

        self.ensure_room_for_data(session, &update.name, data_bytes(update.data.as_ref()))?;
        self.set_data(&update.name, update.data.clone(), update.keep_data, events);
        Ok(Reply::Updated)
    }

    /// Releases a grant by its token. A grant that was taken is refused with the reason, and then forgotten.
    pub(super) fn release(
        &mut self,
        session: SessionId,
        mut token: Token,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let owner = self.sessions.existing(session);
        if !owner.grants.contains(token) {
            // The holder of a grant that an operator revoked gets the reason once. Then the reason is dropped.
            return Err(self.forget_taken(session, token).unwrap_or(Refusal::NotHeld));
        }
        if Planted::ReleaseIgnoresToken.is_on() {
            token = owner.grants.first().unwrap_or(token);
        }

        let mut freed = Vec::new();
        self.end_grant(token, GrantEnding::Released, &mut freed, events);
        self.hand_on(freed, events);
        Ok(Reply::Released(Released::Grant))
    }

    /// Takes a grant out of the table. Does not grant its locks to waiters: awaited locks go to `freed`, so that a command that ends
    /// several grants can end all of them first.
    pub(super) fn end_grant(
        &mut self,
        token: Token,
        ending: GrantEnding<'_>,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) {
        let held = self.grants.remove(token);
        let session = held.session;
        // The usual case: there are no waiters, and only the grant keeps its locks in the table.
        let leaves_nothing = held.names.iter().all(|name| self.locks.get(name).is_some_and(|lock| lock.is_only(token)));
        // Data is charged to the only holder: that was this grant, or will be the one that is left.
        let is_charged = !leaves_nothing && held.names.iter().any(|name| self.locks.has_data(name));
        if is_charged {
            let own = |name: &LockName| self.locks.data_of_only_holder(name).filter(|(only, _)| *only == token);
            let bytes = held.names.iter().filter_map(own).map(|(_, bytes)| bytes).sum();
            self.sessions.refund(session, Weight::for_held_data(bytes));
        }

        self.sessions.end_grant(session, token, Weight::for_grant(held.names.iter()), held.names.len());
        if let Some(RevokedGrant { deadline: Some(deadline), .. }) = self.remove_revoked(session, token) {
            self.clock.cancel(deadline, Due::Revocation(token));
        }

        self.batch.spend(held.names.len());
        let ended = EndedGrant { token, held: &held, ending, leaves_nothing };
        for name in held.names.iter() {
            self.leave(name, &ended, freed, events);
            if is_charged {
                self.charge_data(name);
            }
        }
    }

    /// Removes a grant that ends from one of its locks.
    fn leave(&mut self, name: &LockName, ended: &EndedGrant<'_>, freed: &mut Vec<LockName>, events: &mut Vec<Event>) {
        let EndedGrant { token, held, ending, leaves_nothing } = *ended;
        events.push(lock_changed(name, ending.change(token, held)));

        let is_awaited = if leaves_nothing {
            self.locks.remove(name);
            false
        } else {
            self.remove_holder(name, token, events)
        };

        let is_lost = matches!(ending, GrantEnding::Expired | GrantEnding::Forced(..));
        if is_lost && held.lock_delay_ms > 0 {
            // The holder was lost when its session ended, however late the backlog reaches this lock.
            let ending = self.sessions.existing(held.session).ending;
            let at = ending.map_or(self.clock.moment(), |ending| ending.at);
            self.delay(name, Stamp(at.0.saturating_add(held.lock_delay_ms.into())), events);
        }
        if is_awaited {
            freed.push(name.clone());
        }
    }

    /// Removes a holder from a lock, and with the last one the data that was not to be kept. Returns whether others await the lock.
    fn remove_holder(&mut self, name: &LockName, token: Token, events: &mut Vec<Event>) -> bool {
        let (is_awaited, drops_data) = self.locks.change(name, |lock| {
            lock.remove_holder(token);
            let is_awaited = lock.queue_length() > 0;
            let drops_data = !lock.is_held() && lock.data().is_some() && !lock.keeps_data();
            if drops_data {
                lock.set_data(None, false);
            }
            (is_awaited, drops_data)
        });

        if drops_data {
            events.push(lock_changed(name, ChangeKind::Data(None)));
        }
        is_awaited
    }
}
