//! When a learner has caught up.
//!
//! By rounds, as in §4.2.1 of Ongaro's thesis: a round ends when the learner has everything that the leader had when the round began. A
//! learner whose round took less than an election timeout lags by less than that: as a voter it does not delay commits for longer. One
//! that is too slow for the load never ends a round, and stays a learner.

use std::time::Duration;

use tokio::time::Instant;

/// The rounds of one learner.
#[derive(Debug)]
pub(super) struct CatchUp {
    goal: u64,
    began: Instant,
}

impl CatchUp {
    /// Begins the first round. The leader's last index is `last`.
    pub(super) fn new(last: u64) -> Self {
        Self { goal: last, began: Instant::now() }
    }

    /// Whether the learner, whose log matches the leader's up to `matched`, has caught up: it ended a round within `round_max`.
    pub(super) fn is_done(&mut self, matched: u64, last: u64, round_max: Duration) -> bool {
        if matched < self.goal {
            return false;
        }
        if self.began.elapsed() <= round_max {
            return true;
        }
        *self = Self::new(last);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_MAX: Duration = Duration::from_millis(300);

    #[tokio::test(start_paused = true)]
    async fn a_learner_has_caught_up_after_a_short_round() {
        let mut rounds = CatchUp::new(1_000);
        tokio::time::advance(ROUND_MAX * 10).await;
        assert!(!rounds.is_done(999, 2_000, ROUND_MAX));
        assert!(!rounds.is_done(1_000, 2_000, ROUND_MAX), "the first round took too long");
        tokio::time::advance(ROUND_MAX).await;
        assert!(!rounds.is_done(1_999, 2_500, ROUND_MAX));
        assert!(rounds.is_done(2_000, 2_500, ROUND_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_learner_that_is_slower_than_the_load_never_has() {
        let mut rounds = CatchUp::new(1_000);
        for round in 1..10 {
            tokio::time::advance(ROUND_MAX + Duration::from_millis(1)).await;
            assert!(!rounds.is_done(round * 1_000, (round + 1) * 1_000, ROUND_MAX));
        }
    }
}
