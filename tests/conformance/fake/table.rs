//! The table behind all nodes: the machine of a real cluster, with a clock.
//!
//! Every command is applied at once, as if it had been committed. So the answers of the fake are those of a cluster, as long as the
//! scenario does not spoil them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockkeeper_machine::{
    Acquire, Change, Command, Event, ForceRelease, LockName, Machine, Mode, Operation, Page, Reason, Reply, SessionEnd,
    SessionId, Stamp, Target, Ticket, Time, Token, Ttl, Wait, WaitEnd, WallTime, Want,
};
use tokio::time::Instant;

/// The session of the rival: the fake's own.
const RIVAL: SessionId = SessionId(0x0521_7a10_0000_0000_0000_0000_0000_0001);

/// How long it lives: a day.
const RIVAL_TTL_MS: u32 = 86_400_000;

/// The state of the cluster.
pub(crate) struct Table {
    machine: Machine,
    began: Instant,
    /// How far the cluster's clock is ahead: `cluster expires`.
    ahead: Duration,
    /// The index of the last entry.
    index: u64,
    /// The ends of waits, by ticket.
    ended_waits: BTreeMap<Ticket, WaitEnd>,
    /// What streams must be told, in order.
    notices: Vec<Notice>,
    /// The changes of locks, by entry.
    changes: Vec<(u64, Vec<Change>)>,
    /// Watches cannot go on after an index up to this one.
    too_old: u64,
    /// Until when the leases of sessions, alive or over, were promised.
    leases: BTreeMap<SessionId, Instant>,
    /// Until when revoked grants are held.
    revoked: BTreeMap<u64, Instant>,
    /// The session of each grant.
    granted: BTreeMap<u64, SessionId>,
    forgotten: BTreeSet<SessionId>,
    /// Requests that the table refused because of their ids: mistakes of the client.
    pub(crate) mistakes: Vec<String>,
}

/// What a keep-alive stream tells by itself.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    Ended(SessionId, SessionEnd),
    Revoked(SessionId, lockkeeper_machine::Revocation),
}

impl Table {
    pub(crate) fn new() -> Self {
        let mut table = Self {
            machine: Machine::default(),
            began: Instant::now(),
            ahead: Duration::ZERO,
            index: 0,
            ended_waits: BTreeMap::new(),
            notices: Vec::new(),
            changes: Vec::new(),
            too_old: 0,
            leases: BTreeMap::new(),
            revoked: BTreeMap::new(),
            granted: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            mistakes: Vec::new(),
        };
        let ttl = Ttl::from_millis(RIVAL_TTL_MS).expect("a day is allowed");
        let label = lockkeeper_machine::Label::new("rival").expect("it is short");
        table.apply(Command::Open { session: RIVAL, ttl, label, address: None, owner: None });
        table
    }

    /// The moment of a stamp of the cluster's clock.
    fn moment(&self, stamp_ms: u64) -> Instant {
        (self.began + Duration::from_millis(stamp_ms)).checked_sub(self.ahead).unwrap_or(self.began)
    }

    fn stamp(&self) -> Stamp {
        let passed = self.began.elapsed() + self.ahead;
        // From 1: a stamp of 0 is before all time.
        Stamp(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1))
    }

    /// Applies a command now.
    pub(crate) fn apply(&mut self, command: Command) -> Reply {
        let stamp = self.stamp();
        let renewed: Vec<SessionId> = if let Command::Open { session, .. } = &command {
            vec![*session]
        } else if let Command::Renew { sessions } = &command {
            sessions.clone()
        } else {
            Vec::new()
        };
        let mut events = Vec::new();
        let reply = self.machine.apply(Time { stamp, wall: WallTime(0) }, command, &mut events);
        self.index += 1;

        for session in renewed {
            if let Some(view) = self.machine.session(session) {
                let end = self.moment(stamp.0 + view.remaining_ms);
                self.leases.insert(session, end);
            }
        }
        if let Reply::Acquired(end) = &reply {
            self.note_grant(end);
        }
        let mut changes = Vec::new();
        for event in events {
            match event {
                Event::WaitEnded { ticket, end } => {
                    self.note_grant(&end);
                    self.ended_waits.insert(ticket, end);
                }
                Event::SessionEnded { session, end } => self.notices.push(Notice::Ended(session, end)),
                Event::Revoked { session, revocation } => {
                    let end = self.moment(stamp.0 + revocation.remaining_ms);
                    self.revoked.entry(revocation.token.0).or_insert(end);
                    self.notices.push(Notice::Revoked(session, revocation));
                }
                Event::Changed(change) => changes.push(change),
            }
        }
        if !changes.is_empty() {
            self.changes.push((self.index, changes));
        }
        reply
    }

    fn note_grant(&mut self, end: &WaitEnd) {
        if let WaitEnd::Granted(grant) = end {
            self.granted.insert(grant.token.0, grant.session);
        }
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn end_of_wait(&self, ticket: Ticket) -> Option<WaitEnd> {
        self.ended_waits.get(&ticket).cloned()
    }

    /// The notices from this one on.
    pub(crate) fn notices(&self, from: usize) -> &[Notice] {
        &self.notices[from..]
    }

    /// The changes after this index, by entry.
    pub(crate) fn changes_after(&self, index: u64) -> impl Iterator<Item = &(u64, Vec<Change>)> {
        self.changes.iter().filter(move |(entry, _)| *entry > index)
    }

    /// Whether a watch can go on after this index.
    pub(crate) fn keeps_changes_after(&self, index: u64) -> bool {
        index > self.too_old && index <= self.index
    }

    pub(crate) fn forget_changes(&mut self) {
        self.too_old = self.index;
    }

    /// Until when this grant may be trusted at most: the end of its session's lease by the cluster's clock, or of the revoked grant.
    pub(crate) fn trusted_until(&self, token: u64) -> Option<Instant> {
        let lease = self.granted.get(&token).and_then(|session| self.leases.get(session)).copied();
        let revoked = self.revoked.get(&token).copied();
        lease.into_iter().chain(revoked).min()
    }

    /// Whether the session of this grant is over.
    pub(crate) fn is_over(&self, token: u64) -> bool {
        self.granted.get(&token).is_none_or(|session| self.machine.session(*session).is_none())
    }

    /// The sessions of the client that are alive.
    pub(crate) fn client_sessions(&self) -> Vec<SessionId> {
        self.machine.sessions(None).map(|view| view.session).filter(|session| *session != RIVAL).collect()
    }

    /// The tokens that hold this lock, and how many wait for it.
    pub(crate) fn lock(&self, name: &str) -> (Vec<u64>, u64) {
        let Ok(name) = LockName::new(name) else { return (Vec::new(), 0) };
        let page = Page { size: 1_000, holders_after: Token(0), waiters_after: Ticket(0) };
        let view = self.machine.lock(&name, page);
        (view.holders.iter().map(|holder| holder.token.0).collect(), view.queue_length)
    }

    pub(crate) fn is_rivals(&self, token: u64) -> bool {
        self.granted.get(&token) == Some(&RIVAL)
    }

    /// What the client still has: sessions, grants, waits; empty if nothing.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        for session in self.client_sessions() {
            left.push(format!("session {session}"));
            let grants = self.machine.grants_of(session, Token(0));
            left.extend(grants.map(|grant| format!("grant {} of {:?}", grant.token.0, grant.names)));
            left.extend(
                self.machine.waits_of(session).map(|wait| format!("wait {} for {:?}", wait.ticket.0, wait.names)),
            );
        }
        left
    }

    pub(crate) fn rival_acquires(&mut self, name: &str, shared: bool) -> Result<(), String> {
        let name = LockName::new(name).map_err(|why| why.to_string())?;
        let mode = if shared { Mode::Shared } else { Mode::Exclusive };
        let want = Want { name, mode, data: None, keep_data: false, must_exist: false };
        let acquire = Acquire::new(vec![want], Wait::Forever, 0).map_err(|why| why.to_string())?;
        let operation = Operation::Acquire(acquire);
        let reply = self.apply(Command::Session { session: RIVAL, request: None, operation });
        if matches!(reply, Reply::Acquired(_) | Reply::Queued(_)) {
            return Ok(());
        }
        Err(format!("the rival's acquire: {reply:?}"))
    }

    /// Ends the rival's grants and waits of this lock.
    pub(crate) fn rival_releases(&mut self, name: &str) -> Result<(), String> {
        let (tokens, _) = self.lock(name);
        let tokens: Vec<u64> = tokens.into_iter().filter(|token| self.is_rivals(*token)).collect();
        if tokens.is_empty() {
            return Err(format!("the rival does not hold {name}"));
        }
        for token in tokens {
            let operation = Operation::Release(Target::Grant(Token(token)));
            self.apply(Command::Session { session: RIVAL, request: None, operation });
        }
        Ok(())
    }

    pub(crate) fn revoke(&mut self, name: &str, reason: &str, now: bool) -> Result<(), String> {
        let name = LockName::new(name).map_err(|why| why.to_string())?;
        let reason = Reason::new(reason).map_err(|why| why.to_string())?;
        let force = ForceRelease { name, token: None, after: Token(0), up_to: None, reason, now, by: None };
        let reply = self.apply(Command::ForceRelease(force));
        if matches!(&reply, Reply::Forced { grants, .. } if !grants.is_empty()) {
            return Ok(());
        }
        Err(format!("nothing is revoked: {reply:?}"))
    }

    pub(crate) fn close_sessions(&mut self) {
        for session in self.client_sessions() {
            self.apply(Command::Close { session, by: None, reason: None });
        }
    }

    /// Lets the leases of all sessions of the client pass, by the cluster's clock.
    pub(crate) fn expire_sessions(&mut self) {
        let longest =
            self.machine.sessions(None).filter(|view| view.session != RIVAL).map(|view| view.remaining_ms).max();
        self.ahead += Duration::from_millis(longest.unwrap_or_default() + 1);
        self.apply(Command::Tick);
    }

    /// Ends the sessions of the client without a record.
    pub(crate) fn forget_sessions(&mut self) {
        let sessions = self.client_sessions();
        self.forgotten.extend(&sessions);
        self.close_sessions();
        for notice in &mut self.notices {
            if let Notice::Ended(session, end) = notice
                && sessions.contains(session)
            {
                *end = SessionEnd::Unknown;
            }
        }
    }

    pub(crate) fn is_forgotten(&self, session: SessionId) -> bool {
        self.forgotten.contains(&session)
    }

    pub(crate) fn cancel_waits(&mut self, name: &str) {
        let sessions = self.client_sessions();
        let of_name = |wait: &lockkeeper_machine::WaitView| wait.names.iter().any(|known| known.as_str() == name);
        let tickets: Vec<Ticket> = sessions
            .into_iter()
            .flat_map(|session| {
                self.machine.waits_of(session).filter(of_name).map(|wait| wait.ticket).collect::<Vec<_>>()
            })
            .collect();
        for ticket in tickets {
            self.apply(Command::CancelWait { ticket, repeats: None });
        }
    }
}
