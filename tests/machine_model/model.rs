//! A second implementation of the machine, as plain as possible: lists that are searched from the start, time that passes millisecond by
//! millisecond, and no state that could be computed. It is slow, and easy to verify by reading.
//!
//! It predicts the reply to a command and the waits and sessions that end; changes of single locks are checked against its views.

mod keyspace;

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
        let (views, memory, taken) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let attached = 0;
        Self { label, ttl, deadline: 0, opened, address, owner, is_of_entries, attached, views, memory, taken }
    }

    fn open(&self, id: u64) -> Result<(), Refusal> {
        match is_open(&self.views, id) {
            true => Ok(()),
            false => Err(Refusal::RequestStale { lowest: self.lowest() }),
        }
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
        let (now, opened, label, owner) = (self.now, self.wall, label.clone(), owner.clone());
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

    fn update(&mut self, id: SessionId, update: &Update) -> Result<Reply, Refusal> {
        let holds = |held: &Held| held.token == update.token && held.session == id;
        let not_held = self.not_held(id, update.token);
        let held = self.grants.iter().find(|held| holds(held)).ok_or(not_held)?;
        mode_of(&held.acquire, &update.name).ok_or(Refusal::NotHeld)?;
        let rest = self.locks.entry(update.name.clone()).or_default();
        rest.data = update.data.clone();
        rest.keep = update.keep_data && update.data.is_some();
        Ok(Reply::Updated)
    }

    fn acquire(&mut self, id: SessionId, request: Option<u64>, acquire: &Acquire) -> Result<Reply, Refusal> {
        for want in acquire.wants() {
            if !self.claims(&want.name).is_empty() {
                return Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: None });
            }
            if want.must_exist && !self.exists(&want.name) {
                return Err(Refusal::LockUnknown { name: want.name.clone() });
            }
            if let Some(used) = self.mode(&want.name)
                && used.permits() != self.as_used(&want.name, want.mode).permits()
            {
                return Err(Refusal::ModeMismatch { name: want.name.clone(), in_use: used.permits() });
            }
        }
        // The acquire as the last in every queue.
        let deadline = match (self.obstacle(acquire, Ticket(u64::MAX)), acquire.wait) {
            (None, _) => return Ok(Reply::Acquired(WaitEnd::Granted(self.grant(id, acquire)))),
            (Some(name), Wait::Never) => return Ok(Reply::Busy(self.busy(&name))),
            (Some(_), Wait::Millis(ms)) => Some(self.now + ms),
            (Some(_), Wait::Forever) => None,
        };
        self.last_ticket += 1;
        let (ticket, acquire, since) = (Ticket(self.last_ticket), acquire.clone(), self.wall);
        self.waits.push(Waiting { ticket, session: id, request, acquire, deadline, since, repeats: 0 });
        Ok(Reply::Queued(ticket))
    }

    /// The first lock that blocks an acquire with this place in the queue.
    fn obstacle(&self, acquire: &Acquire, ticket: Ticket) -> Option<LockName> {
        let blocked = |want: &&Want| {
            let waits_ahead = |other: &Waiting| other.ticket < ticket && mode_of(&other.acquire, &want.name).is_some();
            let holders = self.holders(&want.name).count();
            let admits =
                match (self.as_used(&want.name, want.mode), self.holders(&want.name).next().map(|(_, mode)| mode)) {
                    (_, None) => true,
                    (Mode::Shared, Some(mode)) => mode == Mode::Shared,
                    (Mode::Exclusive, Some(_)) => false,
                    (Mode::Permit(permits), Some(_)) => holders < permits.get() as usize,
                };
            self.waits.iter().any(waits_ahead) || self.rest(&want.name).closed_until.is_some() || !admits
        };
        acquire.wants().iter().find(blocked).map(|want| want.name.clone())
    }

    fn holders(&self, name: &LockName) -> impl Iterator<Item = (&Held, Mode)> {
        self.grants.iter().filter_map(move |held| Some((held, self.as_used(name, mode_of(&held.acquire, name)?))))
    }

    fn waiters(&self, name: &LockName) -> impl Iterator<Item = (&Waiting, Mode)> {
        let mode = move |waiting: &Waiting| Some(self.as_used(name, mode_of(&waiting.acquire, name)?));
        self.waits.iter().filter_map(move |waiting| Some((waiting, mode(waiting)?)))
    }

    fn mode(&self, name: &LockName) -> Option<Mode> {
        let used = self.holders(name).map(|(_, mode)| mode).chain(self.waiters(name).map(|(_, mode)| mode)).next();
        used.or_else(|| self.rest(name).resized.map(Mode::Permit))
    }

    /// Permits are of the operator's size, if there is one.
    fn as_used(&self, name: &LockName, mode: Mode) -> Mode {
        let resized = self.locks.get(name).and_then(|rest| rest.resized).filter(|_| mode.permits().is_some());
        resized.map_or(mode, Mode::Permit)
    }

    /// An operator's size ends when the lock has neither holders, waiters nor data.
    fn forget_sizes(&mut self) {
        let resized = self.locks.iter().filter(|(_, rest)| rest.resized.is_some() && rest.data.is_none());
        let names: Vec<_> = resized.map(|(name, _)| name.clone()).collect();
        for name in names {
            if self.holders(&name).next().is_none() && self.waiters(&name).next().is_none() {
                self.locks.entry(name).or_default().resized = None;
            }
        }
    }

    fn resize(&mut self, name: &LockName, permits: Permits) -> Result<Reply, Refusal> {
        let Some(Mode::Permit(before)) = self.mode(name) else {
            return Err(Refusal::NotSemaphore { name: name.clone() });
        };
        self.locks.entry(name.clone()).or_default().resized = Some(permits);
        self.grant_all();
        let (holders, waiters) = (self.holders(name).count() as u64, self.waiters(name).count() as u64);
        Ok(Reply::Resized { before, holders, waiters })
    }

    fn rest(&self, name: &LockName) -> Rest {
        self.locks.get(name).cloned().unwrap_or_default()
    }

    fn grant(&mut self, session: SessionId, acquire: &Acquire) -> Grant {
        self.last_token += 1;
        let token = Token(self.last_token);
        for want in acquire.wants() {
            let rest = self.locks.entry(want.name.clone()).or_default();
            let sets = want.data.is_some();
            rest.data = want.data.clone().or(rest.data.clone());
            rest.keep = rest.data.is_some() && (want.keep_data || rest.keep && !sets);
        }
        self.grants.push(Held { token, session, acquire: acquire.clone(), since: self.wall, revoked: None });
        Grant { token, session, names: acquire.wants().iter().map(|want| want.name.clone()).collect() }
    }

    /// Grants the lowest ticket that can be granted, until there is none.
    fn grant_all(&mut self) {
        let ready = |model: &Self, waiting: &Waiting| {
            let alive = model.sessions.get(&waiting.session).is_some_and(|session| session.deadline > model.now);
            alive && model.obstacle(&waiting.acquire, waiting.ticket).is_none()
        };
        while let Some(at) = self.waits.iter().position(|waiting| ready(self, waiting)) {
            let waiting = self.waits.remove(at);
            let grant = self.grant(waiting.session, &waiting.acquire);
            self.end_wait(&waiting, WaitEnd::Granted(grant));
        }
    }

    fn end_wait(&mut self, waiting: &Waiting, end: WaitEnd) {
        let session = self.sessions.get_mut(&waiting.session).expect("waits end before their session");
        if let Some((_, reply)) = waiting.request.and_then(|request| session.memory.get_mut(&request)) {
            *reply = Reply::Acquired(end.clone());
        }
        self.events.push(Event::WaitEnded { ticket: waiting.ticket, end });
    }

    fn leave(&mut self, ticket: Ticket, end: WaitEnd) -> bool {
        let Some(at) = self.waits.iter().position(|waiting| waiting.ticket == ticket) else { return false };
        let waiting = self.waits.remove(at);
        self.end_wait(&waiting, end);
        true
    }

    fn cancel(&mut self, ticket: Ticket, repeats: Option<u64>) -> Reply {
        let came = self.waits.iter().find(|waiting| waiting.ticket == ticket).map(|waiting| waiting.repeats);
        let came_back = repeats.is_some() && repeats != came;
        let waited = !came_back && self.leave(ticket, WaitEnd::Cancelled);
        self.grant_all();
        Reply::WaitCancelled(waited)
    }

    fn remove_waiter(&mut self, name: &LockName, ticket: Ticket) -> Reply {
        let removed = self.lock(name).waiters.into_iter().find(|waiter| waiter.ticket == ticket);
        if removed.is_some() {
            self.leave(ticket, WaitEnd::Removed);
            self.grant_all();
        }
        Reply::WaiterRemoved(removed)
    }

    fn lift_delay(&mut self, name: &LockName) -> Reply {
        let closed_until = self.locks.get_mut(name).and_then(|rest| rest.closed_until.take());
        self.grant_all();
        Reply::DelayLifted(closed_until.map(|until| until - self.now))
    }

    fn drop_data(&mut self, prefix: &str, after: Option<&LockName>) -> Reply {
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

    fn end_grant(&mut self, token: Token, end: End) {
        let at = self.grants.iter().position(|held| held.token == token).expect("only a held grant ends");
        let held = self.grants.remove(at);
        let lost = matches!(end, End::Expired | End::Forced);
        for want in held.acquire.wants() {
            let free = self.holders(&want.name).next().is_none();
            let closed =
                (lost && held.acquire.lock_delay_ms > 0).then(|| self.now + u64::from(held.acquire.lock_delay_ms));
            let rest = self.locks.entry(want.name.clone()).or_default();
            rest.closed_until = rest.closed_until.max(closed);
            if free && !rest.keep {
                rest.data = None;
            }
        }
    }

    fn force(&mut self, force: &ForceRelease) -> Reply {
        if !self.claims(&force.name).is_empty() {
            return self.force_claim(force);
        }
        let ForceRelease { name, token: only, after, up_to, reason, now, by: _ } = force;
        let (only, now) = (*only, *now);
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

    fn take_back(&mut self, token: Token, reason: Reason) {
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

    pub(crate) fn last_token(&self) -> u64 {
        self.last_token
    }

    fn busy(&self, name: &LockName) -> Busy {
        let view = self.lock(name);
        Busy {
            name: name.clone(),
            holder: view.holders.first().map(|holder| HolderView { origin: HolderOrigin::default(), ..holder.clone() }),
            queue_length: view.queue_length,
            delay_remaining_ms: view.delay_remaining_ms,
        }
    }

    fn origin(&self, session: SessionId) -> HolderOrigin {
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

    fn exists(&self, name: &LockName) -> bool {
        self.mode(name).is_some() || self.rest(name) != Rest::default()
    }
}
