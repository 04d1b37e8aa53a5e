//! The patience of this node's requests with its replica.

use std::time::Duration;

/// How long a command waits for the log, and a read for its quorum. Waiting for a lock is not counted.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
