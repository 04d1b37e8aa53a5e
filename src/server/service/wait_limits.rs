//! The limits of acquires that wait, and of the calls behind them.

use super::forwarded_waits::FOR_ONE_MAX;
use lockkeeper_table::calls::CALLS_PER_WAIT_MAX;
use lockkeeper_transport::Settings;

/// Maximum number of waiting acquires that a follower forwards. Further ones are refused with the leader's name, so that their clients can
/// wait there.
const WAITS_FORWARDED_MAX: usize = 4096;
// All of them fit on the connection to the leader.
const _: () = assert!(WAITS_FORWARDED_MAX < Settings::PEERS.calls_max as usize);

/// The limits of acquires that wait. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitLimits {
    /// Acquires that a follower passes on.
    pub passed_on: usize,
    /// Acquires of one client that wait at the leader and are passed on by other nodes.
    pub passed_on_for_one: usize,
    /// Calls that wait for the end of one wait.
    pub calls_per_wait: usize,
}

impl WaitLimits {
    /// The limits of every real node.
    pub const REAL: Self =
        Self { passed_on: WAITS_FORWARDED_MAX, passed_on_for_one: FOR_ONE_MAX, calls_per_wait: CALLS_PER_WAIT_MAX };
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self::REAL
    }
}
