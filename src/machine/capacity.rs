//! The capacity of the table.

use lockkeeper_types::*;

/// The capacity of the table: the constants of `limits.rs`, in every build. A type of its own only so that a test can reach the limits.
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    pub(super) sessions: usize,
    pub(super) waiters: usize,
    pub(super) locks: usize,
    pub(super) entries: usize,
    pub(super) temporary_entries: usize,
    pub(super) events: usize,
    pub(super) event_bytes: usize,
    pub(super) waits_per_session: usize,
    pub(super) replies_per_session: usize,
    /// Including those to releases and updates.
    pub(super) all_replies_per_session: usize,
    pub(super) taken_per_session: usize,
}

impl Default for Capacity {
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
