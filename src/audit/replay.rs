//! The sessions, holders and queues as far as the lines tell them, and the rules that each line must obey.
//!
//! * A lock held exclusively has one holder; a shared one only shared holders; a semaphore at most as many as its size, when it grants.
//! * Tokens rise with each grant; a grant of several locks has one token.
//! * First come, first served: a grant ends the first wait in the lock's queue, or nobody waits.
//! * Nothing is granted to, or queued for, a session that has ended.
//! * A lock that entries hold has one holder. Its holders' tokens rise. An entry has its token before it waits: then it is granted the lock
//!   with the token with which it was queued, and otherwise with a new one.
//! * What is released, lost, revoked or left was held or awaited, by that session.
//!
//! A trail may begin in the middle: sessions, grants and waits from before have no lines. What a line says of them is then
//! believed, as far as their numbers show that they are from before.
//!
//! Memory grows with what is alive, not with the number of lines.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::line::{AuditEvent, AuditLine, Session};

/// The number of ended sessions that are remembered while sessions from before the trail are possible.
const ENDED_KEPT: usize = 100_000;

/// The rule that a line breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenRule {
    /// A field that every line of its kind has is missing.
    #[error("a line of this kind needs the field `{0}`")]
    Incomplete(&'static str),
    /// A line other than the first begins a trail. It would hide what was held.
    #[error("a trail begins with its first line")]
    Begun,
    /// A line belongs to an earlier log entry than the line before.
    #[error("log entry {found} comes after entry {before}")]
    Order {
        /// The line's log entry.
        found: u64,
        /// The log entry of the line before.
        before: u64,
    },
    /// A lock was granted while it was held in another way.
    #[error("exclusion: {lock:?} was granted with token {token} while token {holder} held it")]
    Exclusion {
        /// The lock.
        lock: String,
        /// The token of the new grant.
        token: u64,
        /// The token of one of the grants that hold the lock.
        holder: u64,
    },
    /// A token does not rise.
    #[error("order of tokens: token {token} was granted after token {before}")]
    Token {
        /// The token of the new grant.
        token: u64,
        /// The last token.
        before: u64,
    },
    /// A waiter was overtaken.
    #[error(
        "first come, first served: {lock:?} was granted with token {token}, and the waiter with ticket {overtaken} was there first"
    )]
    Overtaken {
        /// The lock.
        lock: String,
        /// The token of the grant.
        token: u64,
        /// The ticket of the waiter who was first.
        overtaken: u64,
    },
    /// A session has ended, or was never opened.
    #[error("session {0} is not open")]
    NotOpen(String),
    /// A session was opened twice.
    #[error("session {0} was opened a second time")]
    OpenedTwice(String),
    /// A lock was not held.
    #[error("{lock:?} was not held with token {token} by that session")]
    NotHeld {
        /// The lock.
        lock: String,
        /// The token of the grant.
        token: u64,
    },
    /// A waiter was not in the queue.
    #[error("no waiter with ticket {ticket} was in the queue of {lock:?}")]
    NotQueued {
        /// The lock.
        lock: String,
        /// The ticket.
        ticket: u64,
    },
    /// A ticket does not rise.
    #[error("order of arrival: ticket {ticket} was drawn after ticket {before}")]
    Ticket {
        /// The new ticket.
        ticket: u64,
        /// The last ticket.
        before: u64,
    },
}

#[derive(Debug, Default)]
struct ReplayedLock {
    /// The holders, by their tokens.
    holders: BTreeMap<u64, Session>,
    /// The mode of all holders.
    is_exclusive: bool,
    is_shared: bool,
    /// The waiting sessions by ticket. Entries wait by token.
    queue: BTreeMap<u64, Session>,
    /// The token of the last entry that held it.
    last_entry: u64,
}

/// The state that the lines tell. The module lists the rules.
#[derive(Debug, Default)]
pub(super) struct Replay {
    sessions: BTreeSet<Session>,
    locks: HashMap<String, ReplayedLock>,
    last_token: u64,
    last_ticket: u64,
    index: u64,
    /// The last grant. More locks may follow with its token.
    last_grant: Option<(u64, Session)>,
    /// The last token of an entry, and its log entry. More entries may follow with this token.
    last_write: Option<(u64, u64)>,
    /// Grants and waits up to these numbers may be from before the trail.
    token_before: u64,
    ticket_before: u64,
    /// The last sessions that ended, if sessions from before the trail are possible.
    ended: Option<(VecDeque<Session>, BTreeSet<Session>)>,
}

impl Replay {
    /// A trail that begins, or goes on after a gap, when these were the last numbers issued.
    pub(super) fn from(token: u64, ticket: u64, has_sessions: bool) -> Self {
        Self {
            last_token: token,
            last_ticket: ticket,
            token_before: token,
            ticket_before: ticket,
            ended: has_sessions.then(Default::default),
            ..Self::default()
        }
    }

    /// The numbers of open sessions, held locks and waits, as far as they are known.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let held = self.locks.values().filter(|lock| !lock.holders.is_empty()).count();
        (self.sessions.len(), held, self.locks.values().map(|lock| lock.queue.len()).sum())
    }

    pub(super) fn step(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        if line.index < self.index {
            return Err(BrokenRule::Order { found: line.index, before: self.index });
        }
        self.index = line.index;

        match line.what {
            AuditEvent::Begun | AuditEvent::Restored if line.line > 1 => Err(BrokenRule::Begun),
            AuditEvent::Begun | AuditEvent::Restored => {
                // A restored table has no sessions of clients, but it has the sessions that keep its locks closed.
                let begun = Self::from(token(line)?, ticket(line)?, line.count.unwrap_or_default() > 0);
                *self = Self { index: self.index, ..begun };
                Ok(())
            }
            AuditEvent::SessionOpened => self.opened(session(line)?),
            AuditEvent::OwnerSet => self.open(session(line)?),
            AuditEvent::SessionEnded => self.session_ended(session(line)?),
            AuditEvent::Granted if is_entry(line) => self.granted_entry(line),
            AuditEvent::Queued if is_entry(line) => self.queued_entry(line),
            AuditEvent::Granted => self.granted(line),
            AuditEvent::Queued => self.queued(line),
            AuditEvent::Left => self.left(line),
            AuditEvent::Released | AuditEvent::Lost => self.ended(line),
            AuditEvent::Revoked => self.holds(line).map(drop),
            AuditEvent::ForcedRelease
            | AuditEvent::WaiterRemoved
            | AuditEvent::DelayLifted
            | AuditEvent::DataDropped
            | AuditEvent::Resized
            | AuditEvent::MemberChanged
            | AuditEvent::MemberRemoved
            | AuditEvent::VersionRaised
            | AuditEvent::Note => Ok(()),
        }
    }

    fn opened(&mut self, session: Session) -> Result<(), BrokenRule> {
        if self.sessions.insert(session) { Ok(()) } else { Err(BrokenRule::OpenedTwice(session.to_string())) }
    }

    fn session_ended(&mut self, session: Session) -> Result<(), BrokenRule> {
        self.open(session)?;
        self.sessions.remove(&session);
        if let Some((order, ended)) = &mut self.ended {
            order.push_back(session);
            ended.insert(session);
            if order.len() > ENDED_KEPT
                && let Some(oldest) = order.pop_front()
            {
                ended.remove(&oldest);
            }
        }

        Ok(())
    }

    /// Whether a session is open, or may be open since before the trail. An entry with a deadline of its own holds its lock without one.
    fn open(&self, session: Session) -> Result<(), BrokenRule> {
        if session == Session::NONE {
            return Ok(());
        }
        let may_be = self.ended.as_ref().is_some_and(|(_, ended)| !ended.contains(&session));
        if may_be || self.sessions.contains(&session) { Ok(()) } else { Err(BrokenRule::NotOpen(session.to_string())) }
    }

    fn granted(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let token = token(line)?;
        let session = session(line)?;
        let name = lock(line)?;
        self.open(session)?;
        if token <= self.last_token && self.last_grant != Some((token, session)) {
            return Err(BrokenRule::Token { token, before: self.last_token });
        }

        let lock = self.locks.entry(name.to_owned()).or_default();
        let mode = line.mode.as_deref().ok_or(BrokenRule::Incomplete("mode"))?;
        let room = match mode {
            "permit" => line.permits.ok_or(BrokenRule::Incomplete("permits"))? as usize,
            "shared" => usize::MAX,
            _ => 1,
        };
        let differs = mode == "exclusive" || lock.is_exclusive || (mode == "shared") != lock.is_shared;

        if let Some((holder, _)) = lock.holders.first_key_value()
            && (differs || lock.holders.len() >= room)
        {
            return Err(BrokenRule::Exclusion { lock: name.to_owned(), token, holder: *holder });
        }

        if let Some((first, _)) = lock.queue.first_key_value()
            && line.ticket.is_none_or(|ticket| ticket > *first)
        {
            return Err(BrokenRule::Overtaken { lock: name.to_owned(), token, overtaken: *first });
        }

        if let Some(ticket) = line.ticket
            && lock.queue.remove(&ticket) != Some(session)
            && ticket > self.ticket_before
        {
            return Err(BrokenRule::NotQueued { lock: name.to_owned(), ticket });
        }

        (lock.is_exclusive, lock.is_shared) = (mode == "exclusive", mode == "shared");
        lock.holders.insert(token, session);
        (self.last_token, self.last_grant) = (token, Some((token, session)));

        Ok(())
    }

    fn queued(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let ticket = ticket(line)?;
        let session = session(line)?;
        let name = lock(line)?;
        self.open(session)?;

        // An acquire of several locks has one ticket for all of them.
        if ticket < self.last_ticket || ticket <= self.ticket_before {
            return Err(BrokenRule::Ticket { ticket, before: self.last_ticket });
        }

        self.last_ticket = ticket;
        self.locks.entry(name.to_owned()).or_default().queue.insert(ticket, session);

        Ok(())
    }

    /// All entries that one transaction writes have the same token.
    fn new_token_of_entry(&mut self, line: &AuditLine<'_>, token: u64) -> Result<(), BrokenRule> {
        if token <= self.last_token && self.last_write != Some((token, line.index)) {
            return Err(BrokenRule::Token { token, before: self.last_token });
        }
        (self.last_token, self.last_write) = (token, Some((token, line.index)));
        Ok(())
    }

    fn granted_entry(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let token = token(line)?;
        let session = session(line)?;
        let name = lock(line)?;
        self.open(session)?;

        let lock = self.locks.entry(name.to_owned()).or_default();
        if let Some((holder, _)) = lock.holders.first_key_value() {
            return Err(BrokenRule::Exclusion { lock: name.to_owned(), token, holder: *holder });
        }
        if token <= lock.last_entry {
            return Err(BrokenRule::Token { token, before: lock.last_entry });
        }

        let queued = lock.queue.remove(&token);
        lock.last_entry = token;
        lock.holders.insert(token, session);

        match queued {
            Some(queued) if queued == session => Ok(()),
            Some(_) => Err(BrokenRule::NotQueued { lock: name.to_owned(), ticket: token }),
            None if token <= self.token_before => Ok(()),
            None => self.new_token_of_entry(line, token),
        }
    }

    fn queued_entry(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let token = token(line)?;
        let session = session(line)?;
        let name = lock(line)?;
        self.open(session)?;
        self.new_token_of_entry(line, token)?;
        self.locks.entry(name.to_owned()).or_default().queue.insert(token, session);
        Ok(())
    }

    fn left(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let session = session(line)?;

        let name = lock(line)?;
        let (ticket, ticket_before) =
            if is_entry(line) { (token(line)?, self.token_before) } else { (ticket(line)?, self.ticket_before) };

        let found = self.locks.get_mut(name).and_then(|lock| lock.queue.remove(&ticket));
        self.forget(name);

        if found == Some(session) || found.is_none() && ticket <= ticket_before {
            Ok(())
        } else {
            Err(BrokenRule::NotQueued { lock: name.to_owned(), ticket })
        }
    }

    /// Notes the end of a grant.
    fn ended(&mut self, line: &AuditLine<'_>) -> Result<(), BrokenRule> {
        let (token, name) = self.holds(line)?;
        if let Some(lock) = self.locks.get_mut(name) {
            lock.holders.remove(&token);
        }
        self.forget(name);
        Ok(())
    }

    fn holds<'a>(&self, line: &'a AuditLine<'_>) -> Result<(u64, &'a str), BrokenRule> {
        let token = token(line)?;
        let session = session(line)?;
        let name = lock(line)?;
        let found = self.locks.get(name).and_then(|lock| lock.holders.get(&token));
        if found == Some(&session) || found.is_none() && token <= self.token_before {
            Ok((token, name))
        } else {
            Err(BrokenRule::NotHeld { lock: name.to_owned(), token })
        }
    }

    fn forget(&mut self, name: &str) {
        if self.locks.get(name).is_some_and(|lock| lock.holders.is_empty() && lock.queue.is_empty()) {
            self.locks.remove(name);
        }
    }
}

fn is_entry(line: &AuditLine<'_>) -> bool {
    line.kind.as_deref() == Some("entry")
}

fn token(line: &AuditLine<'_>) -> Result<u64, BrokenRule> {
    line.token.ok_or(BrokenRule::Incomplete("token"))
}

fn ticket(line: &AuditLine<'_>) -> Result<u64, BrokenRule> {
    line.ticket.ok_or(BrokenRule::Incomplete("ticket"))
}

fn session(line: &AuditLine<'_>) -> Result<Session, BrokenRule> {
    line.session.ok_or(BrokenRule::Incomplete("session"))
}

fn lock<'a>(line: &'a AuditLine<'_>) -> Result<&'a str, BrokenRule> {
    line.lock.as_deref().ok_or(BrokenRule::Incomplete("lock"))
}
