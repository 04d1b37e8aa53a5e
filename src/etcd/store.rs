//! The keyspace below: linearizable reads, transactions, leases and events. A parameter: a cluster in a node, a table in tests.
//!
//! Its types are those of the keyspace itself (`lockkeeper-machine`), and nothing of etcd reaches it. The keys are those of [`key`] here,
//! and of other adapters elsewhere.
//!
//! [`key`]: crate::key

use std::sync::Arc;

use futures::stream::BoxStream;
use http::{Extensions, HeaderMap};
use lockkeeper_machine::{
    Committed, Entry, EntryEvent, Key, KeyRange, Revision, Select, Selected, SessionId, Ttl, Txn,
};
use thiserror::Error;

/// Some of the entries of a range, all of the same revision.
#[derive(Clone, Debug, Default)]
pub struct EtcdPage {
    /// In the order of their keys.
    pub entries: Vec<(Key, Arc<Entry>)>,
    /// The range has more of them, after the last one.
    pub more: bool,
    /// The present revision of the keyspace: the one that the page shows, unless an earlier one was asked for.
    pub revision: Revision,
}

/// The entries of some keys, all of the same revision.
#[derive(Clone, Debug, Default)]
pub struct EtcdFound {
    /// One for each key, in their order. A key without an entry has `None`.
    pub entries: Vec<Option<Arc<Entry>>>,
    /// The present revision of the keyspace: the one that the entries show, unless an earlier one was asked for.
    pub revision: Revision,
}

/// An open session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdSession {
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// Milliseconds until it expires without one.
    pub remaining_ms: u64,
    /// The keys of its entries, in their order, if they were asked for.
    pub keys: Vec<Key>,
}

/// What happens to a session on a stream that keeps sessions alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptAlive {
    /// It was renewed, as the stream asked.
    Renewed(SessionId, Ttl),
    /// It is over, or there was none, or it is another caller's. Told once for each renewal that comes too late, and unasked when a session
    /// that the stream has renewed ends.
    Ended(SessionId),
}

/// Events of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedEvents {
    /// Ordered by revision, then by key. May be empty: then it only tells how far the watch is.
    pub events: Vec<EntryEvent>,
    /// All events up to this revision were sent. Those of a later revision in this message are not all of it: the rest follows, before
    /// those of any other.
    pub complete: Revision,
}

/// What this node knows of the cluster, at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EtcdFacts {
    /// The cluster's id, as a number.
    pub cluster_id: u64,
    /// The id of this node.
    pub member_id: u64,
    /// Raft's term.
    pub term: u64,
    /// A revision of the keyspace that this node has reached.
    pub revision: Revision,
}

/// The condition of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeCondition {
    /// The last entry of its log.
    pub index: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// Bytes of its table.
    pub table_bytes: u64,
    /// It has no vote.
    pub is_learner: bool,
}

/// A member of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EtcdMember {
    /// Its id.
    pub id: u64,
    /// The URL at which its peers reach it.
    pub peer_url: String,
    /// The URL at which clients of this API reach it, if known.
    pub client_url: Option<String>,
    /// It has no vote.
    pub is_learner: bool,
}

/// The store has no result for the request.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EtcdStoreError {
    /// Nothing happened: no leader is known.
    #[error("no leader")]
    NoLeader,
    /// The leader changed meanwhile. A change may still take effect.
    #[error("leader changed")]
    LeaderChanged,
    /// No answer in time. A change may still take effect.
    #[error("request timed out")]
    TimedOut,
    /// Nothing happened: this node stops.
    #[error("server stopped")]
    Stopping,
    /// Nothing happened: too much is under way.
    #[error("too many requests")]
    Overloaded,
    /// Nothing happened: the caller shows no identity, and needs one.
    #[error("no identity")]
    Anonymous,
    /// Nothing happened: the caller's token is not known, or was withdrawn.
    #[error("unknown token")]
    UnknownToken,
    /// Nothing happened: the caller may not do this.
    #[error("denied: {0}")]
    Denied(String),
    /// Nothing happened: a key, a value or a transaction is larger than the store allows.
    #[error("too large: {0}")]
    TooLarge(String),
    /// Nothing happened: the store is full.
    #[error("full: {0}")]
    Full(String),
    /// Nothing happened: the session is over, or was never opened.
    #[error("session ended")]
    SessionEnded,
    /// Nothing happened: this session exists, or ended not long ago.
    #[error("session exists")]
    SessionExists,
    /// The history begins after the revision.
    #[error("compacted")]
    Compacted {
        /// The revision of the last event that is forgotten.
        compacted: Revision,
    },
    /// The keyspace has not reached the revision.
    #[error("future revision")]
    Future,
    /// A bug, or something that this API has no name for.
    #[error("{0}")]
    Other(String),
}

/// A keyspace with revisions, transactions, leases and events.
///
/// No write of a caller has revision 1: see `header::FIRST`.
///
/// Each call that takes a caller is linearizable unless said otherwise, and ends within some seconds
/// ([`EtcdStoreError::TimedOut`]). Dropping its future abandons it: a change may still take effect. While no leader is known a call waits
/// for one, as long.
pub trait EtcdStore: Clone + Send + Sync + 'static {
    /// Who asks.
    type Caller: Clone + Send + Sync + 'static;
    /// The turn of an answer that takes much memory: see [`answer_turn`](Self::answer_turn).
    type AnswerTurn: Send;

    /// The caller of a request, from the extensions that its connection gave it and from its headers. Fails if the caller may not ask
    /// anything.
    fn caller(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<Self::Caller, EtcdStoreError>;

    /// The token for a name and a password, for the metadata `token` of later requests. A wrong name or password has none. Fails with
    /// [`EtcdStoreError::Anonymous`] if no tokens are in use.
    fn authenticate(&self, name: &str, password: &str) -> Result<Option<String>, EtcdStoreError>;

    /// Whether callers need an identity.
    fn needs_identity(&self) -> bool;

    /// What this node knows of the cluster, at once.
    fn facts(&self) -> EtcdFacts;

    /// The node that leads, at once. There is none if this node knows of none, or leads itself and does not hear a quorum.
    fn leader(&self) -> Option<u64>;

    /// The condition of this node, at once.
    fn condition(&self) -> NodeCondition;

    /// The members, in the order of their ids.
    fn members(&self, caller: &Self::Caller) -> impl Future<Output = Result<Vec<EtcdMember>, EtcdStoreError>> + Send;

    /// The entries of some keys, as they were at the revision `at`, which must be known even if there are no keys.
    fn get(
        &self,
        caller: &Self::Caller,
        keys: Vec<Key>,
        at: Option<Revision>,
    ) -> impl Future<Output = Result<EtcdFound, EtcdStoreError>> + Send;

    /// The first entries of a range, `limit` at most; 0: as many as fit. The store may answer with fewer, to bound the bytes of a page, but
    /// never with none where [`EtcdPage::more`].
    fn list(
        &self,
        caller: &Self::Caller,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> impl Future<Output = Result<EtcdPage, EtcdStoreError>> + Send;

    /// Selects from a range, and the present revision. Fails with [`EtcdStoreError::TooLarge`] if the range has too many entries for that.
    fn select(
        &self,
        caller: &Self::Caller,
        select: Select,
        at: Option<Revision>,
    ) -> impl Future<Output = Result<(Selected, Revision), EtcdStoreError>> + Send;

    /// The same from this node's copy, as far as it has applied the log, with the revision of the copy. Asks no leader.
    fn select_from_copy(
        &self,
        caller: &Self::Caller,
        select: Select,
    ) -> impl Future<Output = Result<(Selected, Revision), EtcdStoreError>> + Send;

    /// Runs a transaction, whole or not at all.
    fn commit(&self, caller: &Self::Caller, txn: Txn)
    -> impl Future<Output = Result<Committed, EtcdStoreError>> + Send;

    /// Returns once the caller may no longer ask for this transaction, which it was allowed before. An error of
    /// [`EtcdStore::commit`] is returned. Dropping the future ends nothing.
    fn denied(&self, caller: &Self::Caller, txn: &Txn) -> impl Future<Output = EtcdStoreError> + Send;

    /// Runs a transaction that gives up what this node has put for the caller: while this node drains, and after the caller has lost its
    /// rights, too.
    fn withdraw(
        &self,
        caller: &Self::Caller,
        txn: Txn,
    ) -> impl Future<Output = Result<Committed, EtcdStoreError>> + Send;

    /// Forgets the events up to a revision.
    fn compact(
        &self,
        caller: &Self::Caller,
        revision: Revision,
    ) -> impl Future<Output = Result<(), EtcdStoreError>> + Send;

    /// Random bits, for the id of a session.
    fn random(&self) -> u64;

    /// Opens a session. Fails with [`EtcdStoreError::SessionExists`] if there is one with this id.
    fn open(
        &self,
        caller: &Self::Caller,
        session: SessionId,
        ttl: Ttl,
    ) -> impl Future<Output = Result<(), EtcdStoreError>> + Send;

    /// Closes a session, and deletes its entries.
    fn close(
        &self,
        caller: &Self::Caller,
        session: SessionId,
    ) -> impl Future<Output = Result<(), EtcdStoreError>> + Send;

    /// Shows a session, if there is one and the caller may see it.
    fn session(
        &self,
        caller: &Self::Caller,
        session: SessionId,
        keys: bool,
    ) -> impl Future<Output = Result<Option<EtcdSession>, EtcdStoreError>> + Send;

    /// Waits for the turn to make an answer of several pages. A node makes few of them at a time, and those of different clients take
    /// turns: each is in memory as a whole, several times, until it is sent. The turn ends when it is dropped. Fails with
    /// [`EtcdStoreError::Overloaded`] if too many wait. A caller has one turn at a time, since it would wait for itself.
    fn answer_turn(
        &self,
        caller: &Self::Caller,
    ) -> impl Future<Output = Result<Self::AnswerTurn, EtcdStoreError>> + Send;

    /// The open sessions of a range of ids, both ends included, that are the caller's to see, in the order in which they were opened; those
    /// of one millisecond in the order of their ids. Fails with [`EtcdStoreError::TooLarge`] if there are more than `most`.
    fn sessions(
        &self,
        caller: &Self::Caller,
        first: SessionId,
        last: SessionId,
        most: usize,
    ) -> impl Future<Output = Result<Vec<SessionId>, EtcdStoreError>> + Send;

    /// Renews sessions as `renewals` come, for as long as they do. An error ends the stream: renewals that were not answered may have taken
    /// effect. It ends with [`EtcdStoreError::NoLeader`] when the leader changes, and may end without one after a session that is not the
    /// caller's.
    fn keep_alive(
        &self,
        caller: &Self::Caller,
        renewals: BoxStream<'static, SessionId>,
    ) -> impl Future<Output = Result<BoxStream<'static, Result<KeptAlive, EtcdStoreError>>, EtcdStoreError>> + Send;

    /// The events of a range as this node applies the log, from a revision on, included; it may be in the future. Without a revision they
    /// begin now, and those that were acknowledged before the call are not among them. An error ends the stream, such as
    /// [`EtcdStoreError::Compacted`]; a change of leader does not.
    fn watch(
        &self,
        caller: &Self::Caller,
        range: KeyRange,
        from: Option<Revision>,
        with_previous: bool,
    ) -> impl Future<Output = Result<BoxStream<'static, Result<WatchedEvents, EtcdStoreError>>, EtcdStoreError>> + Send;
}
