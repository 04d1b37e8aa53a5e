//! Limits of one identity.

use serde::Deserialize;

/// The limits of one identity. `None` means that the identity has no own limit, and only the limits of the cluster apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IdentityLimits {
    /// The number of sessions that are alive.
    pub sessions: Option<u64>,
    /// The number of locks held over all its sessions. A grant of three locks counts three.
    pub locks: Option<u64>,
    /// The number of acquires that wait.
    pub waiters: Option<u64>,
    /// The bytes of its sessions in the table, by the table's own count.
    pub bytes: Option<u64>,
    /// Calls per second at one node. After a pause, twice as many are allowed at once.
    pub calls_per_second: Option<u32>,
    /// The number of open connections at one node. Each counts from the identity's first call on it.
    pub connections: Option<u64>,
}
