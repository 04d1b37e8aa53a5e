//! Each request takes effect once, however often it is sent.
//!
//! After RIFL (Lee et al., "Implementing linearizability at large scale and low latency", SOSP'15): a request carries an id that its
//! session chose, and the client's view of the *open* ids: those whose replies it may still ask for. The session remembers the replies to
//! open ids in the table, so they survive every change of leader, every snapshot and every restart. A retry gets the remembered reply:
//! the same token, though the grant may be over by then; the same place in the queue, or the end of that wait. A late copy whose id is no
//! longer open is refused.
//!
//! RIFL's view is one number, the lowest open id. But here a request may take hours, when it waits for a lock. It would hold that number
//! where it is, and all replies of the session since then would stay remembered, up to the limit. So a view consists of the lowest id
//! from which on all are open, and the few open ids below it ([`OpenIds`]): a long wait costs the memory of one reply.
//!
//! The session's own set of open ids is the intersection of all views that have arrived. Views arrive in any order, delayed or repeated,
//! and that is harmless:
//!
//! * The set of ids that the client needs only shrinks, if ids not chosen yet are included: a client never returns to an id that it gave
//!   up. So a view sent at any earlier time contains all ids that the client needs now, and so does the intersection of any views.
//!   However old the views are, no id is closed that is still needed.
//! * An intersection contains nothing that one of the views lacks. So an id is closed once any view without it has arrived, and stays
//!   closed: an old view that comes late opens nothing again, and a forgotten request does not run a second time.
//! * Intersections depend neither on order nor on repetition. So the final set of open ids does not depend on the network.
//!
//! An id may be open long before its request arrives, below ids that have come and gone: the request then runs for the first time, late.
//!
//! Every reply of a request that ran is remembered, "busy" and refusals included. If a refusal were forgotten, a late copy of the request
//! could be granted when the locks are free, to a client that has long moved on. A request that was refused before it ran is not
//! remembered: the session is over, its memory is full, its reply has no room in the table, or a check of this file refused it.
//!
//! Memory is bounded, which limits what a session may ask for. An acquire is refused when its session remembers
//! [`REPLIES_PER_SESSION_MAX`] replies: those of acquires that wait, mostly. Releases and updates have [`RELEASE_REPLIES_PER_SESSION_MAX`]
//! more places; otherwise a session with many waits could not release. Beyond those, an update is refused too, since it could take effect
//! twice. A release still runs, without being remembered: a grant that ended does not return, so a second run has no effect; only its
//! retry is told `not held`. The mark that an acquire was released before it arrived needs a place; without one the release is refused,
//! and has ended nothing.
//!
//! A wait whose id is closed goes on, but is not remembered: its call may still be open.
//!
//! One reply changes while it is remembered: the reply to an acquire whose grant an operator took. A client that did not receive the
//! first reply learns of the grant by its retry, and must not believe that it still holds it.

use std::num::NonZeroU64;

use crate::{
    table::{RememberedReply, remembered_acquire_bytes, remembered_update_bytes},
    *,
};

impl RememberedRequest {
    /// Shares the names with the grant, if there is one.
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
        operation: &Operation,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let Some(request) = request else {
            self.alive(session)?;
            return self.run_operation(session, None, operation, events);
        };
        let known = self.sessions.begin_request(session, self.clock.now(), &request);
        let known = known.ok_or_else(|| self.ended(session))??;
        if let Some(remembered) = known.remembered {
            return self.repeat_reply(&remembered, operation);
        }

        let most = match operation {
            Operation::Acquire(_) => self.capacity.replies_per_session,
            Operation::Release(_) | Operation::Update(_) => self.capacity.all_replies_per_session,
        };
        let has_place = known.replies < most;
        if !has_place && !matches!(operation, Operation::Release(_)) {
            return Err(Refusal::Limit(Limit::RepliesPerSession));
        }

        if self.counts_all() {
            self.ensure_room_for_reply(session, operation)?;
        }

        let reply = self.run_operation(session, Some(request.id), operation, events).unwrap_or_else(Reply::Refused);
        if has_place {
            let asked = RememberedRequest::by(operation, &reply);
            let remembered = RememberedReply { asked, reply: reply.clone() };
            self.sessions.remember(session, request.id, Arc::new(remembered));
        }
        Ok(reply)
    }

    /// Refuses a request whose reply has no room in the table: also a refusal is remembered, with the names that were asked for. A release
    /// is never refused for its bytes, and its reply has no names.
    fn ensure_room_for_reply(&self, session: SessionId, operation: &Operation) -> Result<(), Refusal> {
        let bytes = match operation {
            Operation::Acquire(acquire) => remembered_acquire_bytes(acquire),
            Operation::Update(update) => remembered_update_bytes(update),
            Operation::Release(_) => return Ok(()),
        };
        self.ensure_room_in_table(bytes)?;
        self.ensure_room_in_session(session, bytes)
    }

    /// The reply to a request that ran before. It is refused if it asks for something else now.
    fn repeat_reply(&mut self, remembered: &RememberedReply, operation: &Operation) -> Result<Reply, Refusal> {
        if !remembered.asked.is_asked_again(operation) && !Planted::ReplyToAnotherRequest.is_on() {
            return Err(Refusal::RequestReused);
        }
        // Another call waits for the same acquire now.
        if let Reply::Queued(ticket) = remembered.reply {
            self.waits.count_repeat(ticket);
        }
        Ok(remembered.reply.clone())
    }

    /// Whether the session remembers the reply to this request: to send the request again then adds nothing to the table.
    pub fn remembers(&self, session: SessionId, request: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.replies.get(request).is_some())
    }

    fn run_operation(
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

    /// Ends an acquire in whatever state it is: after this it never holds anything.
    fn release_acquire(
        &mut self,
        session: SessionId,
        request: Option<u64>,
        acquire: u64,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let asking = self.sessions.existing(session);
        asking.check_open(acquire)?;
        if request == Some(acquire) {
            return Err(Refusal::RequestReused);
        }
        let Some(remembered) = asking.replies.get(acquire).cloned() else {
            return self.abandon(session, request, acquire);
        };
        if !matches!(remembered.asked, RememberedRequest::Acquire(_) | RememberedRequest::Abandoned) {
            return Err(Refusal::RequestReused);
        }

        let mut freed = Vec::new();
        let found = if let Reply::Queued(ticket) = &remembered.reply {
            self.end_wait(*ticket, WaitEnd::Abandoned, &mut freed, events);
            Released::Wait
        } else if let Reply::Acquired(WaitEnd::Granted(grant)) = &remembered.reply
            && self.grants.contains(grant.token)
        {
            self.end_grant(grant.token, GrantEnding::Released, &mut freed, events);
            Released::Grant
        } else if let Reply::Refused(Refusal::Revoked { token, .. }) = &remembered.reply
            && let Some(revoked) = self.forget_taken(session, *token)
        {
            return Err(revoked);
        } else {
            Released::Nothing
        };

        self.hand_on(freed, events);
        Ok(Reply::Released(found))
    }

    /// Marks an acquire that has not arrived yet, so that it is refused when it does.
    fn abandon(&mut self, session: SessionId, request: Option<u64>, acquire: u64) -> Result<Reply, Refusal> {
        // The reply to this release will be remembered too.
        let replies = self.sessions.existing(session).replies.len() + usize::from(request.is_some());
        if replies >= self.capacity.all_replies_per_session {
            return Err(Refusal::Limit(Limit::RepliesPerSession));
        }

        let reply = Reply::Refused(Refusal::Abandoned);
        let remembered = RememberedReply { asked: RememberedRequest::Abandoned, reply };
        self.sessions.remember(session, acquire, Arc::new(remembered));
        Ok(Reply::Released(Released::Nothing))
    }

    /// Replaces the reply "queued" by the end of the wait, unless the client closed the id. A wait that ended with its session is
    /// forgotten, since no retry can be answered.
    pub(super) fn remember_wait_end(&mut self, session: SessionId, id: u64, end: &WaitEnd) {
        if matches!(end, WaitEnd::SessionEnded(_)) {
            self.sessions.forget_reply(session, id);
        } else {
            self.sessions.replace_reply(session, id, Reply::Acquired(end.clone()));
        }
    }

    /// An operator took the grant of this request: retries are told so.
    pub(super) fn revoke_reply(
        &mut self,
        session: SessionId,
        request: Option<NonZeroU64>,
        token: Token,
        reason: &Reason,
    ) {
        let Some(request) = request else { return };
        let reply = Reply::Refused(Refusal::Revoked { token, reason: reason.clone() });
        self.sessions.replace_reply(session, request.get(), reply);
    }
}
