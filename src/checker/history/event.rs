//! The types of events.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    transactions::{Transaction, TxnAnswer, TxnRange, WatchedChange},
    values::{Acquire, CancelFound, Meta, Mode, Session, View, is_zero},
};

/// One line of a history.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// The time in nanoseconds on the history's clock.
    pub time_ns: u64,
    /// The process.
    pub process: String,
    /// The number of the operation, among concurrent ones of the process.
    pub op: Option<u64>,
    /// The locks concerned. The end of an operation may name none.
    pub locks: Vec<String>,
    /// The content.
    pub what: What,
}

/// The content of an event.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// An operation started.
    Invoke(Call),
    /// The operation took effect.
    Ok(Answer),
    /// The operation had no effect.
    Fail {
        /// The operation.
        f: Function,
        /// The reason, in one word: see [`super`].
        reason: String,
    },
    /// The outcome is unknown: the operation may take effect at any later time, or never.
    Info {
        /// The operation.
        f: Function,
        /// The reason, for people.
        why: String,
    },
    /// A fact, which is not an operation.
    Fact(Fact),
}

/// Operations on the cluster, or on a resource that a lock protects.
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
    Read,
    Set,
    Txn,
}

const FUNCTIONS: [(Function, &str); 15] = [
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
    (Function::Read, "read"),
    (Function::Set, "set"),
    (Function::Txn, "txn"),
];

impl Function {
    /// The value of `f` in a history.
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

/// A request. The locks are in the event.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Call {
    /// Opens a session.
    Open {
        /// The session.
        session: Session,
        /// The TTL in milliseconds.
        ttl_ms: u64,
    },
    /// Renews a session. Background renewals are recorded as [`Fact::Renewed`].
    Renew {
        /// The session.
        session: Session,
    },
    /// Closes a session. Its grants and waits end.
    Close {
        /// The session.
        session: Session,
    },
    /// Acquires the event's locks, all or nothing.
    Acquire(Acquire),
    /// Retries an acquire, which must have the same outcome.
    Retry {
        /// The session.
        session: Session,
        /// The acquire's id.
        request: u64,
    },
    /// Abandons an acquire, by its request id or by its number in this process.
    Cancel {
        /// The session.
        session: Session,
        /// The acquire's id.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<u64>,
        /// The acquire's number in this process.
        #[serde(skip_serializing_if = "Option::is_none")]
        op: Option<u64>,
    },
    /// Releases a grant.
    Release {
        /// The session.
        session: Session,
        /// The token.
        token: u64,
    },
    /// Sets the data on a held lock.
    Update {
        /// The session.
        session: Session,
        /// The token.
        token: u64,
        /// The new data.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<String>,
    },
    /// Reads a lock, linearizably.
    Get {},
    /// Asks whether a token holds the lock.
    Check {
        /// The token.
        token: u64,
    },
    /// Revokes grants, as an operator.
    ForceRelease {
        /// The token. Without one, all grants of the lock are revoked.
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Whether the grants end at once.
        now: bool,
    },
    /// Writes to the resource that the lock protects.
    Write {
        /// The token shown to the resource.
        token: u64,
        /// The mode of the grant.
        mode: Mode,
        /// Whether the resource refuses old tokens.
        fenced: bool,
    },
    /// Reads a register, which has the place of the lock.
    Read {},
    /// Sets a register if it has the expected value.
    Set {
        /// The expected value, if the register is to have one.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
        /// The new value, if the register is to have one.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<u64>,
    },
    /// Reads and writes registers at one moment. Their keys are in the transaction, and the event has no locks.
    Txn(Transaction),
}

/// The answer of a successful operation. The fields are those of the table in [`super`].
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
        found: CancelFound,
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
    Read {
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<u64>,
    },
    Set {},
    Txn(TxnAnswer),
}

/// The answer to an open or a renewal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// The TTL in milliseconds, if it differs from the requested one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The time at which the answered attempt was sent, if that is known to be later than the invoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ns: Option<u64>,
}

impl Call {
    /// The operation that the request starts.
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
            Self::Read {} => Function::Read,
            Self::Set { .. } => Function::Set,
            Self::Txn(_) => Function::Txn,
        }
    }

    /// The session that the request is for, if any.
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
            Self::Get {}
            | Self::Check { .. }
            | Self::ForceRelease { .. }
            | Self::Write { .. }
            | Self::Read {}
            | Self::Set { .. }
            | Self::Txn(_) => None,
        }
    }
}

impl Answer {
    /// The operation that the answer ends.
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
            Self::Read { .. } => Function::Read,
            Self::Set {} => Function::Set,
            Self::Txn(_) => Function::Txn,
        }
    }
}

/// A fact, recorded by a client, a node or the nemesis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "f", content = "value", rename_all = "snake_case")]
pub enum Fact {
    /// The first line.
    Meta(Meta),
    /// A background renewal was acknowledged now.
    Renewed {
        /// The session.
        session: Session,
        /// The time at which it was sent.
        sent_ns: u64,
        /// The TTL in milliseconds, if it changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
    },
    /// A holder noticed a loss.
    Lost {
        /// The session.
        session: Session,
        /// The reason, in one word: see [`super`].
        why: String,
        /// The grant. Without one, the whole session was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// A holder does nothing but renew its session from now on, and nobody revokes its lock.
    Bystander {
        /// The session, which holds a lock.
        session: Session,
    },
    /// A client was killed.
    Died {
        /// The client.
        process: String,
    },
    /// A fault begins.
    Fault {
        /// Its name.
        name: String,
        /// Its targets, if it concerns single nodes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        nodes: Vec<u64>,
        /// Pairs of nodes between which nothing passes in this direction.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        silent: Vec<(u64, u64)>,
    },
    /// A fault is over.
    Heal {
        /// Its name. Without one, all faults are over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A node was killed.
    Killed {
        /// The node.
        node: u64,
    },
    /// A node runs again.
    Started {
        /// The node.
        node: u64,
    },
    /// A node was stopped gracefully.
    Stopped {
        /// The node.
        node: u64,
    },
    /// A node that was added is a voter now.
    Joined {
        /// The node.
        node: u64,
    },
    /// A node is no longer a member, and its process has ended.
    Removed {
        /// The node.
        node: u64,
    },
    /// The leadership was handed over to a node.
    Transferred {
        /// The new leader.
        node: u64,
    },
    /// A node became leader.
    Elected {
        /// The node.
        node: u64,
        /// The term.
        term: u64,
    },
    /// A node installed a snapshot from its leader.
    SnapshotInstalled {
        /// The node.
        node: u64,
        /// The last index in the snapshot.
        #[serde(default, skip_serializing_if = "is_zero")]
        index: u64,
    },
    /// The state of a node's table.
    Table {
        /// The node.
        node: u64,
        /// The applied index.
        index: u64,
        /// The hash of the whole table.
        hash: u64,
    },
    /// All sessions that a process opens are of this protocol. Without this fact they are of the store's own.
    Speaks {
        /// The process.
        process: String,
        /// The name of the protocol, for example `etcd`.
        protocol: String,
    },
    /// A watch begins, or goes on after an interruption: it reports all changes in the range after a revision.
    Watching {
        /// The name of the watch, unique in the history.
        watch: String,
        /// The range.
        #[serde(default)]
        range: TxnRange,
        /// The watch reports the changes whose revision is greater than this one.
        after: u64,
    },
    /// A watch reported changes of one revision.
    Watched {
        /// The watch.
        watch: String,
        /// The revision.
        revision: u64,
        /// The changes, at most one for each register. A further line can have others of the same revision.
        changes: Vec<WatchedChange>,
    },
    /// A watch said that it has reported all changes up to a revision.
    WatchProgress {
        /// The watch.
        watch: String,
        /// The revision.
        revision: u64,
    },
    /// A watch is over, and reports nothing from here on.
    WatchEnded {
        /// The watch.
        watch: String,
        /// The reason, in one word, for example `closed` or `compacted`.
        #[serde(default)]
        why: String,
    },
    /// A node could not apply an entry of the log, and ended or stopped for it.
    RefusedEntry {
        /// The node.
        node: u64,
        /// The index of the entry.
        index: u64,
        /// The reason, for people.
        #[serde(default)]
        why: String,
    },
    /// The longest time for which one task of a runtime kept the others waiting, up to now.
    LongestTurn {
        /// The node.
        node: u64,
        /// The name of the runtime.
        runtime: String,
        /// The time in microseconds.
        us: u64,
    },
    /// The longest time that a node took to apply one group of entries, up to now.
    LongestApply {
        /// The node.
        node: u64,
        /// The time in microseconds.
        us: u64,
    },
    /// All nodes and their data were lost, and a new cluster was made from a backup. Its nodes start after this.
    Restored,
    /// The run is complete.
    End,
    /// A fact that this version does not know.
    #[serde(skip)]
    Other {
        /// The name of the fact, its `f`.
        f: String,
    },
}
