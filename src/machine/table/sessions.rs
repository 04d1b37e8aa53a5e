//! The sessions of the table, and how the last ones ended.

use std::{ops::Bound, sync::Arc};

use imbl::{OrdMap, Vector};

use super::{
    ledger::{SessionLedger, Usage},
    replies::RememberedReply,
    session::{SessionEnding, SessionState},
    weights::{Charge, Weight},
};
use crate::types::*;

/// What the methods rely on that change a session.
const EXISTS: &str = "grants, waits and replies go with their session";

/// The sessions by id, with the sums over them.
#[derive(Clone, Default)]
pub(crate) struct SessionTable {
    by_id: OrdMap<SessionId, SessionState>,
    ended: EndedSessions,
    ledger: SessionLedger,
}

/// The last [`ENDED_SESSIONS_MAX`] sessions of clients that ended, so that a late request is told how. Earlier ones are unknown, and those
/// that transactions opened for their entries: no client knows their ids.
#[derive(Clone, Default)]
pub(crate) struct EndedSessions {
    order: Vector<SessionId>,
    ends: OrdMap<SessionId, SessionEnd>,
}

/// What a renewal changed.
pub(crate) struct Extension {
    pub(crate) ttl: Ttl,
    /// The deadline until now.
    pub(crate) before: Stamp,
    pub(crate) deadline: Stamp,
}

/// What a session remembers as a request arrives.
pub(crate) struct KnownRequest {
    /// The reply, if the request ran before.
    pub(crate) remembered: Option<Arc<RememberedReply>>,
    /// Number of the replies that the session remembers.
    pub(crate) replies: usize,
}

impl EndedSessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<SessionEnd> {
        self.ends.get(&id).copied()
    }

    #[cfg(debug_assertions)]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The earliest end first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, SessionEnd)> + '_ {
        self.order.iter().map(|id| (*id, self.ends[id]))
    }

    fn push(&mut self, id: SessionId, end: SessionEnd) {
        self.order.push_back(id);
        self.ends.insert(id, end);
        if self.order.len() > ENDED_SESSIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }
}

/// What can be read.
impl SessionTable {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Number of the sessions without those of temporary entries, which have a limit of their own.
    pub(crate) fn ordinary(&self) -> usize {
        self.by_id.len() - self.ledger.temporaries().count
    }

    pub(crate) fn contains(&self, id: SessionId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&SessionState> {
        self.by_id.get(&id)
    }

    /// A session that something in the table belongs to.
    pub(crate) fn existing(&self, id: SessionId) -> &SessionState {
        self.by_id.get(&id).expect(EXISTS)
    }

    /// In the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &SessionState)> {
        self.by_id.iter().map(|(id, session)| (*id, session))
    }

    /// The sessions with ids above this one; without one, all.
    pub(crate) fn after(&self, after: Option<SessionId>) -> impl Iterator<Item = (SessionId, &SessionState)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((from, Bound::Unbounded)).map(|(id, session)| (*id, session))
    }

    pub(crate) fn ended(&self) -> &EndedSessions {
        &self.ended
    }

    pub(crate) fn ledger(&self) -> &SessionLedger {
        &self.ledger
    }

    /// The sums as they follow from the sessions and these charges.
    pub(crate) fn count_ledger(&self, charges: &OrdMap<SessionId, Charge>) -> SessionLedger {
        let mut ledger = SessionLedger::default();
        for (id, session) in &self.by_id {
            ledger.recount(session, charges.get(id).copied().unwrap_or_default());
        }
        ledger
    }
}

/// What begins and ends.
impl SessionTable {
    /// Returns whether another session had this id.
    pub(crate) fn insert(&mut self, id: SessionId, session: SessionState) -> bool {
        self.ledger.open(&session);
        let before = self.by_id.insert(id, session);
        if let Some(before) = &before {
            self.ledger.close(before);
        }
        before.is_some()
    }

    /// Removes a session that has nothing left. Its client, if it has one, learns how it ended.
    pub(crate) fn remove(&mut self, id: SessionId, end: SessionEnd) {
        let session = self.by_id.remove(&id).expect(EXISTS);
        self.ledger.close(&session);
        if !session.is_of_entries {
            self.ended.push(id, end);
        }
    }

    /// Notes the end of a session that is in the table no more. Returns whether it was noted already.
    pub(crate) fn restore_ended(&mut self, id: SessionId, end: SessionEnd) -> bool {
        let is_known = self.ended.get(id).is_some();
        self.ended.push(id, end);
        is_known
    }

    /// Renews a session that is alive: it ends `lease_ms(ttl)` milliseconds from now.
    pub(crate) fn extend(&mut self, id: SessionId, now: Stamp, lease_ms: impl FnOnce(Ttl) -> u64) -> Option<Extension> {
        let session = self.by_id.get_mut(&id).filter(|session| session.over(now).is_none())?;
        let before = session.deadline;
        // Never shorter than it is: its client trusts the lease until then.
        session.deadline = Stamp(now.0.saturating_add(lease_ms(session.ttl))).max(before);
        Some(Extension { ttl: session.ttl, before, deadline: session.deadline })
    }

    /// Counts an attachment. Returns its number.
    pub(crate) fn attach(&mut self, id: SessionId) -> u64 {
        let session = self.session_mut(id);
        session.attached = session.attached.saturating_add(1);
        session.attached
    }

    /// Gives a session without an owner this one; `locks` is the number of the locks that it holds.
    pub(crate) fn set_owner(&mut self, id: SessionId, owner: Identity, locks: u64) {
        let session = self.by_id.get_mut(&id).expect(EXISTS);
        let before = session.bare_bytes();
        session.owner = Some(owner);
        self.ledger.adopt(session, before, locks);
    }

    /// A session is over, and what it has will be cleared away. Returns the deadline that it had.
    pub(crate) fn begin_end(&mut self, id: SessionId, ending: SessionEnding) -> Stamp {
        let session = self.session_mut(id);
        session.ending = Some(ending);
        session.deadline
    }

    /// Sets the charges of all sessions, and the sums.
    pub(crate) fn restore_charges(&mut self, charges: &OrdMap<SessionId, Charge>) {
        for (id, charge) in charges {
            self.session_mut(*id).charged = charge.weight.own;
        }
        self.ledger = self.count_ledger(charges);
    }

    fn session_mut(&mut self, id: SessionId) -> &mut SessionState {
        self.by_id.get_mut(&id).expect(EXISTS)
    }
}

/// What sessions hold and await.
impl SessionTable {
    /// Adds a grant; `locks` is the number of its locks. Returns the session's label.
    pub(crate) fn begin_grant(&mut self, id: SessionId, token: Token, weight: Weight, locks: usize) -> Label {
        let session = self.charged(id, weight, |usage| usage.locks += locks as u64);
        session.grants.insert(token);
        session.label.clone()
    }

    pub(crate) fn end_grant(&mut self, id: SessionId, token: Token, weight: Weight, locks: usize) {
        let session = self.refunded(id, weight, |usage| usage.locks -= locks as u64);
        session.grants.remove(token);
    }

    /// Adds a wait. Returns the session's label.
    pub(crate) fn begin_wait(&mut self, id: SessionId, weight: Weight) -> Label {
        let session = self.charged(id, weight, |usage| usage.waiters += 1);
        session.waits += 1;
        session.label.clone()
    }

    pub(crate) fn end_wait(&mut self, id: SessionId, weight: Weight) {
        let session = self.refunded(id, weight, |usage| usage.waiters -= 1);
        session.waits -= 1;
    }

    /// Counts a grant that was taken and that the session has not released yet.
    pub(crate) fn begin_taken(&mut self, id: SessionId) {
        self.session_mut(id).taken += 1;
    }

    pub(crate) fn end_taken(&mut self, id: SessionId) {
        self.session_mut(id).taken -= 1;
    }

    /// Counts a claim. Returns the session's label.
    pub(crate) fn begin_claim(&mut self, id: SessionId, is_waiting: bool) -> Label {
        let session = self.session_mut(id);
        *session.claims.get_mut(is_waiting) += 1;
        session.label.clone()
    }

    pub(crate) fn end_claim(&mut self, id: SessionId, is_waiting: bool) {
        *self.session_mut(id).claims.get_mut(is_waiting) -= 1;
    }

    /// A claim that waited is granted its lock. Returns the session's label.
    pub(crate) fn grant_claim(&mut self, id: SessionId) -> Label {
        self.end_claim(id, true);
        self.begin_claim(id, false)
    }

    /// Charges a session for new records.
    pub(crate) fn charge(&mut self, id: SessionId, weight: Weight) {
        self.charged(id, weight, |_| ());
    }

    /// Records for which a session was charged are gone.
    pub(crate) fn refund(&mut self, id: SessionId, weight: Weight) {
        self.refunded(id, weight, |_| ());
    }

    /// Charges a session, and returns it for a further change: each search for a session costs.
    fn charged(&mut self, id: SessionId, weight: Weight, change: impl FnOnce(&mut Usage)) -> &mut SessionState {
        let session = self.by_id.get_mut(&id).expect(EXISTS);
        session.charged += weight.own;
        self.ledger.add(session, weight, change);
        session
    }

    fn refunded(&mut self, id: SessionId, weight: Weight, change: impl FnOnce(&mut Usage)) -> &mut SessionState {
        let session = self.by_id.get_mut(&id).expect(EXISTS);
        session.charged -= weight.own;
        self.ledger.subtract(session, weight, change);
        session
    }
}

/// The requests of sessions, and the replies to them.
impl SessionTable {
    /// Closes the request ids that a session no longer needs, and looks for the reply to a request. Returns nothing for a session that is
    /// over or unknown, and refuses a request whose id is closed.
    pub(crate) fn begin_request(
        &mut self,
        session: SessionId,
        now: Stamp,
        request: &Request,
    ) -> Option<Result<KnownRequest, Refusal>> {
        let Request { id, open } = request;
        let asking = self.by_id.get_mut(&session).filter(|session| session.over(now).is_none())?;
        change_requests(&mut self.ledger, asking, |asking| asking.narrow(open));

        let known = || KnownRequest { remembered: asking.replies.get(*id).cloned(), replies: asking.replies.len() };
        Some(asking.check_open(*id).map(|()| known()))
    }

    /// Returns whether a reply to this request was remembered already.
    pub(crate) fn remember(&mut self, session: SessionId, request: u64, remembered: Arc<RememberedReply>) -> bool {
        self.change_replies(session, |session| session.replies.insert(request, remembered))
    }

    /// Replaces the reply to a request, if the session remembers one.
    pub(crate) fn replace_reply(&mut self, session: SessionId, request: u64, reply: Reply) {
        self.change_replies(session, |session| session.replies.replace(request, reply));
    }

    pub(crate) fn forget_reply(&mut self, session: SessionId, request: u64) {
        self.change_replies(session, |session| session.replies.forget(|id| id == request));
    }

    fn change_replies<T>(&mut self, id: SessionId, change: impl FnOnce(&mut SessionState) -> T) -> T {
        let session = self.by_id.get_mut(&id).expect(EXISTS);
        change_requests(&mut self.ledger, session, change)
    }
}

/// Changes what a session remembers of its requests, and counts the difference.
fn change_requests<T>(
    ledger: &mut SessionLedger,
    session: &mut SessionState,
    change: impl FnOnce(&mut SessionState) -> T,
) -> T {
    let before = session.request_bytes();
    let result = change(session);
    let after = session.request_bytes();
    if before != after {
        ledger.replace(session, before, after);
    }
    result
}
