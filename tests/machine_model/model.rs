//! A second implementation of the machine, as plain as possible: lists that are searched from the start, time that passes millisecond by
//! millisecond, and no state that could be computed. It is slow, and easy to verify by reading.
//!
//! It predicts the reply to a command and the waits and sessions that end; changes of single locks are checked against its views.

mod keyspace;
mod operators;
mod queue;
mod views;

use std::collections::BTreeMap;

use lockkeeper::machine::*;

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    version: Version,
    pub(crate) now: u64,
    wall: WallTime,
    last_token: u64,
    last_ticket: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    ended: Vec<(SessionId, SessionEnd)>,
    pub(crate) grants: Vec<Held>,
    pub(crate) waits: Vec<Waiting>,
    locks: BTreeMap<LockName, Rest>,
    pub(crate) entries: BTreeMap<Key, Entry>,
    /// What `entries` was from each revision on.
    states: BTreeMap<u64, BTreeMap<Key, Entry>>,
    pub(crate) compacted: u64,
    /// The reply to the last command, and the waits and sessions that it ended.
    pub(crate) reply: Option<Reply>,
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    label: Label,
    ttl: Ttl,
    deadline: u64,
    opened: WallTime,
    address: Option<Address>,
    owner: Option<Identity>,
    /// A transaction opened it, and it is closed when no entry has it as its lease any more.
    is_of_entries: bool,
    attached: u64,
    /// The open ids that each request named. An id is open if all of them name it.
    pub(crate) views: Vec<OpenIds>,
    pub(crate) memory: BTreeMap<u64, (Option<Operation>, Reply)>,
    /// Grants that were taken from the session, and why.
    pub(crate) taken: BTreeMap<Token, Reason>,
}

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) session: SessionId,
    pub(crate) acquire: Acquire,
    since: WallTime,
    revoked: Option<(Reason, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) ticket: Ticket,
    session: SessionId,
    request: Option<u64>,
    pub(crate) acquire: Acquire,
    deadline: Option<u64>,
    since: WallTime,
    repeats: u64,
}

/// A lock's state besides holders and waiters.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rest {
    data: Option<Data>,
    keep: bool,
    closed_until: Option<u64>,
    /// The size that an operator set.
    resized: Option<Permits>,
}

enum End {
    Released,
    Expired,
    Forced,
}

fn mode_of(acquire: &Acquire, name: &LockName) -> Option<Mode> {
    acquire.wants().iter().find(|want| want.name == *name).map(|want| want.mode)
}

fn same_request(one: &Operation, other: &Operation) -> bool {
    let names = |acquire: &Acquire| acquire.wants().iter().map(|want| want.name.clone()).collect::<Vec<_>>();
    match (one, other) {
        (Operation::Acquire(one), Operation::Acquire(other)) => names(one) == names(other),
        (Operation::Release(one), Operation::Release(other)) => one == other,
        (Operation::Update(one), Operation::Update(other)) => one.token == other.token && one.name == other.name,
        _ => false,
    }
}

fn is_open(views: &[OpenIds], id: u64) -> bool {
    views.iter().all(|view| id >= view.lowest() || view.kept().contains(&id))
}

impl Session {
    fn new(
        ttl: Ttl,
        label: Label,
        opened: WallTime,
        address: Option<Address>,
        owner: Option<Identity>,
        is_of_entries: bool,
    ) -> Self {
        let views = Vec::new();
        let memory = BTreeMap::new();
        let taken = BTreeMap::new();
        let attached = 0;
        Self { label, ttl, deadline: 0, opened, address, owner, is_of_entries, attached, views, memory, taken }
    }

    fn open(&self, id: u64) -> Result<(), Refusal> {
        if is_open(&self.views, id) { Ok(()) } else { Err(Refusal::RequestStale { lowest: self.lowest() }) }
    }

    pub(crate) fn lowest(&self) -> u64 {
        self.views.iter().map(OpenIds::lowest).max().unwrap_or(0)
    }
}

impl Model {
    pub(crate) fn apply(&mut self, time: Time, command: &Command) {
        self.events.clear();
        self.wall = time.wall;
        while self.now < time.stamp.0 {
            self.now += 1;
            self.fall_due();
            self.forget_sizes();
        }
        let result = match command {
            Command::Open { session, ttl, label, address, owner } => self.open(*session, *ttl, label, *address, owner),
            Command::Renew { sessions } => Ok(Reply::Renewed(sessions.iter().map(|id| self.renew(*id)).collect())),
            Command::Attach { session } => self.attach(*session),
            Command::SetOwner { session, owner } => self.set_owner(*session, owner),
            Command::Close { session, by: _, reason: _ } => self.close(*session),
            Command::Session { session, request, operation } => self.request(*session, request.clone(), operation),
            Command::CancelWait { ticket, repeats } => Ok(self.cancel(*ticket, *repeats)),
            Command::ForceRelease(force) => Ok(self.force(force)),
            Command::RemoveWaiter { name, ticket, by: _ } => Ok(self.remove_waiter(name, *ticket)),
            Command::LiftDelay { name, by: _ } => Ok(self.lift_delay(name)),
            Command::DropData { prefix, after, by: _ } => Ok(self.drop_data(prefix, after.as_ref())),
            Command::Resize { name, permits, by: _ } => self.resize(name, *permits),
            Command::Txn(txn) => self.commit(txn),
            Command::Compact { revision } => self.compact(*revision),
            Command::RaiseVersion { to } => {
                self.version = self.version.max(*to);
                Ok(Reply::VersionRaised(self.version))
            }
            Command::Note(_) | Command::BeginAudit => Ok(Reply::Noted),
            Command::Probe => Ok(Reply::Probed),
            Command::Tick => Ok(Reply::Ticked),
        };
        self.forget_sizes();
        self.reply = Some(result.unwrap_or_else(Reply::Refused));
    }

    /// Handles all deadlines at this millisecond.
    fn fall_due(&mut self) {
        let now = self.now;
        let over = |(id, session): (&SessionId, &Session)| (session.deadline == now).then_some(*id);
        for id in self.sessions.iter().filter_map(over).collect::<Vec<_>>() {
            self.end_session(id, SessionEnd::Expired);
        }
        self.end_lifetimes();
        let revoked =
            |held: &Held| held.revoked.clone().filter(|(_, at)| *at == now).map(|(reason, _)| (held.token, reason));
        for (token, reason) in self.grants.iter().filter_map(revoked).collect::<Vec<_>>() {
            self.take_back(token, reason);
            self.grant_all();
        }
        let open = |(name, rest): (&LockName, &Rest)| (rest.closed_until == Some(now)).then(|| name.clone());
        for name in self.locks.iter().filter_map(open).collect::<Vec<_>>() {
            self.locks.entry(name).or_default().closed_until = None;
            self.grant_all();
        }
        let done = |waiting: &Waiting| (waiting.deadline == Some(now)).then_some(waiting.ticket);
        for ticket in self.waits.iter().filter_map(done).collect::<Vec<_>>() {
            // A wait that ended earlier in this millisecond may have let this one be granted.
            if let Some(waiting) = self.waits.iter().find(|waiting| waiting.ticket == ticket).cloned() {
                let name = self.obstacle(&waiting.acquire, ticket).expect("a wait without an obstacle is granted");
                self.waits.retain(|other| other.ticket != ticket);
                let end = WaitEnd::TimedOut(self.busy(&name));
                self.end_wait(&waiting, end);
                self.grant_all();
            }
        }
    }

    fn end(&self, id: SessionId) -> SessionEnd {
        self.ended.iter().find(|(ended, _)| *ended == id).map_or(SessionEnd::Unknown, |(_, end)| *end)
    }

    fn open(
        &mut self,
        id: SessionId,
        ttl: Ttl,
        label: &Label,
        address: Option<Address>,
        owner: &Option<Identity>,
    ) -> Result<Reply, Refusal> {
        let now = self.now;
        let opened = self.wall;
        let label = label.clone();
        let owner = owner.clone();
        if self.ended.iter().any(|(ended, _)| *ended == id) {
            return Err(Refusal::SessionEnded(self.end(id)));
        }
        let new = Session::new(ttl, label.clone(), opened, address, owner.clone(), false);
        let session = self.sessions.entry(id).or_insert(new);
        if session.ttl != ttl || session.label != label || session.owner != owner {
            return Err(Refusal::SessionExists);
        }
        session.deadline = now + u64::from(ttl.as_millis());
        Ok(Reply::Opened(ttl))
    }

    fn renew(&mut self, id: SessionId) -> Renewal {
        let revoked = self.revocations(id);
        match self.sessions.get_mut(&id) {
            None => Renewal::Ended(self.end(id)),
            Some(session) => {
                session.deadline = self.now + u64::from(session.ttl.as_millis());
                Renewal::Renewed { ttl: session.ttl, revoked, more: false }
            }
        }
    }

    fn attach(&mut self, id: SessionId) -> Result<Reply, Refusal> {
        match self.renew(id) {
            Renewal::Ended(end) => Err(Refusal::SessionEnded(end)),
            Renewal::Renewed { ttl, .. } => {
                let session = self.sessions.get_mut(&id).expect("it was renewed");
                session.attached += 1;
                Ok(Reply::Attached(Attachment { number: session.attached, ttl }))
            }
        }
    }

    fn set_owner(&mut self, id: SessionId, owner: &Identity) -> Result<Reply, Refusal> {
        let end = self.end(id);
        let session = self.sessions.get_mut(&id).ok_or(Refusal::SessionEnded(end))?;
        if session.owner.as_ref().is_some_and(|known| known != owner) {
            return Err(Refusal::SessionExists);
        }
        session.owner = Some(owner.clone());
        Ok(Reply::OwnerSet)
    }

    pub(crate) fn revocations(&self, id: SessionId) -> Vec<Revocation> {
        let revocation = |held: &Held| {
            let (reason, at) = held.revoked.clone()?;
            Some(Revocation { token: held.token, reason, remaining_ms: at - self.now })
        };
        let held = self.grants.iter().filter(|held| held.session == id).filter_map(revocation);
        let taken = self.sessions.get(&id).into_iter().flat_map(|session| &session.taken);
        let taken = taken.map(|(token, reason)| Revocation { token: *token, reason: reason.clone(), remaining_ms: 0 });
        let mut all: Vec<_> = held.chain(taken).collect();
        all.sort_by_key(|revocation| revocation.token);
        all
    }

    /// The refusal for a token that the session does not hold.
    fn not_held(&self, id: SessionId, token: Token) -> Refusal {
        let taken = self.sessions.get(&id).and_then(|session| session.taken.get(&token));
        taken.map_or(Refusal::NotHeld, |reason| Refusal::Revoked { token, reason: reason.clone() })
    }

    /// Forgets a taken grant, since the session has been told.
    fn forget_taken(&mut self, id: SessionId, token: Token) {
        self.sessions.get_mut(&id).expect("the session was found before").taken.remove(&token);
    }

    fn close(&mut self, id: SessionId) -> Result<Reply, Refusal> {
        if self.sessions.contains_key(&id) {
            self.end_session(id, SessionEnd::Closed);
        } else if self.end(id) != SessionEnd::Closed {
            return Err(Refusal::SessionEnded(self.end(id)));
        }
        Ok(Reply::Closed)
    }

    fn end_session(&mut self, id: SessionId, end: SessionEnd) {
        self.events.push(Event::SessionEnded { session: id, end });
        for waiting in self.waits.clone().iter().filter(|waiting| waiting.session == id) {
            self.waits.retain(|other| other.ticket != waiting.ticket);
            self.end_wait(waiting, WaitEnd::SessionEnded(end));
        }
        for held in self.grants.clone().iter().filter(|held| held.session == id) {
            let how = if end == SessionEnd::Closed { End::Released } else { End::Expired };
            self.end_grant(held.token, how);
        }
        let leased = |entry: &Entry| entry.lease.is_some_and(|lease| lease.session == id);
        let keys: Vec<_> = self.entries.iter().filter(|(_, entry)| leased(entry)).map(|(key, _)| key.clone()).collect();
        // Its entries are granted nothing any more.
        self.sessions.get_mut(&id).expect("it is the one that ends").deadline = self.now;
        for key in keys {
            self.last_token += 1;
            let kept = self.entries.clone();
            let mut entry = self.take_entry(&key);
            entry.claim = None;
            if entry.lease.take().is_some_and(|lease| lease.at_end == AtLeaseEnd::Keep) {
                entry.is_expired = true;
                entry.modified = Revision(self.last_token);
                self.entries = kept;
                self.entries.insert(key, entry);
            }
            self.hand_claims_on();
            self.keep_state();
        }
        // No client knows the sessions that transactions open.
        if self.sessions.remove(&id).is_some_and(|session| !session.is_of_entries) {
            self.ended.push((id, end));
        }
        self.grant_all();
    }

    fn request(&mut self, id: SessionId, request: Option<Request>, operation: &Operation) -> Result<Reply, Refusal> {
        let Some(session) = self.sessions.get_mut(&id) else { return Err(Refusal::SessionEnded(self.end(id))) };
        let Some(request) = request else { return self.run(id, None, operation) };
        session.views.push(request.open);
        let Session { views, memory, .. } = session;
        memory.retain(|remembered, _| is_open(views, *remembered));
        session.open(request.id)?;
        match session.memory.get(&request.id) {
            Some((None, reply)) if matches!(operation, Operation::Acquire(_)) => return Ok(reply.clone()),
            Some((Some(before), reply)) if same_request(before, operation) => {
                if let Reply::Queued(ticket) = reply {
                    let again = self.waits.iter_mut().find(|waiting| waiting.ticket == *ticket);
                    again.expect("a queued request has a wait").repeats += 1;
                }
                return Ok(reply.clone());
            }
            Some(_) => return Err(Refusal::RequestReused),
            None => {}
        }
        let reply = self.run(id, Some(request.id), operation).unwrap_or_else(Reply::Refused);
        let session = self.sessions.get_mut(&id).expect("a request does not end its session");
        session.memory.insert(request.id, (Some(operation.clone()), reply.clone()));
        Ok(reply)
    }

    fn run(&mut self, id: SessionId, request: Option<u64>, operation: &Operation) -> Result<Reply, Refusal> {
        let found = match operation {
            Operation::Acquire(acquire) => return self.acquire(id, request, acquire),
            Operation::Update(update) => return self.update(id, update),
            Operation::Release(Target::Grant(token)) => {
                if !self.grants.iter().any(|held| held.token == *token && held.session == id) {
                    let refusal = self.not_held(id, *token);
                    self.forget_taken(id, *token);
                    return Err(refusal);
                }
                self.end_grant(*token, End::Released);
                Released::Grant
            }
            Operation::Release(Target::Acquire(acquire)) => self.release_acquire(id, request, *acquire)?,
        };
        self.grant_all();
        Ok(Reply::Released(found))
    }

    fn release_acquire(&mut self, id: SessionId, request: Option<u64>, acquire: u64) -> Result<Released, Refusal> {
        let session = self.sessions.get_mut(&id).expect("the session was found before");
        session.open(acquire)?;
        if request == Some(acquire) {
            return Err(Refusal::RequestReused);
        }
        match session.memory.get(&acquire).cloned() {
            None => {
                session.memory.insert(acquire, (None, Reply::Refused(Refusal::Abandoned)));
                Ok(Released::Nothing)
            }
            Some((Some(Operation::Release(_) | Operation::Update(_)), _)) => Err(Refusal::RequestReused),
            Some((_, Reply::Queued(ticket))) => {
                self.leave(ticket, WaitEnd::Abandoned);
                Ok(Released::Wait)
            }
            Some((_, Reply::Acquired(WaitEnd::Granted(grant))))
                if self.grants.iter().any(|held| held.token == grant.token) =>
            {
                self.end_grant(grant.token, End::Released);
                Ok(Released::Grant)
            }
            Some((_, Reply::Refused(Refusal::Revoked { token, .. }))) if session.taken.contains_key(&token) => {
                let refusal = self.not_held(id, token);
                self.forget_taken(id, token);
                Err(refusal)
            }
            Some(_) => Ok(Released::Nothing),
        }
    }
}
