//! Events: what a line says, as types.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::words::{Acquire, Found, Meta, Mode, Session, View, is_zero};

/// One line of a history.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// On the history's one clock, nanoseconds.
    pub time_ns: u64,
    /// Who.
    pub process: String,
    /// Which of the operations that the process does at once.
    pub op: Option<u64>,
    /// The locks concerned; may be empty at the end of an operation.
    pub locks: Vec<String>,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// An operation begins.
    Invoke(Call),
    /// It did what it was to.
    Ok(Answer),
    /// It certainly did not.
    Fail {
        /// Which operation.
        f: Function,
        /// Why, in one word: see [`super`].
        reason: String,
    },
    /// Nobody knows: it may take effect at any later time, or never.
    Info {
        /// Which operation.
        f: Function,
        /// Why, for people.
        why: String,
    },
    /// No operation: something that is so.
    Fact(Fact),
}

/// What can be asked of the cluster, or of a resource that a lock protects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the calls and answers of the same names say it")]
pub enum Function {
    Open,
    Renew,
    Close,
    Acquire,
    Retry,
    Cancel,
    Release,
    Update,
    Get,
    Check,
    ForceRelease,
    Write,
}

const FUNCTIONS: [(Function, &str); 12] = [
    (Function::Open, "open"),
    (Function::Renew, "renew"),
    (Function::Close, "close"),
    (Function::Acquire, "acquire"),
    (Function::Retry, "retry"),
    (Function::Cancel, "cancel"),
    (Function::Release, "release"),
    (Function::Update, "update"),
    (Function::Get, "get"),
    (Function::Check, "check"),
    (Function::ForceRelease, "force_release"),
    (Function::Write, "write"),
];

impl Function {
    /// As in a history's `f`.
    pub fn name(self) -> &'static str {
        FUNCTIONS.iter().find(|(function, _)| *function == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Function {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        FUNCTIONS.iter().find(|(_, known)| *known == name).map(|(function, _)| *function).ok_or(())
    }
}

/// What an operation asks for. The locks are in the event.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Call {
    /// Opens a session.
    Open {
        /// Its name.
        session: Session,
        /// How long it lives without a renewal, milliseconds.
        ttl_ms: u64,
    },
    /// Renews it. Renewals in the background are told by [`Fact::Renewed`].
    Renew {
        /// Which.
        session: Session,
    },
    /// Closes it: its holds and waits end.
    Close {
        /// Which.
        session: Session,
    },
    /// Acquires the event's locks, all or nothing.
    Acquire(Acquire),
    /// Sends an acquire again, to be told the same.
    Retry {
        /// Whose.
        session: Session,
        /// The acquire's id.
        request: u64,
    },
    /// Gives an acquire up, by its id or by its number in this process.
    Cancel {
        /// Whose.
        session: Session,
        /// The acquire's id.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<u64>,
        /// The acquire's number in this process.
        #[serde(skip_serializing_if = "Option::is_none")]
        op: Option<u64>,
    },
    /// Gives a grant back.
    Release {
        /// Whose.
        session: Session,
        /// Which.
        token: u64,
    },
    /// Sets the data on a lock that is held.
    Update {
        /// Whose.
        session: Session,
        /// By which grant.
        token: u64,
        /// What to set.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<String>,
    },
    /// Reads a lock, linearizably.
    Get {},
    /// Whether a token holds the lock.
    Check {
        /// Which.
        token: u64,
    },
    /// An operator takes grants back.
    ForceRelease {
        /// Which; all of the lock's, if it is left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The lock opens at once.
        now: bool,
    },
    /// Writes to the resource that the lock protects.
    Write {
        /// What is shown to the resource.
        token: u64,
        /// How the lock is held.
        mode: Mode,
        /// The resource refuses old tokens.
        fenced: bool,
    },
}

/// What an operation that worked says. The fields are those of the table in [`super`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the table in the module's documentation says it")]
pub enum Answer {
    Open(Lease),
    Renew(Lease),
    Close {},
    Acquire {
        token: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        place_lost: bool,
    },
    Retry {
        token: u64,
    },
    Cancel {
        found: Found,
    },
    Release {},
    Update {},
    Get(View),
    Check {
        held: bool,
    },
    ForceRelease {
        revoked: Vec<u64>,
    },
    Write {
        #[serde(skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
}

/// What the answer to an open or a renewal says.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// If it is another one than was asked for, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When the sending that was answered left, if that is known to be later than the invoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ns: Option<u64>,
}

impl Call {
    /// Which operation it begins.
    pub fn function(&self) -> Function {
        match self {
            Self::Open { .. } => Function::Open,
            Self::Renew { .. } => Function::Renew,
            Self::Close { .. } => Function::Close,
            Self::Acquire(_) => Function::Acquire,
            Self::Retry { .. } => Function::Retry,
            Self::Cancel { .. } => Function::Cancel,
            Self::Release { .. } => Function::Release,
            Self::Update { .. } => Function::Update,
            Self::Get {} => Function::Get,
            Self::Check { .. } => Function::Check,
            Self::ForceRelease { .. } => Function::ForceRelease,
            Self::Write { .. } => Function::Write,
        }
    }

    /// On behalf of which session, if any.
    pub fn session(&self) -> Option<&Session> {
        match self {
            Self::Open { session, .. }
            | Self::Renew { session }
            | Self::Close { session }
            | Self::Acquire(Acquire { session, .. })
            | Self::Retry { session, .. }
            | Self::Cancel { session, .. }
            | Self::Release { session, .. }
            | Self::Update { session, .. } => Some(session),
            Self::Get {} | Self::Check { .. } | Self::ForceRelease { .. } | Self::Write { .. } => None,
        }
    }
}

impl Answer {
    /// Which operation it ends.
    pub fn function(&self) -> Function {
        match self {
            Self::Open(_) => Function::Open,
            Self::Renew(_) => Function::Renew,
            Self::Close {} => Function::Close,
            Self::Acquire { .. } => Function::Acquire,
            Self::Retry { .. } => Function::Retry,
            Self::Cancel { .. } => Function::Cancel,
            Self::Release {} => Function::Release,
            Self::Update {} => Function::Update,
            Self::Get(_) => Function::Get,
            Self::Check { .. } => Function::Check,
            Self::ForceRelease { .. } => Function::ForceRelease,
            Self::Write { .. } => Function::Write,
        }
    }
}

/// Something that is so, told by a client, a node or the nemesis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "f", content = "value", rename_all = "snake_case")]
pub enum Fact {
    /// The first line.
    Meta(Meta),
    /// A renewal was acknowledged now.
    Renewed {
        /// Which.
        session: Session,
        /// When it was sent.
        sent_ns: u64,
        /// If it is another one than before, milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
    },
    /// A holder noticed a loss.
    Lost {
        /// Which.
        session: Session,
        /// How, in one word: see [`super`].
        why: String,
        /// One grant of it only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// A client was killed.
    Died {
        /// Which.
        process: String,
    },
    /// A fault begins.
    Fault {
        /// Which.
        name: String,
        /// Whom it hits, where it is about single nodes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        nodes: Vec<u64>,
        /// From which node to which nothing passes any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        silent: Vec<(u64, u64)>,
    },
    /// A fault is over.
    Heal {
        /// Which; all, if it is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A node was killed.
    Killed {
        /// Which.
        node: u64,
    },
    /// A node runs again.
    Started {
        /// Which.
        node: u64,
    },
    /// A node became leader.
    Elected {
        /// Which.
        node: u64,
        /// Of which term.
        term: u64,
    },
    /// A node took a snapshot from its leader.
    SnapshotInstalled {
        /// Which.
        node: u64,
        /// Up to where it reaches.
        #[serde(default, skip_serializing_if = "is_zero")]
        index: u64,
    },
    /// A node's table.
    Table {
        /// Which.
        node: u64,
        /// Up to where the log was applied.
        index: u64,
        /// Of all of it.
        hash: u64,
    },
    /// The run was not cut off.
    End,
    /// A fact that is not known here.
    #[serde(skip)]
    Other {
        /// Its `f`.
        f: String,
    },
}
