//! Limits of one identity.

use serde::Deserialize;

/// What one identity may have at a time. `None`: no limit of its own; those of the cluster hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Sessions that are alive.
    pub sessions: Option<u64>,
    /// Locks held, over all its sessions: a grant of three locks counts three.
    pub locks: Option<u64>,
    /// Acquires that wait.
    pub waiters: Option<u64>,
    /// Bytes of its sessions in the table, by the table's own count.
    pub bytes: Option<u64>,
    /// Calls in one second at one node; twice as many at once after a pause.
    pub calls_per_second: Option<u32>,
    /// Connections that are open at one node. Each counts from the identity's first call on it.
    pub connections: Option<u64>,
}
