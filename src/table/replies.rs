//! What becomes of the commands of an entry, for the proposer that waits for them.

use std::fmt;

use tokio::time::Instant;

use crate::calls::WaitingCall;
use lockkeeper_machine::Reply;

/// The replies to the commands of one batch, in order.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// One reply for each command. Empty if no caller waits for them.
    pub replies: Vec<Delivery>,
    /// When the table was about to apply the batch, and when it had, if that is known.
    pub applied: Option<(Instant, Instant)>,
}

/// The reply to one command.
#[derive(Debug)]
pub struct Delivery {
    /// The machine's reply.
    pub reply: Reply,
    /// The call that waits now, for [`Reply::Queued`], unless too many calls wait for its end.
    pub wait: Option<WaitingCall>,
    /// When the command passed the stages before its reply, if that is known.
    pub times: Option<Times>,
}

/// When a command passed each stage, at the leader, and its log entry: for traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// It came into the proposer's queue.
    pub queued: Instant,
    /// Its batch was given to Raft.
    pub proposed: Instant,
    /// Its entry was committed, and the table about to apply it.
    pub committed: Instant,
    /// The table had applied it.
    pub applied: Instant,
    /// The index of its entry.
    pub log_index: u64,
}

impl fmt::Display for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replies", self.replies.len())
    }
}
