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
//! A trail may begin in the middle: sessions, grants and waits from before have no lines. Then what a line says of them is believed, as far
//! as their numbers show that they are from before.
//!
//! Memory grows with what is alive, not with the number of lines.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::line::{Line, Session, What};

/// Ended sessions that are remembered when sessions from before the trail are possible.
const ENDED_KEPT: usize = 100_000;

/// The rule that a line breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A field that such a line always has is missing.
    #[error("a line of this kind needs the field `{0}`")]
    Incomplete(&'static str),
    /// Only the first line begins a trail: another one would hide what was held.
    #[error("a trail begins with its first line")]
    Begun,
    /// Log order.
    #[error("log entry {found} comes after entry {before}")]
    Order {
        /// The entry.
        found: u64,
        /// The one before.
        before: u64,
    },
    /// Exclusion.
    #[error("exclusion: {lock:?} was granted with token {token} while token {holder} held it")]
    Exclusion {
        /// The lock.
        lock: String,
        /// The new grant.
        token: u64,
        /// One of those that hold it.
        holder: u64,
    },
    /// Order of tokens.
    #[error("order of tokens: token {token} was granted after token {before}")]
    Token {
        /// The new grant.
        token: u64,
        /// The last one.
        before: u64,
    },
    /// First come, first served.
    #[error(
        "first come, first served: {lock:?} was granted with token {token}, and the waiter with ticket {overtaken} was there first"
    )]
    Overtaken {
        /// The lock.
        lock: String,
        /// The grant.
        token: u64,
        /// Who was first.
        overtaken: u64,
    },
    /// A session that has ended, or was never opened.
    #[error("session {0} is not open")]
    NotOpen(String),
    /// A session was opened twice.
    #[error("session {0} was opened a second time")]
    OpenedTwice(String),
    /// Not held.
    #[error("{lock:?} was not held with token {token} by that session")]
    NotHeld {
        /// The lock.
        lock: String,
        /// The grant.
        token: u64,
    },
    /// Not queued.
    #[error("no waiter with ticket {ticket} was in the queue of {lock:?}")]
    NotQueued {
        /// The lock.
        lock: String,
        /// The ticket.
        ticket: u64,
    },
    /// Tickets rise.
    #[error("order of arrival: ticket {ticket} was drawn after ticket {before}")]
    Ticket {
        /// The new one.
        ticket: u64,
        /// The last one.
        before: u64,
    },
}

#[derive(Debug, Default)]
struct Lock {
    /// The holders and their tokens.
    holders: BTreeMap<u64, Session>,
    /// The mode of all of them, and the size.
    is_exclusive: bool,
    is_shared: bool,
    /// By ticket; of entries, by token.
    queue: BTreeMap<u64, Session>,
    /// The token of the last entry that held it.
    last_entry: u64,
}

/// The state. See the module.
#[derive(Debug, Default)]
pub(super) struct Replay {
    sessions: BTreeSet<Session>,
    locks: HashMap<String, Lock>,
    last_token: u64,
    last_ticket: u64,
    index: u64,
    /// The last grant: more locks may follow with its token.
    last_grant: Option<(u64, Session)>,
    /// The last token of an entry, and its log entry: more entries may follow with this token.
    last_write: Option<(u64, u64)>,
    /// Grants and waits up to these numbers may be from before.
    token_before: u64,
    ticket_before: u64,
    /// Whether sessions from before are possible; then the last ones that ended.
    ended: Option<(VecDeque<Session>, BTreeSet<Session>)>,
}

impl Replay {
    /// A trail that begins, or goes on after a gap, when these were the last numbers that were issued.
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

    /// Sessions that are open, locks that are held, and waits, as far as they are known.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let held = self.locks.values().filter(|lock| !lock.holders.is_empty()).count();
        (self.sessions.len(), held, self.locks.values().map(|lock| lock.queue.len()).sum())
    }

    pub(super) fn step(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        if line.index < self.index {
            return Err(Violation::Order { found: line.index, before: self.index });
        }
        self.index = line.index;
        match line.what {
            What::Begun | What::Restored if line.line > 1 => Err(Violation::Begun),
            What::Begun | What::Restored => {
                // A restored table has no session of a client, but sessions that keep its locks closed.
                let begun = Self::from(token(line)?, ticket(line)?, line.count.unwrap_or_default() > 0);
                *self = Self { index: self.index, ..begun };
                Ok(())
            }
            What::SessionOpened => self.opened(session(line)?),
            What::SessionEnded => self.session_ended(session(line)?),
            What::Granted if is_entry(line) => self.granted_entry(line),
            What::Queued if is_entry(line) => self.queued_entry(line),
            What::Granted => self.granted(line),
            What::Queued => self.queued(line),
            What::Left => self.left(line),
            What::Released | What::Lost => self.ended(line),
            What::Revoked => self.holds(line).map(drop),
            What::ForcedRelease
            | What::WaiterRemoved
            | What::DelayLifted
            | What::DataDropped
            | What::Resized
            | What::MemberChanged
            | What::MemberRemoved
            | What::VersionRaised
            | What::Note => Ok(()),
        }
    }

    fn opened(&mut self, session: Session) -> Result<(), Violation> {
        match self.sessions.insert(session) {
            true => Ok(()),
            false => Err(Violation::OpenedTwice(session.to_string())),
        }
    }

    fn session_ended(&mut self, session: Session) -> Result<(), Violation> {
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

    /// Whether a session is open, or may be open since before.
    fn open(&self, session: Session) -> Result<(), Violation> {
        let may_be = self.ended.as_ref().is_some_and(|(_, ended)| !ended.contains(&session));
        match may_be || self.sessions.contains(&session) {
            true => Ok(()),
            false => Err(Violation::NotOpen(session.to_string())),
        }
    }

    fn granted(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (token, session, name) = (token(line)?, session(line)?, lock(line)?);
        self.open(session)?;
        if token <= self.last_token && self.last_grant != Some((token, session)) {
            return Err(Violation::Token { token, before: self.last_token });
        }
        let lock = self.locks.entry(name.to_owned()).or_default();
        let mode = line.mode.as_deref().ok_or(Violation::Incomplete("mode"))?;
        let room = match mode {
            "permit" => line.permits.ok_or(Violation::Incomplete("permits"))? as usize,
            "shared" => usize::MAX,
            _ => 1,
        };
        let differs = mode == "exclusive" || lock.is_exclusive || (mode == "shared") != lock.is_shared;
        if let Some((holder, _)) = lock.holders.first_key_value()
            && (differs || lock.holders.len() >= room)
        {
            return Err(Violation::Exclusion { lock: name.to_owned(), token, holder: *holder });
        }
        if let Some((first, _)) = lock.queue.first_key_value()
            && line.ticket.is_none_or(|ticket| ticket > *first)
        {
            return Err(Violation::Overtaken { lock: name.to_owned(), token, overtaken: *first });
        }
        if let Some(ticket) = line.ticket
            && lock.queue.remove(&ticket) != Some(session)
            && ticket > self.ticket_before
        {
            return Err(Violation::NotQueued { lock: name.to_owned(), ticket });
        }
        (lock.is_exclusive, lock.is_shared) = (mode == "exclusive", mode == "shared");
        lock.holders.insert(token, session);
        (self.last_token, self.last_grant) = (token, Some((token, session)));
        Ok(())
    }

    fn queued(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (ticket, session, name) = (ticket(line)?, session(line)?, lock(line)?);
        self.open(session)?;
        // An acquire of several locks has one ticket.
        if ticket < self.last_ticket || ticket <= self.ticket_before {
            return Err(Violation::Ticket { ticket, before: self.last_ticket });
        }
        self.last_ticket = ticket;
        self.locks.entry(name.to_owned()).or_default().queue.insert(ticket, session);
        Ok(())
    }

    /// All entries that one transaction writes have the same token.
    fn new_token_of_entry(&mut self, line: &Line<'_>, token: u64) -> Result<(), Violation> {
        if token <= self.last_token && self.last_write != Some((token, line.index)) {
            return Err(Violation::Token { token, before: self.last_token });
        }
        (self.last_token, self.last_write) = (token, Some((token, line.index)));
        Ok(())
    }

    fn granted_entry(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (token, session, name) = (token(line)?, session(line)?, lock(line)?);
        self.open(session)?;
        let lock = self.locks.entry(name.to_owned()).or_default();
        if let Some((holder, _)) = lock.holders.first_key_value() {
            return Err(Violation::Exclusion { lock: name.to_owned(), token, holder: *holder });
        }
        if token <= lock.last_entry {
            return Err(Violation::Token { token, before: lock.last_entry });
        }
        let queued = lock.queue.remove(&token);
        lock.last_entry = token;
        lock.holders.insert(token, session);
        match queued {
            Some(queued) if queued == session => Ok(()),
            Some(_) => Err(Violation::NotQueued { lock: name.to_owned(), ticket: token }),
            None if token <= self.token_before => Ok(()),
            None => self.new_token_of_entry(line, token),
        }
    }

    fn queued_entry(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (token, session, name) = (token(line)?, session(line)?, lock(line)?);
        self.open(session)?;
        self.new_token_of_entry(line, token)?;
        self.locks.entry(name.to_owned()).or_default().queue.insert(token, session);
        Ok(())
    }

    fn left(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (session, name) = (session(line)?, lock(line)?);
        let (ticket, ticket_before) = match is_entry(line) {
            true => (token(line)?, self.token_before),
            false => (ticket(line)?, self.ticket_before),
        };
        let found = self.locks.get_mut(name).and_then(|lock| lock.queue.remove(&ticket));
        self.forget(name);
        match found == Some(session) || found.is_none() && ticket <= ticket_before {
            true => Ok(()),
            false => Err(Violation::NotQueued { lock: name.to_owned(), ticket }),
        }
    }

    /// A grant ended.
    fn ended(&mut self, line: &Line<'_>) -> Result<(), Violation> {
        let (token, name) = self.holds(line)?;
        if let Some(lock) = self.locks.get_mut(name) {
            lock.holders.remove(&token);
        }
        self.forget(name);
        Ok(())
    }

    fn holds<'a>(&self, line: &'a Line<'_>) -> Result<(u64, &'a str), Violation> {
        let (token, session, name) = (token(line)?, session(line)?, lock(line)?);
        let found = self.locks.get(name).and_then(|lock| lock.holders.get(&token));
        match found == Some(&session) || found.is_none() && token <= self.token_before {
            true => Ok((token, name)),
            false => Err(Violation::NotHeld { lock: name.to_owned(), token }),
        }
    }

    fn forget(&mut self, name: &str) {
        if self.locks.get(name).is_some_and(|lock| lock.holders.is_empty() && lock.queue.is_empty()) {
            self.locks.remove(name);
        }
    }
}

fn is_entry(line: &Line<'_>) -> bool {
    line.kind.as_deref() == Some("entry")
}

fn token(line: &Line<'_>) -> Result<u64, Violation> {
    line.token.ok_or(Violation::Incomplete("token"))
}

fn ticket(line: &Line<'_>) -> Result<u64, Violation> {
    line.ticket.ok_or(Violation::Incomplete("ticket"))
}

fn session(line: &Line<'_>) -> Result<Session, Violation> {
    line.session.ok_or(Violation::Incomplete("session"))
}

fn lock<'a>(line: &'a Line<'_>) -> Result<&'a str, Violation> {
    line.lock.as_deref().ok_or(Violation::Incomplete("lock"))
}
