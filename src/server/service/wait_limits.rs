//! The limits of acquires that wait, and of the calls behind them.

use lockkeeper_table::calls::CALLS_PER_WAIT_MAX;
use lockkeeper_transport::Settings;

/// Maximum number of waiting acquires that a follower forwards. Further ones are refused with the leader's name, so that their clients can
/// wait there.
const WAITS_FORWARDED_MAX: usize = 4096;
// All of them fit on the connection to the leader.
const _: () = assert!(WAITS_FORWARDED_MAX < Settings::PEERS.calls_max as usize);

/// Maximum number of forwarded ones for one identity or, without one, one host: those that two followers pass on.
const FORWARDED_FOR_ONE_MAX: usize = 8192;

/// Maximum number of acquires that wait at one node. By pipelines, each takes 1.4 KiB beside the table. One client has half of what others
/// leave.
const WAITS_AT_NODE_MAX: usize = 262_144;

/// The limits of acquires that wait. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitLimits {
    /// Acquires that wait at a node.
    pub at_node: usize,
    /// Acquires that a follower passes on.
    pub passed_on: usize,
    /// Acquires of one client that wait at the leader and are passed on by other nodes.
    pub passed_on_for_one: usize,
    /// Calls that wait for the end of one wait.
    pub calls_per_wait: usize,
}

impl WaitLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        at_node: WAITS_AT_NODE_MAX,
        passed_on: WAITS_FORWARDED_MAX,
        passed_on_for_one: FORWARDED_FOR_ONE_MAX,
        calls_per_wait: CALLS_PER_WAIT_MAX,
    };
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self::REAL
    }
}
