//! What lies below: entries with parents, sessions that own entries, transactions, and a feed of what this node has applied.
//!
//! It knows nothing of ZooKeeper. An operation reads entries as this node has applied them, decides, and commits writes under the condition
//! that the entries which it read are still at the same revision. What only the log can decide (whether a child exists, whether a parent
//! has children) the store decides while it commits, and says which write it refused.
//!
//! Keys are opaque to the store but for one promise: the children of a key are exactly the entries that were created by
//! [`ZookeeperWrite::CreateChild`] with this key as their parent.

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Weak},
};

use thiserror::Error;
use tokio::{sync::mpsc, time::Instant};

/// The client for which the store is asked, and the time until which the answer is of use.
#[derive(Clone, Debug)]
pub struct ZookeeperCaller {
    /// The identity that the client's certificate, or [`ZookeeperStore::authenticate`], has proven.
    pub identity: Option<String>,
    /// The client's end of the connection. It is the label of the locks that operators see.
    pub address: SocketAddr,
    /// Nobody reads an answer after this time.
    pub deadline: Instant,
    /// Whether the port asks for itself: for its root entry, for containers that are empty. No right of a client concerns it.
    pub is_port: bool,
}

/// A session as one connection has it. Each attach of a session raises its number, so that a connection which has lost its session to
/// another one can write no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumberedSession {
    /// The id of the session: 63 bits, never zero.
    pub session: u64,
    /// How often it was attached when this connection got it. Opening it is the first time.
    pub number: u64,
}

/// A session that was opened or attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStart {
    /// The session, with the number that this connection has.
    pub attached: NumberedSession,
    /// The time that it lives without a renewal, in milliseconds: the one with which it was opened.
    pub ttl_ms: u64,
    /// The revision of the store at which this was applied at this node, so everything that was acknowledged before the call is applied
    /// here.
    pub revision: u64,
}

/// What became of an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// The session lives, has its full time again, and belongs to this connection.
    Attached(SessionStart),
    /// The session is over or was never there. Its entries are gone **at this node** when this is returned.
    Over {
        /// The revision at which they are gone.
        revision: u64,
    },
}

/// What became of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// The session is over, by this call or before it, and its entries are gone at this node.
    Over {
        /// The revision at which they are gone.
        revision: u64,
    },
    /// Another connection has the session. Nothing happened.
    Moved {
        /// The revision of the store.
        revision: u64,
    },
}

/// The children of an entry, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildCounts {
    /// How many were ever created. The next number of a numbered child.
    pub made: u64,
    /// How many there are.
    pub live: u64,
    /// The revision at which the last one came or went; 0 if no child was ever made.
    pub changed: u64,
}

/// The entry of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct ZookeeperEntry {
    /// The revision of the write that created it.
    pub created: u64,
    /// The revision of its last write. Children that come and go do not change it.
    pub modified: u64,
    /// The session that it ends with.
    pub owner: Option<u64>,
    /// Its children.
    pub children: ChildCounts,
    /// The bytes that were written.
    pub value: Arc<[u8]>,
}

impl fmt::Debug for ZookeeperEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { created, modified, owner, children, value } = self;
        write!(f, "ZookeeperEntry {{ {created}..{modified}, owner {owner:?}, {children:?}, {} bytes }}", value.len())
    }
}

/// The entries as this node has applied them, all of one revision. Entries whose session is over still show until their end is applied: a
/// reader must not see an end before it is told of it ([`AppliedStep`]).
pub trait AppliedZnodes {
    /// The revision of this state.
    fn revision(&self) -> u64;

    /// The entry of a key.
    fn get(&self, key: &[u8]) -> Option<ZookeeperEntry>;

    /// Shows the entries of `from..to` in the order of their keys, until `show` returns `false`.
    fn range(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8], &ZookeeperEntry) -> bool);

    /// Shows the keys of `from..to` in their order, until `show` returns `false`.
    fn keys(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8]) -> bool);

    /// The keys of the entries that a session owns, in any order.
    fn owned_by(&self, session: u64) -> Vec<Vec<u8>>;
}

/// Writes that take effect together, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZookeeperTxn {
    /// All must hold for the writes to take effect. They are judged before the writes, in this order.
    pub conditions: Vec<ZookeeperCondition>,
    /// The writes, in this order: each sees what those before it did. A key is put at most once, and may be deleted before or after that.
    pub writes: Vec<ZookeeperWrite>,
    /// The keys whose entries are answered if it is refused. If these have more bytes than the store shows at once, it fails instead with
    /// [`ZookeeperStoreError::TooLarge`].
    pub otherwise_get: Vec<Vec<u8>>,
}

/// A condition of a transaction: the entry of the key has this [`modified`](ZookeeperEntry::modified).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZookeeperCondition {
    /// The key.
    pub key: Vec<u8>,
    /// The revision; 0 if there must be no entry.
    pub modified: u64,
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZookeeperWrite {
    /// Creates an entry below another one. Refused as [`WriteRefusal`] says.
    CreateChild {
        /// The key of the parent.
        parent: Vec<u8>,
        /// The key, or what precedes its number.
        key: Vec<u8>,
        /// Whether the store appends the parent's next number, with ten digits at the least (`{:010}`), to the key.
        is_numbered: bool,
        /// The value.
        value: Arc<[u8]>,
        /// The session that it ends with.
        owner: Option<u64>,
    },
    /// Replaces the value of an entry, whose owner, parent and children stay. Creates an entry without a parent if there is none.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Arc<[u8]>,
    },
    /// Removes an entry. Refused if it has children; not an error if it is missing.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// Why a write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRefusal {
    /// A child whose parent is missing.
    NoParent,
    /// A child whose parent ends with a session.
    ParentEnds,
    /// A child that exists.
    Exists,
    /// A delete of an entry that has children.
    HasChildren,
}

/// Why a transaction did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnRefusal {
    /// This condition does not hold: the first one that does not.
    Condition(usize),
    /// All conditions hold, and this write is refused: the first one that is.
    Write {
        /// The index of the write.
        index: usize,
        /// The reason.
        reason: WriteRefusal,
    },
    /// The session is over.
    SessionOver,
    /// Another connection has the session.
    SessionMoved,
}

/// What became of a [`ZookeeperTxn`].
#[derive(Clone, Debug, Default)]
pub struct ZookeeperCommitted {
    /// The revision of the writes or, if it was refused or wrote nothing, of the state in which it was judged. Writes are applied at this
    /// node; the state of a refusal need not be yet.
    pub revision: u64,
    /// For each write, the key of the child that it created.
    pub created: Vec<Option<Vec<u8>>>,
    /// Why nothing was done.
    pub refusal: Option<TxnRefusal>,
    /// If it was refused, the entries of [`ZookeeperTxn::otherwise_get`] as of that state. Empty for a refusal because of the session.
    pub found: Vec<Option<ZookeeperEntry>>,
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZookeeperChangeKind {
    /// It was created. If it had been deleted in the same transaction, `is_again` is set.
    Created {
        /// Whether there was another entry with this key right before.
        is_again: bool,
    },
    /// Its value was replaced.
    Changed,
    /// The entry was deleted, or its session is over. Also for an entry that the same transaction had created.
    Deleted,
}

/// A change of an entry, as this node has applied it.
#[derive(Clone, PartialEq, Eq)]
pub struct ZookeeperChange {
    /// The revision of the change, as [`ZookeeperEntry::modified`] shows it. A step may have changes of several revisions.
    pub revision: u64,
    /// The key.
    pub key: Vec<u8>,
    /// What happened.
    pub kind: ZookeeperChangeKind,
    /// The value before, if there was an entry.
    pub before: Option<Arc<[u8]>>,
    /// The value since, unless the entry was deleted.
    pub after: Option<Arc<[u8]>>,
    /// The value of the parent as of this revision, or before it if the parent was deleted with it. It may be left out for a new value.
    pub parent: Option<Arc<[u8]>>,
}

impl fmt::Debug for ZookeeperChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at {}", self.key.escape_ascii(), self.kind, self.revision)
    }
}

/// A step of the feed: what happened up to a revision, and after the step before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedStep {
    /// Everything up to this revision has been told with this step.
    pub revision: u64,
    /// The changes, in the order of the log.
    pub changes: Vec<ZookeeperChange>,
    /// Sessions that are over. This step or earlier ones have removed all their entries.
    pub over: Vec<u64>,
    /// Sessions that were attached. Connections that have them by a lower number have lost them.
    pub attached: Vec<NumberedSession>,
}

/// All that this node applies from now on.
#[derive(Debug)]
pub struct AppliedFeed {
    /// The revision after which the feed begins.
    pub after: u64,
    /// The steps. Closed when the store cannot promise all of them any longer: since the receiver was too slow, or the node has installed a
    /// snapshot. The connections of this node are closed then, and its clients come back and look for themselves.
    pub steps: mpsc::Receiver<AppliedStep>,
}

/// The role of a node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// It leads.
    Leader,
    /// Another one leads.
    Follower,
    /// It is the only one.
    Standalone,
    /// It knows no leader.
    Looking,
}

/// The reason why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ZookeeperStoreError {
    /// Nothing happened, because the caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// Nothing happened, because a key, a value or the transaction is larger than the store allows.
    #[error("{0}")]
    TooLarge(String),
    /// Nothing happened, because the store is full, or the part of it that the caller may have.
    #[error("{0}")]
    Full(String),
    /// Nothing happened, because there is no leader, it could not be asked, or it has too much to do.
    #[error("{0}")]
    NotExecuted(String),
    /// There was no answer in time. It may still take effect.
    #[error("{0}")]
    Unknown(String),
}

/// An identity that a client has proven, by a user and a password or by a certificate.
pub struct ZookeeperIdentity {
    /// Its name.
    pub name: String,
    /// Returns when the proof counts no more: the connection is closed then. It may never return.
    pub withdrawn: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for ZookeeperIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperIdentity").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Entries with parents, and sessions that own them.
///
/// Each call with a [`ZookeeperCaller`] is linearizable and ends by its deadline. What it did is applied **at this node** when it returns;
/// a transaction that is refused may return before. Dropping its future abandons it: what it does may still take effect. The store tries
/// again by itself what has surely not happened, and nothing else.
///
/// Order: a step of the feed is received soon after [`applied`](Self::applied) shows its revision. So a client that has received a change
/// reads a state that contains it.
pub trait ZookeeperStore: Clone + Send + Sync + 'static {
    /// Opens a session that lives for `ttl_ms` without a renewal. A client may prove who it is only after its session is open, so a
    /// stranger is refused here only if nobody may ever be let in from where it comes.
    fn open(
        &self,
        caller: &ZookeeperCaller,
        session: u64,
        ttl_ms: u64,
    ) -> impl Future<Output = Result<SessionStart, ZookeeperStoreError>> + Send;

    /// Gives a session its full time again, and gives it to this connection: others have it no longer.
    fn attach(
        &self,
        caller: &ZookeeperCaller,
        session: u64,
    ) -> impl Future<Output = Result<AttachOutcome, ZookeeperStoreError>> + Send;

    /// Makes the identity of the caller the owner of a session, if the session has none: what it has is charged to that identity.
    /// Fails if the identity may have no further session.
    fn set_owner(
        &self,
        caller: &ZookeeperCaller,
        session: u64,
    ) -> impl Future<Output = Result<(), ZookeeperStoreError>> + Send;

    /// Ends a session and all that it owns, if the connection still has it.
    fn close(
        &self,
        caller: &ZookeeperCaller,
        attached: NumberedSession,
    ) -> impl Future<Output = Result<CloseOutcome, ZookeeperStoreError>> + Send;

    /// Notes that a client has been heard of. Called for each frame, so it must cost little: the store renews sessions
    /// now and then, many at once. A session ends its time after the last frame, and soon after that.
    fn note_alive(&self, attached: NumberedSession);

    /// Whether this node may still answer for a session: it cannot have ended elsewhere, counted from the *sending* of the last renewal
    /// that was acknowledged, and as far as this node has applied, no other connection has it. Called for all sessions ten times a
    /// second. A node that cannot vouch for a session closes its connection, since clients trust its pings.
    fn vouches_for(&self, attached: NumberedSession) -> bool;

    /// Waits until an answer may be given for a session: until it cannot end elsewhere for as long as a client trusts its session after an
    /// answer, two thirds of its time. Returns `false` if the node cannot vouch for it any more.
    fn vouch(&self, attached: NumberedSession) -> impl Future<Output = bool> + Send;

    /// Shows the entries as this node has applied them. `look` is short, since applying may wait for it, and it calls nothing else of the
    /// store, so a lock may be held meanwhile.
    fn applied<T>(&self, look: impl FnOnce(&dyn AppliedZnodes) -> T) -> T;

    /// Whether the policy lets the caller read the entry of a key, and the children of the node whose entry it is. Asked for each read of
    /// [`applied`](Self::applied) on behalf of a client, and for each event of a client, so it answers at once.
    fn may_read(&self, caller: &ZookeeperCaller, key: &[u8]) -> bool;

    /// Waits until this node has applied everything that was acknowledged anywhere before the call. Returns the revision.
    fn catch_up(&self, caller: &ZookeeperCaller) -> impl Future<Output = Result<u64, ZookeeperStoreError>> + Send;

    /// Compares, and then writes. With `attached` only while the session lives and belongs to that connection.
    fn commit(
        &self,
        caller: &ZookeeperCaller,
        attached: Option<NumberedSession>,
        txn: ZookeeperTxn,
    ) -> impl Future<Output = Result<ZookeeperCommitted, ZookeeperStoreError>> + Send;

    /// Commits transactions of one connection, each by itself, and returns what became of them in their order: at least of the first one;
    /// those without a verdict were not begun. They take effect in this order. If a transaction fails without effect, no later one takes
    /// effect. A refusal does not count as a failure. A store has them under way at the same time where it can.
    fn commit_each(
        &self,
        caller: &ZookeeperCaller,
        attached: NumberedSession,
        txns: Vec<ZookeeperTxn>,
    ) -> impl Future<Output = Vec<Result<ZookeeperCommitted, ZookeeperStoreError>>> + Send;

    /// Begins a feed of what this node applies. The port has one at a time.
    fn feed(&self) -> impl Future<Output = Result<AppliedFeed, ZookeeperStoreError>> + Send;

    /// A secret that is the same at all nodes and for ever: the passwords of sessions are made with it.
    fn secret(&self) -> impl Future<Output = Result<Vec<u8>, ZookeeperStoreError>> + Send;

    /// The identity of a user with this password, in the sense of the policy. `None` if they fit no user; they are no error then, since
    /// clients make up users for their own access lists. Fails if the identity may have no further connection; this one is open for as
    /// long as `connection` has an owner.
    fn authenticate(
        &self,
        user: &str,
        password: &str,
        connection: Weak<()>,
    ) -> Result<Option<ZookeeperIdentity>, ZookeeperStoreError>;

    /// Counts a connection whose certificate proves an identity: for as long as `connection` has an owner. Fails if the identity may have
    /// no further one.
    fn admit(&self, identity: &str, connection: Weak<()>) -> Result<(), ZookeeperStoreError>;

    /// Whether clients without an identity are refused.
    fn needs_identity(&self) -> bool;

    /// What this node is to the others, at once.
    fn role(&self) -> NodeRole;
}
