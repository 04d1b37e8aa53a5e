//! Entries of the keyspace: shown, listed, selected, compacted, watched; and units of an adapter.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Error;
use lockkeeper_machine::{
    Committed, Entry, EntryEvent, Key, KeyRange, Revision, Select, Selected, SessionId, Stamp, Txn,
};

/// Shows entries of the keyspace, all as of one moment. Linearizable. A revision of the past fails with
/// [`FailureReason::RevisionCompacted`](crate::api::FailureReason::RevisionCompacted) if its state is forgotten, and one that is not
/// reached with [`FailureReason::RevisionFuture`](crate::api::FailureReason::RevisionFuture).
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
/// [`FailureReason::InvalidArgument`](crate::api::FailureReason::InvalidArgument) if those of a lease are asked for at a revision.
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
/// [`GetEntries`] does, and with [`FailureReason::LimitReached`](crate::api::FailureReason::LimitReached) if the range has too many
/// entries, or the selected ones too many bytes: list it page by page then.
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

/// Forgets the events of the keyspace up to a revision. Fails with
/// [`FailureReason::RevisionFuture`](crate::api::FailureReason::RevisionFuture).
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

/// Runs transactions one after the other, each by itself, at the node that executes the request. They are in its queue for the log, in
/// their order, before one is answered, and all belong to one term: where one of them has had no effect, none behind it has one, but for
/// those that their own conditions refused. The first one that is refused at once is the last that is begun.
///
/// Fails with [`FailureReason::ClusterVersion`](crate::api::FailureReason::ClusterVersion) if the node is from before it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CommitEach {
    pub(crate) txns: Vec<Txn>,
}

/// What became of transactions, in their order; those without an outcome were not begun. Where the results of some that were refused are
/// too much for one answer, they are left out.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct EachCommitted {
    pub(crate) outcomes: Vec<Result<Committed, Error>>,
}

/// Runs a unit of work of an adapter at the node that executes the request. It reads and writes by requests of its own, with the rights of
/// the caller. Fails with [`FailureReason::ClusterVersion`](crate::api::FailureReason::ClusterVersion) if the node has no such adapter.
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
/// [`FailureReason::RevisionCompacted`](crate::api::FailureReason::RevisionCompacted) if an event that it still has to send is forgotten.
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
