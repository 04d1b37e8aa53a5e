//! Every request, its reply, and whether it changes something.

use std::sync::Arc;

use bytes::Bytes;

use lockkeeper_machine::{
    Acquire, Attachment, Busy, Command, Committed, Entry, EntryEvent, ForceRelease, Forced, Grant, GrantView,
    HolderView, Key, KeyRange, Label, LockName, LockView, Operation, Page, Permits, Reason, Released, Request,
    Revision, Revocation, Select, Selected, SessionEnd, SessionId, SessionView, Stamp, Target, Ticket, Token, Ttl, Txn,
    Update, WaitView, WaiterView,
};
use lockkeeper_raft::identity::Incarnation;

/// A request with one reply.
pub(crate) trait ApiCall: Sized + Send + 'static {
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
        $(impl ApiCall for $call {
            type Reply = $reply;
            const NAME: &'static str = $name;
            const CHANGES: bool = $changes;
        })*

        /// The names of all requests, in metrics. A simulation shows by them that its clients send every request.
        pub const REQUESTS: &[&str] = &[$($name),*];
    };
}

calls! {
    OpenSession => SessionOpened, "open_session", true;
    RenewSession => SessionRenewed, "renew_session", true;
    AttachSession => Attachment, "attach_session", true;
    CloseSession => SessionClosed, "close_session", true;
    ListSessions => ListedSessions, "list_sessions", false;
    AcquireLocks => Acquired, "acquire_locks", true;
    ReleaseLocks => Released, "release_locks", true;
    UpdateData => DataUpdated, "update_data", true;
    CheckToken => TokenChecked, "check_token", false;
    GetLock => LockFound, "get_lock", false;
    ListLocks => ListedLocks, "list_locks", false;
    ShowBusiest => BusiestLocks, "show_busiest", false;
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
    RunUnit => UnitDone, "run_unit", true;
    AddMember => MembersChanged, "add_member", true;
    PromoteMember => MembersChanged, "promote_member", true;
    RemoveMember => MembersChanged, "remove_member", true;
    ReplaceMember => MembersChanged, "replace_member", true;
    TransferLeader => LeaderTransferred, "transfer_leader", true;
}

/// Opens a session, or renews it if it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpenSession {
    /// The session's id, if the client chose one. Otherwise this node draws it.
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
    /// Whether there are more revoked grants.
    pub(crate) more_revoked: bool,
}

/// Renews a session, and attaches it to the connection that asks: a transaction by an earlier attachment is refused from then on, as
/// [`FailureReason::NotOwner`](super::FailureReason::NotOwner) with the number of the last one as `attached`.
///
/// Fails for a session that has ended. Sent again, it attaches again: the number of the last answer counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AttachSession {
    pub(crate) session: SessionId,
}

/// Closes a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CloseSession {
    pub(crate) session: SessionId,
    /// The operator's reason, if an operator closes the session.
    pub(crate) reason: Option<Reason>,
}

/// The session is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionClosed;

/// Lists sessions in the order of their ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListSessions {
    /// Lists only sessions above this one, which is the last one of the previous page.
    pub(crate) after: Option<SessionId>,
    /// Maximum number of sessions; 0 means the maximum of a page.
    pub(crate) page_size: usize,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedSessions {
    pub(crate) sessions: Vec<SessionView>,
    /// The session after which the next page begins, if there may be one.
    pub(crate) more_after: Option<SessionId>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// Acquires locks, all or none. The reply comes when the acquire is granted or gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AcquireLocks {
    pub(crate) session: SessionId,
    /// The request's id. Without one, a repeated request may take effect twice.
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
    /// The request's id. Without one, a repeated request may take effect twice.
    pub(crate) request: Option<Request>,
    pub(crate) target: Target,
}

/// Sets or removes the data on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UpdateData {
    pub(crate) session: SessionId,
    /// The request's id. Without one, a repeated request may take effect twice.
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
    /// The holder, if the token holds the lock.
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
    /// The page of holders and waiters. A size of 0 means the maximum of a page.
    pub(crate) page: Page,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
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
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// Lists only locks above this one, which is [`ListedLocks::more_after`] of the previous page.
    pub(crate) after: Option<LockName>,
    /// Maximum number of locks; 0 means the maximum of a page.
    pub(crate) page_size: usize,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedLocks {
    pub(crate) locks: Vec<LockView>,
    /// The lock after which the next page begins, if there may be one.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// Asks for the busiest locks and the longest waits, in this node's own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowBusiest {
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// Maximum number of locks or waits in each list; 0 means a default.
    pub(crate) size: usize,
    /// Grants are counted after the entry with this index.
    pub(crate) after_index: u64,
}

/// The busiest locks and the longest waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BusiestLocks {
    /// The locks with the longest queues come first, then those with the most grants.
    pub(crate) locks: Vec<BusyLockView>,
    /// The oldest wait comes first.
    pub(crate) waits: Vec<LongWaitView>,
    /// Whether there are more waits than were examined.
    pub(crate) more_waits: bool,
    /// Grants are counted after the entry with this index.
    pub(crate) counted_after: u64,
    /// The log index that the reply shows.
    pub(crate) index: u64,
    pub(crate) node_id: u64,
    pub(crate) totals: TableTotals,
}

/// A lock that is awaited, or was granted lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BusyLockView {
    /// The lock with its first holder and its first waiter, without data.
    pub(crate) lock: LockView,
    /// Number of counted grants.
    pub(crate) grants: u64,
}

/// An acquire that has waited long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LongWaitView {
    pub(crate) name: LockName,
    pub(crate) waiter: WaiterView,
    /// The first holder of the lock.
    pub(crate) holder: Option<HolderView>,
    pub(crate) queue_length: u64,
}

/// The events of a node's table since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TableTotals {
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
    /// The grants in the order of their tokens.
    pub(crate) forced: Vec<Forced>,
    /// If there are more grants, the highest token of them: send another request.
    pub(crate) more_up_to: Option<Token>,
}

/// An operator ends a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveWaiter {
    pub(crate) name: LockName,
    pub(crate) ticket: Ticket,
}

/// The waiter that was removed, if the ticket waited for this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WaiterRemoved(pub(crate) Option<WaiterView>);

/// An operator ends a lock-delay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiftDelay {
    pub(crate) name: LockName,
}

/// The remaining lock-delay in milliseconds, if the lock had one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DelayLifted(pub(crate) Option<u64>);

/// An operator drops the data on locks without a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DropData {
    /// Drops only data of locks whose names begin with this. Empty means all locks.
    pub(crate) prefix: String,
    /// Drops only data of locks above this one, which is [`DataDropped::more_after`] of the previous reply.
    pub(crate) after: Option<LockName>,
}

/// The data were dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataDropped {
    /// Number of locks whose data were dropped.
    pub(crate) dropped: u64,
    /// If there are more locks, the one after which to go on with another request.
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
/// [`FailureReason::RevisionCompacted`](super::FailureReason::RevisionCompacted) if its state is forgotten, and one that is not reached
/// with [`FailureReason::RevisionFuture`](super::FailureReason::RevisionFuture).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GetEntries {
    pub(crate) keys: Vec<Key>,
    /// The revision at which to show the entries. Without one, the present entries are shown.
    pub(crate) at: Option<Revision>,
    /// Whether every deadline counts that has passed by the leader's clock, and the reply shows this clock: see `Replica::read_on_time`.
    pub(crate) on_time: bool,
}

/// The entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesFound {
    /// The entries of the first keys, in the order of the keys: as many as fit into a page, and at least one. Ask for the rest by another
    /// request.
    pub(crate) entries: Vec<Option<Arc<Entry>>>,
    /// The present revision of the keyspace: the one that the reply shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
    /// Cluster time, from which the remaining time of the entries is counted. A reply on time is exact; another one may be a second behind.
    pub(crate) now: Stamp,
}

/// Lists entries of the keyspace in the order of their keys. Linearizable. Fails as [`GetEntries`] does, and with
/// [`FailureReason::InvalidArgument`](super::FailureReason::InvalidArgument) if those of a lease are asked for at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListEntries {
    pub(crate) range: KeyRange,
    /// Whether to list from the end of the range.
    pub(crate) backwards: bool,
    /// Maximum number of entries; 0 means the maximum of a page.
    pub(crate) page_size: usize,
    /// The revision at which to show the entries. Without one, the present entries are shown.
    pub(crate) at: Option<Revision>,
    /// Lists only entries whose lease is this session.
    pub(crate) leased_by: Option<SessionId>,
    /// As in [`GetEntries`].
    pub(crate) on_time: bool,
}

/// A page of entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntryPage {
    /// The entries in the requested order.
    pub(crate) entries: Vec<(Key, Arc<Entry>)>,
    /// Whether the range has more entries, beyond the last one.
    pub(crate) more: bool,
    /// The present revision of the keyspace: the one that the page shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
    /// As in [`EntriesFound`].
    pub(crate) now: Stamp,
}

/// Shows entries of a range, sorted and cut at the node that executes it. Linearizable, unless a stale read is asked for. Fails as
/// [`GetEntries`] does, and with [`FailureReason::LimitReached`](super::FailureReason::LimitReached) if the range has too many entries, or
/// the selected ones too many bytes: list it page by page then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SelectEntries {
    pub(crate) select: Select,
    /// The revision at which to show the entries. Without one, the present entries are shown.
    pub(crate) at: Option<Revision>,
    /// From the table of the node that is asked, as far as it has applied the log. Such a request is not forwarded, and has no message.
    pub(crate) stale: bool,
    /// As in [`GetEntries`], unless it is stale.
    pub(crate) on_time: bool,
}

/// The entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesSelected {
    pub(crate) selected: Selected,
    /// The present revision of the keyspace: the one that the reply shows, unless an earlier one was asked for.
    pub(crate) revision: Revision,
}

/// Forgets the events of the keyspace up to a revision. Fails with [`FailureReason::RevisionFuture`](super::FailureReason::RevisionFuture).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CompactEntries {
    pub(crate) revision: Revision,
}

/// The events were forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesCompacted {
    /// The revision of the last event that was forgotten. Watches begin after it.
    pub(crate) revision: Revision,
}

/// Runs a unit of work of an adapter at the node that executes the request. It reads and writes by requests of its own, with the rights of
/// the caller. Fails with [`Reason::ClusterVersion`](super::Reason::ClusterVersion) if the node has no such adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunUnit {
    /// In the form of the adapter.
    pub(crate) unit: Bytes,
}

/// The unit has run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnitDone {
    /// In the form of the adapter.
    pub(crate) answer: Bytes,
}

/// Watches the entries of a range, at any node: a stream of [`EntriesWatched`], as this node applies the log. It ends with
/// [`FailureReason::RevisionCompacted`](super::FailureReason::RevisionCompacted) if an event that it still has to send is forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WatchEntries {
    pub(crate) range: KeyRange,
    /// The first revision whose events are wanted; it may be in the future. Without it, the watch begins now: it shows nothing that was
    /// acknowledged before the call.
    pub(crate) from: Option<Revision>,
    /// Whether to show the entry before each event.
    pub(crate) with_previous: bool,
}

/// Events of a watch. A message without events tells that there were none up to a revision; the first message of a stream may be one, and
/// then tells where the stream begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntriesWatched {
    /// The events, ordered by revision, then by key.
    pub(crate) events: Vec<EntryEvent>,
    /// All events up to this revision were sent, so a watch that begins after it misses none. Events of a later revision in this message
    /// are a part of that revision: the rest follows, before any event of another one.
    pub(crate) complete: Revision,
}

/// Shows one level of the tree of names, in which `/` separates folders: at any node, from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrowseLocks {
    /// The folder, with its `/`. Empty means the root.
    pub(crate) prefix: String,
    /// Shows only children after this one.
    pub(crate) after: Option<After>,
    /// Maximum number of children.
    pub(crate) size: usize,
}

/// The last child of the previous page.
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
    /// Whether there are more children, after the last one.
    pub(crate) more: bool,
    /// The log index that the page shows.
    pub(crate) index: u64,
}

/// A child of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    /// A lock with its first holder and its first waiter.
    Lock(LockView),
    Folder(Folder),
}

/// A folder, and what was counted in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Folder {
    /// The folder's prefix, with the `/` at its end.
    pub(crate) prefix: String,
    /// Number of its locks, including those of its folders.
    pub(crate) locks: usize,
    /// Number of its locks that are held.
    pub(crate) held: usize,
    /// Number of acquires that wait for its locks.
    pub(crate) waiters: u64,
    /// Whether it has more locks, which were not counted.
    pub(crate) more: bool,
}

/// Finds names that contain a text, in upper or lower case, at any node in its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SearchLocks {
    /// Finds only names that begin with this.
    pub(crate) prefix: String,
    pub(crate) text: String,
    /// Finds only names above this one, which is [`LocksFound::more_after`] of the previous answer.
    pub(crate) after: Option<LockName>,
    /// Maximum number of locks.
    pub(crate) size: usize,
}

/// Locks that were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LocksFound {
    /// The locks with their first holders and first waiters.
    pub(crate) locks: Vec<LockView>,
    /// Number of names that were looked at.
    pub(crate) looked: usize,
    /// If names were left, the one after which to go on.
    pub(crate) more_after: Option<LockName>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Shows a lock with the sessions of its holders, at any node from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowLock {
    pub(crate) name: LockName,
    /// The page of holders and waiters.
    pub(crate) page: Page,
}

/// A lock as this node knows it. A lock that does not exist is shown as free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockKnown {
    pub(crate) lock: LockView,
    /// The session of each holder that is shown, if it is alive.
    pub(crate) sessions: Vec<Option<SessionView>>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Shows a session and what it holds, at any node from its own table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShowSession {
    pub(crate) session: SessionId,
    /// Shows only grants above this one.
    pub(crate) after: Token,
}

/// A session that is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionShown {
    pub(crate) view: SessionView,
    pub(crate) grants: Vec<GrantView>,
    /// Whether it holds more grants, above the last one.
    pub(crate) more: bool,
    /// Its first waits.
    pub(crate) waits: Vec<WaitView>,
    /// The log index that the answer shows.
    pub(crate) index: u64,
}

/// Makes a node a member, or changes the addresses of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AddMember {
    pub(crate) node_id: u64,
    pub(crate) client_address: String,
    pub(crate) peer_address: String,
    /// The node's incarnation. Without it, the leader asks the node.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) stays_learner: bool,
}

/// Makes a learner a voter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PromoteMember {
    pub(crate) node_id: u64,
}

/// Removes a member for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoveMember {
    pub(crate) node_id: u64,
}

/// Replaces a voter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplaceMember {
    pub(crate) node_id: u64,
    /// The member that takes its place. Without one, it is the next learner that is promoted.
    pub(crate) with: Option<u64>,
    /// Whether the voter is not to be replaced after all.
    pub(crate) keep: bool,
}

/// The change is committed. The leader does by itself what follows from it, such as a promotion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MembersChanged;

/// Hands the leadership to another member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TransferLeader {
    /// The new leader. Without one, it is the voter whose log is furthest.
    pub(crate) to: Option<u64>,
}

/// Another node leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaderTransferred {
    pub(crate) leader_id: u64,
}

/// A renewal of a session on a keep-alive stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) session: SessionId,
    /// The renewal's number, which the caller chooses and the reply repeats.
    pub(crate) sequence: u64,
}

/// An event of a session on a keep-alive stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeepAliveEvent {
    pub(crate) session: SessionId,
    pub(crate) kind: KeepAliveEventKind,
}

/// An event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeepAliveEventKind {
    /// The session was renewed.
    Renewed {
        /// The renewal's sequence number.
        sequence: u64,
        /// The TTL, counted from the time at which the renewal was sent.
        ttl: Ttl,
        /// The addresses at which clients reach the members, if the stream has not named them yet.
        members: Vec<String>,
    },
    /// The session ended.
    Ended(SessionEnd),
    /// An operator revoked one of the session's grants.
    Revoked(Revocation),
}

/// Watches the locks under a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WatchLocks {
    /// The first part of the names. Empty means all locks.
    pub(crate) prefix: String,
    /// The log index after which to go on without the state. 0 means to start with the state.
    pub(crate) after_index: u64,
}

/// An event on a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WatchEvent {
    /// Part of the current state.
    State {
        /// The locks in the order of their names.
        locks: Vec<LockView>,
        /// The log index of all parts of this state.
        index: u64,
        /// Whether this is the first part: the watcher discards its earlier state.
        first: bool,
        /// Whether this is the last part.
        last: bool,
    },
    /// The changes of one log entry.
    Changes {
        /// The entry's log index.
        index: u64,
        /// The changes in the order in which they happened.
        changes: Vec<lockkeeper_machine::Change>,
        /// Whether the next event has more changes of the same entry.
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
