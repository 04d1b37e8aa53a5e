//! The words that commands, replies and events are made of. Types keep bad values out.

use std::{borrow::Borrow, fmt, num::NonZeroU32, str::FromStr, sync::Arc};

use super::limits::*;

/// A session's name: 128 random bits, drawn outside the machine. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

/// The name of a grant, and its fence: strictly increasing over all grants of the cluster. The first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// A waiter's place in the order of arrival. The first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// Cluster time in milliseconds. Only ever compared with other stamps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(pub u64);

/// A wall-clock time, milliseconds since 1970-01-01 UTC. For people to read; nothing is decided by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(pub u64);

/// When a batch of commands happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Cluster time: decides.
    pub stamp: Stamp,
    /// The leader's wall clock: is shown.
    pub wall: WallTime,
}

/// Why a value cannot be what it was to be. The message names the limit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// A lock's name: UTF-8, 1 to [`NAME_BYTES_MAX`] bytes, without NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

/// Who a session is, for people to read: at most [`LABEL_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Label(Arc<str>);

/// Why an operator forced a release: 1 to [`REASON_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason(Arc<str>);

/// What a lock carries: at most [`DATA_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data(Arc<[u8]>);

/// How long a session lives without a renewal, milliseconds: [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ttl(NonZeroU32);

/// How many may hold a semaphore at a time: 1 to [`PERMITS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Permits(NonZeroU32);

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By one.
    Exclusive,
    /// By any number of sharers, while nobody holds it exclusively.
    Shared,
    /// By up to so many at a time.
    Permit(Permits),
}

/// Makes a request happen once, however often it is sent (RIFL: Lee et al., SOSP'15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Chosen by the client, rising; 1 or more.
    pub id: u64,
    /// The lowest id whose reply the client may still ask for.
    pub lowest: u64,
}

/// One lock of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which.
    pub name: LockName,
    /// How.
    pub mode: Mode,
    /// Data to set once it is held; `None` leaves what is there.
    pub data: Option<Data>,
    /// Whether the data stay when the grant ends.
    pub keep_data: bool,
}

/// How long an acquire waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    Never,
    /// At most so many milliseconds: 1 to [`WAIT_MS_MAX`].
    Millis(u64),
    /// As long as its session lives.
    Forever,
}

/// What to acquire: 1 to [`WANTS_MAX`] locks, all or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// In the order of their names, no name twice: see [`Acquire::new`].
    wants: Arc<[Want]>,
    /// How long to wait.
    pub wait: Wait,
    /// How long the locks stay closed if this holder is lost, milliseconds: 0 to [`LOCK_DELAY_MS_MAX`].
    pub lock_delay_ms: u32,
}

/// What to release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A grant.
    Grant(Token),
    /// An acquire by its request id, whether it was granted, waits or never arrived.
    Acquire(u64),
}

/// What to set on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update {
    /// A grant that holds it.
    pub token: Token,
    /// The lock.
    pub name: LockName,
    /// `None` removes what is there.
    pub data: Option<Data>,
    /// Whether the data stay when the grant ends.
    pub keep_data: bool,
}

/// What a session asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Locks, all or nothing.
    Acquire(Acquire),
    /// Give a grant back, or take an acquire back.
    Release(Target),
    /// Set the data on a lock.
    Update(Update),
}

/// One entry of the log's batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a session. The same again, while it lives, renews it.
    Open {
        /// Drawn at random outside the machine.
        session: SessionId,
        /// How long it lives without a renewal.
        ttl: Ttl,
        /// Who it is.
        label: Label,
    },
    /// Renews sessions.
    Renew {
        /// Answered one by one, in this order.
        sessions: Vec<SessionId>,
    },
    /// Closes a session: releases what it holds, cancels what it waits for.
    Close {
        /// Which.
        session: SessionId,
    },
    /// A session's request, at most once for each request id.
    Session {
        /// Whose.
        session: SessionId,
        /// `None`: no promise that a retry happens once.
        request: Option<Request>,
        /// What.
        operation: Operation,
    },
    /// Ends a wait whose call broke off. A wait that was granted meanwhile stays granted.
    CancelWait {
        /// Which.
        ticket: Ticket,
    },
    /// Revokes grants of a lock, by an operator.
    ForceRelease {
        /// The lock.
        name: LockName,
        /// Only this grant; `None`: all of the lock's.
        token: Option<Token>,
        /// Why.
        reason: Reason,
        /// Open at once, rather than at the deadline that the holder's session has now.
        now: bool,
    },
    /// Lets time pass.
    Tick,
}

/// A successful acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Its name.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// The locks, in the order of their names.
    pub names: Arc<[LockName]>,
}

/// What stands in the way of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The first of the locks asked for that is not to be had.
    pub name: LockName,
    /// A holder of it; `None` if it is only delayed, or only awaited by others.
    pub holder: Option<HolderView>,
    /// How many wait for it.
    pub queue_length: u64,
    /// How long its lock-delay still lasts, milliseconds; 0 if there is none.
    pub delay_remaining_ms: u64,
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed in time.
    Expired,
    /// The table does not know it: never opened, or ended long ago.
    Unknown,
}

/// A grant that an operator took back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The grant.
    pub token: Token,
    /// The operator's reason.
    pub reason: Reason,
    /// How long its locks still stay closed if the holder does not let go, milliseconds; 0: they are open.
    pub remaining_ms: u64,
}

/// The answer to one renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The session lives on.
    Renewed {
        /// For so long.
        ttl: Ttl,
        /// Its grants that are revoked and not yet given back.
        revoked: Vec<Revocation>,
    },
    /// It is over.
    Ended(SessionEnd),
}

/// What a release found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// A grant.
    Grant,
    /// A wait.
    Wait,
    /// Nothing; should the acquire still arrive, it is refused as [`Refusal::Abandoned`].
    Nothing,
}

/// A grant as a forced release left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forced {
    /// The grant.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How long its locks still stay closed if the holder does not let go, milliseconds; 0: they are open.
    pub remaining_ms: u64,
}

/// A limit that a command would have exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// [`SESSIONS_MAX`]
    Sessions,
    /// [`WAITERS_MAX`]
    Waiters,
    /// [`LOCKS_MAX`]
    Locks,
    /// [`REPLIES_PER_SESSION_MAX`]
    RepliesPerSession,
}

/// Why a command was refused. The table is as it was before, but for the time that passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The session is over.
    SessionEnded(SessionEnd),
    /// Another session lives under this id.
    SessionExists,
    /// The token names no grant of this session that holds the lock now.
    NotHeld,
    /// The lock is in use in another way.
    ModeMismatch {
        /// Which.
        name: LockName,
        /// As a semaphore of this size, or as a lock.
        in_use: Option<Permits>,
    },
    /// The client released this acquire before it arrived.
    Abandoned,
    /// The request id is below the lowest that the client cares about.
    RequestStale {
        /// The lowest.
        lowest: u64,
    },
    /// The request id was used for a request of another kind.
    RequestReused,
    /// A limit was reached.
    Limit(Limit),
}

/// How a wait ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    /// With a grant.
    Granted(Grant),
    /// It waited as long as it was to.
    TimedOut(Busy),
    /// Its call broke off and was not repeated in time.
    Cancelled,
    /// Its own client released it.
    Abandoned,
    /// Its session ended.
    SessionEnded(SessionEnd),
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To [`Command::Open`].
    Opened(Ttl),
    /// To [`Command::Renew`].
    Renewed(Vec<Renewal>),
    /// To [`Command::Close`].
    Closed,
    /// To an acquire that waits: its end comes as [`Event::WaitEnded`].
    Queued(Ticket),
    /// To an acquire that is over: granted at once, or a retry of one that waited.
    Acquired(WaitEnd),
    /// To an acquire that was not to wait.
    Busy(Busy),
    /// To a release.
    Released(Released),
    /// To an update.
    Updated,
    /// To [`Command::CancelWait`]: whether there was such a wait.
    WaitCancelled(bool),
    /// To [`Command::ForceRelease`].
    Forced(Vec<Forced>),
    /// To [`Command::Tick`].
    Ticked,
    /// To any of them.
    Refused(Refusal),
}

/// What a command, or the time that passed, did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A wait is over: its caller can be answered.
    WaitEnded {
        /// Which.
        ticket: Ticket,
        /// How.
        end: WaitEnd,
    },
    /// A session is over.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// How.
        end: SessionEnd,
    },
    /// A grant was revoked: its holder is to be told.
    Revoked {
        /// Whose.
        session: SessionId,
        /// What.
        revocation: Revocation,
    },
    /// A lock changed: whoever watches it is to be told.
    Changed(Change),
}

/// What happened to one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The lock.
    pub name: LockName,
    /// What happened.
    pub kind: ChangeKind,
}

/// What happened to a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A grant began.
    Granted {
        /// The grant.
        token: Token,
        /// Whose.
        session: SessionId,
        /// Who that is.
        label: Label,
        /// How it holds the lock.
        mode: Mode,
    },
    /// A holder gave it back, or closed its session.
    Released {
        /// The grant.
        token: Token,
        /// Whose it was.
        session: SessionId,
    },
    /// A holder lost it.
    Lost {
        /// The grant.
        token: Token,
        /// Whose it was.
        session: SessionId,
        /// `Some`: an operator forced it. `None`: its session expired.
        reason: Option<Reason>,
    },
    /// An operator revoked a grant; it is held until its holder lets go or its deadline comes.
    Revoked {
        /// The grant.
        token: Token,
        /// Whose.
        session: SessionId,
        /// Why.
        reason: Reason,
    },
    /// An acquire began to wait.
    Queued {
        /// Its place.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Who that is.
        label: Label,
        /// How it would hold the lock.
        mode: Mode,
    },
    /// A wait ended without a grant.
    Left {
        /// Its place.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// The data changed to this.
    Data(Option<Data>),
    /// A lock-delay began.
    Delayed,
    /// A lock-delay ended.
    Opened,
}

/// A holder, as shown to people and to those it keeps waiting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderView {
    /// Its grant.
    pub token: Token,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How it holds the lock.
    pub mode: Mode,
    /// Since when.
    pub since: WallTime,
    /// Until it is lost if its session is not renewed, milliseconds.
    pub remaining_ms: u64,
    /// `Some`: an operator revoked it.
    pub revoked: Option<Reason>,
}

/// A waiter, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView {
    /// Its place.
    pub ticket: Ticket,
    /// Whose.
    pub session: SessionId,
    /// Who that is.
    pub label: Label,
    /// How it would hold the lock.
    pub mode: Mode,
    /// Since when.
    pub since: WallTime,
    /// Until it gives up, milliseconds; `None`: it does not.
    pub remaining_ms: Option<u64>,
}

/// A lock, as shown to people. A lock that nothing is known of is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// As what it is in use: the mode of a holder, or else of the first waiter.
    pub mode: Option<Mode>,
    /// In the order of their tokens; as many as were asked for.
    pub holders: Vec<HolderView>,
    /// How many there are.
    pub holder_count: u64,
    /// In the order of the queue; as many as were asked for.
    pub waiters: Vec<WaiterView>,
    /// How many there are.
    pub queue_length: u64,
    /// What it carries.
    pub data: Option<Data>,
    /// Whether that outlives the present grants.
    pub keep_data: bool,
    /// How long its lock-delay still lasts, milliseconds; 0 if there is none.
    pub delay_remaining_ms: u64,
}

/// A session, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// Its name.
    pub session: SessionId,
    /// Who it is.
    pub label: Label,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// How long it still lives, milliseconds.
    pub remaining_ms: u64,
    /// Since when it lives.
    pub opened: WallTime,
    /// Grants that it holds.
    pub grants: u32,
    /// Acquires that wait.
    pub waits: u32,
}

/// How much the table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sessions alive.
    pub sessions: usize,
    /// Locks held, awaited, delayed or with data.
    pub locks: usize,
    /// Acquires that wait.
    pub waiters: usize,
    /// Grants held.
    pub grants: usize,
}

/// Which part of a lock's holders and waiters to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// At most so many of each.
    pub size: usize,
    /// Only holders above this token.
    pub holders_after: Token,
    /// Only waiters above this ticket.
    pub waiters_after: Ticket,
}

fn text(what: &str, value: &str, least: usize, most: usize) -> Result<Arc<str>, Invalid> {
    if value.len() < least {
        return Err(Invalid(format!("{what} is empty: give it 1 to {most} bytes")));
    }
    if value.len() > most {
        return Err(Invalid(format!("{what} has {} bytes: the limit is {most}", value.len())));
    }
    Ok(value.into())
}

fn number<N: PartialOrd + fmt::Display>(what: &str, value: N, least: N, most: N) -> Result<N, Invalid> {
    if value < least || value > most {
        return Err(Invalid(format!("{what} is {value}: give it {least} to {most}")));
    }
    Ok(value)
}

impl LockName {
    /// Fails on an empty name, one over [`NAME_BYTES_MAX`], and one with a NUL in it.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        let name = text("the lock's name", name, 1, NAME_BYTES_MAX)?;
        if name.contains('\0') {
            return Err(Invalid(format!("the lock's name {name:?} has a NUL in it: leave it out")));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// So that a table of locks can be searched from a prefix, which need not be a name.
impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Label {
    /// Fails over [`LABEL_BYTES_MAX`].
    pub fn new(label: &str) -> Result<Self, Invalid> {
        text("the session's label", label, 0, LABEL_BYTES_MAX).map(Self)
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Reason {
    /// Fails on an empty reason and one over [`REASON_BYTES_MAX`].
    pub fn new(reason: &str) -> Result<Self, Invalid> {
        text("the reason", reason, 1, REASON_BYTES_MAX).map(Self)
    }

    /// The reason.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Data {
    /// Fails over [`DATA_BYTES_MAX`].
    pub fn new(data: &[u8]) -> Result<Self, Invalid> {
        if data.len() > DATA_BYTES_MAX {
            return Err(Invalid(format!("the data have {} bytes: the limit is {DATA_BYTES_MAX}", data.len())));
        }
        Ok(Self(data.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Ttl {
    /// Fails outside [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
    pub fn from_millis(ms: u32) -> Result<Self, Invalid> {
        let ms = number("the TTL in milliseconds", ms, TTL_MS_MIN, TTL_MS_MAX)?;
        Ok(Self(NonZeroU32::new(ms).expect("the least TTL is above zero")))
    }

    /// Milliseconds.
    pub fn as_millis(self) -> u32 {
        self.0.get()
    }
}

impl Permits {
    /// Fails outside 1 to [`PERMITS_MAX`].
    pub fn new(permits: u32) -> Result<Self, Invalid> {
        let permits = number("the number of permits", permits, 1, PERMITS_MAX)?;
        Ok(Self(NonZeroU32::new(permits).expect("the least number is above zero")))
    }

    /// How many.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl Mode {
    /// As a semaphore of what size, or as a lock. All who use a name agree on it.
    pub fn permits(self) -> Option<Permits> {
        match self {
            Self::Exclusive | Self::Shared => None,
            Self::Permit(permits) => Some(permits),
        }
    }
}

impl Wait {
    /// 0 does not wait. Fails over [`WAIT_MS_MAX`].
    pub fn from_millis(ms: u64) -> Result<Self, Invalid> {
        match number("the wait in milliseconds", ms, 0, WAIT_MS_MAX)? {
            0 => Ok(Self::Never),
            ms => Ok(Self::Millis(ms)),
        }
    }
}

impl Acquire {
    /// Sorts the locks by name. Fails on none or more than [`WANTS_MAX`], on a name given twice, on a wait outside 1 to
    /// [`WAIT_MS_MAX`], and on a lock-delay over [`LOCK_DELAY_MS_MAX`].
    pub fn new(mut wants: Vec<Want>, wait: Wait, lock_delay_ms: u32) -> Result<Self, Invalid> {
        number("the number of locks in one acquire", wants.len(), 1, WANTS_MAX)?;
        if let Wait::Millis(ms) = wait {
            number("the wait in milliseconds", ms, 1, WAIT_MS_MAX)?;
        }
        number("the lock-delay in milliseconds", lock_delay_ms, 0, LOCK_DELAY_MS_MAX)?;
        wants.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = wants.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Invalid(format!("the lock {:?} is named twice in one acquire: name it once", pair[0].name)));
        }
        Ok(Self { wants: wants.into(), wait, lock_delay_ms })
    }

    /// In the order of their names, no name twice.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(id) if digits => Ok(Self(id)),
            _ => Err(Invalid(format!("the session id {text:?} is not 32 hexadecimal digits"))),
        }
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T, Invalid>) -> String {
        result.err().map(|invalid| invalid.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_name_is_1_to_512_bytes_without_nul() {
        assert!(LockName::new("a").is_ok());
        assert!(LockName::new(&"é".repeat(NAME_BYTES_MAX / 2)).is_ok());
        assert_eq!(message(LockName::new("")), "the lock's name is empty: give it 1 to 512 bytes");
        assert_eq!(message(LockName::new(&"x".repeat(513))), "the lock's name has 513 bytes: the limit is 512");
        assert_eq!(message(LockName::new("a\0b")), r#"the lock's name "a\0b" has a NUL in it: leave it out"#);
    }

    #[test]
    fn texts_and_data_have_their_limits() {
        assert!(Label::new("").is_ok() && Label::new(&"x".repeat(LABEL_BYTES_MAX)).is_ok());
        assert!(Label::new(&"x".repeat(LABEL_BYTES_MAX + 1)).is_err());
        assert!(Reason::new(&"x".repeat(REASON_BYTES_MAX)).is_ok());
        assert!(Reason::new("").is_err() && Reason::new(&"x".repeat(REASON_BYTES_MAX + 1)).is_err());
        assert!(Data::new(&[]).is_ok() && Data::new(&[0; DATA_BYTES_MAX]).is_ok());
        assert!(Data::new(&[0; DATA_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn numbers_have_their_limits() {
        assert!(Ttl::from_millis(TTL_MS_MIN).is_ok() && Ttl::from_millis(TTL_MS_MAX).is_ok());
        assert_eq!(message(Ttl::from_millis(99)), "the TTL in milliseconds is 99: give it 100 to 86400000");
        assert!(Ttl::from_millis(0).is_err() && Ttl::from_millis(TTL_MS_MAX + 1).is_err());
        assert!(Permits::new(1).is_ok() && Permits::new(PERMITS_MAX).is_ok());
        assert!(Permits::new(0).is_err() && Permits::new(PERMITS_MAX + 1).is_err());
        assert_eq!(Wait::from_millis(0), Ok(Wait::Never));
        assert!(Wait::from_millis(WAIT_MS_MAX).is_ok() && Wait::from_millis(WAIT_MS_MAX + 1).is_err());
    }

    #[test]
    fn an_acquire_is_1_to_64_locks_in_order_none_twice() {
        let want = |name: &str| {
            let name = LockName::new(name).unwrap();
            Want { name, mode: Mode::Exclusive, data: None, keep_data: false }
        };
        let many = |count: usize| (0..count).map(|number| want(&number.to_string())).collect();
        let acquire = Acquire::new(vec![want("b"), want("a")], Wait::Never, 0).unwrap();
        assert_eq!(acquire.wants(), [want("a"), want("b")]);
        assert!(Acquire::new(many(WANTS_MAX), Wait::Never, LOCK_DELAY_MS_MAX).is_ok());
        assert!(Acquire::new(vec![], Wait::Never, 0).is_err());
        assert!(Acquire::new(many(WANTS_MAX + 1), Wait::Never, 0).is_err());
        assert!(Acquire::new(many(1), Wait::Never, LOCK_DELAY_MS_MAX + 1).is_err());
        assert!(Acquire::new(many(1), Wait::Millis(0), 0).is_err());
        assert!(Acquire::new(many(1), Wait::Millis(WAIT_MS_MAX + 1), 0).is_err());
        assert_eq!(
            message(Acquire::new(vec![want("a"), want("b"), want("a")], Wait::Never, 0)),
            r#"the lock "a" is named twice in one acquire: name it once"#
        );
    }

    #[test]
    fn a_session_id_is_32_hexadecimal_digits() {
        let id = SessionId(0xabc);
        assert_eq!(id.to_string(), "00000000000000000000000000000abc");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "abc", "+0000000000000000000000000000abc", "00000000000000000000000000000abg"] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?} was taken");
        }
    }
}
