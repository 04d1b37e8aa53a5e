//! One session: a client's lease, and what hangs on it.

use super::{compact_sets::TokenSet, replies::RememberedReplies, weights::new_session_bytes};
use crate::types::*;

/// A session. Its fields are for all to read; only [`SessionTable`](super::SessionTable) changes them, and keeps its sums in line.
#[derive(Clone, Debug)]
pub(crate) struct SessionState {
    pub(crate) label: Label,
    pub(crate) ttl: Ttl,
    pub(crate) deadline: Stamp,
    pub(crate) opened: WallTime,
    /// The address from which it was opened. Not part of the hash.
    pub(crate) address: Option<Address>,
    /// The client that it belongs to. It is set once.
    pub(crate) owner: Option<Identity>,
    /// It is closed when the last entry leaves it.
    pub(crate) is_of_entries: bool,
    /// It was opened for a temporary entry, and counts for the limit of these.
    pub(crate) is_temporary: bool,
    /// The request ids whose replies the client may still ask for.
    pub(crate) open: OpenIds,
    pub(crate) grants: TokenSet,
    /// The replies to its requests.
    pub(crate) replies: RememberedReplies,
    /// Number of its waits.
    pub(crate) waits: u32,
    /// Number of grants that were taken from it and that it has not released yet.
    pub(crate) taken: usize,
    /// Number of its entries that claim a lock.
    pub(crate) claims: ClaimCount,
    /// How often it was attached.
    pub(crate) attached: u64,
    /// How it ended, if it did and some of what it held or awaited is not cleared away yet.
    pub(crate) ending: Option<SessionEnding>,
    /// Bytes of its grants and waits, and of data on locks that it alone holds.
    pub(crate) charged: usize,
}

/// How a session ended that is still in the backlog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionEnding {
    pub(crate) end: SessionEnd,
    /// When it ended: its lock-delays count from then.
    pub(crate) at: Stamp,
}

/// Number of the claims of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClaimCount {
    pub(crate) held: u32,
    pub(crate) waiting: u32,
}

impl SessionState {
    /// A session that holds and awaits nothing yet. `open` are the request ids that its client may use.
    pub(crate) fn new(new: NewSession, deadline: Stamp, opened: WallTime, open: OpenIds) -> Self {
        let NewSession { session: _, ttl, label, address, owner } = new;
        Self {
            label,
            ttl,
            deadline,
            opened,
            address,
            owner,
            is_of_entries: false,
            is_temporary: false,
            open,
            grants: TokenSet::None,
            replies: RememberedReplies::default(),
            waits: 0,
            taken: 0,
            claims: ClaimCount::default(),
            attached: 0,
            ending: None,
            charged: 0,
        }
    }

    /// Whether it holds and awaits nothing, apart from entries.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits == 0 && self.grants.len() == 0 && self.taken == 0
    }

    /// How the session ended, if it had ended by this time.
    pub(crate) fn over(&self, now: Stamp) -> Option<SessionEnd> {
        let expired = (self.deadline <= now).then_some(SessionEnd::Expired);
        self.ending.map(|ending| ending.end).or(expired)
    }

    /// Refuses a request id that the client has closed.
    pub(crate) fn check_open(&self, id: u64) -> Result<(), Refusal> {
        if self.open.contains(id) { Ok(()) } else { Err(Refusal::RequestStale { lowest: self.open.lowest() }) }
    }

    /// The bytes of the session without its grants and waits.
    pub(crate) fn bare_bytes(&self) -> usize {
        new_session_bytes(&self.label, self.owner.as_ref()) + self.request_bytes()
    }

    /// The bytes of its request ids and of the replies to them.
    pub(super) fn request_bytes(&self) -> usize {
        size_of_val(self.open.kept()) + self.replies.bytes()
    }

    /// All bytes that the session is charged for.
    pub(crate) fn bytes(&self) -> usize {
        self.bare_bytes() + self.charged
    }

    /// Closes the ids that the client no longer needs, and forgets the replies to them.
    pub(super) fn narrow(&mut self, view: &OpenIds) {
        let open = self.open.intersection(view);
        if open != self.open {
            self.replies.forget(|id| !open.contains(id));
            self.open = open;
        }
    }
}

impl ClaimCount {
    /// The number of those that wait, or of those that hold their lock.
    pub(crate) fn get_mut(&mut self, is_waiting: bool) -> &mut u32 {
        if is_waiting { &mut self.waiting } else { &mut self.held }
    }
}
