//! Every request, its reply, and whether it changes something.

use std::sync::Arc;

use lockkeeper_machine::{
    Acquire, Busy, Command, Committed, Entry, EntryEvent, ForceRelease, Forced, Grant, GrantView, HolderView, Key,
    KeyRange, Label, LockName, LockView, Operation, Page, Permits, Reason, Released, Request, Revision, Revocation,
    Select, Selected, SessionEnd, SessionId, SessionView, Target, Ticket, Token, Ttl, Txn, Update, WaitView,
    WaiterView,
};
use lockkeeper_raft::identity::Incarnation;

/// A request with one reply.
pub(crate) trait Call: Sized + Send + 'static {
    /// The node's reply.
    type Reply: Send + 'static;

    /// Its name in metrics.
    const NAME: &'static str;

    /// Whether the request changes the table. Without a reply, the outcome of such a request is unknown; others are safe to repeat.
    const CHANGES: bool;
}

/// Declares a request's reply, its name in metrics, and whether it changes the table.
macro_rules! calls {
    ($($call:ty => $reply:ty, $name:literal, $changes:literal;)*) => {
        $(impl Call for $call {
            type Reply = $reply;
            const NAME: &'static str = $name;
            const CHANGES: bool = $changes;
        })*
    };
}

calls! {
    OpenSession => SessionOpened, "open_session", true;
    RenewSession => SessionRenewed, "renew_session", true;
    CloseSession => SessionClosed, "close_session", true;
    ListSessions => SessionPage, "list_sessions", false;
    AcquireLocks => Acquired, "acquire_locks", true;
    ReleaseLocks => Released, "release_locks", true;
    UpdateData => DataUpdated, "update_data", true;
    CheckToken => TokenChecked, "check_token", false;
    GetLock => LockFound, "get_lock", false;
    ListLocks => LockPage, "list_locks", false;
    ShowBusiest => Busiest, "show_busiest", false;
    ForceRelease => GrantsForced, "force_release", true;
    RemoveWaiter => WaiterRemoved, "remove_waiter", true;
    LiftDelay => DelayLifted, "lift_delay", true;
    DropData => DataDropped, "drop_data", true;
    ResizeSemaphore => SemaphoreResized, "resize_semaphore", true;
    Txn => Committed, "txn", true;
    GetEntries => EntriesFound, "get_entries", false;
    ListEntries => EntryPage, "list_entries", false;
    SelectEntries => EntriesSelected, "select_entries", false;
    CompactEntries => EntriesCompacted, "compact_entries", true;
    AddMember => MembersChanged, "add_member", true;
    PromoteMember => MembersChanged, "promote_member", true;
    RemoveMember => MembersChanged, "remove_member", true;
    ReplaceMember => MembersChanged, "replace_member", true;
    TransferLeader => LeaderTransferred, "transfer_leader", true;
}

/// Opens a session, or renews it if it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpenSession {
    /// `None`: this node generates a random id.
    pub(crate) session: Option<SessionId>,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
}

/// The session is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionOpened {
    pub(crate) session: SessionId,
    pub(crate) ttl: Ttl,
}

/// Renews a session once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RenewSession {
    pub(crate) session: SessionId,
}

/// The session was renewed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionRenewed {
    pub(crate) ttl: Ttl,
    /// Grants that an operator revoked and that the session has not released, in the order of their tokens.
    pub(crate) revoked: Vec<Revocation>,
    /// There are more revoked grants.
    pub(crate) more_revoked: bool,
}

/// Closes a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CloseSession {
    pub(crate) session: SessionId,
    /// `Some`: an operator closes it, for this reason.
    pub(crate) reason: Option<Reason>,
}

/// The session is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionClosed;

/// Lists sessions in the order of their ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListSessions {
    /// Only sessions above this one: the last one of the previous page.
    pub(crate) after: Option<SessionId>,
    /// At most this many sessions; 0: the maximum of a page.
    pub(crate) page_size: usize,
    /// Read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionView>,
    /// There may be more, above this one.
    pub(crate) more_after: Option<SessionId>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// Acquires locks, all or none. The reply comes when the acquire is granted or gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AcquireLocks {
    pub(crate) session: SessionId,
    /// `None`: a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) acquire: Acquire,
}

/// The outcome of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    /// The session holds the locks.
    Granted(Grant),
    /// The acquire would have to wait, and does not ask to wait.
    Busy(Busy),
    /// The acquire reached its wait limit.
    TimedOut(Busy),
}

/// Releases a grant, by its token or by the request id of its acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReleaseLocks {
    pub(crate) session: SessionId,
    /// `None`: a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) target: Target,
}

/// Sets or removes the data on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UpdateData {
    pub(crate) session: SessionId,
    /// `None`: a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) update: Update,
}

/// The data were set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataUpdated;

/// Asks whether a token holds a lock now. Linearizable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CheckToken {
    pub(crate) name: LockName,
    pub(crate) token: Token,
}

/// Whether the token holds the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TokenChecked {
    /// `None`: the token does not hold the lock.
    pub(crate) holder: Option<HolderView>,
    /// The highest token ever granted.
    pub(crate) last_token: Token,
    /// The log index that the reply shows.
    pub(crate) index: u64,
}

/// Shows one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GetLock {
    pub(crate) name: LockName,
    /// The page of holders and waiters. A size of 0: the maximum of a page.
    pub(crate) page: Page,
    /// Read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// The lock. A lock that does not exist is shown as free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockFound {
    pub(crate) lock: LockView,
    /// The log index that the reply shows.
    pub(crate) index: u64,
}

/// Lists locks in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListLocks {
    /// Empty: all locks.
    pub(crate) prefix: String,
    /// Only locks above this one: [`LockPage::more_after`] of the previous page.
    pub(crate) after: Option<LockName>,
    /// At most this many locks; 0: the maximum of a page.
    pub(crate) page_size: usize,
    /// Read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockPage {
    pub(crate) locks: Vec<LockView>,
    /// There are more, above this one.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// The busiest locks and the longest waits, in this node's own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowBusiest {
    /// Empty: all locks.
    pub(crate) prefix: String,
    /// At most this many locks or waits in each list; 0: a default.
    pub(crate) size: usize,
    /// Grants are counted after the entry with this index.
    pub(crate) after_index: u64,
}

/// What is busy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Busiest {
    /// Those with the longest queues first, then those with the most grants.
    pub(crate) locks: Vec<BusyLock>,
    /// The oldest first.
    pub(crate) waits: Vec<LongWait>,
    /// There are more waits than were examined.
    pub(crate) more_waits: bool,
    /// Grants are counted after the entry with this index.
    pub(crate) counted_after: u64,
    /// The log index that the reply shows.
    pub(crate) index: u64,
    pub(crate) node_id: u64,
    pub(crate) totals: Totals,
}

/// A lock that is awaited, or was granted lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BusyLock {
    /// With its first holder and its first waiter, without data.
    pub(crate) lock: LockView,
    /// Number of counted grants.
    pub(crate) grants: u64,
}

/// An acquire that has waited long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LongWait {
    pub(crate) name: LockName,
    pub(crate) waiter: WaiterView,
    /// The first holder of the lock.
    pub(crate) holder: Option<HolderView>,
    pub(crate) queue_length: u64,
}

/// What the table of a node did since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) granted: u64,
    pub(crate) released: u64,
    pub(crate) expired: u64,
    pub(crate) forced: u64,
    pub(crate) queued: u64,
    pub(crate) waits_ended: u64,
    pub(crate) sessions_closed: u64,
    pub(crate) sessions_expired: u64,
}

/// Grants that an operator revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GrantsForced {
    /// In the order of their tokens.
    pub(crate) forced: Vec<Forced>,
    /// There are more, up to this token: send another request.
    pub(crate) more_up_to: Option<Token>,
}

/// An operator ends a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveWaiter {
    pub(crate) name: LockName,
    pub(crate) ticket: Ticket,
}

/// The waiter; `None`: the ticket does not wait for this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WaiterRemoved(pub(crate) Option<WaiterView>);

/// An operator ends a lock-delay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiftDelay {
    pub(crate) name: LockName,
}

/// The remaining lock-delay, milliseconds; `None`: the lock had none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DelayLifted(pub(crate) Option<u64>);

/// An operator drops the data on locks without a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DropData {
    /// Only of locks with this prefix. Empty: all locks.
    pub(crate) prefix: String,
    /// Only of locks above this one: [`DataDropped::more_after`] of the previous reply.
    pub(crate) after: Option<LockName>,
}

/// The data were dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataDropped {
    /// Number of locks.
    pub(crate) dropped: u64,
    /// There are more locks, above this one: send another request.
    pub(crate) more_after: Option<LockName>,
}

/// An operator changes the size of a semaphore in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResizeSemaphore {
    pub(crate) name: LockName,
    pub(crate) permits: Permits,
}

/// The semaphore was resized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SemaphoreResized {
    /// The previous size.
    pub(crate) before: Permits,
    /// Number of grants that hold it. If it exceeds the size, new acquires wait.
    pub(crate) holders: u64,
    /// Number of acquires that still wait for it.
    pub(crate) waiters: u64,
}

/// Shows entries of the keyspace, all as of one moment. Linearizable. A revision of the past fails with
/// [`Reason::RevisionCompacted`](super::Reason::RevisionCompacted) if its state is forgotten, and one that is not reached with
/// [`Reason::RevisionFuture`](super::Reason::RevisionFuture).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GetEntries {
    pub(crate) keys: Vec<Key>,
    /// As they were at this revision; `None`: the present ones.
    pub(crate) at: Option<Revision>,
}

/// The entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesFound {
    /// Of the first keys, in their order, as many as fit into a page, and at least one: ask for the rest by another request.
    pub(crate) entries: Vec<Option<Arc<Entry>>>,
    /// The present revision of the keyspace: the one that the reply shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
}

/// Lists entries of the keyspace in the order of their keys. Linearizable. Fails as [`GetEntries`] does, and with
/// [`Reason::InvalidArgument`](super::Reason::InvalidArgument) if those of a lease are asked for at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListEntries {
    pub(crate) range: KeyRange,
    /// From the end of the range.
    pub(crate) backwards: bool,
    /// At most this many entries; 0: the maximum of a page.
    pub(crate) page_size: usize,
    /// As they were at this revision; `None`: the present ones.
    pub(crate) at: Option<Revision>,
    /// Only those whose lease is this session.
    pub(crate) leased_by: Option<SessionId>,
}

/// A page of entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntryPage {
    /// In the order that was asked for.
    pub(crate) entries: Vec<(Key, Arc<Entry>)>,
    /// The range has more of them, beyond the last one.
    pub(crate) more: bool,
    /// The present revision of the keyspace: the one that the page shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
}

/// Shows entries of a range, sorted and cut where they are. Linearizable, unless a stale read is asked for. Fails as [`GetEntries`] does,
/// and with [`Reason::LimitReached`](super::Reason::LimitReached) if the range has too many entries, or what it shows too many bytes: then
/// it is listed, page by page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SelectEntries {
    pub(crate) select: Select,
    /// As they were at this revision; `None`: the present ones.
    pub(crate) at: Option<Revision>,
    /// From the table of the node that is asked, as far as it has applied the log. Such a request is not forwarded, and has no message.
    pub(crate) stale: bool,
}

/// The entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesSelected {
    pub(crate) selected: Selected,
    /// The present revision of the keyspace: the one that the reply shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
}

/// Forgets the events of the keyspace up to a revision. Fails with [`Reason::RevisionFuture`](super::Reason::RevisionFuture).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CompactEntries {
    pub(crate) revision: Revision,
}

/// The events were forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesCompacted {
    /// The revision of the last one. Watches begin after it.
    pub(crate) revision: Revision,
}

/// Watches the entries of a range, at any node: a stream of [`EntriesWatched`], as this node applies the log. It ends with
/// [`Reason::RevisionCompacted`](super::Reason::RevisionCompacted) if an event that it still has to send is forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WatchEntries {
    pub(crate) range: KeyRange,
    /// The first revision whose events are wanted; it may be in the future. `None`: events from now on. All that was acknowledged before
    /// the call is not among them.
    pub(crate) from: Option<Revision>,
    /// Show the entry before each event.
    pub(crate) with_previous: bool,
}

/// Events of a watch. The first message of a stream may have none: it tells where the stream begins. So may later ones, which then tell
/// that there was no event up to a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesWatched {
    /// Ordered by revision, then by key.
    pub(crate) events: Vec<EntryEvent>,
    /// All events up to this revision were sent: a watch that begins after it misses none. Those of a later revision in this message are
    /// not all of it; the rest follows, before those of any other.
    pub(crate) complete: Revision,
}

/// Shows one level of the tree of names, in which `/` separates folders: at any node, from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrowseLocks {
    /// The folder, with its `/`. Empty: the root.
    pub(crate) prefix: String,
    /// Only what comes after this child.
    pub(crate) after: Option<After>,
    /// At most this many children.
    pub(crate) size: usize,
}

/// The last child of the page before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// A lock.
    Lock(LockName),
    /// A folder, by its prefix.
    Folder(String),
}

/// A page of a level, in the order of the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) children: Vec<Child>,
    /// There are more, after the last one.
    pub(crate) more: bool,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// What is in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    /// With its first holder and its first waiter.
    Lock(LockView),
    Folder(Folder),
}

/// A folder, with what was counted of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Folder {
    /// With the `/` at its end.
    pub(crate) prefix: String,
    /// Its locks, those of its folders among them.
    pub(crate) locks: usize,
    /// How many of them are held.
    pub(crate) held: usize,
    /// Acquires that wait for them.
    pub(crate) waiters: u64,
    /// It has more locks, which were not counted.
    pub(crate) more: bool,
}

/// Finds names that contain a text, in capitals or not: at any node, in its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SearchLocks {
    /// Only names that begin with it.
    pub(crate) prefix: String,
    pub(crate) text: String,
    /// Only names above this one: [`Found::more_after`] of the previous answer.
    pub(crate) after: Option<LockName>,
    /// At most this many locks.
    pub(crate) size: usize,
}

/// Locks that were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// With their first holders and first waiters.
    pub(crate) locks: Vec<LockView>,
    /// Names that were looked at.
    pub(crate) looked: usize,
    /// Names above this one were not looked at.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Shows a session and what it holds: at any node, from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowSession {
    pub(crate) session: SessionId,
    /// Only grants above this one.
    pub(crate) after: Token,
}

/// A session that is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionShown {
    pub(crate) view: SessionView,
    pub(crate) grants: Vec<GrantView>,
    /// It holds more, above the last one.
    pub(crate) more: bool,
    /// The first ones.
    pub(crate) waits: Vec<WaitView>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// A node becomes a member, or a member has new addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AddMember {
    pub(crate) node_id: u64,
    pub(crate) client_address: String,
    pub(crate) peer_address: String,
    /// `None`: the node is asked for it.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) stays_learner: bool,
}

/// A learner is to become a voter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PromoteMember {
    pub(crate) node_id: u64,
}

/// A member leaves for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveMember {
    pub(crate) node_id: u64,
}

/// A voter is to be replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplaceMember {
    pub(crate) node_id: u64,
    /// `None`: by the next learner that is promoted.
    pub(crate) with: Option<u64>,
    /// It is not to be replaced after all.
    pub(crate) keep: bool,
}

/// The change is committed. What follows from it, such as a promotion, the leader does by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MembersChanged;

/// The leadership is to be handed over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TransferLeader {
    /// `None`: to the voter whose log is furthest.
    pub(crate) to: Option<u64>,
}

/// Another node leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaderTransferred {
    pub(crate) leader_id: u64,
}

/// On a keep-alive stream: renews a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) session: SessionId,
    /// Chosen by the caller, and returned in the reply.
    pub(crate) sequence: u64,
}

/// On a keep-alive stream: an event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAliveEvent {
    pub(crate) session: SessionId,
    pub(crate) kind: KeepAliveEventKind,
}

/// An event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeepAliveEventKind {
    /// It was renewed.
    Renewed {
        /// The renewal's sequence number.
        sequence: u64,
        /// Counted from the send time of the renewal.
        ttl: Ttl,
        /// Where clients reach the members, if the stream has not said so yet.
        members: Vec<String>,
    },
    /// It ended.
    Ended(SessionEnd),
    /// An operator revoked one of its grants.
    Revoked(Revocation),
}

/// Watches the locks under a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WatchLocks {
    /// Empty: all locks.
    pub(crate) prefix: String,
    /// Resume after this log index, without the state. 0: start with the state.
    pub(crate) after_index: u64,
}

/// An event on a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WatchEvent {
    /// Part of the current state.
    State {
        /// In the order of their names.
        locks: Vec<LockView>,
        /// The log index of all parts of this state.
        index: u64,
        /// The first part: the watcher discards its earlier state.
        first: bool,
        /// The last part.
        last: bool,
    },
    /// The changes of one log entry.
    Changes {
        /// The entry's log index.
        index: u64,
        /// In the order in which they happened.
        changes: Vec<lockkeeper_machine::Change>,
        /// The next event has more changes of the same entry.
        more: bool,
    },
    /// Nothing changed up to this log index.
    Progress {
        /// The index.
        index: u64,
    },
    /// The changes after the watcher's index are no longer retained. The state follows.
    TooOld {
        /// The watcher's index.
        after_index: u64,
    },
}

impl From<AcquireLocks> for Command {
    fn from(AcquireLocks { session, request, acquire }: AcquireLocks) -> Self {
        Self::Session { session, request, operation: Operation::Acquire(acquire) }
    }
}

impl From<ReleaseLocks> for Command {
    fn from(ReleaseLocks { session, request, target }: ReleaseLocks) -> Self {
        Self::Session { session, request, operation: Operation::Release(target) }
    }
}

impl From<UpdateData> for Command {
    fn from(UpdateData { session, request, update }: UpdateData) -> Self {
        Self::Session { session, request, operation: Operation::Update(update) }
    }
}
