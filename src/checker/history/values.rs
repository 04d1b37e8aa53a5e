//! The vocabulary of events.

use serde::{Deserialize, Serialize};

/// The name of a session. The client draws 32 hexadecimal digits; a handwritten history may use `ann`.
pub type Session = String;

/// The supported version of the format.
pub(super) const FORMAT: u32 = 1;

/// The promises of a run, in its first line. A promise that is not given is not checked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Version of the format: 1.
    pub format: u32,
    /// The seed of the run, to repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// How much earlier than its TTL a session may end, nanoseconds: the rounding of stamps in whole milliseconds. 0
    /// for an exact clock.
    pub stamp_ns: u64,
    /// Bound on the time beyond its TTL after which a dead holder's lock is granted to the next waiter, milliseconds,
    /// without time under faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry_bound_ms: Option<u64>,
    /// Bound on the time for which a lock with waiters may be free, and by which a wait may exceed its limit,
    /// milliseconds, without time under faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover_bound_ms: Option<u64>,
    /// Bound on the time from the end of all faults to served acquires, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_bound_ms: Option<u64>,
    /// Bound on the time in which a renewal of a bystander is acknowledged while a quorum can be reached, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal_bound_ms: Option<u64>,
}

impl Meta {
    /// This format, without promises.
    pub fn new() -> Self {
        Self { format: FORMAT, ..Self::default() }
    }
}

/// The mode of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By one holder.
    #[default]
    Exclusive,
    /// By any number of holders, while none holds it exclusively.
    Shared,
    /// By up to this number of holders at a time.
    Permits(u32),
}

/// The modes of an acquire: the same for all its locks, or one for each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Modes {
    /// The same mode for all locks.
    All(Mode),
    /// In the order of the locks.
    Each(Vec<Mode>),
}

impl Default for Modes {
    fn default() -> Self {
        Self::All(Mode::Exclusive)
    }
}

impl Modes {
    /// The mode of the lock at this place. `None`: there is none.
    pub fn of(&self, place: usize) -> Option<Mode> {
        match self {
            Self::All(mode) => Some(*mode),
            Self::Each(modes) => modes.get(place).copied(),
        }
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The time limit of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Do not wait: granted at once, or busy.
    #[default]
    None,
    /// At most this time, milliseconds.
    AtMostMs(u64),
    /// As long as its session lives.
    Forever,
}

/// The parameters of an acquire, without the locks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Acquire {
    /// The session of the grant.
    pub session: Session,
    /// The request's id in its session, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// The modes of the locks.
    #[serde(default, skip_serializing_if = "Modes::is_default")]
    pub mode: Modes,
    /// The time limit.
    #[serde(default)]
    pub wait: Wait,
    /// How long the locks stay closed if the holder is lost, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lock_delay_ms: u64,
}

/// The state in which a cancel found an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Granted; the grant is over.
    Grant,
    /// Waiting; the wait is over.
    Wait,
    /// Unknown; if it arrives later, it is refused.
    Nothing,
}

/// A linearizable view of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct View {
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in queue order.
    pub waiters: Vec<Waiter>,
    /// Whether a lock-delay keeps it closed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delayed: bool,
    /// The highest token ever granted, if the read returns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_token: Option<u64>,
}

/// A holder of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// The token of the grant.
    pub token: u64,
    /// Its session.
    pub session: Session,
    /// Its mode.
    #[serde(default)]
    pub mode: Mode,
}

/// A waiter of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// Its session.
    pub session: Session,
    /// Its place in the order of arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<u64>,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
