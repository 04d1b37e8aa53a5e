//! The vocabulary of events.

use serde::{Deserialize, Serialize};

/// The name of a session. The client draws 32 hexadecimal digits; a handwritten history may use `ann`.
pub type Session = String;

/// The version of the format that this program supports.
pub(super) const FORMAT: u32 = 1;

/// The promises of a run, in its first line. A promise that is not given is not checked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The version of the format, which is 1.
    pub format: u32,
    /// The seed of the run, to repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The time in nanoseconds by which a session may end earlier than its TTL, because stamps are rounded to whole milliseconds. It is 0
    /// for an exact clock.
    pub stamp_ns: u64,
    /// Bound on the time beyond its TTL after which a dead holder's lock is granted to the next waiter, in milliseconds, without time under
    /// faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry_bound_ms: Option<u64>,
    /// Bound on the time for which a lock with waiters may be free, and by which a wait may exceed its limit,
    /// milliseconds, without time under faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover_bound_ms: Option<u64>,
    /// Bound on the time from the end of all faults to served acquires, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_bound_ms: Option<u64>,
    /// Bound on the time in which a renewal of a bystander is acknowledged while a quorum can be reached, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal_bound_ms: Option<u64>,
    /// Bound on the time from the acknowledgement of a change, or from the beginning of a later watch, to its report by each watch of it,
    /// in milliseconds, without time under faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch_bound_ms: Option<u64>,
    /// Bound on the longest turn of each runtime, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_bound_us: Option<u64>,
    /// Bound on the longest apply, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_bound_us: Option<u64>,
}

impl Meta {
    /// A meta of this format, without promises.
    pub fn new() -> Self {
        Self { format: FORMAT, ..Self::default() }
    }
}

/// The mode of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One holder has the lock.
    #[default]
    Exclusive,
    /// Any number of holders have the lock, while none has it exclusively.
    Shared,
    /// Up to this number of holders have the lock at a time.
    Permits(u32),
}

/// The modes of an acquire: the same for all its locks, or one for each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Modes {
    /// The same mode for all locks.
    All(Mode),
    /// One mode for each lock, in the order of the locks.
    Each(Vec<Mode>),
}

impl Default for Modes {
    fn default() -> Self {
        Self::All(Mode::Exclusive)
    }
}

impl Modes {
    /// The mode of the lock at this place, if there is one.
    pub fn mode_at(&self, place: usize) -> Option<Mode> {
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
    /// The acquire does not wait: it is granted at once, or busy.
    #[default]
    None,
    /// The acquire waits at most this number of milliseconds.
    AtMostMs(u64),
    /// The acquire waits as long as its session lives.
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
    /// The time in milliseconds for which the locks stay closed if the holder is lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lock_delay_ms: u64,
}

/// The state in which a cancel found an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelFound {
    /// It was granted, and the grant is over.
    Grant,
    /// It was waiting, and the wait is over.
    Wait,
    /// It was unknown. If it arrives later, it is refused.
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
    /// Whether a lock-delay keeps the lock closed.
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
