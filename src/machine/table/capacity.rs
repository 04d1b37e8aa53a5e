//! The capacity of the table.

#[cfg(debug_assertions)]
use std::sync::OnceLock;

use crate::types::*;

/// The capacity of the table: the constants of `limits.rs`, in every build. A type of its own only so that tests can reach the limits.
#[derive(Clone, Copy, Debug)]
pub struct TableCapacity {
    /// [`SESSIONS_MAX`]
    pub sessions: usize,
    /// [`WAITERS_MAX`]
    pub waiters: usize,
    /// [`LOCKS_MAX`]
    pub locks: usize,
    /// [`ENTRIES_MAX`]
    pub entries: usize,
    /// [`TEMPORARY_ENTRIES_MAX`]
    pub temporary_entries: usize,
    /// [`EVENTS_MAX`]
    pub events: usize,
    /// [`EVENT_BYTES_MAX`]
    pub event_bytes: usize,
    /// [`WAITS_PER_SESSION_MAX`]
    pub waits_per_session: usize,
    /// [`REPLIES_PER_SESSION_MAX`]
    pub replies_per_session: usize,
    /// Including those to releases and updates: [`RELEASE_REPLIES_PER_SESSION_MAX`] more.
    pub all_replies_per_session: usize,
    /// [`TAKEN_PER_SESSION_MAX`]
    pub taken_per_session: usize,
}

impl TableCapacity {
    /// The constants.
    pub const REAL: Self = Self {
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
    };

    /// Gives all tables of this process another capacity, so that a simulation reaches the limits. Call it before the first table is made.
    /// It is not there in a release.
    #[cfg(debug_assertions)]
    pub fn simulate(self) {
        assert!(SIMULATED.set(self).is_ok(), "a process simulates one capacity");
    }
}

#[cfg(debug_assertions)]
static SIMULATED: OnceLock<TableCapacity> = OnceLock::new();

impl Default for TableCapacity {
    fn default() -> Self {
        #[cfg(debug_assertions)]
        if let Some(capacity) = SIMULATED.get() {
            return *capacity;
        }
        Self::REAL
    }
}
