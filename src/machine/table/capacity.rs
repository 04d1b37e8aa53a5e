//! The capacity of the table.

use crate::types::*;

/// The capacity of the table: the constants of `limits.rs`, in every build. A type of its own only so that a test can reach the limits.
#[derive(Clone, Copy)]
pub(crate) struct TableCapacity {
    pub(crate) sessions: usize,
    pub(crate) waiters: usize,
    pub(crate) locks: usize,
    pub(crate) entries: usize,
    pub(crate) temporary_entries: usize,
    pub(crate) events: usize,
    pub(crate) event_bytes: usize,
    pub(crate) waits_per_session: usize,
    pub(crate) replies_per_session: usize,
    /// Including those to releases and updates.
    pub(crate) all_replies_per_session: usize,
    pub(crate) taken_per_session: usize,
}

impl Default for TableCapacity {
    fn default() -> Self {
        Self {
            sessions: SESSIONS_MAX,
            waiters: WAITERS_MAX,
            locks: LOCKS_MAX,
            entries: ENTRIES_MAX,
            temporary_entries: TEMPORARY_ENTRIES_MAX,
            events: EVENTS_MAX,
            event_bytes: EVENT_BYTES_MAX,
            waits_per_session: WAITS_PER_SESSION_MAX,
            replies_per_session: REPLIES_PER_SESSION_MAX,
            all_replies_per_session: REPLIES_PER_SESSION_MAX + RELEASE_REPLIES_PER_SESSION_MAX,
            taken_per_session: TAKEN_PER_SESSION_MAX,
        }
    }
}
