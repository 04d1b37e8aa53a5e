//! Acquires: granted, refused or queued, and the next waiter.
//!
//! A waiter has a ticket, in the order of arrival, and stands in the queue of each lock that it wants. It is granted when it is first in
//! all of them and every lock admits it. The lowest ticket of all is first everywhere, so only holders can block it: acquires of several
//! locks cannot deadlock among themselves. The price is that a waiter for two locks keeps others from the one that is free. No acquire
//! overtakes: neither one that does not wait, nor a reader behind a writer.

use crate::{
    table::{ActiveLock, Due, WaitingAcquire, Weight},
    *,
};

/// The state of the locks that an acquire wants.
struct AcquireSurvey {
    /// The first lock that cannot be had now.
    obstacle: Option<LockName>,
    /// How many of the locks are not in the table yet.
    new_locks: usize,
}

impl Machine {
    pub(super) fn acquire(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        acquire: &Acquire,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let owner = self.sessions.existing(session);
        if owner.taken >= self.capacity.taken_per_session {
            return Err(Refusal::Limit(Limit::TakenPerSession));
        }
        let survey = self.survey(acquire)?;
        // Check this before the limits: an acquire that does not wait and gets nothing takes no room, so it is answered also in a full
        // table.
        if let (Some(name), Wait::Never) = (&survey.obstacle, acquire.wait) {
            return Ok(Reply::Busy(self.busy(name)));
        }

        if self.locks.len() + survey.new_locks > self.capacity.locks {
            return Err(Refusal::Limit(Limit::Locks));
        }
        // Each wait may become a grant, and the limit is not checked again then.
        if owner.grants.len() + owner.waits as usize >= self.batch.limits().grants_per_session {
            return Err(Refusal::Limit(Limit::GrantsPerSession));
        }
        self.ensure_room_for_acquire(owner, acquire)?;
        if survey.obstacle.is_none() {
            let are_new = survey.new_locks == acquire.wants().len();
            return Ok(Reply::Acquired(WaitEnd::Granted(self.grant(session, request, acquire, are_new, events))));
        }

        if self.waits.len() >= self.capacity.waiters {
            return Err(Refusal::Limit(Limit::Waiters));
        }
        // Counted also without request ids: the end of a session ends all its waits at once.
        if owner.waits as usize >= self.capacity.waits_per_session {
            return Err(Refusal::Limit(Limit::WaitsPerSession));
        }
        Ok(Reply::Queued(self.enqueue(session, request, acquire.clone(), events)))
    }

    /// Looks at each lock that an acquire wants. Refuses what could never be granted.
    fn survey(&self, acquire: &Acquire) -> Result<AcquireSurvey, Refusal> {
        let mut survey = AcquireSurvey { obstacle: None, new_locks: 0 };
        let is_closed = self.closed_until().is_some();
        for want in acquire.wants() {
            let is_blocked = if let Some(lock) = self.locks.get(&want.name) {
                check_mode(lock, want)?;
                let is_awaited = lock.queue_length() > 0 && !Planted::ReaderOvertakes.is_on();
                is_closed || is_awaited || !lock.admits(want.mode)
            } else {
                self.check_absent(want)?;
                survey.new_locks += 1;
                is_closed
            };

            if is_blocked && survey.obstacle.is_none() {
                survey.obstacle = Some(want.name.clone());
            }
        }
        Ok(survey)
    }

    /// Refuses a lock that is not in the table, if it must be there, or may not.
    fn check_absent(&self, want: &Want) -> Result<(), Refusal> {
        // The service reserves the names that adapters claim. What passes it all the same must not hold a lock beside an entry.
        if self.is_claimed(&want.name) {
            return Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: None });
        }
        if want.must_exist { Err(Refusal::LockUnknown { name: want.name.clone() }) } else { Ok(()) }
    }

    fn enqueue(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        acquire: Acquire,
        events: &mut Vec<Event>,
    ) -> Ticket {
        let ticket = self.issued.issue_ticket();
        let label = self.sessions.begin_wait(session, Weight::for_wait(&acquire));
        for want in acquire.wants() {
            let mode = self.locks.change(&want.name, |lock| lock.add_waiter(ticket, want.mode));
            let kind = ChangeKind::Queued { ticket, session, label: label.clone(), mode };
            events.push(lock_changed(&want.name, kind));
            // So a restored cluster grants it when its time has come, within the budget, as after any lock-delay.
            if let Some(until) = self.closed_until() {
                self.delay(&want.name, until, events);
            }
        }

        let deadline = match acquire.wait {
            Wait::Never | Wait::Forever => None,
            Wait::Millis(ms) => Some(self.clock.after_ms(ms)),
        };
        if let Some(deadline) = deadline {
            self.clock.schedule(deadline, Due::Wait(ticket));
        }
        let since = self.clock.wall();
        self.waits.insert(ticket, WaitingAcquire { session, request, acquire, deadline, since, repeats: 0 });
        ticket
    }

    /// Takes a wait out of the table and its queues. Grants nothing yet: the locks that others still await go to `freed`.
    fn dequeue(&mut self, ticket: Ticket, freed: &mut Vec<LockName>) -> WaitingAcquire {
        let waiting = self.waits.remove(ticket);
        self.sessions.end_wait(waiting.session, Weight::for_wait(&waiting.acquire));
        if let Some(deadline) = waiting.deadline {
            self.clock.cancel(deadline, Due::Wait(ticket));
        }
        self.batch.spend(waiting.acquire.wants().len());

        for want in waiting.acquire.wants() {
            let is_awaited = self.locks.change(&want.name, |lock| {
                lock.remove_waiter(ticket);
                lock.queue_length() > 0
            });
            if is_awaited {
                freed.push(want.name.clone());
            } else {
                // There is no grant left to make, and a lock that leaves the table must not be in the backlog (M6).
                self.backlog.remove_lock(&want.name);
            }
        }
        waiting
    }

    /// Ends a wait other than by a grant or by its own time limit.
    pub(super) fn end_wait(
        &mut self,
        ticket: Ticket,
        end: WaitEnd,
        freed: &mut Vec<LockName>,
        events: &mut Vec<Event>,
    ) {
        let waiting = self.dequeue(ticket, freed);
        self.report_left(ticket, &waiting, end, events);
    }

    /// The time limit of a wait has passed. The obstacle is found before the wait leaves the queue; its report counts the queue
    /// afterwards.
    pub(super) fn time_out(&mut self, ticket: Ticket, events: &mut Vec<Event>) {
        let mut freed = Vec::new();
        if let Some(end) = self.over(self.waits.existing(ticket).session) {
            self.end_wait(ticket, WaitEnd::SessionEnded(end), &mut freed, events);
            return self.hand_on(freed, events);
        }
        let Some(obstacle) = self.obstacle(ticket).cloned() else {
            // One of its locks is in the backlog: it is granted as it would have been with a larger budget.
            return self.grant_waiters(BTreeSet::from([ticket]), events);
        };

        let waiting = self.dequeue(ticket, &mut freed);
        let busy = self.busy(&obstacle);
        self.report_left(ticket, &waiting, WaitEnd::TimedOut(busy), events);
        self.hand_on(freed, events);
    }

    /// How often the request of a wait was repeated, if there is one.
    pub fn repeats(&self, ticket: Ticket) -> Option<u64> {
        self.waits.get(ticket).map(|waiting| waiting.repeats)
    }

    /// Ends a wait whose call broke off. A wait that is over keeps its end: a grant stays with its session. A wait goes on if its request
    /// was repeated since `repeats` was read.
    pub(super) fn cancel_wait(&mut self, ticket: Ticket, repeats: Option<u64>, events: &mut Vec<Event>) -> Reply {
        let waits = self.repeats(ticket).is_some_and(|came| repeats.is_none_or(|seen| seen == came));
        if waits {
            let mut freed = Vec::new();
            self.end_wait(ticket, WaitEnd::Cancelled, &mut freed, events);
            self.hand_on(freed, events);
        }
        Reply::WaitCancelled(waits)
    }

    fn report_left(&mut self, ticket: Ticket, waiting: &WaitingAcquire, end: WaitEnd, events: &mut Vec<Event>) {
        let session = waiting.session;
        for want in waiting.acquire.wants() {
            events.push(lock_changed(&want.name, ChangeKind::Left { ticket, session }));
            self.forget_closed(&want.name, events);
        }
        self.report_wait_end(ticket, waiting, end, events);
    }

    /// Removes a lock that a restored cluster keeps closed, if it has no waiter and no other state.
    fn forget_closed(&mut self, name: &LockName, events: &mut Vec<Event>) {
        let until = self.closed_until();
        let is_left = |lock: &ActiveLock| {
            lock.closed_until() == until && !lock.is_held() && lock.queue_length() == 0 && lock.data().is_none()
        };
        if until.is_some() && self.locks.get(name).is_some_and(is_left) {
            self.end_delay(name, events);
        }
    }

    fn report_wait_end(&mut self, ticket: Ticket, waiting: &WaitingAcquire, end: WaitEnd, events: &mut Vec<Event>) {
        if let Some(request) = waiting.request {
            self.remember_wait_end(waiting.session, request, &end);
        }
        events.push(Event::WaitEnded { ticket, end });
    }

    /// Grants the waiters that can be granted now that these locks changed: the lowest ticket first, several where their modes allow it.
    /// At most as many as the budget allows; the others are granted later.
    pub(super) fn hand_on(&mut self, freed: Vec<LockName>, events: &mut Vec<Event>) {
        let candidates = freed.iter().filter_map(|name| self.first_waiter(name)).collect();
        self.grant_waiters(candidates, events);
    }

    fn grant_waiters(&mut self, mut candidates: BTreeSet<Ticket>, events: &mut Vec<Event>) {
        while !self.batch.is_spent()
            && let Some(ticket) = candidates.pop_first()
        {
            self.batch.spend(1);
            // The session ends in this batch or is being cleared away; its end moves the queue on.
            let is_over = self.waits.get(ticket).is_some_and(|waiting| self.is_over(waiting.session));
            if is_over || self.obstacle(ticket).is_some() {
                continue;
            }

            // Granted before it leaves its queues: a semaphore whose only waiter leaves would be out of use, and forget its size.
            let before = events.len();
            let WaitingAcquire { session, request, acquire, .. } = self.waits.existing(ticket).clone();
            let grant = self.grant(session, request, &acquire, false, events);
            set_ticket(&mut events[before..], ticket);

            let mut next = Vec::new();
            let waiting = self.dequeue(ticket, &mut next);
            self.report_wait_end(ticket, &waiting, WaitEnd::Granted(grant), events);
            candidates.extend(next.iter().filter_map(|name| self.first_waiter(name)));
        }
        candidates.into_iter().for_each(|ticket| self.hand_on_later(ticket));
    }

    fn first_waiter(&self, name: &LockName) -> Option<Ticket> {
        self.locks.get(name)?.first_waiter()
    }

    /// The first lock that blocks a waiter.
    pub(super) fn obstacle(&self, ticket: Ticket) -> Option<&LockName> {
        let blocks = |want: &&Want| {
            let lock = self.locks.existing(&want.name);
            lock.first_waiter() != Some(ticket) || !lock.admits(want.mode)
        };
        self.waits.get(ticket)?.acquire.wants().iter().find(blocks).map(|want| &want.name)
    }
}

/// Refuses an acquire that would use a lock in another way than its holders and waiters do.
fn check_mode(lock: &ActiveLock, want: &Want) -> Result<(), Refusal> {
    let Some(mode) = lock.mode() else { return Ok(()) };
    if mode.permits() == lock.as_used(want.mode).permits() {
        return Ok(());
    }
    Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: mode.permits() })
}

/// Sets the ticket of the wait that a grant ended, for clients that watch the queue.
fn set_ticket(events: &mut [Event], ticket: Ticket) {
    for event in events {
        if let Event::Changed(Change { kind: ChangeKind::Granted { ticket: ended, .. }, .. }) = event {
            *ended = Some(ticket);
        }
    }
}
