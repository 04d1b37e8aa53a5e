//! Grants: tokens issued, released, lost, and the data that their holders set.

use std::num::NonZeroU64;

use super::{bytes::of_lock, *};

/// A grant that is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) session: SessionId,
    /// The request that it was granted to, whose reply may be remembered. Not part of a record: it follows from the reply.
    pub(super) request: Option<NonZeroU64>,
    /// Sorted. The mode is stored with each lock.
    pub(super) names: Names,
    pub(super) since: WallTime,
    pub(super) lock_delay_ms: u32,
}

/// How a grant ends.
#[derive(Clone, Copy)]
pub(super) enum GrantEnd<'a> {
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
    held: &'g Held,
    end: GrantEnd<'g>,
    /// Its locks are in the table for this grant alone.
    leaves_nothing: bool,
}

impl GrantEnd<'_> {
    /// How a session's grants end with the session.
    pub(super) fn of_session(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Closed => Self::Released,
            SessionEnd::Expired | SessionEnd::Unknown => Self::Expired,
        }
    }
}

impl Machine {
    /// The next number from the counter that grants and writes of the keyspace share.
    pub(super) fn issue_token(&mut self) -> Token {
        let last = self.last_token.0;
        self.last_token = Token(last.checked_add(1).expect("2^64 grants take longer than any cluster exists"));
        self.last_token
    }

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
        self.spend(acquire.wants().len());
        let token = self.issue_token();
        let weight = Weight::of_grant(acquire.wants().iter().map(|want| &want.name));
        let label = self.add_with(session, weight, |owner| {
            owner.grants.insert(token);
            owner.label.clone()
        });

        let has_data = |want: &Want| want.data.is_some() || !are_new && self.has_data(&want.name);
        let is_charged = acquire.wants().iter().any(has_data);
        if is_charged {
            acquire.wants().iter().for_each(|want| self.uncharge_data(&want.name));
        }

        let mut names = Vec::with_capacity(acquire.wants().len());
        for want in acquire.wants() {
            let (name, mode) = if are_new {
                (want.name.clone(), self.add_lock(&want.name, token, want.mode))
            } else {
                self.add_holder(&want.name, token, want.mode)
            };
            let kind = ChangeKind::Granted { token, session, label: label.clone(), mode, ticket: None };
            events.push(changed(&name, kind));
            self.set_data_on_grant(want, events);
            names.push(name);
        }

        let names = Names::from(names);
        let grant = Grant { token, session, names: names.to_shared() };
        self.count(session, |usage| usage.locks += names.len() as u64);
        let held = Held {
            session,
            request: request.and_then(NonZeroU64::new),
            names,
            since: self.wall,
            lock_delay_ms: acquire.lock_delay_ms,
        };
        let same = self.grants.insert(token, held);
        assert!(same.is_none(), "tokens rise: a fence would admit both holders of {token:?} (M2)");
        if is_charged {
            grant.names.iter().for_each(|name| self.charge_data(name));
        }
        grant
    }

    /// Returns the interned name, so that the grant shares the table's allocation; and the mode in which the lock is held.
    pub(super) fn add_holder(&mut self, name: &LockName, token: Token, mode: Mode) -> (LockName, Mode) {
        let known = self.locks.get_key_value(name).map(|(name, _)| name.clone());
        match known {
            Some(name) => {
                let mode = self.change(&name, |lock| lock.add_holder(token, mode));
                (name, mode)
            }
            None => (name.clone(), self.add_lock(name, token, mode)),
        }
    }

    /// Adds a lock that is not in the table, with its first holder. Returns the mode in which it is held.
    fn add_lock(&mut self, name: &LockName, token: Token, mode: Mode) -> Mode {
        let mut lock = Lock::default();
        let mode = lock.add_holder(token, mode);
        self.bytes += of_lock(name, &lock);
        let same = self.locks.insert(name.clone(), lock);
        assert!(same.is_none(), "the lock {name} was taken for a new one, and its holders would be forgotten (M1)");
        mode
    }

    /// The acquire that sets data decides whether it is kept; an acquire without data can still ask to keep the present data.
    fn set_data_on_grant(&mut self, want: &Want, events: &mut Vec<Event>) {
        match &want.data {
            Some(data) => self.set_data(&want.name, Some(data.clone()), want.keep_data, events),
            None if want.keep_data => self.change(&want.name, |lock| lock.set_data(lock.data().cloned(), true)),
            None => {}
        }
    }

    pub(super) fn set_data(&mut self, name: &LockName, data: Option<Data>, keep: bool, events: &mut Vec<Event>) {
        self.uncharge_data(name);
        let differs = self.change(name, |lock| {
            let differs = lock.data() != data.as_ref();
            lock.set_data(data.clone(), keep);
            differs
        });
        self.charge_data(name);
        if differs {
            events.push(changed(name, ChangeKind::Data(data)));
        }
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
        let held = self.grants.get(&update.token).ok_or(Refusal::NotHeld)?;
        if held.session != session || held.names.binary_search(&update.name).is_err() {
            return Err(Refusal::NotHeld);
        }
        self.ensure_room_for_data(session, &update.name, update.data.as_ref())?;
        self.set_data(&update.name, update.data.clone(), update.keep_data, events);
        Ok(Reply::Updated)
    }

    /// Releases a grant by its token. A grant that was taken is refused with the reason, and then forgotten.
    pub(super) fn release(
        &mut self,
        session: SessionId,
        token: Token,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        if !self.sessions[&session].grants.contains(token) {
            return Err(self.forget_taken(session, token).unwrap_or(Refusal::NotHeld));
        }
        let token = match Planted::ReleaseIgnoresToken.is_on() {
            true => self.session_mut(session).grants.iter().next().unwrap_or(token),
            false => token,
        };
        let mut freed = Vec::new();
        self.end_grant(token, GrantEnd::Released, &mut freed, events);
        self.hand_on(freed, events);
        Ok(Reply::Released(Released::Grant))
    }

    /// Takes a grant out of the table. Does not hand on its locks: those that are awaited go to `freed`, so that a command that ends
    /// several grants can end all of them first.
    pub(super) fn end_grant(
        &mut self,
        token: Token,
        end: GrantEnd<'_>,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) {
        let held = self.grants.remove(&token).expect("only a grant that is held ends");
        // The usual case: nobody waits, and nothing but the grant keeps its locks in the table.
        let leaves_nothing = held.names.iter().all(|name| self.locks.get(name).is_some_and(|lock| lock.is_only(token)));
        let is_charged = !leaves_nothing && held.names.iter().any(|name| self.has_data(name));
        if is_charged {
            // The charge of data is found by the grant.
            self.grants.insert(token, held.clone());
            held.names.iter().for_each(|name| self.uncharge_data(name));
            self.grants.remove(&token);
        }

        self.subtract_with(held.session, Weight::of_grant(held.names.iter()), |owner| owner.grants.remove(token));
        self.count(held.session, |usage| usage.locks -= held.names.len() as u64);
        if let Some(Revoked { deadline: Some(deadline), .. }) = self.remove_revoked(held.session, token) {
            self.due.remove(&(deadline, Due::Revocation(token)));
        }
        self.spend(held.names.len());
        let ended = EndedGrant { token, held: &held, end, leaves_nothing };
        for name in held.names.iter() {
            self.leave(name, &ended, freed, events);
            if is_charged {
                self.charge_data(name);
            }
        }
    }

    /// Removes a grant that ends from one of its locks.
    fn leave(&mut self, name: &LockName, ended: &EndedGrant<'_>, freed: &mut Vec<LockName>, events: &mut Vec<Event>) {
        let EndedGrant { token, held, end, leaves_nothing } = *ended;
        let Held { session, since, .. } = *held;
        events.push(changed(
            name,
            match end {
                GrantEnd::Released => ChangeKind::Released { token, session, since },
                GrantEnd::Expired => ChangeKind::Lost { token, session, since, reason: None, by: None },
                GrantEnd::Forced(reason, by) => {
                    ChangeKind::Lost { token, session, since, reason: Some(reason.clone()), by: by.cloned() }
                }
            },
        ));
        let mut awaited = false;
        if leaves_nothing {
            self.remove_lock(name);
        } else {
            let drop_data = self.change(name, |lock| {
                lock.remove_holder(token);
                awaited = lock.queue_length() > 0;
                let drop_data = !lock.is_held() && lock.data().is_some() && !lock.keeps_data();
                if drop_data {
                    lock.set_data(None, false);
                }
                drop_data
            });
            if drop_data {
                events.push(changed(name, ChangeKind::Data(None)));
            }
        }

        let lost = matches!(end, GrantEnd::Expired | GrantEnd::Forced(..));
        if lost && held.lock_delay_ms > 0 {
            // The holder was lost when its session ended, however late the backlog reaches this lock.
            let at = self.session_mut(session).ending.map_or(self.moment, |ending| ending.at);
            self.delay(name, Stamp(at.0.saturating_add(held.lock_delay_ms.into())), events);
        }
        if awaited {
            freed.push(name.clone());
        }
    }
}
