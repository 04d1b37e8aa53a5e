//! Every request, its reply, and whether it changes something.

mod browsing;
mod entries;
mod locks;
mod members;
mod operators;
mod sessions;
mod streams;

use lockkeeper_machine::{Attachment, Committed, ForceRelease, Released, Txn};

pub(crate) use browsing::*;
pub(crate) use entries::*;
pub(crate) use locks::*;
pub(crate) use members::*;
pub(crate) use operators::*;
pub(crate) use sessions::*;
pub(crate) use streams::*;

/// A request with one reply.
pub(crate) trait ApiCall: Sized + Send + 'static {
    /// The node's reply.
    type Reply: Send + 'static;

    /// Its name in metrics.
    const NAME: &'static str;

    /// Whether the request changes the table. Without a reply, its outcome is unknown; others are safe to repeat.
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
    SetSessionOwner => SessionOwnerSet, "set_session_owner", true;
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
    CommitEach => EachCommitted, "commit_each", true;
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
