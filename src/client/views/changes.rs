//! The messages of a watch: the state of the locks, then their changes.

use super::{LockInfo, LockKind, each, given, mode, name, session_id, set};
use crate::Error;
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1::{self, change::Kind, watch_response::What};
use lockkeeper_types::{LockName, Mode, SessionId, Ticket, Token};

/// A message of a [`Watch`](crate::Watch).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchMessage {
    /// Part of the present state.
    State(StatePart),
    /// The changes of one log entry.
    Changes(Changes),
    /// There were no changes up to this log index. Sent after one second without another message.
    Progress {
        /// All changes up to this log index were delivered.
        index: u64,
    },
    /// The changes after the requested index are no longer kept. The state follows.
    TooOld {
        /// The requested index.
        after_index: u64,
    },
}

/// Part of the present state. The first part replaces all that the reader knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatePart {
    /// Sorted by name. At most 16 holders and 16 waiters of each; the counts include all.
    pub locks: Vec<LockInfo>,
    /// The log index of all parts of this state.
    pub index: u64,
    /// The first part of the state.
    pub first: bool,
    /// The last part of the state; changes follow.
    pub last: bool,
}

/// The changes of one log entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changes {
    /// The index of the entry; higher than in any message before, except for other parts of the same entry.
    pub index: u64,
    /// In the order in which they happened; only locks of the prefix.
    pub changes: Vec<Change>,
    /// The entry has more changes than one message holds: the next message continues it.
    pub more: bool,
}

/// A change of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Change {
    /// The lock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub name: LockName,
    /// What holds the lock.
    pub lock_kind: LockKind,
    /// The kind of change.
    #[cfg_attr(feature = "serde", serde(rename = "change", serialize_with = "json::change_kind"))]
    pub kind: ChangeKind,
    /// The grant concerned.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_token"))]
    pub token: Option<Token>,
    /// The session of the grant or the wait.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_text"))]
    pub session_id: Option<SessionId>,
    /// For [`ChangeKind::Queued`] and [`ChangeKind::Granted`]: the session's label, unless it is empty.
    pub label: Option<String>,
    /// The waiter concerned; for [`ChangeKind::Granted`] the wait that the grant ends.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_ticket"))]
    pub ticket: Option<Ticket>,
    /// For [`ChangeKind::Revoked`], and for [`ChangeKind::Lost`] if an operator forced it: the operator's reason.
    pub reason: Option<String>,
    /// Likewise: the operator's identity, if it is known.
    pub by: Option<String>,
    /// For [`ChangeKind::Data`]: the lock's data after the change.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::data"))]
    pub data: Option<Vec<u8>>,
    /// For [`ChangeKind::Queued`] and [`ChangeKind::Granted`]; for [`ChangeKind::Resized`]: the new size. `None` also for a mode that this
    /// version does not know.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::mode"))]
    pub mode: Option<Mode>,
}

/// The kind of a [`Change`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A grant began.
    Granted,
    /// The holder released the grant or closed its session.
    Released,
    /// The holder lost the grant: its session expired, or an operator forced it.
    Lost,
    /// An operator revoked the grant; it is held until its holder releases it or its deadline passes.
    Revoked,
    /// An acquire began to wait.
    Queued,
    /// A wait ended without a grant.
    Left,
    /// The data changed.
    Data,
    /// A lock-delay began.
    Delayed,
    /// A lock-delay ended.
    Opened,
    /// An operator gave the semaphore another size. The end of that size is not reported: it ends with the last holder, waiter and data.
    Resized,
    /// A kind that this version does not know, by its number in the protocol.
    Other(i32),
}

impl WatchMessage {
    /// Returns `None` for a kind of message that this version does not know.
    pub(crate) fn from_wire(wire: v1::WatchResponse) -> Result<Option<Self>, Error> {
        let Some(what) = wire.what else { return Ok(None) };
        Ok(Some(match what {
            What::State(state) => {
                let v1::watch_response::State { locks, index, first, last } = state;
                Self::State(StatePart { locks: each(locks, LockInfo::from_wire)?, index, first, last })
            }
            What::Changes(changes) => {
                let v1::watch_response::Changes { index, changes, more } = changes;
                Self::Changes(Changes { index, changes: each(changes, Change::from_wire)?, more })
            }
            What::Progress(progress) => Self::Progress { index: progress.index },
            What::TooOld(too_old) => Self::TooOld { after_index: too_old.after_index },
        }))
    }
}

impl Change {
    fn from_wire(wire: v1::Change) -> Result<Self, Error> {
        let id = given(wire.session_id).map(|id| session_id("change.session_id", &id));
        Ok(Self {
            name: name("change.name", &wire.name)?,
            lock_kind: LockKind::from_wire(wire.lock_kind),
            kind: ChangeKind::from_wire(wire.kind),
            token: set(wire.token).map(Token),
            session_id: id.transpose()?,
            label: given(wire.label),
            ticket: set(wire.ticket).map(Ticket),
            reason: given(wire.reason),
            by: given(wire.by),
            data: wire.data,
            mode: mode("change.mode.permit.limit", wire.mode)?,
        })
    }
}

impl ChangeKind {
    /// Its name: that of the protocol in lower case, or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Revoked => "revoked",
            Self::Queued => "queued",
            Self::Left => "left",
            Self::Data => "data",
            Self::Delayed => "delayed",
            Self::Opened => "opened",
            Self::Resized => "resized",
            Self::Other(_) => "unknown",
        }
    }

    fn from_wire(number: i32) -> Self {
        match Kind::try_from(number) {
            Ok(Kind::Granted) => Self::Granted,
            Ok(Kind::Released) => Self::Released,
            Ok(Kind::Lost) => Self::Lost,
            Ok(Kind::Revoked) => Self::Revoked,
            Ok(Kind::Queued) => Self::Queued,
            Ok(Kind::Left) => Self::Left,
            Ok(Kind::Data) => Self::Data,
            Ok(Kind::Delayed) => Self::Delayed,
            Ok(Kind::Opened) => Self::Opened,
            Ok(Kind::Resized) => Self::Resized,
            Ok(Kind::Unspecified) | Err(_) => Self::Other(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    fn changes(change: v1::Change) -> v1::WatchResponse {
        let changes = v1::watch_response::Changes { index: 42, changes: vec![change], more: true };
        v1::WatchResponse { what: Some(What::Changes(changes)) }
    }

    fn named(kind: i32) -> v1::Change {
        v1::Change { name: "jobs".to_owned(), kind, ..v1::Change::default() }
    }

    fn only(message: v1::WatchResponse) -> Change {
        let Ok(Some(WatchMessage::Changes(Changes { index: 42, mut changes, more: true }))) =
            WatchMessage::from_wire(message)
        else {
            panic!("changes");
        };
        assert_eq!(changes.len(), 1);
        changes.remove(0)
    }

    #[test]
    fn a_change_keeps_every_value_and_names_none_for_those_that_it_does_not_have() {
        let all = v1::Change {
            token: 7,
            session_id: ID.to_owned(),
            label: "ann".to_owned(),
            ticket: 8,
            reason: "stuck".to_owned(),
            by: "ops".to_owned(),
            data: Some(Vec::new()),
            mode: Some(v1::Mode { kind: Some(v1::mode::Kind::Permit(v1::mode::Permit { limit: 3 })) }),
            ..named(Kind::Granted.into())
        };
        let expected = Change {
            name: LockName::new("jobs").unwrap(),
            lock_kind: LockKind::Lock,
            kind: ChangeKind::Granted,
            token: Some(Token(7)),
            session_id: Some(ID.parse().unwrap()),
            label: Some("ann".to_owned()),
            ticket: Some(Ticket(8)),
            reason: Some("stuck".to_owned()),
            by: Some("ops".to_owned()),
            data: Some(Vec::new()),
            mode: Some(Mode::Permit(lockkeeper_types::Permits::new(3).unwrap())),
        };
        assert_eq!(only(changes(all)), expected);
        let expected = Change {
            lock_kind: LockKind::Lock,
            kind: ChangeKind::Opened,
            token: None,
            session_id: None,
            label: None,
            ticket: None,
            reason: None,
            by: None,
            data: None,
            mode: None,
            ..expected
        };
        assert_eq!(only(changes(named(Kind::Opened.into()))), expected);
    }

    #[test]
    fn every_kind_of_change_is_known_and_a_later_one_keeps_its_number() {
        for number in 1..100 {
            let kind = only(changes(named(number))).kind;
            match Kind::try_from(number) {
                // The names agree.
                Ok(wire) => assert_eq!(format!("{kind:?}"), format!("{wire:?}")),
                Err(_) => assert_eq!(kind, ChangeKind::Other(number)),
            }
        }
        assert_eq!(only(changes(named(0))).kind, ChangeKind::Other(0));
    }

    #[test]
    fn other_messages_keep_their_index_and_a_later_one_is_none() {
        let of = |what| WatchMessage::from_wire(v1::WatchResponse { what }).unwrap();
        let lock = v1::LockInfo { name: "jobs".to_owned(), ..v1::LockInfo::default() };
        let state = v1::watch_response::State { locks: vec![lock.clone()], index: 42, first: true, last: false };
        let locks = vec![LockInfo::from_wire(lock).unwrap()];
        let expected = StatePart { locks, index: 42, first: true, last: false };
        assert_eq!(of(Some(What::State(state))), Some(WatchMessage::State(expected)));
        let progress = v1::watch_response::Progress { index: 42 };
        assert_eq!(of(Some(What::Progress(progress))), Some(WatchMessage::Progress { index: 42 }));
        let too_old = v1::watch_response::TooOld { after_index: 42 };
        assert_eq!(of(Some(What::TooOld(too_old))), Some(WatchMessage::TooOld { after_index: 42 }));
        assert_eq!(of(None), None);
    }

    #[test]
    fn a_change_without_a_lock_or_with_an_impossible_session_is_malformed() {
        let of = |change| malformed(WatchMessage::from_wire(changes(change)));
        assert_eq!(of(v1::Change::default()), ("change.name", String::new()));
        let change = v1::Change { session_id: "ann".to_owned(), ..named(1) };
        assert_eq!(of(change), ("change.session_id", "ann".to_owned()));
    }
}
