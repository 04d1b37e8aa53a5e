//! Whether a leader is cut off from its quorum.
//!
//! Each request asks, some of them more than once, and the answer needs the last acknowledgement of each voter. So it is kept: a leader in
//! contact at a moment stays in contact until the limit has passed since that moment. Within that time a change of members may ask for more
//! acknowledgements than were counted; a leader that loses them then notices it by the limit later at most.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use openraft::{ServerState, async_runtime::WatchReceiver};
use tokio::time::Instant;

use crate::{Raft, network::Acknowledgements};

/// A leader's contact with its quorum.
pub(crate) struct QuorumContact {
    raft: Raft,
    acknowledgements: Acknowledgements,
    limit: ContactLimit,
}

impl QuorumContact {
    pub(crate) fn new(raft: Raft, acknowledgements: Acknowledgements, silence_max: Duration) -> Self {
        Self { raft, acknowledgements, limit: ContactLimit::new(silence_max) }
    }

    /// Whether this node leads, and no quorum has acknowledged a request that it sent within the limit.
    pub(crate) fn is_lost(&self) -> bool {
        self.limit.is_over(|| self.reached_at())
    }

    /// When this leader sent the last request that a quorum has acknowledged. `None` if this node does not lead.
    fn reached_at(&self) -> Option<Instant> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        let term = metrics.vote.leader_id.term;
        let membership = metrics.membership_config.membership();
        self.acknowledgements.quorum_reached_at(metrics.id, membership, term)
    }
}

impl fmt::Debug for QuorumContact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumContact").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// How long a contact lasts, and until when the last one does.
#[derive(Debug)]
struct ContactLimit {
    silence_max: Duration,
    began: Instant,
    /// The time until which there is no need to ask, in nanoseconds since `began`.
    lasts_until_ns: AtomicU64,
}

impl ContactLimit {
    fn new(silence_max: Duration) -> Self {
        Self { silence_max, began: Instant::now(), lasts_until_ns: AtomicU64::new(0) }
    }

    /// Whether the limit has passed since the last contact. Without one, nothing is awaited.
    fn is_over(&self, reached_at: impl FnOnce() -> Option<Instant>) -> bool {
        let now_ns = nanoseconds(self.began.elapsed());
        if now_ns <= self.lasts_until_ns.load(Ordering::Relaxed) {
            return false;
        }

        let Some(reached_at) = reached_at() else { return false };
        let lasts_until = reached_at + self.silence_max;
        let lasts_until_ns = nanoseconds(lasts_until.saturating_duration_since(self.began));
        self.lasts_until_ns.store(lasts_until_ns, Ordering::Relaxed);
        now_ns > lasts_until_ns
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    #[tokio::test(start_paused = true)]
    async fn a_contact_lasts_until_the_limit_and_is_not_asked_for_before() {
        let limit = ContactLimit::new(LIMIT);
        let reached_at = Instant::now();
        advance(LIMIT / 2).await;
        assert!(!limit.is_over(|| Some(reached_at)));

        advance(LIMIT / 2).await;
        assert!(!limit.is_over(|| panic!("the contact lasts")));
        advance(Duration::from_millis(1)).await;
        assert!(limit.is_over(|| Some(reached_at)), "it was lost by the limit after the last contact");
        assert!(!limit.is_over(|| Some(Instant::now())), "it is there again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_a_contact_awaits_none() {
        let limit = ContactLimit::new(LIMIT);
        advance(2 * LIMIT).await;
        assert!(!limit.is_over(|| None));
    }
}
