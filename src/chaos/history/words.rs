//! The words that events are made of.

use serde::{Deserialize, Serialize};

/// A session's name. The client draws 32 hexadecimal digits; a history by hand may say `ann`.
pub type Session = String;

/// The version of the format that this reads and writes.
pub(super) const FORMAT: u32 = 1;

/// What a run promises, said on its first line. A promise that is left out is not checked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Of the history: 1.
    pub format: u32,
    /// How the run was made, so that it can be made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// How much earlier than its TTL a session may end, nanoseconds: what is rounded away when the cluster stamps in whole
    /// milliseconds. 0 where the clock is exact.
    pub stamp_ns: u64,
    /// In how much more than its TTL a dead holder's lock passes on, milliseconds. Time under a fault does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry_bound_ms: Option<u64>,
    /// For how long a lock may be free while somebody waits for it, and how much later than its limit a wait may end, milliseconds.
    /// Time under a fault does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover_bound_ms: Option<u64>,
    /// In how long after the end of all faults acquires are served again, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_bound_ms: Option<u64>,
}

impl Meta {
    /// Of this format, without promises.
    pub fn new() -> Self {
        Self { format: FORMAT, ..Self::default() }
    }
}

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By one.
    #[default]
    Exclusive,
    /// By any number, while nobody holds it exclusively.
    Shared,
    /// By up to so many at a time.
    Permits(u32),
}

/// The modes of an acquire: the same for all its locks, or one for each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Modes {
    /// The same for all.
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
    /// That of the lock in this place. `None`: there is none for it.
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

/// How long an acquire is to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Not at all: granted at once, or busy.
    #[default]
    None,
    /// Milliseconds.
    AtMostMs(u64),
    /// As long as its session lives.
    Forever,
}

/// What an acquire asks for, beside the locks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Acquire {
    /// Who is to hold them.
    pub session: Session,
    /// The request's id in its session, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// How they are to be held.
    #[serde(default, skip_serializing_if = "Modes::is_default")]
    pub mode: Modes,
    /// For how long to wait.
    #[serde(default)]
    pub wait: Wait,
    /// If the holder is lost, the locks stay closed that long, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lock_delay_ms: u64,
}

/// What a cancel found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It was granted; that is over.
    Grant,
    /// It waited; that is over.
    Wait,
    /// It had not arrived; should it still do, it is refused.
    Nothing,
}

/// A lock, as a linearizable read shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct View {
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in the order of the queue.
    pub waiters: Vec<Waiter>,
    /// A lock-delay keeps it closed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delayed: bool,
    /// The highest token ever given out, if the read tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_token: Option<u64>,
}

/// One who holds a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Of the grant.
    pub token: u64,
    /// Whose it is.
    pub session: Session,
    /// How it is held.
    #[serde(default)]
    pub mode: Mode,
}

/// One who waits for a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// Who.
    pub session: Session,
    /// The place in the order of arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<u64>,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
