//! Each request happens once, however often it is sent.
//!
//! After RIFL (Lee et al., "Implementing linearizability at large scale and low latency", SOSP'15): a request bears an id that its
//! session chose, and the lowest id whose reply the client may still ask for. The session remembers the replies from that id on, in
//! the table: so they survive every change of leader, every snapshot and every restart. A retry is answered from memory: with the same
//! token, though the grant may be over by then; with the same place in the queue, or with how that wait ended. A straggler below
//! the lowest id is refused.
//!
//! Remembered is every reply of a request that ran, "busy" and refusals included: had a refusal been forgotten, a copy of the
//! request that comes late, when the locks are free, would be granted to somebody who has long gone on. Not remembered is what was
//! refused before it ran: because the session is over, because its memory is full, and the refusals of this file itself.
//!
//! A wait below the lowest id goes on, unremembered: its call may still be open.

use std::ops::RangeInclusive;

use super::*;

/// A reply, and to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Remembered {
    pub(super) asked: Asked,
    pub(super) reply: Reply,
}

/// What a remembered request asked for, as far as needed to tell a retry from another request under the same id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// An acquire of these locks, in order.
    Acquire(Arc<[LockName]>),
    /// A release.
    Release(Target),
    /// An update by this token, of this lock.
    Update(Token, LockName),
    /// An acquire that was released before it arrived.
    Abandoned,
}

impl Asked {
    /// The names are shared with the grant, where there is one.
    fn by(operation: &Operation, reply: &Reply) -> Self {
        match (operation, reply) {
            (Operation::Acquire(_), Reply::Acquired(WaitEnd::Granted(grant))) => Self::Acquire(grant.names.clone()),
            (Operation::Acquire(acquire), _) => {
                Self::Acquire(acquire.wants().iter().map(|want| want.name.clone()).collect())
            }
            (Operation::Release(target), _) => Self::Release(*target),
            (Operation::Update(update), _) => Self::Update(update.token, update.name.clone()),
        }
    }

    fn is_asked_again(&self, operation: &Operation) -> bool {
        match (self, operation) {
            (Self::Acquire(names), Operation::Acquire(acquire)) => {
                names.iter().eq(acquire.wants().iter().map(|want| &want.name))
            }
            (Self::Release(asked), Operation::Release(target)) => asked == target,
            (Self::Update(token, name), Operation::Update(update)) => *token == update.token && *name == update.name,
            (Self::Abandoned, Operation::Acquire(_)) => true,
            (Self::Acquire(_) | Self::Release(_) | Self::Update(..) | Self::Abandoned, _) => false,
        }
    }
}

impl Machine {
    /// Runs a session's request, unless it ran before.
    pub(super) fn request(
        &mut self,
        session: SessionId,
        request: Option<Request>,
        operation: Operation,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        self.alive(session)?;
        let Some(Request { id, lowest }) = request else { return self.run(session, None, &operation, events) };
        self.raise_lowest(session, lowest);
        let Session { lowest, replies, .. } = *self.session_mut(session);
        if id < lowest {
            return Err(Refusal::RequestStale { lowest });
        }
        if let Some(remembered) = self.replies.get(&(session, id)) {
            return match remembered.asked.is_asked_again(&operation) {
                true => Ok(remembered.reply.clone()),
                false => Err(Refusal::RequestReused),
            };
        }
        if replies as usize >= self.capacity.replies_per_session {
            return Err(Refusal::Limit(Limit::RepliesPerSession));
        }
        let reply = self.run(session, Some(id), &operation, events).unwrap_or_else(Reply::Refused);
        self.remember(session, id, Asked::by(&operation, &reply), reply.clone());
        Ok(reply)
    }

    fn run(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        operation: &Operation,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        match operation {
            Operation::Acquire(acquire) => self.acquire(session, request, acquire, events),
            Operation::Release(Target::Grant(token)) => self.release(session, *token, events),
            Operation::Release(Target::Acquire(id)) => self.release_acquire(session, request, *id, events),
            Operation::Update(update) => self.update(session, update, events),
        }
    }

    /// Takes an acquire back, whatever became of it: after this it never holds anything.
    fn release_acquire(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        acquire: u64,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let lowest = self.session_mut(session).lowest;
        if acquire < lowest {
            return Err(Refusal::RequestStale { lowest });
        }
        if request == Some(acquire) {
            return Err(Refusal::RequestReused);
        }
        let Some(remembered) = self.replies.get(&(session, acquire)).cloned() else {
            return self.abandon(session, request, acquire);
        };
        if !matches!(remembered.asked, Asked::Acquire(_) | Asked::Abandoned) {
            return Err(Refusal::RequestReused);
        }
        let mut freed = Vec::new();
        let found = if let Reply::Queued(ticket) = &remembered.reply {
            self.end_wait(*ticket, WaitEnd::Abandoned, &mut freed, events);
            Released::Wait
        } else if let Reply::Acquired(WaitEnd::Granted(grant)) = &remembered.reply
            && self.grants.contains_key(&grant.token)
        {
            self.end_grant(grant.token, GrantEnd::Released, &mut freed, events);
            Released::Grant
        } else {
            Released::Nothing
        };
        self.hand_on(freed, events);
        Ok(Reply::Released(found))
    }

    /// Marks an acquire that did not arrive yet.
    fn abandon(&mut self, session: SessionId, request: Option<u64>, acquire: u64) -> Result<Reply, Refusal> {
        // The reply to this very release will be remembered too.
        let replies = self.session_mut(session).replies as usize + usize::from(request.is_some());
        if replies >= self.capacity.replies_per_session {
            return Err(Refusal::Limit(Limit::RepliesPerSession));
        }
        self.remember(session, acquire, Asked::Abandoned, Reply::Refused(Refusal::Abandoned));
        Ok(Reply::Released(Released::Nothing))
    }

    fn remember(&mut self, session: SessionId, id: u64, asked: Asked, reply: Reply) {
        if self.replies.insert((session, id), Arc::new(Remembered { asked, reply })).is_none() {
            self.session_mut(session).replies += 1;
        }
    }

    /// The end of a wait takes the place of "queued", unless the client no longer cares for it.
    pub(super) fn remember_wait_end(&mut self, session: SessionId, id: u64, end: &WaitEnd) {
        if let Some(remembered) = self.replies.get_mut(&(session, id)) {
            Arc::make_mut(remembered).reply = Reply::Acquired(end.clone());
        }
    }

    fn raise_lowest(&mut self, session: SessionId, lowest: u64) {
        let before = self.session_mut(session).lowest;
        if lowest > before {
            self.forget(session, before..=lowest - 1);
            self.session_mut(session).lowest = lowest;
        }
    }

    pub(super) fn forget(&mut self, session: SessionId, ids: RangeInclusive<u64>) {
        let range = (session, *ids.start())..=(session, *ids.end());
        let forgotten: Vec<_> = self.replies.range(range).map(|(key, _)| *key).collect();
        for key in &forgotten {
            self.replies.remove(key);
        }
        self.session_mut(session).replies -= forgotten.len() as u32;
    }
}
