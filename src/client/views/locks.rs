//! Locks, their holders and their waiters.

use std::time::Duration;

use super::{address, each, given, mode, name, session_id, set, set_millis};
use crate::Error;
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1;
use lockkeeper_types::{Address, LockName, Mode, SessionId, Ticket, Token, WallTime};

/// The answer of [`Client::get`](crate::Client::get).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockAnswer {
    /// The lock. A lock that does not exist is shown as free.
    pub lock: LockInfo,
    /// The log index at which the cluster read it.
    pub index: u64,
}

/// The answer of [`Client::list`](crate::Client::list).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockPage {
    /// Sorted by name. At most 16 holders and 16 waiters of each; the counts include all.
    pub locks: Vec<LockInfo>,
    /// Where the next page begins, unless this was the last one.
    pub next_page_token: Option<String>,
    /// The log index at which the cluster read them.
    pub index: u64,
}

/// The answer of [`Client::check`](crate::Client::check).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckAnswer {
    /// The token holds the lock at `index`.
    pub held: bool,
    /// The holder with this token, if the lock is held by it.
    pub holder: Option<Holder>,
    /// The highest token granted so far in the whole cluster, if any was.
    pub last_token: Option<Token>,
    /// The log index at which the cluster read the answer.
    pub index: u64,
}

/// What holds a lock, or waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LockKind {
    /// Grants of sessions; also of a kind that this version does not know.
    #[default]
    Lock,
    /// Entries that clients of another protocol write, such as items of DynamoDB's lock clients. Their tickets are their tokens.
    Entry,
}

/// A lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LockInfo {
    /// Its name.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub name: LockName,
    /// What holds it.
    pub kind: LockKind,
    /// The mode in use; `None` while the lock has neither holder nor waiter, unless it was resized, and for a mode that this version does
    /// not know.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::mode"))]
    pub mode: Option<Mode>,
    /// The first holders, sorted by token.
    pub holders: Vec<Holder>,
    /// Number of all holders.
    pub holder_count: u64,
    /// The first waiters, in queue order.
    pub waiters: Vec<Waiter>,
    /// Number of all waiters.
    pub queue_length: u64,
    /// Its data, at most 16 KiB.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::data"))]
    pub data: Option<Vec<u8>>,
    /// Whether the data are kept when the present grants end.
    pub keep_data: bool,
    /// Time left of its lock-delay, if it has one.
    #[cfg_attr(feature = "serde", serde(rename = "delay_remaining_ms", serialize_with = "json::millis_or_zero"))]
    pub delay_remaining: Option<Duration>,
    /// An operator gave this semaphore its size, which `mode` shows: the sizes that acquires name do not count.
    pub resized: bool,
}

/// A holder of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Holder {
    /// The token of its grant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::token"))]
    pub token: Token,
    /// Its session.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub session_id: SessionId,
    /// The label of its session.
    pub label: String,
    /// The mode of its grant, unless this version does not know it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::mode"))]
    pub mode: Option<Mode>,
    /// The time of the grant, by the wall clock of the leader at that time. For people only.
    #[cfg_attr(feature = "serde", serde(rename = "since_unix_ms", serialize_with = "json::unix_millis"))]
    pub since: WallTime,
    /// Time left until the grant is lost if its session is not renewed.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "json::millis"))]
    pub remaining: Duration,
    /// The operator's reason if the grant is revoked.
    pub revoked_reason: Option<String>,
    /// The address from which its session was opened, as the node saw it that took the call, if that is known. An acquire is not told it of
    /// the holder that blocks it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_text"))]
    pub address: Option<Address>,
}

/// An acquire that waits for a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Waiter {
    /// Its place in the order of arrival: lower tickets are served first.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::ticket"))]
    pub ticket: Ticket,
    /// Its session.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub session_id: SessionId,
    /// The label of its session.
    pub label: String,
    /// The requested mode, unless this version does not know it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::mode"))]
    pub mode: Option<Mode>,
    /// The time of arrival, by the wall clock of the leader at that time. For people only.
    #[cfg_attr(feature = "serde", serde(rename = "since_unix_ms", serialize_with = "json::unix_millis"))]
    pub since: WallTime,
    /// Time left until the wait times out, if it has a limit.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "json::some_millis"))]
    pub remaining: Option<Duration>,
}

impl LockAnswer {
    pub(crate) fn from_wire(wire: v1::GetResponse) -> Result<Self, Error> {
        let lock = wire.lock.ok_or_else(|| Error::malformed("lock", ""))?;
        Ok(Self { lock: LockInfo::from_wire(lock)?, index: wire.index })
    }
}

impl LockPage {
    pub(crate) fn from_wire(wire: v1::ListResponse) -> Result<Self, Error> {
        let v1::ListResponse { locks, next_page_token, index } = wire;
        Ok(Self { locks: each(locks, LockInfo::from_wire)?, next_page_token: given(next_page_token), index })
    }
}

impl CheckAnswer {
    pub(crate) fn from_wire(wire: v1::CheckResponse) -> Result<Self, Error> {
        let v1::CheckResponse { held, holder, last_token, index } = wire;
        Ok(Self {
            held,
            holder: holder.map(Holder::from_wire).transpose()?,
            last_token: set(last_token).map(Token),
            index,
        })
    }
}

impl LockKind {
    pub(super) fn from_wire(number: i32) -> Self {
        match v1::LockKind::try_from(number) {
            Ok(v1::LockKind::Entry) => Self::Entry,
            Ok(v1::LockKind::Unspecified) | Err(_) => Self::Lock,
        }
    }
}

impl LockInfo {
    pub(crate) fn from_wire(wire: v1::LockInfo) -> Result<Self, Error> {
        Ok(Self {
            name: name("lock.name", &wire.name)?,
            kind: LockKind::from_wire(wire.kind),
            mode: mode("lock.mode.permit.limit", wire.mode)?,
            holders: each(wire.holders, Holder::from_wire)?,
            holder_count: wire.holder_count,
            waiters: each(wire.waiters, Waiter::from_wire)?,
            queue_length: wire.queue_length,
            data: wire.data,
            keep_data: wire.keep_data,
            delay_remaining: set_millis(wire.delay_remaining_ms),
            resized: wire.resized,
        })
    }
}

/// A holder of whom nothing is known, for programs that test what they show.
impl Default for Holder {
    fn default() -> Self {
        Self {
            token: Token::default(),
            session_id: SessionId::NONE,
            label: String::new(),
            mode: None,
            since: WallTime::default(),
            remaining: Duration::ZERO,
            revoked_reason: None,
            address: None,
        }
    }
}

impl Holder {
    pub(crate) fn from_wire(wire: v1::Holder) -> Result<Self, Error> {
        Ok(Self {
            token: Token(wire.token),
            session_id: session_id("holder.session_id", &wire.session_id)?,
            label: wire.label,
            mode: mode("holder.mode.permit.limit", wire.mode)?,
            since: WallTime(wire.since_unix_ms),
            remaining: Duration::from_millis(wire.remaining_ms),
            revoked_reason: given(wire.revoked_reason),
            address: address("holder.address", &wire.address)?,
        })
    }
}

impl Waiter {
    pub(crate) fn from_wire(wire: v1::Waiter) -> Result<Self, Error> {
        Ok(Self {
            ticket: Ticket(wire.ticket),
            session_id: session_id("waiter.session_id", &wire.session_id)?,
            label: wire.label,
            mode: mode("waiter.mode.permit.limit", wire.mode)?,
            since: WallTime(wire.since_unix_ms),
            remaining: wire.remaining_ms.map(Duration::from_millis),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    fn shared() -> Option<v1::Mode> {
        Some(v1::Mode { kind: Some(v1::mode::Kind::Shared(v1::mode::Shared {})) })
    }

    fn holder() -> v1::Holder {
        v1::Holder {
            token: 7,
            session_id: ID.to_owned(),
            label: "ann".to_owned(),
            mode: shared(),
            since_unix_ms: 1_000,
            remaining_ms: 2_000,
            revoked_reason: "stuck".to_owned(),
            address: "10.0.0.7:5123".to_owned(),
        }
    }

    fn waiter() -> v1::Waiter {
        v1::Waiter {
            ticket: 8,
            session_id: ID.to_owned(),
            label: "bob".to_owned(),
            mode: shared(),
            since_unix_ms: 3_000,
            remaining_ms: Some(0),
        }
    }

    fn lock() -> v1::LockInfo {
        v1::LockInfo {
            name: "jobs".to_owned(),
            mode: shared(),
            holders: vec![holder()],
            holder_count: 2,
            waiters: vec![waiter()],
            queue_length: 3,
            data: Some(b"x".to_vec()),
            keep_data: true,
            delay_remaining_ms: 4_000,
            resized: true,
            kind: v1::LockKind::Entry.into(),
        }
    }

    #[test]
    fn a_lock_keeps_every_value() {
        let session_id: SessionId = ID.parse().unwrap();
        let expected = LockInfo {
            name: LockName::new("jobs").unwrap(),
            kind: LockKind::Entry,
            mode: Some(Mode::Shared),
            holders: vec![Holder {
                token: Token(7),
                session_id,
                label: "ann".to_owned(),
                mode: Some(Mode::Shared),
                since: WallTime(1_000),
                remaining: Duration::from_secs(2),
                revoked_reason: Some("stuck".to_owned()),
                address: Some("10.0.0.7:5123".parse().unwrap()),
            }],
            holder_count: 2,
            waiters: vec![Waiter {
                ticket: Ticket(8),
                session_id,
                label: "bob".to_owned(),
                mode: Some(Mode::Shared),
                since: WallTime(3_000),
                // A wait whose time is over is none without a limit.
                remaining: Some(Duration::ZERO),
            }],
            queue_length: 3,
            data: Some(b"x".to_vec()),
            keep_data: true,
            delay_remaining: Some(Duration::from_secs(4)),
            resized: true,
        };
        let answer = LockAnswer::from_wire(v1::GetResponse { lock: Some(lock()), index: 42 }).unwrap();
        assert_eq!(answer, LockAnswer { lock: expected.clone(), index: 42 });
        let page = v1::ListResponse { locks: vec![lock()], next_page_token: "jobs".to_owned(), index: 42 };
        let expected = LockPage { locks: vec![expected], next_page_token: Some("jobs".to_owned()), index: 42 };
        assert_eq!(LockPage::from_wire(page).unwrap(), expected);
        assert_eq!(LockPage::from_wire(v1::ListResponse::default()).unwrap().next_page_token, None);
    }

    #[test]
    fn a_free_lock_has_none_of_all() {
        let free = LockInfo::from_wire(v1::LockInfo { name: "jobs".to_owned(), ..v1::LockInfo::default() }).unwrap();
        assert_eq!((free.mode, free.data, free.delay_remaining), (None, None, None));
        let unlimited = Waiter::from_wire(v1::Waiter { remaining_ms: None, ..waiter() }).unwrap();
        assert_eq!(unlimited.remaining, None);
        let unrevoked = Holder::from_wire(v1::Holder { revoked_reason: String::new(), ..holder() }).unwrap();
        assert_eq!(unrevoked.revoked_reason, None);
    }

    #[test]
    fn the_answer_to_a_check_names_no_token_before_the_first() {
        let answer = v1::CheckResponse { held: true, holder: Some(holder()), last_token: 9, index: 42 };
        let held = CheckAnswer::from_wire(answer).unwrap();
        assert_eq!((held.held, held.last_token, held.index), (true, Some(Token(9)), 42));
        assert_eq!(held.holder, Some(Holder::from_wire(holder()).unwrap()));
        let first = CheckAnswer::from_wire(v1::CheckResponse::default()).unwrap();
        assert_eq!((first.held, first.holder, first.last_token), (false, None, None));
    }

    #[test]
    fn values_without_a_meaning_are_named() {
        assert_eq!(malformed(LockAnswer::from_wire(v1::GetResponse::default())), ("lock", String::new()));
        assert_eq!(malformed(LockInfo::from_wire(v1::LockInfo::default())), ("lock.name", String::new()));
        let holders = vec![v1::Holder { session_id: "ann".to_owned(), ..holder() }];
        let wrong = malformed(LockInfo::from_wire(v1::LockInfo { holders, ..lock() }));
        assert_eq!(wrong, ("holder.session_id", "ann".to_owned()));
        let holders = vec![v1::Holder { address: "nowhere".to_owned(), ..holder() }];
        let wrong = malformed(LockInfo::from_wire(v1::LockInfo { holders, ..lock() }));
        assert_eq!(wrong, ("holder.address", "nowhere".to_owned()));
        let waiters = vec![v1::Waiter { session_id: "bob".to_owned(), ..waiter() }];
        let wrong = malformed(LockInfo::from_wire(v1::LockInfo { waiters, ..lock() }));
        assert_eq!(wrong, ("waiter.session_id", "bob".to_owned()));
    }
}
